"""The plots, as SVG files whose bytes depend on the outcomes and on the version of matplotlib alone.

Colours are those of Okabe and Ito, which people tell apart whatever their sight; shapes differ, too.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib import pyplot as plt
from matplotlib.ticker import FixedLocator, NullFormatter, NullLocator, StrMethodFormatter

from tests.bench.experiments import paper
from tests.bench.experiments.configurations import (
    BLOCKS,
    CHAINS,
    WORKLOADS,
    Configuration,
    Outcomes,
)
from tests.bench.experiments.descriptions import SITES
from tests.bench.experiments.measured import Findings, compare_systems, half_width, name
from tests.bench.experiments.summaries import correlate
from tests.bench.experiments.tables import drawn, drawn_ways, ms, objectives, placements, title

BLUE, ORANGE, GREEN, PURPLE, RED, GREY = "#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#777777"
SERIES = {
    ("eindecomp", "replicated"): (BLUE, "o"),
    ("fastest", "replicated"): (GREEN, "s"),
    ("eindecomp", "once"): (ORANGE, "^"),
    ("fastest", "once"): (PURPLE, "D"),
}
"""Colour and shape by selector and placement of inputs."""

STYLE = {
    "svg.hashsalt": "einc",
    "svg.fonttype": "path",
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 10,
    "axes.axisbelow": True,
    "axes.grid": True,
    "grid.color": "#e4e4e4",
    "legend.frameon": False,
    "figure.constrained_layout.use": True,
}
NOTHING = {"Date": None, "Creator": None}


def draw(number: int, outcomes: Outcomes, path: Path) -> None:
    """Writes the plot of experiment 1, 2, 3, 4 or 5."""
    matplotlib.use("svg")
    with matplotlib.rc_context(STYLE):
        figure = DRAWINGS[number - 1](outcomes)
        save_plot(figure, path)


def draw_blocks(outcomes: Outcomes) -> Any:
    """Experiment 1: a panel per workload."""
    return _draw_sites(outcomes, BLOCKS)


def draw_chains(outcomes: Outcomes) -> Any:
    """Experiment 2: a panel per chain."""
    return _draw_sites(outcomes, CHAINS)


def _draw_sites(outcomes: Outcomes, workloads: tuple[str, ...]) -> Any:
    """Time over number of sites, with the paper's times where it prints them."""
    figure, panels = plt.subplots(1, len(workloads), figsize=(12, 4.2))
    shown = {
        key: style for key, style in SERIES.items() if key[0] in objectives(outcomes) and key[1] in placements(outcomes)
    }
    for panel, workload in zip(panels, workloads, strict=True):
        for (selector, placement), (colour, shape) in shown.items():
            times = [ms(outcomes, Configuration(workload, "dgx-a100", n, placement, selector)) for n in SITES]
            points = [(n, time) for n, time in zip(SITES, times, strict=True) if time is not None]
            xs, ys = zip(*points, strict=True)
            panel.plot(xs, ys, color=colour, marker=shape, label=f"{selector}, inputs {placement}", linewidth=1.4)
            if (selector, placement) == next(iter(shown)):
                ideal = [ys[0] * xs[0] / n for n in SITES]
                panel.plot(SITES, ideal, color=GREY, linestyle=":", label="a perfect speed-up")
        _mark_measured(panel, workload)
        panel.set(title=title(workload), xlabel="sites", xscale="log", yscale="log")
        use_plain_ticks(panel.xaxis, SITES)
        use_plain_ticks(panel.yaxis, None, panel.get_ylim())
        panel.set_xlim(0.85, 9.8)
    panels[0].set_ylabel("time in ms (log scale)")
    _one_legend(figure, panels[0])
    return figure


def _mark_measured(panel: Any, workload: str) -> None:
    """The times that the paper prints, on 8 sites; times within a tenth share a label."""
    systems = {"the paper": paper.EINSUMMABLE_MS, **paper.RIVALS_MS}
    known = sorted((times[workload], system) for system, times in systems.items() if workload in times)
    groups: list[list[tuple[float, str]]] = []
    for time, system in known:
        if groups and time < 1.1 * groups[-1][0][0]:
            groups[-1].append((time, system))
        else:
            groups.append([(time, system)])
    for group in groups:
        for time, system in group:
            panel.plot(8, time, marker="*" if system == "the paper" else "_", color=RED, markersize=10, linestyle="")
        text = ", ".join(f"{system} {time:g}" for time, system in group)
        panel.annotate(
            text, (8, group[0][0]), (-9, -3), textcoords="offset points", ha="right", color=RED, fontsize=8,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.5},
        )  # fmt: skip


def draw_selectors(outcomes: Outcomes) -> Any:
    """Experiment 3: every plan relative to the paper's optimizer, a panel per placement of inputs and schedule."""
    shown = drawn_ways(outcomes)
    rows_of = math.ceil(len(shown) / 2)
    figure, panels = plt.subplots(rows_of, 2, figsize=(12, 0.7 + 4.2 * rows_of), sharey=True, squeeze=False)
    for panel, (placement, schedule) in zip(panels.flat, shown, strict=False):
        for row, workload in enumerate(reversed(WORKLOADS)):
            base = ms(outcomes, Configuration(workload, placement=placement, schedule=schedule))
            if base is None:
                continue
            plans = [plan.predicted_ms / base for plan in drawn(outcomes, workload, placement, schedule)]
            rows = [row + (position % 5 - 2) * 0.09 for position in range(len(plans))]
            panel.plot(plans, rows, "o", color=GREY, markersize=3.5, alpha=0.6, label="random" if not row else None)
            marks = {"greedy": (ORANGE, "^"), "fastest": (GREEN, "s")}
            for selector, (colour, shape) in marks.items():
                if selector == "greedy" or selector in objectives(outcomes):
                    own = ms(
                        outcomes, Configuration(workload, placement=placement, selector=selector, schedule=schedule)
                    )
                    if own is not None:
                        label = selector if not row else None
                        panel.plot(own / base, row, shape, color=colour, markersize=7, label=label)
        panel.axvline(1, color=BLUE, label="eindecomp, the paper's optimizer")
        panel.set(
            title=f"inputs {placement}, {schedule} exchanges",
            xscale="log", xlabel="time relative to eindecomp's plan (log scale)", yticks=range(len(WORKLOADS)),
        )  # fmt: skip
        panel.set_yticklabels([title(workload) for workload in reversed(WORKLOADS)])
        use_plain_ticks(panel.xaxis, None, panel.get_xlim())
    for panel in list(panels.flat)[len(shown) :]:
        panel.set_visible(False)
    _one_legend(figure, panels[0][0])
    return figure


def draw_exchanges(outcomes: Outcomes) -> Any:
    """Experiment 4: naive over synthesized, a panel per machine."""
    machines = list(dict.fromkeys(each.machine for each in outcomes))
    figure, panels = plt.subplots(1, len(machines), figsize=(6.2 * len(machines), 4.6), sharey=True)
    for panel, machine in zip(panels, machines, strict=True):
        panel.axvline(1, color="black", linewidth=0.8)
        for offset, ((selector, placement), (colour, shape)) in enumerate(SERIES.items()):
            if selector not in objectives(outcomes) or placement not in placements(outcomes):
                continue
            for row, workload in enumerate(reversed(WORKLOADS)):
                naive, found = (
                    ms(outcomes, Configuration(workload, machine, 8, placement, selector, schedule))
                    for schedule in ("naive", "synthesized")
                )
                if naive is not None and found is not None:
                    label = f"{selector}, inputs {placement}" if not row else None
                    place = row + (1.5 - offset) * 0.16
                    panel.plot(naive / found, place, shape, color=colour, markersize=6, label=label)
        for row, workload in enumerate(reversed(WORKLOADS)):
            measured = paper.NAIVE_OVER_OPTIMIZED.get((machine, workload))
            if measured is not None:
                label = "the paper, measured" if workload == "chain_a" else None
                panel.plot(measured, row, "*", color=RED, markersize=11, label=label)
        panel.set(
            title=machine, xscale="log", xlabel="time with naive over time with synthesized exchanges (log scale)",
            yticks=range(len(WORKLOADS)),
        )  # fmt: skip
        panel.set_yticklabels([title(workload) for workload in reversed(WORKLOADS)])
        use_plain_ticks(panel.xaxis, None, panel.get_xlim())
    _one_legend(figure, panels[0])
    return figure


def draw_costs(outcomes: Outcomes) -> Any:
    """Experiment 5: cost against time of the random plans, a panel per workload."""
    ways = _ways_of_one_schedule(outcomes)
    styles = ((BLUE, "o"), (ORANGE, "^"))
    figure, panels = plt.subplots(2, 5, figsize=(12, 5.6))
    for panel, workload in zip(panels.flat, WORKLOADS, strict=True):
        for place, ((placement, schedule), (colour, shape)) in enumerate(zip(ways, styles, strict=False)):
            plans = drawn(outcomes, workload, placement, schedule)
            costs, times = [plan.cost / 1e9 for plan in plans], [plan.predicted_ms for plan in plans]
            panel.plot(
                costs,
                times,
                shape,
                color=colour,
                markersize=4.5,
                alpha=0.75,
                label=f"inputs {placement}, {schedule} exchanges",
            )
            r = correlate(outcomes, workload, placement, schedule)
            if r is not None:
                panel.text(
                    0.03, 0.98 - 0.1 * place, f"r = {r:.2f}", transform=panel.transAxes, color=colour, va="top"
                )  # fmt: skip
        low, high = panel.get_ylim()
        panel.set_ylim(low, high + 0.25 * (high - low))
        panel.set(title=f"{title(workload)} (paper: {paper.CORRELATION[workload]:.2f})")
    for panel in panels[1]:
        panel.set_xlabel("cost in 10⁹ elements")
    for panel in panels[:, 0]:
        panel.set_ylabel("predicted ms")
    _one_legend(figure, panels[0][0])
    return figure


def _ways_of_one_schedule(outcomes: Outcomes) -> list[tuple[str, str]]:
    """Both placements with synthesized exchanges, as in the paper; with naive ones if there are no others."""
    ways = drawn_ways(outcomes)
    schedules = [schedule for _, schedule in ways]
    best = max(dict.fromkeys(schedules), key=schedules.count)
    return [way for way in ways if way[1] == best]


def draw_measured(found: Findings, path: Path) -> None:
    """Means with 95% intervals of all systems on the most sites, by workload."""
    most = max(entry.configuration.sites for entry in found)
    shown = [(e, own) for e, own in compare_systems(found) if own.times and e.configuration.sites == most]
    names = list(dict.fromkeys(name(entry) for entry, _ in shown))
    workloads = list(dict.fromkeys(entry.configuration.workload for entry, _ in shown))
    colours = dict(zip(names, (BLUE, GREEN, ORANGE, RED, PURPLE, GREY, "black"), strict=False))
    matplotlib.use("svg")
    with matplotlib.rc_context(STYLE):
        figure, panel = plt.subplots(figsize=(8, 0.75 * len(workloads) + 1.4))
        for entry, own in shown:
            row = len(workloads) - 1 - workloads.index(entry.configuration.workload)
            place = row + (len(names) / 2 - names.index(name(entry))) * 0.7 / len(names)
            mean_ms, half = statistics.fmean(own.times), half_width(own.times)
            panel.errorbar(mean_ms, place, xerr=half, color=colours[name(entry)], fmt="o", markersize=4, capsize=3)
            panel.annotate(
                f"{name(entry)} {mean_ms:.2f}", (mean_ms + half, place), (5, -3), textcoords="offset points",
                color=colours[name(entry)], fontsize=7,
            )  # fmt: skip
        panel.set(xscale="log", xlabel=f"measured ms on {most} sites, mean and 95% interval (log scale)")
        panel.set(yticks=range(len(workloads)), yticklabels=[title(workload) for workload in reversed(workloads)])
        use_plain_ticks(panel.xaxis, None, panel.get_xlim())
        save_plot(figure, path)


def save_plot(figure: Any, path: Path) -> None:
    figure.savefig(path, format="svg", metadata=NOTHING)
    plt.close(figure)
    lines = path.read_text(encoding="utf-8").splitlines()
    path.write_text("\n".join(line.rstrip() for line in lines) + "\n", encoding="utf-8")


def _one_legend(figure: Any, panel: Any) -> None:
    handles, labels = panel.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=min(len(labels), 5))


def use_plain_ticks(axis: Any, ticks: tuple[float, ...] | None, limits: tuple[float, float] = (1, 1)) -> None:
    """Ticks that are written out: the given ones, or 1, 2 and 5 times powers of ten, and more where those are few."""
    if ticks is None:
        low, high = limits
        powers = [10.0**power for power in range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 1)]
        for steps in ((1.0, 2.0, 5.0), (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 7.0)):
            ticks = tuple(step * power for power in powers for step in steps if low <= step * power <= high)
            if len(ticks) >= 3:
                break
        else:
            ticks = tuple(n / 20 for n in range(math.ceil(20 * low), math.floor(20 * high) + 1)) or ticks
    axis.set_major_locator(FixedLocator(ticks))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axis.set_minor_formatter(NullFormatter())


DRAWINGS: tuple[Callable[[Outcomes], Any], ...] = (
    draw_blocks,
    draw_chains,
    draw_selectors,
    draw_exchanges,
    draw_costs,
)
