"""GGUF files of small models, written by the package `gguf` as llama.cpp's converter does, to be read by einc."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

STORIES = Path(__file__).parents[2] / "models" / "stories"
Array = np.ndarray[Any, np.dtype[Any]]

PARTS = {
    "input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm", "self_attn.qkv_proj": "attn_qkv", "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down", "mlp.gate_up_proj": "ffn_up",
    "mlp.gate": "ffn_gate_inp", "block_sparse_moe.gate": "ffn_gate_inp",
}  # fmt: skip
AFTER = {"post_attention_layernorm": "post_attention_norm", "post_feedforward_layernorm": "post_ffw_norm"}
ARCHITECTURES = {"mixtral": "llama", "mistral": "llama", "qwen3_moe": "qwen3moe", "gemma3_text": "gemma3"}
LLAMA3 = ("original_max_position_embeddings", "low_freq_factor", "high_freq_factor")
EXPERTS = {"w1": "gate", "w3": "up", "w2": "down", "gate_proj": "gate", "up_proj": "up", "down_proj": "down"}


def find_architecture(config: Mapping[str, Any]) -> str:
    return ARCHITECTURES.get(config["model_type"], config["model_type"])


def permute(rows: Array, heads: int) -> Array:
    """The order of rows of queries and keys that llama.cpp's converter makes."""
    return rows.reshape(heads, 2, rows.shape[0] // heads // 2, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def place_tensor(config: Mapping[str, Any], name: str) -> tuple[str, int | None]:
    """The tensor that a weight is or is a part of, and projection part: the number of an expert."""
    kind = find_architecture(config)
    if not name.startswith("model.layers."):
        outer = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
        return f"{outer[name.rpartition('.')[0]]}.weight", None
    _, _, layer, layer_part = name.split(".", 3)
    part, _, ending = layer_part.rpartition(".")
    if ".experts." in part:
        number, _, projection = part.partition(".experts.")[2].partition(".")
        return f"blk.{layer}.ffn_{EXPERTS[projection]}_exps.weight", int(number)
    gemma = {**AFTER, "pre_feedforward_layernorm": "ffn_norm"}
    parts = PARTS | {"gemma2": gemma, "gemma3": gemma, "olmo2": AFTER}.get(kind, {})
    return f"blk.{layer}.{parts[part]}.{ending}", None


def store_rows(config: Mapping[str, Any], name: str, rows: Array) -> Array:
    """What a tensor has: Llama's rows of queries and keys in another order, gains of Gemma's norms plus 1."""
    kind = find_architecture(config)
    if kind == "llama" and (".attn_q." in name or ".attn_k." in name):
        return permute(rows, config["num_attention_heads" if ".attn_q." in name else "num_key_value_heads"])
    return rows + 1 if kind.startswith("gemma") and name.endswith("norm.weight") else rows


def write_metadata(writer: Any, config: Mapping[str, Any]) -> None:
    width = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_key_length(width)
    writer.add_value_length(width)
    rotation = config.get("rope_parameters") or {}
    both = rotation.get("full_attention", rotation)
    writer.add_rope_dimension_count(int(width * both.get("partial_rotary_factor", 1)))
    writer.add_rope_freq_base(both["rope_theta"])
    if both.get("rope_type") == "linear":
        import gguf

        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(both["factor"])
    if "original_max_position_embeddings" in config:
        writer.add_rope_scaling_orig_ctx_len(config["original_max_position_embeddings"])
    count = config.get("num_local_experts") or config.get("num_experts")
    if count:
        writer.add_expert_count(count)
        writer.add_expert_used_count(config["num_experts_per_tok"])
    if "moe_intermediate_size" in config:
        writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
    if config["model_type"].startswith(("gemma2", "gemma3", "phi3")) and config.get("sliding_window"):
        writer.add_sliding_window(config["sliding_window"])
    if config.get("attn_logit_softcapping"):
        writer.add_attn_logit_softcapping(config["attn_logit_softcapping"])
    if config.get("final_logit_softcapping"):
        writer.add_final_logit_softcapping(config["final_logit_softcapping"])


def add_entries(writer: Any, entries: Mapping[str, Any]) -> None:
    """Further metadata, each in the type that fits its value."""
    for key, value in entries.items():
        if isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, list):
            writer.add_array(key, value)
        elif isinstance(value, str):
            writer.add_string(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        else:
            writer.add_float32(key, value)


def describe_byte_tokenizer(document: Mapping[str, Any], pre: str) -> dict[str, Any]:
    """The metadata of a tokenizer.json that joins pairs of bytes."""
    vocabulary = document["model"]["vocab"]
    names = sorted(vocabulary, key=vocabulary.__getitem__)
    kinds = {token["content"]: 3 if token["special"] else 4 for token in document["added_tokens"]}
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in document["model"]["merges"]]
    return {
        "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": pre, "tokenizer.ggml.tokens": names,
        "tokenizer.ggml.token_type": [kinds.get(name, 1) for name in names], "tokenizer.ggml.merges": merges,
    }  # fmt: skip


def draw_blocks(kind: str, shape: tuple[int, int], rng: np.random.Generator) -> Array:
    """Random blocks of any type, as bytes, whose elements are of about a tenth."""
    import gguf

    chosen = gguf.GGMLQuantizationType[kind]
    elements, size = gguf.constants.GGML_QUANT_SIZES[chosen]
    data = rng.integers(0, 256, (shape[0], shape[1] // elements, size), dtype=np.uint8)
    places = {"Q6_K": {208: 2e-5}, "Q4_K": {0: 4e-4, 2: 4e-3}, "Q5_K": {0: 2e-4, 2: 4e-3}, "Q4_1": {0: 0.02, 2: -0.15},
              "Q5_1": {0: 0.01, 2: -0.15}}.get(kind, {0: {"Q8_0": 1e-3}.get(kind, 0.01)})  # fmt: skip
    for offset, scale in places.items():
        drawn = (scale * rng.uniform(0.5, 1.5, data.shape[:2])).astype("<f2")
        data[..., offset : offset + 2] = drawn[..., None].view(np.uint8)
    return data.reshape(shape[0], -1)


def write_model(
    config: Mapping[str, Any], weights: Mapping[str, Array], target: Path, kind: str = "F32",
    kinds: Mapping[str, str] | None = None, further: Mapping[str, Any] | None = None,
    factors: Mapping[str, Array] | None = None,
) -> dict[str, Array]:  # fmt: skip
    """Writes weights in blocks of a `kind`; those whose names have a part that is among `kinds`, in that one. Vectors
    and routers are of f32, as in published files. Returns what the weights are then; of the types called K, which the
    package cannot make, blocks are drawn."""
    import gguf

    rng = np.random.default_rng(0)
    rounded: dict[str, Array] = {}
    tensors: dict[str, list[Array]] = {}
    types: dict[str, str] = {}
    for name, array in weights.items():
        is_plain = array.ndim < 2 or name.endswith("gate.weight")
        chosen = "F32" if is_plain else next((of for part, of in (kinds or {}).items() if part in name), kind)
        type_ = gguf.GGMLQuantizationType[chosen]
        if chosen.endswith("_K"):
            data = draw_blocks(chosen, (array.shape[0], array.shape[1]), rng)
        else:
            data = gguf.quants.quantize(np.ascontiguousarray(array, np.float32), type_)
        rounded[name] = gguf.quants.dequantize(data, type_)
        stored, _ = place_tensor(config, name)
        types[stored] = chosen
        tensors.setdefault(stored, []).append(store_rows(config, stored, data))
    writer = gguf.GGUFWriter(str(target), find_architecture(config))
    write_metadata(writer, config)
    writer.add_vocab_size(config["vocab_size"])
    add_entries(writer, further or {})
    for name, array in (factors or {}).items():
        writer.add_tensor(name, array)
    for name, parts in tensors.items():
        stacked = np.stack(parts) if "_exps" in name else parts[0]
        writer.add_tensor(name, np.ascontiguousarray(stacked), raw_dtype=gguf.GGMLQuantizationType[types[name]])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return rounded


def read_folder(folder: Path) -> tuple[dict[str, Any], dict[str, Array]]:
    """The configuration and the weights of a folder; experts come in the order of their numbers."""
    from safetensors.numpy import load_file

    weights = load_file(folder / "model.safetensors")
    key = re.compile(r"\d+")
    ordered = sorted(weights, key=lambda name: [int(number) for number in key.findall(name)])
    return json.loads((folder / "config.json").read_text()), {name: weights[name] for name in ordered}


def llama3_factors(config: Mapping[str, Any]) -> dict[str, Array]:
    """The tensor in projection llama.cpp's converter puts Llama 3's scaling: by how much each rate is slowed down."""
    rotation, width = config["rope_parameters"], config["head_dim"]
    factors = []
    for pair in range(width // 2):
        length = 2 * np.pi * rotation["rope_theta"] ** (2 * pair / width)
        original, low, high = (rotation[name] for name in LLAMA3)
        if length < original / high:
            factors.append(1.0)
        elif length > original / low:
            factors.append(rotation["factor"])
        else:
            smooth = (original / length - low) / (high - low)
            factors.append(1 / ((1 - smooth) / rotation["factor"] + smooth))
    return {"rope_freqs.weight": np.array(factors, np.float32)}


def write_stories(target: Path, kind: str = "F32", pre: str = "gpt-2", **further: Any) -> Path:
    """The model of stories, with its tokenizer."""
    config, weights = read_folder(STORIES)
    words = describe_byte_tokenizer(json.loads((STORIES / "tokenizer.json").read_text()), pre)
    write_model(config, weights, target, kind, further={**words, "tokenizer.ggml.eos_token_id": 0, **further})
    return target
