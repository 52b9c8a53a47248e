"""Fourier transforms of ONNX, as products with matrices of known sines and cosines."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from einc.importers.arrays.elementwise import apply
from einc.importers.arrays.moving import concat, pad, reshape, slice_axis, squeeze, take, transpose, unsqueeze
from einc.importers.arrays.products import matmul
from einc.importers.arrays.values import Array, UnsupportedError, normalize_axis
from einc.importers.onnx.nodes import Convert, OnnxNode, Results

MAX_LENGTH = 2**14
"""Points of a transform: its matrices have the square of them, and are stored."""


def _transform(node: OnnxNode) -> Results:
    x = node.input(0)
    axis = node.integer("axis", 1) if node.opset < 20 else -2
    if node.opset >= 20 and node.optional(2) is not None:
        axis = node.known_ints(2, "axis")[0]
    inverse, onesided = bool(node.integer("inverse")), bool(node.integer("onesided"))
    axis = normalize_axis(axis, x.rank)
    extent = x.shape[axis].value
    length = 2 * (extent - 1) if inverse and onesided else extent
    if node.optional(1) is not None:
        length = node.known_ints(1, "dft_length")[0]
    return transform_axis(node, x, axis, length, inverse, onesided)


def transform_axis(node: OnnxNode, x: Array, axis: int, length: int, inverse: bool, onesided: bool) -> Array:
    """The discrete Fourier transform of x [..., 1 or 2] along an axis, real and imaginary parts last."""
    program = node.program
    if not 1 <= length <= MAX_LENGTH or not x.shape[axis].is_number:
        raise UnsupportedError(f"a Fourier transform of {x.shape[axis].text} elements to {length:,} points")
    used = length // 2 + 1 if inverse and onesided else length
    missing = used - x.shape[axis].value
    x = pad(program, x, [(0, missing) if k == axis else (0, 0) for k in range(x.rank)]) if missing > 0 else x
    x = slice_axis(program, x, axis, 0, used)
    order = [k for k in range(x.rank) if k != axis]
    moved = transpose(program, x, [*order, axis])  # [..., 1 or 2, points]
    parts = [squeeze(program, slice_axis(program, moved, -2, k, k + 1), [-2]) for k in range(x.shape[-1].value)]
    kept = length // 2 + 1 if onesided and not inverse else length
    angles = 2 * np.pi * (np.outer(np.arange(used), np.arange(kept)) % length) / length
    scale = np.full((used, 1), 1 / length if inverse else 1.0)
    if inverse and onesided:  # the other half has the conjugates
        scale[1 : (length + 1) // 2] *= 2
    cosines, sines = (
        program.constant((scale * function(angles)).astype(x.type.numpy), x.type, hint)
        for function, hint in ((np.cos, "cosines"), (np.sin, "sines"))
    )
    sign = 1 if inverse else -1
    real = matmul(program, parts[0], cosines)
    imaginary = matmul(program, parts[0], sines)
    imaginary = imaginary if sign > 0 else apply(program, "neg", imaginary)
    if len(parts) > 1:
        crossed = matmul(program, parts[1], sines)
        real = apply(program, "sub" if sign > 0 else "add", real, crossed)
        imaginary = apply(program, "add", imaginary, matmul(program, parts[1], cosines))
    results = [real] if inverse and onesided else [real, imaginary]
    joined = concat(program, [unsqueeze(program, part, [-1]) for part in results], -1)  # [..., points, 1 or 2]
    back = list(range(joined.rank - 2))
    back.insert(axis, joined.rank - 2)
    return transpose(program, joined, [*back, joined.rank - 1], node.hint)


def _short_time(node: OnnxNode) -> Results:
    """STFT: frames of a signal [batch, length, 1 or 2], each times a window and transformed."""
    program, signal = node.program, node.input(0)
    step = node.known_ints(1, "frame_step")[0]
    window = node.optional(2)
    if node.optional(3) is not None:
        length = node.known_ints(3, "frame_length")[0]
    elif window is not None:
        length = window.shape[0].value
    else:
        raise UnsupportedError("the length of its frames is not given")
    frames = (signal.shape[1].value - length) // step + 1
    places = program.constant(step * np.arange(frames)[:, None] + np.arange(length), hint="frames")
    cut = take(program, signal, places, 1)
    if window is not None:
        cut = apply(program, "mul", cut, reshape(program, window, [length, 1]))
    return transform_axis(node, cut, 2, length, False, bool(node.integer("onesided", 1)))


SIGNAL_OPERATORS: Mapping[str, Convert] = {"DFT": _transform, "STFT": _short_time}
