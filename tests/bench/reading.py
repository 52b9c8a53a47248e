"""As many bytes as a step of a plan reads, read in turns with it: what the bandwidth of this computer allows.

A step reads all weights once, of the table of the embedding only some rows, and all caches.
"""

from __future__ import annotations

import math

import numpy as np

from einc_runtime.plan.schema import ITEMSIZE, Bundle
from tests.bench.bandwidth import LANES, SUMS, read, run_together


def count_bytes(bundle: Bundle) -> int:
    """The bytes of all weights but the table, and of all caches."""
    return sum(
        math.prod(one.shape) * ITEMSIZE[one.dtype]
        for one in bundle.tensors
        if one.kind in ("weight", "state") and one.name != "table"
    )


def prepared(bundle: Bundle, threads: int):
    step = threads * SUMS * LANES
    values = np.ones(-(-count_bytes(bundle) // 4 // step) * step, np.float32)
    calls = [read(part) for part in np.split(values, threads)]
    return lambda: run_together(calls), lambda: np.zeros(0, np.float32)
