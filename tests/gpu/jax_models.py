"""The benchmarks in JAX: matrix chains, and the block with jax.nn.dot_product_attention, on one device or several.

On several devices the tokens of a block, and the rows of the left operands of a chain, are sharded; everything else is
replicated, and XLA places the rest.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from einc_runtime.dtypes import storage_dtype
from einc_runtime.plan.schema import Bundle

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

_PLATFORMS = {"gpu": ("gpu", "cuda")}
"""What JAX calls the platform: older versions say gpu, plug-ins may say cuda."""


def prepared(
    bundle: Bundle, arrays: Mapping[str, np.ndarray[Any, np.dtype[Any]]], backend: str = "gpu", devices: int = 1
) -> tuple[Callable[[], Any], str]:
    """A call that enqueues one computation and gives its result, compiled; and the version with the kind of attention.

    Raises ImportError where JAX is missing or has no GPU.
    """
    import jax

    if jax.default_backend() not in _PLATFORMS.get(backend, (backend,)):
        raise ImportError(f"jax has no {backend} here")
    given = _place(bundle, arrays, devices)
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
                raise ImportError(f"jax cannot run it: {type(error).__name__}: {error}"[:200]) from error
            continue
        return partial(function, given), f"{jax.__version__} {implementation}"
    raise ImportError("jax cannot run it")


def _place(bundle: Bundle, arrays: Mapping[str, np.ndarray[Any, np.dtype[Any]]], devices: int) -> dict[str, Any]:
    """The arrays on their devices."""
    import jax
    from jax.sharding import Mesh, NamedSharding
    from jax.sharding import PartitionSpec as P

    if devices == 1:
        return {name: jax.device_put(array, jax.devices()[0]) for name, array in arrays.items()}
    if devices > len(jax.devices()):
        raise ImportError(f"jax has {len(jax.devices())} devices here, and not {devices}")
    cut = {"x"}
    if bundle.model.startswith("chain_"):
        cut = {bundle.tensors[operation.inputs[0]].name for operation in bundle.operations}
    mesh = Mesh(np.array(jax.devices()[:devices]), ("sites",))
    places = {name: NamedSharding(mesh, P("sites") if name in cut else P()) for name in arrays}
    return {name: jax.device_put(array, places[name]) for name, array in arrays.items()}


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
    lengths = [int(length) for length in attributes["seq_lens"]]
    if len(set(lengths)) > 1:
        raise ImportError("the block in JAX takes sequences of one length")
    count, tokens = len(lengths), lengths[0]
    shapes = {tensor.name: tensor.shape for tensor in bundle.tensors}
    d_head = shapes["w_q"][1]
    angles = np.arange(tokens)[:, None] * attributes["theta"] ** (-np.arange(0, d_head, 2) / d_head)
    kind = storage_dtype(next(tensor.dtype for tensor in bundle.tensors if tensor.name == "x"))
    cosine, sine = (np.tile(table[:, None], (count, 1, 1)).astype(kind) for table in (np.cos(angles), np.sin(angles)))

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
        apart = (each.reshape(count, tokens, *each.shape[1:]) for each in (rope(q), rope(k), v))
        a = jax.nn.dot_product_attention(*apart, is_causal=True, implementation=implementation)
        a = a.reshape(q.shape)
        r = w["x"] + jnp.einsum("thd,mhd->tm", a, w["w_o"])
        n = norm(r, w["g_ffn"])
        return r + (jax.nn.silu(n @ w["w_gate"].T) * (n @ w["w_up"].T)) @ w["w_down"].T

    return block
