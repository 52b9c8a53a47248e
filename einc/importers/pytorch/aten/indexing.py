"""Elements at positions that are data: lookups, gathers, scatters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from einc.importers.arrays import moving, reducing
from einc.importers.arrays.element_types import ElementType
from einc.importers.arrays.elementwise import apply, broadcast_shapes, cast, list_indices, where
from einc.importers.arrays.extents import Extent, make_extent, multiply_extents
from einc.importers.arrays.naming import name_dimensions
from einc.importers.arrays.values import Array, UnsupportedError, normalize_axis
from einc.importers.pytorch.aten.table import Call, Size, aten, refuse_extent


@aten("embedding")
def convert_embedding(call: Call, weight: Array, indices: Array, padding_idx: int = -1) -> Array:
    return moving.take(call.program, weight, indices, 0, call.hint, only_natural=True)


@aten("index_select")
def convert_index_select(call: Call, self_: Array, dim: int, index: Array) -> Array:
    return moving.take(call.program, self_, index, dim, call.hint) if self_.rank else self_


@aten("index", "_unsafe_index")
def convert_index(call: Call, self_: Array, indices: Sequence[Array | None]) -> Array:
    """torch's indexing with tensors: those of neighbouring axes stay there, others come first."""
    indices = list_positions(call, indices)
    axes = [axis for axis, index in enumerate(indices) if index is not None]
    positions = [index for index in indices if index is not None]
    if not axes:
        return self_
    if self_.numbers is not None and all(index.numbers is not None for index in positions):
        key = tuple(slice(None) if index is None else index.numbers for index in indices)
        return call.program.constant(np.asarray(self_.numbers[key]), self_.type, call.hint)
    if len(axes) == 1:
        return moving.take(call.program, self_, positions[0], axes[0], call.hint)
    together = axes[-1] - axes[0] == len(axes) - 1
    spread = broadcast_shapes(*(index.shape for index in positions))
    kept = [extent for axis, extent in enumerate(self_.shape) if axis not in axes]
    first = axes[0] if together else 0
    shape = (*kept[:first], *spread, *kept[first:])
    names = name_dimensions(shape)
    middle = names[first : first + len(spread)]
    outer = iter([*names[:first], *names[first + len(spread) :]])
    placed = [call.program.place(index, "positions") for index in positions]
    reads, number = [], 1
    for axis in range(self_.rank):
        if axis not in axes:
            reads.append(next(outer))
            continue
        inner = ", ".join(list_indices(placed[number - 1].shape, spread, middle))
        reads.append(f"{{{number}}}[{inner}] % {self_.shape[axis].text}")
        number += 1
    operands = [call.program.place(self_), *placed]
    text = f"{{0}}[{', '.join(reads)}]"
    return call.program.equation(call.hint, names, text, operands, shape, self_.type)


def list_positions(call: Call, indices: Sequence[Array | None]) -> list[Array | None]:
    """Indices as positions: a table of booleans that are known stands for the positions where it holds."""
    positions: list[Array | None] = []
    for index in indices:
        if index is None or not index.type.is_bool:
            positions.append(index)
        elif index.numbers is None:
            raise refuse_extent("an index of booleans")
        else:
            positions += [call.program.constant(places) for places in np.nonzero(index.numbers)]
    return positions


@aten("nonzero", "nonzero_numpy", "argwhere", "masked_select")
def refuse_positions(call: Call, self_: Array, mask: Array | None = None) -> Array:
    raise refuse_extent("positions where a condition holds")


@aten("gather")
def convert_gather(call: Call, self_: Array, dim: int, index: Array) -> Array:
    if not index.rank:
        return self_
    axis = normalize_axis(dim, self_.rank)
    array = self_
    for k, extent in enumerate(index.shape):
        if k != axis and extent != self_.shape[k]:
            array = moving.slice_axis(call.program, array, k, 0, extent, 1, call.hint)
    names = name_dimensions(index.shape)
    inner = ", ".join(names)
    reads = [f"{{1}}[{inner}]" if k == axis else name for k, name in enumerate(names)]
    operands = [call.program.place(array), call.program.place(index, "positions")]
    text = f"{{0}}[{', '.join(reads)}]"
    return call.program.equation(call.hint, names, text, operands, index.shape, self_.type)


@aten("slice_scatter")
def convert_slice_scatter(
    call: Call, self_: Array, src: Array, dim: int = 0, start: Size | None = None, end: Size | None = None,
    step: int = 1,
) -> Array:  # fmt: skip
    axis = normalize_axis(dim, self_.rank)
    extent = self_.shape[axis]
    first, last = _clamp(start or 0, extent), extent if end is None else _clamp(end, extent)
    if step != 1:
        return _write_with_steps(call, self_, call.cast(src), axis, slice(first.value, last.value, step))
    pieces = [call.cast(src)]
    if first.value > 0:
        pieces.insert(0, moving.slice_axis(call.program, self_, axis, 0, first, 1, call.hint))
    if last.value < extent.value:
        pieces.append(moving.slice_axis(call.program, self_, axis, last, extent, 1, call.hint))
    return moving.concat(call.program, pieces, axis, call.hint)


def _write_with_steps(call: Call, array: Array, written: Array, axis: int, places: slice) -> Array:
    """Each place reads one of the array and what is written, one behind the other."""
    extent = array.shape[axis]
    if not extent.is_number:
        raise UnsupportedError("a slice with steps of a dimension that depends on params", "give the params numbers")
    sources = np.arange(extent.value)
    sources[places] = extent.value + np.arange(len(sources[places]))
    both = moving.concat(call.program, [array, written], axis, call.hint)
    return moving.take(call.program, both, call.program.constant(sources), axis, call.hint)


@aten("select_scatter")
def convert_select_scatter(call: Call, self_: Array, src: Array, dim: int, index: Size) -> Array:
    axis = normalize_axis(dim, self_.rank)
    position = make_extent(index)
    position = position + self_.shape[axis] if position.value < 0 else position
    wide = moving.unsqueeze(call.program, src, [axis])
    return convert_slice_scatter(call, self_, wide, axis, position, position + 1)


def _clamp(bound: Size, extent: Extent) -> Extent:
    position = make_extent(bound)
    position = position + extent if position.value < 0 else position
    return extent if position.value > extent.value else position


@aten("scatter_add")
def convert_scatter_add(call: Call, self_: Array, dim: int, index: Array, src: Array) -> Array:
    smaller = _find_smaller(self_, dim, index)
    if smaller is not None:
        part = moving.slice_axis(call.program, self_, smaller, 0, index.shape[smaller])
        written = convert_scatter_add(call, part, dim, index, src)
        return convert_slice_scatter(call, self_, written, smaller, 0, index.shape[smaller])
    added = _add_at(call, self_, dim, index, src)
    return apply(call.program, "add", self_, added, hint=call.hint)


@aten("scatter")
def convert_scatter_of_positions(
    call: Call, self_: Array, dim: int, index: Array, src: Array | None = None, value: Any = None,
    reduce: str | None = None,
) -> Array:  # fmt: skip
    """Positions along the axis must differ, as those of the largest elements do; else torch has no order, either."""
    program, smaller = call.program, _find_smaller(self_, dim, index)
    if reduce is not None and reduce != "add":
        raise UnsupportedError(f"reduce={reduce!r:.40}")
    if reduce == "add":
        added = moving.full(program, index.shape, value, self_.type) if src is None else src
        return convert_scatter_add(call, self_, dim, index, added)
    if smaller is not None:
        part = moving.slice_axis(program, self_, smaller, 0, index.shape[smaller])
        written = convert_scatter_of_positions(call, part, dim, index, src, value)
        return convert_slice_scatter(call, self_, written, smaller, 0, index.shape[smaller])
    if src is None:
        src = moving.full(program, index.shape, value, self_.type)
    if self_.type.is_bool:
        src = cast(program, src, ElementType.I32)
    counted = moving.full(program, index.shape, 1, ElementType.I32)
    hit = apply(program, "gt", _add_at(call, self_, dim, index, counted), 0)
    return where(program, hit, cast(program, _add_at(call, self_, dim, index, src), self_.type), self_, call.hint)


def _find_smaller(like: Array, dim: int, index: Array) -> int | None:
    """Another axis than `dim` of which a scatter writes to the first places alone."""
    axis = normalize_axis(dim, like.rank)
    return next((k for k, extent in enumerate(index.shape) if k != axis and extent != like.shape[k]), None)


def _add_at(call: Call, like: Array, dim: int, index: Array, src: Array) -> Array:
    """What elements of `src` add up to at the positions in `index` along an axis, in the shape of `like`."""
    axis = normalize_axis(dim, like.rank)
    for k, extent in enumerate(index.shape):
        if src.shape[k] != extent:
            src = moving.slice_axis(call.program, src, k, 0, extent)
    names = list(name_dimensions(like.shape))
    names[axis] = f"i{axis}"
    inner = ", ".join("r0" if k == axis else name for k, name in enumerate(names))
    zero = "0.0" if src.type.is_float else "0"
    text = f"sum[r0](where({{0}}[{inner}] == i{axis}, {{1}}[{inner}], {zero}))"
    targets = [f"{name}=" if k == axis else name for k, name in enumerate(names)]
    operands = [call.program.place(index, "positions"), call.program.place(src)]
    return call.program.equation(call.hint, targets, text, operands, like.shape, src.type)


@aten("one_hot")
def convert_one_hot(call: Call, self_: Array, num_classes: int = -1) -> Array:
    if num_classes < 1:
        raise UnsupportedError("one_hot without the number of classes")
    program = call.program
    positions = moving.arrange(program, 0, num_classes)
    wide = moving.unsqueeze(program, cast(program, self_, ElementType.I64), [-1])
    return call.cast(apply(program, "eq", wide, positions, hint=call.hint))


@aten("index_put", "_unsafe_index_put")
def convert_index_put(
    call: Call, self_: Array, indices: Sequence[Array | None], values: Array, accumulate: bool = False
) -> Array:
    """Positions that are written must differ unless `accumulate`; else torch has no order, either."""
    mask = indices[0] if indices else None
    if len(indices) == 1 and mask is not None and mask.type.is_bool and values.scalar is not None and not accumulate:
        wide = moving.reshape(call.program, mask, [*mask.shape, *[1] * (self_.rank - mask.rank)])
        return where(call.program, wide, values.scalar, self_, call.hint)
    positions = list_positions(call, indices)
    if any(index is None for index in positions[: len(indices)]):
        raise UnsupportedError("elements that are written at positions of a later dimension")
    program = call.program
    flat = _number_rows(call, self_, [index for index in positions if index is not None])
    rows, kept = multiply_extents(self_.shape[: len(positions)]), self_.shape[len(positions) :]
    width = multiply_extents(kept)
    spread = moving.expand(program, call.cast(values), [*flat.shape, *kept], call.hint)
    picked = moving.expand(program, moving.reshape(program, flat, [-1, 1]), [multiply_extents(flat.shape), width])
    written = moving.reshape(program, spread, [multiply_extents(flat.shape), width])
    convert = convert_scatter_add if accumulate else convert_scatter_of_positions
    result = convert(call, moving.reshape(program, self_, [rows, width]), 0, picked, written)
    return moving.reshape(program, result, self_.shape, call.hint)


def _number_rows(call: Call, array: Array, positions: Sequence[Array]) -> Array:
    """For positions along the first axes, the number of each row in row-major order."""
    program = call.program
    total: Array | None = None
    for index, extent in zip(positions, array.shape, strict=False):
        wide = cast(program, index, ElementType.I64)
        placed = apply(program, "mod", wide, extent.value) if extent.is_number else wide
        total = placed if total is None else apply(program, "add", apply(program, "mul", total, extent.value), placed)
    if total is None:
        raise UnsupportedError("elements that are written at no positions")
    return total


@aten("masked_scatter")
def convert_masked_scatter(call: Call, self_: Array, mask: Array, source: Array) -> Array:
    """Where the mask holds, the elements of the source one after the other."""
    program = call.program
    wide = moving.expand(program, mask, self_.shape, call.hint)
    flat = moving.reshape(program, cast(program, wide, ElementType.I64), [-1])
    before = apply(program, "sub", reducing.accumulate(program, flat, "sum", 0, hint=call.hint), 1)
    places = apply(program, "max", before, 0)
    taken = moving.take(program, moving.reshape(program, source, [-1]), places, 0, call.hint)
    return where(program, wide, moving.reshape(program, taken, self_.shape), self_, call.hint)


@aten("_local_scalar_dense", "item")
def convert_item(call: Call, self_: Array) -> int | float | bool:
    """An element as a number of Python, where it is known."""
    if self_.scalar is None:
        raise UnsupportedError("a number that Python computes with and that is data")
    return self_.scalar
