"""The models whose steps are predicted: what their published config.json files say of their shapes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

_LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-05,
    "rope_theta": 500000.0,
    "vocab_size": 128256,
}
_QWEN3 = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "attention_bias": False,
    "head_dim": 128,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-06,
    "rope_theta": 1000000.0,
    "vocab_size": 151936,
}
_MIXTRAL = {
    "architectures": ["MixtralForCausalLM"],
    "model_type": "mixtral",
    "num_experts_per_tok": 2,
    "num_key_value_heads": 8,
    "num_local_experts": 8,
    "rms_norm_eps": 1e-05,
    "rope_theta": 1000000.0,
    "vocab_size": 32000,
}
_USUAL = {
    "hidden_act": "silu",
    "max_position_embeddings": 131072,
    "rope_scaling": None,
    "sliding_window": None,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}


def _shape(layers: int, width: int, heads: int, inner: int) -> dict[str, int]:
    return {
        "num_hidden_layers": layers,
        "hidden_size": width,
        "num_attention_heads": heads,
        "intermediate_size": inner,
    }


CONFIGS: dict[str, dict[str, Any]] = {
    "llama-3.1-8b": _USUAL | _LLAMA | _shape(32, 4096, 32, 14336),
    "llama-3.1-70b": _USUAL | _LLAMA | _shape(80, 8192, 64, 28672),
    "qwen3-32b": _USUAL | _QWEN3 | _shape(64, 5120, 64, 25600),
    "mixtral-8x7b": _USUAL | _MIXTRAL | _shape(32, 4096, 32, 14336),
    "llama-2-7b": _USUAL | _LLAMA | _shape(32, 4096, 32, 11008) | {"num_key_value_heads": 32, "vocab_size": 32000},
    "llama-2-70b": _USUAL | _LLAMA | _shape(80, 8192, 64, 28672) | {"vocab_size": 32000},
}
"""Without what changes no time: the scaling of rotations, and the lengths that a model was trained for."""

TITLES = {
    "llama-3.1-8b": "Llama 3.1 8B",
    "llama-3.1-70b": "Llama 3.1 70B",
    "qwen3-32b": "Qwen3 32B",
    "mixtral-8x7b": "Mixtral 8x7B",
    "llama-2-7b": "Llama 2 7B",
    "llama-2-70b": "Llama 2 70B",
}


def write_config(name: str, folder: Path) -> Path:
    """Makes the model's folder within `folder`, with its config.json alone."""
    path = folder / name
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.json").write_text(json.dumps(CONFIGS[name]), encoding="utf-8")
    return path
