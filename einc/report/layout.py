"""Columns for terminals."""

from __future__ import annotations

from collections.abc import Container, Sequence


def columns(rows: Sequence[Sequence[str]], right: Container[int] = (1, 2, 3)) -> list[str]:
    """Rows as lines, their cells below one another; the columns in `right` end flush."""
    widths = [max(len(row[c]) for row in rows) for c in range(len(rows[0]))]
    return [
        "  ".join(
            f"{cell:>{width}}" if c in right else f"{cell:<{width}}"
            for c, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
