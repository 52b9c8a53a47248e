"""The kernel `rope` in numpy: rotary position embedding, element i with element i + d_head / 2."""

from __future__ import annotations

import math

import numpy as np

from einc_runtime.dtypes import Array, compute_type, storage_dtype
from einc_runtime.kernels.base import Invocation, Kernel, Run, ScratchAllocator, dtype_name
from einc_runtime.kernels.calls.rope import RopeCall
from einc_runtime.kernels.numpy.pieces import PIECE_ELEMENTS, ArrayPiece, Resolved, Walk, make_runner, make_walk_runner


def build_rope(invocation: Invocation[Array]) -> Kernel:
    return make_rope(RopeCall.parse(invocation))


def make_rope(rotation: RopeCall) -> Kernel:
    """Angles are rounded to f32, as in the implementations that models are trained with."""
    source, target, frequencies, positions = rotation.source, rotation.target, rotation.frequencies, rotation.positions
    tokens, half = source.shape[-2], source.shape[-1] // 2
    dtype = storage_dtype(compute_type(dtype_name(target)))
    leading = math.prod(source.shape[:-2])
    step = max(1, min(tokens, PIECE_ELEMENTS // max(1, leading * half)))
    walk = Walk((tokens,), 0, step)
    scratch = ScratchAllocator()
    angles = scratch.take((step, half), np.dtype(np.float32))
    waves = [scratch.take((step, half), dtype) for _ in range(2)]
    products = [scratch.take((*source.shape[:-2], step, half), dtype) for _ in range(2)]
    converted = None if source.dtype == dtype else scratch.take((*source.shape[:-2], step, 2 * half), dtype)

    def bind(memory: Array) -> Run:
        angle, cosine, sine, by_cosine, by_sine = (array.of(memory) for array in (angles, *waves, *products))

        def calls(piece: ArrayPiece) -> list[Resolved]:
            part = slice(piece.count)
            span = slice(piece.start[0], piece.start[0] + piece.count)
            a, cos, sin = angle[part], cosine[part], sine[part]
            u, v = by_cosine[..., part, :], by_sine[..., part, :]
            wide = source[..., span, :]
            before: list[Resolved] = []
            if converted is not None:
                wide = converted.of(memory)[..., part, :]
                before.append((np.copyto, [wide, source[..., span, :]]))
            x, y = wide[..., :half], wide[..., half:]
            return [
                *before,
                (_apply, [np.multiply, positions[span, None], frequencies, a]),
                (_apply_wave, [np.cos, a, cos]),
                (_apply_wave, [np.sin, a, sin]),
                (np.multiply, [x, cos, u]),
                (np.multiply, [y, sin, v]),
                (_apply, [np.subtract, u, v, target[..., span, :half]]),
                (np.multiply, [y, cos, u]),
                (np.multiply, [x, sin, v]),
                (_apply, [np.add, u, v, target[..., span, half:]]),
            ]

        turn = make_walk_runner(walk, calls)
        return make_runner([(rotation.require_positions, []), (turn, [])]) if rotation.positions_are_input else turn

    return Kernel(bind, scratch.size, 2.0 * source.size + 40.0 * tokens * half)


def _apply_wave(function: np.ufunc, angles: Array, target: Array) -> None:
    function(angles, out=target, dtype=target.dtype)


def _apply(function: np.ufunc, *arguments: Array) -> None:
    """Writes the result to the last argument, rounding it to its type."""
    function(*arguments[:-1], out=arguments[-1], casting="unsafe")
