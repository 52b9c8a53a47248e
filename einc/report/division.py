"""Stages, micro-batches and replicas of a plan: as a part of the document of `einc explain`, and as text."""

from __future__ import annotations

from einc.machines.picture import format_ranges
from einc.plan_reading.timing import Timing
from einc.plan_report import PlanReport
from einc.report.tables import align_columns, format_ms
from einc_runtime.strict_json import Document
from einc_runtime.text import format_count, shorten

MAX_SHOWN_SHAPES = 6
"""Numbers of stages, micro-batches and replicas that the text lists, the fastest first; the document has all."""


def describe_division(report: PlanReport, timing: Timing) -> Document | None:
    """`stages`, `microbatches` of each of the `replicas`, what they take, and the `shapes` that were considered; null
    for a plan that computes its batch at once on all sites, if no others were considered.

    `busy_part` of a stage is the part of the time in which its sites compute or combine, in the mean, and `bubble` the
    part in which the sites of all stages do neither: they wait for the first micro-batch, for data, or for the end.
    `runs_per_second` is how often the whole batch is computed if runs follow each other.
    """
    if not report.stages and not report.shapes:
        return None
    busy = None if timing.breakdown is None or not timing.predicted_ms else timing.breakdown.sites
    length = timing.predicted_ms or 0.0

    def average(sites: list[int]) -> float | None:
        return None if busy is None else sum(busy[site] for site in sites) / len(sites) / length

    stages: list[Document] = []
    for stage in report.stages:
        sites = sorted(site for group in stage.sites for site in group)
        stages.append(
            {
                "first": stage.first,
                "operators": stage.operations,
                "sites": [list(group) for group in stage.sites],
                "busy_part": average(sites),
            }
        )
    used = sorted({site for stage in stages for group in stage["sites"] for site in group})
    working = average(used) if used else None
    return {
        "stages": stages,
        "microbatches": report.microbatches,
        "replicas": report.replicas,
        "bubble": None if working is None else max(0.0, 1 - working),
        "runs_per_second": 1e3 / length if length else None,
        "shapes": [
            {
                "stages": shape.stages,
                "microbatches": shape.microbatches,
                "replicas": shape.replicas,
                "predicted_ms": shape.predicted_ms,
                "built": shape.built,
                "chosen": shape.chosen,
            }
            for shape in report.shapes
        ],
    }


def summarize_division(division: Document | None) -> list[str]:
    """One line: `2 stages, 8 micro-batches; 3.41 runs a second; bubble 18%`; none for a plan that has one of each."""
    if division is None or not division["stages"]:
        return []
    parts = [name_shape(division, len(division["stages"]))]
    if division["runs_per_second"] is not None:
        parts.append(f"{format_rate(division['runs_per_second'])} runs a second")
    if division["bubble"] is not None:
        parts.append(f"sites idle {division['bubble']:.0%} of the time (bubble)")
    return ["; ".join(parts)]


def format_rate(rate: float) -> str:
    """Three digits, or all digits before the point."""
    return f"{rate:,.0f}" if rate >= 100 else f"{rate:.3g}"


def name_shape(shape: Document, stages: int) -> str:
    """`2 stages, 2 replicas, 8 micro-batches each`; what there is one of is left out."""
    counts = [(stages, "stage"), (shape["replicas"], "replica")]
    names = [format_count(count, name) for count, name in counts if count > 1]
    if shape["microbatches"] > 1:
        names.append(f"{shape['microbatches']} micro-batches{' each' if shape['replicas'] > 1 else ''}")
    return ", ".join(names) or "all sites together"


def format_division(division: Document | None) -> list[str]:
    """Tables of the stages, and of the shapes that were considered; an empty line after each."""
    if division is None:
        return []
    lines: list[str] = []
    if len(division["stages"]) > 1:
        rows = [["stage", "from operator", "operators", "sites", "busy"]]
        for number, stage in enumerate(division["stages"], 1):
            sites = " and ".join(format_ranges(group) for group in stage["sites"])
            part = "-" if stage["busy_part"] is None else f"{stage['busy_part']:.0%}"
            rows.append([str(number), shorten(stage["first"], 40), str(stage["operators"]), sites, part])
        lines += [*align_columns(rows, right=(2, 4)), ""]
    if len(division["shapes"]) > 1:
        rows = [["stages", "micro-batches", "replicas", "predicted", ""]]
        for shape in division["shapes"][:MAX_SHOWN_SHAPES]:
            about = "" if shape["built"] else "about "
            counts = [str(shape[name]) for name in ("stages", "microbatches", "replicas")]
            mark = "chosen" if shape["chosen"] else ""
            rows.append([*counts, about + format_ms(shape["predicted_ms"]), mark])
        lines += [*align_columns(rows, right=range(4)), ""]
    return lines
