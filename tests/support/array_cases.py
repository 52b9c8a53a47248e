"""A tensor of a plan in few words, and the array for it."""

from __future__ import annotations

import numpy as np

from einc_runtime.plan.schema import Tensor


def tensor(dtype="f32", shape=(3, 4), name="x", kind="input", **fields):
    return Tensor(name, tuple(f"d{k}" for k in range(len(shape))), tuple(shape), dtype, kind, **fields)


X = np.arange(12, dtype="f4").reshape(3, 4)
