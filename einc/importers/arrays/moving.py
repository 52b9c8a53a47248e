"""Elements at other places: reshapes, transposes, slices, concatenation, gathers, padding, and their like."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from einc.importers.arrays.element_types import ElementType
from einc.importers.arrays.elementwise import broadcast_shapes, can_fold, cast, list_indices
from einc.importers.arrays.extents import Extent, choose_larger, choose_smaller, make_extent, multiply_extents
from einc.importers.arrays.naming import name_dimensions
from einc.importers.arrays.program import ArrayProgram, recorded
from einc.importers.arrays.values import Array, Elements, Shape, UnsupportedError, normalize_axis, show_shape

Extents = Sequence[Extent | int]


def shape_of(program: ArrayProgram, array: Array) -> Array:
    """The extents of an array as a vector of i64; those that depend on params are known, too."""
    elements = [extent.value if extent.is_number else extent for extent in array.shape]
    symbolic = any(not extent.is_number for extent in array.shape)
    return program.constant(np.array(elements, object if symbolic else np.int64), ElementType.I64)


@recorded
def reshape(
    program: ArrayProgram, array: Array, shape: Extents, hint: str = "reshape", dims: Sequence[str] = ()
) -> Array:
    """The same elements in row-major order; one extent may be -1. `dims` are what its dimensions are called."""
    extents = [make_extent(extent) for extent in shape]
    unknown = [axis for axis, extent in enumerate(extents) if extent == make_extent(-1)]
    size = multiply_extents(array.shape)
    if unknown:
        (axis,) = unknown
        extents[axis] = size // multiply_extents(extents[:axis] + extents[axis + 1 :])
    new_shape = tuple(extents)
    if multiply_extents(new_shape).value != size.value:
        raise UnsupportedError(f"an array {show_shape(array.shape)} does not become {show_shape(new_shape)}")
    if new_shape == array.shape:
        return array
    if array.known is not None:
        return _keep_known(program, array, array.known.reshape([extent.value for extent in new_shape]))
    dims = tuple(dims) or name_dimensions(new_shape)
    if not new_shape or not array.shape:
        return _read_first(program, array, new_shape, hint)
    items = ", ".join(f"{dim}={extent.text}" for dim, extent in zip(dims, new_shape, strict=True))
    return program.call(hint, f"reshape({{0}}, {items})", [array], new_shape, array.type, dims)


def _read_first(program: ArrayProgram, array: Array, shape: Shape, hint: str) -> Array:
    """An array of one element under another shape."""
    zeros = ", ".join("0" for _ in array.shape)
    indices = [f"{index}=" for index in name_dimensions(shape)]
    return program.equation(hint, indices, f"{{0}}[{zeros}]", [array], shape, array.type)


def _keep_known(program: ArrayProgram, array: Array, known: Elements) -> Array:
    return program.constant(known, array.type, array.name.removeprefix("?"))


def squeeze(program: ArrayProgram, array: Array, axes: Sequence[int] | None, hint: str = "squeeze") -> Array:
    """Without these dimensions of extent 1, or without all of them."""
    if axes is None:
        gone = {axis for axis, extent in enumerate(array.shape) if extent == make_extent(1)}
    else:
        gone = {normalize_axis(axis, array.rank) for axis in axes}
    for axis in gone:
        if array.shape[axis].value != 1:
            raise UnsupportedError(f"dimension {axis} of {show_shape(array.shape)} is not 1")
    return reshape(program, array, [extent for axis, extent in enumerate(array.shape) if axis not in gone], hint)


def unsqueeze(program: ArrayProgram, array: Array, axes: Sequence[int], hint: str = "unsqueeze") -> Array:
    """With dimensions of extent 1 at these places of the result."""
    rank = array.rank + len(axes)
    new = {normalize_axis(axis, rank) for axis in axes}
    extents = iter(array.shape)
    return reshape(program, array, [1 if axis in new else next(extents) for axis in range(rank)], hint)


@recorded
def transpose(program: ArrayProgram, array: Array, order: Sequence[int], hint: str = "transpose") -> Array:
    """The dimensions in another order."""
    axes = [normalize_axis(axis, array.rank) for axis in order]
    if sorted(axes) != list(range(array.rank)):
        raise UnsupportedError(f"{list(order)} is no order of {array.rank} dimensions")
    if axes == list(range(array.rank)):
        return array
    if array.known is not None:
        return _keep_known(program, array, np.transpose(array.known, axes))
    shape = tuple(array.shape[axis] for axis in axes)
    dims = tuple(array.dims[axis] for axis in axes)
    if len(set(dims)) == len(dims):
        names = ", ".join(f'"{dim}"' for dim in dims)
        return program.call(hint, f"transpose({{0}}, {names})", [array], shape, array.type, dims)
    indices = name_dimensions(shape)
    brackets = ", ".join(indices[axes.index(axis)] for axis in range(array.rank))
    return program.equation(hint, indices, f"{{0}}[{brackets}]", [array], shape, array.type)


@recorded
def expand(program: ArrayProgram, array: Array, shape: Extents, hint: str = "expand") -> Array:
    """The array broadcast together with a shape."""
    result = broadcast_shapes(array.shape, tuple(map(make_extent, shape)))
    if result == array.shape:
        return array
    sizes = [extent.value for extent in result]
    numbers = all(extent.is_number for extent in result)
    if array.known is not None and can_fold(math.prod(sizes), [array]) and numbers:
        return _keep_known(program, array, np.broadcast_to(array.known, sizes))
    placed = program.place(array, hint)
    indices = name_dimensions(result)
    brackets = ", ".join(list_indices(placed.shape, result, indices))
    offset = len(result) - array.rank
    targets = [
        index if axis >= offset and array.shape[axis - offset] == extent else f"{index}="
        for axis, (index, extent) in enumerate(zip(indices, result, strict=True))
    ]
    return program.equation(hint, targets, f"{{0}}[{brackets}]", [placed], result, array.type)


def full(program: ArrayProgram, shape: Extents, value: float, type_: ElementType, hint: str = "full") -> Array:
    """An array that repeats a number; its extents may depend on params."""
    return expand(program, program.constant(np.asarray(value).astype(type_.numpy), type_, hint), shape, hint)


@recorded
def slice_axis(
    program: ArrayProgram, array: Array, axis: int, start: Extent | int, stop: Extent | int, step: int = 1,
    hint: str = "slice",
) -> Array:  # fmt: skip
    """`array[..., start:stop:step, ...]` along one axis, with Python's meaning of negative and large bounds.

    With a negative step, a stop that is below `-extent` takes all elements down to the first one.
    """
    axis = normalize_axis(axis, array.rank)
    extent = array.shape[axis]
    first, last = (_clamp(make_extent(bound), extent, step) for bound in (start, stop))
    count = (last - first + (step - 1 if step > 0 else step + 1)) // step if step != 1 else last - first
    if count.value <= 0:
        count = make_extent(0)
    if count == extent and step == 1:
        return array
    if array.known is not None and extent.is_number:
        places = first.value + step * np.arange(count.value)
        return _keep_known(program, array, np.take(array.known, places, axis))
    shape = (*array.shape[:axis], count, *array.shape[axis + 1 :])
    if count.value == 0:
        return program.constant(np.zeros([extent.value for extent in shape], array.type.numpy), array.type)
    if step == 1 and array.dims.count(array.dims[axis]) == 1:
        text = f"slice({{0}}, {array.dims[axis]}=[{first.text}, {last.text}])"
        return program.call(hint, text, [array], shape, array.type, array.dims)
    position = f"i{axis}" if step == 1 else f"{step} * i{axis}"
    position = position if first == make_extent(0) else f"{first.text} + {position}"
    return _replace_axis(program, hint, array, axis, count, position)


def _clamp(bound: Extent, extent: Extent, step: int) -> Extent:
    """A bound of a slice as a position from 0 on, or -1 for a stop before the first element."""
    lowest, highest = (make_extent(0), extent) if step > 0 else (make_extent(-1), extent - 1)
    if bound.value < 0:
        bound = bound + extent
    if bound.value <= lowest.value and bound.is_number:
        return lowest
    if abs(bound.value) >= 2**31 - 1:  # as far as it goes
        return highest if bound.value > 0 else lowest
    return choose_larger(choose_smaller(bound, highest), lowest)


def _replace_axis(
    program: ArrayProgram, hint: str, array: Array, axis: int, extent: Extent, position: str, outside: str = ""
) -> Array:
    """An array that has the position of index `i{axis}` along one axis."""
    shape = (*array.shape[:axis], extent, *array.shape[axis + 1 :])
    indices = list(name_dimensions(shape))
    brackets = [*indices[:axis], position, *indices[axis + 1 :]]
    indices[axis] = f"i{axis}="
    text = f"{{0}}[{', '.join(brackets)}{f', outside = {outside}' if outside else ''}]"
    return program.equation(hint, indices, text, [array], shape, array.type)


def flip(program: ArrayProgram, array: Array, axes: Sequence[int], hint: str = "flip") -> Array:
    """In reverse order along these axes."""
    for axis in (normalize_axis(axis, array.rank) for axis in axes):
        array = slice_axis(program, array, axis, -1, -(2**31), -1, hint)
    return array


@recorded
def concat(program: ArrayProgram, arrays: Sequence[Array], axis: int, hint: str = "concat") -> Array:
    """One after the other along an axis."""
    axis = normalize_axis(axis, arrays[0].rank)
    arrays = [array for array in arrays if array.shape[axis] != make_extent(0)] or list(arrays[:1])
    if len(arrays) == 1:
        return arrays[0]
    size = sum(array.known.size for array in arrays if array.known is not None)
    if all(array.known is not None for array in arrays) and can_fold(size, arrays):
        known = [array.known for array in arrays if array.known is not None]
        return program.constant(np.concatenate(known, axis), arrays[0].type)
    shapes = [(*array.shape[:axis], *array.shape[axis + 1 :]) for array in arrays]
    sides = broadcast_shapes(*shapes)
    total = sum((array.shape[axis] for array in arrays), make_extent(0))
    shape = (*sides[:axis], total, *sides[axis:])
    dims = name_dimensions(shape)
    parts = [_name_sides(program, array, axis, dims) for array in arrays]
    names = ", ".join(f"{{{k}}}" for k in range(len(parts)))
    text = f'concat({names}, over="{parts[0].dims[axis]}", into="{dims[axis]}")'
    return program.call(hint, text, parts, shape, arrays[0].type, dims)


def _name_sides(program: ArrayProgram, array: Array, axis: int, dims: Sequence[str]) -> Array:
    """The array with these names of all dimensions but `axis`, whose name is none of them."""
    placed = program.place(array)
    sides = [*dims[:axis], *dims[axis + 1 :]]
    if [*placed.dims[:axis], *placed.dims[axis + 1 :]] == sides and placed.dims[axis] not in sides:
        return placed
    return rename(program, placed, [*dims[:axis], f"part_{dims[axis]}", *dims[axis + 1 :]])


@recorded
def rename(program: ArrayProgram, array: Array, dims: Sequence[str]) -> Array:
    """The array with other names of its dimensions in the language."""
    placed = program.place(array)
    indices = [f"i{axis}" for axis in range(array.rank)]
    text = f"{{0}}[{', '.join(indices)}]"
    return program.equation(placed.name, indices, text, [placed], array.shape, array.type, dims)


def make_unique(program: ArrayProgram, array: Array) -> Array:
    """The array with a name of its own for each dimension, for calls that take dimensions by name."""
    placed = program.place(array)
    return placed if len(set(placed.dims)) == placed.rank else rename(program, placed, name_dimensions(array.shape))


@recorded
def take(
    program: ArrayProgram, array: Array, positions: Array, axis: int, hint: str = "take", *, only_natural: bool = False
) -> Array:
    """numpy's `take`: the dimensions of `positions` replace an axis. Negative positions, where there may be some, count
    from the end."""
    axis = normalize_axis(axis, array.rank)
    extent = array.shape[axis]
    rows = array.known.size // max(1, extent.value) if array.known is not None else 0
    if array.known is not None and positions.numbers is not None and can_fold(rows * positions.numbers.size, [array]):
        return _keep_known(program, array, np.asarray(np.take(array.known, positions.numbers, axis)))
    shape = (*array.shape[:axis], *positions.shape, *array.shape[axis + 1 :])
    numbers = positions.numbers
    if numbers is not None and numbers.size and extent.is_number:
        numbers = np.where(numbers < 0, numbers + extent.value, numbers).ravel()
        steps = np.diff(numbers)
        if numbers.size == max(numbers.shape) and (steps.size == 0 or bool((steps == steps[0]).all())):
            step = int(steps[0]) if steps.size else 1
            part = _take_range(program, array, axis, int(numbers[0]), step, len(numbers), min(positions.rank, 1), hint)
            return reshape(program, part, shape, hint)
    if array.scalar is not None:
        return full(program, shape, array.scalar, array.type, hint)
    source = program.place(array)
    plain = only_natural or program.is_weight(source)
    if axis == 0 and array.rank == 2 and not source.type.is_bool and source.type.is_float and plain:
        ids = program.place(
            positions if positions.type.carrier.is_integer else cast(program, positions, ElementType.I64)
        )
        dims = (*ids.dims, source.dims[1])
        if len(set(dims)) == len(dims):
            return program.call(hint, "embedding({0}, {1})", [ids, source], shape, array.type, dims)
    placed = program.place(positions, "positions")
    indices = name_dimensions(shape)
    middle = indices[axis : axis + positions.rank]
    brackets = [*indices[:axis], f"{{1}}[{', '.join(middle)}] % {extent.text}", *indices[axis + positions.rank :]]
    return program.equation(hint, indices, f"{{0}}[{', '.join(brackets)}]", [source, placed], shape, array.type)


def _take_range(
    program: ArrayProgram, array: Array, axis: int, start: int, step: int, count: int, rank: int, hint: str
) -> Array:
    """Positions that are evenly spaced, as a slice; a single one without a dimension where `rank` is 0."""
    if step == 0:
        return _replace_axis(program, hint, array, axis, make_extent(count), str(start))
    stop = start + step * (count - 1) + (1 if step > 0 else -1)
    part = slice_axis(program, array, axis, start, stop if stop >= 0 else -(2**31), step, hint)
    return part if rank else squeeze(program, part, [axis], hint)


def pad(
    program: ArrayProgram, array: Array, widths: Sequence[tuple[int, int]], value: float | str = 0, hint: str = "pad"
) -> Array:
    """With so many places before and after each axis, which have a number, or `nearest`, `reflect` or `wrap` around.

    Negative widths take places away.
    """
    shape = tuple(extent + before + after for extent, (before, after) in zip(array.shape, widths, strict=True))
    if all(width == (0, 0) for width in widths):
        return array
    placed = program.place(array)
    indices, brackets = list(name_dimensions(shape)), []
    outside = ""
    for axis, ((before, after), extent) in enumerate(zip(widths, array.shape, strict=True)):
        if (before, after) == (0, 0):
            brackets.append(indices[axis])
            continue
        indices[axis] = f"i{axis}="
        position = f"i{axis} - {before}" if before > 0 else f"i{axis} + {-before}"
        if value == "wrap":
            position = f"({position}) % {extent.text}"
        elif value == "reflect":
            if extent.value < 2:
                raise UnsupportedError("a reflection of a dimension with one element")
            last = extent - 1
            ramp = f"(i{axis} + {-before % (2 * last.value)}) % {(2 * last).text}" if extent.is_number else ""
            if not ramp:
                raise UnsupportedError("a reflection of a dimension that depends on params")
            position = f"{last.text} - abs({ramp} - {last.text})"
        elif before > 0 or after > 0:
            outside = "nearest" if value == "nearest" else write_number(value, array.type)
        brackets.append(position)
    text = f"{{0}}[{', '.join(brackets)}{f', outside = {outside}' if outside else ''}]"
    return program.equation(hint, indices, text, [placed], shape, array.type)


def write_number(value: float | str, type_: ElementType) -> str:
    """A number as it stands behind `outside`."""
    if type_.is_bool:
        return "true" if value else "false"
    if type_.is_integer:
        return str(int(value))
    number = float(value)
    return ("inf" if number > 0 else "-inf") if math.isinf(number) else repr(number)


def arrange(program: ArrayProgram, start: int, count: Extent | int, step: int = 1, hint: str = "range") -> Array:
    """`start, start + step, ...` as i64; the count may depend on params."""
    extent = make_extent(count)
    if extent.is_number:
        return program.constant(start + step * np.arange(extent.value, dtype=np.int64), ElementType.I64, hint)
    text = "i0" if step == 1 else f"{step} * i0"
    zero = program.place(program.constant(np.int64(start)), "start")
    return program.equation(hint, ["i0="], f"{{0}}[] + {text}", [zero], [extent], ElementType.I64)
