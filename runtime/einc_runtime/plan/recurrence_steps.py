"""What a step of a recurrence takes on a GPU: the tiles that a program holds, and the chain that the next waits for.

The compiler's costs and the kernels ask the same functions, so that a plan is predicted as it is run.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from einc_runtime.plan.recurrences import Recurrence

MAX_TILE_ELEMENTS = 1 << 13
"""Elements of the largest tile that a program of a GPU holds in registers, with which it goes through all steps: 64 for
each of 128 threads."""


def count_tile(recurrence: Recurrence, extents: Mapping[str, int]) -> int:
    """The elements of the largest tile that a GPU computes at once at one independent position."""
    gone = {recurrence.along, *recurrence.independent_loops}
    return max(
        math.prod(_round_up(extents[name]) for name in equation.all_loops if name not in gone)
        for equation in recurrence.equations
    )


def measure_chain(recurrence: Recurrence, extents: Mapping[str, int]) -> tuple[int, int]:
    """Of the longest chain of one step, the scalar functions and the levels of trees that aggregate."""
    chains: list[tuple[int, int]] = []
    for equation in recurrence.equations:
        sources = [chains[read.source] for read in equation.value_reads if not read.before]
        depth, levels = max(sources, key=lambda chain: chain[::-1], default=(0, 0))
        terms = math.prod(extents[name] for name in equation.reduced)
        chains.append((depth + equation.scalar.depth, levels + (terms - 1).bit_length()))
    return max(chains, key=lambda chain: chain[::-1])


def _round_up(extent: int) -> int:
    """The power of two that an axis of a tile has."""
    return 1 << (extent - 1).bit_length()
