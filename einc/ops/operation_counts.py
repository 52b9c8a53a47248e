"""How many operations of a GPU's peak a join takes that is no product.

Peaks count a multiply-add as two operations. What has none takes as long as more operations than it has.
"""

from __future__ import annotations

from collections.abc import Sequence

SPECIAL_OPERATIONS = 16
"""Operations of multiply-adds that a GPU makes in the time of one exponential, quotient or the like: a multiprocessor
has 16 units for these, and 64 (A100) or 128 (H100) that multiply and add; arguments must be scaled, too."""

PLAIN_FUNCTIONS = frozenset(
    ("neg", "abs", "relu", "add", "sub", "mul", "max", "min", "where", "eq", "ne", "lt", "le", "gt", "ge")
)
"""One instruction each; all others count as `SPECIAL_OPERATIONS`."""


def count_operations(steps: Sequence[str], aggregation: str) -> int:
    """Operations of multiply-adds in the time of these steps and of aggregating what they give: each instruction takes
    the place of a multiply-add, which is two operations, and a last product is one with its sum."""
    fused = aggregation == "sum" and steps[-1:] == ["mul"]
    return sum(2 if step in PLAIN_FUNCTIONS else SPECIAL_OPERATIONS for step in steps) + 2 * (not fused)
