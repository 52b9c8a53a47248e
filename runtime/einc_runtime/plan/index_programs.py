"""Index programs: a join of tensors that are read at expressions of indices, and an aggregation (paper, Section 3.1).

A program has loops, each an index with an extent; the first of them are the indices of the result. At each index vector
it reads elements of its operands, computes a scalar program over them, and aggregates over the other loops. As text:

    loops    "n=8 o=64 h=56 w=56 c=64 r=3 s=3"
    kept     4
    reads    "0[n, c, h+r-1, w+s-1 | 0]; 1[o, c, r, s]"
    program  "t0 = mul x0 x1"
    aggregation "sum"

Read k is what the scalar program calls `x{k}`. A position is a sum of loops and numbers, perhaps divided (rounding
down) or reduced modulo a number: `(h+1)//2`, `(i+3)%5`. `@1` in it is the element that read 1 finds, an integer: so
`0[@1, d]; 1[t]` gathers rows. Behind `|` stands what a read finds outside of its tensor: a value, or `nearest` for the
element that is nearest; without it nothing may be read there. `#h` is a read that finds the value of a loop (i64).

What is not in canonical form is refused, so that equal programs have equal texts.
"""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, Final

from einc_runtime.errors import PlanFault
from einc_runtime.plan.aggregate_definitions import find_definition
from einc_runtime.plan.positions import Interval as Interval
from einc_runtime.plan.positions import Position as Position
from einc_runtime.plan.positions import Ranges as Ranges
from einc_runtime.plan.positions import clip_span
from einc_runtime.plan.positions import make_position as make_position
from einc_runtime.plan.schema import Block
from einc_runtime.text import escape_text

INDEX_TYPE: Final = "i64"
"""The type of the values of loops."""

NEAREST_ELEMENT = "nearest"
COPY_PROGRAM: Final = "t0 = copy x0"
"""The scalar program of what is only moved."""
PRODUCT_PROGRAMS: Final = ("t0 = mul x0 x1", "t0 = mul x1 x0")
"""The scalar programs of products of the first two reads."""
MAX_LOOPS = 30
MAX_READS = 256
MAX_NUMBER = 1 << 48
"""Factors, constants and extents are below it, so that no position overflows 64 bits."""

_TERM = re.compile(r"([+-]?)(?:(\d{1,15})\*)?([A-Za-z_]\w*|@\d{1,3})|([+-]?)(\d{1,15})", re.A)
_WRAPPED = re.compile(r"(?:\((?P<inner>[^()]*)\)|(?P<bare>[^()/%]*))(?P<operator>//|%)(?P<number>[1-9]\d{0,14})", re.A)
_LOOP = re.compile(r"([A-Za-z_]\w*)=([1-9]\d{0,14})", re.A)
_READ = re.compile(r"(0|[1-9]\d{0,2})\[([^\[\]|]*)(?: \| ([^\[\]|]+))?\]", re.A)
_VALUE = re.compile(r"-?(\d+(\.\d*)?(e[+-]?\d+)?|inf)|nan|true|false", re.A)


@dataclass(frozen=True, slots=True)
class TensorRead:
    """An element of operand `operand`. `outside` is what is found outside of it: a literal, `nearest`, or nothing."""

    operand: int
    positions: tuple[Position, ...]
    outside: str = ""

    def __str__(self) -> str:
        outside = f" | {self.outside}" if self.outside else ""
        return f"{self.operand}[{', '.join(map(str, self.positions))}{outside}]"


@dataclass(frozen=True, slots=True)
class IndexRead:
    """The value of a loop."""

    loop: str

    def __str__(self) -> str:
        return f"#{self.loop}"


Read = TensorRead | IndexRead


@dataclass(frozen=True, slots=True)
class RowLookup:
    """A program that copies rows of operand `table`, along its dimension `dim`, whose numbers operand `ids` has, or
    multiplies with them.

    The rows may be cut, as loops of a sum are: with a part of them, a result is 0 where its row is another one.
    """

    table: int
    dim: int
    ids: int
    name: str
    """What the rows of a block are called in ranges, `@k` for those at the elements of read k."""


@dataclass(frozen=True)
class IndexProgram:
    """Loops with extents, of which the first `kept` are those of the result; what is read at each index vector; the
    text of the scalar program over it; and the aggregation over the other loops, empty where there are none."""

    loops: tuple[tuple[str, int], ...]
    kept: int
    reads: tuple[Read, ...]
    program: str
    aggregation: str

    @cached_property
    def extents(self) -> Mapping[str, int]:
        return dict(self.loops)

    @cached_property
    def result(self) -> tuple[str, ...]:
        """The loops of the result, in its order."""
        return tuple(name for name, _ in self.loops[: self.kept])

    @cached_property
    def reduced(self) -> tuple[str, ...]:
        """The loops that are aggregated over."""
        return tuple(name for name, _ in self.loops[self.kept :])

    @property
    def loops_text(self) -> str:
        return " ".join(f"{name}={extent}" for name, extent in self.loops)

    @property
    def reads_text(self) -> str:
        return "; ".join(map(str, self.reads))

    @property
    def whole(self) -> dict[str, Interval]:
        """The ranges of all loops."""
        return {name: (0, extent) for name, extent in self.loops}

    def loops_of(self, read: Read) -> tuple[str, ...]:
        """The loops on which a read depends, also through the elements that its positions name; in loops' order."""
        if isinstance(read, IndexRead):
            return (read.loop,)
        names = set().union(*(self.loops_at(position) for position in read.positions))
        return tuple(name for name, _ in self.loops if name in names)

    def loops_at(self, position: Position) -> set[str]:
        """The loops on which a position depends."""
        names = set(position.loops)
        for number in position.elements:
            names.update(self.loops_of(self.reads[number]))
        return names

    def operand_reads(self, operand: int) -> list[TensorRead]:
        return [read for read in self.reads if isinstance(read, TensorRead) and read.operand == operand]

    def find_bound_loops(self, shapes: Sequence[Sequence[int]]) -> set[str]:
        """The loops whose extents some dimension bounds: each step moves a position, and all steps together move it by
        no more than twice the dimension."""
        return {
            name
            for read in self.reads
            if isinstance(read, TensorRead)
            for position, extent in zip(read.positions, shapes[read.operand], strict=True)
            if position.divisor == 1 and position.modulus == 0
            for name, factor in position.terms
            if name in self.extents and abs(factor) * (self.extents[name] - 1) < 2 * extent
        }

    @property
    def is_expert_product(self) -> bool:
        """Whether it multiplies rows of operand 0 with the matrices of operand 1 that operand 2 picks:
        `y[t, s, n] = sum[k](x[t, s, k] * w[picks[t, s], n, k])`, where rows may lack s, and matrices may be [k, n]."""
        return self.expert_axes is not None

    @cached_property
    def expert_axes(self) -> tuple[str, str] | None:
        """Of such a product, the loops of a matrix: those of its result's columns and of the sum, or the other way."""
        if (self.kept, len(self.reduced), self.aggregation) != (3, 1, "sum") or self.program not in PRODUCT_PROGRAMS:
            return None
        (t, s, n), (k,) = self.result, self.reduced
        for axes in ((n, k), (k, n)):
            matrices = f"1[@2, {', '.join(axes)}]"
            if self.reads_text in {f"{matrices}; 0[{rows}, {k}]; 2[{t}, {s}]" for rows in (t, f"{t}, {s}")}:
                return axes
        return None

    @cached_property
    def lookup(self) -> RowLookup | None:
        """The rows that it copies or multiplies with; None for a program that does anything else."""
        if self.is_expert_product:
            return RowLookup(1, 0, 2, "@2")
        if (
            self.program != COPY_PROGRAM
            or self.reduced
            or not isinstance(self.reads[0], TensorRead)
            or self.reads[0].outside
        ):
            return None
        table, positions = self.reads[0].operand, self.reads[0].positions
        at_data = [dim for dim, position in enumerate(positions) if position.elements]
        if len(at_data) != 1 or len(self.operand_reads(table)) > 1:
            return None
        number = positions[at_data[0]].elements[0]
        ids = self.reads[number]
        if isinstance(ids, IndexRead) or positions[at_data[0]] != Position(((f"@{number}", 1),)):
            return None
        return RowLookup(table, at_data[0], ids.operand, f"@{number}")

    def list_cuts(self, shapes: Sequence[Sequence[int]], dtype: str) -> tuple[str, ...]:
        """The loops along which it may be cut if its values have this type, and then the rows that are looked up."""
        lookup = self.lookup
        return (*self.cut_loops(shapes), *([lookup.name] if lookup is not None and dtype != "bool" else []))

    def cut_loops(self, shapes: Sequence[Sequence[int]]) -> tuple[str, ...]:
        """The loops along which it may be cut: those of the result, and each other one whose interval can be told from
        a block that is read, since some read has it alone at a position, always within the tensor. An aggregation that
        does not commute has its loops whole."""
        definition = find_definition(self.aggregation)
        if not self.reduced or (definition is not None and not definition.is_commutative):
            return self.result
        extents, reads = self.extents, [read for read in self.reads if isinstance(read, TensorRead)]
        counts = Counter(read.operand for read in reads)
        told = {
            loop
            for read in reads
            if counts[read.operand] == 1  # an operand has one block: with several reads it is that of none of them
            for position, extent in zip(read.positions, shapes[read.operand], strict=True)
            if (loop := position.loop) is not None
            and position.constant >= 0
            and position.constant + extents[loop] <= extent
        }
        return (*self.result, *(name for name in self.reduced if name in told))

    def read_span(self, operand: int, dim: int, extent: int, ranges: Ranges) -> Interval:
        """Of dimension `dim` of an operand, whose extent is given, what `read_blocks` has."""
        spans = [clip_span(position.span(ranges), extent) for position in self._positions[operand][dim]]
        return spans[0] if len(spans) == 1 else (min(lower for lower, _ in spans), max(upper for _, upper in spans))

    def read_blocks(self, shapes: Sequence[Sequence[int]], ranges: Ranges) -> tuple[Block, ...]:
        """Of each operand the smallest block that has all that is read of it within these ranges."""
        blocks = []
        for operand, shape in enumerate(shapes):
            spans = [self.read_span(operand, dim, extent, ranges) for dim, extent in enumerate(shape)]
            blocks.append(Block(tuple([lower for lower, _ in spans]), tuple([upper for _, upper in spans])))
        return tuple(blocks)

    @cached_property
    def _positions(self) -> tuple[tuple[tuple[Position, ...], ...], ...]:
        """For each operand and each of its dimensions, the positions that are read there."""
        count = 1 + max((read.operand for read in self.reads if isinstance(read, TensorRead)), default=-1)
        of_reads = [[read.positions for read in self.operand_reads(operand)] for operand in range(count)]
        return tuple(tuple(tuple(dict.fromkeys(each)) for each in zip(*reads, strict=True)) for reads in of_reads)

    def find_ranges(self, shapes: Sequence[Sequence[int]], inputs: Sequence[Block], output: Block) -> Ranges:
        """The intervals of the loops for which these are the blocks. Raises PlanFault where there are none."""
        ranges, lookup = dict(self.whole), self.lookup
        ranges.update(zip(self.result, zip(output.lower, output.upper, strict=True), strict=True))
        told = {name for name in self.cut_loops(shapes) if name in self.reduced}
        for positions, block in zip(self._positions if told else (), inputs, strict=False):
            for each, lower, upper in zip(positions, block.lower, block.upper, strict=True):
                for position in each:
                    if position.loop in told:
                        ranges[position.loop] = (lower - position.constant, upper - position.constant)
        within = all(0 <= lower < upper <= self.extents[name] for name, (lower, upper) in ranges.items())
        if lookup is not None:
            block, extent = inputs[lookup.table], shapes[lookup.table][lookup.dim]
            rows = (block.lower[lookup.dim], block.upper[lookup.dim])
            ranges |= {lookup.name: rows} if rows != (0, extent) else {}
        expected = self.read_blocks(shapes, ranges) if within else ()
        if expected != tuple(inputs):
            operand = next((k for k, (a, b) in enumerate(zip(expected, inputs, strict=False)) if a != b), 0)
            raise PlanFault(f"an index program does not read {inputs[operand]} of operand {operand} for {output}")
        return ranges


def parse_loops(text: str) -> list[tuple[str, int]]:
    """Loops with their extents: `n=8 o=64`. Raises PlanFault for anything else."""
    pairs = []
    for word in text.split(" ") if text else []:
        match = _LOOP.fullmatch(word)
        _require(match is not None and int(match[2]) < MAX_NUMBER, f"'{escape_text(word, 40)}' is no loop")
        assert match is not None
        pairs.append((match[1], int(match[2])))
    _require(len(pairs) <= MAX_LOOPS, f"{len(pairs)} loops; at most {MAX_LOOPS} are supported")
    _require(len(dict(pairs)) == len(pairs), "two loops have one name")
    return pairs


@lru_cache(maxsize=1024)
def parse_index_program(
    loops: str, kept: int, reads: str, program: str, aggregation: str, shapes: tuple[tuple[int, ...], ...]
) -> IndexProgram:
    """The program of these texts over operands of these shapes. Raises PlanFault for all that is not one.

    The scalar program itself and the types are left to `meaning` and to the kernels.
    """
    pairs = parse_loops(loops)
    _require(0 <= kept <= len(pairs), f"{kept} of {len(pairs)} loops are those of the result")
    _require(kept < len(pairs) or not aggregation, "nothing is aggregated over")
    texts = reads.split("; ")
    _require(len(texts) <= MAX_READS, f"{len(texts)} reads; at most {MAX_READS} are supported")
    order = {name: position for position, (name, _) in enumerate(pairs)}
    read = tuple(_parse_read(text, order, len(texts)) for text in texts)
    parsed = IndexProgram(tuple(pairs), kept, read, program, aggregation)
    _require(parsed.reads_text == reads, "reads are not in canonical form")
    _check_reads(parsed, shapes)
    return parsed


def read_index_program(value: Callable[[str, type[Any]], Any], shapes: tuple[tuple[int, ...], ...]) -> IndexProgram:
    """The program of attributes that `value` finds by their names and types, as `parse_index_program`."""
    texts = {name: value(name, str) for name in ("loops", "reads", "program", "aggregation")}
    return parse_index_program(kept=value("kept", int), shapes=shapes, **texts)


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise PlanFault(f"index program: {message}")


def _parse_read(text: str, order: Mapping[str, int], count: int) -> Read:
    if text[:1] == "#":
        _require(text[1:] in order, f"'{escape_text(text, 40)}' is no loop")
        return IndexRead(text[1:])
    match = _READ.fullmatch(text)
    _require(match is not None, f"'{escape_text(text, 60)}' is no read")
    assert match is not None
    outside = match[3] or ""
    known = outside in ("", NEAREST_ELEMENT) or _VALUE.fullmatch(outside) is not None
    _require(known, f"'{escape_text(outside, 40)}' is nothing that a read finds outside of a tensor")
    inner = match[2].split(", ") if match[2] else []
    return TensorRead(int(match[1]), tuple(_parse_position(part, order, count) for part in inner), outside)


def _parse_position(text: str, order: Mapping[str, int], count: int) -> Position:
    wrapped = _WRAPPED.fullmatch(text)
    if wrapped is None:
        return _parse_sum(text, order, count)
    inner = _parse_sum(wrapped["inner"] if wrapped["bare"] is None else wrapped["bare"], order, count)
    number = int(wrapped["number"])
    divides = wrapped["operator"] == "//"
    _require(number > 1, f"'{escape_text(text, 40)}' divides by 1")
    return Position(inner.terms, inner.constant, number if divides else 1, 0 if divides else number)


def _parse_sum(text: str, order: Mapping[str, int], count: int) -> Position:
    terms: dict[str, int] = {}
    constant, at = 0, 0
    while at < len(text) or not at:
        match = _TERM.match(text, at)
        signed = match is not None and (at == 0 or text[at] in "+-")
        _require(signed, f"'{escape_text(text, 60)}' is no position")
        assert match is not None
        at = match.end()
        if match[3] is None:
            constant += int(match[4] + match[5])
            continue
        name = match[3]
        known = name in order if name[0] != "@" else int(name[1:]) < count
        _require(known and name not in terms, f"'{escape_text(name, 40)}' in a position")
        terms[name] = int(f"{match[1]}{match[2] or 1}")
    return make_position(terms.items(), constant, order)


def _check_reads(program: IndexProgram, shapes: Sequence[Sequence[int]]) -> None:
    """Each read fits its operand, stays within it or says what is outside, and depends on none that depends on it."""
    all_ranges = program.whole
    operands = {read.operand for read in program.reads if isinstance(read, TensorRead)}
    _require(operands == set(range(len(shapes))), f"{len(operands)} operands are read of {len(shapes)}")
    for number, read in enumerate(program.reads):
        if isinstance(read, IndexRead):
            continue
        shape = shapes[read.operand]
        _require(len(read.positions) == len(shape), f"{read} of {len(shape)} dimensions")
        for position, extent in zip(read.positions, shape, strict=True):
            _require(extent < MAX_NUMBER, "a dimension is too large")
            # Only reads with larger numbers, and these are views: so that no circle is possible, and none is gathered.
            later = all(element > number and _is_plain(program.reads[element]) for element in position.elements)
            _require(later, f"{read} depends on elements that do not stand behind it, or on further elements")
            span = position.span(all_ranges)
            inside = span is None or (span[0] >= 0 and span[1] <= extent)
            _require(inside or bool(read.outside), f"{read} is outside of a dimension of {extent}: {span}")


def _is_plain(read: Read) -> bool:
    """Whether it is a view: at sums of loops, and within its tensor."""
    return isinstance(read, IndexRead) or (not read.outside and all(p.is_affine for p in read.positions))


def count_index_vectors(ranges: Ranges) -> int:
    """How many index vectors the ranges have together."""
    return math.prod(upper - lower for lower, upper in ranges.values())


def enumerate_ranges(program: IndexProgram, cuts: Sequence[tuple[str, Sequence[Interval]]]) -> Iterable[Ranges]:
    """The ranges of each function of a cut along some loops; the last one runs fastest."""
    names = [name for name, _ in cuts]
    for chosen in itertools.product(*(intervals for _, intervals in cuts)):
        yield {**program.whole, **dict(zip(names, chosen, strict=True))}
