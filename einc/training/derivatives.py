"""Derivatives of scalar functions and programs, as further steps of the same programs.

Where a function has no derivative, it has that of PyTorch: 0 for `relu` and `abs` at 0, a half for each of two equal
operands of `max` and `min`, and 0 everywhere for functions that are constant between their steps (`floor`, `round`,
`sign`, comparisons).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from einc.core.tensor import DType
from einc.errors import OperatorError
from einc.ops.scalar import ProgramBuilder, resolve_program
from einc_runtime.plan.scalar_functions import CAST
from einc_runtime.plan.scalar_programs import EarlierStep, Operand, ScalarInput, ScalarLiteral, ScalarProgram

_Rule = Callable[[ProgramBuilder, Sequence[Operand], Operand, Operand], Sequence[Operand | None]]
"""From the operands of a step, its result and the gradient of that, the gradient of each operand: None is 0."""

_LN2 = math.log(2)
_CUBE_FACTOR = 0.044715
"""The factor of the cube in the tanh approximation of gelu (Hendrycks and Gimpel, 2016)."""
_TANH_SCALE = math.sqrt(2 / math.pi)
"""The factor of the argument of its tanh."""


def add_derivatives(
    builder: ProgramBuilder,
    program: ScalarProgram,
    inputs: Sequence[Operand],
    types: Sequence[DType],
    gradients: Sequence[Operand | None],
) -> list[Operand | None]:
    """Adds the steps that make the gradient of each input of a program from those of its last results.

    `inputs` are the operands of `builder` that the inputs are, of these element types. `gradients` belong to the last
    steps, in their order. None stands for 0: for integers, for bool, and where the result does not depend on the input.
    Raises OperatorError for a function that has no derivative.
    """
    program, results = resolve_program(program, types)
    values = builder.insert_all(program, inputs)
    known: dict[Operand, Operand] = {}  # of each operand of the program, the gradient so far
    steps = len(program.steps)
    for step_number, gradient in enumerate(gradients, steps - len(gradients)):
        if gradient is not None:
            _accumulate(builder, known, EarlierStep(step_number), gradient)
    for step_number in range(steps - 1, -1, -1):
        gradient = known.get(EarlierStep(step_number))
        if gradient is None or not results[step_number].is_float:
            continue
        step = program.steps[step_number]
        operands = [_find_value(x, inputs, values) for x in step.operands]
        kinds = [_find_type(x, types, results) for x in step.operands]
        slopes = _differentiate(builder, step.function, operands, kinds, values[step_number], gradient)
        for operand, kind, part in zip(step.operands, kinds, slopes, strict=True):
            if part is not None and kind is not None and kind.is_float:
                _accumulate(builder, known, operand, part)
    return [known.get(ScalarInput(k)) for k in range(len(inputs))]


def _differentiate(
    builder: ProgramBuilder,
    function: str,
    operands: Sequence[Operand],
    kinds: Sequence[DType | None],
    result: Operand,
    gradient: Operand,
) -> Sequence[Operand | None]:
    if function.startswith(CAST):
        kind = kinds[0]
        widened = kind is not None and kind.is_float
        return [builder.add(f"{CAST}{kind.value}", gradient) if widened and kind is not None else None]
    if function in _STEPPED:
        return [None] * len(operands)
    rule = _DERIVATIVES.get(function)
    if rule is None:
        raise OperatorError(f"has the function '{function}', which has no derivative")
    return rule(builder, operands, result, gradient)


def _accumulate(builder: ProgramBuilder, known: dict[Operand, Operand], operand: Operand, part: Operand) -> None:
    before = known.get(operand)
    known[operand] = part if before is None else builder.add("add", before, part)


def _find_value(operand: Operand, inputs: Sequence[Operand], values: Sequence[Operand]) -> Operand:
    if isinstance(operand, ScalarLiteral):
        return operand
    return (inputs if isinstance(operand, ScalarInput) else values)[operand.position]


def _find_type(operand: Operand, inputs: Sequence[DType], results: Sequence[DType]) -> DType | None:
    if isinstance(operand, ScalarLiteral):
        return None
    return (inputs if isinstance(operand, ScalarInput) else results)[operand.position]


# ---- functions ----


def _scale(factor: Callable[[ProgramBuilder, Operand, Operand], Operand]) -> _Rule:
    """The rule of a function of one operand with this derivative, a function of the operand and the result."""

    def apply(
        b: ProgramBuilder, operands: Sequence[Operand], result: Operand, gradient: Operand
    ) -> Sequence[Operand | None]:
        return [b.add("mul", gradient, factor(b, operands[0], result))]

    return apply


def _choose(b: ProgramBuilder, function: str, left: Operand, right: Operand | float, gradient: Operand) -> Operand:
    """The gradient where a comparison holds, else 0."""
    return b.add("where", b.add(function, left, right), gradient, 0.0)


def _extreme(function: str) -> _Rule:
    """Of `max` and `min`: the operand that is chosen has the gradient, and of two equal ones each a half."""

    def apply(
        b: ProgramBuilder, operands: Sequence[Operand], result: Operand, gradient: Operand
    ) -> Sequence[Operand | None]:
        left, right = operands
        half = b.add("where", b.add("eq", left, right), b.add("mul", gradient, 0.5), 0.0)
        opposite = {"gt": "lt", "lt": "gt"}[function]
        return [b.add("where", b.add(name, left, right), gradient, half) for name in (function, opposite)]

    return apply


def _square_plus_one(b: ProgramBuilder, x: Operand) -> Operand:
    return b.add("add", b.add("mul", x, x), 1.0)


def _one_minus_square(b: ProgramBuilder, y: Operand) -> Operand:
    return b.add("sub", 1.0, b.add("mul", y, y))


def _slope_of_silu(b: ProgramBuilder, x: Operand, _: Operand) -> Operand:
    share = b.add("sigmoid", x)
    return b.add("mul", share, b.add("add", b.add("mul", x, b.add("sub", 1.0, share)), 1.0))


def _slope_of_gelu(b: ProgramBuilder, x: Operand, _: Operand) -> Operand:
    share = b.add("add", b.add("mul", b.add("erf", b.add("mul", x, math.sqrt(0.5))), 0.5), 0.5)
    density = b.add("mul", b.add("exp", b.add("mul", b.add("mul", x, x), -0.5)), 1 / math.sqrt(2 * math.pi))
    return b.add("add", share, b.add("mul", x, density))


def _slope_of_gelu_tanh(b: ProgramBuilder, x: Operand, _: Operand) -> Operand:
    square = b.add("mul", x, x)
    inner = b.add("mul", b.add("mul", x, b.add("add", b.add("mul", square, _CUBE_FACTOR), 1.0)), _TANH_SCALE)
    height = b.add("tanh", inner)
    slope = b.add("mul", b.add("add", b.add("mul", square, 3 * _CUBE_FACTOR), 1.0), _TANH_SCALE)
    bent = b.add("mul", b.add("mul", x, 0.5), b.add("mul", _one_minus_square(b, height), slope))
    return b.add("add", b.add("add", b.add("mul", height, 0.5), 0.5), bent)


def _slope_of_rsqrt(b: ProgramBuilder, _: Operand, y: Operand) -> Operand:
    return b.add("mul", b.add("mul", y, b.add("mul", y, y)), -0.5)


def _multiply(
    b: ProgramBuilder, operands: Sequence[Operand], _: Operand, gradient: Operand
) -> Sequence[Operand | None]:
    return [b.add("mul", gradient, operands[1]), b.add("mul", gradient, operands[0])]


def _divide(
    b: ProgramBuilder, operands: Sequence[Operand], result: Operand, gradient: Operand
) -> Sequence[Operand | None]:
    share = b.add("div", gradient, operands[1])
    return [share, b.add("neg", b.add("mul", share, result))]


def _take_remainder(
    b: ProgramBuilder, operands: Sequence[Operand], _: Operand, gradient: Operand
) -> Sequence[Operand | None]:
    if all(isinstance(x, ScalarLiteral) for x in operands):
        return [None, None]
    return [gradient, b.add("neg", b.add("mul", gradient, b.add("floordiv", *operands)))]


def _raise(
    b: ProgramBuilder, operands: Sequence[Operand], result: Operand, gradient: Operand
) -> Sequence[Operand | None]:
    base, exponent = operands
    first: Operand | None = None
    if not isinstance(base, ScalarLiteral):
        if isinstance(exponent, ScalarLiteral):
            value = float(exponent.value)
            power = b.add("mul", b.add("pow", base, value - 1.0), value) if value != 2 else b.add("mul", base, 2.0)
            first = b.add("mul", gradient, power) if value else None
        else:
            power = b.add("mul", b.add("pow", base, b.add("sub", exponent, 1.0)), exponent)
            first = b.add("where", b.add("eq", exponent, 0.0), 0.0, b.add("mul", gradient, power))
    if isinstance(exponent, ScalarLiteral):
        return [first, None]
    if isinstance(base, ScalarLiteral):
        value = float(base.value)
        logarithm = math.log(value) if value > 0 else 0.0 if value == 0 else math.nan
        if math.isnan(logarithm):
            raise OperatorError("raises a negative number to a power that is differentiated")
        return [first, b.add("mul", gradient, b.add("mul", result, logarithm))]
    slope = b.add("mul", gradient, b.add("mul", result, b.add("log", base)))
    vanishes = b.add("and", b.add("eq", base, 0.0), b.add("ge", exponent, 0.0))
    return [first, b.add("where", vanishes, 0.0, slope)]


def _find_angle(
    b: ProgramBuilder, operands: Sequence[Operand], _: Operand, gradient: Operand
) -> Sequence[Operand | None]:
    height, width = operands
    squares = [b.add("mul", x, x) if not isinstance(x, ScalarLiteral) else float(x.value) ** 2 for x in operands]
    share = b.add("div", gradient, b.add("add", *squares))
    return [b.add("mul", share, width), b.add("neg", b.add("mul", share, height))]


_STEPPED = frozenset(
    (
        *("floor", "ceil", "round", "trunc", "sign", "isnan", "isinf", "isfinite", "floordiv"),
        *("eq", "ne", "lt", "le", "gt", "ge", "and", "or", "not"),
        *("bitand", "bitor", "bitxor", "shiftleft", "shiftright"),
    )
)
"""Functions that are constant between their steps, or have no floats."""

_DERIVATIVES: dict[str, _Rule] = {
    "copy": lambda b, x, y, g: [g],
    "neg": lambda b, x, y, g: [b.add("neg", g)],
    "add": lambda b, x, y, g: [g, g],
    "sub": lambda b, x, y, g: [g, b.add("neg", g)],
    "mul": _multiply,
    "div": _divide,
    "mod": _take_remainder,
    "pow": _raise,
    "atan2": _find_angle,
    "max": _extreme("gt"),
    "min": _extreme("lt"),
    "where": lambda b, x, y, g: [None, b.add("where", x[0], g, 0.0), b.add("where", x[0], 0.0, g)],
    "relu": lambda b, x, y, g: [_choose(b, "gt", x[0], 0.0, g)],
    "abs": _scale(lambda b, x, y: b.add("sign", x)),
    "exp": _scale(lambda b, x, y: y),
    "exp2": _scale(lambda b, x, y: b.add("mul", y, _LN2)),
    "expm1": _scale(lambda b, x, y: b.add("add", y, 1.0)),
    "log": lambda b, x, y, g: [b.add("div", g, x[0])],
    "log2": lambda b, x, y, g: [b.add("div", g, b.add("mul", x[0], _LN2))],
    "log1p": lambda b, x, y, g: [b.add("div", g, b.add("add", x[0], 1.0))],
    "sqrt": lambda b, x, y, g: [b.add("div", g, b.add("mul", y, 2.0))],
    "rsqrt": _scale(_slope_of_rsqrt),
    "sin": _scale(lambda b, x, y: b.add("cos", x)),
    "cos": _scale(lambda b, x, y: b.add("neg", b.add("sin", x))),
    "tan": _scale(lambda b, x, y: _square_plus_one(b, y)),
    "atan": lambda b, x, y, g: [b.add("div", g, _square_plus_one(b, x[0]))],
    "tanh": _scale(lambda b, x, y: _one_minus_square(b, y)),
    "sigmoid": _scale(lambda b, x, y: b.add("mul", y, b.add("sub", 1.0, y))),
    "erf": _scale(lambda b, x, y: b.add("mul", b.add("exp", b.add("neg", b.add("mul", x, x))), 2 / math.sqrt(math.pi))),
    "gelu": _scale(_slope_of_gelu),
    "gelu_tanh": _scale(_slope_of_gelu_tanh),
    "silu": _scale(_slope_of_silu),
}
