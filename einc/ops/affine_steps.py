"""The step of a recurrence as a factor of the value before and a term, where it is one: `a[t] * h[t - 1] + b[t]`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from einc.core.tensor import DType
from einc.ops.scalar import ProgramBuilder
from einc_runtime.plan.recurrences import OperandRead, Recurrence, RecurrenceEquation, ValueRead
from einc_runtime.plan.scalar_programs import (
    EarlierStep,
    FunctionStep,
    Operand,
    ScalarInput,
    ScalarLiteral,
    ScalarProgram,
)

ZERO, ONE = ScalarLiteral.of(0.0), ScalarLiteral.of(1.0)


@dataclass(frozen=True, slots=True)
class AffineStep:
    """A program over elements of operands, whose last two steps are the factor and the term.

    Both are numbers of the type of the value that is carried.
    """

    reads: tuple[OperandRead, ...]
    program: ScalarProgram


@dataclass(frozen=True, slots=True)
class _Affine:
    """factor * h + term, where h is the value at the step before."""

    factor: Operand
    term: Operand


class _NoAffineStep(Exception):
    """The step is not affine, or its factor and term depend on values that are carried."""


def split_affine(recurrence: Recurrence, number: int) -> AffineStep | None:
    """The step of a value that is carried; None where it is not affine in that value, at the same position, alone."""
    equation = recurrence.equations[number]
    if equation.aggregation or not DType(equation.dtype).is_float:
        return None
    splitter = _Splitter(recurrence, number)
    try:
        value = splitter.compute(equation, {name: name for name in equation.loops})
    except _NoAffineStep:
        return None
    if not isinstance(value, _Affine):
        return None
    reads = tuple(splitter.reads)
    splitter.builder.arity = len(reads)
    results = [splitter.widen(x, equation.dtype) for x in (value.factor, value.term)]
    return AffineStep(reads, splitter.builder.program(*results)) if reads else None


class _Splitter:
    """The program under construction. Values are operands of its steps, or affine in what is carried."""

    def __init__(self, recurrence: Recurrence, number: int) -> None:
        self.recurrence, self.number = recurrence, number
        self.builder = ProgramBuilder(0)
        self.reads: dict[OperandRead, ScalarInput] = {}

    def compute(self, equation: RecurrenceEquation, names: Mapping[str, str]) -> Operand | _Affine:
        """The value of an equation, whose loops have other names where it is read."""
        inputs: list[Operand | _Affine] = []
        for read in equation.reads:
            loops = tuple(names[name] for name in read.loops)
            if isinstance(read, OperandRead):
                renamed = OperandRead(read.source, loops)
                inputs.append(self.reads.setdefault(renamed, ScalarInput(len(self.reads))))
                continue
            inputs.append(self._read_value(read, loops))
        results: list[Operand | _Affine] = []

        def find(x: Operand) -> Operand | _Affine:
            if isinstance(x, ScalarInput):
                return inputs[x.position]
            return results[x.position] if isinstance(x, EarlierStep) else x

        for step in equation.scalar.steps:
            results.append(self._apply(step, [find(x) for x in step.operands]))
        return results[-1]

    def _read_value(self, read: ValueRead, loops: tuple[str, ...]) -> Operand | _Affine:
        source = self.recurrence.equations[read.source]
        if read.before:
            if read.source != self.number or loops != source.loops:
                raise _NoAffineStep
            return _Affine(ONE, ZERO)
        if read.source in self.recurrence.carried or source.aggregation:
            raise _NoAffineStep
        return self.compute(source, dict(zip(source.loops, loops, strict=True)))

    def _apply(self, step: FunctionStep, operands: Sequence[Operand | _Affine]) -> Operand | _Affine:
        plain = [x for x in operands if not isinstance(x, _Affine)]
        if len(plain) == len(operands):
            return self.builder.add(step.function, *plain)
        apply = _AFFINE_FUNCTIONS.get(step.function)
        if apply is None:
            raise _NoAffineStep
        return apply(self, *operands)

    def _copy(self, x: _Affine) -> _Affine:
        return x

    def _negate(self, x: _Affine) -> _Affine:
        return _Affine(*(self._multiply(part, ScalarLiteral.of(-1.0)) for part in (x.factor, x.term)))

    def _sum(self, x: Operand | _Affine, y: Operand | _Affine) -> _Affine:
        left, right = _widen(x), _widen(y)
        return _Affine(self._add(left.factor, right.factor), self._add(left.term, right.term))

    def _difference(self, x: Operand | _Affine, y: Operand | _Affine) -> _Affine:
        return self._sum(x, self._negate(_widen(y)))

    def _product(self, x: Operand | _Affine, y: Operand | _Affine) -> _Affine:
        if isinstance(x, _Affine) and isinstance(y, _Affine):
            raise _NoAffineStep
        affine, number = (x, y) if isinstance(x, _Affine) else (y, x)
        assert isinstance(affine, _Affine)
        assert not isinstance(number, _Affine)
        return _Affine(self._multiply(affine.factor, number), self._multiply(affine.term, number))

    def _quotient(self, x: Operand | _Affine, y: Operand | _Affine) -> _Affine:
        if isinstance(y, _Affine) or not isinstance(x, _Affine):
            raise _NoAffineStep
        reciprocal = ScalarLiteral.of(1.0 / float(y.value)) if isinstance(y, ScalarLiteral) else None
        if reciprocal is not None:
            return self._product(x, reciprocal)
        return _Affine(
            ZERO if x.factor == ZERO else self.builder.add("div", x.factor, y),
            ZERO if x.term == ZERO else self.builder.add("div", x.term, y),
        )

    def _choose(self, condition: Operand | _Affine, x: Operand | _Affine, y: Operand | _Affine) -> _Affine:
        if isinstance(condition, _Affine):
            raise _NoAffineStep
        left, right = _widen(x), _widen(y)
        pairs = ((left.factor, right.factor), (left.term, right.term))
        return _Affine(*(self._select(condition, one_side, other_side) for one_side, other_side in pairs))

    def _select(self, condition: Operand, yes: Operand, no: Operand) -> Operand:
        if not isinstance(yes, ScalarLiteral) or not isinstance(no, ScalarLiteral):
            return self.builder.add("where", condition, yes, no)
        dtype = self.recurrence.equations[self.number].dtype
        share = self.builder.add(f"cast:{dtype}", condition)
        difference = ScalarLiteral.of(float(yes.value) - float(no.value))
        return self._add(self._multiply(share, difference), no)

    def _multiply(self, x: Operand, y: Operand) -> Operand:
        if isinstance(x, ScalarLiteral) and isinstance(y, ScalarLiteral):
            return ScalarLiteral.of(float(x.value) * float(y.value))
        if ZERO in (x, y):
            return ZERO
        for one_side, other_side in ((x, y), (y, x)):
            if one_side == ONE:
                return other_side
        return self.builder.add("mul", x, y)

    def _add(self, x: Operand, y: Operand) -> Operand:
        if isinstance(x, ScalarLiteral) and isinstance(y, ScalarLiteral):
            return ScalarLiteral.of(float(x.value) + float(y.value))
        for one_side, other_side in ((x, y), (y, x)):
            if one_side == ZERO:
                return other_side
        return self.builder.add("add", x, y)

    def widen(self, x: Operand, dtype: str) -> Operand:
        """A number as a result of its own: any element, which is compared with itself and then is no part of it."""
        if not isinstance(x, ScalarLiteral):
            return x
        nothing = self.builder.add("eq", ScalarInput(0), ScalarInput(0))
        share = self.builder.add(f"cast:{dtype}", self.builder.add("and", nothing, self.builder.add("not", nothing)))
        return self.builder.add("add", share, x)


def _widen(x: Operand | _Affine) -> _Affine:
    return x if isinstance(x, _Affine) else _Affine(ZERO, x)


_AFFINE_FUNCTIONS: dict[str, Callable[..., _Affine]] = {
    "copy": _Splitter._copy,
    "neg": _Splitter._negate,
    "add": _Splitter._sum,
    "sub": _Splitter._difference,
    "mul": _Splitter._product,
    "div": _Splitter._quotient,
    "where": _Splitter._choose,
}
"""What functions make of operands, of which one is affine at least."""
