"""Scalar programs as lines of Triton source: every function in its compute type.

Not-a-numbers, signs of quotients and small results are the same as in the CPU's kernels. The functions are listed in
`plan/scalar_functions.py`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from einc_runtime.dtypes import FLOATS, NARROW_LARGEST
from einc_runtime.kernels.scalar_program import GELU_TAIL
from einc_runtime.kernels.triton.source import LANGUAGE
from einc_runtime.plan.scalar_functions import CAST, Number
from einc_runtime.plan.scalar_programs import Operand, ScalarInput, ScalarLiteral, TypedStep

_OPERATORS = {
    "add": "+", "sub": "-", "mul": "*", "eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">=",
    "and": "&", "or": "|", "bitand": "&", "bitor": "|", "bitxor": "^",
}  # fmt: skip

HELPERS = {
    "largest": """
@triton.jit
def largest(a, b):
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)
""",
    "smallest": """
@triton.jit
def smallest(a, b):
    return tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)
""",
    "product": """
@triton.jit
def product(a, b):
    return a * b
""",
    "quotient": '''
@triton.jit
def quotient(a, b):
    """Rounded down; 0 where integers are divided by 0."""
    divisor = tl.where((b == 0) | (b == -1), 1, b)
    down = a // divisor - ((a % divisor != 0) & ((a % divisor < 0) != (divisor < 0))).to(a.dtype)
    return tl.where(b == 0, 0, tl.where(b == -1, -a, down))
''',
    "remainder": '''
@triton.jit
def remainder(a, b):
    """Of the divisor's sign; 0 where integers are divided by 0."""
    divisor = tl.where((b == 0) | (b == -1), 1, b)
    rest = a % divisor
    return tl.where((rest != 0) & ((rest < 0) != (divisor < 0)), rest + divisor, rest)
''',
    "float_remainder": '''
@triton.jit
def float_remainder(a, b):
    """Of the divisor's sign."""
    rest = a % b
    return tl.where((rest != 0) & ((rest < 0) != (b < 0)), rest + b, rest)
''',
    "float_quotient": '''
@triton.jit
def float_quotient(a, b):
    """Rounded down: what is left of a without the remainder is a multiple of b, up to rounding."""
    rest = a % b
    ratio = (a - rest) / b
    ratio = tl.where((rest != 0) & ((rest < 0) != (b < 0)), ratio - 1, ratio)
    down = tl.floor(ratio)
    return tl.where(b == 0, a / b, tl.where(ratio - down > 0.5, down + 1, down))
''',
    "shiftleft": '''
@triton.jit
def shiftleft(a, n):
    """A count that is no position of a bit shifts all bits out."""
    within = (n >= 0) & (n < a.dtype.primitive_bitwidth)
    return tl.where(within, a << tl.where(within, n, 0), 0)
''',
    "shiftright": '''
@triton.jit
def shiftright(a, n):
    """A count that is no position of a bit leaves the sign in all bits."""
    last = a.dtype.primitive_bitwidth - 1
    return a >> tl.where((n >= 0) & (n < last), n, last)
''',
    "signum": '''
@triton.jit
def signum(x):
    """The sign of a number; 0 of both zeros, and not-a-number of one."""
    return tl.where(x > 0, 1, tl.where(x < 0, -1, tl.where(x == 0, 0, x))).to(x.dtype)
''',
    "tanh": '''
@triton.jit
def tanh(x):
    """Near 0 a polynomial, as the quotient of exponentials would cancel there."""
    z = x * x
    near = x + x * z * (-0.333332975 + z * (0.133319153 + z * (-0.053783293 + z * (0.0207946177 - z * 0.0058939453))))
    far = 1 - 2 / (tl.exp(2 * tl.abs(x)) + 1)
    return tl.where(z < 0.36, near, tl.where(x < 0, -far, far))
''',
    "tanh64": """
@triton.jit
def tanh64(x):
    far = 1 - 2 / (tl.exp(2 * tl.abs(x)) + 1)
    return tl.where(x < 0, -far, far)
""",
    "power": '''
@triton.jit
def power(a, b):
    """Through logarithms in f64; the sign is that of a where b is odd, and there is none where b is no integer."""
    a, b = tl.broadcast(a, b)
    base = tl.abs(a).to(tl.float64)
    exponent = b.to(tl.float64)
    size = tl.exp2(exponent * tl.log2(base))
    size = tl.where((exponent == 0) | (a == 1) | ((base == 1) & (exponent == exponent)), 1.0, size)
    integer = tl.floor(exponent) == exponent
    odd = integer & (exponent - 2 * tl.floor(exponent * 0.5) == 1)
    negative = (a < 0) | ((a == 0) & (1 / a < 0))
    signed = tl.where(negative & odd, -size, size)
    finite = (base < float("inf")) & (tl.abs(exponent) < float("inf"))
    return tl.where((a < 0) & (integer == 0) & finite, float("nan"), signed).to(a.dtype)
''',
}
"""Sources of functions that kernels may need, by name."""


def _gelu() -> str:
    """The source of gelu, with the polynomial written out from its highest power."""
    nested = repr(GELU_TAIL[-1])
    for coefficient in reversed(GELU_TAIL[:-1]):
        nested = f"({nested}) * u + {coefficient!r}"
    return f'''
@triton.jit
def gelu(x):
    """max(x, 0) - u * exp(-p(u)) for u = |x|, where exp(-p) is the normal distribution's upper tail."""
    u = tl.minimum(tl.abs(x), 16.0, propagate_nan=tl.PropagateNan.ALL)
    p = {nested}
    return tl.maximum(x, 0.0, propagate_nan=tl.PropagateNan.ALL) - u * tl.exp(-p)
'''


HELPERS["gelu"] = _gelu()

_CALL_FORMATS = {
    "abs": "tl.abs({0})", "exp": "tl.exp({0})", "log": "tl.log({0})", "not": "({0} == 0)",
    "neg": "-{0}", "copy": "{0}", "exp2": "tl.exp2({0})", "log2": "tl.log2({0})", "sin": "tl.sin({0})",
    "cos": "tl.cos({0})", "erf": "tl.erf({0})", "floor": "tl.floor({0})", "ceil": "tl.ceil({0})",
    "isnan": "{0} != {0}", "isinf": "tl.abs({0}) == float('inf')", "isfinite": "tl.abs({0}) < float('inf')",
    "sigmoid": "1 / (1 + tl.exp(-{0}))",
    "silu": "{0} / (1 + tl.exp(-{0}))",
    "where": "tl.where({0}, {1}, {2})",
}  # fmt: skip


_LIBRARY = {"tan": "tan", "atan": "atan", "atan2": "atan2", "expm1": "expm1", "log1p": "log1p", "round": "rint",
            "trunc": "trunc"}  # fmt: skip
"""Functions of CUDA's library libdevice, which are accurate everywhere."""


class ScalarSource:
    """Typed steps as lines over the values of inputs, which have these names, and the helpers that these lines call."""

    def __init__(self, steps: Sequence[TypedStep], inputs: Sequence[str]) -> None:
        self.helpers: set[str] = set()
        self.uses_library = any(step.function in _LIBRARY for step in steps)
        self.lines: list[str] = []
        self._steps, self._inputs = steps, inputs
        for number, step in enumerate(steps):
            self.lines.append(f"t{number} = {self._write_expression(step)}")

    @property
    def value(self) -> str:
        return f"t{len(self._steps) - 1}"

    def list_last(self, count: int) -> list[str]:
        return [f"t{number}" for number in range(len(self._steps) - count, len(self._steps))]

    def source(self, *more: str | ScalarSource) -> str:
        """The source of the functions that the lines call, of `more` functions, and of those that other lines call."""
        sources = [self, *(x for x in more if isinstance(x, ScalarSource))]
        names = {name for source in sources for name in source.helpers} | {x for x in more if isinstance(x, str)}
        imports = "from triton.language.extra import libdevice\n" * any(source.uses_library for source in sources)
        return imports + "".join(HELPERS[name] for name in sorted(names))

    def _call_helper(self, name: str, *arguments: str) -> str:
        self.helpers.add(name)
        return f"{name}({', '.join(arguments)})"

    def _write_expression(self, step: TypedStep) -> str:
        kind = step.operand_type
        values = [self._write_operand(operand, kind) for operand in step.operands]
        floating = kind in FLOATS
        if step.function.startswith(CAST):
            return _write_cast(values[0], kind, step.function[len(CAST) :], step.result_type)
        if step.function in _OPERATORS:
            plain = [
                format_number(x.value) if isinstance(x, ScalarLiteral) and kind != "bool" else value
                for x, value in zip(step.operands, values, strict=True)
            ]
            return f"{plain[0]} {_OPERATORS[step.function]} {plain[1]}"
        if step.function == "div":
            return f"tl.div_rn({', '.join(values)})" if kind == "f32" else f"{values[0]} / {values[1]}"
        if step.function in ("sqrt", "rsqrt"):
            return f"{'1 / ' if step.function == 'rsqrt' else ''}{write_square_root(values[0], kind)}"
        if step.function in ("max", "min", "relu"):
            pair = values if step.function != "relu" else [values[0], "0.0" if floating else "0"]
            if not floating:
                return f"tl.{'minimum' if step.function == 'min' else 'maximum'}({', '.join(pair)})"
            return self._call_helper("smallest" if step.function == "min" else "largest", *pair)
        if step.function in ("floordiv", "mod"):
            name = "quotient" if step.function == "floordiv" else "remainder"
            return self._call_helper(f"float_{name}" if floating else name, *values)
        if step.function == "pow":
            return self._write_power(step, values)
        if step.function in _LIBRARY:
            return f"libdevice.{_LIBRARY[step.function]}({', '.join(values)})"
        if step.function in ("sign", "shiftleft", "shiftright"):
            return self._call_helper("signum" if step.function == "sign" else step.function, *values)
        if step.function == "tanh":
            return self._call_helper("tanh" if kind == "f32" else "tanh64", values[0])
        if step.function == "gelu_tanh":
            x = values[0]
            inner = f"{math.sqrt(2 / math.pi)!r} * {x} * (1 + 0.044715 * {x} * {x})"
            return f"0.5 * {x} * (1 + {self._call_helper('tanh' if kind == 'f32' else 'tanh64', inner)})"
        if step.function == "gelu":
            x = values[0]
            return (
                self._call_helper("gelu", x) if kind == "f32" else f"0.5 * {x} * (1 + tl.erf({x} * {math.sqrt(0.5)!r}))"
            )
        return _CALL_FORMATS[step.function].format(*values)

    def _write_power(self, step: TypedStep, values: Sequence[str]) -> str:
        exponent = step.operands[1]
        if isinstance(exponent, ScalarLiteral) and exponent.value in (2, 3):
            return " * ".join([values[0]] * int(exponent.value))
        if isinstance(exponent, ScalarLiteral) and exponent.value == 1:
            return values[0]
        return self._call_helper("power", *values)

    def _write_operand(self, operand: Operand, kind: str) -> str:
        if isinstance(operand, ScalarLiteral):
            return _write_literal(operand.value, kind)
        if isinstance(operand, ScalarInput):
            return self._inputs[operand.position]
        return f"t{operand.position}"


def write_square_root(value: str, kind: str) -> str:
    """A square root that is rounded to nearest; for f64 every square root is."""
    return f"tl.sqrt_rn({value})" if kind == "f32" else f"tl.sqrt({value})"


def _write_literal(value: Number, kind: str) -> str:
    """A tensor without axes, since some functions do not take Python numbers."""
    return f"tl.full([], {format_number(value)}, {LANGUAGE[kind]})"


def format_number(value: Number) -> str:
    """A number as Python writes it, with infinities."""
    if isinstance(value, float) and not math.isfinite(value):
        return f'float("{value}")'
    return repr(int(value) if isinstance(value, bool) else value)


def _write_cast(value: str, source: str, target: str, result: str) -> str:
    if target == "bool":
        return value if source == "bool" else f"{value} != 0"
    if target in NARROW_LARGEST:
        return f"widen_{target}(narrow_{target}({value}))"
    converted = value if source == target else f"{value}.to({LANGUAGE[target]})"
    return converted if target == result else f"{converted}.to({LANGUAGE[result]})"
