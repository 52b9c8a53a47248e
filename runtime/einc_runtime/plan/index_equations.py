"""Index equations as text: "i j, j k -> i k" names the dimensions of every operand, and of the result.

An index may occur in several operands, and twice in one (a diagonal). Of an operand, a *window* may be read instead of
the whole: "0:8 4:8, -" has the bounds of each dimension of the first, and all of the second. The compiler, the proof
and the kernels read these texts here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from einc_runtime.errors import PlanFault
from einc_runtime.plan.schema import Block
from einc_runtime.text import escape_text

MAX_INDICES = 30
"""Some versions of numpy have arrays of at most 32 dimensions; two are kept for matrix products."""

Names = tuple[str, ...]

_RANGE = re.compile(r"(\d{1,18}):(\d{1,18})", re.A)
_LETTER = re.compile(r"\.\.\.|\w")


@dataclass(frozen=True, slots=True)
class IndexEquation:
    """Index names per operand, then of the result."""

    inputs: tuple[Names, ...]
    output: Names

    def __str__(self) -> str:
        return f"{', '.join(map(' '.join, self.inputs))} -> {' '.join(self.output)}"

    def bind(self, shapes: Sequence[Sequence[int]], result: Sequence[int] | None = None) -> dict[str, int]:
        """The extent of every index, in order of appearance, for operands of these shapes.

        Where the shape of the result is given, it may have indices that no operand has. Raises PlanFault where shapes
        do not fit.
        """
        if len(shapes) != len(self.inputs):
            raise PlanFault(
                f"indices do not fit: an equation of {len(self.inputs)} operands is applied to {len(shapes)}"
            )
        extents: dict[str, int] = {}
        tensors = list(zip(self.inputs, shapes, strict=True)) + ([] if result is None else [(self.output, result)])
        for names, shape in tensors:
            if len(names) != len(shape):
                raise PlanFault(f"{len(names)} indices ({' '.join(names)}) for {len(shape)} dimensions")
            for name, extent in zip(names, shape, strict=True):
                if extents.setdefault(name, extent) != extent:
                    raise PlanFault(f"index {name} has two extents, {extents[name]} and {extent}")
        if len(extents) > MAX_INDICES:
            raise PlanFault(f"{len(extents)} indices; at most {MAX_INDICES} are supported")
        return extents


def parse_index_equation(text: str) -> IndexEquation:
    """The equation of a text. Raises PlanFault for anything else."""
    left, arrow, right = text.partition("->")
    if not arrow or "->" in right:
        raise PlanFault(f"an index equation has one '->', found '{escape_text(text, 80)}'")
    equation = IndexEquation(tuple(tuple(part.split()) for part in left.split(",")), tuple(right.split()))
    if len(set(equation.output)) != len(equation.output):
        raise PlanFault(f"an index occurs twice in the result of '{escape_text(text, 80)}'")
    return equation


def parse_letters(text: str) -> IndexEquation:
    """The equation of a text in numpy's notation of `einsum`, in which each letter is an index, and so is `...`. Raises
    PlanFault for anything else."""
    return parse_index_equation(_LETTER.sub(r"\g<0> ", text))


def format_windows(windows: Iterable[Block | None]) -> str:
    """The text of windows; None stands for a whole operand."""
    return ", ".join(
        "-" if box is None else " ".join(f"{lo}:{up}" for lo, up in zip(box.lower, box.upper, strict=True))
        for box in windows
    )


def parse_windows(text: str, shapes: Sequence[Sequence[int]]) -> tuple[Block | None, ...]:
    """The windows that `format_windows` wrote, for operands of these shapes. Raises PlanFault where they do not fit."""
    parts = text.split(", ")
    if len(parts) != len(shapes):
        raise PlanFault(f"{len(parts)} windows for {len(shapes)} inputs")
    return tuple(None if part == "-" else _parse_window(part, shape) for part, shape in zip(parts, shapes, strict=True))


def _parse_window(text: str, shape: Sequence[int]) -> Block:
    matches = [_RANGE.fullmatch(word) for word in text.split(" ")]
    ranges = [(int(match[1]), int(match[2])) for match in matches if match is not None]
    inside = len(ranges) == len(matches) == len(shape)
    if not inside or not all(lo < up <= extent for (lo, up), extent in zip(ranges, shape, strict=True)):
        raise PlanFault(f"window '{escape_text(text, 40)}' is no part of a tensor of shape {list(shape)}")
    return Block(tuple(lo for lo, _ in ranges), tuple(up for _, up in ranges))
