"""Parses scalar programs, such as "t0 = mul x0 x1; t1 = relu t0", and infers the types of their steps.

Step i is named t{i}. An operand is an input x{k}, an earlier step, or a literal. The last step is the result. Values
have a compute type: f32 for f16 and bf16, else the type itself. A literal takes the type of the operands beside it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from einc_runtime.dtypes import COMPUTED_ELEMENT_TYPES, FLOATS, INTEGERS, ITEMSIZE, compute_type
from einc_runtime.errors import PlanFault

Literal = bool | int | float
MAX_STEPS = 4096


@dataclass(frozen=True, slots=True)
class ProgramInput:
    position: int


@dataclass(frozen=True, slots=True)
class EarlierStep:
    position: int


@dataclass(frozen=True, slots=True)
class Constant:
    value: Literal


ScalarOperand = ProgramInput | EarlierStep | Constant


@dataclass(frozen=True, slots=True)
class ProgramStep:
    """One step: a function's name and its operands."""

    function: str
    operands: tuple[ScalarOperand, ...]


@dataclass(frozen=True, slots=True)
class TypedStep:
    """A step with the compute types of its operands (except the condition of `where`) and of its result."""

    function: str
    operands: tuple[ScalarOperand, ...]
    operand_type: str
    result_type: str


COMPUTED_NUMBERS = frozenset({"f32", "f64", *INTEGERS})
COMPUTED_FLOATS = frozenset({"f32", "f64"})
COMPUTED_BOOL = frozenset({"bool"})
COMPUTED_TYPES = COMPUTED_NUMBERS | COMPUTED_BOOL

OPERAND_TYPES: dict[str, tuple[int, frozenset[str]]] = {
    "copy": (1, COMPUTED_TYPES),
    **dict.fromkeys(("neg", "abs", "relu"), (1, COMPUTED_NUMBERS)),
    **dict.fromkeys(
        ("gelu", "gelu_tanh", "silu", "tanh", "sigmoid", "exp", "log", "sqrt", "rsqrt"), (1, COMPUTED_FLOATS)
    ),
    "not": (1, COMPUTED_BOOL),
    **dict.fromkeys(("add", "sub", "mul", "floordiv", "mod", "max", "min"), (2, COMPUTED_NUMBERS)),
    **dict.fromkeys(("div", "pow"), (2, COMPUTED_FLOATS)),
    **dict.fromkeys(("eq", "ne"), (2, COMPUTED_TYPES)),
    **dict.fromkeys(("lt", "le", "gt", "ge"), (2, COMPUTED_NUMBERS)),
    **dict.fromkeys(("and", "or"), (2, COMPUTED_BOOL)),
    "where": (3, COMPUTED_TYPES),
}
"""Number of operands, and the compute types that they may have in common; `where` has a condition before them."""

COMPARISONS = frozenset({"eq", "ne", "lt", "le", "gt", "ge"})
CAST = "cast:"

GELU_TAIL = (
    0.693146400, 0.797897843, 0.318234574, 0.0365386913, -0.00508310585,
    0.000224117572, 7.93418991e-05, -1.73869207e-05, 1.17173838e-06,
)  # fmt: skip
"""-log of the normal distribution's upper tail as a polynomial p on [0, 16], fitted so that the error of u * exp(-p(u))
is at most 7e-9 (6e-8 in f32). Then gelu(x) = max(x, 0) - u * exp(-p(u)) for u = |x|, without cancellation."""

_LITERAL_PATTERN = re.compile(r"-?(\d+(\.\d*)?([eE][+-]?\d+)?|inf|nan)")
_OPERAND_PATTERN = re.compile(r"([xt])(0|[1-9]\d{0,5})")


def parse(text: str, arity: int) -> tuple[ProgramStep, ...]:
    """The steps of a program over `arity` inputs; PlanFault says which step is wrong."""
    parts = text.split(";")
    if len(parts) > MAX_STEPS:
        raise PlanFault(f"a scalar program of {len(parts)} steps; at most {MAX_STEPS} are supported")
    return tuple(_parse_step(part, position, arity) for position, part in enumerate(parts))


def infer(steps: Sequence[ProgramStep], inputs: Sequence[str], output: str) -> tuple[TypedStep, ...]:
    """The types of every step, from the element types of the inputs; the result must be what `output` stores."""
    typed: list[TypedStep] = []
    for position, step in enumerate(steps):
        kinds = [_operand_type(operand, inputs, typed) for operand in step.operands]
        typed.append(_infer_step(step, kinds, f"step t{position} ({step.function})"))
    if typed[-1].result_type != compute_type(output):
        raise PlanFault(f"a scalar program ends in {typed[-1].result_type}, but its result is stored as {output}")
    return tuple(typed)


def _parse_step(part: str, position: int, arity: int) -> ProgramStep:
    words = part.split()
    if len(words) < 3 or words[0] != f"t{position}" or words[1] != "=":
        raise PlanFault(f"step {position} of a scalar program should read 't{position} = ...', found '{part[:60]}'")
    function, operands = words[2], words[3:]
    cast = function.startswith(CAST) and function[len(CAST) :] in COMPUTED_ELEMENT_TYPES
    if not cast and function not in OPERAND_TYPES:
        raise PlanFault(f"step t{position} of a scalar program uses the unknown function '{function[:40]}'")
    expected = 1 if cast else OPERAND_TYPES[function][0]
    if len(operands) != expected:
        raise PlanFault(f"step t{position}: {function} takes {expected} operands, found {len(operands)}")
    return ProgramStep(function, tuple(_parse_operand(word, position, arity) for word in operands))


def _parse_operand(word: str, position: int, arity: int) -> ScalarOperand:
    if word in ("true", "false"):
        return Constant(word == "true")
    reference = _OPERAND_PATTERN.fullmatch(word)
    if reference is not None:
        number = int(reference[2])
        if reference[1] == "x" and number < arity:
            return ProgramInput(number)
        if reference[1] == "t" and number < position:
            return EarlierStep(number)
    elif len(word) <= 400 and _LITERAL_PATTERN.fullmatch(word):
        return Constant(int(word) if word.lstrip("-").isdigit() else float(word))
    raise PlanFault(f"step t{position} of a scalar program has the unknown operand '{word[:40]}'")


def _operand_type(operand: ScalarOperand, inputs: Sequence[str], typed: Sequence[TypedStep]) -> str | Literal:
    """The compute type of an operand, or the literal itself where it has none yet."""
    if isinstance(operand, ProgramInput):
        return compute_type(inputs[operand.position])
    if isinstance(operand, EarlierStep):
        return typed[operand.position].result_type
    return operand.value


def _infer_step(step: ProgramStep, kinds: Sequence[str | Literal], where: str) -> TypedStep:
    if step.function == "where":
        if kinds[0] != "bool":
            raise PlanFault(f"{where} has the condition {kinds[0]}, not a bool")
        kinds = kinds[1:]
    named = sorted({kind for kind in kinds if isinstance(kind, str)})
    literals = [kind for kind in kinds if not isinstance(kind, str)]
    if len(named) != 1:
        raise PlanFault(f"{where} mixes {' and '.join(named)}" if named else f"{where} has only literals")
    operand_type = named[0]
    for literal in literals:
        if not _fits(literal, operand_type):
            raise PlanFault(f"{where} has the literal {literal!r} beside {operand_type}")
    cast = step.function.startswith(CAST)
    if operand_type not in (COMPUTED_TYPES if cast else OPERAND_TYPES[step.function][1]):
        raise PlanFault(f"{where} is not defined for {operand_type}")
    result = operand_type
    if cast:
        result = compute_type(step.function[len(CAST) :])
    elif step.function in COMPARISONS:
        result = "bool"
    return TypedStep(step.function, step.operands, operand_type, result)


def _fits(literal: Literal, kind: str) -> bool:
    if isinstance(literal, bool) or kind == "bool":
        return isinstance(literal, bool) and kind == "bool"
    if kind in FLOATS:
        return True
    bits = 8 * ITEMSIZE[kind] - 1
    return isinstance(literal, int) and -(2**bits) <= literal < 2**bits
