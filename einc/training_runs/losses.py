"""The losses of a run as a table and as a page with a plot."""

from __future__ import annotations

import math
from typing import Any

from einc.report.html.page import render_template
from einc.training_runs.checkpoints import RunProgress
from einc.training_runs.settings import RunSettings, find_rate

WIDTH, HEIGHT, LEFT, BOTTOM, TOP = 900, 420, 60, 40, 14
"""Of the plot, in pixels of the page."""
MAX_CURVE_POINTS = 1500
"""Points of a curve: neighbours beyond it are averaged, since a plot has no more columns."""
TICKS = 8
"""At most so many steps between the labels of an axis."""


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
        "training.html", title=f"Training of {model}", loss=f"{progress.losses[-1]:.4g}", facts=facts,
        rate=f"{settings.rate:g}, {settings.schedule}", picture=_draw(curves, progress.step),
    )  # fmt: skip


def _thin(points: list[tuple[int, float]]) -> list[tuple[float, float]]:
    """Means of neighbours, where there are more points than a plot shows."""
    width = math.ceil(len(points) / MAX_CURVE_POINTS)
    groups = [points[start : start + width] for start in range(0, len(points), width)]
    return [(sum(x for x, _ in g) / len(g), math.fsum(y for _, y in g) / len(g)) for g in groups]


def list_ticks(low: float, high: float) -> list[float]:
    """Round values from `low` to `high` in equal steps of 1, 2 or 5 times a power of ten; the ends where these are
    equal."""
    if high <= low:
        return [low]
    least = (high - low) / TICKS
    power = 10.0 ** math.floor(math.log10(least))
    step = next(digit * power for digit in (1, 2, 5, 10) if digit * power >= least * (1 - 1e-9))
    return [n * step for n in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]


def _draw(curves: list[tuple[str, str, list[tuple[float, float]]]], steps: int) -> dict[str, Any]:
    values = [y for _, _, points in curves for _, y in points]
    low, high = min(values), max(values)
    low, high = (low - 0.5, high + 0.5) if high == low else (low, high)

    def place(x: float, y: float) -> tuple[float, float]:
        across = LEFT + (WIDTH - LEFT - TOP) * (x - 1) / max(1, steps - 1)
        return round(across, 1), round(TOP + (HEIGHT - TOP - BOTTOM) * (high - y) / (high - low), 1)

    return {
        "width": WIDTH, "height": HEIGHT, "left": LEFT, "right": WIDTH - TOP, "top": TOP, "bottom": HEIGHT - BOTTOM,
        "across": [(place(step, low)[0], f"{step:,.0f}") for step in list_ticks(1, steps) if step == int(step)],
        "up": [(place(1, y)[1], f"{y:.10g}") for y in list_ticks(low, high)],
        "curves": [
            (name, colour, " ".join(f"{x},{y}" for x, y in (place(*point) for point in points)))
            for name, colour, points in curves
        ],
    }  # fmt: skip
