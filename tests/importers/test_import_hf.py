"""`einc import hf`: what configurations come to in texts, and what is told."""

from __future__ import annotations

from typing import Any

import pytest

from einc.errors import ModelError
from einc.frontend import build
from einc.graph.decode_step import StepRequest, derive_step
from einc.importers.common import ImportRequest
from einc.importers.hf import find_built_architecture
from tests.support.import_configs import (
    BERT,
    GEMMA,
    GEMMA2,
    GEMMA3,
    LLAMA,
    LONGROPE,
    MISTRAL,
    MIXTRAL,
    OLMO2,
    PHI3,
    QWEN,
    QWEN3,
    QWEN3_MOE,
    faults,
    file_names,
    imported,
    stored_names,
    without,
)

REQUESTS = [
    (LLAMA, ImportRequest()),
    (LLAMA, ImportRequest(batch=3, tokens=5, logits="all")),
    (LLAMA, ImportRequest(batch=2, tokens=20, caches=True)),
    (LLAMA, ImportRequest(tokens=20, logits="all")),
    (LLAMA | {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}, ImportRequest(caches=True)),
    (QWEN3, ImportRequest(batch=2, tokens=5)),
    (QWEN3 | {"attention_bias": True, "tie_word_embeddings": True}, ImportRequest(tokens=20)),
    (PHI3, ImportRequest(batch=2, tokens=5)),
    (PHI3 | {"partial_rotary_factor": 0.75, "tie_word_embeddings": True}, ImportRequest(tokens=20)),
    (PHI3 | {"rope_scaling": LONGROPE, "max_position_embeddings": 512}, ImportRequest(tokens=20)),
    (GEMMA, ImportRequest(batch=2, tokens=5)),
    (GEMMA | {"attention_bias": True, "tie_word_embeddings": False}, ImportRequest(tokens=20)),
    (MIXTRAL, ImportRequest(batch=2, tokens=5)),
    (MIXTRAL | {"dtype": "float64"}, ImportRequest(tokens=20)),
    (QWEN3_MOE, ImportRequest(tokens=20)),
    (
        QWEN3_MOE | {"norm_topk_prob": True, "attention_bias": True, "dtype": "float32"},
        ImportRequest(batch=2, tokens=5),
    ),
    (GEMMA3, ImportRequest(batch=2, tokens=5)),
    (GEMMA3 | {"final_logit_softcapping": 30.0, "rope_scaling": {"rope_type": "linear", "factor": 8.0}},
     ImportRequest(tokens=20)),
    (GEMMA2, ImportRequest(batch=2, tokens=5)),
    (GEMMA2 | {"attn_logit_softcapping": 9, "attention_bias": True}, ImportRequest(tokens=20)),
    (OLMO2, ImportRequest(batch=2, tokens=5)),
    (OLMO2 | {"attention_bias": True, "torch_dtype": "float32"}, ImportRequest(tokens=20)),
    (BERT, ImportRequest(batch=3, segments=True)),
    (BERT, ImportRequest(pool="mean", normalize=True)),
    (BERT, ImportRequest(pool="cls")),
    (BERT | {"architectures": ["BertForMaskedLM"], "tie_word_embeddings": False}, ImportRequest()),
    (BERT | {"architectures": ["BertForSequenceClassification"], "id2label": {"0": "a", "1": "b"}}, ImportRequest()),
    (BERT | {"architectures": ["BertForTokenClassification"], "num_labels": 4}, ImportRequest()),
]  # fmt: skip


@pytest.mark.sampled(6)
@pytest.mark.parametrize(("config", "request_"), REQUESTS)
def test_what_is_written_is_a_model_that_reads_well(config: dict[str, Any], request_: ImportRequest) -> None:
    text = imported(config, request_).text
    graph = build(text, "tiny.ein")
    assert graph.name == "tiny"
    assert graph.outputs[-1] in ("logits", "hidden", "embedding")
    assert max(map(len, text.splitlines())) <= 130
    stored = stored_names(text)
    assert len(set(stored)) == len(stored)
    if "ForCausalLM" in config["architectures"][0]:
        assert derive_step(graph, StepRequest("tokens", 1)).inputs == {"positions": "positions"}


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("config", "request_"), REQUESTS)
def test_files_with_exactly_its_weights_satisfy_an_import(config: dict[str, Any], request_: ImportRequest) -> None:
    text = imported(config, request_).text
    names = file_names(text)
    assert imported(config, request_, names).text == text
    lost = min(names)
    with pytest.raises(ModelError, match="the weight files beside it have no") as caught:
        imported(config, request_, names - {lost})
    assert [lost in d.message for d in caught.value.diagnostics] == [True]


@pytest.mark.parametrize(
    ("kind", "listed", "expected"),
    [
        ("roberta", ["RobertaModel"], "RobertaModel"), ("bert", ["BertForMultipleChoice"], "BertForMultipleChoice"),
        ("roberta", ["RobertaForCausalLM"], None), ("bert", ["BertModel"], None), ("llama", ["LlamaForCausalLM"], None),
        ("vit", None, None), ("vit", [7, "os.path"], None), ("nonsense", ["NonsenseModel"], None), ({}, ["A"], None),
    ],
)  # fmt: skip
def test_transformers_builds_what_has_no_entry(kind: object, listed: object, expected: str | None) -> None:
    assert find_built_architecture({"model_type": kind, "architectures": listed}) == expected


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
        assert "7 elements of each head are rotated" in faults(PHI3 | change)[0]
        return
    graph = build(imported(PHI3 | change).text, "m.ein")
    assert {node.operator.inputs[0].shape[-1] for node in graph.nodes if node.operator.title == "rope"} == {turned}
    assert [node.operator.inputs[0].shape[-1] for node in graph.nodes if node.operator.title == "attention"] == [8] * 3


def test_phi3_longrope_is_that_of_short_texts() -> None:
    config = PHI3 | {"rope_scaling": LONGROPE, "max_position_embeddings": 512}
    graph = build(imported(config, ImportRequest(tokens=64)).text, "m.ein")
    for nodes in (graph.nodes, derive_step(graph, StepRequest("tokens", 1)).graph.nodes):
        found = [node.operator.attributes for node in nodes if node.operator.title == "rope"]
        assert {(a["scaling"], a["factors"]) for a in found} == {("longrope", (1.0, 1.5, 2.0, 4.0))}
        # sqrt(1 + log(512 / 64) / log(64)), rounded to bf16
        assert sum("mul x0 1.2265625" in str(node.operator.attributes) for node in nodes) == 6
    given = LONGROPE | {"attention_factor": 1.0}
    assert "factors=factors)\n" in imported(config | {"rope_scaling": given}, ImportRequest(tokens=64)).text
    with pytest.raises(ModelError, match="are rotated at another rate in texts of more than 64 tokens"):
        imported(config, ImportRequest(tokens=65))


def test_gemma_scales_embeddings_and_keeps_gains_less_one() -> None:
    config = without(GEMMA, "tie_word_embeddings", "head_dim", "num_key_value_heads") | {"num_attention_heads": 16}
    graph = build(imported(config).text, "m.ein")
    assert {tensor.stored for tensor in graph.tensors} == {None, *stored_names(imported(GEMMA).text)}
    attention = next(node.operator for node in graph.nodes if node.operator.title == "attention")
    assert [desc.shape for desc in attention.inputs] == [(16, 64, 256)] * 3
    assert {node.operator.attributes["offset"] for node in graph.nodes if node.operator.title == "rmsnorm"} == {1.0}
    assert [node.operator.title for node in graph.nodes[:2]] == ["gather", "mul"]
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
        imported(QWEN3_MOE | {"norm_topk_prob": flag}).text.count("chances / sum(chances") for flag in (True, False)
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


@pytest.mark.sampled(2)
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
        (
            QWEN3 | {"use_sliding_window": True, "sliding_window": 5, "num_hidden_layers": 7,
                     "layer_types": (["sliding_attention", "full_attention", "full_attention"] * 3)[:7]},
            [5, 0, 0, 5, 0, 0, 5],
        ),
        (
            QWEN | {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1,
                    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]},
            [4, 0, 4],
        ),
        (GEMMA3 | {"layer_types": ["full_attention", "sliding_attention"] * 2}, [0, 7, 0, 7]),
        (GEMMA3 | {"layer_types": ["full_attention"] * 4}, [0, 0, 0, 0]),
        (MISTRAL | {"sliding_window": 7, "layer_types": ["full_attention"] * 3}, [7, 7, 7]),
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
)  # fmt: skip
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


def test_gemma3_rotates_heads_at_two_rates() -> None:
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


def test_some_layers_have_one_mlp_among_those_with_experts() -> None:
    """As `decoder_sparse_step` and `mlp_only_layers` say, whose weights are not those of experts."""
    for change, dense in (({"decoder_sparse_step": 2}, [0, 2]), ({"mlp_only_layers": [1]}, [1])):
        for request in (ImportRequest(), ImportRequest(caches=True)):
            text = imported(QWEN3_MOE | change, request).text
            names = file_names(text)
            assert [n for n in range(3) if f"model.layers.{n}.mlp.gate_proj.weight" in names] == dense
            assert [n for n in range(3) if f"model.layers.{n}.mlp.experts.6.up_proj.weight" not in names] == dense
            assert imported(QWEN3_MOE | change, request, names).text == text
