"""Lowers scalar programs to straight-line code of numpy calls over a few registers.

First every function becomes calls that write a new value into their last argument. Then `allocate` assigns registers;
values that are not alive at the same time share one. A chain of any length needs only a few registers, so a caller that
walks an array in small pieces stays in the cache.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from einc_runtime.dtypes import Array, DType, compute_type, storage_dtype
from einc_runtime.kernels.base import store
from einc_runtime.kernels.scalar_program import ERF_NEAR, ERF_TAIL, GELU_TAIL
from einc_runtime.plan.scalar_functions import CAST
from einc_runtime.plan.scalar_programs import Operand, ScalarInput, ScalarLiteral, TypedStep

Breadth = frozenset[int]


@dataclass(frozen=True, slots=True)
class StoredInput:
    """Input `position` in its stored type."""

    position: int


@dataclass(frozen=True, slots=True)
class LoweredValue:
    """The result of a call. It varies along the axes in `breadth`, and has extent 1 along all others."""

    number: int
    dtype: DType
    breadth: Breadth


@dataclass(frozen=True, slots=True)
class Register:
    """The place of a value: a slot of memory as an array of this type and breadth."""

    slot: int
    dtype: DType
    breadth: Breadth


@dataclass(frozen=True, slots=True)
class LoweredResult:
    """The array that the whole program writes."""


Scalar = np.generic
Place = StoredInput | LoweredValue | Register | LoweredResult | Scalar


@dataclass(frozen=True, slots=True)
class NumpyCall:
    """`function(*arguments, target)`."""

    function: Callable[..., Any]
    arguments: tuple[Place, ...]
    target: Place


@dataclass(frozen=True, slots=True)
class Code:
    """Calls in order, the bytes per element of each register slot, and the place of the program's value."""

    calls: tuple[NumpyCall, ...]
    slots: tuple[int, ...]
    value: Place


def lower(steps: Sequence[TypedStep], inputs: Sequence[str], breadths: Sequence[Breadth], output: DType | None) -> Code:
    """Code for typed steps over inputs of these element types, which vary along these axes.

    With `output`, the value is converted to that type and written to the result. Without, it stays in its compute type
    in a register, or in an input that needs no conversion.
    """
    expansion = _Expansion(inputs, breadths)
    for step in steps:
        expansion.add(step)
    return allocate(expansion.calls, expansion.finish(output))


@dataclass(frozen=True, slots=True)
class TupleCode:
    """Calls without registers, and the places of several values."""

    calls: tuple[NumpyCall, ...]
    values: tuple[Place, ...]

    def compute(self, arrays: Sequence[Array], shape: Sequence[int]) -> list[Array]:
        """The values, as new arrays of this shape or views of the inputs, which broadcast to it."""
        computed: dict[int, Array] = {}

        def find(location: Place) -> Any:
            if isinstance(location, LoweredValue):
                return computed[location.number]
            return arrays[location.position] if isinstance(location, StoredInput) else location

        with np.errstate(all="ignore"):  # infinities and NaN are results
            for call in self.calls:
                assert isinstance(call.target, LoweredValue)
                target = np.empty(shape, call.target.dtype)
                call.function(*map(find, call.arguments), target)
                computed[call.target.number] = target
        return [np.broadcast_to(find(location), shape) for location in self.values]


def lower_tuple(steps: Sequence[TypedStep], inputs: Sequence[str], count: int) -> TupleCode:
    """Code whose values are the results of the last `count` steps, each in the type in which it is computed."""
    expansion = _Expansion(inputs, [frozenset()] * len(inputs))
    for step in steps:
        expansion.add(step)
    return TupleCode(tuple(expansion.calls), tuple(expansion.results[-count:]))


def _maximum(left: Any, right: Any, target: Any) -> None:
    np.maximum(left, right, out=target)  # numpy deprecates the output as a third positional argument


def _minimum(left: Any, right: Any, target: Any) -> None:
    np.minimum(left, right, out=target)


def _select(condition: Any, yes: Any, no: Any, target: Any) -> None:
    np.copyto(target, no)
    np.copyto(target, yes, where=condition)


def _gelu_f64(x: Any, target: Any) -> None:
    finite = np.maximum(x, -1e3)  # as -inf * 0 is not 0
    np.copyto(target, _half_erfc(finite * -math.sqrt(0.5)).astype(np.float64))
    np.multiply(target, finite, target)


def _erf_f64(x: Any, target: Any) -> None:
    np.copyto(target, _erf(x).astype(np.float64))


_erf = np.frompyfunc(math.erf, 1, 1)
_half_erfc = np.frompyfunc(lambda v: 0.5 * math.erfc(v), 1, 1)

_UFUNCS: dict[str, Callable[..., Any]] = {
    "abs": np.absolute, "tanh": np.tanh, "exp": np.exp, "log": np.log, "sqrt": np.sqrt, "not": np.logical_not,
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.true_divide,
    "exp2": np.exp2, "expm1": np.expm1, "log2": np.log2, "log1p": np.log1p, "sin": np.sin, "cos": np.cos, "tan": np.tan,
    "atan": np.arctan, "atan2": np.arctan2, "floor": np.floor, "ceil": np.ceil, "round": np.rint, "trunc": np.trunc,
    "sign": np.sign, "isnan": np.isnan, "isinf": np.isinf, "isfinite": np.isfinite,
    "bitand": np.bitwise_and, "bitor": np.bitwise_or, "bitxor": np.bitwise_xor,
    "shiftleft": np.left_shift, "shiftright": np.right_shift,
    "floordiv": np.floor_divide, "mod": np.remainder, "pow": np.power, "max": _maximum, "min": _minimum,
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
    "and": np.logical_and, "or": np.logical_or, "where": _select,
}  # fmt: skip


class _Expansion:
    """Collects calls in single-assignment form."""

    def __init__(self, inputs: Sequence[str], breadths: Sequence[Breadth]) -> None:
        self.inputs, self.breadths = inputs, breadths
        self.calls: list[NumpyCall] = []
        self.results: list[Place] = []
        self.loaded: dict[int, Place] = {}

    def add(self, step: TypedStep) -> None:
        arguments = [self._operand(operand, step.operand_type) for operand in step.operands]
        dtype = storage_dtype(step.result_type)
        if step.function == "copy":
            self.results.append(arguments[0])
        elif step.function.startswith(CAST):
            rounded = self.call(store, storage_dtype(step.function[len(CAST) :]), arguments[0])
            self.results.append(self._convert(rounded, dtype))
        elif step.function in _UFUNCS:
            self.results.append(self.call(_UFUNCS[step.function], dtype, *arguments))
        else:
            self.results.append(getattr(self, f"_{step.function}")(arguments[0], dtype))

    def finish(self, output: DType | None) -> Place:
        """The program's value; with `output`, the last call writes the result."""
        value = self.results[-1]
        if output is None:
            return value if not isinstance(value, Scalar) else self.call(store, value.dtype, value)
        if self.calls and self.calls[-1].target == value and self.calls[-1].function is store:
            narrow = self.calls[-1].arguments[0]
            if (
                isinstance(narrow, LoweredValue) and narrow.dtype == output
            ):  # a cast to the type in which the result is stored
                self.calls.pop()
                value = narrow
        if self.calls and self.calls[-1].target == value and isinstance(value, LoweredValue) and value.dtype == output:
            self.calls[-1] = NumpyCall(self.calls[-1].function, self.calls[-1].arguments, LoweredResult())
        else:
            self.calls.append(NumpyCall(store, (value,), LoweredResult()))
        return LoweredResult()

    def call(self, function: Callable[..., Any], dtype: DType, *arguments: Place) -> LoweredValue:
        breadth: Breadth = frozenset()
        for argument in arguments:
            if isinstance(argument, LoweredValue):
                breadth |= argument.breadth
            elif isinstance(argument, StoredInput):
                breadth |= self.breadths[argument.position]
        value = LoweredValue(len(self.calls), dtype, breadth)
        self.calls.append(NumpyCall(function, arguments, value))
        return value

    def _convert(self, value: LoweredValue, dtype: DType) -> Place:
        return value if value.dtype == dtype else self.call(store, dtype, value)

    def _operand(self, operand: Operand, kind: str) -> Place:
        if isinstance(operand, ScalarLiteral):
            # A literal has the common type of the operands: the condition of a `where` is never a literal.
            constant: Scalar = storage_dtype(kind).type(operand.value)
            return constant
        if not isinstance(operand, ScalarInput):
            return self.results[operand.position]
        stored = self.inputs[operand.position]
        if compute_type(stored) == stored:
            return StoredInput(operand.position)
        if operand.position not in self.loaded:
            wide = self.call(store, storage_dtype(compute_type(stored)), StoredInput(operand.position))
            self.loaded[operand.position] = wide
        return self.loaded[operand.position]

    # Functions that numpy has under no name, or not right. Constants have the type that is computed in.

    def _neg(self, x: Place, dtype: DType) -> Place:
        """-0 - x, which is -x for every x. numpy 2.4 writes wrong values with `np.negative` where the input's elements
        are 4 of 4 or 8 of 8 bytes apart and the output's are not next to each other."""
        return self.call(np.subtract, dtype, dtype.type(-0.0), x)

    def _relu(self, x: Place, dtype: DType) -> Place:
        return self.call(_maximum, dtype, x, dtype.type(0))

    def _rsqrt(self, x: Place, dtype: DType) -> Place:
        return self.call(np.true_divide, dtype, dtype.type(1), self.call(np.sqrt, dtype, x))

    def _one_plus_exp_neg(self, x: Place, dtype: DType) -> Place:
        """1 + exp(-x). It is infinite for very negative x, and then a quotient by it is 0, which is right."""
        return self.call(np.add, dtype, self.call(np.exp, dtype, self._neg(x, dtype)), dtype.type(1))

    def _sigmoid(self, x: Place, dtype: DType) -> Place:
        return self.call(np.true_divide, dtype, dtype.type(1), self._one_plus_exp_neg(x, dtype))

    def _silu(self, x: Place, dtype: DType) -> Place:
        return self.call(np.true_divide, dtype, x, self._one_plus_exp_neg(x, dtype))

    def _gelu_tanh(self, x: Place, dtype: DType) -> Place:
        """x / 2 * (1 + tanh(sqrt(2 / pi) * x * (1 + 0.044715 * x * x)))."""
        value = self.call(np.multiply, dtype, x, x)
        value = self.call(np.multiply, dtype, value, dtype.type(0.044715))
        value = self.call(np.add, dtype, value, dtype.type(1))
        value = self.call(np.multiply, dtype, value, x)
        value = self.call(np.tanh, dtype, self.call(np.multiply, dtype, value, dtype.type(math.sqrt(2 / math.pi))))
        value = self.call(np.multiply, dtype, self.call(np.add, dtype, value, dtype.type(1)), x)
        return self.call(np.multiply, dtype, value, dtype.type(0.5))

    def _gelu(self, x: Place, dtype: DType) -> Place:
        if dtype == np.float64:
            return self.call(_gelu_f64, dtype, x)
        magnitude = self.call(_minimum, dtype, self.call(np.absolute, dtype, x), dtype.type(16))
        power = self._polynomial(magnitude, [-coefficient for coefficient in GELU_TAIL], dtype)
        tail = self.call(np.multiply, dtype, self.call(np.exp, dtype, power), magnitude)
        return self.call(np.subtract, dtype, self._relu(x, dtype), tail)

    def _erf(self, x: Place, dtype: DType) -> Place:
        """A polynomial near 0, and elsewhere 1 - exp(-p(|x|)) with the sign of x."""
        if dtype == np.float64:
            return self.call(_erf_f64, dtype, x)
        square = self.call(np.multiply, dtype, x, x)
        near = self.call(np.multiply, dtype, self._polynomial(square, ERF_NEAR, dtype), x)
        magnitude = self.call(np.absolute, dtype, x)
        power = self._polynomial(self.call(_minimum, dtype, magnitude, dtype.type(4)), ERF_TAIL, dtype)
        tail = self.call(np.exp, dtype, self._neg(power, dtype))
        far = self.call(np.copysign, dtype, self.call(np.subtract, dtype, dtype.type(1), tail), x)
        is_near = self.call(np.less, np.dtype(np.bool_), magnitude, dtype.type(1))
        return self.call(_select, dtype, is_near, near, far)

    def _polynomial(self, x: LoweredValue, coefficients: Sequence[float], dtype: DType) -> LoweredValue:
        """From the coefficient of the constant term on."""
        value = self.call(np.multiply, dtype, x, dtype.type(coefficients[-1]))
        for coefficient in coefficients[-2:0:-1]:
            value = self.call(np.multiply, dtype, self.call(np.add, dtype, value, dtype.type(coefficient)), x)
        return self.call(np.add, dtype, value, dtype.type(coefficients[0]))


def allocate(calls: Sequence[NumpyCall], value: Place) -> Code:
    """Assigns registers to values in one pass over their lifetimes."""
    last_use = {argument: number for number, call in enumerate(calls) for argument in call.arguments
                if isinstance(argument, LoweredValue)}  # fmt: skip
    registers: dict[LoweredValue, Register] = {}
    free: list[int] = []
    slots: list[int] = []
    placed: list[NumpyCall] = []

    def place(item: Place) -> Place:
        return registers[item] if isinstance(item, LoweredValue) else item

    for number, call in enumerate(calls):
        dying = [x for x in dict.fromkeys(call.arguments) if isinstance(x, LoweredValue) and last_use[x] == number]
        dying = [x for x in dying if x != value]
        arguments = tuple(map(place, call.arguments))
        target = call.target
        if isinstance(target, LoweredValue):
            # numpy works in place if an operand has exactly the target's layout; it copies for any other overlap.
            reusable = [x for x in dying if _works_in_place(call.function) and _have_equal_layout(x, target)]
            if reusable:
                slot = registers[reusable[0]].slot
                dying.remove(reusable[0])
            elif free:
                slot = free.pop()
            else:
                slot = len(slots)
                slots.append(0)
            slots[slot] = max(slots[slot], target.dtype.itemsize)
            registers[target] = Register(slot, target.dtype, target.breadth)
        free += [registers[x].slot for x in dying]
        placed.append(NumpyCall(call.function, arguments, place(target)))
        if isinstance(target, LoweredValue) and target not in last_use and target != value:
            free.append(registers[target].slot)
    return Code(tuple(placed), tuple(slots), place(value))


def _works_in_place(function: Callable[..., Any]) -> bool:
    return isinstance(function, np.ufunc) or function in (_maximum, _minimum)


def _have_equal_layout(left: LoweredValue, right: LoweredValue) -> bool:
    return left.dtype == right.dtype and left.breadth == right.breadth
