"""The transformers among the models: what the paper says of the block, whole models cut in odd ways, and experts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from einc.compiler import Compiled, compile_model
from einc.frontend import ast
from einc.frontend.parser import parse
from einc.importers.common import ImportRequest
from einc.importers.hf import import_hf
from einc.options import CompileOptions
from einc_runtime.execution.session import Session
from einc_runtime.plan.proof import prove

LLAMA_8B = {
    "architectures": ["LlamaForCausalLM"], "vocab_size": 128256, "hidden_size": 4096, "intermediate_size": 14336,
    "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "rope_theta": 500000.0,
    "rms_norm_eps": 1e-5, "max_position_embeddings": 8192, "dtype": "bfloat16",
}  # fmt: skip
BERT_BASE = {
    "architectures": ["BertModel"], "vocab_size": 30522, "hidden_size": 768, "intermediate_size": 3072,
    "num_hidden_layers": 12, "num_attention_heads": 12,
}  # fmt: skip


def text(name: str) -> str:
    return (Path(__file__).parents[2] / "models" / f"{name}.ein").read_text("utf-8")


def compiled(name: str, machine: str, sites: int, preset: str | None, dtype: str | None = None) -> Compiled:
    # The paper's selector cuts small models, too.
    options = CompileOptions(machine=machine, devices=sites, preset=preset, dtype=dtype, selector="eindecomp")
    return compile_model(text(name), f"{name}.ein", options)


@pytest.mark.parametrize(
    ("name", "config", "request_"),
    [
        ("llama", LLAMA_8B, ImportRequest(batch=8, caches=True)),
        ("bert", BERT_BASE, ImportRequest(batch=32, pool="mean", normalize=True)),
    ],
)
def test_whole_models_are_what_an_import_makes_of_them(
    name: str, config: dict[str, Any], request_: ImportRequest
) -> None:
    def statements(model: str) -> list[ast.Statement]:
        return [s for s in parse(model, name).statements if not isinstance(s, ast.PresetDecl | ast.ModelDecl)]

    imported = import_hf(json.dumps(config).encode(), "config.json", name, request_, None)
    assert statements(text(name)) == statements(imported.text)


def test_the_longest_sequence_is_planned_as_in_the_paper() -> None:
    """Paper, Section 6.2: attention by key/value heads, everything else by tokens, with copies of the weights."""
    bundle = compiled("llama_block", "dgx-a100", 8, "b1x128k").bundle
    for operation in bundle.operations:
        cut = {index.name: len(index.intervals) for index in operation.indices if len(index.intervals) > 1}
        assert cut == ({"heads_kv": 8} if operation.title == "attention" else {"tokens": 8}), operation.name


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("name", "sites"),
    [("llama_block", 5), ("llama", 3), ("llama_decode", 7), ("bert", 5), ("moe", 6), ("convnet", 3), ("mla_block", 3)],
)
def test_cut_models_compute_what_uncut_ones_do(name: str, sites: int) -> None:
    random = np.random.default_rng(sites)
    results = []
    inputs: dict[str, Any] = {}
    for p in (1, sites):
        session = Session(compiled(name, "host", p, "tiny", "f32").bundle, "cpu")
        for tensor in session.inputs:
            if tensor.name in inputs:
                continue
            if tensor.dtype == "i64":
                inputs[tensor.name] = random.integers(0, 9, tensor.shape)
            elif tensor.dtype == "bool":
                inputs[tensor.name] = random.random(tensor.shape) < 0.7
            else:
                inputs[tensor.name] = random.standard_normal(tensor.shape).astype("f4")
        session.load_all(inputs)
        session.load_weights("rand:1")
        session.execute()
        results.append({tensor.name: session.offload(tensor.name) for tensor in session.outputs})
    one, many = results
    for name_, array in one.items():
        assert np.isfinite(array).all()
        np.testing.assert_allclose(many[name_], array, rtol=1e-4, atol=1e-5 * np.abs(array).max())


@pytest.mark.parametrize("sites", [1, 3, 8])
def test_a_mixture_of_experts_token_by_token(sites: int) -> None:
    """Every token through its own experts alone, one after the other, in f64."""
    random = np.random.default_rng(7)
    bundle = compiled("moe", "host", sites, "tiny", "f64").bundle
    prove(bundle)
    session = Session(bundle, "cpu")
    arrays = {t.name: random.standard_normal(t.shape) for t in bundle.tensors if t.kind in ("input", "weight")}
    session.load_all(arrays)
    session.execute()
    x, gain, w_router, w_gate, w_up, w_down = arrays.values()
    expected = x.copy()
    picks = set()
    for token, row in enumerate(x):
        h = row / np.sqrt((row**2).mean() + 1e-5) * gain
        scores = w_router @ h
        best = np.argsort(-scores)[:2]
        shares = np.exp(scores[best]) / np.exp(scores[best]).sum()
        for expert, share in zip(best, shares, strict=True):
            gate = w_gate[expert] @ h
            expected[token] += share * (w_down[expert] @ (gate / (1 + np.exp(-gate)) * (w_up[expert] @ h)))
        picks |= {*best.tolist()}
    assert picks == set(range(5))
    np.testing.assert_allclose(session.offload("y"), expected, rtol=0, atol=1e-12 * np.abs(expected).max())
