"""Tables, as pages and CSV files show them, and small sums over outcomes that several experiments need."""

from __future__ import annotations

import csv
import io
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product

from tests.bench.experiments.configurations import OBJECTIVES, PLACEMENTS, TITLES, Configuration, Outcome, Outcomes

Cell = str | float | int | None
"""A name, a measure, a count, or nothing: where there is no plan or the paper has no number."""


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of cells below names of columns. `digits` are those of measures on a page; a CSV file has six significant
    ones. The first `names` columns hold names."""

    name: str
    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    digits: int = 3
    names: int = 1

    def markdown(self) -> str:
        lines = [self.caption, "", "| " + " | ".join(self.columns) + " |"]
        lines += ["| " + " | ".join(["---"] * self.names + ["---:"] * (len(self.columns) - self.names)) + " |"]
        lines += ["| " + " | ".join(self._shown(cell) for cell in row) + " |" for row in self.rows]
        return "\n".join(lines)

    def csv_rows(self) -> Iterable[tuple[str, ...]]:
        yield ("table", *self.columns)
        for row in self.rows:
            yield (self.name, *(f"{cell:.6g}" if isinstance(cell, float) else str(cell or "") for cell in row))

    def _shown(self, cell: Cell) -> str:
        if isinstance(cell, float):
            return f"{cell:,.{self.digits}f}"
        return "" if cell is None else str(cell)


@dataclass(frozen=True, slots=True)
class Summary:
    """What a page says by itself: its tables, and sentences whose numbers come from them."""

    tables: tuple[Table, ...]
    findings: tuple[str, ...]


def format_csv(tables: Iterable[Table]) -> str:
    """All tables, one below the other with an empty line between; the first column names the table."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    for position, table in enumerate(tables):
        if position:
            writer.writerow(())
        writer.writerows(table.csv_rows())
    return text.getvalue()


def ms(outcomes: Outcomes, each: Configuration) -> float | None:
    """Its predicted time; None if it has no plan."""
    outcome = outcomes[each]
    return outcome.predicted_ms if outcome.fits else None


def mean(values: Sequence[float | None]) -> float | None:
    """The geometric mean; None if a value is missing."""
    known = [value for value in values if value is not None]
    return statistics.geometric_mean(known) if known and len(known) == len(values) else None


def ratio(over: float | None, under: float | None) -> float | None:
    return None if over is None or under is None else over / under


def drawn(outcomes: Outcomes, workload: str, placement: str, schedule: str = "synthesized") -> list[Outcome]:
    """The random plans of a workload that fit, by seed."""
    found = sorted(
        (each.seed, outcome)
        for each, outcome in ((e, o) for e, o in outcomes.items() if e.selector == "random")
        if (each.workload, each.placement, each.schedule) == (workload, placement, schedule) and outcome.fits
    )
    return [outcome for _, outcome in found]


def drawn_ways(outcomes: Outcomes) -> tuple[tuple[str, str], ...]:
    """The pairs of placement and schedule for which there are random plans, the paper's schedule first."""
    found = {(each.placement, each.schedule) for each in outcomes if each.selector == "random"}
    return tuple(way for way in product(PLACEMENTS, ("synthesized", "naive")) if way in found)


def title(workload: str) -> str:
    return TITLES[workload]


def placements(outcomes: Outcomes) -> tuple[str, ...]:
    """Those that occur, in their usual order."""
    found = {each.placement for each in outcomes}
    return tuple(placement for placement in PLACEMENTS if placement in found)


def objectives(outcomes: Outcomes) -> tuple[str, ...]:
    """The same for the selectors that choose by an objective."""
    found = {each.selector for each in outcomes}
    return tuple(selector for selector in OBJECTIVES if selector in found)


def number(value: float | None, digits: int = 2) -> str:
    """For a sentence."""
    return "no plan" if value is None else f"{value:.{digits}f}"
