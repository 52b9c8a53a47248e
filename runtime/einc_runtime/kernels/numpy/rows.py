"""Kernels over rows in numpy: `softmax` {axis}, `rmsnorm` and `layernorm` {eps, offset}, and `rope`, which turns
element i with element i + d_head / 2.

They compute in f32 or wider.
"""

from __future__ import annotations

import math

import numpy as np

from einc_runtime.dtypes import Array, compute_type, storage_dtype
from einc_runtime.kernels.base import Invocation, Kernel, dtype_name, store
from einc_runtime.kernels.calls.rows import NormCall, RopeCall, SoftmaxCall
from einc_runtime.kernels.numpy.pieces import PIECE_ELEMENTS, make_walk_runner, walk_rows


def build_softmax(invocation: Invocation[Array]) -> Kernel:
    return make_softmax(SoftmaxCall.parse(invocation))


def make_softmax(call: SoftmaxCall) -> Kernel:
    """exp(x - max) / sum(exp(x - max)) along one axis, which cannot overflow."""
    dtype = storage_dtype(call.kind)

    def compute(x: Array, y: Array) -> None:
        wide = x.astype(dtype, copy=False)
        exps = wide - np.maximum.reduce(wide, -1, keepdims=True)
        np.exp(exps, exps)
        np.divide(exps, np.add.reduce(exps, -1, keepdims=True), exps if y.dtype != dtype else y)
        if y.dtype != dtype:
            store(exps, y)

    views, walk = walk_rows([np.moveaxis(view, call.axis, -1) for view in (call.source, call.target)])
    run = make_walk_runner(walk, views, compute)
    return Kernel(lambda _: run, nanoseconds=4.0 * call.source.size)


def build_norm(invocation: Invocation[Array]) -> Kernel:
    return make_norm(NormCall.parse(invocation))


def make_norm(call: NormCall) -> Kernel:
    """x / sqrt(mean(x * x) + eps) * (gain + offset); layernorm takes x - mean(x) for x, and adds the bias."""
    dtype = storage_dtype(call.kind)
    share, summand, offset = (dtype.type(number) for number in (1 / call.source.shape[-1], call.eps, call.offset))

    native = call.target.dtype == dtype

    def compute(x: Array, y: Array) -> None:
        vectors = call.vectors if native else [vector.astype(dtype) for vector in call.vectors]
        wide = x.astype(dtype, copy=False)
        if call.centered:
            wide = wide - np.add.reduce(wide, -1, keepdims=True) * share
        line = np.add.reduce(wide * wide, -1, keepdims=True)
        line *= share
        line += summand
        result = np.divide(wide, np.sqrt(line, line), y if native else None)
        for gain in vectors[:1]:
            result *= gain + offset if call.offset else gain
        for bias in vectors[1:]:
            result += bias
        if not native:
            store(result, y)

    views, walk = walk_rows([call.source, call.target])
    run = make_walk_runner(walk, views, compute)
    return Kernel(lambda _: run, nanoseconds=(2.0 + len(call.vectors)) * call.source.size)


def build_rope(invocation: Invocation[Array]) -> Kernel:
    return make_rope(RopeCall.parse(invocation))


def make_rope(rotation: RopeCall) -> Kernel:
    """Angles are rounded to f32, but beside f64: as in the implementations that models are trained with."""
    source, target = rotation.source, rotation.target
    tokens, half = source.shape[-2], source.shape[-1] // 2
    dtype = storage_dtype(compute_type(dtype_name(target)))
    step = max(1, PIECE_ELEMENTS // max(1, math.prod(source.shape[:-2]) * half))

    def turn(part: slice) -> None:
        angles = (rotation.positions[part, None] * rotation.frequencies).astype(dtype)
        cosine, sine = np.cos(angles, dtype=dtype), np.sin(angles, dtype=dtype)
        wide, turned = source[..., part, :].astype(dtype, copy=False), target[..., part, :]
        x, y = wide[..., :half], wide[..., half:]
        first, second = x * cosine - y * sine, y * cosine + x * sine  # before any of both is written
        store(first, turned[..., :half])
        store(second, turned[..., half:])

    def run() -> None:
        if rotation.positions_are_input:
            rotation.require_positions()
        for start in range(0, tokens, step):
            turn(slice(start, start + step))

    return Kernel(lambda _: run, nanoseconds=2.0 * source.size + 40.0 * tokens * half)
