"""Index programs that need not visit all their index vectors: what is recognised in a program, and what remains of it.

Aggregations of `where(condition, value, identity)` count only where the condition holds. These conditions are known:

- `k <= t`, of the loop that is aggregated over and one of the result: a running aggregate, found in a pass along k.
- `key == row`, with a loop of the result: a scatter, in which each value goes to the row that its key names.
- `key == row`, with the loop that is aggregated over: a lookup of the only value that counts.

Tensors one after the other are a choice by `loop < end` among reads: each part is copied.

The compiler's costs and the kernels ask the same functions, so that a plan is predicted as it is run.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final

from einc_runtime.plan.aggregate_definitions import find_definition
from einc_runtime.plan.index_programs import (
    NEAREST_ELEMENT,
    IndexProgram,
    IndexRead,
    Position,
    Ranges,
    Read,
    TensorRead,
    make_position,
)
from einc_runtime.plan.scalar_programs import (
    EarlierStep,
    FunctionStep,
    Operand,
    ScalarInput,
    ScalarLiteral,
    ScalarProgram,
)

RUNNING_PIECE, RUNNING_PIECE_OF_ROWS = 1024, 64
"""Values that a program of a GPU scans at once: of one running aggregate whose values are neighbours, 8 for each of 128
threads, and of one of 16 that are neighbours themselves."""

_EXCHANGED: Final = {"le": "ge", "ge": "le", "lt": "gt", "gt": "lt"}
"""The comparison of exchanged operands."""


@dataclass(frozen=True, slots=True)
class RunningAggregate:
    """At each `along` of the result, `values` aggregated over all `loop` up to `along + shift`, or from there on where
    it `is_behind`. The loops of the values are those of the result, with `loop` where `along` is."""

    loop: str
    along: str
    shift: int
    is_behind: bool
    values: IndexProgram

    @property
    def axis(self) -> int:
        """The dimension of the result and of the values along which it runs."""
        return self.values.result.index(self.loop)

    def count_first(self, ranges: Ranges) -> int:
        """How many values the first element along the dimension has, were there as many; each next one has one more.
        Both are counted from the end where it is behind. What is less than 0 is none."""
        (lower, upper), (start, stop) = ranges[self.loop], ranges[self.along]
        return upper - stop + 1 - self.shift if self.is_behind else start + self.shift + 1 - lower


@dataclass(frozen=True, slots=True)
class Scatter:
    """At each `along` of the result, those `values` aggregated over `loop` whose key is `along`. The loops of the
    values are those of the result, with `loop` where `along` is; that of the keys is `loop`."""

    loop: str
    along: str
    keys: IndexProgram
    values: IndexProgram

    @property
    def axis(self) -> int:
        """The dimension of the result and of the values to which keys refer."""
        return self.values.result.index(self.loop)


@dataclass(frozen=True, slots=True)
class Lookup:
    """The only value that counts of those aggregated over `loop`: read `key` says at which one it is; or `identity`."""

    loop: str
    key: int
    value: Operand
    identity: ScalarLiteral
    program: IndexProgram

    def write(self, ranges: Ranges) -> IndexProgram:
        """The program that finds it within these ranges, without the loop."""
        lower, upper = ranges[self.loop]
        order = {name: position for position, (name, _) in enumerate(self.program.loops)}
        reads = tuple(self._read_at_key(read, order) for read in self.program.reads)
        scalar = _parse_scalar(self.program)
        key, count = ScalarInput(self.key), len(scalar.steps)
        steps = [
            *scalar.steps,
            FunctionStep("ge", (key, ScalarLiteral.of(lower))),
            FunctionStep("lt", (key, ScalarLiteral.of(upper))),
            FunctionStep("and", (EarlierStep(count), EarlierStep(count + 1))),
            FunctionStep("where", (EarlierStep(count + 2), self.value, self.identity)),
        ]
        changed = replace(self.program, reads=reads, program=ScalarProgram(scalar.arity, tuple(steps)).text)
        return _extract(changed, EarlierStep(count + 3), self.program.result)

    def _read_at_key(self, read: Read, order: Mapping[str, int]) -> Read:
        if isinstance(read, IndexRead) or self.loop not in self.program.loops_of(read):
            return read if read != IndexRead(self.loop) else self.program.reads[self.key]
        positions = tuple(
            replace(
                make_position(
                    [(f"@{self.key}" if name == self.loop else name, factor) for name, factor in position.terms],
                    position.constant,
                    order,
                ),
                divisor=position.divisor,
                modulus=position.modulus,
            )
            for position in read.positions
        )
        return TensorRead(read.operand, positions, read.outside or NEAREST_ELEMENT)


Pattern = RunningAggregate | Scatter | Lookup


@lru_cache(maxsize=1024)
def find_pattern(program: IndexProgram, dtype: str) -> Pattern | None:
    """What a program is whose values have this type; None for all others."""
    if len(program.reduced) != 1 or find_definition(program.aggregation) is not None:
        return None
    scalar, loop = _parse_scalar(program), program.reduced[0]
    last = scalar.steps[-1]
    if last.function != "where" or not isinstance(last.operands[0], EarlierStep):
        return None
    condition, value, identity = scalar.steps[last.operands[0].position], last.operands[1], last.operands[2]
    if isinstance(value, ScalarLiteral) or not isinstance(identity, ScalarLiteral):
        return None
    if identity.value != find_identity(program.aggregation, dtype):
        return None
    finders: tuple[Callable[..., Pattern | None], ...] = (_find_running, _find_scatter, _find_lookup)
    sides = (condition.operands, condition.operands[::-1]) if len(condition.operands) == 2 else ()
    functions = (condition.function, _EXCHANGED.get(condition.function, condition.function))
    for function, (left, right) in zip(functions, sides, strict=False):
        for find in finders:
            pattern = find(program, function, left, right, value=value, identity=identity, loop=loop)
            if pattern is not None:
                return pattern
    return None


@dataclass(frozen=True, slots=True)
class Concatenation:
    """At each position of dimension `axis` of the result, the one of several operands that has it: each part is the
    number of an operand, and where it begins and ends."""

    axis: int
    parts: tuple[tuple[int, int, int], ...]


def write_concatenation(loops: Sequence[str], shapes: Sequence[Sequence[int]], axis: int) -> IndexProgram:
    """The program that puts tensors of these shapes, which differ in dimension `axis` alone, one after the other."""
    starts = [0, *itertools.accumulate(shape[axis] for shape in shapes)]
    count, extents = len(shapes), [*shapes[0][:axis], starts[-1], *shapes[0][axis + 1 :]]
    reads = [
        TensorRead(k, tuple(Position(((x, 1),), -starts[k] * (x == loops[axis])) for x in loops), NEAREST_ELEMENT)
        for k in range(count)
    ]
    steps: list[str] = []
    value = f"x{count - 1}"
    for k in range(count - 1, 0, -1):
        at = len(steps)
        steps += [f"t{at} = lt x{count} {starts[k]}", f"t{at + 1} = where t{at} x{k - 1} {value}"]
        value = f"t{at + 1}"
    named = tuple(zip(loops, extents, strict=True))
    return IndexProgram(named, len(loops), (*reads, IndexRead(loops[axis])), "; ".join(steps), "")


@lru_cache(maxsize=1024)
def find_concatenation(program: IndexProgram, shapes: tuple[tuple[int, ...], ...]) -> Concatenation | None:
    """The tensors of these shapes that a program puts one after the other; None for one that does anything else."""
    last = program.reads[-1]
    if program.reduced or not isinstance(last, IndexRead) or len(shapes) != len(program.reads) - 1:
        return None
    axis = program.result.index(last.loop)
    if len({(*shape[:axis], *shape[axis + 1 :]) for shape in shapes}) != 1 or len(shapes[0]) != program.kept:
        return None
    if program != write_concatenation(program.result, shapes, axis):
        return None
    ends = itertools.accumulate(shape[axis] for shape in shapes)
    return Concatenation(axis, tuple((k, end - shapes[k][axis], end) for k, end in enumerate(ends)))


def is_running_along(program: IndexProgram, name: str) -> bool:
    """Whether a program is a running aggregate along this loop of its result, for some type of its values."""
    patterns = (find_pattern(program, dtype) for dtype in ("f32", "i32", "i64"))
    return any(isinstance(pattern, RunningAggregate) and pattern.along == name for pattern in patterns)


def find_identity(aggregation: str, dtype: str) -> float:
    """What changes nothing that is aggregated."""
    if aggregation in ("sum", "prod"):
        return 0 if aggregation == "sum" else 1
    sign = -1 if aggregation == "max" else 1
    if dtype in ("i32", "i64"):
        bits = 31 if dtype == "i32" else 63
        return -(1 << bits) if sign < 0 else (1 << bits) - 1
    return sign * math.inf


def _find_running(
    program: IndexProgram, function: str, left: Operand, right: Operand, *, value: Operand, loop: str, **_: object
) -> RunningAggregate | None:
    """`left` is the loop that is aggregated over, and `right` one of the result."""
    first, second = _find_sum(program, left), _find_sum(program, right)
    if function not in _EXCHANGED or first is None or second is None or first[0] != loop:
        return None
    along, shift = second[0], second[1] - first[1]
    if along not in program.result or along in _find_loops(program, value):
        return None
    shift += {"lt": -1, "gt": 1}.get(function, 0)
    values = _extract(program, value, _rename(program.result, along, loop))
    return RunningAggregate(loop, along, shift, function in ("ge", "gt"), values)


def _find_scatter(
    program: IndexProgram, function: str, left: Operand, right: Operand, *, value: Operand, loop: str, **_: object
) -> Scatter | None:
    """`left` is the key, and `right` a loop of the result."""
    second = _find_sum(program, right)
    if function != "eq" or second is None or second[1] or second[0] not in program.result:
        return None
    along = second[0]
    if _find_loops(program, left) != {loop} or along in _find_loops(program, value):
        return None
    values = _extract(program, value, _rename(program.result, along, loop))
    return Scatter(loop, along, _extract(program, left, (loop,)), values)


def _find_lookup(
    program: IndexProgram,
    function: str,
    left: Operand,
    right: Operand,
    *,
    value: Operand,
    identity: ScalarLiteral,
    loop: str,
) -> Lookup | None:
    """`left` is the key, and `right` the loop that is aggregated over."""
    if function != "eq" or _find_sum(program, right) != (loop, 0) or not isinstance(left, ScalarInput):
        return None
    key = program.reads[left.position]
    if isinstance(key, IndexRead) or any(p.elements for p in key.positions) or loop in program.loops_of(key):
        return None
    for number in _find_reads(program, value):
        read = program.reads[number]
        # No element may be found through another one.
        if isinstance(read, TensorRead) and loop in program.loops_of(read) and any(p.elements for p in read.positions):
            return None
    return Lookup(loop, left.position, value, identity, program)


def _rename(names: Sequence[str], old: str, new: str) -> tuple[str, ...]:
    return tuple(new if name == old else name for name in names)


@lru_cache(maxsize=1024)
def _parse_scalar(program: IndexProgram) -> ScalarProgram:
    return ScalarProgram.parse(program.program, len(program.reads))


def _find_sum(program: IndexProgram, operand: Operand) -> tuple[str, int] | None:
    """The loop that an operand is, with the whole number that is added to it; None for anything else."""
    if isinstance(operand, ScalarInput):
        read = program.reads[operand.position]
        return (read.loop, 0) if isinstance(read, IndexRead) else None
    if not isinstance(operand, EarlierStep):
        return None
    step = _parse_scalar(program).steps[operand.position]
    if step.function not in ("add", "sub"):
        return None
    left, right = step.operands
    if step.function == "add" and isinstance(left, ScalarLiteral):
        left, right = right, left
    start = _find_sum(program, left)
    if start is None or not isinstance(right, ScalarLiteral) or type(right.value) is not int:
        return None
    return start[0], start[1] + (right.value if step.function == "add" else -right.value)


def _list_steps(scalar: ScalarProgram, operand: Operand) -> list[int]:
    needed = {operand.position} if isinstance(operand, EarlierStep) else set()
    for position in range(max(needed, default=-1), -1, -1):
        if position in needed:
            needed.update(x.position for x in scalar.steps[position].operands if isinstance(x, EarlierStep))
    return sorted(needed)


def _find_reads(program: IndexProgram, operand: Operand) -> list[int]:
    """The reads on which an operand depends, those of positions included."""
    scalar = _parse_scalar(program)
    operands = [operand, *(x for step in _list_steps(scalar, operand) for x in scalar.steps[step].operands)]
    direct = {x.position for x in operands if isinstance(x, ScalarInput)}
    reads = [(number, program.reads[number]) for number in direct]
    elements = {
        k for _, read in reads if isinstance(read, TensorRead) for position in read.positions for k in position.elements
    }
    return sorted(direct | elements)


def _find_loops(program: IndexProgram, operand: Operand) -> set[str]:
    return {name for number in _find_reads(program, operand) for name in program.loops_of(program.reads[number])}


def _extract(program: IndexProgram, operand: Operand, result: Sequence[str]) -> IndexProgram:
    """The program that computes an operand at each index vector of these loops, of the same tensors."""
    scalar, used = _parse_scalar(program), _find_reads(program, operand)
    reads = {old: new for new, old in enumerate(used)}
    steps = {old: new for new, old in enumerate(_list_steps(scalar, operand))}
    order = {name: position for position, name in enumerate(result)}

    def rename(x: Operand) -> Operand:
        if isinstance(x, ScalarInput):
            return ScalarInput(reads[x.position])
        return EarlierStep(steps[x.position]) if isinstance(x, EarlierStep) else x

    def renumber(position: Position) -> Position:
        terms = [(f"@{reads[int(name[1:])]}" if name[0] == "@" else name, factor) for name, factor in position.terms]
        sorted_terms = make_position(terms, position.constant, order)
        return replace(sorted_terms, divisor=position.divisor, modulus=position.modulus)

    def move(read: Read) -> Read:
        if isinstance(read, IndexRead):
            return read
        return TensorRead(read.operand, tuple(map(renumber, read.positions)), read.outside)

    written = [
        FunctionStep(scalar.steps[old].function, tuple(map(rename, scalar.steps[old].operands))) for old in steps
    ]
    text = ScalarProgram(len(used), tuple(written) or (FunctionStep("copy", (rename(operand),)),)).text
    loops = tuple((name, program.extents[name]) for name in result)
    return IndexProgram(loops, len(loops), tuple(move(program.reads[old]) for old in used), text, "")
