"""The weights of decoders: what they are called in a text, and in files."""

from __future__ import annotations

import itertools
from dataclasses import replace

from einc.importers.decoders import Decoder
from einc.importers.families import Experts
from einc.importers.writing import Weight, rows

GAINS = ("g_attn", "g_attn_out", "g_mlp", "g_mlp_out")
"""What the gains of the norms in a layer are called, in the order of `Norms`."""


def stored_weights(model: Decoder) -> tuple[list[Weight], list[Weight]]:
    """The weights of the whole model, and those of a layer."""
    whole = [
        Weight("table", "vocab, d_model", "model.embed_tokens.weight"),
        Weight("g_last", "d_model", "model.norm.weight"),
    ]
    if not model.tied:
        whole.append(Weight("head", "vocab, d_model", "lm_head.weight"))
    before, *between, after = (
        [Weight(name, "d_model", f"{stored}.weight")] if stored is not None else []
        for name, stored in zip(GAINS, model.family.norms, strict=True)
    )
    layer = [
        *before,
        *_attention_weights(model),
        *itertools.chain(*between),
        *(_mlp_weights(model) if model.family.experts is None else _expert_weights(model, model.family.experts)),
        *after,
        *_small_weights(model),
    ]
    return whole, [replace(weight, stored=f"model.layers.{{i}}.{weight.stored}") for weight in layer]


def _attention_weights(model: Decoder) -> list[Weight]:
    q, k, v, o = (f"self_attn.{x}_proj.weight" for x in "qkvo")
    if model.family.fused:
        heads = [heads * model.d_head for heads in (model.heads_q, model.heads_kv, model.heads_kv)]
        q, k, v = rows("self_attn.qkv_proj.weight", heads)
    return [
        Weight("w_q", "heads_q, d_head, d_model", q),
        Weight("w_k", "heads_kv, d_head, d_model", k),
        Weight("w_v", "heads_kv, d_head, d_model", v),
        Weight("w_o", "d_model, heads_q, d_head", o),
    ]


def _mlp_weights(model: Decoder) -> list[Weight]:
    gate, up, down = (f"mlp.{x}_proj.weight" for x in ("gate", "up", "down"))
    if model.family.fused:
        gate, up = rows("mlp.gate_up_proj.weight", [model.d_ff] * 2)
    return [
        Weight("w_gate", "d_ff, d_model", gate),
        Weight("w_up", "d_ff, d_model", up),
        Weight("w_down", "d_model, d_ff", down),
    ]


def _expert_weights(model: Decoder, names: Experts) -> list[Weight]:
    """The router's, which computes in f32 at least, and those of all experts."""
    return [
        Weight("w_router", "experts, d_model", names.router, dtype=wide(model)),
        Weight("w_gate", "experts, d_ff, d_model", names.gate, count=model.experts),
        Weight("w_up", "experts, d_ff, d_model", names.up, count=model.experts),
        Weight("w_down", "experts, d_model, d_ff", names.down, count=model.experts),
    ]


def wide(model: Decoder) -> str:
    """The type that takes what 16 bits would lose."""
    return "f64" if model.dtype == "f64" else "f32"


def _small_weights(model: Decoder) -> list[Weight]:
    """Biases, and the gains of heads."""
    table = []
    if model.qkv_bias:
        of = {"q": "heads_q", "k": "heads_kv", "v": "heads_kv"}
        table += [Weight(f"b_{x}", f"{of[x]}, d_head", f"self_attn.{x}_proj.bias") for x in of]
    if model.family.head_norms:
        each = model.family.head_norms == "each"
        for x, heads in (("q", "heads_q"), ("k", "heads_kv")):
            dims, dtype = ("d_head", "") if each else (f"{heads}, d_head", wide(model))
            table.append(Weight(f"g_{x}", dims, f"self_attn.{x}_norm.weight", dtype=dtype))
    if "attention_bias" in model.biases:
        table.append(Weight("b_o", "d_model", "self_attn.o_proj.bias"))
    if "mlp_bias" in model.biases:
        widths = {"gate": "d_ff", "up": "d_ff", "down": "d_model"}
        table += [Weight(f"b_{x}", widths[x], f"mlp.{x}_proj.bias") for x in widths]
    return table
