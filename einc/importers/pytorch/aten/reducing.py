"""Aggregates, running sums, the largest elements, softmax."""

from __future__ import annotations

from typing import Any

import numpy as np

from einc.importers.arrays import reducing
from einc.importers.arrays.element_types import ElementType
from einc.importers.arrays.elementwise import apply, cast, where
from einc.importers.arrays.extents import multiply_extents
from einc.importers.arrays.moving import arrange, expand, reshape
from einc.importers.arrays.values import Array, UnsupportedError, normalize_axis
from einc.importers.pytorch.aten.elementwise import combine
from einc.importers.pytorch.aten.table import Call, Function, aten

Axes = int | list[int] | None


def _list_axes(dim: Axes) -> list[int] | None:
    return [dim] if isinstance(dim, int) else dim or None


def aggregate(call: Call, array: Array, operation: str, dim: Axes, keep: bool) -> Array:
    if array.rank == 0:
        return array
    return reducing.reduce(call.program, array, operation, _list_axes(dim), keep, call.hint)


@aten("sum")
def convert_sum(call: Call, self_: Array, dim: Axes = None, keepdim: bool = False,
                dtype: ElementType | None = None) -> Array:  # fmt: skip
    return aggregate(call, call.cast(self_), "sum", dim, keepdim)


@aten("mean")
def convert_mean(call: Call, self_: Array, dim: Axes = None, keepdim: bool = False,
                 dtype: ElementType | None = None) -> Array:  # fmt: skip
    return aggregate(call, call.cast(self_), "mean", dim, keepdim)


@aten("prod")
def convert_prod(call: Call, self_: Array, dim: Axes = None, keepdim: bool = False,
                 dtype: ElementType | None = None) -> Array:  # fmt: skip
    return aggregate(call, call.cast(self_), "prod", dim, keepdim)


def _make_extremes(name: str, operation: str) -> tuple[Function, ...]:
    @aten(name)
    def convert(call: Call, self_: Array, dim: Axes = None, keepdim: bool = False) -> Array:
        return aggregate(call, self_, operation, dim, keepdim)

    @aten(f"{name}.dim")
    def convert_with_positions(call: Call, self_: Array, dim: int, keepdim: bool = False) -> Any:
        positions = _find(call, self_, dim, keepdim, operation == "max")
        return aggregate(call, self_, operation, dim, keepdim), positions

    return convert, convert_with_positions


@aten("amax")
def convert_amax(call: Call, self_: Array, dim: Axes = None, keepdim: bool = False) -> Array:
    return aggregate(call, self_, "max", dim, keepdim)


@aten("amin")
def convert_amin(call: Call, self_: Array, dim: Axes = None, keepdim: bool = False) -> Array:
    return aggregate(call, self_, "min", dim, keepdim)


_EXTREMES = (*_make_extremes("max", "max"), *_make_extremes("min", "min"))


def _find(call: Call, array: Array, dim: int | None, keepdim: bool, largest: bool) -> Array:
    if dim is None:
        array, dim = reshape(call.program, array, [-1]), 0
    return reducing.find_extreme(call.program, array, dim, keepdim, largest, hint=call.hint)


@aten("argmax")
def convert_argmax(call: Call, self_: Array, dim: int | None = None, keepdim: bool = False) -> Array:
    return _find(call, self_, dim, keepdim, True)


@aten("argmin")
def convert_argmin(call: Call, self_: Array, dim: int | None = None, keepdim: bool = False) -> Array:
    return _find(call, self_, dim, keepdim, False)


@aten("any")
def convert_any(call: Call, self_: Array, dim: Axes = None, keepdim: bool = False) -> Array:
    return aggregate(call, cast(call.program, self_, ElementType.BOOL), "max", dim, keepdim)


@aten("all")
def convert_all(call: Call, self_: Array, dim: Axes = None, keepdim: bool = False) -> Array:
    return aggregate(call, cast(call.program, self_, ElementType.BOOL), "min", dim, keepdim)


@aten("var")
def convert_var(call: Call, self_: Array, dim: Axes = None, correction: float | None = None, keepdim: bool = False,
                unbiased: bool = True) -> Array:  # fmt: skip
    return _measure_variance(call, self_, dim, correction, keepdim, unbiased)[0]


@aten("var_mean")
def convert_var_mean(call: Call, self_: Array, dim: Axes = None, correction: float | None = None,
                     keepdim: bool = False, unbiased: bool = True) -> tuple[Array, Array]:  # fmt: skip
    return _measure_variance(call, self_, dim, correction, keepdim, unbiased)


@aten("std")
def convert_std(call: Call, self_: Array, dim: Axes = None, correction: float | None = None, keepdim: bool = False,
                unbiased: bool = True) -> Array:  # fmt: skip
    return combine(call, "sqrt", _measure_variance(call, self_, dim, correction, keepdim, unbiased)[0])


def _measure_variance(
    call: Call, array: Array, dim: Axes, correction: float | None, keepdim: bool, unbiased: bool
) -> tuple[Array, Array]:
    axes = _list_axes(dim) or list(range(array.rank))
    mean, square = reducing.variance(call.program, array, axes, call.hint)
    fewer = (1.0 if unbiased else 0.0) if correction is None else float(correction)
    if fewer:
        count = multiply_extents([array.shape[normalize_axis(axis, array.rank)] for axis in axes])
        if not count.is_number or count.value <= fewer:
            raise UnsupportedError(f"a variance of {count.text} elements with a correction of {fewer:g}")
        square = apply(call.program, "mul", square, count.value / (count.value - fewer), hint=call.hint)
    if keepdim:
        return square, mean
    gone = {normalize_axis(axis, array.rank) for axis in axes}
    shape = [extent for axis, extent in enumerate(array.shape) if axis not in gone]
    return reshape(call.program, square, shape, call.hint), reshape(call.program, mean, shape, call.hint)


@aten("linalg_vector_norm", "norm")
def convert_norm(
    call: Call, self_: Array, ord: float = 2, dim: Axes = None, keepdim: bool = False,
    dtype: ElementType | None = None, p: float | None = None,
) -> Array:  # fmt: skip
    order = ord if p is None else p
    program, array = call.program, call.cast(self_)
    if order == 2:
        return combine(call, "sqrt", aggregate(call, apply(program, "square", array), "sum", dim, keepdim))
    size = apply(program, "abs", array, hint=call.hint)
    if order == float("inf"):
        return aggregate(call, size, "max", dim, keepdim)
    if order == -float("inf"):
        return aggregate(call, size, "min", dim, keepdim)
    if order == 1:
        return aggregate(call, size, "sum", dim, keepdim)
    if order == 0:
        return aggregate(call, call.cast(apply(program, "ne", array, 0.0)), "sum", dim, keepdim)
    powers = aggregate(call, apply(program, "pow", size, float(order)), "sum", dim, keepdim)
    return combine(call, "pow", powers, 1.0 / order)


@aten("cumsum")
def convert_cumsum(call: Call, self_: Array, dim: int, dtype: ElementType | None = None) -> Array:
    return _accumulate(call, self_, "sum", dim)


@aten("cumprod")
def convert_cumprod(call: Call, self_: Array, dim: int, dtype: ElementType | None = None) -> Array:
    return _accumulate(call, self_, "prod", dim)


def _make_running_extremes(name: str, operation: str, covers: str) -> Function:
    @aten(name)
    def convert(call: Call, self_: Array, dim: int) -> tuple[Array, Array]:
        program = call.program
        if self_.rank == 0:
            return self_, program.constant(np.int64(0))
        axis = normalize_axis(dim, self_.rank)
        running = reducing.accumulate(program, self_, operation, dim, hint=call.hint)
        places = reshape(program, arrange(program, 0, self_.shape[axis]), [-1, *[1] * (self_.rank - 1 - axis)])
        reached = where(program, apply(program, covers, self_, running), expand(program, places, self_.shape), 0)
        return running, reducing.accumulate(program, reached, "max", dim, hint=call.hint)

    return convert


_RUNNING_EXTREMES = _make_running_extremes("cummax", "max", "ge"), _make_running_extremes("cummin", "min", "le")


def _accumulate(call: Call, array: Array, operation: str, dim: int) -> Array:
    array = call.cast(array)
    return reducing.accumulate(call.program, array, operation, dim, hint=call.hint) if array.rank else array


@aten("softmax", "_softmax", "_safe_softmax")
def convert_softmax(call: Call, self_: Array, dim: int, dtype: ElementType | None = None) -> Array:
    return reducing.softmax(call.program, call.cast(self_), dim, call.hint)


@aten("log_softmax", "_log_softmax")
def convert_log_softmax(call: Call, self_: Array, dim: int, dtype: ElementType | None = None) -> Array:
    return reducing.log_softmax(call.program, call.cast(self_), dim, call.hint)


@aten("logsumexp")
def convert_logsumexp(call: Call, self_: Array, dim: Axes, keepdim: bool = False) -> Array:
    program, array = call.program, call.cast(self_)
    if not array.rank:
        return array
    top = reducing.reduce(program, array, "max", _list_axes(dim), True, call.hint)
    total = aggregate(call, apply(program, "exp", apply(program, "sub", array, top)), "sum", dim, keepdim)
    kept = top if keepdim else reshape(program, top, total.shape)
    return combine(call, "add", apply(program, "log", total), kept)


@aten("topk")
def convert_topk(call: Call, self_: Array, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Any:
    return reducing.topk(call.program, self_, k, dim, largest, call.hint)


@aten("sort")
def convert_sort(call: Call, self_: Array, dim: int = -1, descending: bool = False, stable: bool | None = None) -> Any:
    return reducing.topk(call.program, self_, _count(self_, dim), dim, descending, call.hint)


@aten("argsort")
def convert_argsort(call: Call, self_: Array, dim: int = -1, descending: bool = False, stable: bool = False) -> Array:
    return reducing.topk(call.program, self_, _count(self_, dim), dim, descending, call.hint)[1]


def _count(array: Array, dim: int) -> int:
    extent = array.shape[normalize_axis(dim, array.rank)]
    if not extent.is_number:
        raise UnsupportedError("an order along a dimension that depends on params", "give the dimension a number")
    return extent.value
