"""Scalar programs in the compiler: their literals fitted to types, built step by step, and composed.

`einc_runtime.plan.scalar_programs` says what a program is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from einc.core.tensor import DType
from einc.errors import OperatorError
from einc.ops.functions import fit_literal, infer_step_types
from einc_runtime.errors import PlanFault
from einc_runtime.plan.scalar_functions import Number
from einc_runtime.plan.scalar_programs import (
    MAX_LITERAL_BITS,
    EarlierStep,
    FunctionStep,
    Operand,
    ScalarInput,
    ScalarLiteral,
    ScalarProgram,
)


def make_literal(value: Number) -> ScalarLiteral:
    """Raises OperatorError for a number that no element type has."""
    if isinstance(value, int) and value.bit_length() > MAX_LITERAL_BITS:
        raise OperatorError(f"an integer literal of {value.bit_length()} bits fits no element type")
    return ScalarLiteral.of(value)


def parse_program(text: str, arity: int) -> ScalarProgram:
    """The program that `text` prints; raises OperatorError for anything else."""
    try:
        return ScalarProgram.parse(text, arity)
    except PlanFault as fault:
        raise OperatorError(fault.message) from None


def resolve_program(program: ScalarProgram, inputs: Sequence[DType]) -> tuple[ScalarProgram, tuple[DType, ...]]:
    """The program with every literal fitted to its type, and the element type of each step's result.

    Raises OperatorError; its `argument` is the number of the input at fault, if there is one.
    """
    types: list[DType] = []
    steps: list[FunctionStep] = []
    for step in program.steps:
        try:
            result, expected = infer_step_types(step.function, [_find_type(x, inputs, types) for x in step.operands])
        except OperatorError as fault:
            raise _point_at_input(fault, step) from None
        types.append(result)
        steps.append(FunctionStep(step.function, tuple(map(_fit, step.operands, expected))))
    return ScalarProgram(program.arity, tuple(steps)), tuple(types)


class ProgramBuilder:
    """Collects steps, sharing equal ones and leaving out copies and steps that the result does not need."""

    def __init__(self, arity: int) -> None:
        self.arity = arity
        self._steps: list[FunctionStep] = []
        self._known: dict[FunctionStep, EarlierStep] = {}

    def add(self, function: str, *operands: Operand | Number) -> Operand:
        """The result of applying `function`, as an operand of later steps."""
        step = _build_step(function, operands)
        if function == "copy" and len(operands) == 1:
            return step.operands[0]
        if step not in self._known:
            self._known[step] = EarlierStep(len(self._steps))
            self._steps.append(step)
        return self._known[step]

    def insert(self, program: ScalarProgram, inputs: Sequence[Operand]) -> Operand:
        """The result of `program` with its inputs replaced by these operands."""
        return self.insert_all(program, inputs)[-1]

    def insert_all(self, program: ScalarProgram, inputs: Sequence[Operand]) -> list[Operand]:
        """The results of all steps of `program` with its inputs replaced by these operands."""
        results: list[Operand] = []
        for step in program.steps:
            results.append(self.add(step.function, *(_replace(x, inputs, results) for x in step.operands)))
        return results

    def program(self, *results: Operand) -> ScalarProgram:
        """The program that ends with these results. Of several, each has a step of its own at the end."""
        positions = [result.position for result in results if isinstance(result, EarlierStep)]
        needed = set(positions)
        for position in range(max(positions, default=-1), -1, -1):
            if position in needed:
                needed.update(x.position for x in self._steps[position].operands if isinstance(x, EarlierStep))
        places: Mapping[int, EarlierStep] = {old: EarlierStep(new) for new, old in enumerate(sorted(needed))}

        def move(x: Operand) -> Operand:
            return places[x.position] if isinstance(x, EarlierStep) else x

        steps = [FunctionStep(self._steps[old].function, tuple(map(move, self._steps[old].operands))) for old in places]
        if len(results) > 1 or not isinstance(results[0], EarlierStep):
            steps += [FunctionStep("copy", (move(result),)) for result in results]
        return ScalarProgram(self.arity, tuple(steps))


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
    return FunctionStep(function, tuple(x if isinstance(x, Operand) else make_literal(x) for x in operands))


def _replace(operand: Operand, inputs: Sequence[Operand], results: Sequence[Operand]) -> Operand:
    if isinstance(operand, ScalarLiteral):
        return operand
    if isinstance(operand, ScalarInput):
        return inputs[operand.position]
    return results[operand.position]


def _find_type(operand: Operand, inputs: Sequence[DType], types: Sequence[DType]) -> DType | None:
    if isinstance(operand, ScalarLiteral):
        return None
    return (inputs if isinstance(operand, ScalarInput) else types)[operand.position]


def _fit(operand: Operand, dtype: DType) -> Operand:
    return ScalarLiteral.of(fit_literal(operand.value, dtype)) if isinstance(operand, ScalarLiteral) else operand


def _point_at_input(fault: OperatorError, step: FunctionStep) -> OperatorError:
    culprit = step.operands[fault.argument] if isinstance(fault.argument, int) else None
    position = culprit.position if isinstance(culprit, ScalarInput) else None
    return OperatorError(fault.message, argument=position, hint=fault.hint)
