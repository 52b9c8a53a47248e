"""Scalar programs: what is computed at every index vector, as straight-line code over the elements of inputs.

A program is in single-assignment form: every step applies one function to operands, and the last step is the result.
An operand is an input x{k}, an earlier step t{k}, or a literal. Plans contain the text:

    t0 = mul x0 x1; t1 = silu t0; t2 = add t1 0.5
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from einc_runtime.errors import PlanFault
from einc_runtime.plan.scalar_functions import SCALAR_FUNCTIONS, Number, infer_types, is_literal_of
from einc_runtime.text import escape_text

MAX_STEPS = 4096
MAX_LITERAL_BITS = 64
"""The most bits of the magnitude of a whole number."""

_REFERENCE = re.compile(r"([xt])(0|[1-9]\d{0,5})", re.A)


@dataclass(frozen=True, slots=True)
class ScalarInput:
    """The element of input `position` at the current index vector."""

    position: int

    def __str__(self) -> str:
        return f"x{self.position}"


@dataclass(frozen=True, slots=True)
class EarlierStep:
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
        return ScalarLiteral(repr(value).lower())

    @property
    def value(self) -> Number:
        """Raises ValueError for a text that is no number."""
        if self.text in ("true", "false"):
            return self.text == "true"
        try:
            return int(self.text)
        except ValueError:
            return float(self.text)

    def __str__(self) -> str:
        return self.text


Operand: TypeAlias = ScalarInput | EarlierStep | ScalarLiteral
_REFERENCES: dict[str, Callable[[int], Operand]] = {"x": ScalarInput, "t": EarlierStep}


@dataclass(frozen=True, slots=True)
class FunctionStep:
    """One application of a scalar function."""

    function: str
    operands: tuple[Operand, ...]

    def __str__(self) -> str:
        return " ".join([self.function, *map(str, self.operands)])


@dataclass(frozen=True, slots=True)
class TypedStep:
    """A step with the common type of its operands (but for conditions) and the type of its result."""

    function: str
    operands: tuple[Operand, ...]
    operand_type: str
    result_type: str


@dataclass(frozen=True, slots=True)
class ScalarProgram:
    """Steps over `arity` inputs. Raises PlanFault if they are no valid program."""

    arity: int
    steps: tuple[FunctionStep, ...]

    def __post_init__(self) -> None:
        if not self.steps:
            raise PlanFault("a scalar program needs a step")
        if len(self.steps) > MAX_STEPS:
            raise PlanFault(f"a scalar program of {len(self.steps)} steps; at most {MAX_STEPS} are supported")
        for position, step in enumerate(self.steps):
            where = f"step {position} of a scalar program"
            known = SCALAR_FUNCTIONS.get(step.function)
            if known is None:
                raise PlanFault(f"{where} has the unknown function '{escape_text(step.function, 40)}'")
            if len(step.operands) != known.arity:
                raise PlanFault(f"{where}: {step.function} takes {known.arity} operands, not {len(step.operands)}")
            limits = {ScalarInput: self.arity, EarlierStep: position}
            for operand in step.operands:
                if not isinstance(operand, ScalarLiteral) and not 0 <= operand.position < limits[type(operand)]:
                    raise PlanFault(f"{where}: '{operand}' is no operand: there is no such value")

    @property
    def text(self) -> str:
        return "; ".join(f"t{i} = {step}" for i, step in enumerate(self.steps))

    @staticmethod
    def parse(text: str, arity: int) -> ScalarProgram:
        """The program that `text` prints; raises PlanFault for anything else."""
        parts = text.split("; ", MAX_STEPS)
        if len(parts) > MAX_STEPS:
            raise PlanFault(f"a scalar program of more than {MAX_STEPS} steps; no more are supported")
        steps = []
        for position, part in enumerate(parts):
            left, _, right = part.partition(" = ")
            function, *words = right.split(" ")
            if left != f"t{position}" or not words:
                raise PlanFault(
                    f"step {position} of a scalar program is '{escape_text(part, 60)}', "
                    f"not 't{position} = ' with a function and its operands"
                )
            steps.append(FunctionStep(function, tuple(_parse_operand(word, position) for word in words)))
        return ScalarProgram(arity, tuple(steps))

    @property
    def depth(self) -> int:
        """How many functions are in its longest chain; copies are none."""
        depths: list[int] = []
        for step in self.steps:
            before = (depths[x.position] for x in step.operands if isinstance(x, EarlierStep))
            depths.append(max(before, default=0) + (step.function != "copy"))
        return max(depths)

    def without_unread(self) -> tuple[ScalarProgram, tuple[int, ...]]:
        """The same program without inputs that no step reads, and the positions of those that are left."""
        read = {x.position for step in self.steps for x in step.operands if isinstance(x, ScalarInput)}
        kept = tuple(sorted(read))
        steps = tuple(
            FunctionStep(
                step.function,
                tuple(ScalarInput(kept.index(x.position)) if isinstance(x, ScalarInput) else x for x in step.operands),
            )
            for step in self.steps
        )
        return ScalarProgram(len(kept), steps), kept

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
        return any(SCALAR_FUNCTIONS[step.function].discontinuous for step in self.steps)


def infer_steps(
    program: ScalarProgram, inputs: Sequence[str], computed: Callable[[str], str] = str
) -> tuple[TypedStep, ...]:
    """The types of every step over inputs of these element types.

    `computed` says in which type a value of an element type is computed; by default that is its own. Raises PlanFault
    where a function does not take its operands, or where a literal does not fit the operands beside it.
    """
    known: dict[type, list[str]] = {ScalarInput: [computed(dtype) for dtype in inputs], EarlierStep: []}
    typed: list[TypedStep] = []
    for position, step in enumerate(program.steps):
        where = f"step {position} of a scalar program"
        try:
            common, result = infer_types(
                step.function,
                SCALAR_FUNCTIONS[step.function],
                [None if isinstance(x, ScalarLiteral) else known[type(x)][x.position] for x in step.operands],
            )
        except PlanFault as fault:
            raise PlanFault(f"{where}: {fault.message}") from None
        for operand in step.operands:
            if isinstance(operand, ScalarLiteral) and not is_literal_of(operand.value, common):
                raise PlanFault(f"{where}: {step.function} has the literal {operand}, which is no {common}")
        known[EarlierStep].append(computed(result))
        typed.append(TypedStep(step.function, step.operands, common, computed(result)))
    return tuple(typed)


def _parse_operand(word: str, position: int) -> Operand:
    reference = _REFERENCE.fullmatch(word)
    if reference is not None:
        return _REFERENCES[reference[1]](int(reference[2]))
    if len(word) <= 32:  # enough for every number of an element type
        try:
            value = ScalarLiteral(word).value
        except ValueError:
            pass
        else:
            literal = ScalarLiteral.of(value)
            if literal.text == word and not (isinstance(value, int) and value.bit_length() > MAX_LITERAL_BITS):
                return literal
    raise PlanFault(f"step {position} of a scalar program: '{escape_text(word, 40)}' is no operand")
