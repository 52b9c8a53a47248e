"""Attention over the rows that keys and values are made of: the same results, by smaller caches."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from einc.compiler import compile_model
from einc.frontend import build
from einc.graph.absorbed_products import absorb_products
from einc.graph.decode_step import StepRequest, derive_step
from einc.graph.graph import Graph, TensorKind, verify_graph
from einc.options import CompileOptions
from einc.verification.figures import verify_figures
from tests.support.graph_interpreter import Array, interpret
from tests.support.step_cases import STEP_MODELS

LATENT = """
dim tokens = 7
dim heads = 5
dim d = 4
dim dv = 3
dim low = 2
dim turned = 3
input q : f64[heads, tokens, 7]
input c : f64[tokens, low]
input r : f64[tokens, turned]
weight w_k : f64[low, heads, d]
weight w_v : f64[heads, dv, low]
k[tokens, heads, d] = c[tokens, low] * w_k[low, heads, d]
v[heads, tokens, dv] = c[tokens, low] * w_v[heads, dv, low]
shared[heads: h = heads, tokens: t = tokens, d: e = turned] = r[t, e]
keys = concat(shared, transpose(k, "heads", "tokens", "d"), over="d", into="e")
o, lse = attention(q, keys, v, causal=true, scale=0.7, softcap=9.0)
output o, lse
"""
"""With the shared columns of keys before the others, and a weight for keys and one for values."""


def read(text: str) -> Graph:
    return build("model latent\n" + text, "model.ein", (), None, None)


def draw(graph: Graph) -> dict[str, Array]:
    rng = np.random.default_rng(2)
    return {t.name: rng.standard_normal(t.desc.shape) for t in graph.tensors if t.kind is not TensorKind.VALUE}


def attend(arrays: Mapping[str, Array]) -> Array:
    """The results by their definition, one query after another."""
    q, c, r, w_k, w_v = (arrays[name] for name in ("q", "c", "r", "w_k", "w_v"))
    heads, tokens, _ = q.shape
    o = np.zeros((heads, tokens, w_v.shape[1]))
    for h in range(heads):
        keys = np.concatenate([r, c @ w_k[:, h]], 1)
        for t in range(tokens):
            scores = 9 * np.tanh(0.7 * keys[: t + 1] @ q[h, t] / 9)
            shares = np.exp(scores) / np.exp(scores).sum()
            o[h, t] = shares @ (c[: t + 1] @ w_v[h].T)
    return o


def test_results_stay_what_they_are() -> None:
    graph = read(LATENT)
    absorbed = absorb_products(graph)
    verify_graph(absorbed)
    arrays = draw(graph)
    before, after = interpret(graph, arrays), interpret(absorbed, arrays)
    np.testing.assert_allclose(after["o"], attend(arrays), rtol=1e-12)
    np.testing.assert_allclose(after["lse"], before["lse"], rtol=1e-12)
    assert {node.name for node in absorbed.nodes}.isdisjoint(("k", "v", "keys", "shared"))


@pytest.mark.parametrize(
    ("text", "shape"), [("model latent" + LATENT, (1, 7, 2 + 3)), (STEP_MODELS["latent rows"], (1, 11, 3 + 4))]
)
def test_a_step_keeps_one_row_of_each_token(text: str, shape: tuple[int, ...]) -> None:
    step = derive_step(build(text, "model.ein", (), None, None), StepRequest("tokens", 1)).graph
    assert [t.desc.shape for t in step.tensors if t.kind is TensorKind.STATE] == [shape]


def test_a_plan_counts_the_rows_once() -> None:
    """Of 3 sequences, 4 heads of 7 columns, f32: rows, queries and results, logarithms, and positions of 8 bytes."""
    options = CompileOptions(machine="dgx-h100", devices=1, step=StepRequest("tokens", 1, 3))
    bundle = compile_model(STEP_MODELS["latent rows"], "model.ein", options).bundle
    (attention,) = (operation for operation in bundle.operations if operation.family == "attention")
    assert attention.inputs[1] == attention.inputs[2]
    assert attention.functions[0].traffic == 4 * (3 * 11 * 7 + 2 * 3 * 4 * 7 + 3 * 4) + 8 * 3
    verify_figures(bundle)


@pytest.mark.parametrize(
    ("part", "replacement"),
    [
        ("dim low = 2", "dim low = 14"),  # rows are not so much shorter than keys that wider products are worth it
        ("causal=true, ", ""),  # no step, or one whose keys have no tokens
        ("weight w_v : f64[heads, dv, low]", "input w_v : f64[heads, dv, low]"),  # it may be other numbers in each step
        ("v[heads, tokens, dv] = c[", "v[heads, tokens, dv] = (c + c)["),  # other rows than those of the keys
        ("k[tokens, heads, d] = c[", "k[tokens, heads, d] = 2.0 * c["),
        ("dim heads = 5", "dim heads = 1"),
    ],
)
def test_other_attention_stays(part: str, replacement: str) -> None:
    assert part in LATENT
    graph = read(LATENT.replace(part, replacement))
    assert absorb_products(graph) is graph
