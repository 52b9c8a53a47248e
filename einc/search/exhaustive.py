"""Small graphs: all plans, those first that could end first if independent operators ran side by side.

The time tables add up operators as if one ran after another. Where operators are few, what overlaps decides, and there
are few enough plans to estimate each: it takes no less than its longest chain of operators and exchanges, nor less than
the work of all operators spread over all sites. This ranks plans by the times of the tables; those that rank high are
built, and simulated.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from einc.core.tensor import Array
from einc.search.overlap import look_up_parts
from einc.search.space import Assignment, SearchSpace
from einc.search.tables import TimeProblem

MAX_COMBINATIONS = 1 << 17
"""Graphs with more plans are not small."""

MAX_LISTED = 400
"""Plans that are listed."""


def list_small_plans(space: SearchSpace, tables: TimeProblem) -> Iterator[tuple[int, Assignment]]:
    """The most promising of all plans, with the time that each takes at least, in picoseconds, ascending.

    The nodes of the graph are the variables of the tables. Nothing if there are too many plans.
    """
    shape = tuple(len(candidates) for candidates in space.problem.candidates)
    if math.prod(shape) > MAX_COMBINATIONS:
        return
    free = [v for v, count in enumerate(shape) if count > 1]  # an array has no more than 64 dimensions
    plans = np.zeros((len(shape), math.prod(shape)), dtype=np.int64)
    plans[free] = np.indices([shape[v] for v in free]).reshape(len(free), math.prod(shape))
    least = _estimate(space, tables, plans)
    added = sum(times[plans[v]] for v, times in enumerate(tables.node_times))
    for n in np.lexsort((added, least))[:MAX_LISTED]:
        yield int(least[n]), tuple(int(c) for c in plans[:, n])


def _estimate(space: SearchSpace, tables: TimeProblem, plans: Array) -> Array:
    """What every plan (a column of candidates) takes at least."""
    sources = space.graph.sources
    computing, moving = look_up_parts(space.graph, tables, plans)
    used = [np.array([len(candidate.functions) for candidate in options]) for options in space.problem.candidates]
    load = sum(
        (computing[v] * used[v][plans[v]] for v in range(len(computing))), np.zeros(plans.shape[1], dtype=np.int64)
    )
    ends: list[Array] = []
    for v, before in enumerate(sources):
        begin = np.zeros(plans.shape[1], dtype=np.int64)
        for source in before:
            begin = np.maximum(begin, ends[source] + moving.get((source, v), 0))
        ends.append(begin + computing[v] + moving.get((v, v), 0))
    longest = np.max(ends, axis=0)
    least: Array = np.maximum(longest, load // space.sites)
    return least
