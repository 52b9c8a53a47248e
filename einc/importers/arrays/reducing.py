"""Aggregates along axes, running aggregates, the largest elements, softmax, and norms."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from einc.importers.arrays.element_types import ElementType
from einc.importers.arrays.elementwise import apply, cast, map_channels
from einc.importers.arrays.extents import Extent, make_extent, multiply_extents
from einc.importers.arrays.moving import flip, make_unique, reshape, transpose
from einc.importers.arrays.naming import name_dimensions
from einc.importers.arrays.program import ArrayProgram, recorded
from einc.importers.arrays.values import Array, UnsupportedError, normalize_axis

_FOLDED_RUNNING: dict[str, Callable[..., Any]] = {
    "sum": np.cumsum, "prod": np.cumprod, "max": np.maximum.accumulate, "min": np.minimum.accumulate
}  # fmt: skip
FOLDED_REDUCTIONS: dict[str, Callable[..., Any]] = {"sum": np.sum, "prod": np.prod, "max": np.max, "min": np.min}


@recorded
def reduce(
    program: ArrayProgram, array: Array, operation: str, axes: Sequence[int] | None, keep: bool = False, hint: str = ""
) -> Array:
    """`sum`, `prod`, `max`, `min` or `mean` over axes, or over all; with `keep`, they stay with the extent 1.

    A mean is one of floats. The least and the largest of booleans are whether all and any hold.
    """
    gone = list(range(array.rank)) if axes is None else sorted(normalize_axis(axis, array.rank) for axis in axes)
    if not gone:
        return array
    if keep:
        shape = [1 if axis in gone else extent for axis, extent in enumerate(array.shape)]
        return reshape(program, reduce(program, array, operation, gone, False, hint), shape, hint or operation)
    numbers = array.numbers
    if numbers is not None and operation in FOLDED_REDUCTIONS:
        start = {} if numbers.size else {"initial": find_neutral(operation, array.type)}
        folded = np.asarray(FOLDED_REDUCTIONS[operation](numbers, axis=tuple(gone), **start))
        return program.constant(folded.astype(array.type.numpy), array.type)
    if array.type.is_bool:
        wide = reduce(program, cast(program, array, ElementType.I32), operation, axes, False, hint)
        return apply(program, "gt", wide, 0, hint=hint or operation)
    if operation == "prod" and array.extents is not None and array.rank == 1:
        total = multiply_extents(array.extents)
        return program.constant(np.array(total, object), array.type)
    placed = program.place(array)
    inner = [f"r{axis}" if axis in gone else index for axis, index in enumerate(_name_kept(array, gone))]
    over = ", ".join(f"r{axis}" for axis in gone)
    element = f"{{0}}[{', '.join(inner)}]"
    if operation == "mean":
        element = f"{element} / {multiply_extents([array.shape[axis] for axis in gone]).text}"
        operation = "sum"
        if not array.type.is_float:
            raise UnsupportedError(f"a mean of {array.type.value}")
    kept = tuple(extent for axis, extent in enumerate(array.shape) if axis not in gone)
    text = f"{operation}[{over}]({element})"
    if operation in ("sum", "prod") and array.type.is_widened:
        text = array.type.wrap(text)
    return program.equation(hint or operation, name_dimensions(kept), text, [placed], kept, array.type)


def find_neutral(operation: str, type_: ElementType) -> float | int | bool:
    """What an aggregate of no elements is."""
    if operation in ("sum", "prod"):
        return int(operation == "prod")
    if type_.is_bool:
        return operation == "min"
    if type_.is_float:
        return -math.inf if operation == "max" else math.inf
    low = 0 if type_.is_unsigned else -(2 ** (type_.bits - 1))
    return low if operation == "max" else low + 2**type_.bits - 1


def _name_kept(array: Array, gone: Sequence[int]) -> list[str]:
    """The names of indices of the kept axes; what stands at the others does not matter."""
    kept = iter(name_dimensions(tuple(extent for axis, extent in enumerate(array.shape) if axis not in gone)))
    return ["" if axis in gone else next(kept) for axis in range(array.rank)]


def accumulate(
    program: ArrayProgram, array: Array, operation: str, axis: int, exclusive: bool = False, reverse: bool = False,
    hint: str = "",
) -> Array:  # fmt: skip
    """The running `sum`, `prod`, `max` or `min` along an axis, from its end with `reverse`."""
    axis = normalize_axis(axis, array.rank)
    numbers = array.numbers
    if numbers is not None and operation in _FOLDED_RUNNING and not exclusive and not reverse:
        return program.constant(_FOLDED_RUNNING[operation](numbers, axis).astype(array.type.numpy), array.type)
    placed = program.place(array)
    indices = list(name_dimensions(array.shape))
    brackets = list(indices)
    brackets[axis], indices[axis] = "k", f"i{axis}="
    comparison = {(False, False): "<=", (True, False): "<", (False, True): ">=", (True, True): ">"}[exclusive, reverse]
    text = f"{operation}[k {comparison} i{axis}]({{0}}[{', '.join(brackets)}])"
    if operation in ("sum", "prod"):
        text = array.type.wrap(text)
    return program.equation(hint or f"running_{operation}", indices, text, [placed], array.shape, array.type)


@recorded
def softmax(program: ArrayProgram, array: Array, axis: int = -1, hint: str = "softmax") -> Array:
    """Exponentials over their sum along an axis, relative to the largest."""
    axis = normalize_axis(axis, array.rank)
    placed = program.place(array) if axis == array.rank - 1 else make_unique(program, array)
    over = "" if axis == array.rank - 1 else f', over="{placed.dims[axis]}"'
    return program.call(hint, f"softmax({{0}}{over})", [placed], array.shape, array.type, placed.dims)


def log_softmax(program: ArrayProgram, array: Array, axis: int = -1, hint: str = "log_softmax") -> Array:
    top = reduce(program, array, "max", [axis], keep=True, hint=f"{hint}_top")
    top = apply(program, "floor", top)  # what is subtracted makes no difference, and has no gradient so
    centred = apply(program, "sub", array, top, hint=f"{hint}_centred")
    total = reduce(program, apply(program, "exp", centred), "sum", [axis], keep=True, hint=f"{hint}_sum")
    return apply(program, "sub", centred, apply(program, "log", total), hint=hint)


def topk(
    program: ArrayProgram, array: Array, count: int, axis: int = -1, largest: bool = True, hint: str = "top"
) -> tuple[Array, Array]:
    """The largest elements in descending order, or the smallest in ascending order, and their positions (i64)."""
    axis = normalize_axis(axis, array.rank)
    if not 1 <= count <= array.shape[axis].value:
        raise UnsupportedError(f"the {count} largest of {array.shape[axis].text} elements")
    ordered = array if largest else apply(program, "neg", array)
    placed = make_unique(program, ordered)
    gone = placed.dims[axis]
    dims = (*placed.dims[:axis], *placed.dims[axis + 1 :], "top")
    shape = (*array.shape[:axis], *array.shape[axis + 1 :], make_extent(count))
    text = f'topk({{0}}, {count}, "{gone}", into="top")'
    results = [(shape, array.type, dims), (shape, ElementType.I64, dims)]
    values, positions = program.calls(hint, text, [placed], results)
    values, positions = (_move_last(program, part, axis) for part in (values, positions))
    return (values if largest else apply(program, "neg", values, hint=hint)), positions


def _move_last(program: ArrayProgram, array: Array, axis: int) -> Array:
    order = list(range(array.rank - 1))
    order.insert(axis, array.rank - 1)
    return transpose(program, array, order)


def find_extreme(
    program: ArrayProgram, array: Array, axis: int, keep: bool = False, largest: bool = True, last: bool = False,
    hint: str = "argmax",
) -> Array:  # fmt: skip
    """The position (i64) of the largest or the smallest element along an axis: the first of equal ones, or the last."""
    axis = normalize_axis(axis, array.rank)
    ordered = array if largest else apply(program, "neg", array)
    ordered = flip(program, ordered, [axis]) if last else ordered
    placed = make_unique(program, ordered)
    dims = (*placed.dims[:axis], *placed.dims[axis + 1 :])
    shape = (*array.shape[:axis], *array.shape[axis + 1 :])
    text = f'argmax({{0}}, "{placed.dims[axis]}")'
    result = program.call(hint, text, [placed], shape, ElementType.I64, dims)
    if last:
        if not array.shape[axis].is_number:
            raise UnsupportedError("the last largest element along a dimension that depends on params")
        result = apply(program, "sub", array.shape[axis].value - 1, result, hint=hint)
    return reshape(program, result, [*shape[:axis], 1, *shape[axis:]], hint) if keep else result


@recorded
def layer_norm(
    program: ArrayProgram, array: Array, gain: Array | None, bias: Array | None, eps: float, hint: str = "norm"
) -> Array:
    """Rows along the last axis with mean 0 and variance 1, times a gain, plus a bias. Extents are [n]."""
    if gain is None and bias is not None:
        return apply(program, "add", layer_norm(program, array, None, None, eps, hint), bias, hint=hint)
    return _norm(program, "layernorm", array, [gain, bias], eps, hint)


@recorded
def rms_norm(
    program: ArrayProgram, array: Array, gain: Array | None, eps: float, offset: float = 0.0, hint: str = "norm"
) -> Array:
    """Rows along the last axis, divided by the root of their mean square, times the sum of a gain [n] and an offset."""
    return _norm(program, "rmsnorm", array, [gain], eps, hint, f", offset={offset!r}" if offset else "")


def _norm(
    program: ArrayProgram, kind: str, array: Array, vectors: Sequence[Array | None], eps: float, hint: str,
    further: str = "",
) -> Array:  # fmt: skip
    placed = program.place(array)
    operands = [placed, *(vector for vector in vectors if vector is not None)]
    listed = ", ".join(f"{{{number}}}" for number in range(len(operands)))
    return program.call(hint, f"{kind}({listed}, eps={eps!r}{further})", operands, array.shape, array.type, placed.dims)


def group_norm(
    program: ArrayProgram, array: Array, groups: Extent | int, gain: Array | None, bias: Array | None, eps: float,
    hint: str,
) -> Array:  # fmt: skip
    """Each group of channels [n, channels, ...] with mean 0 and variance 1, times a gain, plus a bias.

    Gains and biases are those of channels or of groups. Statistics are f32 at least.
    """
    wide = cast(program, array, ElementType.F32) if array.type.bits < ElementType.F32.bits else array
    mean, spread = _measure(program, reshape(program, wide, [array.shape[0], groups, -1], hint), [2], hint)
    lead, size = array.shape[:2], array.shape[1] // groups
    group = "i1" if size == make_extent(1) else f"i1 // {size.text}"
    gain_at, bias_at = ("i1" if part is None or part.shape[0] == lead[1] else group for part in (gain, bias))

    def compute(name: str, text: str, *operands: Array | None) -> Array:
        parts = [cast(program, part, wide.type) for part in operands if part is not None]
        return program.equation(f"{hint}_{name}", ["i0=", "i1="], text, parts, lead, wide.type)

    factor_text = f"rsqrt({{0}}[i0, {group}] + {eps!r})" + (f" * {{1}}[{gain_at}]" if gain is not None else "")
    factor = compute("factor", factor_text, spread, gain)
    minus = f"{{2}}[{bias_at}] - " if bias is not None else "-"
    term = compute("term", f"{minus}{{0}}[i0, {group}] * {{1}}[i0, i1]", mean, factor, bias)
    names = name_dimensions(array.shape)
    pair = ", ".join(names[:2])
    text = f"{{0}}[{', '.join(names)}] * {{1}}[{pair}] + {{2}}[{pair}]"
    normed = program.equation(hint, names, text, [program.place(wide), factor, term], array.shape, wide.type)
    return cast(program, normed, array.type)


def batch_norm(
    program: ArrayProgram, array: Array, mean: Array, spread: Array, gain: Array | None, bias: Array | None,
    eps: float, hint: str,
) -> Array:  # fmt: skip
    """Channels [n, channels, ...] of these means and variances, times a gain, plus a bias: one factor and one term for
    each, in the type of the variances. They become weights where all that they come from is known."""
    gain, bias = (part if part is None else cast(program, part, spread.type) for part in (gain, bias))
    factor = apply(program, "rsqrt", apply(program, "add", spread, float(eps)), hint=f"{hint}_factor")
    factor = factor if gain is None else apply(program, "mul", factor, gain, hint=f"{hint}_factor")
    term = apply(program, "mul", mean, factor, hint=f"{hint}_term")
    term = apply(program, "neg", term) if bias is None else apply(program, "sub", bias, term, hint=f"{hint}_term")
    factor, term = (
        replace(part, name=f"?{hint}_{word}") if part.known is not None else part
        for word, part in (("factor", factor), ("term", term))
    )
    return cast(program, map_channels(program, cast(program, array, spread.type), [factor, term], hint), array.type)


def variance(program: ArrayProgram, array: Array, axes: Sequence[int], hint: str = "variance") -> tuple[Array, Array]:
    """The mean and the mean square distance from it over axes, which stay with the extent 1."""
    gone = [normalize_axis(axis, array.rank) for axis in axes]
    shape = [1 if axis in gone else extent for axis, extent in enumerate(array.shape)]
    mean, spread = _measure(program, array, gone, hint)
    return reshape(program, mean, shape, f"{hint}_mean"), reshape(program, spread, shape, hint)


def _measure(program: ArrayProgram, array: Array, gone: Sequence[int], hint: str) -> tuple[Array, Array]:
    """The mean and the mean square distance from it over the axes `gone`, without these."""
    mean = reduce(program, array, "mean", gone, hint=f"{hint}_mean")
    names = _name_kept(array, gone)
    kept = [name for axis, name in enumerate(names) if axis not in gone]
    every = [f"r{axis}" if axis in gone else name for axis, name in enumerate(names)]
    over, count = ", ".join(f"r{axis}" for axis in gone), multiply_extents([array.shape[axis] for axis in gone])
    apart = f"({{0}}[{', '.join(every)}] - {{1}}[{', '.join(kept)}])"
    text = f"sum[{over}]({apart} * {apart} / {count.text})"
    return mean, program.equation(hint, kept, text, [program.place(array), mean], mean.shape, array.type)
