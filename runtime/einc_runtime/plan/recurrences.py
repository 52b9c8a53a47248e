"""Recurrences: equations that are computed at each step along one loop, from values of the step before.

The first loop is the one along which it runs, `t` below. Each equation has a value at every step, which later equations
read, and those of the next step. As text, a selective scan that keeps only what its states add up to:

    loops         "t=2048 d=1536 n=16"
    equations     ["f32[t, d, n] | 0", "f32[t, d]"]
    reads         ["0[t, d]; 1[d, n]; @0[t-1, d, n]; 2[t, d]; 3[t, n]", "@0[t, d, n]; 4[t, n]"]
    programs      ["t0 = mul x0 x1; t1 = exp t0; ...", "t0 = mul x0 x1"]
    aggregations  ["", "sum"]
    results       [1]

An equation has an element type and the loops of its value. Behind `|` stands what its value is before the first step,
where it is read one step later: a number, or an element of an operand, `5[d, n]`. Read k is what the scalar program of
the equation calls `x{k}`: an element of operand 0, `0[t, d]`; of the value of equation 0 at this step, `@0[t, d, n]`;
or at the step before, `@0[t-1, d, n]`. An equation aggregates over the loops that it reads and its value lacks. Values
are kept in the type in which they are computed; only what is stored as a result is rounded to the element type.

What is not in canonical form is refused, so that equal recurrences have equal texts.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from einc_runtime.errors import PlanFault
from einc_runtime.plan.index_programs import parse_loops
from einc_runtime.plan.scalar_programs import ScalarLiteral, ScalarProgram
from einc_runtime.text import escape_text

MAX_EQUATIONS = 64
"""The most equations, and the most reads of one, so that what is compared in pairs stays quick; an LSTM has ten."""

MAX_VALUE_ELEMENTS = 1 << 28
"""The most elements of a value at one step, which kernels keep, so that a short text cannot ask for endless memory."""

MAX_STEP_VECTORS = 1 << 40
"""The most index vectors that one equation has at one step."""

RECURRENCE_TEXTS = ("equations", "reads", "programs", "aggregations")
"""The attributes that are lists of texts, one for each equation."""

AGGREGATIONS = ("sum", "max", "min", "prod")

_RECURRENCE_READ = re.compile(r"(@?)(0|[1-9]\d?)\[([^\[\]|]*)\]", re.A)
_EQUATION = re.compile(r"([a-z]+\d*)\[([^\[\]|]*)\](?: \| (.+))?", re.A)
_BEFORE = "-1"


@dataclass(frozen=True, slots=True)
class OperandRead:
    """An element of operand `source`, with a loop for each of its dimensions."""

    source: int
    loops: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.source}[{', '.join(self.loops)}]"


@dataclass(frozen=True, slots=True)
class ValueRead:
    """An element of the value of equation `source`, at this step or at the one `before`."""

    source: int
    loops: tuple[str, ...]
    before: bool
    along: str

    def __str__(self) -> str:
        names = (f"{name}{_BEFORE}" if self.before and name == self.along else name for name in self.loops)
        return f"@{self.source}[{', '.join(names)}]"


RecurrenceRead = OperandRead | ValueRead


@dataclass(frozen=True, slots=True)
class RecurrenceEquation:
    """An equation: the type and the loops of its value, what it reads, the text of the scalar program over that, its
    aggregation, if it has one, and what its value is before the first step, if that is read."""

    dtype: str
    loops: tuple[str, ...]
    reads: tuple[RecurrenceRead, ...]
    program: str
    aggregation: str = ""
    initial: str | OperandRead = ""

    def __str__(self) -> str:
        initial = f" | {self.initial}" if self.initial != "" else ""
        return f"{self.dtype}[{', '.join(self.loops)}]{initial}"

    @property
    def all_loops(self) -> tuple[str, ...]:
        """The loops of its value, and those over which it aggregates."""
        return tuple(dict.fromkeys([*self.loops, *(name for read in self.reads for name in read.loops)]))

    @property
    def reduced(self) -> tuple[str, ...]:
        """The loops over which it aggregates."""
        return self.all_loops[len(self.loops) :]

    @property
    def operand_reads(self) -> list[OperandRead]:
        """What it reads of operands, before the first step as well."""
        reads = (*self.reads, self.initial)
        return [read for read in reads if isinstance(read, OperandRead)]

    @property
    def value_reads(self) -> list[ValueRead]:
        return [read for read in self.reads if isinstance(read, ValueRead)]

    @property
    def scalar(self) -> ScalarProgram:
        """The scalar program over what it reads."""
        return _parse_scalar(self.program, len(self.reads))


@dataclass(frozen=True, slots=True)
class Recurrence:
    """Loops with extents, of which it runs along the first; its equations in order; and which of them are results."""

    loops: tuple[tuple[str, int], ...]
    equations: tuple[RecurrenceEquation, ...]
    results: tuple[int, ...]

    @property
    def along(self) -> str:
        """The loop along which it runs."""
        return self.loops[0][0]

    @property
    def extents(self) -> dict[str, int]:
        return dict(self.loops)

    @property
    def texts(self) -> dict[str, str | list[str] | list[int]]:
        """The texts that `parse_recurrence` reads."""
        return {
            "loops": " ".join(f"{name}={extent}" for name, extent in self.loops),
            "equations": [str(equation) for equation in self.equations],
            "reads": ["; ".join(map(str, equation.reads)) for equation in self.equations],
            "programs": [equation.program for equation in self.equations],
            "aggregations": [equation.aggregation for equation in self.equations],
            "results": list(self.results),
        }

    @property
    def carried(self) -> tuple[int, ...]:
        """The equations whose values are read one step later: what a recurrence carries from step to step."""
        return tuple(number for number, equation in enumerate(self.equations) if equation.initial != "")

    @property
    def operand_reads(self) -> list[OperandRead]:
        return [read for equation in self.equations for read in equation.operand_reads]

    def shape_of(self, number: int) -> tuple[int, ...]:
        """The shape of the value of an equation at all steps."""
        extents = self.extents
        return tuple(extents[name] for name in self.equations[number].loops)

    def loops_of_operand(self, operand: int) -> tuple[str | None, ...]:
        """The loop along which each dimension of an operand is read; None where reads differ."""
        reads = [read.loops for read in self.operand_reads if read.source == operand]
        return tuple(names[0] if len(set(names)) == 1 else None for names in zip(*reads, strict=True))

    def cut_loops(self, count: int) -> tuple[str, ...]:
        """The loops along which it may be cut, of `count` operands: at each position of these, no value is read that
        was computed at another one, and blocks of operands tell their intervals. A loop over which only a result that
        nothing reads aggregates may be cut as well: blocks have parts of its sum."""
        operands = [self.loops_of_operand(operand) for operand in range(count)]
        return tuple(name for name, _ in self.loops[1:] if self._is_cuttable(name, operands))

    @property
    def independent_loops(self) -> tuple[str, ...]:
        """The loops that each equation has, and at each position of which all steps can be computed by themselves."""
        pairs = [
            pair
            for equation in self.equations
            for read in equation.value_reads
            for pair in zip(read.loops, self.equations[read.source].loops, strict=True)
        ]
        crossed = {name for pair in pairs if pair[0] != pair[1] for name in pair}
        return tuple(
            name
            for name, _ in self.loops[1:]
            if name not in crossed and all(name in equation.loops for equation in self.equations)
        )

    def _is_cuttable(self, name: str, operands: Sequence[tuple[str | None, ...]]) -> bool:
        read = {source.source for equation in self.equations for source in equation.value_reads}
        for equation in self.equations:
            for source in equation.value_reads:
                pairs = zip(source.loops, self.equations[source.source].loops, strict=True)
                if any((at == name) != (kept == name) for at, kept in pairs):
                    return False
        for number, equation in enumerate(self.equations):
            ends = number in self.results and number not in read
            if name in equation.reduced and not ends:
                return False
        if not all(name in self.equations[number].all_loops for number in self.results):
            return False
        for read_at in self.operand_reads:
            if any(
                at == name and name != kept for at, kept in zip(read_at.loops, operands[read_at.source], strict=True)
            ):
                return False
        told = {kept for names in operands for kept in names}
        return name in told or any(name in self.equations[number].loops for number in self.results)


def measure_loops(
    recurrence: Recurrence, inputs: Sequence[Sequence[int]], outputs: Sequence[Sequence[int]]
) -> dict[str, int]:
    """The extent of each loop for blocks of these shapes. Raises PlanFault where they do not fit."""
    extents = recurrence.extents
    cut = set(recurrence.cut_loops(len(inputs)))
    known: dict[str, int] = {}
    named = [(recurrence.loops_of_operand(operand), shape) for operand, shape in enumerate(inputs)]
    named += [(recurrence.equations[k].loops, shape) for k, shape in zip(recurrence.results, outputs, strict=True)]
    for names, shape in named:
        _require(len(names) == len(shape), f"a block of {len(shape)} dimensions where {len(names)} are read")
        for name, extent in zip(names, shape, strict=True):
            if name is None:
                continue
            fits = known.setdefault(name, extent) == extent and (extent == extents[name] or name in cut)
            _require(fits and 0 < extent <= extents[name], f"a block has {extent} positions along '{name}'")
    for read in recurrence.operand_reads:
        for name, extent in zip(read.loops, inputs[read.source], strict=True):
            fits = known.get(name, extents[name]) == extent
            _require(fits, f"a block has {extent} positions along '{name}'")
    return {**extents, **known}


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise PlanFault(f"a recurrence: {message}")


@lru_cache(maxsize=4096)
def _parse_scalar(text: str, arity: int) -> ScalarProgram:
    return ScalarProgram.parse(text, arity)


def parse_recurrence(
    loops: str,
    equations: Sequence[str],
    reads: Sequence[str],
    programs: Sequence[str],
    aggregations: Sequence[str],
    results: Sequence[int],
) -> Recurrence:
    """The recurrence of these texts. Raises PlanFault for all that is not one.

    Types, and the shapes of operands, are left to `meaning` and to the kernels.
    """
    texts = tuple(map(tuple, (equations, reads, programs, aggregations)))
    return _parse(loops, *texts, results=tuple(results))


@lru_cache(maxsize=512)
def _parse(
    loops: str,
    equations: tuple[str, ...],
    reads: tuple[str, ...],
    programs: tuple[str, ...],
    aggregations: tuple[str, ...],
    results: tuple[int, ...],
) -> Recurrence:
    pairs = parse_loops(loops)
    _require(bool(pairs), "it has no loop")
    counts = {len(texts) for texts in (equations, reads, programs, aggregations)}
    _require(len(counts) == 1 and 0 < len(equations) <= MAX_EQUATIONS, f"{len(equations)} equations")
    known = dict(pairs)
    parsed = tuple(
        _parse_equation(known, *texts) for texts in zip(equations, reads, programs, aggregations, strict=True)
    )
    recurrence = Recurrence(tuple(pairs), parsed, results)
    _check(recurrence)
    return recurrence


def _parse_equation(
    known: dict[str, int], equation: str, reads: str, program: str, aggregation: str
) -> RecurrenceEquation:
    match = _EQUATION.fullmatch(equation)
    if match is None:
        raise PlanFault(f"a recurrence: '{escape_text(equation, 60)}' is no equation")
    text = match[3] or ""
    initial: str | OperandRead = text
    if "[" in text:
        parsed = _parse_read(text, known)
        if not isinstance(parsed, OperandRead):
            raise PlanFault("a recurrence: a value before the first step is a number, or an element of an operand")
        initial = parsed
    elif text:
        _require(_is_literal(text), f"'{escape_text(text, 40)}' is no value")
    words = reads.split("; ") if reads else []
    _require(len(words) <= MAX_EQUATIONS, f"an equation of {len(words)} reads")
    parsed_reads = tuple(_parse_read(word, known) for word in words)
    return RecurrenceEquation(match[1], _split_names(match[2], known), parsed_reads, program, aggregation, initial)


def _is_literal(text: str) -> bool:
    try:
        return len(text) <= 32 and ScalarLiteral.of(ScalarLiteral(text).value).text == text
    except (ValueError, OverflowError):
        return False


def _parse_read(text: str, known: dict[str, int]) -> RecurrenceRead:
    match = _RECURRENCE_READ.fullmatch(text)
    if match is None:
        raise PlanFault(f"a recurrence: '{escape_text(text, 60)}' is no read")
    along = next(iter(known))
    before = f"{along}{_BEFORE}"
    words = match[3].split(", ") if match[3] else []
    if not match[1]:
        return OperandRead(int(match[2]), _split_names(match[3], known))
    names = _split_names(", ".join(along if word == before else word for word in words), known)
    return ValueRead(int(match[2]), names, before in words, along)


def _split_names(text: str, known: dict[str, int]) -> tuple[str, ...]:
    names = tuple(text.split(", ")) if text else ()
    for name in names:
        _require(name in known, f"'{escape_text(name, 40)}' is no loop")
    _require(len(set(names)) == len(names), f"a loop stands twice in '{escape_text(text, 60)}'")
    return names


def _check(recurrence: Recurrence) -> None:
    """Each equation fits the values that it reads, and has a use; each loop is one of some equation."""
    equations, along, extents = recurrence.equations, recurrence.along, recurrence.extents
    carried: set[int] = set()
    for number, equation in enumerate(equations):
        _require(along in equation.loops, f"equation {number} does not run along '{along}'")
        _require(len(equation.reads) > 0, f"equation {number} reads nothing")
        for read in equation.value_reads:
            _require(read.source < len(equations), f"{read} of {len(equations)} equations")
            source = equations[read.source]
            _require(along in read.loops, f"{read} is not read along '{along}'")
            _require(read.before or read.source < number, f"{read} is not known at this step yet")
            fits = len(read.loops) == len(source.loops) and read.loops.index(along) == source.loops.index(along)
            fits = fits and all(extents[a] == extents[b] for a, b in zip(read.loops, source.loops, strict=True))
            _require(fits, f"{read} does not fit the value of {source}")
            if read.before:
                carried.add(read.source)
        vectors = math.prod(extents[name] for name in equation.all_loops if name != along)
        elements = math.prod(extents[name] for name in equation.loops if name != along)
        few = vectors <= MAX_STEP_VECTORS and elements <= MAX_VALUE_ELEMENTS
        _require(few, f"equation {number} has too many index vectors")
        if isinstance(equation.initial, OperandRead):
            inside = set(equation.initial.loops) <= set(equation.loops) - {along}
            _require(inside, f"{equation.initial} is no element before the first step of {equation}")
        known = equation.aggregation in AGGREGATIONS if equation.reduced else equation.aggregation == ""
        _require(known, f"aggregation '{equation.aggregation[:40]}' over {len(equation.reduced)} loops")
    _require(
        carried == set(recurrence.carried),
        "a value is read before the first step where it is not known, or is not read",
    )
    ordered = all(type(k) is int and 0 <= k < len(equations) for k in recurrence.results)
    ordered = ordered and list(recurrence.results) == sorted(set(recurrence.results)) and bool(recurrence.results)
    _require(ordered, f"its results are {str(list(recurrence.results))[:60]}")
    _require(set(list_used(equations, recurrence.results)) == set(range(len(equations))), "an equation has no use")
    loops = {name for equation in equations for name in equation.all_loops}
    _require(loops == set(extents), "a loop has no use")


def list_used(equations: Sequence[RecurrenceEquation], results: Sequence[int]) -> Iterator[int]:
    """The equations on which results depend, in order."""
    needed, waiting = set(results), list(results)
    while waiting:
        for read in equations[waiting.pop()].value_reads:
            if read.source not in needed:
                needed.add(read.source)
                waiting.append(read.source)
    return iter(sorted(needed))
