"""The functions of scalar programs: how many operands each takes, of which element types, and what results.

It is the only table of them. Each kind of kernels, and the compiler's reference, says how it computes them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from einc_runtime.errors import PlanFault
from einc_runtime.plan.schema import FLOATS, INTEGERS, ITEMSIZE, NARROW_FLOATS

Number: TypeAlias = bool | int | float
"""The value of a literal."""

NUMBER_TYPES: tuple[str, ...] = (*FLOATS, *INTEGERS)
COMPUTED_ELEMENT_TYPES = (*NUMBER_TYPES, "bool")
"""The types of which elements are computed."""

STORED_ELEMENT_TYPES = (*COMPUTED_ELEMENT_TYPES, *NARROW_FLOATS)
"""The types of tensors: also those that are only stored, moved and converted."""

CAST = "cast:"
"""What the names of conversions start with; an element type follows."""


@dataclass(frozen=True, slots=True)
class ScalarFunction:
    """`conditions` operands of type bool, then operands of one common type among `accepts`: `arity` in all.

    The result has the common type, or the type `result` if it is set. A function is `discontinuous` where a rounding
    error in an operand can change the result by more than a rounding error.
    """

    arity: int
    accepts: tuple[str, ...]
    result: str | None = None
    discontinuous: bool = False
    conditions: int = 0


SCALAR_FUNCTIONS: dict[str, ScalarFunction] = {
    **dict.fromkeys(["copy"], ScalarFunction(1, STORED_ELEMENT_TYPES)),
    **dict.fromkeys(["neg", "abs", "relu"], ScalarFunction(1, NUMBER_TYPES)),
    **dict.fromkeys(
        ["gelu", "gelu_tanh", "silu", "tanh", "sigmoid", "exp", "log", "sqrt", "rsqrt"], ScalarFunction(1, FLOATS)
    ),
    **dict.fromkeys(["exp2", "expm1", "log2", "log1p", "sin", "cos", "tan", "atan", "erf"], ScalarFunction(1, FLOATS)),
    **dict.fromkeys(["floor", "ceil", "round", "trunc"], ScalarFunction(1, FLOATS, discontinuous=True)),
    **dict.fromkeys(["sign"], ScalarFunction(1, NUMBER_TYPES, discontinuous=True)),
    **dict.fromkeys(["isnan", "isinf", "isfinite"], ScalarFunction(1, FLOATS, "bool", discontinuous=True)),
    **dict.fromkeys(["add", "sub", "mul"], ScalarFunction(2, NUMBER_TYPES)),
    **dict.fromkeys(["floordiv", "mod"], ScalarFunction(2, NUMBER_TYPES, discontinuous=True)),
    **dict.fromkeys(["max", "min"], ScalarFunction(2, NUMBER_TYPES)),
    **dict.fromkeys(["div", "pow", "atan2"], ScalarFunction(2, FLOATS)),
    **dict.fromkeys(["bitand", "bitor", "bitxor", "shiftleft", "shiftright"], ScalarFunction(2, INTEGERS)),
    **dict.fromkeys(["eq", "ne"], ScalarFunction(2, COMPUTED_ELEMENT_TYPES, "bool", discontinuous=True)),
    **dict.fromkeys(["lt", "le", "gt", "ge"], ScalarFunction(2, NUMBER_TYPES, "bool", discontinuous=True)),
    **dict.fromkeys(["and", "or"], ScalarFunction(2, ("bool",))),
    **dict.fromkeys(["not"], ScalarFunction(1, ("bool",))),
    **dict.fromkeys(["where"], ScalarFunction(3, COMPUTED_ELEMENT_TYPES, conditions=1)),
    **{
        f"{CAST}{dtype}": ScalarFunction(1, STORED_ELEMENT_TYPES, dtype, discontinuous=True)
        for dtype in STORED_ELEMENT_TYPES
    },
}


class OperandFault(PlanFault):
    """A function does not take operands of these types: the operand at fault, and what is wrong with it."""

    def __init__(self, message: str, reason: Literal["condition", "literals", "mixed", "type"], operand: int) -> None:
        super().__init__(message)
        self.reason = reason
        self.operand = operand


def infer_types(function: str, known: ScalarFunction, operands: Sequence[str | None]) -> tuple[str, str]:
    """The common type of the operands of a function of this name, which literals take too, and its result's type.

    None stands for a literal. Raises OperandFault.
    """
    for position, dtype in enumerate(operands[: known.conditions]):
        if dtype != "bool":
            described = "a literal" if dtype is None else dtype
            raise OperandFault(
                f"{function}: the condition must be a bool tensor, not {described}", "condition", position
            )
    start = known.conditions
    common = next((dtype for dtype in operands[start:] if dtype is not None), None)
    if common is None:
        operands_needed = "one operand beside the condition" if start else "one operand"
        raise OperandFault(f"{function}: at least {operands_needed} must be a tensor", "literals", start)
    first = operands.index(common, start)
    for position, dtype in enumerate(operands[start:], start):
        if dtype not in (None, common):
            raise OperandFault(
                f"{function}: operand {position + 1} is {dtype} where operand {first + 1} is {common}",
                "mixed",
                position,
            )
    if common not in known.accepts:
        raise OperandFault(f"{function} does not take {common}", "type", first)
    return common, known.result or common


def is_literal_of(value: Number, dtype: str) -> bool:
    """Whether a literal can stand where an operand of this type is expected."""
    if isinstance(value, bool) or dtype == "bool":
        return isinstance(value, bool) and dtype == "bool"
    if dtype in FLOATS:
        return True
    limit = 1 << 8 * next(size for name, size in ITEMSIZE.items() if name == dtype) - 1
    return isinstance(value, int) and -limit <= value < limit
