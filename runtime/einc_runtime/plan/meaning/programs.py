"""Scalar programs, such as "t0 = mul x0 x1; t1 = relu t0": the types of their steps, and what they multiply."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from einc_runtime.errors import PlanFault
from einc_runtime.plan.meaning.terms import FLOATS, INTEGERS
from einc_runtime.plan.schema import ITEMSIZE, DTypeName
from einc_runtime.text import escape_text

MAX_STEPS = 4096

_NUMBERS = (*FLOATS, *INTEGERS)
_ALL = (*_NUMBERS, "bool")
_TAKES: dict[str, tuple[int, Sequence[str]]] = {
    "copy": (1, _ALL),
    **dict.fromkeys(("neg", "abs", "relu"), (1, _NUMBERS)),
    **dict.fromkeys(("exp", "log", "sqrt", "rsqrt", "tanh", "sigmoid", "silu", "gelu", "gelu_tanh"), (1, FLOATS)),
    **dict.fromkeys(("add", "sub", "mul", "max", "min", "mod", "floordiv"), (2, _NUMBERS)),
    **dict.fromkeys(("div", "pow"), (2, FLOATS)),
    **dict.fromkeys(("lt", "le", "gt", "ge"), (2, _NUMBERS)),
    **dict.fromkeys(("eq", "ne"), (2, _ALL)),
    **dict.fromkeys(("and", "or"), (2, ("bool",))),
    "not": (1, ("bool",)),
    "where": (3, _ALL),
    **{f"cast:{name}": (1, _ALL) for name in _ALL},
}
"""For each function, how many operands it takes, and of which types. `where` has a condition before two such."""

_COMPARE = ("lt", "le", "gt", "ge", "eq", "ne")
_REFERENCE = re.compile(r"([xt])(0|[1-9]\d{0,5})", re.A)
_NUMBER = re.compile(r"-?(\d+(\.\d*)?(e[+-]?\d+)?|inf|nan)", re.A)


@dataclass(frozen=True, slots=True)
class JoinProgram:
    """The element type of the result, and the product of the program's literals if all that it does is to multiply
    these and each input once (`factor`)."""

    result: DTypeName
    factor: float | None


def read_program(text: str, inputs: Sequence[DTypeName]) -> JoinProgram:
    """Raises PlanFault for a text that is no program over inputs of these types."""
    steps = text.split("; ")
    if len(steps) > MAX_STEPS:
        raise PlanFault(f"a scalar program of {len(steps)} steps; at most {MAX_STEPS} are supported")
    types: list[DTypeName] = []
    read: list[str] = []
    factor, multiplies = 1.0, True
    for position, step in enumerate(steps):
        left, _, right = step.partition(" = ")
        function, *words = right.split(" ")
        if left != f"t{position}" or len(words) != _TAKES.get(function, (0, ()))[0] or not words:
            raise PlanFault(f"step {position} of a scalar program is '{escape_text(step, 60)}'")
        operands = [_read_operand(word, inputs, types) for word in words]
        types.append(_type_of(function, operands, position))
        multiplies = multiplies and function == "mul"
        for word, operand in zip(words, operands, strict=True):
            if isinstance(operand, str):
                read.append(word)
            else:
                factor *= float(operand)
    known = [f"x{k}" for k in range(len(inputs))] + [f"t{position}" for position in range(len(steps) - 1)]
    multiplies = multiplies and sorted(read) == sorted(known) and math.isfinite(factor)
    return JoinProgram(types[-1], factor if multiplies else None)


def _read_operand(word: str, inputs: Sequence[DTypeName], types: Sequence[DTypeName]) -> DTypeName | bool | int | float:
    """The type of an operand, or its value if it is a literal."""
    reference = _REFERENCE.fullmatch(word)
    if reference is not None:
        known, number = inputs if reference[1] == "x" else types, int(reference[2])
        if number < len(known):
            return known[number]
    elif word in ("true", "false"):
        return word == "true"
    elif len(word) <= 32 and _NUMBER.fullmatch(word):
        return int(word) if word.lstrip("-").isdigit() else float(word)
    raise PlanFault(f"'{escape_text(word, 40)}' is no operand of a scalar program")


def _type_of(function: str, operands: Sequence[DTypeName | bool | int | float], position: int) -> DTypeName:
    """The type of a step's result. All operands are of one type, but for the condition of `where`."""
    where = f"step {position} of a scalar program ({function})"
    if function == "where":
        if operands[0] != "bool":
            raise PlanFault(f"{where} has a condition that is no bool")
        operands = operands[1:]
    types = sorted({operand for operand in operands if isinstance(operand, str)})
    if len(types) != 1 or types[0] not in _TAKES[function][1]:
        raise PlanFault(f"{where} is of {' and '.join(types) or 'literals alone'}")
    (common,) = types
    if not all(_fits(operand, common) for operand in operands if not isinstance(operand, str)):
        raise PlanFault(f"{where} has a literal that is no {common}")
    if function in _COMPARE:
        return "bool"
    return next((name for name in ITEMSIZE if function == f"cast:{name}"), common)


def _fits(literal: bool | int | float, dtype: DTypeName) -> bool:
    if isinstance(literal, bool) or dtype == "bool":
        return isinstance(literal, bool) and dtype == "bool"
    if dtype in FLOATS:
        return True
    limit = 1 << 8 * ITEMSIZE[dtype] - 1
    return isinstance(literal, int) and -limit <= literal < limit
