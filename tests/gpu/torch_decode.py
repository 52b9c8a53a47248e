"""One step of decoding in PyTorch: a token of every sequence, over caches of keys and values that it adds to in place.

What is compiled is what a layer does before and after its attention, once for all layers: compiling the whole step
would take minutes, and a CUDA graph has no use for fewer launches.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from einc_runtime.plan.schema import Bundle

Weights = dict[str, torch.Tensor]
Wrap = Callable[[Callable[..., Any]], Callable[..., Any]]
"""What makes a function fast, such as torch.compile."""

PARTS = ("g_attn", "w_q", "w_k", "w_v", "w_o", "g_mlp", "w_gate", "w_up", "w_down")


def can_decode(bundle: Bundle) -> bool:
    """Whether it is a step of one token for each sequence, with caches of one length."""
    return bundle.model == "llama_decode" and len(set(cache_lengths(bundle))) == 1 and tokens_of(bundle) == len(
        cache_lengths(bundle)
    )  # fmt: skip


def cache_lengths(bundle: Bundle) -> list[int]:
    """The places in the cache of each sequence."""
    lengths = next(own.attributes["cache_lens"] for own in bundle.operations if "cache_lens" in own.attributes)
    return [int(length) for length in lengths]


def tokens_of(bundle: Bundle) -> int:
    return int(next(tensor.shape[0] for tensor in bundle.tensors if tensor.name == "ids"))


def tables(bundle: Bundle, weights: Weights) -> Weights:
    """Cosines and sines of the tokens' positions, their rows in the caches, and which places they see, if not all."""
    theta = next(float(own.attributes["theta"]) for own in bundle.operations if own.family == "rope")
    positions, cache = weights["positions"], cache_lengths(bundle)[0]
    d_head, like = weights["layer.0.w_q"].shape[1], weights["table"]
    rates = theta ** (-torch.arange(0, d_head, 2, dtype=torch.float64, device=like.device) / d_head)
    angles = positions[:, None].double() * rates
    made = {"cosine": angles.cos().to(like.dtype), "sine": angles.sin().to(like.dtype)}
    made["rows"] = torch.arange(len(positions), device=like.device) * cache + positions
    if not bool((positions == cache - 1).all()):
        made["seen"] = torch.arange(cache, device=like.device)[None, :] <= positions[:, None]
    return made


def decode_of(bundle: Bundle, wrap: Wrap = lambda function: function) -> Callable[[Weights], torch.Tensor]:
    """A function of the weights, caches and tables to the logits."""
    eps = next(float(own.attributes["eps"]) for own in bundle.operations if "eps" in own.attributes)
    layers = sum(tensor.name.endswith(".g_attn") for tensor in bundle.tensors)
    cache = cache_lengths(bundle)[0]

    def rope(x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
        first, second = x.chunk(2, -1)
        return torch.cat([first * cosine - second * sine, second * cosine + first * sine], -1)

    def before(x: torch.Tensor, w: Weights, cosine: torch.Tensor, sine: torch.Tensor) -> tuple[torch.Tensor, ...]:
        h = F.rms_norm(x, (x.shape[1],), w["g_attn"], eps)
        q, k, v = (
            F.linear(h, w[name].flatten(0, 1)).view(len(x), *w[name].shape[:2]) for name in ("w_q", "w_k", "w_v")
        )
        cosine, sine = cosine[:, None], sine[:, None]
        return rope(q, cosine, sine), rope(k, cosine, sine).transpose(0, 1), v.transpose(0, 1)

    def after(x: torch.Tensor, a: torch.Tensor, w: Weights) -> torch.Tensor:
        r = x + F.linear(a.reshape(len(x), -1), w["w_o"].flatten(1, 2))
        n = F.rms_norm(r, (r.shape[1],), w["g_mlp"], eps)
        return r + F.linear(F.silu(F.linear(n, w["w_gate"])) * F.linear(n, w["w_up"]), w["w_down"])

    def last(x: torch.Tensor, gain: torch.Tensor, head: torch.Tensor) -> torch.Tensor:
        return F.linear(F.rms_norm(x, (x.shape[1],), gain, eps), head)

    first_part, second_part, ending = wrap(before), wrap(after), wrap(last)

    def step(w: Weights) -> torch.Tensor:
        x = w["table"][w["ids"]]
        mask = w["seen"][:, None, None, :] if "seen" in w else None
        for number in range(layers):
            own = {name: w[f"layer.{number}.{name}"] for name in PARTS}
            keys, values = w[f"keys.{number}"], w[f"values.{number}"]
            q, k, v = first_part(x, own, w["cosine"], w["sine"])
            keys.index_copy_(1, w["rows"], k)
            values.index_copy_(1, w["rows"], v)
            ks, vs = (both.unflatten(1, (len(x), cache)).transpose(0, 1) for both in (keys, values))
            grouped = q.unflatten(1, (keys.shape[0], -1))  # heads that share keys are queries of one sequence
            a = F.scaled_dot_product_attention(grouped, ks, vs, attn_mask=mask)
            x = second_part(x, a.flatten(1, 2), own)
        return ending(x, w["g_last"], w["head"])

    return step
