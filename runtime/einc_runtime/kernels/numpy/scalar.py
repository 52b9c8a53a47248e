"""Scalar programs in numpy: one call for each step, on whole arrays, in the type in which it is computed."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from einc_runtime.dtypes import Array, DType, compute_type, storage_dtype
from einc_runtime.kernels.base import store
from einc_runtime.kernels.scalar_program import ERF_NEAR, ERF_TAIL, GELU_TAIL
from einc_runtime.plan.scalar_functions import CAST
from einc_runtime.plan.scalar_programs import EarlierStep, Operand, ScalarLiteral, TypedStep

Scalar = np.generic

NumpyCall = tuple[Callable[..., Any], tuple[int | Scalar, ...]]
"""A function, which may be given `out`, and for each argument a number, or the position of an input or of an earlier
call's result."""


@dataclass(frozen=True, slots=True)
class NumpyProgram:
    """Calls in order, and where the results of all steps are among the inputs and the results of calls. Infinities and
    NaN are results: callers ignore what numpy says of them."""

    calls: tuple[NumpyCall, ...]
    results: tuple[int, ...]
    dtype: DType
    """The type of the last result."""

    def compute(self, arrays: Sequence[Array], count: int = 1) -> list[Any]:
        """The results of the last `count` steps, in the types in which they are computed. They broadcast as the inputs
        do that they depend on, and may be inputs."""
        values = _call_all(self.calls, arrays)
        return [values[position] for position in self.results[-count:]]

    def write(self, arrays: Sequence[Array], target: Array) -> None:
        """Writes the last result, by the last call itself where that can."""
        if target.dtype == self.dtype and self.results[-1] == len(arrays) + len(self.calls) - 1 >= len(arrays):
            function, operands = self.calls[-1]
            function(*_find_all(operands, _call_all(self.calls[:-1], arrays)), out=target)
        else:
            store(self.compute(arrays)[0], target)


def _call_all(calls: Sequence[NumpyCall], arrays: Sequence[Array]) -> list[Any]:
    values: list[Any] = list(arrays)
    for function, operands in calls:
        values.append(function(*_find_all(operands, values)))
    return values


def _find_all(operands: Sequence[int | Scalar], values: Sequence[Any]) -> list[Any]:
    return [values[x] if type(x) is int else x for x in operands]


def prepare_program(steps: Sequence[TypedStep], inputs: Sequence[str]) -> NumpyProgram:
    """The calls of typed steps over inputs of these element types, which are widened once where they are narrow."""
    calls: list[NumpyCall] = []
    results: list[int] = []
    widened: dict[int, int] = {}

    def call(function: Callable[..., Any], *operands: int | Scalar) -> int:
        calls.append((function, operands))
        return len(inputs) + len(calls) - 1

    def find(operand: Operand, kind: str) -> int | Scalar:
        if isinstance(operand, ScalarLiteral):
            # A literal has the common type of the operands: the condition of a `where` is never a literal.
            constant: Scalar = storage_dtype(kind).type(operand.value)
            return constant
        if isinstance(operand, EarlierStep):
            return results[operand.position]
        position, stored = operand.position, inputs[operand.position]
        if compute_type(stored) == stored:
            return position
        if position not in widened:
            widened[position] = call(partial(_convert, dtype=storage_dtype(compute_type(stored))), position)
        return widened[position]

    for step in steps:
        operands = [find(operand, step.operand_type) for operand in step.operands]
        if step.function == "copy":
            (copied,) = operands
            assert isinstance(copied, int)  # of a number alone there is no type
            results.append(copied)
        elif step.function.startswith(CAST):
            rounded = call(partial(_convert, dtype=storage_dtype(step.function[len(CAST) :])), *operands)
            results.append(call(partial(_convert, dtype=storage_dtype(step.result_type)), rounded))
        else:
            results.append(call(_NUMPY_FUNCTIONS[step.function], *operands))
    return NumpyProgram(tuple(calls), tuple(results), storage_dtype(steps[-1].result_type))


def _convert(x: Any, dtype: DType, out: Array | None = None) -> Any:
    if x.dtype == dtype and out is None:
        return x
    converted = np.empty(x.shape, dtype) if out is None else out
    store(x, converted)
    return converted


def _select(condition: Any, yes: Any, no: Any, out: Array | None = None) -> Any:
    if out is None:
        return np.where(condition, yes, no)
    np.copyto(out, np.where(condition, yes, no))
    return out


def _negate(x: Any, out: Array | None = None) -> Any:
    """-0 - x, which is -x for every x. numpy 2.4 writes wrong values with `np.negative` where the input's elements
    are 4 of 4 or 8 of 8 bytes apart and the output's are not next to each other."""
    return np.subtract(x.dtype.type(-0.0), x, out=out)


def _one_plus_exp_neg(x: Any) -> Any:
    """1 + exp(-x). It is infinite for very negative x, and then a quotient by it is 0, which is right."""
    return np.exp(_negate(x)) + 1


def _gelu_tanh(x: Any, out: Array | None = None) -> Any:
    return np.multiply((np.tanh((x * x * 0.044715 + 1) * x * math.sqrt(2 / math.pi)) + 1) * x, 0.5, out=out)


def _gelu(x: Any, out: Array | None = None) -> Any:
    if x.dtype == np.float64:
        finite = np.maximum(x, -1e3)  # as -inf * 0 is not 0
        return np.multiply(np.asarray(_half_erfc(finite * -math.sqrt(0.5)), np.float64), finite, out=out)
    magnitude = np.minimum(np.absolute(x), 16)
    power = _polynomial(magnitude, [-coefficient for coefficient in GELU_TAIL])
    return np.subtract(np.maximum(x, 0), np.exp(power) * magnitude, out=out)


def _erf(x: Any, out: Array | None = None) -> Any:
    """A polynomial near 0, and elsewhere 1 - exp(-p(|x|)) with the sign of x."""
    if x.dtype == np.float64:
        return np.multiply(np.asarray(_exact_erf(x), np.float64), 1, out=out)
    magnitude = np.absolute(x)
    tail = np.exp(_negate(_polynomial(np.minimum(magnitude, 4), ERF_TAIL)))
    return _select(magnitude < 1, _polynomial(x * x, ERF_NEAR) * x, np.copysign(1 - tail, x), out=out)


def _polynomial(x: Any, coefficients: Sequence[float]) -> Any:
    """From the coefficient of the constant term on."""
    value = x * coefficients[-1]
    for coefficient in coefficients[-2:0:-1]:
        value = (value + coefficient) * x
    return value + coefficients[0]


_exact_erf = np.frompyfunc(math.erf, 1, 1)
_half_erfc = np.frompyfunc(lambda v: 0.5 * math.erfc(v), 1, 1)

_NUMPY_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "abs": np.absolute, "tanh": np.tanh, "exp": np.exp, "log": np.log, "sqrt": np.sqrt, "not": np.logical_not,
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.true_divide,
    "exp2": np.exp2, "expm1": np.expm1, "log2": np.log2, "log1p": np.log1p, "sin": np.sin, "cos": np.cos, "tan": np.tan,
    "atan": np.arctan, "atan2": np.arctan2, "floor": np.floor, "ceil": np.ceil, "round": np.rint, "trunc": np.trunc,
    "sign": np.sign, "isnan": np.isnan, "isinf": np.isinf, "isfinite": np.isfinite,
    "bitand": np.bitwise_and, "bitor": np.bitwise_or, "bitxor": np.bitwise_xor,
    "shiftleft": np.left_shift, "shiftright": np.right_shift,
    "floordiv": np.floor_divide, "mod": np.remainder, "pow": np.power, "max": np.maximum, "min": np.minimum,
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
    "and": np.logical_and, "or": np.logical_or, "where": _select,
    "neg": _negate, "relu": lambda x, out=None: np.maximum(x, 0, out=out),
    "rsqrt": lambda x, out=None: np.divide(1, np.sqrt(x), out=out),
    "sigmoid": lambda x, out=None: np.divide(1, _one_plus_exp_neg(x), out=out),
    "silu": lambda x, out=None: np.divide(x, _one_plus_exp_neg(x), out=out),
    "gelu_tanh": _gelu_tanh, "gelu": _gelu, "erf": _erf,
}  # fmt: skip
"""Numbers beside an array have its type."""
