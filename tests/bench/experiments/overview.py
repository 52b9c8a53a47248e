"""The experiments in one table: the paper's numbers beside those predicted here, for docs/paper.md."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from functools import partial
from itertools import product

from tests.bench.experiments import paper
from tests.bench.experiments.configurations import (
    BLOCKS,
    CHAINS,
    WORKLOADS,
    Configuration,
    Outcomes,
)
from tests.bench.experiments.summaries import GROUPS, correlate
from tests.bench.experiments.tables import (
    Cell,
    Table,
    drawn,
    drawn_ways,
    mean,
    ms,
    objectives,
    placements,
    ratio,
    title,
)

Value = Callable[[str, str], float | None]
"""By placement of inputs and selector."""


def tabulate_overview(outcomes: Outcomes) -> Table:
    """A row per claim; a column per placement of inputs and objective."""
    rows: list[tuple[Cell, ...]] = []

    def add(number: int, what: str, theirs: float | None, value: Value, *, depends: bool = True) -> None:
        cells = [
            value(placement, selector) if depends or selector == "eindecomp" else None
            for placement in placements(outcomes)
            for selector in objectives(outcomes)
        ]
        rows.append((f"[{number}](experiments/experiment-{number}.md)", what, theirs, *cells))

    def of(workload: str, placement: str, selector: str, schedule: str = "synthesized", **more: object) -> float | None:
        return ms(outcomes, Configuration(workload, placement=placement, selector=selector, schedule=schedule, **more))  # type: ignore[arg-type]

    def over_naive(machine: str, workloads: tuple[str, ...]) -> Value:
        return lambda placement, selector: mean(
            [
                ratio(*(of(w, placement, selector, s, machine=machine) for s in ("naive", "synthesized")))
                for w in workloads
            ]
        )

    def over_own(kind: str, workloads: tuple[str, ...], schedule: str) -> Value:
        return lambda placement, selector: mean(
            [
                ratio(_rival(outcomes, w, placement, kind, schedule), of(w, placement, selector, schedule))
                for w in workloads
            ]
        )

    schedules = dict.fromkeys(schedule for _, schedule in drawn_ways(outcomes))

    add(
        1, "block on 8 sites, geometric mean in ms", paper.BLOCK_MEAN_MS["Einsummable"],
        lambda placement, selector: mean([of(w, placement, selector) for w in BLOCKS]),
    )  # fmt: skip
    add(
        2, "chains, time on 1 site over time on 8", paper.CHAIN_SPEEDUP,
        lambda p, s: mean([ratio(of(w, p, s, sites=1), of(w, p, s)) for w in CHAINS]),
    )  # fmt: skip
    for schedule, (group, workloads) in product(schedules, GROUPS.items()):
        names = {"greedy": "greedy", "best": "best random", "median": "median random"}
        for kind, named in names.items():
            theirs = paper.RELATIVE_TO_OPTIMIZER[group][kind]
            what = f"{group}, {named} over chosen plan, {schedule} exchanges"
            add(3, what, theirs if schedule == "synthesized" else None, over_own(kind, workloads, schedule))
    for (machine, what), theirs_ratio in paper.NAIVE_OVER_OPTIMIZED.items():
        workloads = GROUPS.get(what, (what,))
        named = what if what in GROUPS else title(what)
        add(4, f"{named} on `{machine}`, naive over synthesized", theirs_ratio, over_naive(machine, workloads))
    theirs_r = statistics.median(paper.CORRELATION.values())
    for schedule in schedules:
        what = f"r of cost and time, median of ten, {schedule} exchanges"
        value = partial(_median_r, outcomes, schedule)
        add(5, what, theirs_r if schedule == "synthesized" else None, value, depends=False)
    columns = [f"{selector}, {placement}" for placement in placements(outcomes) for selector in objectives(outcomes)]
    caption = "The paper's numbers are measured, the others predicted; ratios are geometric means."
    return Table("overview", caption, ("experiment", "", "paper", *columns), tuple(rows), digits=2, names=2)


def _rival(outcomes: Outcomes, workload: str, placement: str, kind: str, schedule: str) -> float | None:
    if kind == "greedy":
        return ms(outcomes, Configuration(workload, placement=placement, selector="greedy", schedule=schedule))
    times = [plan.predicted_ms for plan in drawn(outcomes, workload, placement, schedule)]
    return None if not times else min(times) if kind == "best" else statistics.median(times)


def _median_r(outcomes: Outcomes, schedule: str, placement: str, _: str) -> float | None:
    known = [r for w in WORKLOADS if (r := correlate(outcomes, w, placement, schedule)) is not None]
    return statistics.median(known) if known else None
