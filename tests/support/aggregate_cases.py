"""Aggregations that models define, each with what it means in numpy, written anew."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from einc.frontend import build
from einc.ops.base import Operator
from tests.support.definition_oracle import Array, random_array

SIZES = {"rows": 7, "d": 9, "k": 3}
FLOATS = ("f32", "f16", "bf16", "f64")
NUMBERS = (*FLOATS, "i32", "i64")

DEFINITIONS = """
aggregate logaddexp(a, b) { identity -inf; return max(a, b) + log1p(exp(-abs(a - b))) }
aggregate smallest((a, i), (b, j), exact = true) {
    identity inf, inf
    return min(a, b), where(a < b, i, where(b < a, j, min(i, j)))
}
aggregate welford((n, m, s), (o, p, t)) {
    identity 0, 0, 0
    count = n + o
    shift = (p - m) / count
    return count, m + shift * o, s + t + (p - m) * shift * n * o
}
aggregate then((a, b), (c, e), commutative = false) { identity 1, 0; return a * c, b * c + e }
aggregate union(a, b, exact = true) { identity 0; return bitor(a, b) }
aggregate either(a, b, exact = true) { identity false; return or(a, b) }
"""


@dataclass(frozen=True)
class AggregateCase:
    """An equation over declared tensors, with the types for which it is tried, and its results."""

    tensors: str
    equation: str
    meaning: Callable[..., Any]
    dtypes: tuple[str, ...] = FLOATS

    def text(self, dtype: str) -> str:
        """The model, whose outputs are the results."""
        dims = "".join(f"dim {name} = {extent}\n" for name, extent in SIZES.items())
        inputs = "".join(f"input {text.strip()}\n" for text in self.tensors.replace("T[", f"{dtype}[").split(";"))
        return f"model m\n{dims}{inputs}{DEFINITIONS}output {self.equation.replace('T', dtype)}\n"

    def operator(self, dtype: str) -> Operator:
        return build(self.text(dtype), "m.ein").nodes[-1].operator

    def arrays(self, operator: Operator, seed: int) -> list[Array]:
        rng = np.random.default_rng(seed)
        return [random_array(desc, rng) for desc in operator.inputs]


def _welford(x: Array) -> tuple[Array, ...]:
    return np.full(len(x), float(x.shape[1])), x.mean(1), x.shape[1] * x.var(1)


def _then(a: Array, b: Array) -> tuple[Array, ...]:
    """Affine maps applied one after the other, in the order of the first dimension."""
    factor, term = np.ones(a.shape[1]), np.zeros(a.shape[1])
    for factors, terms in zip(a.astype(float), b.astype(float), strict=True):
        factor, term = factor * factors, term * factors + terms
    return factor, term


def _running(x: Array) -> Array:
    return np.logaddexp.accumulate(x, 0)


CASES: dict[str, AggregateCase] = {
    "logaddexp": AggregateCase(
        "x : T[rows, d]", "y[rows] = logaddexp[d](x[rows, d])", lambda x: np.logaddexp.reduce(x, 1)
    ),
    "logaddexp_rows": AggregateCase(
        "x : T[rows, d]", "y[d] = logaddexp[rows](x[rows, d] * 2)", lambda x: np.logaddexp.reduce(2 * x, 0)
    ),
    "logaddexp_of_sums": AggregateCase(
        "x : T[rows, d]; w : T[d, k]", "y[rows, k] = logaddexp[j](x[rows, j] + w[j, k])",
        lambda x, w: np.logaddexp.reduce(x[:, :, None] + w, 1),
    ),
    "logaddexp_running": AggregateCase("x : T[rows, d]", "y[i, d] = logaddexp[t <= i](x[t, d])", _running),
    "logaddexp_windows": AggregateCase(
        "x : T[rows, d]", "y[i = 3, d] = logaddexp[r = 3](x[2 * i + r, d])",
        lambda x: np.logaddexp.reduce([x[r : r + 5 : 2] for r in range(3)], 0),
    ),
    "logaddexp_all": AggregateCase(
        "x : T[rows, d]", "y[] = logaddexp[i, j](x[i, j])", lambda x: np.logaddexp.reduce(x.reshape(-1))
    ),
    "smallest": AggregateCase(
        "x : T[rows, d]", "y[rows], p[rows] = smallest[j](x[rows, j], j)", lambda x: (x.min(1), x.argmin(1)), NUMBERS
    ),
    "smallest_padded": AggregateCase(
        "x : T[rows, d]", "y[d], p[d] = smallest[i = 9](x[i - 1, d, outside = nearest], i)",
        lambda x: (x.min(0), np.pad(x, ((1, 1), (0, 0)), mode="edge").argmin(0)), NUMBERS,
    ),
    "welford": AggregateCase(
        "x : T[rows, d]", "n[rows], m[rows], s[rows] = welford[j](1.0, x[rows, j], 0.0)", _welford
    ),
    "then": AggregateCase(
        "a : T[rows, d]; b : T[rows, d]", "f[d], t[d] = then[i](a[i, d], b[i, d])", _then, ("f32", "f64", "i64")
    ),
    "union": AggregateCase(
        "x : T[rows, d]", "y[d] = union[i](x[i, d])", lambda x: np.bitwise_or.reduce(x, 0), ("i32", "i64")
    ),
    "either": AggregateCase("x : T[rows, d]", "y[rows] = either[j](x[rows, j] > 1)", lambda x: (x > 1).any(1), NUMBERS),
}  # fmt: skip
