"""The kernel `rope` as machine code: cosines and sines are computed in registers, once for all heads of a token.

numpy computes what this code cannot, as in `map.py`.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from einc_runtime.dtypes import Array, find_dtype_name
from einc_runtime.kernels.base import Invocation, Kernel, address
from einc_runtime.kernels.calls.rope import RopeCall
from einc_runtime.kernels.llvm import compiler
from einc_runtime.kernels.llvm.emitter import BIT, F32, F64, I32, I64, Emitter, Value, vector
from einc_runtime.kernels.numpy.rope import make_rope

_SIN = (-1.9515295891e-4, 8.3321608736e-3, -1.6666654611e-1)
_COS = (2.443315711809948e-5, -1.388731625493765e-3, 4.166664568298827e-2, -0.5, 1.0)
_ROUNDER_F64 = 1.5 * 2.0**52
"""A number that is added to it loses its fraction."""


def cos_sin(e: Emitter, angles: Value) -> tuple[Value, Value]:
    """Cosine and sine, as f32, of angles in f64 below 2**31, computed from the rest beyond the nearest quarter turn."""
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
    from einc_runtime.dtypes import ITEMSIZE
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
