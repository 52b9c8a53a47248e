"""The scalar functions of join expressions: their names, arities, and what they do to element types.

This is the compiler's only list of them; `evaluate` defines their meaning on numpy arrays.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass

from einc.core.tensor import ELEMENT_TYPES, DType
from einc.errors import OperatorError

_FLOAT = tuple(dtype for dtype in DType if dtype.is_float)
_NUMERIC = tuple(dtype for dtype in ELEMENT_TYPES if dtype is not DType.BOOL)
_ANY = ELEMENT_TYPES
_BOOL = (DType.BOOL,)


@dataclass(frozen=True, slots=True)
class Signature:
    """`arity` operands of one common type among `accepts`; the result has that type, or `result` if it is set."""

    arity: int
    accepts: tuple[DType, ...]
    result: DType | None = None


FUNCTIONS: dict[str, Signature] = {
    **dict.fromkeys(["copy"], Signature(1, _ANY)),
    **dict.fromkeys(["neg", "abs", "relu"], Signature(1, _NUMERIC)),
    **dict.fromkeys(
        ["gelu", "gelu_tanh", "silu", "tanh", "sigmoid", "exp", "log", "sqrt", "rsqrt"], Signature(1, _FLOAT)
    ),
    **dict.fromkeys(["add", "sub", "mul", "floordiv", "mod", "max", "min"], Signature(2, _NUMERIC)),
    **dict.fromkeys(["div", "pow"], Signature(2, _FLOAT)),
    **dict.fromkeys(["eq", "ne"], Signature(2, _ANY, DType.BOOL)),
    **dict.fromkeys(["lt", "le", "gt", "ge"], Signature(2, _NUMERIC, DType.BOOL)),
    **dict.fromkeys(["and", "or"], Signature(2, _BOOL)),
    **dict.fromkeys(["not"], Signature(1, _BOOL)),
    **dict.fromkeys(["where"], Signature(3, _ANY)),  # its first operand is the condition, a bool of its own
    **{f"cast:{dtype}": Signature(1, _ANY, dtype) for dtype in ELEMENT_TYPES},
}

AGGREGATIONS = ("sum", "max", "min", "prod")
"""The operations that combine partial results; all of them take numbers."""


def find_identity(aggregation: str, dtype: DType) -> int | float:
    """The value that an aggregation of numbers of a type leaves others unchanged by."""
    if aggregation in ("sum", "prod"):
        return int(aggregation == "prod")
    if dtype.is_float:
        return -math.inf if aggregation == "max" else math.inf
    bits = 8 * dtype.itemsize - 1
    return -(1 << bits) if aggregation == "max" else (1 << bits) - 1


def is_discontinuous(function: str) -> bool:
    """Whether a rounding error in an operand can change the result by more than a rounding error."""
    return function in {"eq", "ne", "lt", "le", "gt", "ge", "floordiv", "mod"} or function.startswith("cast:")


def infer_step_types(function: str, operands: Sequence[DType | None]) -> tuple[DType, tuple[DType, ...]]:
    """The element type of a function's result, and that of each operand; None stands for a literal.

    A literal takes the type of the operands beside it. Raises OperatorError, whose `argument` is the position of the
    operand at fault.
    """
    signature = FUNCTIONS[function]
    start = 1 if function == "where" else 0
    if start and operands[0] is not DType.BOOL:
        found = "a literal" if operands[0] is None else operands[0]
        raise OperatorError(
            f"where: the condition must be a bool tensor, not {found}", argument=0, hint="compare first: x > 0"
        )
    common = next((dtype for dtype in operands[start:] if dtype is not None), None)
    if common is None:
        which = "one operand beside the condition" if start else "one operand"
        hint = 'for 1 and 0, cast the condition: cast(c, "f32")' if start else None
        raise OperatorError(f"{function}: at least {which} must be a tensor", argument=start, hint=hint)
    first = operands.index(common, start)
    for position, dtype in enumerate(operands[start:], start):
        if dtype is not None and dtype is not common:
            raise OperatorError(
                f"{function}: operand {position + 1} is {dtype} where operand {first + 1} is {common}",
                argument=position,
                hint=f'convert one of them: cast(x, "{common}")',
            )
    if common not in signature.accepts:
        raise OperatorError(
            f"{function} does not take {common}", argument=first, hint=_suggest_conversion(function, common)
        )
    return signature.result or common, (DType.BOOL,) * start + (common,) * (len(operands) - start)


def _suggest_conversion(function: str, dtype: DType) -> str:
    if FUNCTIONS[function].accepts == _BOOL:
        return "compare first, for example x != 0"
    if dtype is DType.BOOL:
        alternative = {"max": "or", "min": "and", "add": "or", "mul": "and", "neg": "not"}.get(function)
        return 'convert it: cast(x, "i32")' + (f", or use '{alternative}'" if alternative else "")
    return 'convert it: cast(x, "f32")' + (", or divide with floordiv (//)" if function == "div" else "")


def fit_literal(value: bool | int | float, dtype: DType) -> bool | int | float:
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


def _format_literal(value: bool | int | float) -> str:
    return f"of {value.bit_length()} bits" if isinstance(value, int) and value.bit_length() > 128 else repr(value)


def _suggest_literal(value: bool | int | float, dtype: DType) -> str:
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
