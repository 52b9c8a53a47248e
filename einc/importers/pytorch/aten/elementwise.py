"""Functions of elements."""

from __future__ import annotations

import math

import numpy as np

from einc.importers.arrays.element_types import ElementType
from einc.importers.arrays.elementwise import apply, cast, where
from einc.importers.arrays.extents import Extent
from einc.importers.arrays.moving import reshape
from einc.importers.arrays.program import ArrayProgram
from einc.importers.arrays.values import Array
from einc.importers.pytorch.aten.table import Call, Function, aten, refuse_extent
from einc.importers.pytorch.aten.types import Operand, promote


def make_array(program: ArrayProgram, operand: Operand, type_: ElementType) -> Array | float:
    """An operand in the type that is computed in; numbers stay numbers."""
    if isinstance(operand, Array):
        return cast(program, operand, type_)
    if isinstance(operand, Extent):
        if operand.is_number:
            return operand.value
        return cast(program, program.constant(np.array(operand, object), ElementType.I64), type_)
    if type_.is_bool:
        return bool(operand)
    return float(operand) if type_.is_float else int(operand)


def combine(call: Call, function: str, *operands: Operand, type_: ElementType | None = None) -> Array:
    """A function of elements in the promoted type of its operands, and its result in that of the graph."""
    wide = type_ or promote(operands)
    arrays = [make_array(call.program, operand, wide) for operand in operands]
    if not any(isinstance(array, Array) for array in arrays):
        arrays[0] = call.program.constant(np.asarray(arrays[0]).astype(wide.numpy), wide)
    return call.cast(apply(call.program, function, *arrays, hint=call.hint))


def _make_unary(name: str, function: str) -> Function:
    @aten(name)
    def convert(call: Call, self_: Array) -> Array:
        return combine(call, function, self_)

    return convert


def _make_float(name: str, function: str) -> Function:
    @aten(name)
    def convert(call: Call, self_: Array) -> Array:
        """Whole numbers become floats first."""
        return combine(call, function, self_, type_=self_.type if self_.type.is_float else call.type)

    return convert


def _make_binary(name: str, function: str) -> Function:
    @aten(name)
    def convert(call: Call, self_: Operand, other_: Operand) -> Array:
        return combine(call, function, self_, other_)

    return convert


_OF_NUMBERS = tuple(_make_unary(name, name) for name in ("abs", "neg", "relu"))
_FLOAT_FUNCTIONS = tuple(_make_float(name, function) for name, function in (
    ("exp", "exp"), ("exp2", "exp2"), ("expm1", "expm1"), ("log", "log"), ("log2", "log2"), ("log1p", "log1p"),
    ("sqrt", "sqrt"), ("rsqrt", "rsqrt"), ("sin", "sin"), ("cos", "cos"), ("tan", "tan"), ("tanh", "tanh"),
    ("sinh", "sinh"), ("cosh", "cosh"), ("asin", "asin"), ("acos", "acos"), ("atan", "atan"), ("asinh", "asinh"),
    ("acosh", "acosh"), ("atanh", "atanh"), ("sigmoid", "sigmoid"), ("erf", "erf"), ("silu", "silu"),
    ("reciprocal", "reciprocal"), ("mish", "mish"), ("hardswish", "hardswish"),
))  # fmt: skip
_OF_TWO_OPERANDS = tuple(_make_binary(name, function) for name, function in (
    ("mul", "mul"), ("maximum", "max"), ("minimum", "min"), ("max.other", "max"), ("min.other", "min"),
    ("eq", "eq"), ("ne", "ne"), ("lt", "lt"), ("le", "le"),
    ("gt", "gt"), ("ge", "ge"), ("remainder", "mod"), ("fmod", "remainder"), ("bitwise_and", "and"),
    ("bitwise_or", "or"), ("bitwise_xor", "xor"), ("atan2", "atan2"), ("bitwise_left_shift", "shiftleft"),
    ("bitwise_right_shift", "shiftright"), ("__and__", "and"), ("__or__", "or"), ("__xor__", "xor"),
    ("multiply", "mul"), ("greater", "gt"), ("less", "lt"), ("greater_equal", "ge"), ("less_equal", "le"),
    ("not_equal", "ne"),
))  # fmt: skip


def _make_rounding(name: str) -> Function:
    @aten(name)
    def convert(call: Call, self_: Array, decimals: int = 0) -> Array:
        if decimals and self_.type.is_float:
            powers = ("mul", "div") if decimals > 0 else ("div", "mul")
            scaled = combine(call, powers[0], self_, 10.0 ** abs(decimals))
            return combine(call, powers[1], combine(call, name, scaled), 10.0 ** abs(decimals))
        return combine(call, name, self_) if self_.type.is_float else call.cast(self_)

    return convert


_ROUNDED = tuple(_make_rounding(name) for name in ("floor", "ceil", "round", "trunc"))


def _make_truth(name: str) -> Function:
    @aten(name)
    def convert(call: Call, self_: Array) -> Array:
        if self_.type.is_float:
            return combine(call, name, self_)
        return apply(call.program, "ne" if name != "isfinite" else "eq", self_, self_, hint=call.hint)

    return convert


_TRUTHS = tuple(_make_truth(name) for name in ("isnan", "isinf", "isfinite"))


@aten("sign", "sgn")
def convert_sign(call: Call, self_: Array) -> Array:
    return call.cast(self_) if self_.type.is_bool else combine(call, "sign", self_)


def _scale(call: Call, operand: Operand, alpha: float, type_: ElementType) -> Operand:
    if alpha == 1:
        return operand
    if not isinstance(operand, Array):
        return operand * alpha if not isinstance(operand, Extent) else operand * int(alpha)
    number = make_array(call.program, alpha, type_)
    return apply(call.program, "mul", cast(call.program, operand, type_), number, hint=call.hint)


@aten("add", "__add__")
def convert_add(call: Call, self_: Operand, other_: Operand, alpha: float = 1) -> Array:
    type_ = promote([self_, other_])
    return combine(call, "or" if type_.is_bool else "add", self_, _scale(call, other_, alpha, type_), type_=type_)


@aten("sub", "subtract")
def convert_sub(call: Call, self_: Operand, other_: Operand, alpha: float = 1) -> Array:
    type_ = promote([self_, other_])
    return combine(call, "sub", self_, _scale(call, other_, alpha, type_), type_=type_)


@aten("rsub")
def convert_rsub(call: Call, self_: Operand, other_: Operand, alpha: float = 1) -> Array:
    return convert_sub(call, other_, self_, alpha)


@aten("div", "true_divide", "divide")
def convert_div(call: Call, self_: Operand, other_: Operand, rounding_mode: str | None = None) -> Array:
    type_ = promote([self_, other_])
    if rounding_mode is None:
        return combine(call, "div", self_, other_, type_=type_ if type_.is_float else call.type)
    if rounding_mode == "floor":
        return combine(call, "floordiv", self_, other_, type_=type_)
    quotient = combine(call, "div", self_, other_, type_=type_)
    return combine(call, "trunc", quotient) if type_.is_float else quotient


@aten("floor_divide")
def convert_floor_divide(call: Call, self_: Operand, other_: Operand) -> Array:
    return combine(call, "floordiv", self_, other_)


@aten("pow")
def convert_pow(call: Call, self_: Operand, exponent: Operand) -> Array:
    type_ = promote([self_, exponent])
    if isinstance(self_, Array) and isinstance(exponent, int | float) and type_.is_float:
        base = cast(call.program, self_, type_)
        if exponent == 2:
            return call.cast(apply(call.program, "square", base, hint=call.hint))
        if exponent == 3:
            square = apply(call.program, "square", base, hint=call.hint)
            return call.cast(apply(call.program, "mul", square, base, hint=call.hint))
        if exponent in (0.5, -0.5):
            return combine(call, "sqrt" if exponent > 0 else "rsqrt", base)
    return combine(call, "pow", self_, exponent, type_=type_)


@aten("square")
def convert_square(call: Call, self_: Array) -> Array:
    return combine(call, "square", self_)


@aten("logical_not")
def convert_logical_not(call: Call, self_: Array) -> Array:
    return apply(call.program, "not", cast(call.program, self_, ElementType.BOOL), hint=call.hint)


@aten("bitwise_not")
def convert_bitwise_not(call: Call, self_: Array) -> Array:
    return combine(call, "not", self_)


def _make_logical(name: str, function: str) -> Function:
    @aten(name)
    def convert(call: Call, self_: Array, other_: Array) -> Array:
        return combine(call, function, self_, other_, type_=ElementType.BOOL)

    return convert


_OF_TRUTH = tuple(_make_logical(f"logical_{name}", name) for name in ("and", "or", "xor"))


@aten("where")
def convert_where(call: Call, condition: Array, self_: Operand | None = None, other_: Operand | None = None) -> Array:
    if self_ is None or other_ is None:
        raise refuse_extent("positions where a condition holds")
    type_ = promote([self_, other_])
    positive, negative = (make_array(call.program, operand, type_) for operand in (self_, other_))
    if not isinstance(positive, Array) and not isinstance(negative, Array):
        positive = call.program.constant(np.asarray(positive).astype(type_.numpy), type_)
    return call.cast(
        where(call.program, cast(call.program, condition, ElementType.BOOL), positive, negative, call.hint)
    )


@aten("masked_fill")
def convert_masked_fill(call: Call, self_: Array, mask: Array, value: Operand) -> Array:
    filling = make_array(call.program, value, self_.type)
    return where(call.program, mask, filling, self_, call.hint)


@aten("clamp", "clamp_min", "clamp_max")
def convert_clamp(call: Call, self_: Array, min: Operand | None = None, max: Operand | None = None) -> Array:
    result = self_
    for bound, function in ((min, "max"), (max, "min")):
        if bound is not None:
            result = combine(call, function, result, bound)
    return call.cast(result)


@aten("hardtanh")
def convert_hardtanh(call: Call, self_: Array, min_val: float = -1.0, max_val: float = 1.0) -> Array:
    return convert_clamp(call, self_, min_val, max_val)


@aten("relu6")
def convert_relu6(call: Call, self_: Array) -> Array:
    return convert_clamp(call, self_, 0, 6)


@aten("gelu")
def convert_gelu(call: Call, self_: Array, approximate: str = "none") -> Array:
    return combine(call, "gelu_tanh" if approximate == "tanh" else "gelu", self_)


@aten("leaky_relu")
def convert_leaky_relu(call: Call, self_: Array, negative_slope: float = 0.01) -> Array:
    positive = apply(call.program, "gt", self_, 0.0, hint=call.hint)
    return where(call.program, positive, self_, apply(call.program, "mul", self_, negative_slope), call.hint)


@aten("elu")
def convert_elu(call: Call, self_: Array, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0) -> Array:
    program = call.program
    inner = self_ if input_scale == 1 else apply(program, "mul", self_, input_scale)
    below = apply(program, "mul", apply(program, "expm1", inner), float(alpha))
    result = where(program, apply(program, "gt", self_, 0.0), self_, below, call.hint)
    return result if scale == 1 else apply(program, "mul", result, scale, hint=call.hint)


@aten("celu")
def convert_celu(call: Call, self_: Array, alpha: float = 1.0) -> Array:
    return convert_elu(call, self_, alpha, 1.0, 1.0 / alpha)


@aten("selu")
def convert_selu(call: Call, self_: Array) -> Array:
    return convert_elu(call, self_, 1.6732632423543772, 1.0507009873554805)


@aten("softplus")
def convert_softplus(call: Call, self_: Array, beta: float = 1, threshold: float = 20) -> Array:
    """Above the threshold it is linear; there, the exact function rounds to the same number or nearly so."""
    program = call.program
    scaled = self_ if beta == 1 else apply(program, "mul", self_, float(beta))
    soft = apply(program, "softplus", scaled, hint=call.hint)
    soft = soft if beta == 1 else apply(program, "div", soft, float(beta), hint=call.hint)
    return where(program, apply(program, "gt", scaled, float(threshold)), self_, soft, call.hint)


@aten("hardsigmoid")
def convert_hardsigmoid(call: Call, self_: Array) -> Array:
    moved = apply(call.program, "add", self_, 3.0)
    return combine(call, "div", convert_clamp(call, moved, 0, 6), 6.0)


_INVERSE_ERROR_SHAPE = 0.147
"""Of Winitzki's approximation of the inverse error function (2008), which is right to 2e-3 with it."""


@aten("erfinv")
def convert_inverse_error(call: Call, self_: Array) -> Array:
    """Winitzki's approximation and two steps of Halley's method, each of which triples the digits; all in f64, since
    near 1 a step divides what is lost by a small slope."""
    program = call.program

    def compute(function: str, *operands: Array | float) -> Array:
        return apply(program, function, *operands, hint=call.hint)

    y = cast(program, self_, ElementType.F64)
    tail = compute("log", compute("sub", 1.0, compute("mul", y, y)))
    middle = compute("add", compute("mul", tail, 0.5), 2 / (math.pi * _INVERSE_ERROR_SHAPE))
    inner = compute("sub", compute("mul", middle, middle), compute("div", tail, _INVERSE_ERROR_SHAPE))
    size = compute("sqrt", compute("sub", compute("sqrt", inner), middle))
    x = where(program, compute("lt", y, 0.0), compute("neg", size), size)
    for _ in range(2):
        slope = compute("mul", compute("exp", compute("neg", compute("mul", x, x))), 2 / math.sqrt(math.pi))
        step = compute("div", compute("sub", compute("erf", x), y), slope)
        x = compute("sub", x, compute("div", step, compute("add", compute("mul", x, step), 1.0)))
    ends = compute("eq", compute("abs", y), 1.0)
    return call.cast(where(program, ends, compute("mul", y, math.inf), x, call.hint))


@aten("prelu", "_prelu_kernel")
def convert_prelu(call: Call, self_: Array, weight: Array) -> Array:
    program = call.program
    if weight.rank == 1 and (self_.rank == 0 or (self_.rank > 2 and weight.shape[0].value > 1)):
        weight = reshape(program, weight, [weight.shape[0], *[1] * (self_.rank - 2)] if self_.rank else [])
    negative = apply(program, "mul", self_, weight)
    return where(program, apply(program, "gt", self_, 0.0), self_, negative, call.hint)


@aten("addcmul")
def convert_addcmul(call: Call, self_: Array, tensor1: Array, tensor2: Array, value: float = 1) -> Array:
    return convert_add(call, self_, combine(call, "mul", tensor1, tensor2), value)


@aten("addcdiv")
def convert_addcdiv(call: Call, self_: Array, tensor1: Array, tensor2: Array, value: float = 1) -> Array:
    return convert_add(call, self_, combine(call, "div", tensor1, tensor2), value)


@aten("logaddexp")
def convert_logaddexp(call: Call, self_: Array, other_: Array) -> Array:
    program = call.program
    gap = apply(program, "abs", apply(program, "sub", self_, other_))
    return combine(call, "add", apply(program, "max", self_, other_),
                   apply(program, "log1p", apply(program, "exp", apply(program, "neg", gap))))  # fmt: skip


@aten("_to_copy", "to")
def convert_type(call: Call, self_: Array, dtype: ElementType | None = None) -> Array:
    return call.cast(self_)


@aten("type_as")
def convert_type_as(call: Call, self_: Array, other_: Array) -> Array:
    return call.cast(self_)
