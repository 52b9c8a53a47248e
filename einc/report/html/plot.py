"""A plot of a page without a script: its frame, and where values lie in it. `templates/plot.html` draws it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from einc_runtime.strict_json import Document

PLOT_WIDTH, PLOT_HEIGHT = 760.0, 380.0
LEFT_EDGE, RIGHT_EDGE, TOP_EDGE, BOTTOM_EDGE = 64.0, 16.0, 14.0, 44.0
"""Pixels of the plot, and of its margins, which have the labels of the axes."""

MAX_TICKS = 8
"""Labels of an axis that have room beside one another."""


@dataclass(frozen=True, slots=True)
class PlotAxis:
    """Values from `low` to `high` in equal steps, and the pixels at which they lie."""

    low: float
    high: float
    start: float
    end: float

    def position(self, value: float) -> float:
        """Pixels of a value."""
        return round(self.start + (value - self.low) / ((self.high - self.low) or 1.0) * (self.end - self.start), 2)

    def list_ticks(self) -> list[float]:
        """Round values in equal steps of 1, 2 or 5 times a power of ten; the ends where these are equal."""
        if self.high <= self.low:
            return [self.low]
        least = (self.high - self.low) / MAX_TICKS
        power = 10.0 ** math.floor(math.log10(least))
        step = next(digit * power for digit in (1, 2, 5, 10) if digit * power >= least * (1 - 1e-9))
        return [n * step for n in range(math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9) + 1)]


class LogarithmicAxis(PlotAxis):
    """Values whose logarithms lie in equal steps."""

    __slots__ = ()

    def position(self, value: float) -> float:
        part = (math.log(value) - math.log(self.low)) / (math.log(self.high) - math.log(self.low))
        return round(self.start + part * (self.end - self.start), 2)

    def list_ticks(self) -> list[float]:
        """1, 2 and 5 times powers of ten, or powers alone where these are many."""
        powers = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
        for digits in ((1, 2, 5), (1, 3), (1,)):
            ticks = [digit * 10.0**power for power in powers for digit in digits]
            ticks = [tick for tick in ticks if self.low <= tick <= self.high]
            if len(ticks) <= MAX_TICKS:
                break
        return ticks


def make_axes(kind: type[PlotAxis], across: tuple[float, float], up: tuple[float, float]) -> tuple[PlotAxis, PlotAxis]:
    """The axes of a plot with values from the first to the second of each pair."""
    return kind(*across, LEFT_EDGE, PLOT_WIDTH - RIGHT_EDGE), kind(*up, PLOT_HEIGHT - BOTTOM_EDGE, TOP_EDGE)


def describe_frame(
    axes: tuple[PlotAxis, PlotAxis], labels: tuple[str, str], formats: Sequence[Callable[[float], str]]
) -> Document:
    """The frame as the template takes it: sizes, labels of the axes, and pixels and text of each tick."""
    pairs = zip(axes, formats, strict=True)
    across, up = ([(axis.position(tick), text(tick)) for tick in axis.list_ticks()] for axis, text in pairs)
    sizes = {"width": PLOT_WIDTH, "height": PLOT_HEIGHT, "left": LEFT_EDGE, "top": TOP_EDGE}
    ends = {"right": PLOT_WIDTH - RIGHT_EDGE, "bottom": PLOT_HEIGHT - BOTTOM_EDGE}
    return {**sizes, **ends, "across": across, "up": up, "labels": labels}
