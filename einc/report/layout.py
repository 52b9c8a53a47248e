"""Columns and sizes for terminals."""

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


def size(count: int) -> str:
    """Bytes for people: powers of 1024, three digits."""
    amount = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024:
            return f"{amount:.3g} {unit}" if unit != "B" else f"{count} B"
        amount /= 1024
    return f"{amount:.4g} TiB"
