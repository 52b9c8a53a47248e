"""Small models with random weights, made and run by transformers: odd shapes that no number of sites divides."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import numpy as np
import torch
import transformers

torch.set_num_threads(1)  # the tests beside this one have the other cores

Array = np.ndarray[Any, np.dtype[Any]]

_LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}  # fmt: skip

DECODERS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {}),
    "llama-scaled": (
        "Llama",
        {"rope_parameters": _LLAMA3, "head_dim": 10, "attention_bias": True, "mlp_bias": True,
         "tie_word_embeddings": True, "hidden_act": "gelu_pytorch_tanh"},
    ),
    "llama-linear": ("Llama", {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 3.0}}),
    "mistral": ("Mistral", {"sliding_window": 5, "head_dim": 10}),
    "qwen2": ("Qwen2", {"tie_word_embeddings": True}),
    "qwen2-window": ("Qwen2", {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1}),
    "qwen3": ("Qwen3", {"head_dim": 14}),
    "qwen3-window": (
        "Qwen3",
        {"head_dim": 10, "attention_bias": True, "tie_word_embeddings": True, "use_sliding_window": True,
         "sliding_window": 4, "max_window_layers": 1},
    ),
}  # fmt: skip
FURTHER: dict[str, tuple[str, dict[str, Any]]] = {
    "phi3-partial": (
        "Phi3",
        {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5},
         "sliding_window": 5, "pad_token_id": None},
    ),
    "phi3-long": (
        "Phi3",
        {"rope_parameters": {"rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.5, 2.25],
                             "long_factor": [3.0, 9.0], "partial_rotary_factor": 1.0},
         "original_max_position_embeddings": 40, "pad_token_id": None},
    ),
    "gemma": (
        "Gemma", {"head_dim": 10, "num_key_value_heads": 1, "attention_bias": True, "tie_word_embeddings": False},
    ),
    "mixtral": (
        "Mixtral",
        {"num_local_experts": 5, "num_experts_per_tok": 2, "sliding_window": 5, "intermediate_size": 13,
         "experts_implementation": "eager"},
    ),
    "qwen3-moe": (
        "Qwen3Moe",
        {"num_experts": 7, "num_experts_per_tok": 3, "moe_intermediate_size": 11, "head_dim": 10,
         "attention_bias": True, "experts_implementation": "eager"},
    ),
    "gemma2": (
        "Gemma2",
        {"head_dim": 10, "num_hidden_layers": 3, "sliding_window": 4, "query_pre_attn_scalar": 7,
         "attn_logit_softcapping": 0.9, "final_logit_softcapping": 3.0, "tie_word_embeddings": False,
         "attn_implementation": "eager"},
    ),
    "gemma3": (
        "Gemma3Text",
        {"head_dim": 10, "num_hidden_layers": 4, "sliding_window": 4, "query_pre_attn_scalar": 7,
         "sliding_window_pattern": 3, "final_logit_softcapping": 3.0, "tie_word_embeddings": False,
         "rope_parameters": {
             "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
             "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
         }},
    ),
    "olmo2": ("Olmo2", {"attention_bias": True, "pad_token_id": None}),
    "qwen3-interleaved": (
        "Qwen3",
        {"head_dim": 10, "num_hidden_layers": 4, "use_sliding_window": True, "sliding_window": 4,
         "layer_types": ["sliding_attention", "full_attention", "full_attention", "sliding_attention"],
         "rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}},
    ),
    "qwen3-moe-dense": (
        "Qwen3Moe",
        {"num_hidden_layers": 4, "num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 11,
         "head_dim": 10,
         "decoder_sparse_step": 2, "mlp_only_layers": [3], "experts_implementation": "eager",
         "rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4, "factor": 2.0,
                             "original_max_position_embeddings": 32}},
    ),
}  # fmt: skip
"""Families that differ from those in a few places, which are compared in small sizes."""
ENCODERS = {
    "bert": "BertModel",
    "bert-words": "BertForMaskedLM",
    "bert-sequences": "BertForSequenceClassification",
    "bert-tokens": "BertForTokenClassification",
}
SIZES = {
    "vocab_size": 97, "hidden_size": 96, "intermediate_size": 115, "num_hidden_layers": 6, "num_attention_heads": 12,
    "max_position_embeddings": 128,
}  # fmt: skip
SMALL = {
    "vocab_size": 41, "hidden_size": 24, "intermediate_size": 35, "num_hidden_layers": 2, "num_attention_heads": 6,
    "max_position_embeddings": 64,
}  # fmt: skip


def make(name: str, folder: Path, sizes: dict[str, int] = SIZES) -> Any:
    """Makes a model, saves it as published models are, and returns it ready to run; the name seeds its weights."""
    torch.manual_seed(sum(name.encode()))
    if name in DECODERS or name in FURTHER:
        family, changes = DECODERS.get(name) or FURTHER[name]
        heads_kv = sizes["num_attention_heads"] // 3
        config = getattr(transformers, f"{family}Config")(**{**sizes, "num_key_value_heads": heads_kv, **changes})
        model = getattr(transformers, f"{family.removesuffix('Text')}ForCausalLM")(config)
    else:
        config = transformers.BertConfig(**sizes, num_labels=5)
        model = getattr(transformers, ENCODERS[name])(config)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn_like(parameter)
            parameter.copy_(noise * 0.2 if parameter.dim() > 1 else parameter + noise * 0.2)
    model.eval()
    model.save_pretrained(folder)
    return model


def logits(model: Any, **inputs: Array) -> Array:
    """What a model with a head gives, for inputs as numpy arrays."""
    with torch.no_grad():
        values: Array = model(**{name: torch.tensor(array) for name, array in inputs.items()}).logits.numpy()
    return values


def greedy(model: Any, prompt: list[int], count: int) -> list[int]:
    """The next tokens by recomputing everything for each of them."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(int(logits(model, input_ids=np.array([tokens]))[0, -1].argmax()))
    return tokens[len(prompt) :]
