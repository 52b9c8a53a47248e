"""Configurations that nobody should trust, and requests that cannot be met: findings, all at once, in bounded time."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from einc.errors import ModelError, UsageError
from einc.frontend import build
from einc.importers.common import ImportRequest
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
    imported,
    without,
)
from tests.support.paced import within

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
    "list": (LLAMA | {"vocab_size": [97]}, "found a list of 1 item"),
    "heads": (LLAMA | {"num_key_value_heads": 4}, "expected a multiple of the 4 num_key_value_heads, found 6"),
    "width": (LLAMA | {"hidden_size": 50}, "expected a multiple of the 6 num_attention_heads"),
    "odd heads": (LLAMA | {"head_dim": 7}, "rotary embedding rotates pairs"),
    "eps": (LLAMA | {"rms_norm_eps": 0}, "rms_norm_eps: expected a number above 0"),
    "activation": (LLAMA | {"hidden_act": "quick_gelu"}, 'hidden_act: "quick_gelu" is not supported'),
    "dtype": (LLAMA | {"torch_dtype": "float8_e4m3fn"}, 'dtype: "float8_e4m3fn" is not supported'),
    "rope": (LLAMA | {"rope_scaling": {"type": "su2", "factor": 4.0}}, 'rope_type "su2" is not supported'),
    "rope field": (LLAMA | {"rope_scaling": {"type": "linear", "factor": 4.0, "beta_fast": 1}}, "beta_fast: unknown"),
    "no factor of rope": (LLAMA | {"rope_scaling": {"type": "dynamic"}}, "rope_scaling: factor is missing"),
    "yarn": (LLAMA | {"rope_theta": 1.0, "rope_scaling": {"type": "yarn", "factor": 4.0}}, "a rope_theta above 1"),
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
    "another scaling": (PHI3 | {"rope_scaling": LONGROPE | {"mscale": 1.2}}, "mscale: unknown field"),
    "two origins": (PHI3 | {"rope_scaling": LONGROPE | {"original_max_position_embeddings": 32}},
                    "original_max_position_embeddings stands twice: 64 and 32"),
    "two parts": (PHI3 | {"partial_rotary_factor": 0.5, "rope_scaling": {"partial_rotary_factor": 0.25}},
                  "partial_rotary_factor stands twice: 0.5 and 0.25"),
    "none of a head": (PHI3 | {"partial_rotary_factor": 0.1}, "0 elements of each head are rotated"),
    "more than a head": (PHI3 | {"partial_rotary_factor": 2}, "partial_rotary_factor: expected a number"),
    "both directions": (GEMMA | {"use_bidirectional_attention": True}, "use_bidirectional_attention: true is not"),
    "quantized": (LLAMA | {"quantization_config": {"bits": 4}}, "quant_method is missing"),
    "unknown": (LLAMA | {"mlp_layer_types": ["x"]}, "mlp_layer_types: unknown field, a list of 1 item"),
    "misspelt": (without(LLAMA, "hidden_act") | {"hiden_act": "silu"}, "did you mean 'hidden_act'?"),
    "architecture": (LLAMA | {"architectures": ["GPT2LMHeadModel"]}, '"GPT2LMHeadModel" is not supported'),
    "architectures": (LLAMA | {"architectures": ["LlamaForCausalLM", 3]}, "expected a list of names"),
    "no architecture": (LLAMA | {"architectures": []}, "expected a list of names"),
    "other family": (LLAMA | {"model_type": "mistral"}, "model_type: expected 'llama'"),
    "no kind": (without(LLAMA, "model_type", "architectures"), "model_type and architectures are missing"),
    "kind": (without(LLAMA, "architectures") | {"model_type": ["llama"]}, "model_type: a list"),
    "nothing": ({}, "model_type and architectures are missing"),
    "a number for a truth": (BERT | {"is_decoder": 0}, "is_decoder: 0 is not supported"),
    "decoder": (BERT | {"is_decoder": True}, "is_decoder: true is not supported: "),
    "positions": (BERT | {"position_embedding_type": "relative_key"}, "position_embedding_type: "),
    "few positions": (BERT | {"max_position_embeddings": 4, "vocab_size": None}, "vocab_size is missing"),
    "layer types": (QWEN3 | {"layer_types": ["chunked_attention"] * 3}, '"chunked_attention" is not supported'),
    "few layer types": (GEMMA3 | {"layer_types": ["full_attention"] * 3}, "layer_types: expected 4, as "),
    "layer types without a window": (QWEN3 | {"layer_types": ["sliding_attention"] * 3}, "layer_types: "),
    "odd layer types": (QWEN3 | {"layer_types": {"0": "full_attention"}}, "layer_types: expected a list of 3 kinds"),
    "norms of heads": (QWEN3 | {"architectures": ["Qwen3NextForCausalLM"]}, '"Qwen3NextForCausalLM" is not supported'),
    "other experts": (QWEN3 | {"architectures": ["Qwen3MoeForCausalLM"]}, "model_type: expected 'qwen3_moe'"),
    "many picks": (MIXTRAL | {"num_experts_per_tok": 6}, "expected at most the 5 num_local_experts"),
    "two counts": (MIXTRAL | {"num_experts": 6}, "num_local_experts: 5 is not supported: num_experts says 6"),
    "no window": (GEMMA3 | {"sliding_window": None}, "sliding_window: null is not supported"),
    "two windows": (GEMMA2 | {"sliding_window_size": 8}, "sliding_window_size: 8 is not supported: "),
    "negative cap": (GEMMA2 | {"attn_logit_softcapping": -1.0}, "attn_logit_softcapping: expected a number above 0"),
    "capped scores": (GEMMA3 | {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping: 50.0 is not supported"),
    "scaled local layers": (
        GEMMA3 | {"rope_parameters": {"sliding_attention": {"rope_type": "linear", "factor": 2.0}}},
        'rope_type: "linear" is not supported: local layers are not scaled',
    ),
    "unknown paces": (GEMMA3 | {"rope_scaling": {"type": "yarn", "factor": 4.0}}, 'rope_type "yarn" is not supported'),
    "no experts": (QWEN3_MOE | {"decoder_sparse_step": 4}, "no layer has experts"),
    "odd layers": (QWEN3_MOE | {"mlp_only_layers": ["1"]}, "mlp_only_layers: expected a list of numbers"),
    "odd width": (QWEN3 | {"head_dim": 13}, "rotary embedding rotates pairs"),
    "terminal": (LLAMA | {"mlp_layer_types": "\x1b]0;x\x07"}, "\\u001b]0;x\\u0007"),
}  # fmt: skip


@pytest.mark.parametrize("case", FAULTS)
def test_configurations_that_cannot_be_are_refused(case: str) -> None:
    config, message = FAULTS[case]
    found = faults(config)
    assert any(message in line for line in found), found
    assert all(line.isprintable() or "\n" in line for line in found)
    assert all(len(line) < 400 for line in found)


def test_everything_wrong_is_told_at_once() -> None:
    config = without(LLAMA, "vocab_size") | {
        "hidden_act": "x",
        "rotary": 2,
        "mlp_layer_types": [],
        "num_attention_heads": "many",
    }
    text = "\n".join(faults(config))
    for name in ("vocab_size", "hidden_act", "mlp_layer_types", "num_attention_heads"):
        assert name in text


NO_OBJECTS = {
    "empty": b"",
    "list": b"[1]",
    "null": b"null",
    "python": b"{'a': 1}",
    "cut off": json.dumps(LLAMA).encode()[:-5],
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
    assert "the number 1e999 is too large" in faults(json.dumps(LLAMA).replace("1e-05", "1e999").encode())[0]
    with within(20):
        notes = imported(LLAMA | {f"field_{k}": k for k in range(20_000)}).notes
    assert "field_9 and 19990 more" in notes[-2]
    assert len(notes[-2]) < 300


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
    config = LLAMA | {"mlp_layer_types": [2], "rope_scaling": {"type": "linear", "factor": 2.0, "beta_fast": 3}}
    notes = imported(config, ImportRequest(ignored=("mlp_layer_types", "beta_fast"))).notes
    assert "config.json: mlp_layer_types is ignored, as asked" in notes
    assert "config.json: rope_scaling: beta_fast is ignored, as asked" in notes
    with pytest.raises(ModelError, match="beta_fast: unknown"):
        imported(config, ImportRequest(ignored=("mlp_layer_types",)))


def test_fields_that_nobody_reads_change_nothing() -> None:
    """Fields of SmolLM2, of tools that train and quantize, and numbers that are none."""
    plain = imported(LLAMA | {"head_dim": 32, "rope_scaling": {"type": "linear", "factor": 2.0}})
    config = LLAMA | {"is_llama_config": True, "rope_interleaved": False, "unsloth_fixed": True, "head_dim": 32,
                      "transformers.js_config": {"dtype": "q4"}, "loss": float("nan"), "best": float("-inf"),
                      "rope_scaling": {"type": "linear", "factor": 2.0, "finetuned": True}}  # fmt: skip
    marked = imported(json.dumps(config).encode())
    assert marked.text == plain.text
    assert [note for note in marked.notes if note not in plain.notes] == [
        "config.json: rope_scaling: passed over, as transformers reads no such field: finetuned",
        "config.json: passed over, as transformers reads no such fields: is_llama_config, rope_interleaved, "
        "unsloth_fixed, transformers.js_config, loss, best",
    ]
    for config, field in ((PHI3, {"attention_bias": True}), (GEMMA, {"hidden_activation": "gelu"})):
        assert imported(config | field).text == imported(config).text  # transformers reads neither of them
    assert "expected an integer, found nan" in faults(b'{"hidden_size": NaN, "model_type": "llama"}')[0]


def test_of_several_architectures_the_known_one_is_imported() -> None:
    config = LLAMA | {"architectures": ["MyModel", "LlamaForCausalLM"], "dtype": "auto", "torch_dtype": None}
    assert "float32" in "".join(imported(config).notes)
    assert imported(config).architecture == "LlamaForCausalLM"


def test_options_that_mean_nothing_are_wrong_usage() -> None:
    for config, request in (
        (LLAMA, ImportRequest(pool="mean")),
        (BERT, ImportRequest(caches=True)),
        (BERT, ImportRequest(logits="all")),
    ):
        with pytest.raises(UsageError, match=f"means nothing for a {config['architectures'][0]}($|\n)"):
            imported(config, request)


@pytest.mark.parametrize(
    ("config", "request_", "message"),
    [
        (BERT, ImportRequest(tokens=65), "more than its max_position_embeddings"),
        (BERT | {"architectures": ["BertForMaskedLM"]}, ImportRequest(pool="mean"), "only a BertModel is pooled"),
    ],
)
def test_requests_that_a_model_cannot_meet(config: dict[str, Any], request_: ImportRequest, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        imported(config, request_)
