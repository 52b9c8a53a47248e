"""Reductions over named dimensions: sum, prod, mean, max, min; and the elementwise max and min of two operands."""

from __future__ import annotations

import math
from collections.abc import Sequence

from einc.errors import OperatorError
from einc.ops import elementwise
from einc.ops.arguments import Argument, no_others, one_tensor, positions, unique
from einc.ops.base import Attributes, Operator
from einc.ops.equation import index_equation
from einc.ops.scalar import Input, single

CALLS = ("sum", "prod", "mean", "max", "min")


def call(name: str, arguments: Sequence[Argument], attributes: Attributes) -> Operator:
    """`sum(x, "tokens")`, `max(x, over=["heads", "tokens"])`: the dimensions named are aggregated away.

    `max` and `min` with two operands and no names are elementwise.
    """
    numbers = len(arguments) == 2 and not isinstance(arguments[1], str | tuple)
    if name in elementwise.BINARY_EXTREMES and numbers and "over" not in attributes:
        return elementwise.call(name, arguments, attributes)
    no_others(name, attributes, "over")
    tensor, over = one_tensor(name, arguments, attributes, "over")
    if not over:
        raise OperatorError(
            f"{name}: which dimensions of {tensor} to aggregate over is not said", hint=f'{name}(x, "dimension", ...)'
        )
    gone = positions(name, tensor, over)
    labels = unique(tensor.dims)
    result = [(labels[at], tensor.dims[at]) for at in range(tensor.rank) if at not in gone]
    if name == "mean":
        count = math.prod(tensor.shape[at] for at in gone)
        program = single("div", Input(0), float(count))  # divided first: partial sums of 16-bit floats stay in range
        return index_equation([(tensor, labels)], result, program, "sum")
    return index_equation([(tensor, labels)], result, single("copy", Input(0)), name)
