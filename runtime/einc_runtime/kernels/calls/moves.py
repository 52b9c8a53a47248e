"""Calls of the kernels that move elements without computing: `reshape`, `append`, and copies.

Attributes, arrays and blocks are checked against each other; the values of ids and positions are checked when kernels
run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from einc_runtime.dtypes import FLOATS, NARROW_FLOATS, Array
from einc_runtime.errors import PlanFault, ValueFault
from einc_runtime.kernels.base import Invocation, dtype_name
from einc_runtime.plan.states import IN_PLACE


def parse_reshape(invocation: Invocation[Array]) -> tuple[Array, Array]:
    """The input and the output of a `reshape`, which have the same elements in row-major order."""
    invocation.allow()
    source, target = invocation.input, invocation.output
    if source.dtype != target.dtype or source.size != target.size:
        raise PlanFault(f"reshape of {source.size} elements of {source.dtype} into {target.size} of {target.dtype}")
    return source, target


def require_equal_forms(reads: Sequence[Array], writes: Sequence[Array]) -> None:
    """Raises PlanFault where the two sides of a copy differ in shape or type."""
    for source, target in zip(reads, writes, strict=True):
        if source.shape != target.shape or source.dtype != target.dtype:
            raise PlanFault(f"a region of {source.shape} {source.dtype} moves to one of {target.shape} {target.dtype}")


@dataclass(frozen=True, slots=True)
class AppendCall:
    """A block of a cache, and new rows for its sequences, which are rounded where the cache has floats of 8 bits.

    New row t has the position `positions[t]` in its sequence, which has `extents[t]` rows in the cache. It is written
    to row `positions[t] + origins[t]` of the block, if the block has that row. `in_place`, the target is the cache.
    """

    cache: Array
    new: Array
    positions: Array
    target: Array
    extents: Array
    origins: Array
    in_place: bool

    @staticmethod
    def parse(invocation: Invocation[Array]) -> AppendCall:
        invocation.allow("cache_lens", "new_lens", IN_PLACE)
        (cache, new, positions), target = invocation.operands(3), invocation.output
        cache_lens, new_lens = (np.array(invocation.integers(n), np.int64) for n in ("cache_lens", "new_lens"))
        kinds = dtype_name(new), dtype_name(target)
        fits = kinds[0] == kinds[1] or (kinds[0] in FLOATS and kinds[1] in NARROW_FLOATS)
        if cache.shape != target.shape or cache.dtype != target.dtype or not fits or cache.ndim != 3:
            raise PlanFault(f"append to {cache.dtype}{cache.shape} as {target.dtype}{target.shape}")
        if new.ndim != 3 or new.shape[::2] != cache.shape[::2] or positions.shape != new.shape[1:2]:
            raise PlanFault(f"append of {new.shape} at {positions.shape} positions to {cache.shape}")
        if positions.dtype.kind != "i" or len(cache_lens) != len(new_lens):
            raise PlanFault("append takes integer positions, and as many sequences of new rows as of the cache")
        rows, fresh = invocation.output_blocks[0], invocation.input_blocks[1]
        (low, up), (first, last) = ((block.lower[1], block.upper[1]) for block in (rows, fresh))
        cache_ends, new_ends = np.cumsum(cache_lens), np.cumsum(new_lens)
        if up - low != cache.shape[1] or last - first != new.shape[1] or up > cache_ends[-1] or last > new_ends[-1]:
            raise PlanFault(f"append of new rows {first} to {last} to rows {low} to {up}, which do not exist")
        begun, ended = np.searchsorted(cache_ends, low, side="right"), np.searchsorted(cache_ends, up)
        if first > new_ends[begun] - new_lens[begun] or last < new_ends[ended]:
            raise PlanFault(f"append to rows {low} to {up} lacks new rows: it has {first} to {last}")
        in_place = bool(invocation.attributes.get(IN_PLACE, False))
        sequence = np.searchsorted(new_ends, np.arange(first, last), side="right")
        extents = cache_lens[sequence]
        return AppendCall(cache, new, positions, target, extents, cache_ends[sequence] - extents - low, in_place)

    @property
    def status_message(self) -> str:
        """The error of an execution on a GPU, which says only that some position is wrong."""
        return "a position is outside of its sequence of the cache"

    def require_positions(self) -> None:
        """Raises ValueFault for a position outside of its sequence. The positions are read now."""
        wrong = (self.positions < 0) | (self.positions >= self.extents)
        if wrong.any():
            at = int(np.argmax(wrong))
            position, last = int(self.positions[at]), int(self.extents[at]) - 1
            raise ValueFault(f"a position is {position}; positions in its sequence of the cache are 0 to {last}")
