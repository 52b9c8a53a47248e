"""Tiny models of transformers from their configuration classes, with weights that are drawn."""

from __future__ import annotations

from typing import Any

import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

SIZES: dict[str, Any] = {
    **dict.fromkeys(("hidden_size", "n_embd", "d_model", "embedding_size", "word_embed_proj_dim"), 32),
    **dict.fromkeys(("attention_hidden_size",), 32),
    **dict.fromkeys(
        ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "decoder_layers", "encoder_layers"), 2
    ),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads"), 4),
    **dict.fromkeys(("decoder_attention_heads", "encoder_attention_heads"), 4),
    **dict.fromkeys(("intermediate_size", "ffn_dim", "decoder_ffn_dim", "encoder_ffn_dim", "d_ff", "n_inner"), 48),
    **dict.fromkeys(("ffn_hidden_size", "d_ffn", "ffn_intermediate_size"), 48),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size", "expert_intermediate_size"), 24),
    **dict.fromkeys(("moe_shared_expert_intermediate_size",), 24),
    **dict.fromkeys(("num_experts", "n_routed_experts", "num_local_experts", "moe_num_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "moe_topk", "num_experts_per_token"), 2),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "n_ctx", "vocab_size"), 64),
    **dict.fromkeys(("vocab_size_per_layer_input",), 64),
    **dict.fromkeys(("head_dim", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "d_kv", "kv_channels"), 8),
    **dict.fromkeys(("global_head_dim", "linear_key_head_dim", "linear_value_head_dim", "index_head_dim"), 8),
    **dict.fromkeys(("hidden_size_per_layer_input",), 8),
    **dict.fromkeys(("q_lora_rank", "kv_lora_rank", "mamba_d_head"), 16),
    **dict.fromkeys(("rotary_dim", "rope_dim", "state_size", "mamba_d_state", "mamba_n_heads", "time_step_rank"), 4),
    **dict.fromkeys(("conv_kernel", "chunk_size", "mamba_chunk_size", "lora_rank", "laurel_rank", "block_size"), 4),
    **dict.fromkeys(("sliding_window", "index_topk"), 4),
    **dict.fromkeys(("linear_num_value_heads", "linear_num_key_heads", "expand"), 2),
    **dict.fromkeys(("index_n_heads",), 16),  # with few, scores of the indexer are equal: 0
    **dict.fromkeys(("n_group", "topk_group", "n_shared_experts", "mamba_n_groups", "n_groups"), 1),
    **dict.fromkeys(("first_k_dense_replace",), 1),
    "num_key_value_heads": 2, "attention_window": [4, 4], "use_cache": False, "is_decoder": True,
    "rescale_every": 0, "pad_token_id": 0, "bos_token_id": 1,
    "eos_token_id": 2,
}  # fmt: skip
"""What fields of configurations are made, where a configuration has them."""

_ROTARY = {"rope_type": "default", "rope_theta": 10000.0}
_HYBRID = {"num_hidden_layers": 4, "layers_block_type": ["linear_attention", "hybrid"] * 2, "num_key_value_heads": 4}
_SHARED_CACHES = {
    "num_hidden_layers": 4, "layer_types": ["sliding_attention", "full_attention"] * 2, "num_kv_shared_layers": 2,
}  # fmt: skip

OF_FAMILIES: dict[str, dict[str, Any]] = {
    "cohere_compass_text": {"rope_parameters": {"full_attention": _ROTARY}, "layer_types": ["full_attention"] * 2},
    "dbrx": {
        "attn_config": {"kv_n_heads": 2, "clip_qkv": 8.0, "rope_theta": 10000.0},
        "ffn_config": {"hidden_size": 32, "ffn_hidden_size": 24, "moe_num_experts": 4, "moe_top_k": 2},
    },
    "dots3_note": {"text_config": {"num_key_value_heads": 4}},
    "dots3_note_text": {"num_key_value_heads": 4},
    "falcon_h1": {"mamba_d_ssm": 64},
    "gemma3n_text": _SHARED_CACHES | {"activation_sparsity_pattern": [0.95, 0.0] * 2, "intermediate_size": [48] * 4},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"], "num_dense_layers": 1},
    "mamba2": {"num_heads": 8},
    "prophetnet": {
        "num_encoder_layers": 2, "num_decoder_layers": 2, "num_encoder_attention_heads": 4,
        "num_decoder_attention_heads": 4, "num_buckets": 8, "relative_max_distance": 16,
    },
    "qwen4_exp_text": {
        "indexer_n_heads": 2, "indexer_kv_heads": 1, "indexer_head_dim": 8, "indexer_budget": 4,
        "indexer_compress_ratio": 2, "hc_lowrank": 8, "hc_count": 2,
    },
    "reformer": {
        "is_decoder": True, "attn_layers": ["local"] * 2, "axial_pos_shape": [8, 8], "axial_pos_embds_dim": [16, 16],
        "attention_head_size": 8, "feed_forward_size": 48, "local_attn_chunk_length": 4,
    },
    "xmod": {"default_language": "en_XX", "languages": ["en_XX"]},
    "zamba": _HYBRID | {"attention_hidden_size": 64, "mamba_dt_rank": 4},
    "zamba2": _HYBRID | {"n_mamba_heads": 8, "attention_hidden_size": 64},
    "zaya": {"num_experts_per_tok": 1},
}  # fmt: skip
"""Fields that a family needs otherwise."""


def make_config(family: str, **chosen: Any) -> Any:
    """The tiny configuration of a model type, with some fields as they are chosen."""
    kind = CONFIG_MAPPING[family]
    base = kind()
    fields = _shrink(base)
    for name in getattr(base, "sub_configs", {}) or {}:
        part = getattr(base, name, None)
        if hasattr(part, "to_dict"):
            fields[name] = _shrink(part)
    return kind(**fields | OF_FAMILIES.get(family, {}) | chosen)


def _shrink(config: Any) -> dict[str, Any]:
    present, renamed = config.to_dict(), getattr(config, "attribute_map", None) or {}
    names = {*present, *renamed}
    fields = {name: value for name, value in SIZES.items() if name in names and renamed.get(name) not in SIZES}
    if "kv_lora_rank" in present and "num_key_value_heads" in fields:
        fields["num_key_value_heads"] = fields.get("num_attention_heads", 4)  # latent attention repeats no heads
    for name in ("layer_types", "mlp_layer_types", "layers_block_type"):
        kinds = present.get(name)
        if isinstance(kinds, list) and kinds:
            fields[name] = (list(dict.fromkeys(kinds)) * 2)[:2]
    return fields


def make_causal(family: str, **chosen: Any) -> torch.nn.Module:
    """A tiny model, which returns logits [2, 7, 64]; no parameter is all zeros or all ones."""
    torch.manual_seed(0)
    config = make_config(family, **chosen)
    try:
        model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa")
    except (ValueError, ImportError):
        model = AutoModelForCausalLM.from_config(make_config(family, **chosen), attn_implementation="eager")
    return Logits(randomize(model.float().eval()))


def randomize(model: torch.nn.Module) -> torch.nn.Module:
    """The model, in which no parameter is all zeros or all ones, and no running statistics are."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.is_floating_point() and (parameter == parameter.flatten()[0]).all():
                parameter.add_(0.1 * torch.randn_like(parameter))
        for key, buffer in model.named_buffers():
            if key.endswith("running_mean"):
                buffer.normal_(0, 0.1)
            elif key.endswith("running_var"):
                buffer.uniform_(0.5, 1.5)
    return model


class Logits(torch.nn.Module):
    """The logits of a causal model for ids."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.model(input_ids=ids, use_cache=False).logits
        return logits


def draw_ids(batch: int = 2, tokens: int = 7) -> torch.Tensor:
    return torch.randint(3, 60, (batch, tokens), generator=torch.Generator().manual_seed(1))
