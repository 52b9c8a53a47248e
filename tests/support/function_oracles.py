"""Scalar functions in more digits than kernels have, and the largest errors that the documents state for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np


def _erf(x: np.ndarray) -> np.ndarray:
    """By a series of positive terms, in which nothing cancels; beyond 7 it is 1 in f64."""
    y = np.where(np.abs(x) < 7, x, np.copysign(7, x)).astype(np.longdouble)
    term = total = y
    for n in range(1, 250):
        term = term * (2 * y * y / (2 * n + 1))
        total = total + term
    pi = np.longdouble("3.14159265358979323846264338327950288")
    return np.where(np.isnan(x), np.nan, 2 / np.sqrt(pi) * np.exp(-y * y) * total)


EXACT: dict[str, Callable[..., Any]] = {
    "exp2": np.exp2, "expm1": np.expm1, "log2": np.log2, "log1p": np.log1p, "sin": np.sin, "cos": np.cos,
    "tan": np.tan, "atan": np.arctan, "atan2": np.arctan2, "erf": _erf,
}  # fmt: skip
"""For arrays of floats with more digits than the kernels have."""

WHOLE: dict[str, Callable[[float], float]] = {
    "floor": np.floor, "ceil": np.ceil, "round": lambda x: float(round(x)) if abs(x) < 2**52 else x, "trunc": np.trunc,
    "sign": lambda x: float((x > 0) - (x < 0)) if x == x else x,
}  # fmt: skip
"""Functions without an error, of one number. Python's `round` is to even, and the signs of zeros are not compared."""

ULPS = {"f4": 4, "f8": 2}
"""The largest errors of these functions, in units of the last place of the exact result (docs/operators.md)."""


def _shift(value: int, count: int, width: int, left: bool) -> int:
    """A count that is no position of a bit shifts all bits out."""
    if not 0 <= count < width:
        return 0 if left else -(value < 0)
    wrapped = (value << count if left else value >> count) & (2**width - 1)
    return wrapped - (wrapped >> (width - 1) << width)


BITS: dict[str, Callable[[int, int, int], int]] = {
    "bitand": lambda a, b, _: a & b, "bitor": lambda a, b, _: a | b, "bitxor": lambda a, b, _: a ^ b,
    "shiftleft": lambda a, b, width: _shift(a, b, width, True),
    "shiftright": lambda a, b, width: _shift(a, b, width, False),
}  # fmt: skip
"""Functions of two integers of some bits, by Python's integers, which have all bits."""

SPECIAL = [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 2.5, -3.5, 1e-20, -1e-20, 100.0, -200.0, np.inf, -np.inf, np.nan]


def draw(function: str, dtype: str, count: int = 40_000) -> list[np.ndarray]:
    """Arguments of all sizes, of both signs where a function has a value there, and special values."""
    rng = np.random.default_rng(len(function))
    largest = 30.0 if dtype == "f4" else 250.0

    def values() -> np.ndarray:
        parts = [rng.uniform(-10, 10, count), rng.normal(0, 1, count), 10.0 ** rng.uniform(-largest, largest, count)]
        every = np.concatenate(parts) * rng.choice([-1, 1], 3 * count)
        if function in ("log2", "log1p"):
            every = abs(every) if function == "log2" else np.where(every < -1, -every, every)
        if function in ("exp2", "expm1"):
            every = np.clip(every, -100, 80)
        return np.concatenate([every, SPECIAL]).astype(dtype)

    return [values() for _ in range(2 if function == "atan2" else 1)]


def count_ulps(computed: np.ndarray, exact: np.ndarray) -> float:
    """The largest difference in units of the last place of normal numbers; all others must be the same."""
    with np.errstate(over="ignore"):
        exact_stored = exact.astype(computed.dtype)
    special = ~np.isfinite(exact_stored) | ~np.isfinite(computed) | (exact_stored == 0)
    np.testing.assert_array_equal(computed[special], exact_stored[special])
    zeros = exact_stored == 0
    np.testing.assert_array_equal(np.signbit(computed[zeros]), np.signbit(exact_stored[zeros]))
    wide, normal = exact[~special], np.abs(exact[~special]) >= np.finfo(computed.dtype).tiny
    unit = np.spacing(np.abs(exact_stored[~special]))
    return float((np.abs(computed[~special].astype(exact.dtype) - wide) / unit)[normal].max(initial=0))


LIBRARY = {"tan": np.tan, "atan": np.arctan, "atan2": np.arctan2, "expm1": np.expm1, "log1p": np.log1p,
           "rint": np.rint, "trunc": np.trunc}  # fmt: skip
"""Functions of CUDA's libdevice, which runs on no CPU, and those of numpy that compute the same."""
