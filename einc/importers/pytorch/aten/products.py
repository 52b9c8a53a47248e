"""Products of matrices."""

from __future__ import annotations

from collections.abc import Sequence

from einc.importers.arrays.elementwise import apply
from einc.importers.arrays.moving import unsqueeze
from einc.importers.arrays.products import einsum, matmul, multiply_rows
from einc.importers.arrays.values import Array
from einc.importers.pytorch.aten.elementwise import combine
from einc.importers.pytorch.aten.table import Call, aten


@aten("mm", "bmm", "mv", "matmul", "dot")
def convert_matmul(
    call: Call, self_: Array, mat2: Array | None = None, other_: Array | None = None, vec: Array | None = None,
    tensor: Array | None = None,
) -> Array:  # fmt: skip
    second = next(operand for operand in (mat2, other_, vec, tensor) if operand is not None)
    return matmul(call.program, self_, second, call.hint)


@aten("addmm", "baddbmm", "addmv")
def convert_addmm(
    call: Call, self_: Array, mat1: Array | None = None, mat2: Array | None = None, batch1: Array | None = None,
    batch2: Array | None = None, mat: Array | None = None, vec: Array | None = None, beta: float = 1, alpha: float = 1,
) -> Array:  # fmt: skip
    first = next(operand for operand in (mat1, batch1, mat) if operand is not None)
    second = next(operand for operand in (mat2, batch2, vec) if operand is not None)
    product = matmul(call.program, first, second, call.hint)
    if alpha != 1:
        product = combine(call, "mul", product, alpha)
    if beta == 0:
        return product
    return combine(call, "add", product, self_ if beta == 1 else combine(call, "mul", self_, beta))


@aten("linear")
def convert_linear(call: Call, input: Array, weight: Array, bias: Array | None = None) -> Array:
    """x w^T + b; the product reads the weight as it lies."""
    if weight.rank == 1:
        product = matmul(call.program, input, weight, call.hint)
    else:
        product = multiply_rows(call.program, input, weight, hint=call.hint)
    return product if bias is None else combine(call, "add", product, bias)


@aten("einsum")
def convert_einsum(call: Call, equation: str, tensors: list[Array], path: object = None) -> Array:
    return einsum(call.program, equation, tensors, call.hint)


@aten("outer")
def convert_outer(call: Call, self_: Array, vec2: Array) -> Array:
    column = unsqueeze(call.program, call.cast(self_), [1])
    return apply(call.program, "mul", column, call.cast(vec2), hint=call.hint)


@aten("_trilinear")
def convert_trilinear(
    call: Call, i1: Array, i2: Array, i3: Array, expand1: Sequence[int], expand2: Sequence[int],
    expand3: Sequence[int], sumdim: Sequence[int], unroll_dim: int = 1,
) -> Array:  # fmt: skip
    """Products of three arrays, each of which lacks some dimensions, summed over some: what `nn.Bilinear` computes."""
    letters = "abcdefgh"[: i1.rank + len(expand1)]
    operands = (expand1, expand2, expand3)
    terms = ["".join(letter for k, letter in enumerate(letters) if k not in missing) for missing in operands]
    result = "".join(letter for k, letter in enumerate(letters) if k not in sumdim)
    return einsum(call.program, f"{','.join(terms)}->{result}", [i1, i2, i3], call.hint)
