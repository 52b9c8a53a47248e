"""Scalar programs: the join expression of an operator as straight-line code over its inputs' elements.

A program is in single-assignment form: every step applies one function to inputs, earlier steps and literals, and the
last step is the result. Plans contain its text form:

    t0 = mul x0 x1; t1 = silu t0; t2 = add t1 0.5
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from einc.core.tensor import DType
from einc.errors import OperatorError
from einc.ops.functions import FUNCTIONS, fit_literal, infer_step_types, is_discontinuous

Number: TypeAlias = bool | int | float


@dataclass(frozen=True, slots=True)
class ScalarInput:
    """The element of input `position` at the current index vector."""

    position: int

    def __str__(self) -> str:
        return f"x{self.position}"


@dataclass(frozen=True, slots=True)
class Temp:
    """The result of step `position`."""

    position: int

    def __str__(self) -> str:
        return f"t{self.position}"


@dataclass(frozen=True, slots=True)
class ScalarLiteral:
    """A constant, represented by its text, so that 1, 1.0 and true differ, and so do 0.0 and -0.0."""

    text: str

    @staticmethod
    def of(value: Number) -> ScalarLiteral:
        if isinstance(value, int) and value.bit_length() > 64:
            raise OperatorError(f"an integer literal of {value.bit_length()} bits fits no element type")
        return ScalarLiteral(repr(value).lower())

    @property
    def value(self) -> Number:
        if self.text in ("true", "false"):
            return self.text == "true"
        try:
            return int(self.text)
        except ValueError:
            return float(self.text)

    def __str__(self) -> str:
        return self.text


Operand: TypeAlias = ScalarInput | Temp | ScalarLiteral


@dataclass(frozen=True, slots=True)
class FunctionStep:
    """One application of a scalar function."""

    function: str
    operands: tuple[Operand, ...]

    def __str__(self) -> str:
        return " ".join([self.function, *map(str, self.operands)])


@dataclass(frozen=True, slots=True)
class ScalarProgram:
    """Steps over `arity` inputs; raises OperatorError if they are not a valid program."""

    arity: int
    steps: tuple[FunctionStep, ...]

    def __post_init__(self) -> None:
        if not self.steps:
            raise OperatorError("a scalar program needs a step")
        for position, step in enumerate(self.steps):
            signature = FUNCTIONS.get(step.function)
            if signature is None:
                raise OperatorError(f"there is no scalar function {step.function[:40]!r}")
            if len(step.operands) != signature.arity:
                raise OperatorError(f"{step.function} takes {signature.arity} operands, not {len(step.operands)}")
            for operand in step.operands:
                limit = self.arity if isinstance(operand, ScalarInput) else position
                if not isinstance(operand, ScalarLiteral) and not 0 <= operand.position < limit:
                    raise OperatorError(f"step {position} reads {operand}, which is not there")

    @property
    def text(self) -> str:
        return "; ".join(f"t{i} = {step}" for i, step in enumerate(self.steps))

    @staticmethod
    def parse(text: str, arity: int) -> ScalarProgram:
        """The program that `text` prints; raises OperatorError for anything else."""
        steps = []
        for position, part in enumerate(text.split(";")):
            words = part.split()
            if len(words) < 3 or words[:2] != [f"t{position}", "="]:
                raise OperatorError(f"step {position} of a scalar program must read 't{position} = function ...'")
            steps.append(FunctionStep(words[2], tuple(map(_parse_operand, words[3:]))))
        return ScalarProgram(arity, tuple(steps))

    def resolve(self, inputs: Sequence[DType]) -> tuple[ScalarProgram, tuple[DType, ...]]:
        """The program with every literal fitted to its type, and the element type of each step's result.

        Raises OperatorError; its `argument` is the number of the input at fault, if there is one.
        """
        types: list[DType] = []
        steps: list[FunctionStep] = []
        for step in self.steps:
            try:
                result, expected = infer_step_types(
                    step.function, [_find_type(x, inputs, types) for x in step.operands]
                )
            except OperatorError as fault:
                raise _point_at_input(fault, step) from None
            types.append(result)
            steps.append(FunctionStep(step.function, tuple(map(_fit, step.operands, expected))))
        return ScalarProgram(self.arity, tuple(steps)), tuple(types)

    @property
    def product_factor(self) -> float | None:
        """The product of the numbers in a program (1 if there are none) that only multiplies numbers and all its
        inputs, each once; None for any other program."""
        operands = [operand for step in self.steps for operand in step.operands]
        factor = math.prod(float(x.value) for x in operands if isinstance(x, ScalarLiteral))
        read = [str(operand) for operand in operands if not isinstance(operand, ScalarLiteral)]
        available = [f"x{k}" for k in range(self.arity)] + [f"t{i}" for i in range(len(self.steps) - 1)]
        multiplies = all(step.function == "mul" for step in self.steps) and sorted(read) == sorted(available)
        return factor if multiplies and math.isfinite(factor) else None

    @property
    def is_discontinuous(self) -> bool:
        return any(is_discontinuous(step.function) for step in self.steps)


class ProgramBuilder:
    """Collects steps, sharing equal ones and leaving out copies and steps that the result does not need."""

    def __init__(self, arity: int) -> None:
        self.arity = arity
        self._steps: list[FunctionStep] = []
        self._known: dict[FunctionStep, Temp] = {}

    def add(self, function: str, *operands: Operand | Number) -> Operand:
        """The result of applying `function`, as an operand of later steps."""
        step = _build_step(function, operands)
        if function == "copy" and len(operands) == 1:
            return step.operands[0]
        if step not in self._known:
            self._known[step] = Temp(len(self._steps))
            self._steps.append(step)
        return self._known[step]

    def insert(self, program: ScalarProgram, inputs: Sequence[Operand]) -> Operand:
        """The result of `program` with its inputs replaced by these operands."""
        results: list[Operand] = []
        for step in program.steps:
            results.append(self.add(step.function, *(_replace(x, inputs, results) for x in step.operands)))
        return results[-1]

    def program(self, result: Operand) -> ScalarProgram:
        """The program that ends with `result`."""
        if not isinstance(result, Temp):
            return ScalarProgram(self.arity, (FunctionStep("copy", (result,)),))
        needed = {result.position}
        for position in range(result.position, -1, -1):
            if position in needed:
                needed.update(x.position for x in self._steps[position].operands if isinstance(x, Temp))
        places: Mapping[int, Temp] = {old: Temp(new) for new, old in enumerate(sorted(needed))}
        steps = (self._steps[old] for old in places)
        return ScalarProgram(
            self.arity,
            tuple(
                FunctionStep(
                    step.function, tuple(places[x.position] if isinstance(x, Temp) else x for x in step.operands)
                )
                for step in steps
            ),
        )


def make_step(function: str, *operands: Operand | Number) -> ScalarProgram:
    """The program of one step with these operands."""
    arity = 1 + max((x.position for x in operands if isinstance(x, ScalarInput)), default=-1)
    return ScalarProgram(arity, (_build_step(function, operands),))


def compose(consumer: ScalarProgram, k: int, producer: ScalarProgram, rounding: DType | None) -> ScalarProgram:
    """`consumer` with `producer` computed in place of its input `k`; `rounding` is applied to what it passes on.

    The producer's inputs take the place of input `k`.
    """
    builder = ProgramBuilder(consumer.arity - 1 + producer.arity)
    passed = builder.insert(producer, [ScalarInput(k + j) for j in range(producer.arity)])
    if rounding is not None:
        passed = builder.add(f"cast:{rounding}", passed)
    before = [ScalarInput(j) for j in range(k)]
    after = [ScalarInput(j - 1 + producer.arity) for j in range(k + 1, consumer.arity)]
    return builder.program(builder.insert(consumer, [*before, passed, *after]))


def merge_inputs(program: ScalarProgram, first: int, second: int) -> ScalarProgram:
    """The program without the later input `second`: it reads input `first` instead."""
    builder = ProgramBuilder(program.arity - 1)
    kept = [ScalarInput(j - (j > second)) for j in range(program.arity)]
    kept[second] = ScalarInput(first)
    return builder.program(builder.insert(program, kept))


def exchange_inputs(program: ScalarProgram) -> ScalarProgram:
    """The program whose two inputs are in the other order."""
    builder = ProgramBuilder(2)
    return builder.program(builder.insert(program, [ScalarInput(1), ScalarInput(0)]))


def _build_step(function: str, operands: Sequence[Operand | Number]) -> FunctionStep:
    return FunctionStep(function, tuple(x if isinstance(x, Operand) else ScalarLiteral.of(x) for x in operands))


def _replace(operand: Operand, inputs: Sequence[Operand], results: Sequence[Operand]) -> Operand:
    if isinstance(operand, ScalarLiteral):
        return operand
    return inputs[operand.position] if isinstance(operand, ScalarInput) else results[operand.position]


def _parse_operand(word: str) -> Operand:
    if word[0] in "xt" and word[1:].isdecimal() and word.isascii() and len(word) < 10:
        return ScalarInput(int(word[1:])) if word[0] == "x" else Temp(int(word[1:]))
    if len(word) <= 32 and word.isascii() and "_" not in word:
        try:
            return ScalarLiteral.of(ScalarLiteral(word).value)
        except ValueError:
            pass
    raise OperatorError(f"{word[:40]!r} is no operand of a scalar program")


def _find_type(operand: Operand, inputs: Sequence[DType], types: Sequence[DType]) -> DType | None:
    if isinstance(operand, ScalarLiteral):
        return None
    return inputs[operand.position] if isinstance(operand, ScalarInput) else types[operand.position]


def _fit(operand: Operand, dtype: DType) -> Operand:
    return ScalarLiteral.of(fit_literal(operand.value, dtype)) if isinstance(operand, ScalarLiteral) else operand


def _point_at_input(fault: OperatorError, step: FunctionStep) -> OperatorError:
    culprit = step.operands[fault.argument] if isinstance(fault.argument, int) else None
    position = culprit.position if isinstance(culprit, ScalarInput) else None
    return OperatorError(fault.message, argument=position, hint=fault.hint)
