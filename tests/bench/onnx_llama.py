"""The LLaMA of a plan as an ONNX model of plain operators, as exporters write it: a step of decoding, or a prefill.

    python -m tests.bench.onnx_llama PLAN TARGET

Matrices are stored as `MatMul` takes them, and caches are inputs, to which the keys and values of the new token are
appended. Both runtimes know this form and fuse what they can.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from einc_runtime.dtypes import Array
from einc_runtime.plan.codec import read_bundle
from einc_runtime.plan.schema import Bundle
from tests.bench.inputs import LlamaShape, constants, drawn

OPSET = 17
FLOAT, INT = TensorProto.FLOAT, TensorProto.INT64


@dataclass(slots=True)
class OnnxGraph:
    """Nodes, constants, inputs and outputs under construction; a value is its name."""

    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: list[onnx.TensorProto] = field(default_factory=list)
    inputs: list[onnx.ValueInfoProto] = field(default_factory=list)
    outputs: list[onnx.ValueInfoProto] = field(default_factory=list)

    def add(self, kind: str, *inputs: str, **attributes) -> str:
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(inputs), [name], **attributes))
        return name

    def constant(self, array: Array) -> str:
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.ascontiguousarray(array), name))
        return name

    def input(self, name: str, kind: int, shape: tuple[int, ...]) -> str:
        self.inputs.append(helper.make_tensor_value_info(name, kind, shape))
        return name

    def output(self, value: str, name: str, shape: tuple[int, ...]) -> None:
        self.nodes.append(helper.make_node("Identity", [value], [name]))
        self.outputs.append(helper.make_tensor_value_info(name, FLOAT, shape))

    def reshape(self, value: str, *shape: int) -> str:
        return self.add("Reshape", value, self.constant(np.array(shape, np.int64)))

    def norm(self, x: str, gain: Array, eps: float) -> str:
        square = self.add("Pow", x, self.constant(np.float32(2)))
        mean = self.add("ReduceMean", square, axes=[-1], keepdims=1)
        root = self.add("Sqrt", self.add("Add", mean, self.constant(np.float32(eps))))
        return self.add(
            "Mul", self.add("Mul", x, self.add("Div", self.constant(np.float32(1)), root)), self.constant(gain)
        )

    def project(self, x: str, weight: Array, rows: int) -> str:
        """`x` times the transpose of a weight, of which the first `rows` elements in all are rows of the result."""
        return self.add("MatMul", x, self.constant(weight.reshape(rows, -1).T))


def build_model(bundle: Bundle) -> onnx.ModelProto:
    """Inputs: `ids` and `last`, or `ids` and the caches `keys.0` and so on; the first output is `logits`."""
    s, g = LlamaShape.of(bundle), OnnxGraph()
    w = {
        name: array.astype(np.float32) if array.dtype.kind not in "ib" else array
        for name, array in drawn(bundle).items()
    }
    numbers = constants(bundle)
    d_model, vocab = w["table"].shape[1], w["head"].shape[0]
    tokens = s.batch * s.tokens
    x = g.add("Gather", g.constant(w["table"]), g.input("ids", INT, (tokens,)))
    first = s.cache - 1 if s.cache else 0
    places = np.tile(np.arange(first, first + s.tokens), 1)[:, None]
    angles = places * numbers["theta"] ** (-np.arange(0, s.d_head, 2) / s.d_head)
    turn = [g.constant(f(angles).astype(np.float32)) for f in (np.cos, np.sin)]
    for i in range(s.layers):
        own = {name.rpartition(".")[2]: array for name, array in w.items() if name.startswith(f"layer.{i}.")}
        x = _layer(g, s, x, own, turn, i, numbers)
    x = g.norm(x, w["g_last"], numbers["eps"])
    if not s.cache:
        x = g.add("Gather", x, g.input("last", INT, (s.batch,)))
    logits = g.project(x, w["head"], vocab)
    g.nodes.append(helper.make_node("Identity", [logits], ["logits"]))
    g.outputs.insert(0, helper.make_tensor_value_info("logits", FLOAT, (s.batch, vocab)))
    graph = helper.make_graph(g.nodes, "llama", g.inputs, g.outputs, g.constants)
    assert d_model == w["g_last"].size
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=9)


def _layer(
    g: OnnxGraph, s: LlamaShape, x: str, w: dict[str, Array], turn: list[str], number: int, numbers: dict[str, float]
) -> str:
    tokens, d_model = s.batch * s.tokens, w["g_attn"].size
    h = g.norm(x, w["g_attn"], numbers["eps"])

    def heads(weight: Array, count: int) -> str:
        flat = g.project(h, weight, count * s.d_head)
        return g.add("Transpose", g.reshape(flat, s.batch, s.tokens, count, s.d_head), perm=[0, 2, 1, 3])

    def rope(value: str) -> str:
        one, other = (f"{value}_{n}" for n in range(2))
        g.nodes.append(helper.make_node("Split", [value], [one, other], axis=3))
        left = g.add("Sub", g.add("Mul", one, turn[0]), g.add("Mul", other, turn[1]))
        right = g.add("Add", g.add("Mul", other, turn[0]), g.add("Mul", one, turn[1]))
        return g.add("Concat", left, right, axis=3)

    q, k, v = rope(heads(w["w_q"], s.heads)), rope(heads(w["w_k"], s.heads_kv)), heads(w["w_v"], s.heads_kv)
    seen = s.tokens
    if s.cache:
        seen, past = s.cache, (s.batch, s.heads_kv, s.cache - 1, s.d_head)
        k, v = (
            g.add("Concat", g.input(f"{name}.{number}", FLOAT, past), value, axis=2)
            for name, value in (("keys", k), ("values", v))
        )
    for name, value in (("new_keys", k), ("new_values", v)):
        g.output(value, f"{name}.{number}", (s.batch, s.heads_kv, seen, s.d_head))
    group = s.heads // s.heads_kv
    q = g.reshape(q, s.batch, s.heads_kv, group * s.tokens, s.d_head)
    scores = g.add("MatMul", q, g.add("Transpose", k, perm=[0, 1, 3, 2]))
    scores = g.add("Mul", scores, g.constant(np.float32(s.d_head**-0.5)))
    if s.tokens > 1:
        hidden = np.triu(np.full((s.tokens, s.tokens), -np.inf, np.float32), 1)
        scores = g.add("Add", scores, g.constant(np.tile(hidden, (group, 1))))
    a = g.reshape(g.add("MatMul", g.add("Softmax", scores, axis=-1), v), s.batch, s.heads, s.tokens, s.d_head)
    a = g.reshape(g.add("Transpose", a, perm=[0, 2, 1, 3]), tokens, s.heads * s.d_head)
    r = g.add("Add", x, g.project(a, w["w_o"], d_model))
    n = g.norm(r, w["g_mlp"], numbers["eps"])
    gate, up = (g.project(n, w[name], w[name].shape[0]) for name in ("w_gate", "w_up"))
    f = g.add("Mul", g.add("Mul", gate, g.add("Sigmoid", gate)), up)
    return g.add("Add", r, g.project(f, w["w_down"], d_model))


def main(plan: str, target: str) -> None:
    onnx.save(build_model(read_bundle(plan)), target)


if __name__ == "__main__":
    main(*sys.argv[1:])
