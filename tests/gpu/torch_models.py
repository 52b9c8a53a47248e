"""The models in PyTorch, whole and by hand: as references in float64, and in their own dtype as competitors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from einc_runtime.plan.schema import Bundle
from tests.gpu.torch_decode import Wrap, can_decode, decode_of, tables

Arrays = Mapping[str, np.ndarray[Any, np.dtype[Any]]]
Weights = dict[str, torch.Tensor]
Model = Callable[[Weights], torch.Tensor]
Attend = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""From rotated queries and keys and from values, each [heads, tokens, head dimension], to what attention gives."""

BY_BITS = {
    "bfloat16": (np.int16, torch.bfloat16),
    "float8_e4m3fn": (np.uint8, torch.float8_e4m3fn),
    "float8_e5m2": (np.uint8, torch.float8_e5m2),
}
"""For types of ml_dtypes the integers of their size, and PyTorch's own types."""


def tensors(arrays: Arrays, dtype: torch.dtype | None = None, device: str = "cuda") -> Weights:
    """Arrays on a device; those of types that are not numpy's own, which PyTorch does not take, by their bits."""
    found = {}
    for name, array in arrays.items():
        bits, kind = BY_BITS.get(array.dtype.name, (None, None))
        plain = array if bits is None else array.view(bits)
        given = torch.from_numpy(np.ascontiguousarray(plain)).to(device)
        if kind is not None:
            given = given.view(kind)
        found[name] = given.to(dtype) if dtype is not None and given.is_floating_point() else given
    return found


def given(bundle: Bundle, arrays: Arrays, dtype: torch.dtype | None = None, device: str = "cuda") -> Weights:
    """What a model is called with: the arrays, and the tables of its rotations, if it has any."""
    weights = tensors(arrays, dtype, device)
    if bundle.model == "llama_decode":
        return weights | tables(bundle, weights)
    ropes = [operation.attributes for operation in bundle.operations if operation.family == "rope"]
    if ropes and "w_q" in weights:
        d_head, like = weights["w_q"].shape[1], weights["x"]
        places = torch.cat([torch.arange(int(length), dtype=torch.float64) for length in ropes[0]["seq_lens"]])
        rates = float(ropes[0]["theta"]) ** (-torch.arange(0, d_head, 2, dtype=torch.float64) / d_head)
        angles = places[:, None] * rates
        weights["cosine"], weights["sine"] = (
            table.to(like.device, like.dtype) for table in (angles.cos(), angles.sin())
        )
    return weights


def model_of(bundle: Bundle, wrap: Wrap = lambda function: function) -> Model | None:
    """A function of what `given` gives that computes the model's output, or logits; None where there is none here.

    `wrap` makes it fast, or the parts of it that are worth it.
    """
    if bundle.model == "ffn":
        return wrap(lambda w: torch.relu(w["x"] @ w["w1"]) @ w["w2"])
    if bundle.model.startswith("chain_"):
        return wrap(_chain(bundle))
    if bundle.model == "llama_decode":
        return decode_of(bundle, wrap) if can_decode(bundle) else None
    return wrap(block_of(bundle, attend_to_own(sequence_lengths(bundle)))) if bundle.model == "llama_block" else None


def output_of(bundle: Bundle) -> str:
    """The name of what `model_of` computes."""
    names = [bundle.tensors[output.tensor].name for output in bundle.outputs]
    return "logits" if "logits" in names else names[0]


def reference(bundle: Bundle, arrays: Arrays, device: str = "cuda") -> dict[str, Any] | None:
    """The output in float64."""
    model = model_of(bundle)
    if model is None:
        return None
    with torch.inference_mode():
        result = model(given(bundle, arrays, torch.float64, device))
    return {output_of(bundle): result.cpu().numpy()}


def _chain(bundle: Bundle) -> Model:
    steps = [
        tuple(bundle.tensors[position].name for position in (*operation.inputs, operation.outputs[0]))
        for operation in bundle.operations
    ]

    def chain(weights: Weights) -> torch.Tensor:
        values = dict(weights)
        for left, right, result in steps:
            values[result] = values[left] @ values[right]
        return values[steps[-1][-1]]

    return chain


def sequence_lengths(bundle: Bundle) -> list[int]:
    """Those of the sequences that lie one behind the other in a block's tokens."""
    lengths = next(each.attributes["seq_lens"] for each in bundle.operations if "seq_lens" in each.attributes)
    return [int(length) for length in lengths]


def attend_to_own(lengths: Sequence[int]) -> Attend:
    """Causal attention within each of several packed sequences: all at once where they are of one length."""

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        if len(set(lengths)) == 1:
            apart = (x.unflatten(1, (len(lengths), lengths[0])).transpose(0, 1) for x in (q, k, v))
            found = F.scaled_dot_product_attention(*apart, is_causal=True, enable_gqa=True)
            return found.transpose(0, 1).flatten(1, 2)
        parts = [
            F.scaled_dot_product_attention(*(part[None] for part in own), is_causal=True, enable_gqa=True)[0]
            for own in zip(*(x.split(list(lengths), 1) for x in (q, k, v)), strict=True)
        ]
        return torch.cat(parts, 1)

    return attend


def block_of(bundle: Bundle, attend: Attend) -> Model:
    """A transformer block on whichever tokens it is given, with this attention."""
    eps = next(float(each.attributes["eps"]) for each in bundle.operations if "eps" in each.attributes)

    def rope(x: torch.Tensor, w: Weights) -> torch.Tensor:
        cosine, sine = w["cosine"], w["sine"]
        first, second = x.chunk(2, -1)
        return torch.cat([first * cosine - second * sine, second * cosine + first * sine], -1)

    def block(w: Weights) -> torch.Tensor:
        x, d_model = w["x"], w["x"].shape[1]

        def project(h: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
            heads, d_head, _ = weight.shape
            return F.linear(h, weight.reshape(heads * d_head, d_model)).view(-1, heads, d_head).transpose(0, 1)

        h = F.rms_norm(x, (d_model,), w["g_attn"], eps)
        q, k, v = (project(h, w[name]) for name in ("w_q", "w_k", "w_v"))
        a = attend(rope(q, w), rope(k, w), v).transpose(0, 1).reshape(len(x), -1)
        r = x + F.linear(a, w["w_o"].reshape(d_model, -1))
        n = F.rms_norm(r, (d_model,), w["g_ffn"], eps)
        return r + F.linear(F.silu(F.linear(n, w["w_gate"])) * F.linear(n, w["w_up"]), w["w_down"])

    return block
