"""The benchmarks in JAX, on one GPU: matrix chains, and the block with jax.nn.dot_product_attention."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from einc_runtime.dtypes import storage_dtype
from einc_runtime.plan.schema import Bundle

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")


def prepared(
    bundle: Bundle, arrays: Mapping[str, np.ndarray[Any, np.dtype[Any]]], backend: str = "gpu"
) -> tuple[Callable[[], Any], str]:
    """A call that enqueues one computation and gives its result, compiled; and the version with the kind of attention.

    Raises ImportError where JAX is missing or has no GPU.
    """
    import jax

    if jax.default_backend() != backend:
        raise ImportError(f"jax has no {backend} here")
    given = {name: jax.device_put(array) for name, array in arrays.items()}
    if bundle.model.startswith("chain_"):
        function = jax.jit(_chain(bundle))
        function(given).block_until_ready()
        return partial(function, given), jax.__version__
    for implementation in ("cudnn", "xla"):
        function = jax.jit(_block(bundle, implementation))
        try:
            function(given).block_until_ready()
        except Exception as error:  # whatever cuDNN has against these shapes
            if implementation == "xla":
                raise ImportError(f"jax cannot run it: {type(error).__name__}") from error
            continue
        return partial(function, given), f"{jax.__version__} {implementation}"
    raise ImportError("jax cannot run it")


def _chain(bundle: Bundle) -> Callable[[Any], Any]:
    steps = [
        tuple(bundle.tensors[position].name for position in (*operation.inputs, operation.outputs[0]))
        for operation in bundle.operations
    ]

    def chain(arrays: Any) -> Any:
        values = dict(arrays)
        for left, right, result in steps:
            values[result] = values[left] @ values[right]
        return values[steps[-1][-1]]

    return chain


def _block(bundle: Bundle, implementation: str) -> Callable[[Any], Any]:
    import jax
    import jax.numpy as jnp

    attributes: dict[str, Any] = {}
    for operation in bundle.operations:
        attributes |= {key: value for key, value in operation.attributes.items() if key in ("eps", "theta", "seq_lens")}
    (tokens,) = attributes["seq_lens"]  # one sequence in all benchmarks
    shapes = {tensor.name: tensor.shape for tensor in bundle.tensors}
    d_head = shapes["w_q"][1]
    angles = np.arange(tokens)[:, None] * attributes["theta"] ** (-np.arange(0, d_head, 2) / d_head)
    kind = storage_dtype(next(tensor.dtype for tensor in bundle.tensors if tensor.name == "x"))
    cosine, sine = (table[:, None].astype(kind) for table in (np.cos(angles), np.sin(angles)))

    def norm(x: Any, gain: Any) -> Any:
        wide = x.astype(jnp.float32)
        scale = jax.lax.rsqrt((wide * wide).mean(-1, keepdims=True) + attributes["eps"])
        return (wide * scale).astype(x.dtype) * gain

    def rope(x: Any) -> Any:
        first, second = jnp.split(x, 2, -1)
        return jnp.concatenate([first * cosine - second * sine, second * cosine + first * sine], -1)

    def block(w: Any) -> Any:
        h = norm(w["x"], w["g_attn"])
        q, k, v = (jnp.einsum("tm,hdm->thd", h, w[name]) for name in ("w_q", "w_k", "w_v"))
        a = jax.nn.dot_product_attention(
            rope(q)[None], rope(k)[None], v[None], is_causal=True, implementation=implementation
        )[0]
        r = w["x"] + jnp.einsum("thd,mhd->tm", a, w["w_o"])
        n = norm(r, w["g_ffn"])
        return r + (jax.nn.silu(n @ w["w_gate"].T) * (n @ w["w_up"].T)) @ w["w_down"].T

    return block
