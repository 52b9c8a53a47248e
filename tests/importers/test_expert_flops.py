"""Prefills of mixtures of experts do little more than the work of the experts that tokens pick."""

from __future__ import annotations

from typing import Any

import pytest

from einc.compiler import compile_model
from einc.importers.common import ImportRequest
from einc.options import CompileOptions
from einc.predict.costs import compute_task_costs
from tests.support.import_configs import MIXTRAL, QWEN3_MOE, imported

MIXTRAL_8X7B = MIXTRAL | {
    "hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32, "num_key_value_heads": 8,
    "num_hidden_layers": 2, "vocab_size": 32000, "num_local_experts": 8, "num_experts_per_tok": 2,
    "max_position_embeddings": 32768, "sliding_window": None,
}  # fmt: skip
QWEN3_30B_A3B = QWEN3_MOE | {
    "hidden_size": 2048, "intermediate_size": 6144, "moe_intermediate_size": 768, "num_attention_heads": 32,
    "num_key_value_heads": 4, "head_dim": 128, "num_hidden_layers": 2, "vocab_size": 151936, "num_experts": 128,
    "num_experts_per_tok": 8, "max_position_embeddings": 40960, "sliding_window": None, "use_sliding_window": False,
    "max_window_layers": 48, "attention_bias": False,
}  # fmt: skip
"""The models of these names, with two of their layers."""


def count_active(config: dict[str, Any], tokens: int) -> int:
    """Two operations for each parameter that works on a token, and the causal half of attention."""
    width, heads, kv = (config[name] for name in ("hidden_size", "num_attention_heads", "num_key_value_heads"))
    head = config.get("head_dim") or width // heads
    experts = config.get("num_local_experts") or config["num_experts"]
    each = config.get("moe_intermediate_size", config["intermediate_size"])
    parameters = width * head * (2 * heads + 2 * kv) + width * experts
    parameters += config["num_experts_per_tok"] * 3 * width * each
    attention = 2 * 2 * heads * head * tokens * (tokens + 1) // 2
    layers: int = config["num_hidden_layers"]
    logits: int = 2 * width * config["vocab_size"]
    return layers * (2 * parameters * tokens + attention) + logits


@pytest.mark.sampled(2)
@pytest.mark.parametrize("sites", [1, 8])
@pytest.mark.parametrize("config", [MIXTRAL_8X7B, QWEN3_30B_A3B], ids=["mixtral", "qwen3-moe"])
def test_a_prefill_does_the_work_that_tokens_pick(config: dict[str, Any], sites: int) -> None:
    text = imported(config, ImportRequest(tokens=1024)).text
    options = CompileOptions("dgx-h100", sites, schedule="naive", selector="eindecomp" if sites > 1 else "fastest")
    bundle = compile_model(text, "m.ein", options).bundle
    active = count_active(config, 1024)
    assert active <= sum(cost.flops for cost in compute_task_costs(bundle)) <= 1.25 * active
