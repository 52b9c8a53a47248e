"""All that is held against measured times, on one page: docs/truth/README.md and its plot.

    python -m tests.truth.overview

computes nothing: it reads what the other commands of this package wrote.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

from tests.bench.experiments.pages import put
from tests.truth import exchanges, paper, steps
from tests.truth.cases import DECODE
from tests.truth.published import NOTES
from tests.truth.ratios import SPREAD_HEAD, format_table, spread

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "truth"
PAGE, PLOT = FOLDER / "README.md", FOLDER / "measured-over-predicted.svg"
FITTED, MEASURED, PREDICTED = "fitted", "measured", "predicted"
"""Parameters were fitted to these times; to these nothing was fitted; these were predicted by others, not measured."""

Groups = dict[tuple[str, str], list[float]]
"""Ratios by what they are about, and by what was fitted or measured."""


def collect() -> Groups:
    """Measured over predicted (of aiconfigurator: predicted by it over predicted by einc)."""
    found: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
    replayed, _ = exchanges.read_data()
    for each in replayed:
        what = "NCCL, simulated" if " nccl " in each.table else "all-reduce in one kernel, simulated"
        found[f"{what}: {exchanges.SYSTEMS[each.system]}", FITTED].append(each.ratio)
    plans, estimates = steps.read_data()
    for source in NOTES:
        name = f"steps: {source.split(',')[0]}"
        found[name, MEASURED] += [ratio for each, ratio in steps.list_measured(plans) if each.source == source]
    for title, ratio in paper.list_ratios(paper.read_outcomes()).items():
        if not title.startswith("all"):
            found["the paper's plans on 8 A100", MEASURED].append(ratio)
    for step, ratio in steps.list_compared(plans, estimates):
        kind = "a token" if step.kind == DECODE else "a prompt"
        found[f"aiconfigurator, {kind}: {steps.SYSTEM_TITLES[step.system]}", PREDICTED].append(ratio)
    return dict(found)


def tabulate(groups: Groups) -> str:
    rows = [[name, kind, *spread(ratios).cells()] for (name, kind), ratios in groups.items()]
    return format_table(("what", "", *SPREAD_HEAD), rows, 2)


def tabulate_targets() -> str:
    """What was wanted of published times, what was found, and whether that is enough."""
    replayed, _ = exchanges.read_data()
    rows = []
    for system, title in exchanges.SYSTEMS.items():
        ratio = spread(each.ratio for each in replayed if each.table.startswith(f"{system} nccl")).middle
        rows.append([f"NCCL, simulated: {title}, median", "15%", f"{ratio:.2f}", paper.say_met(ratio, 1.15)])
    ratios = paper.list_ratios(paper.read_outcomes())
    for what, factor in paper.TARGETS.items():
        found = [f"{factor - 1:.0%}", f"{ratios[what]:.2f}", paper.say_met(ratios[what], factor)]
        rows.append([f"the paper's plans on 8 A100: {what}", *found])
    replays = paper.read_replays()[paper.ONCE]
    for name in paper.REPLAYS[1:]:
        ratios = paper.list_replay_ratios(replays[name])
        for what, factor in paper.TARGETS.items():
            found = [f"{factor - 1:.0%}", f"{ratios[what]:.2f}", paper.say_met(ratios[what], factor)]
            rows.append([f"the same, replayed with {name}: {what}", *found])
    return format_table(("measured over predicted", "within", "found", "target"), rows)


def fill_page(page: str) -> str:
    """The page with the tables of what is known between their marks."""
    return put(put(page, "overview", tabulate(collect())), "targets", tabulate_targets())


def draw(groups: Groups, path: Path) -> None:
    """A row for each group, a point for each ratio; the grey band is within 15%."""
    import matplotlib
    from matplotlib import pyplot as plt

    from tests.bench.experiments.plots import BLUE, GREEN, ORANGE, STYLE, save_plot, use_plain_ticks

    colours = {FITTED: BLUE, MEASURED: GREEN, PREDICTED: ORANGE}
    labels = {
        FITTED: "measured; the parameters were fitted to such times",
        MEASURED: "measured; nothing was fitted to it",
        PREDICTED: "predicted by aiconfigurator, over einc's",
    }
    matplotlib.use("svg")
    with matplotlib.rc_context(STYLE):
        figure, panel = plt.subplots(figsize=(10, 0.32 * len(groups) + 1.4))
        panel.axvspan(1 / 1.15, 1.15, color="#eeeeee", zorder=0)
        panel.axvline(1, color="black", linewidth=0.8)
        named: dict[str, Any] = {}
        for row, ((_, kind), ratios) in enumerate(reversed(groups.items())):
            heights = [row + (position % 7 - 3) * 0.09 for position in range(len(ratios))]
            (drawn,) = panel.plot(ratios, heights, "o", color=colours[kind], markersize=2.6, alpha=0.5)
            panel.plot(spread(ratios).middle, row, "|", color="black", markersize=11)
            named.setdefault(kind, drawn)
        panel.set(xscale="log", xlabel="measured over predicted (log scale); bars are medians, the band is within 15%")
        panel.set(yticks=range(len(groups)), yticklabels=[name for name, _ in reversed(groups)])
        use_plain_ticks(panel.xaxis, None, panel.get_xlim())
        kinds = [kind for kind in colours if kind in named]
        figure.legend([named[kind] for kind in kinds], [labels[kind] for kind in kinds], loc="outside lower center")
        save_plot(figure, path)


def main() -> int:
    groups = collect()
    draw(groups, PLOT)
    PAGE.write_text(fill_page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
