"""Recurrences of transformers' models, exported as one operator each instead of all their steps or chunks.

Models write selective scans and delta rules as loops over the tokens, or over chunks of them. While a module is
exported, functions and methods with the same arguments take their places and call `einc::recurrence`, which
`aten/recurrences.py` knows. All of them are one form, for each head, with keys k and queries q [d], values v [e]:

    state[d, e] = decay[d] * state before[d, e] + k[d] * w[e]
    result[e]   = sum over d of q[d] * state[d, e]

where w is v in a scan, and beta * (v - sum over d of k[d] * decay[d] * state before[d, e]) in a delta rule.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

_SCHEMA = "recurrence(Tensor query, Tensor key, Tensor value, Tensor decay, Tensor? beta=None) -> Tensor"
"""query and key [batch, tokens, 1 or heads, d], value [batch, tokens, heads, e], decay [batch, tokens, heads, 1 or d],
beta [batch, tokens, heads]; the result is like value."""
_EPSILON = 1e-6
"""What norms of queries and keys add to their squares, as in flash-linear-attention."""


@functools.cache
def _declare() -> Any:
    """Declares the operator to torch, once in a process; it lives as long as what is returned."""
    import torch

    library = torch.library.Library("einc", "DEF")
    library.define(_SCHEMA)
    library.impl("recurrence", lambda query, key, value, decay, beta=None: torch.empty_like(value), "Meta")
    return library


def _recur(query: Any, key: Any, value: Any, decay: Any, beta: Any = None) -> Any:
    import torch

    return torch.ops.einc.recurrence(query, key, value, decay, beta)


def _scan_channels(hidden_states: Any, dt: Any, A: Any, B: Any, C: Any, D: Any = None, z: Any = None,
                   delta_bias: Any = None, delta_softplus: bool = False, **_: Any) -> Any:  # fmt: skip
    """Mamba's selective scan of hidden states [batch, channels, tokens]: each channel is a head."""
    from torch.nn.functional import silu, softplus

    if delta_bias is not None:
        dt = dt + delta_bias.to(dt.dtype)[..., None]
    if delta_softplus:
        dt = softplus(dt)
    steps = dt.transpose(1, 2)[..., None]
    value = (dt * hidden_states.float()).transpose(1, 2)[..., None]
    key, query = (part.transpose(1, 2).float()[:, :, None, :] for part in (B, C))
    result = _recur(query, key, value, (A * steps).exp())[..., 0].transpose(1, 2).to(hidden_states.dtype)
    if D is not None:
        result = result + hidden_states * D[None, :, None]
    return result if z is None else result * silu(z)


def _scan_heads(hidden_states: Any, dt: Any, A: Any, B: Any, C: Any, chunk_size: int = 0, D: Any = None,
                dt_bias: Any = None, dt_softplus: bool = False, dt_limit: tuple[float, float] = (0.0, float("inf")),
                **_: Any) -> Any:  # fmt: skip
    """Mamba 2's scan of hidden states [batch, tokens, heads, d], with keys and queries of groups of heads."""
    from torch.nn.functional import softplus

    heads = hidden_states.shape[2]
    if dt_bias is not None:
        dt = dt + dt_bias.to(dt.dtype)
    if dt_softplus:
        dt = softplus(dt)
    dt = dt.clamp(min=dt_limit[0], max=dt_limit[1])
    hidden_states = hidden_states.float()
    key, query = (part.float().repeat_interleave(heads // part.shape[2], dim=2) for part in (B, C))
    decay = (A.float() * dt.float()).exp()[..., None]
    result = _recur(query, key, hidden_states * dt[..., None].float(), decay)
    return result if D is None else result + hidden_states * D[..., None]


def _follow_delta_rule(
    query: Any, key: Any, value: Any, g: Any, beta: Any, use_qk_l2norm_in_kernel: bool = False, **_: Any
) -> tuple[Any, None]:
    """The gated delta rule [batch, tokens, heads, d]; `g` has logarithms of decays, of heads or of their keys, too."""
    heads, result_type = value.shape[2], query.dtype
    query, key, value, g, beta = (part.float() for part in (query, key, value, g, beta))
    query, key = (part.repeat_interleave(heads // part.shape[2], dim=2) for part in (query, key))
    if use_qk_l2norm_in_kernel:
        query, key = (part * (part.square().sum(-1, keepdim=True) + _EPSILON).rsqrt() for part in (query, key))
    decay = (g if g.dim() == key.dim() else g[..., None]).exp()
    return _recur(query * query.shape[-1] ** -0.5, key, value, decay, beta).to(result_type), None


def _scan_gated(
    self: Any, hidden_states: Any, recurrent_gate: Any, reset: Any, recurrent_states: Any, **_: Any
) -> tuple[Any, None]:
    """The scan of RG-LRU of hidden states [batch, tokens, channels]: each channel is a head."""
    import torch

    decay = (recurrent_gate * ~reset).float()[..., None]
    unit = torch.ones_like(decay[:, :, :1])
    return _recur(unit, unit, hidden_states.float()[..., None], decay)[..., 0].to(hidden_states.dtype), None


def _attend_lightning(self: Any, hidden_states: Any, position_embeddings: Any, attention_mask: Any, **_: Any) -> Any:
    """MiniMax's lightning attention, whose heads decay at rates of their own."""
    from torch.nn.functional import sigmoid

    batch, tokens = hidden_states.shape[:2]
    hide = vars(sys.modules[type(self).__module__])["apply_mask_to_padding_states"]
    joined = hide(self.act_fn(self.qkv_proj(hidden_states)), attention_mask)
    joined = joined.reshape(batch, tokens, self.num_attention_heads, -1)
    query, key, value = (part.float() for part in joined.split(self.head_dim, 3))
    decay = (-self.slope_rate.float()).exp().reshape(1, 1, -1, 1).expand(batch, tokens, -1, 1)
    result = _recur(query, key, value, decay).reshape(batch, tokens, -1).to(hidden_states.dtype)
    return self.out_proj(sigmoid(self.output_gate(hidden_states)) * self.norm(result)), None


def _remember_matrices(
    self: Any, query: Any, key: Any, value: Any, igate: Any, fgate: Any, c_initial: Any = None, **_: Any
) -> tuple[Any, None]:
    """xLSTM's memory of queries, keys and values [batch, heads, tokens, d] and gates [batch, heads, tokens].

    Gates are capped (`gate_soft_cap`), so that their exponentials are floats; what the classes divide by the largest
    one so far, `eps` alone is multiplied with here.
    """
    import torch
    from torch.nn.functional import logsigmoid

    result_type, width = query.dtype, query.shape[-1]
    forgotten = logsigmoid(fgate.float()).cumsum(-1)
    largest = forgotten + (igate.float() - forgotten).cummax(-1).values.clamp(min=0)
    query, key, value = (part.float().transpose(1, 2) for part in (query, key, value))
    scaled, written, kept = (
        part.transpose(1, 2)[..., None] for part in (largest.exp(), igate.float().exp(), fgate.float().sigmoid())
    )
    query, key = query * width**-0.5, key * written
    total = _recur(query, key, torch.ones_like(value[..., :1]), kept)
    memory = _recur(query, key, value, kept) / (total.abs().clamp(min=1) + self.config.eps * scaled)
    return memory.transpose(1, 2).to(result_type), None


_REPLACEMENTS: dict[str, Callable[..., Any]] = {
    "mamba_selective_scan": _scan_channels, "mamba2_chunk_scan": _scan_heads,
    "torch_chunk_gated_delta_rule": _follow_delta_rule, "chunk_kimi_delta_attention": _follow_delta_rule,
}  # fmt: skip
_REPLACED_METHODS: dict[str, tuple[str, Callable[..., Any]]] = {
    "MiniMaxLightningAttention": ("forward", _attend_lightning), "RecurrentGemmaRglru": ("_rnn_scan", _scan_gated),
    "xLSTMBackend": ("forward", _remember_matrices),
}  # fmt: skip
"""Of classes by their names: a method, and what takes its place."""
_WITH_STATES = (
    "initial_state", "initial_states", "return_last_state", "return_final_states", "output_final_state",
    "recurrent_states", "c_initial", "past_key_values",
)  # fmt: skip
"""Arguments for what a sequence starts from, or ends with, which the operator does not have."""


def _replace(function: Callable[..., Any], replacement: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        if any(kwargs.get(name) is not None and kwargs[name] is not False for name in _WITH_STATES):
            return function(*args, **kwargs)
        return replacement(*args, **kwargs)

    return call


@contextmanager
def keep_recurrences(module: Any) -> Iterator[None]:
    """Puts the functions in place where the classes of a module's parts are defined."""
    files = {type(part).__module__ for part in module.modules()}
    changed = []
    for name in sorted(name for name in files if name.startswith("transformers.models.")):
        variables = vars(sys.modules[name])
        changed += [(variables, key, variables[key]) for key in _REPLACEMENTS if key in variables]
    classes = {type(part) for part in module.modules() if type(part).__name__ in _REPLACED_METHODS}
    methods = [(each, name, getattr(each, name)) for each in classes for name in _REPLACED_METHODS[each.__name__][:1]]
    if changed or methods:
        _declare()
    try:
        for variables, key, function in changed:
            variables[key] = _replace(function, _REPLACEMENTS[key])
        for each, name, method in methods:
            setattr(each, name, _replace(method, _REPLACED_METHODS[each.__name__][1]))
        yield
    finally:
        for variables, key, function in changed:
            variables[key] = function
        for each, name, method in methods:
            setattr(each, name, method)
