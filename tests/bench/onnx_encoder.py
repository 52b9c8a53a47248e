"""The sentence encoder as an ONNX model of plain operators, as exporters write it.

python -m tests.bench.onnx_encoder FOLDER BATCH TOKENS TARGET
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import onnx
from onnx import helper
from safetensors.numpy import load_file

from einc_runtime.dtypes import Array
from tests.bench.onnx_llama import FLOAT, INT, OPSET, OnnxGraph


def build_encoder(folder: Path, batch: int, tokens: int) -> onnx.ModelProto:
    """Inputs: `ids` and `mask`, integers [batch, tokens]; the output is one vector of length 1 for each text."""
    config, w = json.loads((folder / "config.json").read_text()), load_file(folder / "model.safetensors")
    g, eps, width = OnnxGraph(), config["layer_norm_eps"], config["hidden_size"]
    ids, mask = (g.input(name, INT, (batch, tokens)) for name in ("ids", "mask"))
    places = w["embeddings.position_embeddings.weight"][:tokens] + w["embeddings.token_type_embeddings.weight"][0]
    x = g.add("Add", g.add("Gather", g.constant(w["embeddings.word_embeddings.weight"]), ids), g.constant(places))
    x = _normalize(g, x, w, "embeddings.LayerNorm", eps)
    seen = g.add("Cast", mask, to=FLOAT)
    hidden = g.add("Mul", g.add("Sub", g.constant(np.float32(1)), seen), g.constant(np.float32(-1e30)))
    hidden = g.reshape(hidden, batch, 1, 1, tokens)
    heads = config["num_attention_heads"]
    for number in range(config["num_hidden_layers"]):
        own = f"encoder.layer.{number}."

        def split(name: str, order: list[int], x: str = x, own: str = own) -> str:
            flat = _project(g, x, w, f"{own}attention.self.{name}")
            return g.add("Transpose", g.reshape(flat, batch, tokens, heads, width // heads), perm=order)

        q, k, v = split("query", [0, 2, 1, 3]), split("key", [0, 2, 3, 1]), split("value", [0, 2, 1, 3])
        scores = g.add("Div", g.add("MatMul", q, k), g.constant(np.float32((width // heads) ** 0.5)))
        a = g.add("MatMul", g.add("Softmax", g.add("Add", scores, hidden), axis=-1), v)
        a = g.reshape(g.add("Transpose", a, perm=[0, 2, 1, 3]), batch, tokens, width)
        a = g.add("Add", _project(g, a, w, f"{own}attention.output.dense"), x)
        a = _normalize(g, a, w, f"{own}attention.output.LayerNorm", eps)
        f = _gelu(g, _project(g, a, w, f"{own}intermediate.dense"))
        x = g.add("Add", _project(g, f, w, f"{own}output.dense"), a)
        x = _normalize(g, x, w, f"{own}output.LayerNorm", eps)
    weight = g.reshape(seen, batch, tokens, 1)
    axis = g.constant(np.array([1], np.int64))
    total = g.add("ReduceSum", g.add("Mul", x, weight), axis, keepdims=0)
    mean = g.add("Div", total, g.add("ReduceSum", weight, axis, keepdims=0))
    g.output(g.add("Div", mean, g.add("ReduceL2", mean, axes=[-1], keepdims=1)), "vectors", (batch, width))
    graph = helper.make_graph(g.nodes, "encoder", g.inputs, g.outputs, g.constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=9)


def _project(g: OnnxGraph, x: str, w: dict[str, Array], name: str) -> str:
    product = g.add("MatMul", x, g.constant(w[f"{name}.weight"].T))
    return g.add("Add", product, g.constant(w[f"{name}.bias"]))


def _normalize(g: OnnxGraph, x: str, w: dict[str, Array], name: str, eps: float) -> str:
    vectors = [g.constant(w[f"{name}.{part}"]) for part in ("weight", "bias")]
    return g.add("LayerNormalization", x, *vectors, axis=-1, epsilon=eps)


def _gelu(g: OnnxGraph, x: str) -> str:
    half = g.add("Erf", g.add("Div", x, g.constant(np.float32(2**0.5))))
    whole = g.add("Mul", x, g.add("Add", half, g.constant(np.float32(1))))
    return g.add("Mul", whole, g.constant(np.float32(0.5)))


def main(folder: str, batch: str, tokens: str, target: str) -> None:
    onnx.save(build_encoder(Path(folder), int(batch), int(tokens)), target)


if __name__ == "__main__":
    main(*sys.argv[1:])
