"""The chosen cut of an operator as a small picture: its grid of intervals, with the sites in the cells.

The first two cut indices that the outputs have span rows and columns. Function specifications that share a cell
differ in other indices: `0+1` where their partial results are aggregated, `0,1` where they are not. `0=4` are sites
that compute the same.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

MAX_GRID_ROWS, MAX_GRID_COLUMNS, MAX_SITES_IN_CELL = 8, 8, 8
"""Of a larger grid the beginning and the end are shown."""


Cells = dict[tuple[int, int], list[list[int]]]
"""Per row and column, for each function specification the sites that compute it."""


def draw_grid(operation: dict[str, Any], *, complete: bool = False) -> list[str]:
    """Lines of text; none if nothing is cut. `complete` leaves nothing out."""
    intervals: dict[str, list[list[int]]] = operation["intervals"]
    cut = [name for name, parts in intervals.items() if len(parts) > 1]
    if not cut:
        return []
    aggregated = _find_aggregated_indices(operation)
    spanning = ([name for name in cut if name not in aggregated] or cut)[:2]
    rows, columns = (spanning[0] if len(spanning) == 2 else None), spanning[-1]
    cells = _group_sites_by_cell(operation, rows, columns)
    row_names = _format_bounds(rows, intervals[rows]) if rows is not None else [""]
    column_names = _format_bounds(columns, intervals[columns])
    joint = "+" if any(name in aggregated for name in cut if name not in spanning) else ","
    table = [["", *column_names]]
    for r, name in enumerate(row_names):
        row = [_format_cell(cells[r, c], joint, complete) for c in range(len(column_names))]
        table.append([name, *row])
    if not complete:
        table = _elide([_elide(row, MAX_GRID_COLUMNS, "...") for row in table], MAX_GRID_ROWS, ["..."])
    return [line.rstrip() for line in _align(table)]


def _find_aggregated_indices(operation: dict[str, Any]) -> set[str]:
    """The cut indices that the output blocks do not depend on: along them partial results are aggregated."""
    names = list(operation["intervals"])
    counts = [len(parts) for parts in operation["intervals"].values()]
    specs = operation["specs"]
    strides = [1] * len(counts)
    for s in range(len(counts) - 2, -1, -1):
        strides[s] = strides[s + 1] * counts[s + 1]
    return {
        name
        for name, count, stride in zip(names, counts, strides, strict=True)
        if count > 1 and specs[0]["outputs"] == specs[stride]["outputs"]
    }


def _group_sites_by_cell(operation: dict[str, Any], rows: str | None, columns: str) -> Cells:
    """The sites per (row, column), those of replicas together.

    Specs are in the lexicographic order of their intervals, replica after replica.
    """
    names = list(operation["intervals"])
    positions = list(itertools.product(*(range(len(parts)) for parts in operation["intervals"].values())))
    cells: dict[tuple[int, int], list[list[int]]] = {}
    for f, position in enumerate(positions):
        at = dict(zip(names, position, strict=True))
        sites = [spec["site"] for spec in operation["specs"][f :: len(positions)]]
        cells.setdefault((0 if rows is None else at[rows], at[columns]), []).append(sites)
    return cells


def _format_bounds(name: str, parts: Sequence[Sequence[int]]) -> list[str]:
    texts = [f"{lower}:{upper}" for lower, upper in parts]
    return [f"{name} {texts[0]}", *texts[1:]]


def _format_cell(functions: list[list[int]], joint: str, complete: bool) -> str:
    return _join_some(
        [_join_some([str(site) for site in sites], "=", complete) for sites in functions], joint, complete
    )


def _join_some(texts: list[str], joint: str, complete: bool) -> str:
    if not complete and len(texts) > MAX_SITES_IN_CELL:
        texts = [*texts[:3], f"...{texts[-1]}"]
    return joint.join(texts)


def _elide(items: list[Any], limit: int, mark: Any) -> list[Any]:
    """The first item is a heading and stays; of the others at most `limit` stay."""
    return items if len(items) <= limit + 1 else [*items[: limit - 1], mark, items[-1]]


def _align(table: list[list[str]]) -> list[str]:
    widths = [max(len(row[c]) for row in table if c < len(row)) for c in range(max(map(len, table)))]
    first = [f"{row[0]:>{widths[0]}}" for row in table]
    cells_after_first = [
        "  ".join(f"{cell:<{width}}" for cell, width in zip(row[1:], widths[1:], strict=False)) for row in table
    ]
    bar = " | " if widths[0] else ""
    return [f"{a}{bar}{b}" for a, b in zip(first, cells_after_first, strict=True)]
