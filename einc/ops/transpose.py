"""Permuting the dimensions of a tensor."""

from __future__ import annotations

from collections.abc import Sequence

from einc.errors import OperatorError
from einc.ops.arguments import Argument, no_others, one_tensor, positions, unique
from einc.ops.base import Attributes, Operator
from einc.ops.equation import index_equation
from einc.ops.scalar import Input, single

CALLS = ("transpose",)


def call(name: str, arguments: Sequence[Argument], attributes: Attributes) -> Operator:
    """`transpose(x, "d_head", "heads", "tokens")` lists all dimensions anew; with none it swaps the last two."""
    no_others(name, attributes, "dims")
    tensor, dims = one_tensor(name, arguments, attributes, "dims")
    if dims:
        order = positions(name, tensor, dims)
        missing = [dim for at, dim in enumerate(tensor.dims) if at not in order]
        if missing:
            raise OperatorError(
                f"transpose: dimension '{missing[0]}' of {tensor} is not listed",
                argument=dims[0][1],
                hint="list every dimension once, in the new order",
            )
    elif tensor.rank < 2:
        raise OperatorError(f"transpose: {tensor} has no two dimensions to swap", argument=0)
    else:
        order = (*range(tensor.rank - 2), tensor.rank - 1, tensor.rank - 2)
    labels = unique(tensor.dims)
    result = [(labels[at], tensor.dims[at]) for at in order]
    return index_equation([(tensor, labels)], result, single("copy", Input(0)), None)
