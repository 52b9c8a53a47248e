"""What the outcomes of each experiment say: its tables beside the paper's numbers, and sentences about them."""

from __future__ import annotations

import statistics
from collections.abc import Callable

from tests.bench.experiments import paper
from tests.bench.experiments.configurations import BLOCKS, CHAINS, WORKLOADS, Configuration, Outcomes
from tests.bench.experiments.descriptions import KNOWN, SITES
from tests.bench.experiments.tables import (
    Cell,
    Summary,
    Table,
    drawn,
    drawn_ways,
    mean,
    ms,
    number,
    objectives,
    placements,
    ratio,
    title,
)

GROUPS = {"blocks": BLOCKS, "chains": CHAINS}
MEAN = "geometric mean"
SLACK = 1e-9


def summarize(number_of: int, outcomes: Outcomes) -> Summary:
    """The tables and sentences of experiment 1, 2, 3, 4 or 5."""
    return SUMMARIES[number_of - 1](outcomes)


def summarize_blocks(outcomes: Outcomes) -> Summary:
    """Experiment 1: times on 1, 4 and 8 sites, and those of well-known plans."""
    printed = {**paper.EINSUMMABLE_MS, MEAN: paper.BLOCK_MEAN_MS["Einsummable"]}
    tables = [_on_sites(outcomes, placement, BLOCKS, printed) for placement in placements(outcomes)]
    known = [_known_plans(outcomes, placement) for placement in placements(outcomes)]
    return Summary((*tables, *known), tuple(_say_why(outcomes)))


def _known_plans(outcomes: Outcomes, placement: str) -> Table:
    """Plans as one writes them by hand beside the optimizers', and what the paper measured of PyTorch."""
    selectors = (*objectives(outcomes), *KNOWN)
    times = {w: [ms(outcomes, Configuration(w, placement=placement, selector=s)) for s in selectors] for w in BLOCKS}
    theirs = paper.RIVALS_MS["PyTorch"]
    rows: list[tuple[Cell, ...]] = [(title(w), *own, theirs.get(w)) for w, own in times.items()]
    means = [mean(column) for column in zip(*times.values(), strict=True)]
    rows.append((MEAN, *means, paper.BLOCK_MEAN_MS["PyTorch"]))
    columns = ("workload", *(f"`{s}`" for s in objectives(outcomes)), *KNOWN, "PyTorch in the paper")
    caption = f"Predicted ms of well-known plans on 8 sites of `dgx-a100`, inputs {placement}."
    return Table(f"known, {placement}", caption, columns, tuple(rows))


def _say_why(outcomes: Outcomes) -> list[str]:
    long = outcomes[Configuration("b1x128k")]
    theirs = paper.EINSUMMABLE_MS["b1x128k"]
    means = [
        f"{number(mean([ms(outcomes, Configuration(w, placement=p, selector=s)) for w in BLOCKS]))} (`{s}`, inputs {p})"
        for p in placements(outcomes)
        for s in objectives(outcomes)
    ]
    return [
        f"The paper's geometric mean on 8 sites is {paper.BLOCK_MEAN_MS['Einsummable']} ms; predicted are "
        f"{', '.join(means)}.",
        f"The kernels alone of {title('b1x128k')} take {long.free_ms:.1f} ms on eight A100s, whatever is moved; "
        f"{theirs:.0f} ms is {theirs / long.free_ms:.2f} times as long.",
    ]


def summarize_chains(outcomes: Outcomes) -> Summary:
    """Experiment 2: times on 1, 4 and 8 sites, and the speed-up."""
    tables = [_on_sites(outcomes, placement, CHAINS, {}) for placement in placements(outcomes)]
    rows, findings = [], []
    for placement in placements(outcomes):
        for selector in objectives(outcomes):
            gains = [
                ratio(*(ms(outcomes, Configuration(w, "dgx-a100", n, placement, selector)) for n in (1, 8)))
                for w in CHAINS
            ]
            rows.append((f"{placement}, `{selector}`", *gains, mean(gains)))
            findings.append(
                f"Inputs {placement}, `{selector}`: eight sites are {number(mean(gains))} times as fast as one in "
                f"geometric mean (paper: about {paper.CHAIN_SPEEDUP:g})."
            )
    speed = Table(
        "speed-up",
        "Time on 1 site over time on 8.",
        ("inputs, selector", *(title(w) for w in CHAINS), MEAN),
        (*rows, ("the paper, about", *[paper.CHAIN_SPEEDUP] * 6)),
        digits=2,
    )
    return Summary((*tables, speed), tuple(findings))


def _on_sites(outcomes: Outcomes, placement: str, workloads: tuple[str, ...], printed: dict[str, float]) -> Table:
    keys = [(selector, sites) for selector in objectives(outcomes) for sites in SITES]
    times = {
        w: [ms(outcomes, Configuration(w, "dgx-a100", sites, placement, selector)) for selector, sites in keys]
        for w in workloads
    }
    columns = ["workload", *(f"`{selector}`, {sites}" for selector, sites in keys)]
    rows: list[tuple[Cell, ...]] = [(title(w), *own) for w, own in times.items()]
    rows.append((MEAN, *(mean(column) for column in zip(*times.values(), strict=True))))
    if printed:
        columns.append("paper, 8")
        rows = [(*row, printed.get(key)) for key, row in zip((*workloads, MEAN), rows, strict=True)]
    caption = f"Predicted ms on 1, 4 and 8 sites of `dgx-a100`, inputs {placement}."
    return Table(f"times, {placement}", caption, tuple(columns), tuple(rows))


def summarize_selectors(outcomes: Outcomes) -> Summary:
    """Experiment 3: chosen plans beside random ones."""
    tables, findings = [], []
    relative: list[tuple[Cell, ...]] = []
    for placement, schedule in drawn_ways(outcomes):
        rows: list[tuple[Cell, ...]] = []
        times: dict[str, dict[str, float | None]] = {}
        for workload in WORKLOADS:
            selectors = (*objectives(outcomes), "greedy")
            own = {s: ms(outcomes, _chosen(workload, placement, s, schedule)) for s in selectors}
            plans = drawn(outcomes, workload, placement, schedule)
            random = [plan.predicted_ms for plan in plans]
            own |= {"best": min(random, default=None), "median": statistics.median(random) if random else None}
            times[workload] = own
            rows.append((title(workload), *own.values(), len(plans)))
        columns = (
            "workload",
            *(f"`{s}`" for s in (*objectives(outcomes), "greedy")),
            "random, best",
            "median",
            "that fit",
        )
        how = f"inputs {placement}, {schedule} exchanges"
        caption = f"Predicted ms on 8 sites of `dgx-a100`, {how}, and how many random plans fit."
        tables.append(Table(f"times, {placement}, {schedule}", caption, columns, tuple(rows)))
        for base in objectives(outcomes):
            for group, members in GROUPS.items():
                ratios = {
                    kind: mean([ratio(times[w][kind], times[w][base]) for w in members])
                    for kind in ("greedy", "best", "median")
                }
                relative.append((placement, schedule, f"`{base}`", group, *ratios.values()))
            slower = [
                title(w)
                for w in WORKLOADS
                if (best := times[w]["best"]) is not None and (own_ms := times[w][base]) is not None and best < own_ms
            ]
            beaten = ", ".join(slower) if slower else "no workload"
            findings.append(f"With {how}, a random plan is faster than that of `{base}` on {beaten}.")
    for group, theirs in paper.RELATIVE_TO_OPTIMIZER.items():
        cells = (theirs["greedy"], theirs["best"], theirs["median"])
        relative.append(("the paper", "synthesized", "`eindecomp`", group, *cells))
    tables.append(
        Table(
            "relative",
            "Geometric means of times over the time of the optimizer's plan.",
            ("inputs", "exchanges", "relative to", "workloads", "greedy", "random, best", "median"),
            tuple(relative),
            digits=2,
            names=4,
        )
    )
    return Summary(tuple(tables), tuple(findings))


def _chosen(workload: str, placement: str, selector: str, schedule: str) -> Configuration:
    return Configuration(workload, placement=placement, selector=selector, schedule=schedule)


def summarize_exchanges(outcomes: Outcomes) -> Summary:
    """Experiment 4: naive exchanges over synthesized ones, on a mesh and on a switch."""
    tables, findings = [], []
    for machine in dict.fromkeys(each.machine for each in outcomes):
        for placement in placements(outcomes):
            rows: list[tuple[Cell, ...]] = []
            gains: dict[str, list[float | None]] = {selector: [] for selector in objectives(outcomes)}
            for workload in WORKLOADS:
                row: list[Cell] = []
                for selector in objectives(outcomes):
                    naive, found = (
                        ms(outcomes, Configuration(workload, machine, 8, placement, selector, schedule))
                        for schedule in ("naive", "synthesized")
                    )
                    gains[selector].append(ratio(naive, found))
                    row += [naive, found, gains[selector][-1]]
                rows.append((title(workload), *row, paper.NAIVE_OVER_OPTIMIZED.get((machine, workload))))
            for group, part in (("blocks", slice(0, 5)), ("chains", slice(5, 10))):
                means = [mean(gains[selector][part]) for selector in objectives(outcomes)]
                cells = [cell for own in means for cell in (None, None, own)]
                rows.append((f"{group}, {MEAN}", *cells, paper.NAIVE_OVER_OPTIMIZED.get((machine, group))))
                findings.append(
                    f"`{machine}`, inputs {placement}, {group}: naive exchanges take "
                    + " and ".join(
                        f"{number(m)} times as long (`{s}`)" for s, m in zip(objectives(outcomes), means, strict=True)
                    )
                    + "."
                )
            columns = [
                f"`{s}`, {what}" for s in objectives(outcomes) for what in ("naive", "synthesized", "naive over it")
            ]
            caption = f"Predicted ms on 8 sites of `{machine}`, inputs {placement}."
            named = ("workload", *columns, "the paper's")
            tables.append(Table(f"{machine}, {placement}", caption, named, tuple(rows)))
    return Summary(tuple(tables), tuple(findings))


def summarize_costs(outcomes: Outcomes) -> Summary:
    """Experiment 5: how well cost foretells time."""
    rows: list[tuple[Cell, ...]] = []
    for workload in WORKLOADS:
        own: list[Cell] = [title(workload)]
        for way in drawn_ways(outcomes):
            own.append(correlate(outcomes, workload, *way))
        own.append(max(len(drawn(outcomes, workload, *way)) for way in drawn_ways(outcomes)))
        rows.append((*own, paper.CORRELATION[workload]))
    columns = ["workload"]
    columns += [f"{placement}, {schedule}" for placement, schedule in drawn_ways(outcomes)]
    table = Table(
        "correlation",
        "Pearson's r of cost in elements and predicted time over the random plans that fit, on 8 sites of `dgx-a100`, "
        "by where inputs lie and how exchanges are planned; how many plans there are at most.",
        (*columns, "plans", "the paper, synthesized"),
        tuple(rows),
        digits=2,
    )
    findings = []
    for placement, schedule in drawn_ways(outcomes):
        values = [correlate(outcomes, workload, placement, schedule) for workload in WORKLOADS]
        known = sorted(value for value in values if value is not None)
        theirs = statistics.median(paper.CORRELATION.values())
        findings.append(
            f"Inputs {placement}, {schedule} exchanges: r is from {known[0]:.2f} to {known[-1]:.2f}, with a median of "
            f"{statistics.median(known):.2f} (paper: 0.47 to 0.92, {theirs:.2f})."
        )
    return Summary((table,), tuple(findings))


def correlate(outcomes: Outcomes, workload: str, placement: str, schedule: str = "synthesized") -> float | None:
    """Pearson's r over the random plans that fit; None where there are too few, or all cost or take the same."""
    plans = drawn(outcomes, workload, placement, schedule)
    costs, times = [plan.cost for plan in plans], [plan.predicted_ms for plan in plans]
    if len(set(costs)) < 2 or len(set(times)) < 2:
        return None
    return statistics.correlation(costs, times)


SUMMARIES: tuple[Callable[[Outcomes], Summary], ...] = (
    summarize_blocks,
    summarize_chains,
    summarize_selectors,
    summarize_exchanges,
    summarize_costs,
)
