"""Finds statements that are repeated with other weights, as the layers of a network are.

A run of `count` times `period` statements is a repeat if all iterations have the same statements, whose operands are
the same thing: a value of the iteration, one of the iteration before (what is carried on), a weight of the iteration,
or a tensor from outside. Names of the iterations' weights in files may differ in one number, which counts evenly.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

Forms = np.ndarray[tuple[int], np.dtype[np.int_]]

MIN_PERIOD = 3
"""Statements of an iteration; fewer are read as easily one after another."""
_MAX_RUNS = 30
"""Runs that are looked at more closely, from the longest on."""


@dataclass(frozen=True, slots=True)
class Statement:
    """`targets = text`; each `{k}` in the text stands for the name of operand k.

    `targets` have their indices beside their name if the statement is an equation.
    """

    names: tuple[str, ...]
    targets: str
    text: str
    operands: tuple[str, ...]

    @property
    def form(self) -> tuple[int, str, str]:
        """What the statement is without its names."""
        return len(self.names), self.indices, self.text

    @property
    def indices(self) -> str:
        """The indices of an equation in their brackets, or nothing."""
        return self.targets[self.targets.index("[") :] if "[" in self.targets else ""


@dataclass(frozen=True, slots=True)
class DeclaredWeight:
    """A weight: its type with the extents, and its name in files."""

    name: str
    type: str
    stored: str


@dataclass(frozen=True, slots=True)
class Count:
    """`start + step * i` in iteration i."""

    start: int
    step: int


@dataclass(frozen=True, slots=True)
class RepeatedWeight:
    """A weight of each iteration; `stored` has `{}` for the number that `count` gives."""

    names: tuple[str, ...]
    type: str
    stored: str
    count: Count


@dataclass(frozen=True, slots=True)
class Repeat:
    """`count` iterations of the statements from `start` on, `period` in each.

    `carried` has the names in the last iteration of what goes from one to the next, with what it is before the first;
    `outer` are names of tensors from outside.
    """

    start: int
    period: int
    count: int
    carried: tuple[tuple[str, str], ...]
    outer: tuple[str, ...]
    weights: tuple[RepeatedWeight, ...]

    @property
    def stop(self) -> int:
        return self.start + self.period * self.count


def find_repeats(
    statements: Sequence[Statement], weights: Mapping[str, DeclaredWeight], saved: Collection[str]
) -> list[Repeat]:
    """Repeats that do not overlap, in order; `saved` are names that outputs have."""
    numbers: dict[tuple[int, str, str], int] = {}
    forms = np.array([numbers.setdefault(statement.form, len(numbers)) for statement in statements])
    repeats: list[Repeat] = []
    spans = [(0, len(statements))]
    while spans:
        first, last = spans.pop()
        for start, period, count in _list_runs(forms, first, last):
            repeat = _check_run(statements, weights, saved, start, period, count)
            if repeat is not None:
                repeats.append(repeat)
                spans += [(first, repeat.start), (repeat.stop, last)]
                break
    return sorted(repeats, key=lambda repeat: repeat.start)


def _list_runs(forms: Forms, first: int, last: int) -> Iterator[tuple[int, int, int]]:
    """Where equal statements are repeated between two positions: start, period and count, from the most on."""
    runs = []
    for period in range(MIN_PERIOD, (last - first) // 2 + 1):
        equal = forms[first : last - period] == forms[first + period : last]
        edges = np.flatnonzero(np.diff(np.concatenate([[False], equal, [False]]).astype(np.int8)))
        for begin, end in zip(edges[::2], edges[1::2], strict=True):
            if end - begin >= period:
                runs.append((int(end - begin), period, first + int(begin)))
    runs.sort(key=lambda run: (-(run[0] // run[1] + 1) * run[1], run[1], run[2]))
    for length, period, begin in runs[:_MAX_RUNS]:
        longest = length // period + 1
        for count in range(longest, max(1, longest - 2), -1):
            for shift in range(min(length - (count - 1) * period, period) + 1):
                yield begin + shift, period, count


def _check_run(
    statements: Sequence[Statement], weights: Mapping[str, DeclaredWeight], saved: Collection[str], start: int,
    period: int, count: int,
) -> Repeat | None:  # fmt: skip
    """The repeat that a run is; None if its iterations read different things."""
    stop = start + period * count
    inside = statements[start:stop]
    makers_of = {
        name: (k // period, k % period, part)
        for k, statement in enumerate(inside)
        for part, name in enumerate(statement.names)
    }
    carried: dict[tuple[int, int], str] = {}
    outer: dict[str, None] = {}
    repeated: dict[tuple[str, ...], RepeatedWeight] = {}
    for j in range(period):
        for operands in zip(*(inside[k * period + j].operands for k in range(count)), strict=True):
            makers = [makers_of.get(name) for name in operands]
            inner = {maker[1:] for maker in makers if maker is not None}
            ages = [k - maker[0] if maker is not None else None for k, maker in enumerate(makers)]
            if len(set(operands)) == 1 and makers[0] is None:
                outer[operands[0]] = None
            elif len(inner) == 1 and set(ages) == {0}:
                continue
            elif len(inner) == 1 and ages[0] is None and set(ages[1:]) == {1}:
                if carried.setdefault(next(iter(inner)), operands[0]) != operands[0]:
                    return None
            elif all(name in weights for name in operands):
                weight = _join_weights([weights[name] for name in operands])
                if weight is None:
                    return None
                repeated[operands] = weight
            else:
                return None
    ends = {inside[(count - 1) * period + j].names[part] for j, part in carried}
    later = {name for statement in statements[stop:] for name in statement.operands} | set(saved)
    if not carried or outer.keys() & set(carried.values()) or any(n in makers_of and n not in ends for n in later):
        return None
    last = (count - 1) * period
    pairs = tuple((inside[last + j].names[part], initial) for (j, part), initial in carried.items())
    return Repeat(start, period, count, pairs, tuple(outer), tuple(repeated.values()))


def _join_weights(weights: Sequence[DeclaredWeight]) -> RepeatedWeight | None:
    """The weights of all iterations as one, if their types are equal and their names differ in an even count."""
    if len({weight.type for weight in weights}) > 1:
        return None
    pieces = [re.split(r"(\d+)", weight.stored) for weight in weights]
    if len({tuple(part[::2]) for part in pieces}) > 1:
        return None
    numbers = np.array([[int(number[:18]) for number in part[1::2]] for part in pieces])
    changing = [column for column in range(numbers.shape[1]) if len(set(numbers[:, column].tolist())) > 1]
    sequences = {tuple(numbers[:, column].tolist()) for column in changing}
    if len(sequences) != 1:
        return None
    (sequence,) = sequences
    steps = {after - before for before, after in itertools.pairwise(sequence)}
    if len(steps) != 1:
        return None
    template = list(pieces[0])
    for column in changing:
        template[2 * column + 1] = "{}"
    count = Count(sequence[0], steps.pop())
    return RepeatedWeight(tuple(weight.name for weight in weights), weights[0].type, "".join(template), count)
