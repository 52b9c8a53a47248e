"""Scalar functions as the compiler checks them: the types of operands and results, with hints, and fitted literals.

The table of functions is `einc_runtime.plan.scalar_functions`; `evaluate` defines their meaning on numpy arrays.

Peaks count a multiply-add as two operations. What has none takes as long as more operations than it has.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence

from einc.core.tensor import DType
from einc.errors import OperatorError
from einc_runtime.plan.scalar_functions import (
    NUMBER_TYPES,
    SCALAR_FUNCTIONS,
    Number,
    OperandFault,
    ScalarFunction,
    infer_types,
)

AGGREGATIONS = ("sum", "max", "min", "prod")
"""The operations that combine partial results; all of them take numbers."""

COMPOSED = {"clip": ("max", "min")}
"""Calls that apply functions one after the other, each to what the last one resulted in and to the next operand."""

CALL_SIGNATURES = {**SCALAR_FUNCTIONS, "clip": ScalarFunction(3, NUMBER_TYPES)}
"""What calls of functions, and of compositions of them, take."""


def find_identity(aggregation: str, dtype: DType) -> int | float:
    """The value that an aggregation of numbers of a type leaves others unchanged by."""
    if aggregation in ("sum", "prod"):
        return int(aggregation == "prod")
    if dtype.is_float:
        return -math.inf if aggregation == "max" else math.inf
    bits = 8 * dtype.itemsize - 1
    return -(1 << bits) if aggregation == "max" else (1 << bits) - 1


def infer_step_types(function: str, operands: Sequence[DType | None]) -> tuple[DType, tuple[DType, ...]]:
    """The element type of a function's result, and that of each operand; None stands for a literal.

    A literal takes the type of the operands beside it. Raises OperatorError, whose `argument` is the position of the
    operand at fault.
    """
    try:
        names = [None if dtype is None else dtype.value for dtype in operands]
        common, result = infer_types(function, CALL_SIGNATURES[function], names)
    except OperandFault as fault:
        raise OperatorError(fault.message, argument=fault.operand, hint=_suggest(function, operands, fault)) from None
    conditions = CALL_SIGNATURES[function].conditions
    return DType(result), (DType.BOOL,) * conditions + (DType(common),) * (len(operands) - conditions)


def _suggest(function: str, operands: Sequence[DType | None], fault: OperandFault) -> str | None:
    """What to do about operands of the wrong types."""
    known = CALL_SIGNATURES[function]
    if fault.reason == "condition":
        return "compare first: x > 0"
    if fault.reason == "literals":
        return 'for 1 and 0, cast the condition: cast(c, "f32")' if known.conditions else None
    common = next(dtype for dtype in operands[known.conditions :] if dtype is not None)
    if fault.reason == "mixed":
        return f'convert one of them: cast(x, "{common}")'
    if known.accepts == ("bool",):
        return "compare first, for example x != 0"
    if common is DType.BOOL:
        alternative = {
            "max": "or", "min": "and", "add": "or", "mul": "and", "neg": "not",
            "bitor": "or", "bitand": "and", "bitxor": "ne",
        }.get(function)  # fmt: skip
        return 'convert it: cast(x, "i32")' + (f", or use '{alternative}'" if alternative else "")
    if common.is_float:
        return 'convert it: cast(x, "i32")'
    return 'convert it: cast(x, "f32")' + (", or divide with floordiv (//)" if function == "div" else "")


def fit_literal(value: Number, dtype: DType) -> Number:
    """A literal as a value of `dtype`; for f16 and bf16 it is rounded to the nearest one.

    Raises OperatorError if the kinds differ or the value is out of range.
    """
    kind = type(value).__name__
    if (dtype is DType.BOOL) != isinstance(value, bool) or (dtype.is_integer and not isinstance(value, int)):
        raise OperatorError(
            f"{kind} literal {_format_literal(value)} does not fit {dtype}", hint=_suggest_literal(value, dtype)
        )
    try:
        if dtype.is_float:
            return _round(float(value), dtype)
        if dtype.is_integer:
            struct.pack("<i" if dtype is DType.I32 else "<q", value)
    except (OverflowError, struct.error):
        raise OperatorError(f"literal {_format_literal(value)} is out of the range of {dtype}") from None
    return value


def _format_literal(value: Number) -> str:
    return f"of {value.bit_length()} bits" if isinstance(value, int) and value.bit_length() > 128 else repr(value)


def _suggest_literal(value: Number, dtype: DType) -> str:
    if dtype is DType.BOOL:
        return "write true or false"
    if isinstance(value, bool):
        return "write 1 or 0"
    return 'write a whole number, or convert the operand: cast(x, "f32")'


def _round(value: float, dtype: DType) -> float:
    """The nearest value of a 16-bit type (ties to even); f32 and f64 are left for the kernel to round once."""
    if dtype is DType.F16:
        return float(struct.unpack("<e", struct.pack("<e", value))[0])
    if dtype in (DType.F32, DType.BF16):
        bits: int = struct.unpack("<I", struct.pack("<f", value))[0]
        if dtype is DType.BF16 and value - value == 0:  # infinities and nan have the same bits in both
            bits = bits + 0x7FFF + (bits >> 16 & 1) & 0xFFFF0000
            rounded = float(struct.unpack("<f", struct.pack("<I", bits))[0])
            if rounded - rounded != 0:
                raise OverflowError
            return rounded
    return value


SPECIAL_OPERATIONS = 16
"""Operations of multiply-adds that a GPU makes in the time of one exponential, quotient or the like: a multiprocessor
has 16 units for these, and 64 (A100) or 128 (H100) that multiply and add; arguments must be scaled, too."""

PLAIN_FUNCTIONS = frozenset(
    ("neg", "abs", "relu", "add", "sub", "mul", "max", "min", "where", "eq", "ne", "lt", "le", "gt", "ge")
)
"""One instruction each; all others count as `SPECIAL_OPERATIONS`."""


def count_operations(steps: Sequence[str], aggregation: str) -> int:
    """Operations of multiply-adds in the time of these steps and of aggregating what they give: each instruction takes
    the place of a multiply-add, which is two operations, and a last product is one with its sum."""
    fused = aggregation == "sum" and steps[-1:] == ["mul"]
    return sum(2 if step in PLAIN_FUNCTIONS else SPECIAL_OPERATIONS for step in steps) + 2 * (not fused)
