"""Which keys every query of an invocation of attention sees, as machine code reads it."""

from __future__ import annotations

import numpy as np

from einc_runtime.dtypes import Array
from einc_runtime.kernels.calls.attention import HIGHEST_POSITION, LOWEST_POSITION, AttentionCall


def find_visible_keys(s: AttentionCall, first: Array, last: Array) -> None:
    """Writes the keys that every query sees, from `first` to `last`, within the block."""
    for rows in s.sequences():
        (lo, up), own = rows.keys, rows.queries
        found = np.arange(own.start, own.stop) if s.positions is None else s.positions[own]
        after = np.clip(found.astype(np.dtype(np.int64)), LOWEST_POSITION, HIGHEST_POSITION) + (rows.ahead + 1)
        last[own] = np.clip(after, lo, up) if s.visible.causal else up
        first[own] = np.clip(after - s.visible.window, lo, last[own]) if s.visible.window else lo
