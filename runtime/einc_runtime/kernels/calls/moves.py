"""Calls of the kernel `append`. The values of positions are checked when it runs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from einc_runtime.dtypes import Array
from einc_runtime.errors import ValueFault
from einc_runtime.kernels.base import Invocation
from einc_runtime.plan.states import IN_PLACE


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
        cache, new, positions = invocation.inputs
        cache_lens, new_lens = (
            np.array(invocation.attribute(name, list), np.int64) for name in ("cache_lens", "new_lens")
        )
        rows, fresh = invocation.output_blocks[0], invocation.input_blocks[1]
        sequence = np.searchsorted(np.cumsum(new_lens), np.arange(fresh.lower[1], fresh.upper[1]), side="right")
        extents, ends = cache_lens[sequence], np.cumsum(cache_lens)[sequence]
        origins, in_place = ends - extents - rows.lower[1], bool(invocation.attributes.get(IN_PLACE))
        return AppendCall(cache, new, positions, invocation.output, extents, origins, in_place)

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
