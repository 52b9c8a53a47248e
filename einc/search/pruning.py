"""The candidates that are worth a table: on many sites, tables of all pairs of candidates would take too long.

A candidate whose kernels alone make every plan slower than one that is known need not be looked at. Of the others, the
fastest MAX_CANDIDATES of each operator are, and fewer on very many sites.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from einc.core.tensor import Array
from einc.logical.plan import Candidate
from einc.machines.model import Machine
from einc.machines.site_counts import LARGE_MACHINE_SITES, MANY_SITES
from einc.ops.base import Operator
from einc.search.neighbours import sum_times
from einc.search.space import Assignment, SearchSpace
from einc.search.tables import KnownTimes, build_time_problems, time_candidates

MAX_CANDIDATES = 64
"""Candidates of an operator that are looked at on up to LARGE_MACHINE_SITES sites. The time of a table grows with the
square of their number and with that of the sites; on more sites, fewer are looked at, so that it grows as the sites do.
"""

MANY_KINDS = 48
"""Of a graph with more unlike operators, such as a training step, fewer candidates of each are looked at, so that there
are about as many tables' entries."""

MIN_CANDIDATES, FOR_ALL = 12, 60.0
"""With a time limit of FOR_ALL seconds or more as many are looked at, and fewer, down to MIN_CANDIDATES, with less."""

SLACK = 1.25
"""Plans may be slower than the fastest known one by this factor, as the tables do not see everything."""


def limit_candidates(sites: int) -> float:
    """How many candidates of an operator are worth a table on more than MANY_SITES sites."""
    return MAX_CANDIDATES * math.sqrt(LARGE_MACHINE_SITES / max(LARGE_MACHINE_SITES, sites))


def keep_fastest(
    operator: Operator, options: tuple[Candidate, ...], machine: Machine, sites: int, known: KnownTimes
) -> tuple[Candidate, ...]:
    """Those with the fastest kernels, as many as are worth a table, in their order; all on up to MANY_SITES sites."""
    if sites <= MANY_SITES:
        return options
    times = time_candidates(operator, options, machine, known)
    return tuple(options[c] for c in sorted(np.argsort(times, kind="stable")[: int(limit_candidates(sites))].tolist()))


def find_worthwhile(space: SearchSpace, known: Sequence[Assignment], seconds: float = math.inf) -> list[Array] | None:
    """Per node the positions of the candidates that are worth a table, ascending; None if all are.

    `known` are some plans; their candidates may be dropped as well, except by MAX_CANDIDATES. Where the search has less
    than FOR_ALL `seconds`, fewer candidates are looked at.
    """
    if space.sites <= MANY_SITES:
        return None
    graph, problem, machine = space.graph, space.problem, space.machine
    singles: dict[tuple[int, int], tuple[Candidate, ...]] = {}

    def measure(assignment: Assignment) -> int:
        """What the tables of a single plan say, with synthesized exchanges."""
        options = [
            singles.setdefault((id(candidates), c), (candidates[c],))
            for candidates, c in zip(problem.candidates, assignment, strict=True)
        ]
        _, promises = build_time_problems(graph, options, machine, space.sites, once=space.once, known=space.known)
        return sum_times(promises, (0,) * len(options))

    kinds = len({id(options) for options in problem.candidates})
    affordable = limit_candidates(space.sites) * min(1.0, MANY_KINDS / kinds)
    most = max(MIN_CANDIDATES, int(affordable * min(1.0, seconds / FOR_ALL)))
    times: dict[int, Array] = {}
    for node, options in zip(graph.nodes, problem.candidates, strict=True):
        if id(options) not in times:
            times[id(options)] = time_candidates(node.operator, options, machine, space.known)
    options_times = [times[id(options)] for options in problem.candidates]
    least = sum(int(option_times.min()) for option_times in options_times)
    slack = SLACK * min(map(measure, known)) - least
    chosen: dict[int, set[int]] = {}
    for assignment in known:
        for options, c in zip(problem.candidates, assignment, strict=True):
            chosen.setdefault(id(options), set()).add(c)
    kept = []
    for options, option_times in zip(problem.candidates, options_times, strict=True):
        fastest = np.argsort(option_times, kind="stable")[:most].tolist()
        few = np.array(sorted({*fastest, *chosen[id(options)]}))
        kept.append(few[option_times[few] - option_times.min() <= max(0.0, slack)])
    return kept
