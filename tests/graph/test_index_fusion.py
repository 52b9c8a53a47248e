"""Elementwise operators and index programs become one, with the same results; what would compute more stays apart."""

from __future__ import annotations

import numpy as np
import pytest

from einc.frontend import build
from einc.graph.fuse import fuse
from tests.support.definition_oracle import random_array
from tests.support.graph_interpreter import interpret

HEAD = """model m
dim a = 5
dim b = 4
dim t = 6
dim e = 3
dim s = 2
input x : T[a, b]
input z : T[a, b]
input ids : i64[t]
input row : T[b]
input experts : T[e, b, a]
input picks : i64[a, s]
"""

FUSED: dict[str, tuple[str, int]] = {
    # statements, and how many operators are left
    "before": ("h = relu(x) * 2.0\ny[i = 5, b] = h[(i + 2) % 5, b]", 1),
    "behind": ('h = roll(x, "a", 1)\ny = relu(h) + z', 1),
    "transposed behind": ("h[i = 5, b] = x[4 - i, b]\ny[q, p] = h[p, q] * row[q] - z[p, q]", 1),
    "both": ('y = exp(roll(x + z, "b", 1)) * row', 1),
    "two index programs": ('h = flip(x, "a")\ny = tril(h) + triu(z)', 3),
    "a mask": ("h = x * 0.5\ny[p, q] = where(q <= p, h[p, q], -1.0)", 1),
    "rows at data": ("h[t, b] = x[ids[t], b]\ny = h * row + 1.0", 2),
    "computed rows": ("h = x + z\ny[t, b] = h[ids[t] % 5, b]", 2),
    "positions behind": ("h[t, b] = x[ids[t], b]\ny[p, t, q = 2] = h[t, p] * 2.0", 2),
    "read twice": ("h = x - z\ny[i = 4, b] = h[i + 1, b] - h[i, b]", 2),
    "a window": ("h = relu(x)\ny[i = 5, b] = sum[k = 3](h[i + k - 1, b, outside = 0])", 2),
    "outside": ('h = x + 1.0\ny = pad(h, "a", 1)', 2),
    "more often": ("h = x + z\ny[a, r = 3, b] = h[a, b]", 2),
    "saved": ('h = x + z\ny = flip(h, "a")\noutput h', 2),
    "transposed experts": ('y = expert_matmul(x, transpose(experts, "e", "a", "b"), picks)', 1),
    "of 16 bits": ("h = x * z\ny[i = 5, b] = where(h[4 - i, b] > 0.25, 1.0, cast(i, \"T\"))", 1),
}  # fmt: skip


@pytest.mark.parametrize("dtype", ["f32", "f16"])
@pytest.mark.parametrize("name", FUSED)
def test_the_fused_graph_computes_the_same(name: str, dtype: str) -> None:
    statements, left = FUSED[name]
    graph = build((HEAD + statements + "\noutput y\n").replace("T[", f"{dtype}[").replace('"T"', f'"{dtype}"'), "m.ein")
    fused = fuse(graph)
    assert len(fused.nodes) == left, [node.operator.title for node in fused.nodes]
    rng = np.random.default_rng(len(name))
    arrays = {t.name: random_array(t.desc, rng) for t in graph.tensors if t.kind.value == "input"}
    arrays["ids"], arrays["picks"] = np.array([3, 0, 4, 4, 1, 2]), np.arange(10).reshape(5, 2) % 3
    expected, result = interpret(graph, arrays)["y"], interpret(fused, arrays)["y"]
    tolerance = 1e-6 if dtype == "f32" else 4e-3
    assert result.shape == expected.shape
    assert np.abs(result.astype("f8") - expected.astype("f8")).max() <= tolerance * np.abs(expected.astype("f8")).max()
