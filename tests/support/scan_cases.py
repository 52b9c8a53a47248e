"""Scans: texts of models with odd extents, and what their outputs are in plain numpy, step after step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from einc.compiler import Compiled
from einc.frontend import build
from einc.graph.blocked_scans import block_scans
from einc.graph.fuse import fuse
from einc.logical.pins import parse_pin
from einc.options import CompileOptions
from einc_runtime.plan.codec import decode, encode
from einc_runtime.plan.schema import Bundle

Array = np.ndarray[Any, np.dtype[Any]]
Expected = Callable[[Mapping[str, Array]], dict[str, Array]]


def draw_arrays(text: str) -> dict[str, Array]:
    """Arrays for the inputs and weights of a model."""
    rng = np.random.default_rng(6)
    return {
        tensor.name: rng.normal(0, 0.7, tensor.desc.shape).astype(tensor.desc.dtype.numpy())
        for tensor in build(text, "m.ein").tensors
        if tensor.kind.value != "value"
    }


def scan_linearly(a: Array, b: Array, start: Array | float = 0.0) -> Array:
    """h[t] = a[t] * h[t - 1] + b[t] along the first dimension."""
    h, value = [], np.broadcast_to(np.asarray(start, b.dtype), b.shape[1:])
    for factor, term in zip(np.broadcast_to(a, b.shape), b, strict=True):
        value = factor * value + term
        h.append(value)
    return np.stack(h)


LINEAR = """
dim t = 37; dim d = 3
input a : f32[t, d]; input b : f32[t, d]; input start : f32[d]
h = linear_recurrence(a, b, "t", start = start)
output h
"""

SELECTIVE = """
dim batch = 2; dim t = 29; dim d = 3; dim n = 4
input x : f32[batch, t, d]; input delta : f32[batch, t, d]; input b : f32[batch, t, n]; input c : f32[batch, t, n]
weight a : f32[d, n]; weight skip : f32[d]
y = selective_scan(x, delta, a, b, c, skip)
output y
"""


def select(arrays: Mapping[str, Array]) -> dict[str, Array]:
    x, delta, b, c = (np.moveaxis(arrays[name], 1, 0) for name in ("x", "delta", "b", "c"))
    decay = np.exp(delta[..., None] * arrays["a"])
    h = scan_linearly(decay, (x * delta)[..., None] * b[:, :, None, :])
    y = (h * c[:, :, None, :]).sum(-1) + arrays["skip"] * x
    return {"y": np.moveaxis(y, 0, 1)}


GATED = """
dim t = 23; dim i = 3; dim j = 4
input gate : f32[t, i]; input k : f32[t, i]; input v : f32[t, j]; input q : f32[t, i]
scan t {
    s[t, i, j] = sigmoid(gate[t, i]) * s[t - 1, i, j, outside = 0.5] + k[t, i] * v[t, j]
    o[t, j] = sum[i](q[t, i] * s[t, i, j])
    w[t, i] = where(gate[t, i] > 0.5, k[t, i], -w[t - 1, i, outside = 0] / 2)
}
output o, w
"""


def gate_states(arrays: Mapping[str, Array]) -> dict[str, Array]:
    """A linear attention with gates, and a second value that starts again where a condition holds."""
    gate, k, v, q = (arrays[name] for name in ("gate", "k", "v", "q"))
    s = scan_linearly((1 / (1 + np.exp(-gate)))[..., None], k[..., None] * v[:, None], 0.5)
    resets = gate > 0.5
    w = scan_linearly(np.where(resets, 0, -0.5), np.where(resets, k, 0))
    return {"o": np.einsum("ti,tij->tj", q, s), "w": w}


RUNNING = """
dim rows = 2; dim t = 31
input x : f32[rows, t]
aggregate logaddexp(a, b) { identity -inf; return max(a, b) + log1p(exp(-abs(a - b))) }
s = cumsum(x * 0.5, "t")
m = cummax(x, "t")
p = cumprod(1 + x / 9, "t")
l[rows, i] = logaddexp[k <= i](x[rows, k])
least[rows, i], at[rows, i] = smallest[k <= i](x[rows, k], k)
output s, m, p, l, least, at
"""


def run_on(arrays: Mapping[str, Array]) -> dict[str, Array]:
    x = arrays["x"]
    least = np.minimum.accumulate(x, 1)
    at = np.stack([[int(np.argmin(row[: i + 1])) for i in range(len(row))] for row in x])
    return {
        "s": np.cumsum(x * 0.5, 1),
        "m": np.maximum.accumulate(x, 1),
        "p": np.cumprod(1 + x / 9, 1),
        "l": np.logaddexp.accumulate(x, 1),
        "least": least,
        "at": at,
    }


SCANS: dict[str, tuple[str, Expected]] = {
    "linear": (LINEAR, lambda arrays: {"h": scan_linearly(arrays["a"], arrays["b"], arrays["start"])}),
    "selective": (SELECTIVE, select),
    "gated": (GATED, gate_states),
    "running": (RUNNING, run_on),
}


def compile_blocked(text: str, blocks: int) -> Bundle:
    """A plan of the model in which every scan has so many blocks, and each site computes one."""
    fused = fuse(build(text, "m.ein"))
    graph = block_scans(fused, {node.name: blocks for node in fused.nodes})
    indices = {node.name: {index.name: index.max_intervals for index in node.operator.indices} for node in graph.nodes}
    pins = [parse_pin(f"{name}=block/{blocks}") for name, parts in indices.items() if parts.get("block") == blocks > 1]
    options = CompileOptions(machine="host", devices=blocks, pins=tuple(pins))
    return decode(encode(Compiled(graph, options).bundle))
