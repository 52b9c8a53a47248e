"""The experiments in one table: the paper's numbers beside those predicted here, for docs/paper.md."""

from __future__ import annotations

import statistics
from collections.abc import Callable

from tests.bench.experiments import paper
from tests.bench.experiments.configurations import (
    BLOCKS,
    CHAINS,
    WORKLOADS,
    Configuration,
    Outcomes,
)
from tests.bench.experiments.summaries import GROUPS, correlate
from tests.bench.experiments.tables import Cell, Table, drawn, mean, ms, objectives, placements, ratio, title

Value = Callable[[str, str], float | None]
"""By placement of inputs and selector."""


def tabulate_overview(outcomes: Outcomes) -> Table:
    """A row per claim; a column per placement of inputs and objective."""
    rows: list[tuple[Cell, ...]] = []

    def add(number: int, what: str, theirs: float, value: Value, *, depends: bool = True) -> None:
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

    def over_own(kind: str, workloads: tuple[str, ...]) -> Value:
        return lambda placement, selector: mean(
            [ratio(_rival(outcomes, w, placement, kind), of(w, placement, selector)) for w in workloads]
        )

    add(
        1, "block on 8 sites, geometric mean in ms", paper.BLOCK_MEAN_MS["Einsummable"],
        lambda placement, selector: mean([of(w, placement, selector) for w in BLOCKS]),
    )  # fmt: skip
    add(
        2, "chains, time on 1 site over time on 8", paper.CHAIN_SPEEDUP,
        lambda p, s: mean([ratio(of(w, p, s, sites=1), of(w, p, s)) for w in CHAINS]),
    )  # fmt: skip
    for group, workloads in GROUPS.items():
        theirs = paper.RELATIVE_TO_OPTIMIZER[group]
        add(3, f"{group}, greedy over chosen plan", theirs["greedy"], over_own("greedy", workloads))
        add(3, f"{group}, best random over chosen plan", theirs["best"], over_own("best", workloads))
        add(3, f"{group}, median random over chosen plan", theirs["median"], over_own("median", workloads))
    for (machine, what), theirs_ratio in paper.NAIVE_OVER_OPTIMIZED.items():
        workloads = GROUPS.get(what, (what,))
        named = what if what in GROUPS else title(what)
        add(4, f"{named} on `{machine}`, naive over synthesized", theirs_ratio, over_naive(machine, workloads))
    add(
        5, "r of cost and time, median of ten", statistics.median(paper.CORRELATION.values()),
        lambda placement, _: _median_r(outcomes, placement), depends=False,
    )  # fmt: skip
    columns = [f"{selector}, {placement}" for placement in placements(outcomes) for selector in objectives(outcomes)]
    caption = "The paper's numbers are measured, the others predicted; ratios are geometric means."
    return Table("overview", caption, ("experiment", "", "paper", *columns), tuple(rows), digits=2, names=2)


def _rival(outcomes: Outcomes, workload: str, placement: str, kind: str) -> float | None:
    if kind == "greedy":
        return ms(outcomes, Configuration(workload, placement=placement, selector="greedy"))
    times = [plan.predicted_ms for plan in drawn(outcomes, workload, placement)]
    return None if not times else min(times) if kind == "best" else statistics.median(times)


def _median_r(outcomes: Outcomes, placement: str) -> float | None:
    known = [r for w in WORKLOADS if (r := correlate(outcomes, w, placement)) is not None]
    return statistics.median(known) if known else None
