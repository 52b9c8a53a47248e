"""Texts of mixtures of experts: the router of a layer, its experts, and their weights.

Tokens are multiplied with the experts that they pick.
"""

from __future__ import annotations

from einc.importers.decoders import Decoder
from einc.importers.families import Experts
from einc.importers.writing import StoredWeight


def find_wide_type(model: Decoder) -> str:
    """The type for numbers that need more precision than 16 bits."""
    return "f64" if model.dtype == "f64" else "f32"


def write_experts(model: Decoder) -> list[str]:
    """The lines that compute `down`, the sum of the experts of each token, from `n`."""
    narrow = model.dtype != find_wide_type(model)
    shares = 'chances / sum(chances, "slots")' if model.shares else "chances"
    shares = f'cast({shares}, "{model.dtype}")' if narrow else shares
    picked_values = "shares" if shares == "chances" else "chances"
    return [
        *([f'    wide = cast(n, "{find_wide_type(model)}")'] if narrow else []),
        f"    scores[tokens, experts] = {'wide' if narrow else 'n'}[tokens, d_model] * w_router[experts, d_model]",
        f'    {picked_values}, picks = topk(softmax(scores, "experts"), top_k, "experts", into="slots")',
        *([] if shares == "chances" else [f"    shares = {shares}"]),
        "    gate = expert_matmul(n, w_gate, picks)",
        "    up = expert_matmul(n, w_up, picks)",
        f"    f = {model.activation}(gate) * up * shares",
        '    down = sum(expert_matmul(f, w_down, picks), "slots")',
    ]


def list_experts(model: Decoder, names: Experts) -> list[StoredWeight]:
    """The weights of the router, which computes in f32 or wider, and of all experts."""
    return [
        StoredWeight("w_router", "experts, d_model", names.router, dtype=find_wide_type(model)),
        StoredWeight("w_gate", "experts, d_ff, d_model", names.gate, count=model.experts),
        StoredWeight("w_up", "experts, d_ff, d_model", names.up, count=model.experts),
        StoredWeight("w_down", "experts, d_model, d_ff", names.down, count=model.experts),
    ]
