"""`einc import hf`: what configurations come to, what is told, and configurations that nobody should trust."""

from __future__ import annotations

import json
import random
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from paced import within

from einc.cli.main import main
from einc.errors import ModelError, UsageError
from einc.frontend import build
from einc.frontend.parser import parse
from einc.frontend.printer import print_model
from einc.importers.hf import import_hf
from einc.importers.request import Imported, Request

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 97, "hidden_size": 48,
    "intermediate_size": 60, "num_hidden_layers": 3, "num_attention_heads": 6, "num_key_value_heads": 2,
    "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu",
    "torch_dtype": "float16", "attention_bias": False, "mlp_bias": False, "tie_word_embeddings": False,
}  # fmt: skip
QWEN3: dict[str, Any] = {name: value for name, value in LLAMA.items() if name != "mlp_bias"} | {
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "head_dim": 12, "use_sliding_window": False,
    "sliding_window": None, "max_window_layers": 3,
}  # fmt: skip
PHI3: dict[str, Any] = {name: value for name, value in LLAMA.items() if name != "torch_dtype"} | {
    "architectures": ["Phi3ForCausalLM"], "model_type": "phi3", "dtype": "bfloat16", "sliding_window": 7,
    "original_max_position_embeddings": 64, "resid_pdrop": 0.0, "embd_pdrop": 0.0,
}  # fmt: skip
LONGROPE = {"type": "longrope", "short_factor": [1, 1.5, 2, 4], "long_factor": [1, 2, 3, 9]}
GEMMA: dict[str, Any] = {name: value for name, value in LLAMA.items() if name not in ("mlp_bias", "hidden_act")} | {
    "architectures": ["GemmaForCausalLM"], "model_type": "gemma", "head_dim": 10, "hidden_act": "gelu",
    "hidden_activation": None, "tie_word_embeddings": True,
}  # fmt: skip
MIXTRAL: dict[str, Any] = {name: value for name, value in PHI3.items() if not name.endswith("pdrop")} | {
    "architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "num_local_experts": 5,
    "num_experts_per_tok": 3, "router_aux_loss_coef": 0.02, "output_router_logits": False,
}  # fmt: skip
del MIXTRAL["original_max_position_embeddings"], MIXTRAL["attention_bias"], MIXTRAL["mlp_bias"]
QWEN3_MOE: dict[str, Any] = QWEN3 | {
    "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "num_experts": 7, "num_experts_per_tok": 2,
    "moe_intermediate_size": 20, "norm_topk_prob": False, "decoder_sparse_step": 1, "mlp_only_layers": [],
}  # fmt: skip
GEMMA3: dict[str, Any] = {name: value for name, value in GEMMA.items() if name != "hidden_act"} | {
    "architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text", "hidden_activation": "gelu_pytorch_tanh",
    "num_hidden_layers": 4, "sliding_window": 7, "sliding_window_pattern": 3, "query_pre_attn_scalar": 16,
    "rope_theta": 1e6, "rope_local_base_freq": 1e4, "attn_logit_softcapping": None, "final_logit_softcapping": None,
}  # fmt: skip
GEMMA2: dict[str, Any] = {
    name: value
    for name, value in GEMMA3.items()
    if name.partition("_")[2] not in ("window_pattern", "local_base_freq", "logit_softcapping")
} | {"architectures": ["Gemma2ForCausalLM"], "model_type": "gemma2", "sliding_window_size": 7, "rope_theta": 1e4}
OLMO2: dict[str, Any] = {name: value for name, value in LLAMA.items() if name != "mlp_bias"} | {
    "architectures": ["Olmo2ForCausalLM"],
    "model_type": "olmo2",
}
BERT: dict[str, Any] = {
    "architectures": ["BertModel"], "model_type": "bert", "vocab_size": 97, "hidden_size": 48, "intermediate_size": 60,
    "num_hidden_layers": 3, "num_attention_heads": 6, "max_position_embeddings": 64, "type_vocab_size": 2,
    "layer_norm_eps": 1e-12, "hidden_act": "gelu", "torch_dtype": "float32",
}  # fmt: skip


def imported(
    config: dict[str, Any] | bytes, request: Request | None = None, stored: frozenset[str] | None = None
) -> Imported:
    data = config if isinstance(config, bytes) else json.dumps(config).encode()
    return import_hf(data, "config.json", "tiny", request or Request(), stored)


def faults(config: dict[str, Any] | bytes, stored: frozenset[str] | None = None) -> list[str]:
    """What is wrong with a configuration, which must be something."""
    with pytest.raises(ModelError) as caught:
        imported(config, stored=stored)
    return [diagnostic.render() for diagnostic in caught.value.diagnostics]


def stored_names(text: str) -> list[str]:
    """What weights are called in files, all tensors of the model one after the other."""
    return [tensor.stored for tensor in build(text, "m.ein").tensors if tensor.stored is not None]


def file_names(text: str) -> frozenset[str]:
    """The names of the tensors in files, of which a weight may take a part, or several."""
    tensors = [tensor for tensor in build(text, "m.ein").tensors if tensor.stored is not None]
    counts = {str(tensor.stored): tensor.desc.shape[0] for tensor in tensors}
    names = {name.replace("*", str(k)) for name, count in counts.items() for k in range(count if "*" in name else 1)}
    return frozenset(re.sub(r"\[\d+:\d+\]$", "", name) for name in names)


def without(config: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in config.items() if name not in names}


REQUESTS = [
    (LLAMA, Request()),
    (LLAMA, Request(batch=3, tokens=5, logits="all")),
    (LLAMA, Request(batch=2, decode=True, cache=20)),
    (LLAMA, Request(decode=True, cache=20, tokens=4)),
    (LLAMA | {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}, Request(decode=True)),
    (QWEN3, Request(batch=2, tokens=5)),
    (QWEN3 | {"attention_bias": True, "tie_word_embeddings": True}, Request(decode=True, cache=20)),
    (PHI3, Request(batch=2, tokens=5)),
    (PHI3 | {"partial_rotary_factor": 0.75, "tie_word_embeddings": True}, Request(decode=True, cache=20)),
    (PHI3 | {"rope_scaling": LONGROPE, "max_position_embeddings": 512}, Request(decode=True, cache=20)),
    (GEMMA, Request(batch=2, tokens=5)),
    (GEMMA | {"attention_bias": True, "tie_word_embeddings": False}, Request(decode=True, cache=20)),
    (MIXTRAL, Request(batch=2, tokens=5)),
    (MIXTRAL | {"dtype": "float64"}, Request(decode=True, cache=20)),
    (QWEN3_MOE, Request(decode=True, cache=20)),
    (QWEN3_MOE | {"norm_topk_prob": True, "attention_bias": True, "dtype": "float32"}, Request(batch=2, tokens=5)),
    (GEMMA3, Request(batch=2, tokens=5)),
    (GEMMA3 | {"final_logit_softcapping": 30.0, "rope_scaling": {"rope_type": "linear", "factor": 8.0}},
     Request(decode=True, cache=20)),
    (GEMMA2, Request(batch=2, tokens=5)),
    (GEMMA2 | {"attn_logit_softcapping": 9, "attention_bias": True}, Request(decode=True, cache=20)),
    (OLMO2, Request(batch=2, tokens=5)),
    (OLMO2 | {"attention_bias": True, "torch_dtype": "float32"}, Request(decode=True, cache=20)),
    (BERT, Request(batch=3, segments=True)),
    (BERT, Request(pool="mean", normalize=True)),
    (BERT, Request(pool="cls")),
    (BERT | {"architectures": ["BertForMaskedLM"], "tie_word_embeddings": False}, Request()),
    (BERT | {"architectures": ["BertForSequenceClassification"], "id2label": {"0": "a", "1": "b"}}, Request()),
    (BERT | {"architectures": ["BertForTokenClassification"], "num_labels": 4}, Request()),
]  # fmt: skip


@pytest.mark.parametrize(("config", "request_"), REQUESTS)
def test_what_is_written_is_a_model_that_reads_well(config: dict[str, Any], request_: Request) -> None:
    text = imported(config, request_).text
    graph = build(text, "tiny.ein")
    assert graph.name == "tiny"
    assert graph.outputs[-1] in ("logits", "hidden", "embedding")
    assert max(map(len, text.splitlines())) <= 130
    model = parse(text, "tiny.ein")
    assert parse(print_model(model), "tiny.ein") == model
    stored = stored_names(text)
    assert len(set(stored)) == len(stored)


@pytest.mark.parametrize(("config", "request_"), REQUESTS)
def test_files_with_exactly_its_weights_satisfy_an_import(config: dict[str, Any], request_: Request) -> None:
    text = imported(config, request_).text
    names = file_names(text)
    assert imported(config, request_, names).text == text
    lost = min(names)
    with pytest.raises(ModelError, match="the weight files beside it have no") as caught:
        imported(config, request_, names - {lost})
    assert [lost in d.message for d in caught.value.diagnostics] == [True]


def test_published_llama_names() -> None:
    stored = {tensor.stored for tensor in build(imported(LLAMA).text, "m.ein").tensors}
    assert {
        "model.embed_tokens.weight", "model.norm.weight", "lm_head.weight", "model.layers.2.self_attn.q_proj.weight",
        "model.layers.0.mlp.down_proj.weight", "model.layers.1.post_attention_layernorm.weight",
    } <= stored  # fmt: skip
    tied = {tensor.stored for tensor in build(imported(LLAMA | {"tie_word_embeddings": True}).text, "m.ein").tensors}
    assert stored - tied == {"lm_head.weight"}


def test_qwen3_normalizes_heads_before_it_turns_them() -> None:
    graph = build(imported(QWEN3 | {"rms_norm_eps": 0.25}).text, "m.ein")
    plain = {tensor.stored for tensor in build(imported(LLAMA).text, "m.ein").tensors}
    norms = {f"model.layers.{i}.self_attn.{x}_norm.weight" for i in range(3) for x in "qk"}
    assert {tensor.stored for tensor in graph.tensors} - plain == norms
    made_by = {node.outputs[0]: node for node in graph.nodes}
    turned = [made_by[node.inputs[0]] for node in graph.nodes if node.operator.title == "rope"]
    assert [node.operator.title for node in turned] == ["rmsnorm"] * 6
    assert {node.operator.attributes["eps"] for node in turned} == {0.25}
    assert [node.operator.inputs[1].shape for node in turned] == [(12,)] * 6
    biased = {tensor.stored for tensor in build(imported(QWEN3 | {"attention_bias": True}).text, "m.ein").tensors}
    assert biased - plain - norms == {f"model.layers.{i}.self_attn.{x}_proj.bias" for i in range(3) for x in "qkvo"}


def test_phi3_takes_its_projections_of_fused_tensors() -> None:
    text = imported(PHI3 | {"num_hidden_layers": 1}).text
    at = "model.layers.0."
    assert file_names(text) == {
        "model.embed_tokens.weight", "model.norm.weight", "lm_head.weight", f"{at}input_layernorm.weight",
        f"{at}post_attention_layernorm.weight", f"{at}self_attn.qkv_proj.weight", f"{at}self_attn.o_proj.weight",
        f"{at}mlp.gate_up_proj.weight", f"{at}mlp.down_proj.weight",
    }  # fmt: skip
    parts = [tensor for tensor in build(text, "m.ein").tensors if tensor.stored and tensor.stored.endswith("]")]
    assert [(part.stored, part.desc.shape) for part in parts] == [
        (f"{at}self_attn.qkv_proj.weight[0:48]", (6, 8, 48)),
        (f"{at}self_attn.qkv_proj.weight[48:64]", (2, 8, 48)),
        (f"{at}self_attn.qkv_proj.weight[64:80]", (2, 8, 48)),
        (f"{at}mlp.gate_up_proj.weight[0:60]", (60, 48)),
        (f"{at}mlp.gate_up_proj.weight[60:120]", (60, 48)),
    ]


@pytest.mark.parametrize(
    ("change", "turned"),
    [
        ({}, 8),
        ({"partial_rotary_factor": 0.5}, 4),
        ({"partial_rotary_factor": 0.99}, 7),
        ({"rope_parameters": {"rope_theta": 10000.0, "partial_rotary_factor": 0.25}}, 2),
    ],
)
def test_phi3_may_turn_a_part_of_each_head(change: dict[str, Any], turned: int) -> None:
    if turned % 2:
        assert "7 elements of each head are turned" in faults(PHI3 | change)[0]
        return
    graph = build(imported(PHI3 | change).text, "m.ein")
    assert {node.operator.inputs[0].shape[-1] for node in graph.nodes if node.operator.title == "rope"} == {turned}
    assert [node.operator.inputs[0].shape[-1] for node in graph.nodes if node.operator.title == "attention"] == [8] * 3


def test_phi3_longrope_is_that_of_short_texts() -> None:
    config = PHI3 | {"rope_scaling": LONGROPE, "max_position_embeddings": 512}
    for text in (imported(config, Request(tokens=64)).text, imported(config, Request(decode=True, cache=64)).text):
        nodes = build(text, "m.ein").nodes
        found = [node.operator.attributes for node in nodes if node.operator.title == "rope"]
        assert {(a["scaling"], a["factors"]) for a in found} == {("longrope", (1.0, 1.5, 2.0, 4.0))}
        # sqrt(1 + log(512 / 64) / log(64)), rounded to bf16
        assert sum("mul x0 1.2265625" in str(node.operator.attributes) for node in nodes) == 6
    given = LONGROPE | {"attention_factor": 1.0}
    assert "factors=factors)\n" in imported(config | {"rope_scaling": given}, Request(tokens=64)).text
    for request in (Request(tokens=65), Request(decode=True, cache=65)):
        with pytest.raises(ModelError, match="turn at another pace in texts of more than 64 tokens"):
            imported(config, request)


def test_gemma_scales_embeddings_and_keeps_gains_less_one() -> None:
    config = without(GEMMA, "tie_word_embeddings", "head_dim", "num_key_value_heads") | {"num_attention_heads": 16}
    graph = build(imported(config).text, "m.ein")
    assert {tensor.stored for tensor in graph.tensors} == {None, *stored_names(imported(GEMMA).text)}
    attention = next(node.operator for node in graph.nodes if node.operator.title == "attention")
    assert [desc.shape for desc in attention.inputs] == [(16, 64, 256)] * 3
    assert {node.operator.attributes["offset"] for node in graph.nodes if node.operator.title == "rmsnorm"} == {1.0}
    assert [node.operator.title for node in graph.nodes[:2]] == ["embedding", "mul"]
    assert "mul x0 6.9296875" in str(graph.nodes[1].operator.attributes)
    assert {node.operator.title for node in graph.nodes} >= {"gelu_tanh"}


def test_experts_are_many_stored_tensors_and_the_router_is_wide() -> None:
    text = imported(MIXTRAL | {"num_hidden_layers": 1}).text
    at = "model.layers.0.block_sparse_moe."
    mlp = {tensor.stored: tensor.desc for tensor in build(text, "m.ein").tensors if "moe" in str(tensor.stored)}
    assert {name: (str(desc.dtype), desc.shape) for name, desc in mlp.items()} == {
        f"{at}gate.weight": ("f32", (5, 48)),
        f"{at}experts.*.w1.weight": ("bf16", (5, 60, 48)),
        f"{at}experts.*.w3.weight": ("bf16", (5, 60, 48)),
        f"{at}experts.*.w2.weight": ("bf16", (5, 48, 60)),
    }
    assert {name for name in file_names(text) if "moe" in name} == {
        f"{at}gate.weight", *(f"{at}experts.{k}.w{n}.weight" for k in range(5) for n in (1, 2, 3))
    }  # fmt: skip
    assert "mlp.experts.*.gate_proj.weight" in imported(QWEN3_MOE).text
    shared = [
        imported(QWEN3_MOE | {"norm_topk_prob": flag}).text.count("picked / sum(picked") for flag in (True, False)
    ]
    assert shared == [1, 0]
    saved = without(QWEN3_MOE, "num_experts") | {"num_local_experts": 7}  # as transformers 5 writes it
    assert imported(saved).text == imported(QWEN3_MOE).text


def test_defaults_are_those_of_the_family() -> None:
    """What `Qwen3Config()` and `Qwen2Config()` of transformers have."""

    def keys(config: dict[str, Any]) -> tuple[int, ...]:
        tensors = build(imported(config).text, "m.ein").tensors
        return next(t.desc.shape for t in tensors if t.stored == "model.layers.0.self_attn.k_proj.weight")

    assert keys(without(QWEN3, "head_dim")) == (2, 128, 48)
    heads = {"num_attention_heads": 64, "hidden_size": 512, "head_dim": 6}
    for config in (QWEN, QWEN3):
        assert keys(without(config, "num_key_value_heads") | heads) == (32, 6, 512)
        assert keys(config | heads | {"num_key_value_heads": None}) == (64, 6, 512)


def test_names_follow_the_files_where_publishers_differ() -> None:
    def names(text: str) -> frozenset[str]:
        return frozenset(t.stored for t in build(text, "m.ein").tensors if t.stored is not None)

    plain = names(imported(BERT).text)
    for spelled in (
        {f"bert.{name}" for name in plain},
        {n.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta") for n in plain},
    ):
        found = names(imported(BERT, stored=frozenset(spelled)).text)
        assert found == spelled


def test_every_default_is_told() -> None:
    told = ("rms_norm_eps", "hidden_act", "num_key_value_heads", "tie_word_embeddings", "rope_theta", "torch_dtype")
    notes = "\n".join(imported(without(LLAMA, *told)).notes)
    for name in ("rms_norm_eps", "hidden_act", "num_key_value_heads", "tie_word_embeddings", "rope_theta", "dtype"):
        assert f"{name} is not given" in notes
    assert imported(LLAMA, stored=_names(LLAMA)).notes == ()


def _names(config: dict[str, Any]) -> frozenset[str]:
    graph = build(imported(config).text, "m.ein")
    return frozenset(tensor.stored for tensor in graph.tensors if tensor.stored is not None)


MISTRAL = without(LLAMA, "attention_bias", "mlp_bias") | {
    "model_type": "mistral",
    "architectures": ["MistralForCausalLM"],
}
QWEN = without(LLAMA, "attention_bias", "mlp_bias") | {"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"]}


@pytest.mark.parametrize(
    ("config", "windows"),
    [
        (MISTRAL | {"sliding_window": 7}, [7, 7, 7]),
        (MISTRAL | {"sliding_window": None}, [0, 0, 0]),
        (MISTRAL, [4096] * 3),
        (PHI3, [7, 7, 7]),
        (without(PHI3, "sliding_window"), [0, 0, 0]),
        (QWEN | {"use_sliding_window": False, "sliding_window": 7}, [0, 0, 0]),
        (QWEN | {"use_sliding_window": True, "sliding_window": 7, "max_window_layers": 1}, [0, 7, 7]),
        (QWEN | {"use_sliding_window": True, "sliding_window": 7, "max_window_layers": 9}, [0, 0, 0]),
        (QWEN | {"use_sliding_window": True, "sliding_window": None, "max_window_layers": 0}, [0, 0, 0]),
        (QWEN3 | {"layer_types": ["full_attention"] * 3}, [0, 0, 0]),
        (MIXTRAL, [7, 7, 7]),
        (MIXTRAL | {"sliding_window": None}, [0, 0, 0]),
        (GEMMA2, [7, 0, 7, 0]),
        (GEMMA3, [7, 7, 0, 7]),
        (GEMMA3 | {"sliding_window_pattern": 1}, [0, 0, 0, 0]),
        (without(GEMMA3, "sliding_window_pattern") | {"num_hidden_layers": 7}, [7, 7, 7, 7, 7, 0, 7]),
        (
            without(GEMMA3, "sliding_window_pattern") | {"layer_types": ["sliding_attention", "full_attention"] * 2},
            [7, 0, 7, 0],
        ),
        (without(GEMMA3, "sliding_window_pattern") | {"layer_types": ["sliding_attention"] * 4}, [7, 7, 7, 7]),
        (QWEN3_MOE | {"sliding_window": 5}, [0, 0, 0]),
        (QWEN3_MOE | {"use_sliding_window": True, "sliding_window": 5}, [5, 5, 5]),
        (QWEN3 | {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 2}, [0, 0, 5]),
    ],
)
def test_sliding_windows(config: dict[str, Any], windows: list[int]) -> None:
    graph = build(imported(config).text, "m.ein")
    found = [node.operator.attributes["window"] for node in graph.nodes if node.operator.title == "attention"]
    assert found == windows


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, {"scaling": "linear", "factor": 2.0}),
        ({"rope_theta": None, "rope_parameters": {"rope_theta": 77.0}}, {"scaling": "none", "theta": 77.0}),
        (
            {"rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                              "original_max_position_embeddings": 32}},
            {"scaling": "llama3", "factor": 8.0, "original_length": 32},
        ),
    ],
)  # fmt: skip
def test_rotary_scaling(change: dict[str, Any], expected: dict[str, Any]) -> None:
    graph = build(imported(LLAMA | change).text, "m.ein")
    attributes = next(node.operator.attributes for node in graph.nodes if node.operator.title == "rope")
    assert {name: attributes[name] for name in expected} == expected


def test_gemma3_turns_heads_at_two_paces() -> None:
    old = GEMMA3 | {"rope_scaling": {"rope_type": "linear", "factor": 8.0}}
    new = without(GEMMA3, "rope_theta", "rope_local_base_freq") | {
        "rope_parameters": {"full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
                            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}},
    }  # fmt: skip
    for config in (old, new):
        nodes = build(imported(config).text, "m.ein").nodes
        found = [node.operator.attributes for node in nodes if node.operator.title == "rope"]
        near, far = (1e4, 1.0), (1e6, 8.0)
        assert [(a["theta"], a["factor"]) for a in found] == [near, near, near, near, far, far, near, near]
        assert {node.operator.attributes["scale"] for node in nodes if node.operator.title == "attention"} == {0.25}
    plain = build(imported(GEMMA3).text, "m.ein").nodes
    assert [node.operator.attributes["scaling"] for node in plain if node.operator.title == "rope"] == ["none"] * 8


@pytest.mark.parametrize(
    ("change", "scores", "logits"),
    [
        ({}, 50.0, 30.0),
        ({"attn_logit_softcapping": None, "final_logit_softcapping": 4.0}, None, 4.0),
        ({"attn_logit_softcapping": 7, "final_logit_softcapping": None}, 7.0, None),
    ],
)
def test_gemma2_caps_scores_and_logits(change: dict[str, Any], scores: float | None, logits: float | None) -> None:
    text = imported(GEMMA2 | change).text
    nodes = build(text, "m.ein").nodes
    attention = [node.operator.attributes for node in nodes if node.operator.title == "attention"]
    assert {a.get("softcap") for a in attention} == {scores}
    assert ("logits = " in text) == (logits is not None)
    assert logits is None or f"logits = {logits} * tanh(raw / {logits})" in text


def test_norms_stand_where_the_family_has_them() -> None:
    def norms(config: dict[str, Any]) -> tuple[int, int]:
        text = imported(config | {"num_hidden_layers": 1}).text
        nodes = build(text, "m.ein").nodes
        named = [name for name in stored_names(text) if "norm" in name]
        return len(named), sum(node.operator.title == "rmsnorm" for node in nodes)

    assert norms(LLAMA) == (3, 3)
    assert norms(QWEN3) == (5, 5)
    assert norms(GEMMA2) == (5, 5)
    assert norms(GEMMA3) == (7, 7)
    assert norms(OLMO2) == (5, 3)  # those of all heads together are sums and products


FAULTS: dict[str, tuple[dict[str, Any], str]] = {
    "missing": (without(LLAMA, "hidden_size"), "hidden_size is missing"),
    "null": (LLAMA | {"hidden_size": None}, "hidden_size is missing"),
    "zero": (LLAMA | {"num_hidden_layers": 0}, "num_hidden_layers: expected an integer from 1"),
    "negative": (LLAMA | {"vocab_size": -5}, "vocab_size: expected an integer"),
    "absurd": (LLAMA | {"hidden_size": 10**40}, "more than 30 digits"),
    "many layers": (LLAMA | {"num_hidden_layers": 10**9}, "num_hidden_layers: expected an integer from 1 to 1,000"),
    "text": (LLAMA | {"hidden_size": "48"}, "hidden_size: expected an integer, found"),
    "float": (LLAMA | {"hidden_size": 48.0}, "hidden_size: expected an integer, found 48.0"),
    "truth": (LLAMA | {"num_hidden_layers": True}, "expected an integer, found true"),
    "list": (LLAMA | {"vocab_size": [97]}, "found a list of 1 items"),
    "heads": (LLAMA | {"num_key_value_heads": 4}, "expected a multiple of the 4 num_key_value_heads, found 6"),
    "width": (LLAMA | {"hidden_size": 50}, "expected a multiple of the 6 num_attention_heads"),
    "odd heads": (LLAMA | {"head_dim": 7}, "rotary embedding turns pairs"),
    "eps": (LLAMA | {"rms_norm_eps": 0}, "rms_norm_eps: expected a number above 0"),
    "activation": (LLAMA | {"hidden_act": "quick_gelu"}, 'hidden_act: "quick_gelu" is not supported'),
    "dtype": (LLAMA | {"torch_dtype": "float8_e4m3fn"}, 'dtype: "float8_e4m3fn" is not supported'),
    "rope": (LLAMA | {"rope_scaling": {"type": "yarn", "factor": 4.0}}, 'rope_type "yarn" is not supported'),
    "rope field": (LLAMA | {"rope_scaling": {"type": "linear", "factor": 4.0, "beta": 1}}, "beta: unknown field"),
    "rope text": (LLAMA | {"rope_scaling": "linear"}, "rope_scaling: expected an object or null"),
    "two thetas": (LLAMA | {"rope_parameters": {"rope_theta": 77.0}}, "rope_theta stands twice"),
    "rope order": (
        LLAMA | {"rope_scaling": {"type": "llama3", "factor": 8, "low_freq_factor": 4, "high_freq_factor": 1,
                                  "original_max_position_embeddings": 32}},
        "low_freq_factor below",
    ),
    "partial rope": (LLAMA | {"partial_rotary_factor": 0.5}, "partial_rotary_factor: 0.5 is not supported"),
    "long rope": (PHI3 | {"rope_scaling": LONGROPE | {"short_factor": [1.0, 2.0]}},
                  "short_factor: expected a list of 4 numbers above 0"),
    "no factor": (PHI3 | {"rope_scaling": LONGROPE | {"short_factor": [1, 2, 0, 4]}}, "expected a list of 4 numbers"),
    "another scaling": (PHI3 | {"rope_scaling": LONGROPE | {"short_mscale": 1.2}}, "short_mscale: unknown field"),
    "two origins": (PHI3 | {"rope_scaling": LONGROPE | {"original_max_position_embeddings": 32}},
                    "original_max_position_embeddings stands twice: 64 and 32"),
    "long rope of others": (LLAMA | {"rope_scaling": LONGROPE}, 'rope_type "longrope" is not supported'),
    "two parts": (PHI3 | {"partial_rotary_factor": 0.5, "rope_scaling": {"partial_rotary_factor": 0.25}},
                  "partial_rotary_factor stands twice: 0.5 and 0.25"),
    "none of a head": (PHI3 | {"partial_rotary_factor": 0.1}, "0 elements of each head are turned"),
    "more than a head": (PHI3 | {"partial_rotary_factor": 2}, "partial_rotary_factor: expected a number"),
    "fused biases": (PHI3 | {"attention_bias": True}, "attention_bias: true is not supported: in a phi3 "),
    "other activation": (GEMMA | {"hidden_activation": "gelu"}, 'hidden_activation: "gelu" is not supported: in a '),
    "both directions": (GEMMA | {"use_bidirectional_attention": True}, "use_bidirectional_attention: true is not"),
    "quantized": (LLAMA | {"quantization_config": {"bits": 4}}, "an object of 1 fields is not supported: quantized"),
    "unknown": (LLAMA | {"logit_scale": 0.1}, "logit_scale: unknown field, 0.1"),
    "misspelt": (without(LLAMA, "hidden_act") | {"hiden_act": "silu"}, "did you mean 'hidden_act'?"),
    "architecture": (LLAMA | {"architectures": ["GPT2LMHeadModel"]}, '"GPT2LMHeadModel" is not supported'),
    "architectures": (LLAMA | {"architectures": ["LlamaForCausalLM", "X"]}, "expected a list of one name"),
    "no architecture": (LLAMA | {"architectures": []}, "expected a list of one name"),
    "other family": (LLAMA | {"model_type": "mistral"}, "model_type: expected 'llama'"),
    "no kind": (without(LLAMA, "model_type", "architectures"), "model_type and architectures are missing"),
    "kind": (without(LLAMA, "architectures") | {"model_type": ["llama"]}, "model_type: a list"),
    "nothing": ({}, "model_type and architectures are missing"),
    "a number for a truth": (BERT | {"is_decoder": 0}, "is_decoder: 0 is not supported"),
    "decoder": (BERT | {"is_decoder": True}, "is_decoder: true is not supported: "),
    "positions": (BERT | {"position_embedding_type": "relative_key"}, "position_embedding_type: "),
    "few positions": (BERT | {"max_position_embeddings": 4, "vocab_size": None}, "vocab_size is missing"),
    "layer types": (
        QWEN | {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1,
                "layer_types": ["sliding_attention"] * 3},
        "layer_types: ",
    ),
    "layer types without a window": (QWEN3 | {"layer_types": ["sliding_attention"] * 3}, "layer_types: "),
    "odd layer types": (QWEN3 | {"layer_types": {"0": "full_attention"}}, "layer_types: an object of 1 fields"),
    "experts": (QWEN3 | {"num_experts": 128}, "num_experts: unknown field"),
    "norms of heads": (QWEN3 | {"architectures": ["Qwen3NextForCausalLM"]}, '"Qwen3NextForCausalLM" is not supported'),
    "other experts": (QWEN3 | {"architectures": ["Qwen3MoeForCausalLM"]}, "model_type: expected 'qwen3_moe'"),
    "many picks": (MIXTRAL | {"num_experts_per_tok": 6}, "expected at most the 5 num_local_experts"),
    "two counts": (MIXTRAL | {"num_experts": 6}, "num_local_experts: 5 is not supported: num_experts says 6"),
    "a pattern of its own": (GEMMA3 | {"layer_types": ["sliding_attention", "full_attention"] * 2}, "layer_types: "),
    "no pattern": (GEMMA3 | {"layer_types": ["full_attention"] * 2 + ["sliding_attention"] * 2}, "layer_types: a list"),
    "no window": (GEMMA3 | {"sliding_window": None}, "sliding_window: null is not supported"),
    "two windows": (GEMMA2 | {"sliding_window_size": 8}, "sliding_window_size: 8 is not supported: "),
    "negative cap": (GEMMA2 | {"attn_logit_softcapping": -1.0}, "attn_logit_softcapping: expected a number above 0"),
    "capped scores": (GEMMA3 | {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping: 50.0 is not supported"),
    "scaled local layers": (
        GEMMA3 | {"rope_parameters": {"sliding_attention": {"rope_type": "linear", "factor": 2.0}}},
        'rope_type: "linear" is not supported: local layers are not scaled',
    ),
    "unknown paces": (GEMMA3 | {"rope_scaling": {"type": "yarn", "factor": 4.0}}, 'rope_type "yarn" is not supported'),
    "three paces": (GEMMA3 | {"rope_parameters": {"chunked_attention": {}}}, "chunked_attention: unknown field"),
    "scales of scores": (OLMO2 | {"query_pre_attn_scalar": 7}, "query_pre_attn_scalar: unknown field"),
    "some without": (QWEN3_MOE | {"mlp_only_layers": [0]}, "mlp_only_layers: a list of 1 items is not supported"),
    "every other": (QWEN3_MOE | {"decoder_sparse_step": 2}, "decoder_sparse_step: 2 is not supported"),
    "biases of experts": (QWEN3 | {"mlp_bias": True}, "mlp_bias: unknown field"),
    "odd width": (QWEN3 | {"head_dim": 13}, "rotary embedding turns pairs"),
    "terminal": (LLAMA | {"\x1b[2Jfield": "\x1b]0;x\x07"}, "\\x1b[2Jfield: unknown field"),
}  # fmt: skip


@pytest.mark.parametrize("case", FAULTS)
def test_configurations_that_cannot_be_are_refused(case: str) -> None:
    config, message = FAULTS[case]
    found = faults(config)
    assert any(message in line for line in found), found
    assert all(line.isprintable() or "\n" in line for line in found)
    assert all(len(line) < 400 for line in found)


def test_everything_wrong_is_told_at_once() -> None:
    config = without(LLAMA, "vocab_size") | {"hidden_act": "x", "logit_scale": 2, "num_attention_heads": "many"}
    text = "\n".join(faults(config))
    for name in ("vocab_size", "hidden_act", "logit_scale", "num_attention_heads"):
        assert name in text


NO_OBJECTS = {
    "empty": b"",
    "list": b"[1]",
    "null": b"null",
    "python": b"{'a': 1}",
    "cut off": json.dumps(LLAMA).encode()[:-5],
    "not a number": b'{"hidden_size": NaN}',
    "infinity": b'{"hidden_size": -Infinity}',
    "twice": b'{"hidden_size": 1, "hidden_size": 2}',
    "bytes": b"\xff\xfe\x00",
    "NUL": b"\0" * 100,
    "deep lists": b'{"a": ' + b"[" * 200_000,
    "deep objects": b'{"a":' * 100_000,
    "deep and whole": b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "digits": b'{"a": ' + b"9" * 100_000 + b"}",
    "large": b'{"a": "' + b"x" * 5_000_000 + b'"}',
}


@pytest.mark.parametrize("case", NO_OBJECTS)
def test_what_is_no_configuration_is_one_error(case: str) -> None:
    (line,) = faults(NO_OBJECTS[case])
    assert line.startswith("config.json: this is no configuration: ")
    assert len(line) < 200
    assert case != "large" or "it holds more than 4 MiB" in line


def test_infinite_numbers_and_many_fields_are_bounded() -> None:
    assert "rms_norm_eps: expected a number" in faults(json.dumps(LLAMA).replace("1e-05", "1e999").encode())[0]
    with within(20):
        assert len(faults(LLAMA | {f"field_{k}": k for k in range(20_000)})) == 51


def test_random_damage_never_ends_in_anything_but_findings() -> None:
    source = random.Random(5)
    values = [None, True, -1, 0, 1, 3, 2**70, 1.5, "x", "", [], {}, [1, "a"], {"type": "linear"}, "\ud800"]
    for base in (LLAMA, MISTRAL, QWEN, QWEN3, PHI3, GEMMA, MIXTRAL, QWEN3_MOE, GEMMA2, GEMMA3, OLMO2, BERT):
        for _ in range(60):
            config = dict(base)
            for name in source.sample(sorted(base), 3):
                config[name] = source.choice(values)
            try:
                text = imported(config).text
            except ModelError as error:
                error.render()
            else:
                build(text, "m.ein")


def test_unknown_fields_may_be_left_out_of_account() -> None:
    config = LLAMA | {"logit_scale": 2, "other": 1}
    found = imported(config, Request(ignored=("logit_scale", "other")))
    assert "config.json: logit_scale is ignored, as asked" in found.notes
    with pytest.raises(ModelError, match="other: unknown"):
        imported(config, Request(ignored=("logit_scale",)))


def test_options_that_mean_nothing_are_wrong_usage() -> None:
    for config, request in ((LLAMA, Request(pool="mean")), (BERT, Request(decode=True)), (BERT, Request(logits="all"))):
        with pytest.raises(UsageError, match=f"means nothing for a {config['architectures'][0]}$"):
            imported(config, request)


@pytest.mark.parametrize(
    ("config", "request_", "message"),
    [
        (LLAMA, Request(decode=True, cache=3, tokens=4), "cannot take 4 new tokens"),
        (BERT, Request(tokens=65), "more than its max_position_embeddings"),
        (BERT | {"architectures": ["BertForMaskedLM"]}, Request(pool="mean"), "only a BertModel is pooled"),
    ],
)
def test_requests_that_a_model_cannot_meet(config: dict[str, Any], request_: Request, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        imported(config, request_)


# -- the command --


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "Model 7B"
    made.mkdir()
    (made / "config.json").write_text(json.dumps(LLAMA))
    return made


def test_the_command(folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "m.ein"
    assert main(["import", "hf", str(folder), "-o", str(target), "--tokens", "5"]) == 0
    out, err = capfd.readouterr()
    assert out == ""
    assert "there are no weights beside it" in err
    assert build(target.read_text(), "m.ein").name == "model_7b"
    assert main(["import", "hf", str(folder), "-o", str(target), "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["model"] == str(target)
    assert main(["import", "hf", str(folder), "-o", "-"]) == 0
    assert build(capfd.readouterr().out, "m.ein").outputs[-1] == "logits"


def test_the_command_fails_as_it_should(folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    def code(*arguments: object) -> int:
        result = main(["import", "hf", *map(str, arguments), "-o", str(tmp_path / "m.ein")])
        error = capfd.readouterr().err
        assert "Traceback" not in error
        assert error.startswith("einc: ")
        return result

    assert code(tmp_path / "nowhere") == 2
    assert code(tmp_path) == 2
    assert code(folder / "config.json") == 2
    assert code(folder, "--logits", "all", "--decode") == 2
    assert code(folder, "--pool", "mean") == 2
    assert code(folder, "--tokens", "0") == 2
    (folder / "model.safetensors").write_bytes(b"\xff" * 100)
    assert code(folder) == 65
    (folder / "model.safetensors").unlink()
    safetensors.numpy.save_file({"x": np.zeros(3)}, folder / "model.safetensors")
    assert code(folder) == 65
    (folder / "model.safetensors").unlink()
    (folder / "config.json").write_text(json.dumps(LLAMA | {"vocab_size": "many"}))
    assert code(folder) == 65
    (folder / "config.json").unlink()
    (folder / "config.json").mkdir()
    assert code(folder) == 74
    assert not (tmp_path / "m.ein").exists()


def test_numbers_that_are_too_large_together_are_the_configurations_fault(
    folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (folder / "config.json").write_text(json.dumps(LLAMA | {"hidden_size": 6 * 2**21, "vocab_size": 2**31}))
    assert main(["import", "hf", str(folder), "-o", str(tmp_path / "m.ein"), "--batch", "1000000"]) in (0, 65)
    (folder / "config.json").write_text(json.dumps(LLAMA | {"num_hidden_layers": 400}))
    with within(60):
        assert main(["import", "hf", str(folder), "-o", str(tmp_path / "m.ein")]) in (0, 65)
    assert "Traceback" not in capfd.readouterr().err


def test_code_in_a_folder_is_never_run(folder: Path, tmp_path: Path) -> None:
    (folder / "config.json").write_text(json.dumps(LLAMA | {"auto_map": {"AutoModel": "modeling_x.X"}}))
    (folder / "modeling_x.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    program = str(Path(sys.executable).with_name("einc"))
    subprocess.run([program, "import", "hf", folder, "-o", tmp_path / "m.ein"], check=True, capture_output=True)
    assert not (tmp_path / "ran").exists()
