"""Tensors that are made of numbers, and operators that change no elements."""

from __future__ import annotations

from typing import Any

import numpy as np

from einc.importers.arrays.element_types import ElementType
from einc.importers.arrays.elementwise import apply, cast, where
from einc.importers.arrays.extents import Extent, make_extent
from einc.importers.arrays.moving import arrange, expand, full, unsqueeze
from einc.importers.arrays.values import Array, UnsupportedError
from einc.importers.pytorch.aten.table import Call, Function, Size, aten


@aten("alias", "clone", "contiguous", "detach", "lift_fresh_copy", "lift_fresh", "positive", "requires_grad")
def convert_alias(call: Call, self_: Array) -> Array:
    return self_


@aten("dropout", "native_dropout", "feature_dropout", "alpha_dropout")
def convert_dropout(call: Call, input: Array, p: float, train: bool | None = False) -> Any:
    if train and p > 0:
        raise UnsupportedError("random numbers of a dropout", "call eval() on the module before it is exported")
    if len(call.types) < 2:
        return input
    return input, full(call.program, input.shape, True, ElementType.BOOL, call.hint)


@aten("arange")
def convert_arange(call: Call, end: Size | float, start: Size | float = 0, step: Size | float = 1,
                   dtype: ElementType | None = None) -> Array:  # fmt: skip
    program = call.program
    if any(isinstance(bound, float) for bound in (start, end, step)):
        if isinstance(start, Extent) or isinstance(end, Extent) or isinstance(step, Extent):
            raise UnsupportedError("a range of floats whose bounds depend on params")
        return program.constant(np.arange(start, end, step).astype(call.type.numpy), call.type, call.hint)
    first, stride = (bound if isinstance(bound, int) else _require_number(bound) for bound in (start, step))
    if not stride:
        raise UnsupportedError("a range with steps of 0")
    sign = 1 if stride > 0 else -1
    count = (make_extent(end if not isinstance(end, float) else int(end)) - first + stride - sign) // stride
    return cast(program, arrange(program, first, count, stride, call.hint), call.type)


def _require_number(bound: Size | float) -> int:
    if isinstance(bound, Extent) and bound.is_number:
        return bound.value
    raise UnsupportedError("a range whose start or step depends on params")


@aten("full", "new_full")
def convert_full(call: Call, size: list[Size], fill_value: Any, self_: Array | None = None,
                 dtype: ElementType | None = None) -> Array:  # fmt: skip
    return _repeat(call, size, fill_value)


@aten("zeros", "new_zeros", "empty", "new_empty", "empty_permuted", "new_empty_strided", "empty_strided")
def convert_zeros(call: Call, size: list[Size], self_: Array | None = None, dtype: ElementType | None = None,
                  physical_layout: Any = None, stride: Any = None) -> Array:  # fmt: skip
    """What is empty has any elements, so zeros will do."""
    return _repeat(call, size, 0)


@aten("ones", "new_ones")
def convert_ones(call: Call, size: list[Size], self_: Array | None = None, dtype: ElementType | None = None) -> Array:
    return _repeat(call, size, 1)


@aten("full_like")
def convert_full_like(call: Call, self_: Array, fill_value: Any, dtype: ElementType | None = None) -> Array:
    return _repeat(call, list(self_.shape), fill_value)


@aten("copy")
def convert_copy(call: Call, self_: Array, src: Array) -> Array:
    return call.cast(expand(call.program, src, self_.shape, call.hint))


@aten("zeros_like", "empty_like", "zero")
def convert_zeros_like(call: Call, self_: Array, dtype: ElementType | None = None) -> Array:
    return _repeat(call, list(self_.shape), 0)


@aten("ones_like")
def convert_ones_like(call: Call, self_: Array, dtype: ElementType | None = None) -> Array:
    return _repeat(call, list(self_.shape), 1)


@aten("scalar_tensor")
def convert_scalar(call: Call, s: Any, dtype: ElementType | None = None) -> Array:
    return _repeat(call, [], s)


@aten("fill")
def convert_fill(call: Call, self_: Array, value: Any) -> Array:
    if isinstance(value, Array) and value.scalar is not None:
        value = value.scalar
    return _repeat(call, list(self_.shape), value)


def _repeat(call: Call, size: list[Size], value: Any) -> Array:
    if isinstance(value, Extent):
        if not value.is_number:
            return cast(call.program, call.program.constant(np.array(value, object), ElementType.I64), call.type)
        value = value.value
    if isinstance(value, Array):
        raise UnsupportedError("a tensor that repeats an element of another one")
    return full(call.program, size, value, call.type, call.hint)


@aten("eye")
def convert_eye(call: Call, n: int, m: int | None = None, dtype: ElementType | None = None) -> Array:
    return call.program.constant(np.eye(n, m if m is not None else n).astype(call.type.numpy), call.type, call.hint)


@aten("linspace")
def convert_linspace(
    call: Call, start: float | Array, end: float | Array, steps: int, dtype: ElementType | None = None
) -> Array:
    if isinstance(start, Array) or isinstance(end, Array):
        program, shares = call.program, np.linspace(0, 1, steps).astype(call.type.numpy)
        first, last = (call.cast(part) if isinstance(part, Array) else part for part in (start, end))
        way = apply(program, "sub", last, first)
        return apply(program, "add", apply(program, "mul", way, program.constant(shares, call.type)), first)
    return call.program.constant(np.linspace(start, end, steps).astype(call.type.numpy), call.type, call.hint)


def _make_triangle(name: str, function: str) -> Function:
    @aten(name)
    def convert(call: Call, self_: Array, diagonal: int = 0) -> Array:
        program = call.program
        rows = arrange(program, 0, self_.shape[-2])
        columns = arrange(program, 0, self_.shape[-1])
        moved = apply(program, "sub", columns, diagonal) if diagonal else columns
        kept = apply(program, function, moved, unsqueeze(program, rows, [1]))
        return where(program, kept, self_, 0, call.hint)

    return convert


_TRIANGLES = (_make_triangle("tril", "le"), _make_triangle("triu", "ge"))
