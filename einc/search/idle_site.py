"""Another site never makes a plan slower, as it may have nothing to do: one site of a few, or most of hundreds.

The search on n sites does not see all plans of n - 1: operators that need fewer sites are placed on whichever are free,
so that with one more free site they may lie farther from their data. Where a number of sites has fewer divisors than
the one before it, operators can be cut evenly in fewer ways, and such a plan may be the fastest. There, the search is
made for one site less, too, unless the kernels alone say that it takes longer.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from einc.graph.graph import Graph
from einc.logical.candidates import enumerate_flexible_candidates
from einc.logical.pins import Pin
from einc.logical.plan import Candidate
from einc.machines.model import Machine
from einc.machines.site_counts import MANY_SITES, MAX_SWITCHED_SITES
from einc.ops.base import Operator
from einc.physical.budget import SearchBudget
from einc.physical.program import DeviceProgram
from einc.plan_report import Contender
from einc.predict.costs import describe_operator
from einc.predict.launches import compute_least_ms, find_joining
from einc.search.fastest import find_fastest
from einc.search.problem import measure_cut_cost
from einc.search.result import SelectedPlan

IDLE_SITE = "idle site"
"""The name of the contender that is the fastest plan on one site less."""

TIMES_LONGER = 4
"""A search on twice as many sites takes so many times as long."""


def find_fastest_or_idle(
    graph: Graph, machine: Machine, sites: int, *, budget: SearchBudget, pins: Sequence[Pin] = (), **options: Any
) -> SelectedPlan:
    """What `find_fastest` finds with the same options, or a plan on fewer sites, if that is faster.

    On more than MAX_SWITCHED_SITES sites, the search is made for a part of them first, and for twice as many as long as
    that makes the plan faster, or until it fits. On up to MANY_SITES, one may stay idle, but not with a time limit.
    With pins, which may say how many sites an operator has, no site is left out; nor where sites share cores, as an
    idle one leaves its cores to the others.
    """
    if pins or machine.cores is not None:
        return find_fastest(graph, machine, sites, budget=budget, pins=pins, **options)
    if sites > MAX_SWITCHED_SITES:
        return _grow(graph, machine, sites, budget, options)
    selected = find_fastest(graph, machine, sites, budget=budget, **options)
    free = not budget.limited and not budget.interrupted
    if selected.program is None or not free or not _has_fewer_divisors(sites):
        return selected
    if find_least_ms(graph, machine, sites - 1) >= selected.program.predicted_ms:
        return selected
    fewer = find_fastest(graph, machine, sites - 1, budget=budget, **options)
    if fewer.program is None or fewer.program.predicted_ms >= selected.program.predicted_ms:
        return selected
    return replace(leave_idle(fewer.program, selected), walk=selected.walk + fewer.walk)


def _grow(graph: Graph, machine: Machine, sites: int, budget: SearchBudget, options: Mapping[str, Any]) -> SelectedPlan:
    """The fastest of the plans on parts of the sites, from a part that is planned quickly up to all of them, as long as
    a larger part is faster; the others stay idle."""
    sizes = [sites]
    while sizes[0] > MAX_SWITCHED_SITES:
        sizes.insert(0, sizes[0] // 2)
    best: SelectedPlan | None = None
    walk: list[str] = []
    took = 0.0
    for used in sizes:
        ms = math.inf if best is None or best.program is None else best.program.predicted_ms
        if best is not None and (budget.left < TIMES_LONGER * took or find_least_ms(graph, machine, used) >= ms):
            break
        started = time.monotonic()
        part = machine.restrict(range(used))  # what is simulated has no links of idle sites
        larger = find_fastest(graph, part, used, budget=budget, **options)
        took = time.monotonic() - started
        walk += larger.walk
        if ms < math.inf and (larger.program is None or larger.program.predicted_ms >= ms):
            break
        best = larger
    assert best is not None
    idle = sites - best.plan.sites
    if best.program is not None and idle:
        told = replace(best, plan=replace(best.plan, cut_cost=measure_cut_cost(graph, sites)))
        best = leave_idle(best.program, told, idle)
    return replace(best, walk=tuple(walk))


def _has_fewer_divisors(sites: int) -> bool:
    return sites <= MANY_SITES and _count_divisors(sites) < _count_divisors(sites - 1)


def _count_divisors(number: int) -> int:
    return sum(number % divisor == 0 for divisor in range(1, number + 1))


def find_least_ms(graph: Graph, machine: Machine, sites: int) -> float:
    """A time that no plan on these sites is below: the kernels of every operator, cut so that they take least in all,
    spread evenly over the sites. 0 where sites differ."""
    if len(set(machine.sites)) > 1:
        return 0.0
    known: dict[tuple[Operator, bool], float] = {}
    joining, total = find_joining(graph, machine), 0.0
    for node in graph.nodes:
        key = node.operator, node.name in joining
        if key not in known:
            offer = enumerate_flexible_candidates(node.operator, sites)
            known[key] = min(_sum_least_ms(*key, candidate, machine) for candidate in offer)
        total += known[key]
    return total / sites


def _sum_least_ms(operator: Operator, joins: bool, candidate: Candidate, machine: Machine) -> float:
    site, latency = machine.sites[0], machine.kernel_latency_us
    return sum(
        compute_least_ms(
            operator, function, describe_operator(operator, function), site, latency, joins=joins, in_chain=False
        )
        for function in candidate.functions
    )


def leave_idle(program: DeviceProgram, selected: SelectedPlan, idle: int = 1) -> SelectedPlan:
    """The program of so many sites less as a plan for all sites, beside what `selected` has found for them or fewer."""
    every = selected.plan
    contenders = [msgspec.structs.replace(contender, chosen=False) for contender in every.contenders]
    chosen = next(contender for contender in program.plan.contenders if contender.chosen)
    contenders.append(
        Contender(
            IDLE_SITE,
            True,
            program.predicted_ms,
            max(program.memory),
            program.plan.total_cost,
            None,
            chosen.synthesized,
        )
    )
    plan = replace(
        program.plan,
        sites=program.plan.sites + idle,
        idle=idle,
        cut_cost=every.cut_cost,
        contenders=tuple(contenders),
        memory_points=every.memory_points,
    )
    unused = (0,) * idle
    return SelectedPlan(plan, replace(program, plan=plan, memory=(*program.memory, *unused)))
