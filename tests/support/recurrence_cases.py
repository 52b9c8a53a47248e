"""Recurrences, each with what it means in numpy, written anew as loops over steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from einc.frontend import build
from einc.graph.fuse import fuse
from einc.ops.base import Operator
from einc.ops.recurrence import RecurrenceOperator
from tests.support.definition_oracle import Array, random_array

SIZES = {"t": 6, "d": 5, "n": 3, "r": 2}
FLOATS = ("f32", "f16", "bf16", "f64")


@dataclass(frozen=True)
class RecurrenceCase:
    """Equations over declared tensors, and the results as a function of them; `cut` are the indices along which the
    operator may be cut."""

    tensors: str
    equations: str
    meaning: Callable[..., Any]
    cut: str
    dtypes: tuple[str, ...] = FLOATS
    sizes: dict[str, int] = field(default_factory=dict)

    def operator(self, dtype: str, *, in_order: bool = True) -> RecurrenceOperator:
        """The only operator of the model that has these equations."""
        dims = "".join(f"dim {name} = {extent}\n" for name, extent in {**SIZES, **self.sizes}.items())
        inputs = "".join(f"input {text.strip()}\n" for text in self.tensors.replace("T[", f"{dtype}[").split(";"))
        graph = fuse(build(f"model m\n{dims}{inputs}{self.equations.replace('T', dtype)}\n", "m.ein"))
        (node,) = graph.nodes
        assert isinstance(node.operator, RecurrenceOperator)
        names = [text.split(":")[0].strip() for text in self.tensors.split(";")]
        assert not in_order or list(node.inputs) == names, node.inputs
        return node.operator

    def arrays(self, operator: Operator, seed: int) -> list[Array]:
        rng = np.random.default_rng(seed)
        return [
            rng.integers(0, 2, desc.shape).astype(desc.dtype.numpy())
            if desc.dtype.value in ("i32", "i64")
            else (random_array(desc, rng) * 0.5).astype(desc.dtype.numpy())
            for desc in operator.inputs
        ]


def _linear(a: Array, b: Array, start: Any = 0.0) -> Array:
    h, states = start, []
    for step in range(len(a)):
        h = a[step] * h + b[step]
        states.append(h)
    return np.stack(states)


def _selective(x: Array, delta: Array, a: Array, b: Array, c: Array) -> Array:
    decay = np.exp(delta[:, :, None] * a)
    states = _linear(decay, (x * delta)[:, :, None] * b[:, None, :])
    return np.einsum("tdn,tn->td", states, c)


def _batched(x: Array, w: Array, start: Array) -> Array:
    h, states = start, []
    for step in range(x.shape[1]):
        h = np.tanh(x[:, step] + h @ w.T)
        states.append(h)
    return np.stack(states, 1)


def _pair(x: Array, w: Array) -> tuple[Array, Array]:
    h, c = np.ones(x.shape[1:]), np.zeros(x.shape[1:])
    states, cells = [], []
    for step in range(len(x)):
        gate = 1 / (1 + np.exp(-(x[step] + h @ w)))
        before, c = c, gate * c + x[step]
        h = np.tanh(c) - before
        states.append(h)
        cells.append(c)
    return np.stack(states), np.stack(cells)


def _count(x: Array) -> Array:
    h, states = np.full(x.shape[1:], 7), []
    for step in range(len(x)):
        h = np.where(x[step] > 0, h + x[step], 0)
        states.append(h)
    return np.stack(states)


CASES: dict[str, RecurrenceCase] = {
    "linear": RecurrenceCase(
        "a : T[t, d, n]; b : T[t, d, n]",
        "output h[t, d, n] = a[t, d, n] * h[t - 1, d, n, outside = 0] + b[t, d, n]",
        _linear, "d n",
    ),
    "started": RecurrenceCase(
        "a : T[t, d]; b : T[t, d]; s : T[d]",
        "output h[t, d] = a[t, d] * h[t - 1, d, outside = s[d]] + b[t, d]",
        _linear, "d",
    ),
    "turned": RecurrenceCase(
        "a : T[d, t]; b : T[t]; s : T[d]",
        "output h[d, t] = h[d, t - 1, outside = s] * a[d, t] + b[t]",
        lambda a, b, s: _linear(a.T, b[:, None] * np.ones(5), s).T, "d",
    ),
    "selective": RecurrenceCase(
        "delta : T[t, d]; a : T[d, n]; x : T[t, d]; b : T[t, n]; c : T[t, n]",
        "h[t, d, n] = exp(delta[t, d] * a[d, n]) * h[t - 1, d, n, outside = 0] + delta[t, d] * x[t, d] * b[t, n]\n"
        "output y[t, d] = sum[n](h[t, d, n] * c[t, n])",
        lambda delta, a, x, b, c: _selective(x, delta, a, b, c), "d n",
    ),
    "contracted": RecurrenceCase(
        "w : T[d, d]; x : T[r, t, d]; s : T[r, d]",
        "output h[r, t, d] = tanh(x[r, t, d] + sum[e = 5](h[r, t - 1, e, outside = s[r, e]] * w[d, e]))",
        lambda w, x, s: _batched(x, w, s), "r",
    ),
    "pair": RecurrenceCase(
        "w : T[d, d]; x : T[t, r, d]",
        "scan t {\n"
        "g[t, r, d] = sigmoid(x[t, r, d] + sum[e = 5](h[t - 1, r, e, outside = 1] * w[e, d]))\n"
        "c[t, r, d] = g[t, r, d] * c[t - 1, r, d, outside = 0] + x[t, r, d]\n"
        "h[t, r, d] = tanh(c[t, r, d]) - c[t - 1, r, d, outside = 0]\n"
        "}\noutput h, c",
        lambda w, x: _pair(x, w)[::-1], "r",
    ),
    "counted": RecurrenceCase(
        "x : T[t, d]",
        "output h[t, d] = where(x[t, d] > 0, h[t - 1, d, outside = 7] + x[t, d], 0)",
        _count, "d", dtypes=("i32", "i64", "f32"),
    ),
    "largest": RecurrenceCase(
        "x : T[t, d, n]",
        "h[t, d, n] = max(h[t - 1, d, n, outside = -1], x[t, d, n])\noutput y[t, d] = max[n](h[t, d, n])",
        lambda x: np.maximum(np.maximum.accumulate(x, 0), -1).max(2), "d n",
    ),
    "one_step": RecurrenceCase(
        "a : T[1, d]; s : T[d]", "output h[t = 1, d] = h[t - 1, d, outside = s[d]] * a[t, d]", lambda a, s: a * s, "d",
    ),
}  # fmt: skip
