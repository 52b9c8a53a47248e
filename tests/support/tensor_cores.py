"""Products of matrices as tensor cores compute them: each element by itself, in steps of k, whatever tile it lies in.

numpy's product of two tiles may depend on where in the tile an element is, as that of every library of BLAS.
"""

from __future__ import annotations

import numpy as np

STEP = 16
"""Positions of k that one instruction adds to a sum of products of 16-bit numbers."""


def multiply_tiles(a, b, total=None):
    """`total + a @ b` in f32, or f64 for f64. 16-bit numbers (which may have been widened) are multiplied exactly, and
    `STEP` products are added at a time; other sums are one chain of fused multiply-adds. Those of i8 are in i32."""
    if a.dtype == np.int8:
        return a.astype(np.int32) @ b.astype(np.int32) + (0 if total is None else total)
    wide = np.dtype(np.float64 if a.dtype == np.float64 else np.float32)
    total = np.zeros((a.shape[0], b.shape[1]), wide) if total is None else total.astype(wide)
    step = STEP if a.dtype.itemsize == 2 else 1
    a, b = a.astype(np.float64), b.astype(np.float64)
    for start in range(0, a.shape[1], step):
        part = total.astype(np.float64)
        for k in range(start, min(start + step, a.shape[1])):
            part += a[:, k, np.newaxis] * b[k]
        total = part.astype(wide)
    return total
