"""Whether a library computes attention as it is defined: what it is tried on, and what is wrong with it.

So a library whose causal mask is aligned otherwise, or whose lse has another base or layout, is seen here and not in a
result.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np

from einc_runtime.dtypes import Array
from einc_runtime.kernels.cuda.packed_attention import Packed

_FAR = 0.03
"""More than 16-bit types lose, and far less than what another mask or another base of the logarithm makes."""

Attend = Callable[[Any, Any, Any, Any, Any, Packed], tuple[Any, Any]]
"""Of q, k and v with the dimensions tokens, heads, elements; where sequences of queries and of keys begin and the last
one ends, as tensors of i32; and what is to be computed. Gives o in the form of q, and the lse by heads and tokens."""


def defined(q: Array, k: Array, v: Array, how: Packed) -> tuple[Array, Array]:
    """What is to be computed, in float64: arrays as in `Attend`."""
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    o, lse = np.zeros(q.shape), np.zeros((q.shape[1], q.shape[0]))
    group = q.shape[1] // k.shape[1]
    for (q0, q1), (k0, k1) in zip(itertools.pairwise(how.queries), itertools.pairwise(how.keys), strict=True):
        place = np.arange(q1 - q0)[:, None] + (k1 - k0) - (q1 - q0)
        key = np.arange(k1 - k0)
        seen = (key <= place) if how.causal else np.ones((q1 - q0, k1 - k0), bool)
        if how.window:
            seen &= key > place - how.window
        for h in range(q.shape[1]):
            scores = np.where(seen, how.scale * q[q0:q1, h] @ k[k0:k1, h // group].T, -np.inf)
            most = scores.max(1, keepdims=True)
            weights = np.exp(scores - most)
            total = weights.sum(1, keepdims=True)
            o[q0:q1, h], lse[h, q0:q1] = weights @ v[k0:k1, h // group] / total, (most + np.log(total))[:, 0]
    return o, lse


def flaw(attend: Attend, how: Packed, kind: str, group: int, width: int, device: Any) -> str | None:
    """What is wrong with how a library computes a small invocation of the kind; None if it is right."""
    import torch

    try:
        rng, few = np.random.default_rng(5), how.small
        counts = ((few.queries[-1], 2 * group), (few.keys[-1], 2), (few.keys[-1], 2))
        arrays = [rng.standard_normal((heads, tokens, width)) for tokens, heads in counts]
        arrays[0] *= min(8.0, 1 / max(1e-6, abs(few.scale) * width**0.5))  # scores of moderate size, whatever the scale
        dtype = torch.float16 if kind == "f16" else torch.bfloat16
        tensors = [torch.from_numpy(x).to(dtype).to(device).permute(1, 0, 2) for x in arrays]
        rounded = [x.double().cpu().numpy() for x in tensors]
        bounds = [torch.tensor(marks, dtype=torch.int32, device=device) for marks in (few.queries, few.keys)]
        with torch.no_grad():
            found = attend(tensors[0], tensors[1], tensors[2], bounds[0], bounds[1], few)
        wanted = defined(rounded[0], rounded[1], rounded[2], few)
        for name, own, true in zip(("result", "lse"), found, wanted, strict=True):
            if tuple(own.shape) != true.shape:
                return f"its {name} has the shape {tuple(own.shape)}, and not {true.shape}"
            error = float(np.abs(own.double().cpu().numpy() - true).max())
            if not error <= _FAR * max(1.0, float(np.abs(true).max())):
                return f"its {name} of a small test is off by {error:.2g}"
    except Exception as error:  # whatever a library says of a device that it has nothing for
        return f"{type(error).__name__}: {error}"
    return None
