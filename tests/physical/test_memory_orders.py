"""Orders in memory: what attention asks for, how far a wish is handed on, and whom it does not concern."""

from __future__ import annotations

from einc.compiler import compile_model
from einc.core.tensor import DType, TensorDesc
from einc.frontend import build
from einc.graph.builder import GraphBuilder
from einc.ops import registry
from einc.options import CompileOptions
from einc.physical.records import find_memory_orders

BY_TOKENS = (1, 0, 2)

TEXT = """
model m
dim tokens = 6; dim heads = 4; dim groups = 2; dim width = 8; dim d = 10
input  x : f32[tokens, d]
weight wq : f32[heads, width, d]
weight bq : f32[heads, width]
weight wk : f32[groups, width, d]
weight wo : f32[d, heads, width]
q[heads, tokens, width]  = x[tokens, d] * wq[heads, width, d]
b = q + bq
k[groups, tokens, width] = x[tokens, d] * wk[groups, width, d]
r = rope(b, theta=100.0, seq_lens=[6])
a = attention(r, k, k, causal=true, seq_lens=[6])
s = silu(a)
y[tokens, d] = s[heads, tokens, width] * wo[d, heads, width]
output y
"""


def test_operands_and_results_lie_by_tokens_and_so_does_what_maps_them():
    orders = find_memory_orders(build(TEXT, "m.ein"))
    assert orders == dict.fromkeys(("q", "b", "k", "r", "a", "s"), BY_TOKENS)


def test_what_is_saved_or_loaded_lies_as_it_stands():
    orders = find_memory_orders(build(TEXT.replace("output y", "output y, b"), "m.ein"))
    assert orders == dict.fromkeys(("k", "r", "a", "s"), BY_TOKENS)  # and q is not reached beyond b


def test_nobody_else_wishes_anything():
    graph = build("model m\ndim n = 4\ninput x : f32[n, n]\nz = exp(x)\ny = matmul(z, x)\noutput y", "m.ein")
    assert find_memory_orders(graph) == {}


def test_a_tensor_that_is_also_keys_keeps_one_wish():
    builder = GraphBuilder("m")
    builder.input("x", TensorDesc(("heads", "tokens", "width"), (2, 3, 4), DType.F32))
    (h,) = builder.apply(registry.call("exp", [builder.desc("x")], {}), ["x"], ["h"])
    attention = registry.call("attention", [builder.desc(h)] * 3, {"seq_lens": (3,)})
    builder.apply(attention, [h] * 3, ["a", "lse"])
    builder.save("a")
    assert find_memory_orders(builder.build()) == {"h": BY_TOKENS}


def test_plans_say_how_their_tensors_lie():
    compiled = compile_model(TEXT, "m.ein", CompileOptions(machine="host", devices=2))
    orders = {tensor.name: tensor.order for tensor in compiled.bundle.tensors if tensor.order}
    assert orders == find_memory_orders(compiled.graph)
    assert BY_TOKENS in orders.values()
