"""Small checks on untrusted values. Each raises PlanFault with `where`, the place in the plan."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from einc_runtime.errors import PlanFault
from einc_runtime.plan import boxes
from einc_runtime.plan.schema import Block
from einc_runtime.text import escape_text

MAX_NAME = 1024  # characters
MAX_RECORDS = 1_000_000  # of a sequence whose records are few

MAX_COUNTS = {
    "tensors": MAX_RECORDS,
    "operations": MAX_RECORDS,
    "buffers": 8_000_000,
    "tasks": 8_000_000,
    "outputs": MAX_RECORDS,
}
"""The most records of each sequence of a plan: a limit of memory. A decode step of 126 layers on 72 sites has half as
many tasks."""


def require(condition: bool, where: str, message: str) -> None:
    if not condition:
        raise PlanFault(message, where=where)


def require_count(parts: Sequence[object], limit: int, where: str) -> None:
    if len(parts) > limit:
        raise PlanFault(f"{len(parts)} entries; at most {limit} are allowed", where=where)


def require_natural(number: int, limit: int, where: str) -> None:
    if not 0 <= number <= limit:
        raise PlanFault(f"{number} is not between 0 and {limit}", where=where)


def require_position(position: int, length: int, subject: str, where: str) -> None:
    if not 0 <= position < length:
        raise PlanFault(f"there is no {subject} {position}; the plan has {length}", where=where)


def require_name(name: str, where: str) -> None:
    if not (0 < len(name) <= MAX_NAME and name.isprintable()):
        raise PlanFault(f"'{escape_text(name, 60)}' is not a printable name of 1 to {MAX_NAME} characters", where=where)


def require_unique(names: Iterable[object], where: str) -> None:
    seen: set[object] = set()
    for name in names:
        if name in seen:
            raise PlanFault(f"'{escape_text(str(name), 60)}' occurs here twice", where=where)
        seen.add(name)


def require_length(text: str, limit: int, where: str) -> None:
    if len(text) > limit:
        raise PlanFault(f"{len(text)} characters; at most {limit} are allowed", where=where)


def require_text(text: str, limit: int, where: str) -> None:
    """A text that may have several lines, without control characters."""
    require_length(text, limit, where)
    if not text.replace("\n", "").replace("\t", "").isprintable():
        raise PlanFault("control characters", where=where)


def require_block(block: Block, outer: Block, where: str) -> None:
    """`block` is not empty and lies in `outer`."""
    lower, upper = block.lower, block.upper
    if not len(lower) == len(upper) == len(outer.lower):
        raise PlanFault(f"a block of {len(lower)} to {len(upper)} dimensions in {len(outer.lower)}", where=where)
    for lo, up, first, last in zip(lower, upper, outer.lower, outer.upper, strict=True):
        if not first <= lo < up <= last:
            raise PlanFault(f"{block} is empty or not inside {outer}", where=where)


def require_tiling(outer: Block, blocks: Iterable[Block], budget: boxes.StepBudget, where: str) -> None:
    fault = boxes.find_tiling_fault(outer, list(dict.fromkeys(blocks)), budget, where)
    if fault is not None:
        raise PlanFault(fault, where=where)
