"""Matrix multiplication by position (paper, Examples 1 to 3): indices i, j, k, with batch indices b0, b1, ... first."""

from __future__ import annotations

from collections.abc import Sequence

from einc.errors import OperatorError
from einc.ops.arguments import Argument, no_others, tensors, unique
from einc.ops.base import Attributes, Operator
from einc.ops.equation import index_equation
from einc.ops.scalar import Input, single

CALLS = ("matmul",)


def call(name: str, arguments: Sequence[Argument], attributes: Attributes) -> Operator:
    """`matmul(a, b)`: the last dimension of a with the second-last of b.

    Leading dimensions are batch dimensions: both operands have the same, by position, or one of them has none.
    """
    no_others(name, attributes)
    a, b = tensors(name, arguments, 2)
    for position, operand in enumerate((a, b)):
        if operand.rank < 2:
            raise OperatorError(
                f"matmul: operand {position + 1} must have two or more dimensions, not {operand}",
                argument=position,
                hint="use an index equation: y[i] = a[i, j] * b[j]",
            )
    if a.shape[-1] != b.shape[-2]:
        raise OperatorError(
            f"matmul: dimension '{b.dims[-2]}' of operand 2 is {b.shape[-2]}, expected {a.shape[-1]} as "
            f"'{a.dims[-1]}', the last of operand 1",
            argument=1,
            hint="the last dimension of operand 1 meets the second-last of operand 2; transpose one of them?",
        )
    if a.rank > 2 and b.rank > 2 and a.shape[:-2] != b.shape[:-2]:
        raise OperatorError(
            f"matmul: batch dimensions differ: {list(a.shape[:-2])} of operand 1, {list(b.shape[:-2])} of operand 2",
            argument=1,
            hint="all dimensions before the last two must agree by position, or one operand has none",
        )
    batch_desc = a if a.rank > 2 else b
    batch = tuple(f"b{n}" for n in range(batch_desc.rank - 2))
    labels_a = (*(batch if a.rank > 2 else ()), "i", "j")
    labels_b = (*(batch if b.rank > 2 else ()), "j", "k")
    dims = unique([*batch_desc.dims[:-2], a.dims[-2], b.dims[-1]])
    return index_equation(
        [(a, labels_a), (b, labels_b)],
        list(zip((*batch, "i", "k"), dims, strict=True)),
        single("mul", Input(0), Input(1)),
        "sum",
    )
