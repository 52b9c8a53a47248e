"""Measured over predicted times: how they are spread, and as tables of a page."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median


@dataclass(frozen=True, slots=True)
class Spread:
    """Of measured over predicted: the median, between which of them four in five are, and the extremes."""

    count: int
    middle: float
    low: float
    high: float
    least: float
    most: float

    def cells(self) -> list[str]:
        spans = [f"{low:.2f} to {high:.2f}" for low, high in ((self.low, self.high), (self.least, self.most))]
        return [str(self.count), f"{self.middle:.2f}", *spans]


SPREAD_HEAD = ("number", "measured / predicted: median", "10% to 90%", "extremes")


def spread(ratios: Iterable[float]) -> Spread:
    """Of one ratio or more."""
    found = sorted(ratios)
    low, high = (found[min(len(found) - 1, int(part * len(found)))] for part in (0.1, 0.9))
    return Spread(len(found), median(found), low, high, found[0], found[-1])


def mean_ratio(ratios: Iterable[float]) -> float:
    """The geometric mean."""
    logarithms = [math.log(ratio) for ratio in ratios]
    return math.exp(sum(logarithms) / len(logarithms))


def is_within(ratio: float, factor: float) -> bool:
    """Whether neither time is more than `factor` times the other one."""
    return 1 / factor <= ratio <= factor


def format_table(head: Sequence[str], rows: Iterable[Sequence[str]], texts: int = 1) -> str:
    """A table in Markdown, whose first `texts` columns are texts and the others numbers."""
    lines = [head, ["---"] * texts + ["---:"] * (len(head) - texts), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def name_size(size: int) -> str:
    """1048576 is 1 MiB."""
    for unit, scale in (("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size >= scale and size % scale == 0:
            return f"{size // scale} {unit}"
    return f"{size} B"
