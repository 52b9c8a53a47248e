"""Attention as libraries take it: 16-bit types, whole heads of one width, packed sequences whose last query sees the
last key, no mask, no soft cap and no positions of their own. What else there is, our own kernel computes."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from einc_runtime.dtypes import Array
from einc_runtime.kernels.base import address, dtype_name
from einc_runtime.kernels.calls.attention import Attention
from einc_runtime.kernels.triton.plan import ALIGNMENT

WIDEST = 256
"""Elements of a head."""
MOST_ELEMENTS = 1 << 31
"""Between the first and the last of a view: offsets beyond are 64 bits wide, which not all libraries have."""


@dataclass(frozen=True, slots=True)
class Packed:
    """Sequences of queries and keys one behind the other: where each begins, and where the last one ends.

    Keys count from `first_key` of the block. Of a sequence the last query and the last key are at one place.
    """

    queries: tuple[int, ...]
    keys: tuple[int, ...]
    first_key: int
    causal: bool
    window: int
    scale: float

    @property
    def longest(self) -> tuple[int, int]:
        return max(_gaps(self.queries)), max(_gaps(self.keys))

    @property
    def one_square(self) -> bool:
        """One sequence of which all causal masks mean the same, whichever corner they are aligned to."""
        return len(self.queries) == 2 and not self.window and (not self.causal or self.queries == self.keys)

    @property
    def whole_tiles(self) -> bool:
        return not any(mark % 64 for mark in (*self.queries, *self.keys))

    @property
    def kind(self) -> tuple[object, ...]:
        """Equal for invocations whose `small` ones are."""
        return self.small.queries, self.small.keys, self.causal, self.window > 0, self.scale

    @property
    def small(self) -> Packed:
        """A small invocation of the same kind: one sequence where that is all, of whole tiles where it has such, and
        with more keys than queries where their numbers differ; otherwise two sequences of different lengths."""
        window = min(self.window, 7)
        if self.one_square:
            own, more = (128, 192) if self.whole_tiles else (130, 199)
            return Packed((0, own), (0, own if self.queries == self.keys else more), 0, self.causal, window, self.scale)
        queries = (0, 1, 2) if self.longest[0] == 1 else (0, 23, 40)
        return Packed(queries, (0, 31, 72), 0, self.causal, window, self.scale)


def packed(signature: Attention) -> Packed | None:
    """The invocation in terms of libraries, or None if it has none."""
    s = signature
    width = s.q.shape[2]
    if dtype_name(s.q) not in ("f16", "bf16") or s.v.shape[2] != width or width % 8 or width > WIDEST:
        return None
    if s.mask is not None or s.positions is not None or s.softcap or not all(map(_walkable, (s.q, s.k, s.v))):
        return None
    queries: list[int] = [0]
    keys: list[int] = []
    for rows in s.sequences():
        own, (lo, up) = rows.queries.stop - rows.queries.start, rows.keys
        if lo == up or (keys and keys[-1] != lo):
            return None
        if s.visible.limited and rows.queries.start + rows.ahead - lo != (up - lo) - own:
            return None
        if s.visible.limited and own > up - lo:
            return None  # some queries would see nothing
        queries.append(rows.queries.stop)
        keys += [up] if keys else [lo, up]
    if not keys:
        return None
    first = keys[0]
    return Packed(
        tuple(queries), tuple(key - first for key in keys), first, s.visible.causal, s.visible.window, s.scale
    )


def _walkable(view: Array) -> bool:
    """Rows of elements side by side that begin where 16 bytes can be read at once, and not too far apart."""
    rows = [(extent, stride) for extent, stride in zip(view.shape, view.strides, strict=True)][:-1]
    far = sum((extent - 1) * stride for extent, stride in rows) // view.itemsize
    aligned = all(stride % ALIGNMENT == 0 and stride > 0 for extent, stride in rows if extent > 1)
    return view.strides[-1] == view.itemsize and aligned and not address(view) % ALIGNMENT and far < MOST_ELEMENTS


def _gaps(marks: Sequence[int]) -> list[int]:
    return [up - lo for lo, up in itertools.pairwise(marks)]
