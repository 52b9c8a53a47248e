"""Which keys every query of an invocation of attention sees, as machine code reads it."""

from __future__ import annotations

import numpy as np

from einc_runtime.dtypes import Array
from einc_runtime.kernels.calls.attention import HIGHEST_POSITION, LOWEST_POSITION, AttentionCall


def find_visible_keys(s: AttentionCall, first: Array, last: Array) -> None:
    """Writes the keys that every query sees, from `first` to `last`, within the block."""
    for rows in s.sequences():
        (lo, up), queries = rows.keys, rows.queries
        positions = np.arange(queries.start, queries.stop) if s.positions is None else s.positions[queries]
        after = np.clip(positions.astype(np.dtype(np.int64)), LOWEST_POSITION, HIGHEST_POSITION) + (rows.ahead + 1)
        last[queries] = np.clip(after, lo, up) if s.visible.causal else up
        first[queries] = np.clip(after - s.visible.window, lo, last[queries]) if s.visible.window else lo
