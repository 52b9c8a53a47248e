"""The losses of a run as a table and as a page with a plot."""

from __future__ import annotations

import math

from einc.report.html.page import render_template
from einc.report.html.plot import PlotAxis, describe_frame, make_axes
from einc.training_runs.checkpoints import RunProgress
from einc.training_runs.settings import RunSettings, find_rate
from einc_runtime.strict_json import Document

MAX_CURVE_POINTS = 1500
"""Points of a curve: neighbours beyond it are averaged, since a plot has no more columns."""


def write_table(progress: RunProgress, settings: RunSettings) -> str:
    """A line for each step: its loss, its learning rate, and the held-out loss after it if one was taken."""
    held_out = dict(progress.evaluations)
    lines = ["step,loss,rate,held_out"]
    for step, loss in enumerate(progress.losses, 1):
        evaluation = f"{held_out[step]:.9g}" if step in held_out else ""
        lines.append(f"{step},{loss:.9g},{find_rate(settings, step):.9g},{evaluation}")
    return "\n".join(lines) + "\n"


def write_page(model: str, progress: RunProgress, settings: RunSettings) -> str:
    curves = [("loss", "kernel", _thin(list(enumerate(progress.losses, 1))))]
    if progress.evaluations:
        curves.append(("held-out loss", "transfer", [(float(step), loss) for step, loss in progress.evaluations]))
    facts = [("steps", f"{progress.step:,}"), ("first loss", f"{progress.losses[0]:.4g}")]
    facts += [("held-out loss", f"{progress.evaluations[-1][1]:.4g}")] if progress.evaluations else []
    return render_template(
        "training.html", title=f"Training of {model}", lead=f"Learning rate {settings.rate:g}, {settings.schedule}.",
        answer=f"{progress.losses[-1]:.4g}", where="last loss", facts=facts, picture_title="Losses", footer="",
        picture=_draw(curves, progress.step),
    )  # fmt: skip


def _thin(points: list[tuple[int, float]]) -> list[tuple[float, float]]:
    """Means of neighbours, where there are more points than a plot shows."""
    width = math.ceil(len(points) / MAX_CURVE_POINTS)
    groups = [points[start : start + width] for start in range(0, len(points), width)]
    return [(sum(x for x, _ in g) / len(g), math.fsum(y for _, y in g) / len(g)) for g in groups]


def _draw(curves: list[tuple[str, str, list[tuple[float, float]]]], steps: int) -> Document:
    values = [y for _, _, points in curves for _, y in points]
    low, high = min(values), max(values)
    across, up = make_axes(PlotAxis, (1, steps), (low - 0.5, high + 0.5) if high == low else (low, high))
    frame = describe_frame((across, up), ("step", "loss"), ("{:,.10g}".format, "{:.10g}".format))
    frame["across"] = [(x, label) for x, label in frame["across"] if "." not in label]
    return {
        **frame,
        "curves": [
            (name, colour, " ".join(f"{across.position(x)},{up.position(y)}" for x, y in points))
            for name, colour, points in curves
        ],
    }
