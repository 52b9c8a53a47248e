"""The kernel `rope` in numpy: rotary position embedding, element i with element i + d_head / 2."""

from __future__ import annotations

import math

import numpy as np

from einc_runtime.dtypes import Array, compute_type, storage_dtype
from einc_runtime.kernels.base import Invocation, Kernel, dtype_name, store
from einc_runtime.kernels.calls.rope import RopeCall
from einc_runtime.kernels.numpy.pieces import PIECE_ELEMENTS


def build_rope(invocation: Invocation[Array]) -> Kernel:
    return make_rope(RopeCall.parse(invocation))


def make_rope(rotation: RopeCall) -> Kernel:
    """Angles are rounded to f32, as in the implementations that models are trained with."""
    source, target = rotation.source, rotation.target
    tokens, half = source.shape[-2], source.shape[-1] // 2
    dtype = storage_dtype(compute_type(dtype_name(target)))
    step = max(1, PIECE_ELEMENTS // max(1, math.prod(source.shape[:-2]) * half))

    def turn(part: slice) -> None:
        angles = (rotation.positions[part, None] * rotation.frequencies).astype(np.float32)
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
