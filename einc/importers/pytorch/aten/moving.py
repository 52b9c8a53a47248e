"""Elements at other places: views, permutations, slices, concatenations, repetitions."""

from __future__ import annotations

from collections.abc import Sequence

from einc.importers.arrays import moving
from einc.importers.arrays.elementwise import apply, broadcast_shapes
from einc.importers.arrays.extents import Extent, make_extent
from einc.importers.arrays.values import Array, UnsupportedError, normalize_axis
from einc.importers.pytorch.aten.table import Call, Size, aten

_FAR = 2**63 - 1
"""The end of a slice that has none, as torch writes it."""


@aten("view", "reshape", "_unsafe_view", "_reshape_alias", "view_copy")
def convert_view(call: Call, self_: Array, size: list[Size] | None = None, shape: list[Size] | None = None) -> Array:
    return moving.reshape(call.program, self_, size if size is not None else shape or [], call.hint)


@aten("flatten")
def convert_flatten(call: Call, self_: Array, start_dim: int = 0, end_dim: int = -1) -> Array:
    if not self_.rank:
        return moving.reshape(call.program, self_, [1], call.hint)
    first, last = normalize_axis(start_dim, self_.rank), normalize_axis(end_dim, self_.rank)
    return moving.reshape(call.program, self_, [*self_.shape[:first], -1, *self_.shape[last + 1 :]], call.hint)


@aten("reshape_as", "view_as")
def convert_reshape_as(call: Call, self_: Array, other_: Array) -> Array:
    return moving.reshape(call.program, self_, other_.shape, call.hint)


@aten("unflatten")
def convert_unflatten(call: Call, self_: Array, dim: int, sizes: list[Size]) -> Array:
    axis = normalize_axis(dim, self_.rank)
    return moving.reshape(call.program, self_, [*self_.shape[:axis], *sizes, *self_.shape[axis + 1 :]], call.hint)


@aten("squeeze")
def convert_squeeze(call: Call, self_: Array, dim: int | list[int] | None = None) -> Array:
    axes = None if dim is None else [dim] if isinstance(dim, int) else dim
    if axes is not None:
        axes = [a for a in axes if self_.rank and self_.shape[normalize_axis(a, self_.rank)] == make_extent(1)]
    return moving.squeeze(call.program, self_, axes, call.hint)


@aten("unsqueeze")
def convert_unsqueeze(call: Call, self_: Array, dim: int) -> Array:
    return moving.unsqueeze(call.program, self_, [dim], call.hint)


@aten("permute", "permute_copy")
def convert_permute(call: Call, self_: Array, dims: list[int]) -> Array:
    return moving.transpose(call.program, self_, dims, call.hint)


@aten("transpose", "swapaxes")
def convert_transpose(call: Call, self_: Array, dim0: int, dim1: int) -> Array:
    order = list(range(self_.rank))
    if self_.rank:
        first, second = normalize_axis(dim0, self_.rank), normalize_axis(dim1, self_.rank)
        order[first], order[second] = order[second], order[first]
    return moving.transpose(call.program, self_, order, call.hint)


@aten("t", "numpy_T", "mT")
def convert_t(call: Call, self_: Array) -> Array:
    return convert_transpose(call, self_, -1, -2) if self_.rank > 1 else self_


@aten("movedim")
def convert_movedim(call: Call, self_: Array, source: list[int], destination: list[int]) -> Array:
    sources = [normalize_axis(axis, self_.rank) for axis in source]
    targets = [normalize_axis(axis, self_.rank) for axis in destination]
    kept = iter(axis for axis in range(self_.rank) if axis not in sources)
    order = [sources[targets.index(axis)] if axis in targets else next(kept) for axis in range(self_.rank)]
    return moving.transpose(call.program, self_, order, call.hint)


@aten("expand", "expand_copy")
def convert_expand(call: Call, self_: Array, size: list[Size]) -> Array:
    offset = len(size) - self_.rank
    shape = [
        self_.shape[axis - offset] if axis >= offset and make_extent(extent) == make_extent(-1) else extent
        for axis, extent in enumerate(size)
    ]
    return moving.expand(call.program, self_, shape, call.hint)


@aten("expand_as")
def convert_expand_as(call: Call, self_: Array, other_: Array) -> Array:
    return moving.expand(call.program, self_, other_.shape, call.hint)


@aten("broadcast_tensors")
def convert_broadcast(call: Call, tensors: list[Array]) -> list[Array]:
    shape = broadcast_shapes(*(tensor.shape for tensor in tensors))
    return [moving.expand(call.program, tensor, shape, call.hint) for tensor in tensors]


@aten("slice", "slice_copy")
def convert_slice(
    call: Call, self_: Array, dim: int = 0, start: Size | None = None, end: Size | None = None, step: int = 1
) -> Array:
    first = 0 if start is None else start
    last = _FAR if end is None else end
    return moving.slice_axis(call.program, self_, dim, first, last, step, call.hint)


@aten("narrow")
def convert_narrow(call: Call, self_: Array, dim: int, start: Size, length: Size) -> Array:
    return moving.slice_axis(call.program, self_, dim, start, make_extent(start) + length, 1, call.hint)


@aten("select", "select_copy")
def convert_select(call: Call, self_: Array, dim: int, index: Size) -> Array:
    axis = normalize_axis(dim, self_.rank)
    position = make_extent(index)
    if position.value < 0:
        position = position + self_.shape[axis]
    part = moving.slice_axis(call.program, self_, axis, position, position + 1, 1, call.hint)
    return moving.squeeze(call.program, part, [axis], call.hint)


@aten("split_with_sizes", "split_with_sizes_copy")
def convert_split_with_sizes(call: Call, self_: Array, split_sizes: list[Size], dim: int = 0) -> list[Array]:
    start, parts = make_extent(0), []
    for size in split_sizes:
        parts.append(moving.slice_axis(call.program, self_, dim, start, start + size, 1, call.hint))
        start = start + size
    return parts


@aten("split", "unsafe_split", "split_copy")
def convert_split(call: Call, self_: Array, split_size: int | list[Size], dim: int = 0) -> list[Array]:
    if isinstance(split_size, list):
        return convert_split_with_sizes(call, self_, split_size, dim)
    extent = _require_number(self_.shape[normalize_axis(dim, self_.rank)])
    return convert_split_with_sizes(
        call, self_, [min(split_size, extent - k) for k in range(0, extent, split_size)], dim
    )


@aten("chunk", "unsafe_chunk")
def convert_chunk(call: Call, self_: Array, chunks: int, dim: int = 0) -> list[Array]:
    extent = _require_number(self_.shape[normalize_axis(dim, self_.rank)])
    return convert_split(call, self_, -(-extent // chunks), dim)


def _require_number(extent: Extent) -> int:
    if not extent.is_number:
        raise UnsupportedError("parts of a dimension that depends on params", "give the dimension a number")
    return extent.value


@aten("unbind", "unbind_copy")
def convert_unbind(call: Call, self_: Array, dim: int = 0) -> list[Array]:
    extent = _require_number(self_.shape[normalize_axis(dim, self_.rank)])
    return [convert_select(call, self_, dim, k) for k in range(extent)]


@aten("cat", "concat", "concatenate")
def convert_cat(call: Call, tensors: list[Array], dim: int = 0) -> Array:
    """Tensors of shape [0] are passed over, as torch does."""
    kept = [tensor for tensor in tensors if tensor.shape != (make_extent(0),)]
    arrays = [call.cast(tensor) for tensor in kept or tensors]
    return moving.concat(call.program, arrays, dim, call.hint)


@aten("hstack")
def convert_hstack(call: Call, tensors: list[Array]) -> Array:
    return convert_cat(call, tensors, 0 if tensors[0].rank == 1 else 1)


@aten("diff")
def convert_diff(
    call: Call, self_: Array, n: int = 1, dim: int = -1, prepend: Array | None = None, append: Array | None = None
) -> Array:
    """Differences of neighbours, n times."""
    pieces = [piece for piece in (prepend, self_, append) if piece is not None]
    array = convert_cat(call, pieces, dim) if len(pieces) > 1 else self_
    for _ in range(n):
        after = moving.slice_axis(call.program, array, dim, 1, _FAR, 1, call.hint)
        before = moving.slice_axis(call.program, array, dim, 0, -1, 1, call.hint)
        function = "ne" if array.type.is_bool else "sub"
        array = apply(call.program, function, after, before, hint=call.hint)
    return array


@aten("stack")
def convert_stack(call: Call, tensors: list[Array], dim: int = 0) -> Array:
    axis = normalize_axis(dim, tensors[0].rank + 1)
    widened = [moving.unsqueeze(call.program, call.cast(tensor), [axis], call.hint) for tensor in tensors]
    return moving.concat(call.program, widened, axis, call.hint)


@aten("flip")
def convert_flip(call: Call, self_: Array, dims: list[int]) -> Array:
    return moving.flip(call.program, self_, dims, call.hint)


@aten("roll")
def convert_roll(call: Call, self_: Array, shifts: list[int], dims: Sequence[int] = ()) -> Array:
    array = self_ if dims else moving.reshape(call.program, self_, [-1])
    for shift, dim in zip(shifts, dims or (0,), strict=True):
        extent = _require_number(array.shape[normalize_axis(dim, array.rank)])
        cut = -shift % extent
        if cut:
            parts = [(cut, extent), (0, cut)]
            pieces = [moving.slice_axis(call.program, array, dim, *part, hint=call.hint) for part in parts]
            array = moving.concat(call.program, pieces, dim, call.hint)
    return array if dims else moving.reshape(call.program, array, self_.shape, call.hint)


@aten("repeat")
def convert_repeat(call: Call, self_: Array, repeats: list[Size]) -> Array:
    """Each dimension gets one of its repetitions before it, and both become one."""
    counts = [make_extent(count) for count in repeats]
    shape = [*[make_extent(1)] * (len(counts) - self_.rank), *self_.shape]
    spread = [part for extent in shape for part in (make_extent(1), extent)]
    wide = [part for count, extent in zip(counts, shape, strict=True) for part in (count, extent)]
    array = moving.expand(call.program, moving.reshape(call.program, self_, spread), wide, call.hint)
    merged = [count * extent for count, extent in zip(counts, shape, strict=True)]
    return moving.reshape(call.program, array, merged, call.hint)


@aten("tile")
def convert_tile(call: Call, self_: Array, dims: list[Size]) -> Array:
    return convert_repeat(call, self_, [*[1] * (self_.rank - len(dims)), *dims])


@aten("repeat_interleave.self_int")
def convert_repeat_interleave(
    call: Call, self_: Array, repeats: Size, dim: int | None = None, output_size: int | None = None
) -> Array:
    array = self_ if dim is not None else moving.reshape(call.program, self_, [-1])
    axis = normalize_axis(dim or 0, array.rank)
    wide = moving.unsqueeze(call.program, array, [axis + 1])
    shape = [*array.shape[: axis + 1], repeats, *array.shape[axis + 1 :]]
    spread = moving.expand(call.program, wide, shape, call.hint)
    merged = [*array.shape[:axis], array.shape[axis] * repeats, *array.shape[axis + 1 :]]
    return moving.reshape(call.program, spread, merged, call.hint)


@aten("constant_pad_nd")
def convert_pad(call: Call, self_: Array, pad: list[int], value: float = 0) -> Array:
    return moving.pad(call.program, self_, _read_widths(pad, self_.rank), value, call.hint)


@aten("pad")
def convert_pad_of_mode(
    call: Call, self_: Array, pad: list[int], mode: str = "constant", value: float | None = None
) -> Array:
    ways: dict[str, float | str] = {
        "constant": value or 0, "reflect": "reflect", "replicate": "nearest", "circular": "wrap"
    }  # fmt: skip
    return moving.pad(call.program, self_, _read_widths(pad, self_.rank), ways[mode], call.hint)


@aten("reflection_pad1d", "reflection_pad2d", "reflection_pad3d")
def convert_reflection_pad(call: Call, self_: Array, padding: list[int]) -> Array:
    return moving.pad(call.program, self_, _read_widths(padding, self_.rank), "reflect", call.hint)


@aten("replication_pad1d", "replication_pad2d", "replication_pad3d")
def convert_replication_pad(call: Call, self_: Array, padding: list[int]) -> Array:
    return moving.pad(call.program, self_, _read_widths(padding, self_.rank), "nearest", call.hint)


def _read_widths(pad: Sequence[int], rank: int) -> list[tuple[int, int]]:
    """Pairs of widths by axis; torch lists them from the last axis on."""
    pairs = [(pad[k], pad[k + 1]) for k in range(0, len(pad), 2)]
    return [(0, 0)] * (rank - len(pairs)) + pairs[::-1]


@aten("pixel_shuffle")
def convert_pixel_shuffle(call: Call, self_: Array, upscale_factor: int) -> Array:
    *batch, channels, high, wide = self_.shape
    r, program, n = upscale_factor, call.program, len(self_.shape) - 3
    parts = moving.reshape(program, self_, [*batch, channels // (r * r), r, r, high, wide])
    order = [*range(n), n, n + 3, n + 1, n + 4, n + 2]
    shape = [*batch, channels // (r * r), high * r, wide * r]
    return moving.reshape(program, moving.transpose(program, parts, order), shape, call.hint)


@aten("unfold")
def convert_unfold(call: Call, self_: Array, dimension: int, size: int, step: int) -> Array:
    """Windows along a dimension, whose elements become the last dimension."""
    if not self_.rank:
        return moving.reshape(call.program, self_, [size], call.hint)
    axis = normalize_axis(dimension, self_.rank)
    count = (self_.shape[axis] - size) // step + 1
    shape = [*self_.shape[:axis], count, *self_.shape[axis + 1 :], make_extent(size)]
    program = call.program
    indices = [f"i{k}" for k in range(self_.rank)]
    moved = f"{step} * i{axis} + r0" if step > 1 else f"i{axis} + r0"
    read = ", ".join(moved if k == axis else index for k, index in enumerate(indices))
    targets = [f"{index}=" if k == axis else index for k, index in enumerate([*indices, "r0="])]
    return program.equation(call.hint, targets, f"{{0}}[{read}]", [program.place(self_)], shape, self_.type)
