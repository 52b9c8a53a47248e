"""The kernels `rmsnorm`, `layernorm`, `softmax` and `rope` as machine code, a few passes over a row in the cache.

Sums are in f64, so rows may have any length. Cosines and sines are computed in registers, once for all heads of a
token. numpy computes what this code cannot, as in `map.py`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from einc_runtime.dtypes import ITEMSIZE, Array, find_dtype_name
from einc_runtime.kernels.base import Invocation, Kernel, address
from einc_runtime.kernels.calls.rows import NormCall, RopeCall, SoftmaxCall
from einc_runtime.kernels.llvm import compiler
from einc_runtime.kernels.numpy.rows import make_norm, make_rope, make_softmax
from einc_runtime.kernels.views import merge_leading_axes

if TYPE_CHECKING:
    from einc_runtime.kernels.llvm.emitter import Emitter, Value


def build_norm(invocation: Invocation[Array]) -> Kernel:
    call = NormCall.parse(invocation)
    return compile_rows(invocation, (call.eps, call.offset), call.source, call.vectors, call.target) or make_norm(call)


def build_softmax(invocation: Invocation[Array]) -> Kernel:
    call = SoftmaxCall.parse(invocation)
    last = call.axis == call.source.ndim - 1
    compiled = compile_rows(invocation, (0.0, 0.0), call.source, (), call.target) if last else None
    return compiled or make_softmax(call)


def compile_rows(
    invocation: Invocation[Array],
    numbers: tuple[float, float],
    source: Array,
    vectors: Sequence[Array],
    target: Array,
) -> Kernel | None:
    """The compiled kernel, or None where there is no machine code; `numbers` are eps and offset."""
    name, kind = invocation.name, find_dtype_name(target.dtype)
    if kind not in compiler.COMPILED_FLOATS or not compiler.is_worthwhile(target.size, invocation.repetitions):
        return None
    views = merge_leading_axes([source, target])
    if any(array.strides[-1] != array.itemsize for array in (*views, *vectors)):
        return None
    leading = views[0].ndim - 1
    arguments = [*target.shape[-1:], *views[0].shape[:-1]]
    for view in views:
        arguments += compiler.operand_arguments(view)
    arguments += [address(vector) for vector in vectors]
    run = compiler.CompiledCall(_emit_rows(name, kind, leading, len(vectors), *numbers), arguments, *views, *vectors)
    return Kernel(lambda _: run, nanoseconds=(2.0 if name == "softmax" else 0.5 + len(vectors) * 0.3) * target.size)


@compiler.compile_once
def _emit_rows(name: str, kind: str, leading: int, count_of_vectors: int, eps: float, offset: float) -> Any:
    from einc_runtime.kernels.llvm.emitter import F32, I64, Emitter
    from einc_runtime.kernels.llvm.vectors import decay

    e = Emitter()
    count, *heads = [e.argument() for _ in range(leading + 1)]
    operands = [e.operand(leading) for _ in range(2)]
    vectors = [e.argument() for _ in range(count_of_vectors)]
    extent = e.broadcast(e.b.sitofp(count, F32))
    with e.rows(heads, operands) as (source, target):

        def read(position: Value, mask: Value | None) -> Value:
            return e.load(source, position, kind, mask)

        def read_first(position: Value, mask: Value | None) -> Value:
            byte = e.b.mul(position, I64(ITEMSIZE[kind]))
            e.prefetch(e.b.add(source, I64(compiler.BYTES_AHEAD)), byte)
            return read(position, mask)

        if name == "softmax":
            largest = e.fold(count, e.number(-math.inf), e.larger, read_first)

            def weight(position: Value, mask: Value | None) -> Value:
                value = decay(e, e.b.fsub(read(position, mask), largest))
                if kind == "f32":  # its weight is kept where the result will be: no exponential is computed twice
                    e.store(value, target, position, kind, mask)
                return value

            def find_weight(position: Value, mask: Value | None) -> Value:
                return e.load(target, position, kind, mask) if kind == "f32" else weight(position, mask)

            scale, term = e.b.fdiv(e.number(1.0), e.total(count, weight)), find_weight
        else:
            middle = e.b.fdiv(e.total(count, read_first), extent) if name == "layernorm" else None

            def center(position: Value, mask: Value | None) -> Value:
                value = read(position, mask)
                return value if middle is None else e.b.fsub(value, middle)

            def square(position: Value, mask: Value | None) -> Value:
                value = center(position, mask) if middle is not None else read_first(position, mask)
                return e.b.fmul(value, value)

            mean = e.b.fdiv(e.total(count, square), extent)
            root = e.square_root(e.b.fadd(mean, e.number(eps)))
            scale, term = e.b.fdiv(e.number(1.0), root), center

        def write(position: Value, mask: Value | None) -> None:
            value = e.b.fmul(term(position, mask), scale)
            if vectors:
                gain = e.load(vectors[0], position, kind, mask)
                value = e.b.fmul(value, e.b.fadd(gain, e.number(offset)) if offset else gain)
            if len(vectors) > 1:
                value = e.b.fadd(value, e.load(vectors[1], position, kind, mask))
            e.store(value, target, position, kind, mask)

        e.sweep(count, write)
    return e.finish()


_SIN = (-1.9515295891e-4, 8.3321608736e-3, -1.6666654611e-1)
_COS = (2.443315711809948e-5, -1.388731625493765e-3, 4.166664568298827e-2, -0.5, 1.0)
_ROUNDER_F64 = 1.5 * 2.0**52
"""A number that is added to it loses its fraction."""


def cos_sin(e: Emitter, angles: Value) -> tuple[Value, Value]:
    """Cosine and sine, as f32, of angles in f64 below 2**31, computed from the rest beyond the nearest quarter turn."""
    from einc_runtime.kernels.llvm.emitter import BIT, F32, F64, I32, I64, vector

    b = e.b
    shifted = b.fadd(b.fmul(angles, e.number(2 / math.pi, F64)), e.number(_ROUNDER_F64, F64))
    turns = b.fsub(shifted, e.number(_ROUNDER_F64, F64))
    angle = e.multiply_add(turns, e.number(-math.pi / 2, F64), angles)
    angle = b.fptrunc(e.multiply_add(turns, e.number(-6.123233995736766e-17, F64), angle), vector(F32))
    square = b.fmul(angle, angle)
    sine, cosine = e.number(_SIN[0]), e.number(_COS[0])
    for coefficient in _SIN[1:]:
        sine = e.multiply_add(sine, square, e.number(coefficient))
    for coefficient in _COS[1:]:
        cosine = e.multiply_add(cosine, square, e.number(coefficient))
    sine = e.multiply_add(b.fmul(sine, square), angle, angle)
    quarter = b.trunc(b.bitcast(shifted, vector(I64)), vector(I32))

    def rotate(even: Value, odd: Value, quarters: Value) -> Value:
        value = b.select(b.trunc(quarters, vector(BIT)), odd, even)
        sign = b.shl(b.and_(quarters, e.number(2, I32)), e.number(30, I32))
        return b.bitcast(b.xor(b.bitcast(value, vector(I32)), sign), vector(F32))

    ahead = b.add(quarter, e.number(1, I32))
    return rotate(sine, cosine, ahead), rotate(sine, cosine, quarter)


def build_rope(invocation: Invocation[Array]) -> Kernel:
    rotation = RopeCall.parse(invocation)
    target, kind = rotation.target, find_dtype_name(rotation.target.dtype)
    dense = all(array.strides[-1] == array.itemsize for array in (rotation.source, target))
    worthwhile = dense and compiler.is_worthwhile(target.size, invocation.repetitions)
    if kind not in compiler.COMPILED_FLOATS or not worthwhile:
        return make_rope(rotation)
    source, positions, frequencies = rotation.source, rotation.positions, np.ascontiguousarray(rotation.frequencies)
    arguments = [source.shape[-2], source.shape[-1] // 2, *source.shape[:-2]]
    arguments += [address(positions), *positions.strides, address(frequencies)]
    for view in (source, target):
        arguments += [address(view), view.strides[-2], *view.strides[:-2]]
    turn = compiler.CompiledCall(
        _emit_rope(kind, source.ndim - 2, positions.itemsize, rotation.positions_are_input),
        arguments,
        positions,
        frequencies,
        source,
        target,
        fail=rotation.require_positions,
    )
    return Kernel(lambda _: turn, nanoseconds=0.5 * source.size)


@compiler.compile_once
def _emit_rope(kind: str, leading: int, size: int, has_positions: bool) -> Any:
    """`size` is the number of bytes of a position; those that are given may be negative, which is an error."""
    from einc_runtime.kernels.llvm.emitter import F32, F64, I64, Emitter, RowOperand, vector

    e = Emitter()
    b = e.b
    tokens, half, *heads = [e.argument() for _ in range(2 + leading)]
    positions, frequencies = e.operand(1), e.argument()
    source, target = (e.operand(1 + leading) for _ in range(2))
    width = b.mul(half, I64(ITEMSIZE[kind]))
    if has_positions:
        with e.loop(tokens) as token:
            e.stop_if(b.icmp_signed("<", e.read_integer(positions, token, size), I64(0)), I64(1))
    with e.loop(tokens) as token:
        position = e.read_integer(positions, token, size)
        where = e.broadcast(b.sitofp(position, F64))
        token_rows = [RowOperand(b.add(x.address, b.mul(token, x.strides[0])), x.strides[1:]) for x in (source, target)]

        def turn(position: Value, mask: Value | None) -> None:
            steps = b.fpext(e.load(frequencies, position, "f32", mask), vector(F64))
            angles = b.fptrunc(b.fmul(where, steps), vector(F32))
            cosine, sine = cos_sin(e, b.fpext(angles, vector(F64)))
            with e.rows(heads, token_rows) as (read, written):
                x = e.load(read, position, kind, mask)
                y = e.load(b.add(read, width), position, kind, mask)
                first = b.fsub(b.fmul(x, cosine), b.fmul(y, sine))
                second = b.fadd(b.fmul(y, cosine), b.fmul(x, sine))
                e.store(first, written, position, kind, mask)
                e.store(second, b.add(written, width), position, kind, mask)

        e.sweep(half, turn)
    return e.finish()
