"""Where the search starts from: plans that are best by a simple measure, and well-known plans."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from einc.logical.minsum import minimize
from einc.logical.plan import LogicalPlan
from einc.options import BASELINES
from einc.search.baselines import build_baselines, count_near_sites
from einc.search.branches import make_parallel_branch_tables
from einc.search.neighbours import improve_singly, sum_times
from einc.search.pruning import find_worthwhile
from einc.search.space import Assignment, SearchSpace
from einc.search.tables import TimeProblem

TIME, TIME_SYNTHESIZED, SIDE_BY_SIDE = "time", "time, synthesized", "side by side"
TOGETHER = "time, together"
PAPER = "paper"
"""Names of contenders: the optimum of the time tables for naive and for synthesized exchanges, that of tables that
favour independent parts on different sites, that for naive exchanges where idle sites stay idle (`LogicalPlan.spread`),
and that of the paper's cost. Baselines have their own names."""

KNOWN = frozenset(name for variants in BASELINES.values() for name in variants)
"""The names of well-known plans."""

MAX_TABLE_TIME_RATIO, MAX_NAIVE_TIME_RATIO, MAX_EVEN_TIME_RATIO = 3.0, 1.5, 1.1
"""A plan is not built if the tables say that it takes so many times the least; on many sites, where it takes long, also
if they say it of naive exchanges: plans that are much slower with these are not completed. With equal links, tables are
exact but for what overlaps."""


MIN_IMPROVED = 128
"""Operators of a graph from which on there is a plan in place of an optimum that is too hard to find: for fewer,
descents over whole plans find better ones."""


@dataclass(frozen=True, slots=True)
class Starts:
    """Plans to start from, by the names of contenders; None for one whose tables would be too large.

    Those in `together` do not run side by side (`LogicalPlan.spread`). `reasons` say why other contenders are none.
    """

    plans: Mapping[str, Assignment | None]
    together: frozenset[str]
    reasons: Mapping[str, str]


def list_known_starts(space: SearchSpace, paper: LogicalPlan) -> Starts:
    """The plan that is best by the paper's cost, and the baselines."""
    plans: dict[str, Assignment | None] = {PAPER: space.find_assignment(paper)}
    together, reasons = set(), {}
    near = count_near_sites(space.machine, space.sites)
    for baseline in build_baselines(space.graph, space.problem, space.sites, near=near):
        if baseline.chosen is not None and baseline.same_as is None:
            plans[baseline.name] = baseline.chosen
        else:
            reasons[baseline.name] = baseline.reason or f"as {baseline.same_as}"
        if not baseline.spread:
            together.add(baseline.name)
    return Starts(plans, frozenset(together), reasons)


def keep_worthwhile(space: SearchSpace, starts: Starts, seconds: float) -> tuple[SearchSpace, Starts]:
    """Leaves out candidates that are not worth a table (`find_worthwhile`), and plans that have one of them."""
    known = [start for start in starts.plans.values() if start is not None]
    kept = find_worthwhile(space, known, seconds)
    if kept is None:
        return space, starts
    places = [{int(old): new for new, old in enumerate(positions)} for positions in kept]
    plans: dict[str, Assignment | None] = {}
    reasons = dict(starts.reasons)
    for name, start in starts.plans.items():
        if start is not None and all(c in positions for positions, c in zip(places, start, strict=True)):
            plans[name] = tuple(positions[c] for positions, c in zip(places, start, strict=True))
        else:
            reasons[name] = "its kernels alone take longer than other plans"
    return space.select(kept), Starts(plans, starts.together, reasons)


def add_optima(starts: Starts, space: SearchSpace, naive: TimeProblem, synthesized: TimeProblem | None) -> Starts:
    """The starts with the optima of the time tables; `synthesized` is None where no such exchanges were asked for."""
    exact = minimize(naive.node_times, naive.tables)
    plans = {TIME: exact or _improve_starts(naive, starts), **starts.plans}
    if synthesized is not None:
        best = minimize(synthesized.node_times, synthesized.tables)
        plans[TIME_SYNTHESIZED] = best or _improve_starts(synthesized, starts)
    branches = make_parallel_branch_tables(space, naive)
    if branches is not None:
        plans[SIDE_BY_SIDE] = minimize(branches.node_times, branches.tables)
    if exact is None or not space.leaves_idle(exact):
        return Starts(plans, starts.together, starts.reasons)
    return Starts({**plans, TOGETHER: exact}, starts.together | {TOGETHER}, starts.reasons)


def _improve_starts(tables: TimeProblem, starts: Starts) -> Assignment | None:
    """In place of an optimum that would take too long to find, as that of a training step: the best plan to which
    changes of one operator lead from the starts."""
    known = [start for start in starts.plans.values() if start is not None]
    if len(tables.node_times) < MIN_IMPROVED or not known:
        return None
    return min((improve_singly(tables, start) for start in known), key=lambda plan: sum_times(tables, plan))


def find_slow(
    plans: Mapping[str, Assignment | None], naive: TimeProblem, promises: TimeProblem, *, even: bool, many: bool
) -> frozenset[str]:
    """The names of plans that are not worth building; `even` says whether all links are equal, and `many` whether there
    are many sites."""
    ratios = [(promises, MAX_TABLE_TIME_RATIO)]
    if many:
        ratios.append((naive, MAX_EVEN_TIME_RATIO if even else MAX_NAIVE_TIME_RATIO))
    slow: set[str] = set()
    for tables, ratio in ratios:
        times = {name: sum_times(tables, plan) for name, plan in plans.items() if plan is not None}
        slow |= {name for name, time in times.items() if time > ratio * min(times.values())}
    return frozenset(slow)
