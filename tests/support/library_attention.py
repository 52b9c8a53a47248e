"""Attention as libraries compute it, in numpy and with PyTorch's functions, and invocations for them."""

from __future__ import annotations

import numpy as np

from einc_runtime.kernels.base import Invocation
from einc_runtime.kernels.cuda.varlen_attention import VarlenAttention
from einc_runtime.plan.schema import Block


def attributes(q_lens, k_lens, **changes):
    base = {"causal": False, "scale": 0.5, "q_lens": list(q_lens), "k_lens": list(k_lens), "window": 0, "extras": []}
    return {**base, **changes}


def invoked(a, q_range, k_range, dtype=np.float16, width=8, extras=()):
    """Arrays and blocks of some queries and keys; four heads for two."""
    (q0, q1), (k0, k1) = q_range, k_range
    rng = np.random.default_rng(0)
    q, k, v = (rng.normal(size=(h, n, width)).astype(dtype) for h, n in ((4, q1 - q0), (2, k1 - k0), (2, k1 - k0)))
    outputs = [np.zeros(q.shape, dtype), np.zeros(q.shape[:2], np.float32)]
    q_block = Block((0, q0, 0), (4, q1, width))
    k_block = Block((0, k0, 0), (2, k1, width))
    blocks = [q_block, k_block, k_block, *(Block((k0,), (k1,)) for _ in extras)]
    return Invocation("attention", a, [q, k, v, *extras], outputs, blocks, [q_block, Block((0, q0), (4, q1))])


def library(q, k, v, how):
    """What such a library computes: for every packed sequence, its last query at the place of its last key."""
    o, lse = np.zeros(q.shape), np.full(q.shape[:2], np.inf)
    group = len(q) // len(k)
    for n in range(len(how.queries) - 1):
        q0, q1 = how.queries[n : n + 2]
        k0, k1 = (key + how.first_key for key in how.keys[n : n + 2])
        last_key = np.arange(q1 - q0)[:, None] + (k1 - k0) - (q1 - q0)
        key = np.arange(k1 - k0)[None, :]
        seen = np.ones((q1 - q0, k1 - k0), bool)
        if how.causal:
            seen &= key <= last_key
        if how.window:
            seen &= key > last_key - how.window
        for h in range(len(q)):
            scores = how.scale * q[h, q0:q1].astype(float) @ k[h // group, k0:k1].astype(float).T
            weights = np.where(seen, np.exp(scores), 0)
            lse[h, q0:q1] = np.log(weights.sum(1))
            o[h, q0:q1] = weights @ v[h // group, k0:k1].astype(float) / weights.sum(1, keepdims=True)
    return o, lse


def by_pytorch(q, k, v, q_bounds, k_bounds, how, out=None, *, corner=1, base=np.e, window=0, repeat="interleave"):
    """Attention with PyTorch's functions, sequence by sequence; the keywords make one mistake each."""
    import torch

    marks = [list(map(int, bounds)) for bounds in (q_bounds, k_bounds)]
    results, logs = [], []
    for q0, q1, k0, k1 in zip(marks[0], marks[0][1:], marks[1], marks[1][1:], strict=False):
        queries, keys, values = (
            x[a:b].permute(1, 0, 2).double() for x, a, b in ((q, q0, q1), (k, k0, k1), (v, k0, k1))
        )
        group = queries.shape[0] // keys.shape[0]
        keys, values = (
            x.repeat_interleave(group, 0) if repeat == "interleave" else x.repeat(group, 1, 1) for x in (keys, values)
        )
        last_key = torch.arange(q1 - q0)[:, None] + corner * ((k1 - k0) - (q1 - q0))
        key = torch.arange(k1 - k0)[None, :]
        seen = key <= last_key if how.causal else torch.ones(q1 - q0, k1 - k0, dtype=torch.bool)
        if how.window:
            seen = seen & (key > last_key - how.window + window)
        results.append(
            torch.nn.functional.scaled_dot_product_attention(queries, keys, values, attn_mask=seen, scale=how.scale)
        )
        scores = (how.scale * queries @ keys.transpose(1, 2)).masked_fill(~seen, -torch.inf)
        logs.append(torch.logsumexp(scores, 2) / np.log(base))
    return torch.cat(results, 1).permute(1, 0, 2).to(q.dtype), torch.cat(logs, 1).float()


KINDS = [
    VarlenAttention((0, 512), (0, 512), 0, True, 0, 0.125),
    VarlenAttention((0, 512), (0, 900), 0, False, 0, 0.125),
    VarlenAttention((0, 300, 512), (0, 400, 900), 0, True, 0, 0.125),
    VarlenAttention((0, 1, 2), (0, 70, 90), 0, True, 0, 0.125),
    VarlenAttention((0, 512), (0, 512), 0, True, 100, 3.0),
    VarlenAttention((0, 512), (0, 512), 0, False, 0, 0.0),
]
