"""Small configurations of every family, as publishers write them; what is imported of them, and what is wrong."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from einc.errors import ModelError
from einc.frontend import build
from einc.importers.common import ImportRequest
from einc.importers.hf import ImportedModel, import_hf

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
    config: dict[str, Any] | bytes, request: ImportRequest | None = None, stored: frozenset[str] | None = None
) -> ImportedModel:
    data = config if isinstance(config, bytes) else json.dumps(config).encode()
    return import_hf(data, "config.json", "tiny", request or ImportRequest(), stored)


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


MISTRAL = without(LLAMA, "attention_bias", "mlp_bias") | {
    "model_type": "mistral",
    "architectures": ["MistralForCausalLM"],
}


QWEN = without(LLAMA, "attention_bias", "mlp_bias") | {"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"]}
