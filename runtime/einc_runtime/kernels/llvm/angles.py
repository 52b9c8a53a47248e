"""Cosines and sines of angles in vectors, for rotations."""

from __future__ import annotations

import math

from einc_runtime.kernels.llvm.emitter import BIT, F32, F64, I32, I64, Emitter, Value, vector

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
