"""Which options of a workload no other one beats, and which is best."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from einc.advising.figures import FiguresCache
from einc.advising.option import AdviceOption, Limits, Offer
from einc.advising.planning import plan_options
from einc.advising.workloads import Workload

Objective = Literal["latency", "throughput", "cost"]


@dataclass(frozen=True, slots=True)
class Advice:
    """All options in the order of the offers. `frontier` are the positions of those that no other option beats in both
    latency and rate; `best` is that of the one that the objective chooses among those within the limits."""

    workload: Workload
    options: tuple[AdviceOption, ...]
    frontier: tuple[int, ...]
    best: int | None


def advise(
    workload: Workload,
    offers: Sequence[Offer],
    objective: Objective,
    limits: Limits,
    cache: FiguresCache,
    *,
    divide: bool = True,
    time_limit: float | None = None,
    phase: Callable[[str], None] = lambda _: None,
) -> Advice:
    """Plans every option that may be better in latency or rate than the others of its machine for as many users. What
    has not been planned after `time_limit` seconds is left out; its problem says so.

    Raises MachineError for an offer that does not exist, ModelError for a model that nobody can run.
    """
    deadline = None if time_limit is None else time.monotonic() + time_limit
    options = plan_options(workload, offers, limits, cache, divide, deadline, phase)
    allowed = [n for n, option in enumerate(options) if limits.allow(option)]
    return Advice(workload, tuple(options), _find_frontier(options), _find_best(options, allowed, objective))


def _find_frontier(options: Sequence[AdviceOption]) -> tuple[int, ...]:
    """Options that no other one beats in one of latency and rate and equals in the other, by ascending latency."""
    timed = [n for n, option in enumerate(options) if option.rate is not None and option.latency_ms is not None]
    timed.sort(key=lambda n: (options[n].latency_ms or 0.0, -(options[n].rate or 0.0), n))
    frontier: list[int] = []
    for n in timed:
        if not frontier or (options[n].rate or 0.0) > (options[frontier[-1]].rate or 0.0):
            frontier.append(n)
    return tuple(frontier)


def _find_best(options: Sequence[AdviceOption], allowed: Sequence[int], objective: Objective) -> int | None:
    """What the objective chooses; of equal options the first. Costs are compared only among those with a price."""

    def measure(n: int) -> tuple[float, float]:
        option = options[n]
        latency, rate = option.latency_ms or 0.0, option.rate or 0.0
        if objective == "latency":
            return latency, -rate
        return (-rate, latency) if objective == "throughput" else (option.unit_cost or 0.0, latency)

    if objective == "cost":
        allowed = [n for n in allowed if options[n].unit_cost is not None]
    return min(allowed, key=measure, default=None)
