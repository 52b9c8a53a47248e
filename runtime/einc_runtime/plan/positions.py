"""Positions at which index programs read: sums of loops and of elements, divided or reduced."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

Interval = tuple[int, int]
Ranges = Mapping[str, Interval]
"""The interval of each loop. Where a block has a part of the rows of a table, `@k` is the interval of these, which are
looked up at the elements of read k."""


@dataclass(frozen=True)
class Position:
    """`((sum of factor * variable) + constant) // divisor % modulus`; a variable is a loop or `@k`, a modulus of 0 is
    none."""

    terms: tuple[tuple[str, int], ...]
    constant: int = 0
    divisor: int = 1
    modulus: int = 0

    @cached_property
    def loops(self) -> tuple[str, ...]:
        """The loops that it names itself."""
        return tuple(name for name, _ in self.terms if name[0] != "@")

    @cached_property
    def elements(self) -> tuple[int, ...]:
        """The reads whose elements it depends on."""
        return tuple(int(name[1:]) for name, _ in self.terms if name[0] == "@")

    @cached_property
    def is_affine(self) -> bool:
        """Whether it is a sum of multiples of loops and a constant."""
        return self.divisor == 1 and self.modulus == 0 and not self.elements

    @cached_property
    def loop(self) -> str | None:
        """The loop that it is, perhaps moved by a constant; None for any other position."""
        return self.terms[0][0] if self.is_affine and len(self.terms) == 1 and self.terms[0][1] == 1 else None

    def span(self, ranges: Ranges) -> Interval | None:
        """All positions are in this interval, and its ends are among them; None where they depend on elements of which
        the ranges do not say which ones count."""
        if self.loop is not None:
            lower, upper = ranges[self.loop]
            return lower + self.constant, upper + self.constant
        if self.elements:
            return ranges.get(f"@{self.elements[0]}")
        least = most = self.constant
        for name, factor in self.terms:
            ends = (factor * ranges[name][0], factor * (ranges[name][1] - 1))
            least, most = least + min(ends), most + max(ends)
        least, most = least // self.divisor, most // self.divisor
        if self.modulus and least // self.modulus != most // self.modulus:
            return (0, self.modulus)
        return (least % self.modulus, most % self.modulus + 1) if self.modulus else (least, most + 1)

    def __str__(self) -> str:
        text = ""
        for name, factor in self.terms:
            sign = "-" if factor < 0 else "+" if text else ""
            text += f"{sign}{'' if abs(factor) == 1 else f'{abs(factor)}*'}{name}"
        if self.constant or not self.terms:
            text += f"{self.constant:+d}" if self.terms else str(self.constant)
        if self.divisor != 1 or self.modulus:
            inner = text if len(self.terms) == 1 and text == self.terms[0][0] else f"({text})"
            text = f"{inner}//{self.divisor}" if self.modulus == 0 else f"{inner}%{self.modulus}"
        return text


def clip_span(span: Interval | None, extent: int) -> Interval:
    """What is read of a dimension whose positions are in a span: all of it where they are not known, and where they
    all lie outside, the element that is nearest."""
    if span is None:
        return (0, extent)
    if 0 <= span[0] < extent and 0 < span[1] <= extent:
        return span
    return (min(max(span[0], 0), extent - 1), max(min(span[1], extent), 1))


def make_position(terms: Iterable[tuple[str, int]], constant: int, order: Mapping[str, int]) -> Position:
    """A sum in canonical form: loops in their order, then elements in theirs, without factors of 0."""

    def rank(term: tuple[str, int]) -> tuple[int, int]:
        return (1, int(term[0][1:])) if term[0][0] == "@" else (0, order[term[0]])

    return Position(tuple(sorted((term for term in terms if term[1]), key=rank)), constant)
