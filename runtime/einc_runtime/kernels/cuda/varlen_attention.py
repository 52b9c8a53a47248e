"""Attention of packed sequences as libraries take it, its definition, and a test of libraries against the definition.

Libraries compute 16-bit types, whole heads of one width, and packed sequences whose last query sees the last key; no
mask, no soft cap and no positions as inputs. Our own kernel computes everything else. The test detects a library whose
causal mask is aligned differently, or whose lse has another base or layout, before it can spoil a result.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from einc_runtime.dtypes import Array
from einc_runtime.kernels.base import address, dtype_name
from einc_runtime.kernels.calls.attention import AttentionCall
from einc_runtime.kernels.triton.launches import POINTER_ALIGNMENT

MAX_HEAD_WIDTH = 256
"""The greatest number of elements in a head."""
MAX_VIEW_ELEMENTS = 1 << 31
"""The greatest offset in a view; beyond it offsets need 64 bits, which not all libraries have."""


class UnusableLibrary(Exception):
    """A library that is installed but cannot be used."""


def require_cuda(torch: Any) -> None:
    """Raises ImportError for a PyTorch without CUDA, and UnusableLibrary for one that cannot use this GPU."""
    if torch.version.cuda is None:
        raise ImportError("a build of PyTorch for the CPU")
    if not torch.cuda.is_available():
        raise UnusableLibrary(f"PyTorch {torch.__version__} finds no GPU")
    calls = ("_cuda_beginAllocateCurrentThreadToPool", "_cuda_endAllocateToPool", "_cuda_releasePool")
    if not all(hasattr(torch._C, name) for name in calls) or not hasattr(torch.cuda.MemPool, "use_count"):
        raise UnusableLibrary(f"PyTorch {torch.__version__} has no pools of memory that last")


@dataclass(frozen=True, slots=True)
class VarlenAttention:
    """Packed sequences of queries and keys: `queries` and `keys` hold where each begins, and where the last one ends.

    Keys are counted from `first_key` of the block. The last query of a sequence is at the place of its last key.
    """

    queries: tuple[int, ...]
    keys: tuple[int, ...]
    first_key: int
    causal: bool
    window: int
    scale: float

    @property
    def longest(self) -> tuple[int, int]:
        """The greatest number of queries and of keys in a sequence."""
        return max(_gaps(self.queries)), max(_gaps(self.keys))

    @property
    def one_square(self) -> bool:
        """Whether it is one sequence for which all causal masks are equal, whichever corner they are aligned to."""
        return len(self.queries) == 2 and not self.window and (not self.causal or self.queries == self.keys)

    @property
    def is_batch(self) -> bool:
        """Whether all sequences have as many queries, and as many keys, and no window: then they are one batch."""
        return not self.window and len({*_gaps(self.queries)}) == len({*_gaps(self.keys)}) == 1

    @property
    def whole_tiles(self) -> bool:
        """Whether all sequences begin and end at multiples of 64."""
        return not any(mark % 64 for mark in (*self.queries, *self.keys))

    @property
    def kind(self) -> tuple[object, ...]:
        """A key that is equal for invocations with the same `small` invocation."""
        return self.small.queries, self.small.keys, self.causal, self.window > 0, self.scale

    @property
    def small(self) -> VarlenAttention:
        """A small invocation of the same kind, for a test: one sequence if it is `one_square`, of whole tiles if this
        one is, with more keys than queries if their numbers differ; one, or two equal ones, if this `is_batch`;
        otherwise two sequences of different lengths."""
        window = min(self.window, 7)
        if self.one_square:
            few_queries, few_keys = (128, 192) if self.whole_tiles else (130, 199)
            return VarlenAttention(
                (0, few_queries),
                (0, few_queries if self.queries == self.keys else few_keys),
                0,
                self.causal,
                window,
                self.scale,
            )
        if self.is_batch:
            few_queries, few_keys = (64, 128) if self.whole_tiles else (37, 50)
            few_queries = 1 if self.longest[0] == 1 else few_queries
            few_keys = few_queries if self.queries == self.keys else few_keys
            count = min(len(self.queries), 3)
            marks = tuple(range(0, count * few_queries, few_queries)), tuple(range(0, count * few_keys, few_keys))
            return VarlenAttention(*marks, 0, self.causal, window, self.scale)
        queries = (0, 1, 2) if self.longest[0] == 1 else (0, 23, 40)
        return VarlenAttention(queries, (0, 31, 72), 0, self.causal, window, self.scale)


def as_varlen(call: AttentionCall) -> VarlenAttention | None:
    """The invocation for libraries, or None if they cannot express it."""
    s = call
    width = s.q.shape[2]
    if dtype_name(s.q) not in ("f16", "bf16") or s.v.shape[2] != width or width % 8 or width > MAX_HEAD_WIDTH:
        return None
    extra = s.mask is not None or s.positions is not None or s.spans is not None
    if extra or s.softcap or not all(map(_is_readable, (s.q, s.k, s.v))):
        return None
    queries: list[int] = [0]
    keys: list[int] = []
    for rows in s.sequences():
        row_count, (lo, up) = rows.queries.stop - rows.queries.start, rows.keys
        if lo == up or (keys and keys[-1] != lo):
            return None
        if s.visible.limited and rows.queries.start + rows.ahead - lo != (up - lo) - row_count:
            return None
        if s.visible.limited and row_count > up - lo:
            return None  # some queries would see no key
        queries.append(rows.queries.stop)
        keys += [up] if keys else [lo, up]
    if not keys:
        return None
    first = keys[0]
    return VarlenAttention(
        tuple(queries), tuple(key - first for key in keys), first, s.visible.causal, s.visible.window, s.scale
    )


def _is_readable(view: Array) -> bool:
    """Whether rows are dense, begin at multiples of 16 bytes, and are not too far apart."""
    rows = [(extent, stride) for extent, stride in zip(view.shape, view.strides, strict=True)][:-1]
    far = sum((extent - 1) * stride for extent, stride in rows) // view.itemsize
    aligned = all(stride % POINTER_ALIGNMENT == 0 and stride > 0 for extent, stride in rows if extent > 1)
    return (
        view.strides[-1] == view.itemsize
        and aligned
        and not address(view) % POINTER_ALIGNMENT
        and far < MAX_VIEW_ELEMENTS
    )


def _gaps(marks: Sequence[int]) -> list[int]:
    return [up - lo for lo, up in itertools.pairwise(marks)]


_MAX_PROBE_ERROR = 0.03
"""The greatest error: more than 16-bit types lose, and far less than another mask or base of the logarithm causes."""

Attend = Callable[[Any, Any, Any, Any, Any, VarlenAttention, Any], tuple[Any, Any]]
"""A function of a library. It takes q, k and v (tokens, heads, elements), the bounds of the sequences of queries and of
keys as tensors of i32, what is computed, and a tensor in the form of q. It returns o and the lse (heads, tokens); o is
that tensor if the library can write there, or a new one."""


def attend_by_definition(q: Array, k: Array, v: Array, how: VarlenAttention) -> tuple[Array, Array]:
    """The definition of attention, in float64; arrays as in `Attend`."""
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    o, lse = np.zeros(q.shape), np.zeros((q.shape[1], q.shape[0]))
    group = q.shape[1] // k.shape[1]
    for (q0, q1), (k0, k1) in zip(itertools.pairwise(how.queries), itertools.pairwise(how.keys), strict=True):
        query_places = np.arange(q1 - q0)[:, None] + (k1 - k0) - (q1 - q0)
        key = np.arange(k1 - k0)
        seen = (key <= query_places) if how.causal else np.ones((q1 - q0, k1 - k0), bool)
        if how.window:
            seen &= key > query_places - how.window
        for h in range(q.shape[1]):
            scores = np.where(seen, how.scale * q[q0:q1, h] @ k[k0:k1, h // group].T, -np.inf)
            largest = scores.max(1, keepdims=True)
            weights = np.exp(scores - largest)
            total = weights.sum(1, keepdims=True)
            o[q0:q1, h], lse[h, q0:q1] = weights @ v[k0:k1, h // group] / total, (largest + np.log(total))[:, 0]
    return o, lse


def find_flaw(attend: Attend, how: VarlenAttention, kind: str, group: int, width: int, device: Any) -> str | None:
    """What is wrong with a library's result for a small invocation of this kind; None if it is right."""
    import torch

    try:
        rng, few = np.random.default_rng(5), how.small
        counts = ((few.queries[-1], 2 * group), (few.keys[-1], 2), (few.keys[-1], 2))
        arrays = [rng.standard_normal((heads, tokens, width)) for tokens, heads in counts]
        arrays[0] *= min(8.0, 1 / max(1e-6, abs(few.scale) * width**0.5))  # so that scores are of moderate size
        dtype = torch.float16 if kind == "f16" else torch.bfloat16
        tensors = [torch.from_numpy(x).to(dtype).to(device).permute(1, 0, 2) for x in arrays]
        rounded = [x.double().cpu().numpy() for x in tensors]
        bounds = [torch.tensor(marks, dtype=torch.int32, device=device) for marks in (few.queries, few.keys)]
        with torch.no_grad():
            into = torch.full_like(tensors[0], torch.nan)
            results = attend(tensors[0], tensors[1], tensors[2], bounds[0], bounds[1], few, into)
        expected = attend_by_definition(rounded[0], rounded[1], rounded[2], few)
        for name, computed, true in zip(("result", "lse"), results, expected, strict=True):
            if tuple(computed.shape) != true.shape:
                return f"its {name} has the shape {tuple(computed.shape)}, and not {true.shape}"
            error = float(np.abs(computed.double().cpu().numpy() - true).max())
            if not error <= _MAX_PROBE_ERROR * max(1.0, float(np.abs(true).max())):
                return f"its {name} of a small test is off by {error:.2g}"
    except Exception as error:  # a library may raise anything on a device that it does not support
        return f"{type(error).__name__}: {error}"
    return None
