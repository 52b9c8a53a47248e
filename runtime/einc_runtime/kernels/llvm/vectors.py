"""Emits scalar programs on vectors, with the functions of f32 for which LLVM has no instruction.

Programs read inputs of f32, bool, i32 and i64; of f64, those that LLVM has instructions for.

Errors against exact results are at most 3 ulp (units in the last place) for `exp` and functions made of it, 4 ulp for
`tanh`, and 4 ulp of the argument for both gelus. An exponential below 1.2e-38 becomes 0. All else rounds as numpy does.
Infinities and NaNs give the same results as in numpy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from llvmlite.ir import Constant

from einc_runtime.kernels.llvm.compiler import COMPILED_FLOATS, LANES
from einc_runtime.kernels.llvm.emitter import BIT, F32, F64, I32, I64, Emitter, Value, vector
from einc_runtime.kernels.scalar_program import ERF_NEAR, ERF_TAIL, GELU_TAIL
from einc_runtime.plan.scalar_functions import CAST, Number
from einc_runtime.plan.scalar_programs import Operand, ScalarInput, ScalarLiteral, TypedStep
from einc_runtime.plan.schema import INTEGERS

_SYMBOLS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
_MIN_EXP_ARGUMENT = -126 * math.log(2)
_HIGHEST = 88.8
_EXP = (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 0.5, 1.0, 1.0)
_EXP2 = (1.5353362e-4, 1.3398875e-3, 9.6184369e-3, 5.5503324e-2, 0.24022648, 0.69314718, 1.0)
"""2**r for r from -1/2 to 1/2, with an error of 2e-9 where the coefficients are not rounded."""
_TANH = (-5.70498872745e-3, 2.06390887954e-2, -5.37397155531e-2, 1.33314422036e-1, -3.33332819422e-1)
_LOG = (
    7.0376836292e-2, -1.1514610310e-1, 1.1676998740e-1, -1.2420140846e-1, 1.4249322787e-1, -1.6668057665e-1,
    2.0000714765e-1, -2.4999993993e-1, 3.3333331174e-1,
)  # fmt: skip
_ROUNDER = 12582912.0
"""1.5 * 2**23: a number that is added to it loses its fraction."""


def is_supported(steps: Sequence[TypedStep]) -> bool:
    """Whether a program only has types, functions and conversions that are known here."""
    return all(step.operand_type in _EMITTERS and _find_function(step) is not None for step in steps)


def evaluate(e: Emitter, steps: Sequence[TypedStep], inputs: Sequence[Value]) -> Value:
    """The value of a supported program, from vectors of its inputs."""
    return evaluate_all(e, steps, inputs)[-1]


def make_constant(e: Emitter, value: Number, kind: str) -> Value:
    """A literal of a type that is computed, in every lane."""
    exact = float(np.float32(value)) if kind == "f32" else float(value) if kind == "f64" else value
    return e.number(exact, _VECTOR_ELEMENTS[kind])


def evaluate_all(e: Emitter, steps: Sequence[TypedStep], inputs: Sequence[Value]) -> list[Value]:
    """The values of all steps of a supported program."""
    results: list[Value] = []

    def place(operand: Operand, kind: str) -> Value:
        if isinstance(operand, ScalarLiteral):
            return make_constant(e, operand.value, kind)
        if isinstance(operand, ScalarInput):
            return inputs[operand.position]
        return results[operand.position]

    for step in steps:
        function = _find_function(step)
        assert function is not None, "callers ask is_supported"
        results.append(function(e, *(place(operand, step.operand_type) for operand in step.operands)))
    return results


def _find_function(step: TypedStep) -> Callable[..., Value] | None:
    """What emits a step of a known type; None if there is nothing."""
    if not step.function.startswith(CAST):
        return _EMITTERS[step.operand_type].get(step.function)
    source, target = step.operand_type, step.function[len(CAST) :]
    if source == target:
        return _keep
    if source == "f32":
        return (lambda e, x: e.widen(e.round_to(x, target), target)) if target in COMPILED_FLOATS else None
    if source == "f64":
        return None
    if target == "bool":
        return lambda e, x: e.b.icmp_signed("!=", x, e.number(0, _VECTOR_ELEMENTS[source]))
    if target in INTEGERS:
        return lambda e, x: _resize(e, x, source, target)
    convert = "uitofp" if source == "bool" else "sitofp"
    element = {"f32": F32, "f64": F64}.get(target)
    return None if element is None else lambda e, x: getattr(e.b, convert)(x, vector(element))


def _resize(e: Emitter, x: Value, source: str, target: str) -> Value:
    """An integer of another width, or 1 for true; what does not fit wraps around, as in numpy."""
    if source == "bool":
        return e.b.zext(x, vector(_VECTOR_ELEMENTS[target]))
    return e.b.sext(x, vector(I64)) if target == "i64" else e.b.trunc(x, vector(I32))


def exp(e: Emitter, x: Value) -> Value:
    """2**n * polynomial(r), with x = n log 2 + r. The power is applied in two steps, since n may be 128."""
    b = e.b
    tiny = b.fcmp_ordered("<", x, e.number(_MIN_EXP_ARGUMENT))
    x = b.select(tiny, e.number(0.0), b.select(b.fcmp_ordered(">", x, e.number(_HIGHEST)), e.number(_HIGHEST), x))
    shifted = e.multiply_add(x, e.number(1 / math.log(2)), e.number(_ROUNDER))
    power = b.fsub(shifted, e.number(_ROUNDER))
    remainder = e.multiply_add(power, e.number(-0.693359375), x)
    remainder = e.multiply_add(power, e.number(2.12194440e-4), remainder)
    value = e.number(_EXP[0])
    for coefficient in _EXP[1:]:
        value = e.multiply_add(value, remainder, e.number(coefficient))
    return b.select(tiny, e.number(0.0), _scale(e, value, shifted))


def _scale(e: Emitter, value: Value, shifted: Value) -> Value:
    """A value times 2**n, for n of which `shifted` is the sum with `_ROUNDER`, in two steps."""
    b = e.b
    power = b.sub(b.bitcast(shifted, vector(I32)), b.bitcast(e.number(_ROUNDER), vector(I32)))
    half = b.ashr(power, e.number(1, I32))
    for part in (half, b.sub(power, half)):
        bits = b.shl(b.add(part, e.number(127, I32)), e.number(23, I32))
        value = b.fmul(value, b.bitcast(bits, vector(F32)))
    return value


def decay(e: Emitter, x: Value) -> Value:
    """`exp` of values that are at most 0, in fewer steps, as 2**n * 2**r. Beside 2 ulp, its relative error grows by
    1.4e-8 with each unit of the value."""
    b = e.b
    rounder = _ROUNDER + 127  # so that the lowest bits of a sum are the exponent of 2**n
    shifted = e.fuse_multiply_add(x, e.number(1 / math.log(2)), e.number(rounder))
    remainder = e.fuse_multiply_add(x, e.number(1 / math.log(2)), b.fsub(e.number(rounder), shifted))
    value = e.number(_EXP2[0])
    for coefficient in _EXP2[1:]:
        value = e.multiply_add(value, remainder, e.number(coefficient))
    power = b.bitcast(b.shl(b.bitcast(shifted, vector(I32)), e.number(23, I32)), vector(F32))
    return b.select(b.fcmp_ordered("<", x, e.number(_MIN_EXP_ARGUMENT)), e.number(0.0), b.fmul(value, power))


def log(e: Emitter, x: Value) -> Value:
    """The logarithm of 0, of numbers from 1, and of NaNs: x = 2**n * (1 + f), with a polynomial in f."""
    b = e.b
    bits = b.bitcast(x, vector(I32))
    fraction = b.or_(b.and_(bits, e.number(0x7FFFFF, I32)), e.number(0x3F800000, I32))
    mantissa = b.bitcast(fraction, vector(F32))
    large = b.fcmp_ordered(">", mantissa, e.number(math.sqrt(2)))
    power = b.add(b.sub(b.lshr(bits, e.number(23, I32)), e.number(127, I32)), b.zext(large, vector(I32)))
    n = b.sitofp(power, vector(F32))
    f = b.fsub(b.select(large, b.fmul(mantissa, e.number(0.5)), mantissa), e.number(1.0))
    value = e.number(_LOG[0])
    for coefficient in _LOG[1:]:
        value = e.multiply_add(value, f, e.number(coefficient))
    square = b.fmul(f, f)
    value = e.multiply_add(n, e.number(-2.12194440e-4), b.fmul(value, b.fmul(f, square)))
    value = b.fadd(f, e.multiply_add(square, e.number(-0.5), value))
    value = e.multiply_add(n, e.number(0.693359375), value)
    value = b.select(b.fcmp_ordered("==", x, e.number(0.0)), e.number(-math.inf), value)
    return b.select(b.fcmp_ordered("<", x, e.number(math.inf)), value, x)


def log1p(e: Emitter, x: Value) -> Value:
    """log(1 + x), times what x lost when 1 was added (Kahan): a relative error of 3 ulp, for small x too."""
    b = e.b
    sum_with_one = b.fadd(x, e.number(1.0))
    value = b.fmul(log(e, sum_with_one), b.fdiv(x, b.fsub(sum_with_one, e.number(1.0))))
    value = b.select(b.fcmp_ordered("==", sum_with_one, e.number(math.inf)), sum_with_one, value)
    value = b.select(b.fcmp_ordered("<", sum_with_one, e.number(0.0)), e.number(math.nan), value)
    return b.select(b.fcmp_ordered("==", sum_with_one, e.number(1.0)), x, value)


def _keep(e: Emitter, x: Value) -> Value:
    return x


def _select(e: Emitter, condition: Value, x: Value, y: Value) -> Value:
    return e.b.select(condition, x, y)


def _compare(e: Emitter, function: str, x: Value, y: Value) -> Value:
    compare = e.b.fcmp_unordered if function == "ne" else e.b.fcmp_ordered
    return compare(_SYMBOLS[function], x, y)


def _choose(e: Emitter, symbol: str, x: Value, y: Value) -> Value:
    """x where it compares so with y, else y, for integers."""
    return e.b.select(e.b.icmp_signed(symbol, x, y), x, y)


def _negate(e: Emitter, x: Value) -> Value:
    return e.b.sub(_zero(x), x)


def _zero(x: Value) -> Value:
    return Constant(x.type, [0] * LANES)


def _divide(e: Emitter, x: Value, y: Value) -> tuple[Value, Value, Value, Value]:
    """A quotient rounded towards 0, the rest, and where divisors are 0 and -1, by which nothing is divided here."""
    b, unit = e.b, Constant(y.type, [1] * LANES)
    nothing, negative = b.icmp_signed("==", y, _zero(y)), b.icmp_signed("==", y, Constant(y.type, [-1] * LANES))
    divisor = b.select(b.or_(nothing, negative), unit, y)
    return b.sdiv(x, divisor), b.srem(x, divisor), nothing, negative


def _rounds_down(e: Emitter, remainder: Value, y: Value) -> Value:
    """Where a quotient rounded down is one less than one rounded towards 0."""
    b = e.b
    signs = b.icmp_signed("<", b.xor(remainder, y), _zero(y))
    return b.and_(b.icmp_signed("!=", remainder, _zero(y)), signs)


def _floordiv(e: Emitter, x: Value, y: Value) -> Value:
    """Rounded down; 0 where integers are divided by 0."""
    b = e.b
    quotient, remainder, nothing, negative = _divide(e, x, y)
    down = b.sub(quotient, b.zext(_rounds_down(e, remainder, y), y.type))
    return b.select(nothing, _zero(x), b.select(negative, _negate(e, x), down))


def _mod(e: Emitter, x: Value, y: Value) -> Value:
    """Of the divisor's sign; 0 where integers are divided by 0."""
    _, remainder, _, _ = _divide(e, x, y)
    return e.b.select(_rounds_down(e, remainder, y), e.b.add(remainder, y), remainder)


def _one_plus_exp(e: Emitter, x: Value) -> Value:
    return e.b.fadd(exp(e, x), e.number(1.0))


def _silu(e: Emitter, x: Value) -> Value:
    return e.b.fdiv(x, _one_plus_exp(e, e.b.fneg(x)))


def _sigmoid(e: Emitter, x: Value) -> Value:
    return e.b.fdiv(e.number(1.0), _one_plus_exp(e, e.b.fneg(x)))


def tanh(e: Emitter, x: Value) -> Value:
    """A polynomial near 0, and elsewhere 1 - 2 / (1 + exp(2 |x|)) with the sign of x."""
    b = e.b
    size = e.magnitude(x)
    square = b.fmul(x, x)
    near = e.number(_TANH[0])
    for coefficient in _TANH[1:]:
        near = e.multiply_add(near, square, e.number(coefficient))
    near = e.multiply_add(b.fmul(near, square), x, x)
    far = b.fsub(e.number(1.0), b.fdiv(e.number(2.0), _one_plus_exp(e, b.fadd(size, size))))
    far = b.select(b.fcmp_ordered("<", x, e.number(0.0)), b.fneg(far), far)
    return b.select(b.fcmp_ordered("<", size, e.number(0.625)), near, far)


def _gelu_tanh(e: Emitter, x: Value) -> Value:
    """x / 2 * (1 + tanh(z)) as x / (1 + exp(-2 z)), which stays exact where tanh(z) is near -1."""
    b = e.b
    inner = e.multiply_add(b.fmul(x, x), e.number(0.044715), e.number(1.0))
    z = b.fmul(b.fmul(inner, x), e.number(-2 * math.sqrt(2 / math.pi)))
    return b.fdiv(x, _one_plus_exp(e, z))


def _gelu(e: Emitter, x: Value) -> Value:
    """max(x, 0) - u * exp(-p(u)) for u = |x|: see `scalar_program.GELU_TAIL`. The maximum keeps NaNs."""
    b = e.b
    size = e.magnitude(x)
    size = b.select(b.fcmp_ordered("<", size, e.number(16.0)), size, e.number(16.0))
    power = e.number(-GELU_TAIL[-1])
    for coefficient in GELU_TAIL[-2::-1]:
        power = e.multiply_add(power, size, e.number(-coefficient))
    return b.fsub(_relu(e, x), b.fmul(decay(e, power), size))


def _erf(e: Emitter, x: Value) -> Value:
    """A polynomial near 0, and elsewhere 1 - exp(-p(|x|)) with the sign of x."""
    b = e.b
    size, square = e.magnitude(x), b.fmul(x, x)
    near = e.number(ERF_NEAR[-1])
    for coefficient in ERF_NEAR[-2::-1]:
        near = e.multiply_add(near, square, e.number(coefficient))
    beyond = b.select(b.fcmp_ordered(">", size, e.number(4.0)), e.number(4.0), size)
    power = e.number(-ERF_TAIL[-1])
    for coefficient in ERF_TAIL[-2::-1]:
        power = e.multiply_add(power, beyond, e.number(-coefficient))
    far = b.fsub(e.number(1.0), exp(e, power))
    near, far = b.fmul(near, x), _with_sign(e, far, x)
    return b.select(b.fcmp_ordered("<", size, e.number(1.0)), near, b.select(e.b.fcmp_ordered("ord", x, x), far, x))


def _exp2(e: Emitter, x: Value) -> Value:
    """2**n * 2**r, with x = n + r. The power is applied in two steps, since n may be 128."""
    b = e.b
    tiny = b.fcmp_ordered("<", x, e.number(-126.0))
    x = b.select(tiny, e.number(0.0), b.select(b.fcmp_ordered(">", x, e.number(128.0)), e.number(128.0), x))
    shifted = b.fadd(x, e.number(_ROUNDER))
    remainder = b.fsub(x, b.fsub(shifted, e.number(_ROUNDER)))
    value = e.number(_EXP2[0])
    for coefficient in _EXP2[1:]:
        value = e.multiply_add(value, remainder, e.number(coefficient))
    return b.select(tiny, e.number(0.0), _scale(e, value, shifted))


def _round(e: Emitter, x: Value) -> Value:
    """To the nearest whole number, ties to even: a number that is added takes the fraction away. Larger numbers have
    none."""
    b, size = e.b, e.magnitude(x)
    rounded = b.fsub(b.fadd(size, e.number(2.0**23)), e.number(2.0**23))
    return _with_sign(e, b.select(b.fcmp_ordered("<", size, e.number(2.0**23)), rounded, size), x)


def _step(e: Emitter, x: Value, symbol: str, amount: float) -> Value:
    """The nearest whole number, and `amount` more where that compares so with x."""
    b, rounded = e.b, _round(e, x)
    more = b.select(b.fcmp_ordered(symbol, rounded, x), e.number(amount), e.number(0.0))
    return b.select(b.fcmp_ordered("==", rounded, x), x, _with_sign(e, b.fadd(rounded, more), x))


def _trunc(e: Emitter, x: Value) -> Value:
    return _with_sign(e, _step(e, e.magnitude(x), ">", -1.0), x)


def _with_sign(e: Emitter, size: Value, x: Value) -> Value:
    """A value with the sign of x in the place of its own."""
    b = e.b
    sign = b.and_(b.bitcast(x, vector(I32)), e.number(-(2**31), I32))
    bits = b.and_(b.bitcast(size, vector(I32)), e.number(2**31 - 1, I32))
    return b.bitcast(b.or_(bits, sign), vector(F32))


def _sign(e: Emitter, x: Value) -> Value:
    b, zero = e.b, e.number(0.0)
    below = b.select(b.fcmp_ordered("<", x, zero), e.number(-1.0), b.fadd(x, zero))  # -0 + 0 is 0
    return b.select(b.fcmp_ordered(">", x, zero), e.number(1.0), below)


def _sign_of_integer(e: Emitter, x: Value) -> Value:
    b, unit = e.b, Constant(x.type, [1] * LANES)
    below = b.select(b.icmp_signed("<", x, _zero(x)), _negate(e, unit), _zero(x))
    return b.select(b.icmp_signed(">", x, _zero(x)), unit, below)


def _shift(e: Emitter, x: Value, count: Value, *, left: bool) -> Value:
    """A count that is no position of a bit shifts all bits out."""
    b, width = e.b, x.type.element.width
    last = Constant(x.type, [width - 1] * LANES)
    within = b.icmp_unsigned("<=", count, last)
    if left:
        return b.select(within, b.shl(x, b.select(within, count, last)), _zero(x))
    return b.ashr(x, b.select(within, count, last))


def _relu(e: Emitter, x: Value) -> Value:
    return e.larger(x, e.number(0.0))


def _rsqrt(e: Emitter, x: Value) -> Value:
    return e.b.fdiv(e.number(1.0), e.square_root(x))


_OF_FLOATS: dict[str, Callable[..., Value]] = {
    "copy": _keep, "neg": lambda e, x: e.b.fneg(x), "abs": lambda e, x: e.magnitude(x),
    "relu": _relu, "gelu": _gelu, "gelu_tanh": _gelu_tanh, "silu": _silu, "tanh": tanh, "sigmoid": _sigmoid,
    "exp": exp, "exp2": _exp2, "erf": _erf, "round": _round, "trunc": _trunc, "sign": _sign,
    "floor": lambda e, x: _step(e, x, ">", -1.0), "ceil": lambda e, x: _step(e, x, "<", 1.0),
    "isnan": lambda e, x: e.b.fcmp_unordered("uno", x, x),
    "isinf": lambda e, x: e.b.fcmp_ordered("==", e.magnitude(x), e.number(math.inf)),
    "isfinite": lambda e, x: e.b.fcmp_ordered("<", e.magnitude(x), e.number(math.inf)),
    "log1p": log1p, "sqrt": lambda e, x: e.square_root(x), "rsqrt": _rsqrt,
    "add": lambda e, x, y: e.b.fadd(x, y), "sub": lambda e, x, y: e.b.fsub(x, y),
    "mul": lambda e, x, y: e.b.fmul(x, y), "div": lambda e, x, y: e.b.fdiv(x, y),
    "max": lambda e, x, y: e.larger(x, y), "min": lambda e, x, y: e.smaller(x, y), "where": _select,
    **{name: lambda e, x, y, name=name: _compare(e, name, x, y) for name in _SYMBOLS},
}  # fmt: skip
_OF_BITS: dict[str, Callable[..., Value]] = {
    "copy": _keep, "not": lambda e, x: e.b.not_(x),
    "and": lambda e, x, y: e.b.and_(x, y), "or": lambda e, x, y: e.b.or_(x, y),
    "eq": lambda e, x, y: e.b.icmp_unsigned("==", x, y), "ne": lambda e, x, y: e.b.icmp_unsigned("!=", x, y),
    "where": _select,
}  # fmt: skip
_OF_INTEGERS: dict[str, Callable[..., Value]] = {
    "copy": _keep, "neg": _negate, "abs": lambda e, x: e.b.select(e.b.icmp_signed("<", x, _zero(x)), _negate(e, x), x),
    "relu": lambda e, x: _choose(e, ">", x, _zero(x)),
    "add": lambda e, x, y: e.b.add(x, y), "sub": lambda e, x, y: e.b.sub(x, y), "mul": lambda e, x, y: e.b.mul(x, y),
    "floordiv": _floordiv, "mod": _mod, "sign": _sign_of_integer,
    "bitand": lambda e, x, y: e.b.and_(x, y), "bitor": lambda e, x, y: e.b.or_(x, y),
    "bitxor": lambda e, x, y: e.b.xor(x, y), "shiftleft": lambda e, x, n: _shift(e, x, n, left=True),
    "shiftright": lambda e, x, n: _shift(e, x, n, left=False),
    "max": lambda e, x, y: _choose(e, ">", x, y), "min": lambda e, x, y: _choose(e, "<", x, y), "where": _select,
    **{name: lambda e, x, y, sign=sign: e.b.icmp_signed(sign, x, y) for name, sign in _SYMBOLS.items()},
}  # fmt: skip
_OF_DOUBLES = {
    name: _OF_FLOATS[name]
    for name in ("copy", "neg", "abs", "sqrt", "isnan", "add", "sub", "mul", "div", "max", "min", "where", *_SYMBOLS)
}
_VECTOR_ELEMENTS = {"f32": F32, "f64": F64, "bool": BIT, "i32": I32, "i64": I64}
_EMITTERS: dict[str, dict[str, Callable[..., Value]]] = {
    "f32": _OF_FLOATS,
    "f64": _OF_DOUBLES,
    "bool": _OF_BITS,
    **dict.fromkeys(INTEGERS, _OF_INTEGERS),
}
"""Type of the operands -> function -> what emits it."""
