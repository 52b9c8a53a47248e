"""Operators of ONNX that map elements: arithmetic, comparisons, activations, casts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial, reduce

import numpy as np

from einc.importers.arrays.element_types import ElementType
from einc.importers.arrays.elementwise import apply, cast, where
from einc.importers.arrays.extents import make_extent
from einc.importers.arrays.moving import full, reshape
from einc.importers.arrays.reducing import find_extreme
from einc.importers.arrays.values import Array, UnsupportedError
from einc.importers.onnx.nodes import Convert, OnnxNode, Results, read_element_type


def _apply(function: str) -> Convert:
    return lambda node: apply(node.program, function, *node.arrays(), hint=node.hint)


def _fold(function: str) -> Convert:
    """An operator of any number of inputs."""

    def convert(node: OnnxNode) -> Results:
        return reduce(lambda a, b: apply(node.program, function, a, b, hint=node.hint), node.arrays())

    return convert


def _mean(node: OnnxNode) -> Results:
    total = reduce(lambda a, b: apply(node.program, "add", a, b), node.arrays())
    return apply(node.program, "div", total, len(node.inputs), hint=node.hint)


def _power(node: OnnxNode) -> Results:
    base, exponent = node.input(0), node.input(1)
    if exponent.scalar in (2, 3, 0.5):
        if exponent.scalar == 2:
            return apply(node.program, "square", base, hint=node.hint)
        if exponent.scalar == 0.5 and base.type.is_float:
            return apply(node.program, "sqrt", base, hint=node.hint)
        if exponent.scalar == 3:
            return apply(node.program, "mul", apply(node.program, "square", base), base, hint=node.hint)
    if base.type is not exponent.type and (exponent.type.is_float or not base.type.is_float):
        wide = ElementType.F64
        power = apply(node.program, "pow", cast(node.program, base, wide), cast(node.program, exponent, wide))
        return cast(node.program, power, base.type, hint=node.hint)
    return apply(node.program, "pow", base, cast(node.program, exponent, base.type), hint=node.hint)


def _modulus(node: OnnxNode) -> Results:
    return apply(node.program, "remainder" if node.integer("fmod") else "mod", *node.arrays(), hint=node.hint)


def _shift(node: OnnxNode) -> Results:
    x, by = node.arrays()
    if x.type is ElementType.U64 and node.string("direction") == "RIGHT":
        f = partial(apply, node.program)
        kept = f("sub", f("shiftleft", _like(node, x, 1), f("sub", 64, by)), 1)
        return where(node.program, f("eq", by, 0), x, f("and", f("shiftright", x, by), kept), hint=node.hint)
    return apply(
        node.program, "shiftleft" if node.string("direction") == "LEFT" else "shiftright", x, by, hint=node.hint
    )


def _like(node: OnnxNode, x: Array, value: float) -> Array:
    return node.program.constant(np.asarray(value).astype(x.type.numpy), x.type)


def _cast(node: OnnxNode) -> Results:
    return cast(node.program, node.input(0), read_element_type(node.integer("to")), hint=node.hint)


def _cast_like(node: OnnxNode) -> Results:
    return cast(node.program, node.input(0), node.input(1).type, hint=node.hint)


def _where(node: OnnxNode) -> Results:
    condition, positive, negative = node.arrays()
    return where(node.program, condition, positive, negative, hint=node.hint)


def _clip(node: OnnxNode) -> Results:
    x = node.input(0)
    if node.opset < 11:
        low, high = node.number("min", -math.inf), node.number("max", math.inf)
        bounds = [("max", low)] * (low > -3.4e38) + [("min", high)] * (high < 3.4e38)
    else:
        limits = (("max", node.optional(1)), ("min", node.optional(2)))
        bounds = [(function, bound) for function, bound in limits if bound is not None]  # type: ignore[misc]
    for function, bound in bounds:
        x = apply(node.program, function, x, bound, hint=node.hint)
    return x if bounds else apply(node.program, "copy", x, hint=node.hint)


def _is_infinite(node: OnnxNode) -> Results:
    x = node.input(0)
    negative, positive = node.integer("detect_negative", 1), node.integer("detect_positive", 1)
    result = apply(node.program, "isinf", x, hint=node.hint)
    if negative and positive:
        return result
    sign = apply(node.program, "gt" if positive else "lt", x, 0)
    if not negative and not positive:
        sign = apply(node.program, "ne", x, x)
    return apply(node.program, "and", result, sign, hint=node.hint)


def _gelu(node: OnnxNode) -> Results:
    function = "gelu_tanh" if node.string("approximate", "none") == "tanh" else "gelu"
    return apply(node.program, function, node.input(0), hint=node.hint)


def _swish(node: OnnxNode) -> Results:
    x, alpha = node.input(0), node.number("alpha", 1.0)
    if alpha == 1.0:
        return apply(node.program, "silu", x, hint=node.hint)
    share = apply(node.program, "sigmoid", apply(node.program, "mul", x, alpha))
    return apply(node.program, "mul", x, share, hint=node.hint)


def _prelu(node: OnnxNode) -> Results:
    program, x, slope = node.program, node.input(0), node.input(1)
    if node.opset < 7 and slope.rank == 1:  # a slope for each channel
        slope = reshape(program, slope, [slope.shape[0], *[1] * (x.rank - 2)])
    below = apply(program, "mul", x, slope)
    return where(program, apply(program, "ge", x, 0), x, below, hint=node.hint)


def _drop_out(node: OnnxNode) -> Results:
    """Dropout in inference: the input, and a mask that holds everywhere."""
    training = node.optional(2)
    ratio = node.optional(1)
    if training is not None and training.scalar is not False and (ratio is None or ratio.scalar != 0):
        raise UnsupportedError("dropout in training draws random numbers", "export the model for inference")
    x = node.input(0)
    if not node.wants(1):
        return x
    mask = full(node.program, x.shape, True, ElementType.BOOL)
    if node.opset < 10:
        mask = cast(node.program, mask, x.type)
    return x, mask


def _bit_cast(node: OnnxNode) -> Results:
    x, type_ = node.input(0), read_element_type(node.integer("to"))
    if x.numbers is not None:
        return node.program.constant(np.ascontiguousarray(x.numbers).view(type_.numpy), type_)
    if not (x.type.is_integer and type_.is_integer and x.type.bits == type_.bits):
        raise UnsupportedError(f"the bits of {x.type.value} as {type_.value} are not supported")
    return cast(node.program, x, type_, hint=node.hint)


def _hardmax(node: OnnxNode) -> Results:
    x = node.input(0)
    axis = node.integer("axis", -1 if node.opset >= 13 else 1)
    if node.opset < 13 and axis % x.rank != x.rank - 1:
        raise UnsupportedError("hardmax over several dimensions together")
    best = find_extreme(node.program, x, axis, keep=True)
    extent = x.shape[axis]
    if not extent.is_number:
        raise UnsupportedError("hardmax over a dimension that depends on params", "give the params numbers")
    places = node.program.constant(np.arange(extent.value))
    shape = [make_extent(1)] * x.rank
    shape[axis] = extent
    return cast(
        node.program, apply(node.program, "eq", best, reshape(node.program, places, shape)), x.type, hint=node.hint
    )


_ONE_OPERAND = {
    "Abs": "abs", "Acos": "acos", "Acosh": "acosh", "Asin": "asin", "Asinh": "asinh", "Atan": "atan", "Atanh": "atanh",
    "Ceil": "ceil", "Cos": "cos", "Cosh": "cosh", "Erf": "erf", "Exp": "exp", "Floor": "floor",
    "HardSwish": "hardswish", "IsNaN": "isnan", "Log": "log", "Mish": "mish", "Neg": "neg", "Not": "not",
    "BitwiseNot": "not",
    "Reciprocal": "reciprocal", "Relu": "relu", "Round": "round", "Sigmoid": "sigmoid", "Sign": "sign", "Sin": "sin",
    "Sinh": "sinh", "Softplus": "softplus", "Softsign": "softsign", "Sqrt": "sqrt", "Tan": "tan", "Tanh": "tanh",
}  # fmt: skip
_TWO_OPERANDS = {
    "Add": "add", "Sub": "sub", "Mul": "mul", "Div": "div", "And": "and", "Or": "or", "Xor": "xor", "BitwiseAnd": "and",
    "BitwiseOr": "or", "BitwiseXor": "xor", "Equal": "eq", "Less": "lt", "LessOrEqual": "le", "Greater": "gt",
    "GreaterOrEqual": "ge",
}  # fmt: skip

ELEMENTWISE_OPERATORS: Mapping[str, Convert] = {
    **{name: _apply(function) for name, function in {**_ONE_OPERAND, **_TWO_OPERANDS}.items()},
    "Max": _fold("max"), "Min": _fold("min"), "Sum": _fold("add"), "Mean": _mean, "Pow": _power, "Mod": _modulus,
    "BitShift": _shift, "Cast": _cast, "CastLike": _cast_like, "Where": _where, "Clip": _clip, "IsInf": _is_infinite,
    "Gelu": _gelu, "Swish": _swish, "PRelu": _prelu, "Dropout": _drop_out,
    "BitCast": _bit_cast, "Hardmax": _hardmax, "Identity": lambda node: node.input(0),
}  # fmt: skip
