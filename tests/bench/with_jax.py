"""The same computations in JAX on 8 virtual devices of the host, or on one: shardings by hand, the rest left to XLA.

The block's shardings: `tokens` cuts the sequence eight ways (keys and values are gathered), `ffn` cuts the columns of
the feed-forward network instead of its rows, `heads` cuts the attention into 4 groups of heads by 2 parts of the
sequence; `dpa` is jax.nn.dot_product_attention, else attention is written out.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from einc_runtime.plan.schema import Bundle
from tests.bench.inputs import constants, drawn, products


def prepared(bundle: Bundle, words: list[str], devices: int):
    if len(jax.devices()) != devices:
        raise SystemExit(f"JAX has {len(jax.devices())} devices instead of {devices}")
    make = _chain if bundle.model.startswith("chain") else _block
    function, given, places, layout = make(bundle, set("+".join(words).split("+")), devices)
    mesh = Mesh(np.array(jax.devices()).reshape(layout), ("a", "b"))
    shard = {name: NamedSharding(mesh, places.get(name, P())) for name in given}
    arrays = {name: jax.device_put(array, shard[name]) for name, array in given.items()}

    def keep(value, *place):
        return jax.lax.with_sharding_constraint(value, NamedSharding(mesh, P(*place)))

    compiled = jax.jit(lambda arrays: function(arrays, keep))
    result = None

    def run() -> None:
        nonlocal result
        result = compiled(arrays).block_until_ready()

    return run, lambda: result


ALL = ("a", "b")


def _chain(bundle: Bundle, words: set[str], devices: int):
    """By rows (left operands and results), by columns (right operands and results), or all in a grid."""
    steps, given = products(bundle), drawn(bundle)
    place = P(ALL) if "rows" in words else P(None, ALL) if "columns" in words else P("a", "b")
    lefts = {left for left, _, _ in steps}
    cut = {
        name: place
        for name in given
        if "grid" in words or ("rows" in words and name in lefts) or ("columns" in words and name not in lefts)
    }

    def chain(arrays, keep):
        values = dict(arrays)
        for left, right, result in steps:
            values[result] = keep(values[left] @ values[right], *place)
        return values[steps[-1][-1]]

    return chain, given, cut, (devices, 1) if "grid" not in words else (4, 2)


def _block(bundle: Bundle, words: set[str], devices: int):
    given = drawn(bundle)
    eps, theta = constants(bundle)["eps"], constants(bundle)["theta"]
    heads, d_head, _ = given["w_q"].shape
    heads_kv, tokens = given["w_k"].shape[0], given["x"].shape[0]
    angles = np.arange(tokens)[:, None] * theta ** (-np.arange(0, d_head, 2) / d_head)
    cosine, sine = np.cos(angles)[:, None].astype("f4"), np.sin(angles)[:, None].astype("f4")
    seen = np.tril(np.ones((tokens, tokens), bool))
    by_heads, by_ffn, own = "heads" in words, "ffn" in words, "dpa" not in words
    rows, group = (("b", "a") if by_heads else (ALL, None)) if devices > 1 else (None, None)
    every = ALL if devices > 1 else None

    def norm(x, gain):
        return x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + eps) * gain

    def rope(x):
        first, second = jnp.split(x, 2, -1)
        return jnp.concatenate([first * cosine - second * sine, second * cosine + first * sine], -1)

    def attention(q, k, v):
        if not own:
            return jax.nn.dot_product_attention(q[None], k[None], v[None], is_causal=True)[0]
        q = q.reshape(tokens, heads_kv, heads // heads_kv, d_head)
        scores = jnp.einsum("tgnd,sgd->gnts", q, k) / d_head**0.5
        weights = jax.nn.softmax(jnp.where(seen, scores, -jnp.inf), -1)
        return jnp.einsum("gnts,sgd->tgnd", weights, v).reshape(tokens, heads, d_head)

    def block(w, keep):
        h = keep(norm(w["x"], w["g_attn"]), rows)
        q = keep(rope(jnp.einsum("tm,hdm->thd", h, w["w_q"])), rows, group)
        k = keep(rope(jnp.einsum("tm,hdm->thd", h, w["w_k"])), None, group)
        v = keep(jnp.einsum("tm,hdm->thd", h, w["w_v"]), None, group)
        a = keep(attention(q, k, v), rows, group)
        r = keep(w["x"] + jnp.einsum("thd,mhd->tm", a, w["w_o"]), every)
        n = norm(r, w["g_ffn"])
        n = keep(n, None) if by_ffn else keep(n, every)
        f = jax.nn.silu(n @ w["w_gate"].T) * (n @ w["w_up"].T)
        f = keep(f, None, every) if by_ffn else keep(f, every)
        return keep(r + keep(f @ w["w_down"].T, every), every)

    cut = {"x": P(every)}
    if by_heads:
        cut |= {name: P("a") for name in ("w_q", "w_k", "w_v")} | {"w_o": P(None, "a")}
    if by_ffn:
        cut |= {"w_gate": P(every), "w_up": P(every), "w_down": P(None, every)}
    return block, given, cut, (4, 2) if devices > 1 else (1, 1)
