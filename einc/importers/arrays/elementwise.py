"""Functions of elements, with numpy's broadcasting, and casts."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from einc.importers.arrays.element_types import ElementType
from einc.importers.arrays.extents import make_extent
from einc.importers.arrays.naming import name_dimensions
from einc.importers.arrays.program import ArrayProgram, recorded
from einc.importers.arrays.scalar_forms import SCALAR_FORMS
from einc.importers.arrays.values import Array, Shape, UnsupportedError, show_shape
from einc_runtime.text import did_you_mean

MAX_FOLDED = 2**24
"""Elements of a result that is larger than the known arrays that it is computed from, as a model is imported."""

Write = Callable[[Sequence[str]], str]


@recorded
def apply(program: ArrayProgram, function: str, *operands: Array | float, hint: str = "") -> Array:
    """A function of `SCALAR_FORMS` applied to each element; numbers take the type of the arrays beside them.

    The arrays have the same element type and broadcast. Raises UnsupportedError.
    """
    form = SCALAR_FORMS.get(function)
    if form is None:
        raise UnsupportedError(f"there is no function '{function}'", did_you_mean(function, SCALAR_FORMS))
    arrays = align_types(program, operands)
    type_ = arrays[0].type
    result = ElementType.BOOL if form.truth else type_

    def write(texts: Sequence[str]) -> str:
        text = form.write(texts, type_)
        return result.wrap(text) if form.wraps else text

    return map_elements(program, hint or function, write, arrays, result, form.fold)


@recorded
def where(
    program: ArrayProgram, condition: Array, positive: Array | float, negative: Array | float, hint: str = "where"
) -> Array:
    """`positive` where the condition holds, else `negative`."""
    if condition.scalar is not None:
        chosen = positive if condition.scalar else negative
        arrays = [operand for operand in (positive, negative) if isinstance(operand, Array)]
        if isinstance(chosen, Array) and broadcast_shapes(condition.shape, *(a.shape for a in arrays)) == chosen.shape:
            return chosen
    first, second = align_types(program, [positive, negative])

    def write(texts: Sequence[str]) -> str:
        return f"where({', '.join(texts)})"

    arrays = [condition, first, second]
    if condition.known is None and first.scalar is not None and second.scalar is not None:
        wide = broadcast_shapes(condition.shape, second.shape)
        fits = broadcast_shapes(wide, first.shape) == wide
        arrays[1] = program.place(program.constant(first.scalar, first.type) if fits else first, "value")
    return map_elements(program, hint, write, arrays, first.type, np.where)


@recorded
def cast(program: ArrayProgram, array: Array, type_: ElementType, hint: str = "") -> Array:
    """The elements as another type: towards 0 from floats to integers, modulo 2**bits among integers."""
    if array.type is type_:
        return array
    if array.known is not None:
        if array.known.dtype == object:
            if not type_.is_integer:
                raise UnsupportedError("an extent that depends on params, as a float", "give the params numbers")
            return replace(array, type=type_)
        with np.errstate(all="ignore"):
            return program.constant(array.known.astype(type_.numpy), type_, array.name.removeprefix("?"))
    if type_.is_bool:
        return apply(program, "ne", array, 0, hint=hint or "cast")
    same_carrier = array.type.carrier is type_.carrier
    fits = array.type.is_bool or (array.type.is_unsigned and array.type.bits < type_.bits) or not type_.is_widened
    if same_carrier and fits:
        return replace(array, type=type_)

    def write(texts: Sequence[str]) -> str:
        text = texts[0] if same_carrier else f'cast({texts[0]}, "{type_.carrier.value}")'
        return text if fits else type_.wrap(text)

    return map_elements(program, hint or "cast", write, [array], type_, None)


def can_fold(size: int, arrays: Sequence[Array]) -> bool:
    """Whether a result of so many elements is small, or no larger than one of the arrays that it is made of."""
    sizes = [array.known.size for array in arrays if array.known is not None]
    return size <= max(MAX_FOLDED, *sizes)


def align_types(program: ArrayProgram, operands: Sequence[Array | float]) -> list[Array]:
    """The operands as arrays of one type."""
    types = {operand.type for operand in operands if isinstance(operand, Array)}
    if len(types) != 1:
        raise UnsupportedError(f"operands of types {', '.join(sorted(t.value for t in types)) or 'that are unknown'}")
    (type_,) = types
    return [
        operand if isinstance(operand, Array) else program.constant(np.asarray(operand).astype(type_.numpy), type_)
        for operand in operands
    ]


def broadcast_shapes(*shapes: Shape) -> Shape:
    """The shape that arrays of these shapes broadcast to. Extents of params are taken to be more than 1."""
    rank = max(map(len, shapes))
    result = []
    for axis in range(-rank, 0):
        extents = [shape[axis] for shape in shapes if len(shape) >= -axis]
        wide = [extent for extent in extents if extent != make_extent(1)]
        for extent in wide[1:]:
            if extent != wide[0] and (extent.value != wide[0].value or (extent.is_number and wide[0].is_number)):
                shown = " and ".join(map(show_shape, shapes))
                raise UnsupportedError(f"shapes {shown} do not broadcast", "give the params numbers")
        result.append(min(wide, key=lambda extent: not extent.is_number) if wide else make_extent(1))
    return tuple(result)


def map_elements(
    program: ArrayProgram,
    hint: str,
    write: Write,
    arrays: Sequence[Array],
    type_: ElementType,
    fold: Callable[..., object] | None,
) -> Array:
    """A function of elements of arrays that broadcast; `write` makes its expression from the texts of the operands."""
    shape = broadcast_shapes(*(array.shape for array in arrays))
    all_known = all(array.known is not None for array in arrays)
    if fold is not None and all_known and can_fold(math.prod(extent.value for extent in shape), arrays):
        with np.errstate(all="ignore"):
            known = np.asarray(fold(*(array.known for array in arrays)))
        if known.dtype == object and all(make_extent(element).is_number for element in known.ravel()):
            known = np.array([make_extent(element).value for element in known.ravel()]).reshape(known.shape)
        return program.constant(known if known.dtype == object else known.astype(type_.numpy), type_)
    literals = [write_literal(array) for array in arrays]
    if all(literals):
        literals[0] = ""
    placed = [array if literal else program.place(array) for array, literal in zip(arrays, literals, strict=True)]
    reads = [array for array, literal in zip(placed, literals, strict=True) if not literal]
    numbers = iter(range(len(reads)))
    aligned = _are_aligned(reads, shape) and not any("inf" in literal for literal in literals)
    indices = name_dimensions(shape)
    texts = []
    for array, literal in zip(placed, literals, strict=True):
        brackets = "" if aligned else f"[{', '.join(list_indices(array.shape, shape, indices))}]"
        texts.append(literal or f"{{{next(numbers)}}}{brackets}")
    if aligned:
        largest = max(reads, key=lambda array: array.rank)
        return program.call(hint, write(texts), reads, shape, type_, largest.dims)
    covered = _find_covered(reads, shape)
    targets = [index if axis in covered else f"{index}=" for axis, index in enumerate(indices)]
    return program.equation(hint, targets, write(texts), reads, shape, type_)


def map_channels(program: ArrayProgram, array: Array, vectors: Sequence[Array], hint: str) -> Array:
    """An array [n, channels, ...] plus a number for each channel, or times the first of two and plus the second."""
    names = name_dimensions(array.shape)
    placed = [program.place(part) for part in (array, *vectors)]
    text = f"{{0}}[{', '.join(names)}]" + "".join(
        f" {sign} {{{number}}}[{names[1]}]" for number, sign in enumerate("*+"[-len(vectors) :], start=1)
    )
    return program.equation(hint, names, text, placed, array.shape, array.type)


def list_indices(operand: Shape, shape: Shape, indices: Sequence[str]) -> list[str]:
    """What stands in the brackets of an operand that broadcasts to a shape whose indices are these."""
    offset = len(shape) - len(operand)
    return [
        "0" if extent == make_extent(1) and shape[offset + axis] != make_extent(1) else indices[offset + axis]
        for axis, extent in enumerate(operand)
    ]


def write_literal(array: Array) -> str:
    """The number that a known array repeats, if it can be written; else an empty text."""
    value = array.scalar
    if value is None or value != value:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        carried = int(np.asarray(value).astype(array.type.carrier.numpy())) if array.type.is_integer else value
        return str(carried) if carried >= 0 else f"({carried})" if carried > -(2**63) else ""
    if math.isinf(value):
        return "inf" if value > 0 else "(-inf)"
    text = str(np.float32(value)) if array.type is ElementType.F32 else repr(float(value))
    return f"({text})" if text.startswith("-") else text


def _are_aligned(reads: Sequence[Array], shape: Shape) -> bool:
    """Whether infix arithmetic and calls, which align dimensions by name, mean what broadcasting means."""
    largest = max(reads, key=lambda array: array.rank)
    if largest.shape != shape or len(set(largest.dims)) != largest.rank:
        return all(array.dims == largest.dims and array.shape == shape for array in reads)
    return all(
        array.dims == largest.dims[largest.rank - array.rank :] and array.shape == shape[len(shape) - array.rank :]
        for array in reads
    )


def _find_covered(reads: Sequence[Array], shape: Shape) -> set[int]:
    """The axes of a result whose extent some operand has there."""
    covered = set()
    for array in reads:
        offset = len(shape) - array.rank
        covered |= {offset + axis for axis, extent in enumerate(array.shape) if extent == shape[offset + axis]}
    return covered
