"""Resampling along one axis: sums of neighbours of positions that are known, with shares that are known."""

from __future__ import annotations

import math

import numpy as np

from einc.importers.arrays.elementwise import MAX_FOLDED, apply
from einc.importers.arrays.moving import reshape, take
from einc.importers.arrays.program import ArrayProgram
from einc.importers.arrays.reducing import reduce
from einc.importers.arrays.values import Array, Elements, UnsupportedError

CUBIC = -0.75
"""The slope of the usual cubic interpolation, as PyTorch and ONNX have it where nothing is said."""


def interpolate(
    program: ArrayProgram, x: Array, axis: int, positions: Elements, reach: int, hint: str, *, cubic: float = CUBIC,
    stretch: float = 1.0, exclude_outside: bool = False,
) -> Array:  # fmt: skip
    """The elements at positions along an axis, between which it is interpolated: linearly with a reach of 1, cubically
    with 2. A `stretch` below 1 makes the reach as many times larger, against aliasing. What lies outside is the nearest
    element, or does not count."""
    neighbours, shares = _find_neighbours(positions, x.shape[axis].value, reach, cubic, stretch, exclude_outside)
    taken = take(program, x, program.constant(neighbours.ravel(), hint="neighbours"), axis)
    spread = reshape(program, taken, [*x.shape[:axis], *neighbours.shape, *x.shape[axis + 1 :]])
    factors = shares.reshape([*shares.shape, *[1] * (x.rank - axis - 1)]).astype(x.type.numpy)
    product = apply(program, "mul", spread, program.constant(factors, x.type, "shares"))
    return reduce(program, product, "sum", [axis + 1], hint=hint)


def _find_neighbours(
    positions: Elements, extent: int, reach: int, cubic: float, stretch: float, exclude_outside: bool
) -> tuple[Elements, Elements]:
    """The places of the neighbours of each position, and their shares, which add up to 1."""
    width = math.ceil(reach / stretch)
    if width * len(positions) > MAX_FOLDED:
        raise UnsupportedError(f"sums of {2 * width:,} neighbours")
    offsets = np.arange(1 - width, width + 1)
    places = np.floor(positions)[:, None].astype(np.int64) + offsets
    distances = np.abs(positions[:, None] - places) * stretch
    shares = np.clip(1 - distances, 0, None) if reach == 1 else _weigh_cubic(distances, cubic)
    if exclude_outside:
        shares = np.where((places >= 0) & (places < extent), shares, 0)
    if exclude_outside or stretch != 1:
        shares = shares / shares.sum(1, keepdims=True)
    return np.clip(places, 0, extent - 1), shares


def _weigh_cubic(distances: Elements, a: float) -> Elements:
    d = distances
    near = ((a + 2) * d - (a + 3)) * d * d + 1
    far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
    return np.where(d <= 1, near, np.where(d < 2, far, 0))
