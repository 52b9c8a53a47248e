"""Products of tokens with the experts that they pick: the weight's matrix differs from row to row.

Tokens, their slots, the rows of a matrix, its columns (which are summed) and experts are shardable anywhere. If experts
are cut, a function specification has some of them, and contributes zeros for all slots that picked others; these are
summed, as the parts of sums are if columns are cut. Only what tokens pick is computed, and costs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from einc.core.spec import FunctionSpec
from einc.core.tensor import TensorDesc
from einc.errors import OperatorError
from einc.ops.arguments import Argument, reject_others, require_tensors
from einc.ops.base import Attributes, Operator, find_product_precision
from einc.ops.derived import DerivedMappedOperator
from einc_runtime.plan.work import ExpertsWork

if TYPE_CHECKING:
    from einc.ops.base import Array

CALLS = ("expert_matmul",)


@dataclass(frozen=True, slots=True)
class ExpertMatmul(DerivedMappedOperator):
    """`y[tokens, slots, n] = sum over k of x[tokens, slots, k] * weight[picks[tokens, slots], n, k]`.

    `tensor` is x, which may lack the slots: then all of a token's experts read the same row.
    """

    family: ClassVar[str] = "expert_matmul"

    tensor: TensorDesc
    weight: TensorDesc
    picks: TensorDesc

    def reference(self, *arrays: Array) -> tuple[Array, ...]:
        """Expert after expert, each with the rows that picked it."""
        import numpy as np

        from einc.ops.evaluate import find_accumulating_dtype

        x, weight, picks = arrays
        wide = find_accumulating_dtype(self.tensor.dtype)
        rows = np.broadcast_to(x if x.ndim == 3 else x[:, None], (*picks.shape, x.shape[-1]))
        result = np.zeros((*picks.shape, weight.shape[1]), wide)
        for expert in np.unique(picks):
            picked = picks == expert
            result[picked] = rows[picked].astype(wide) @ weight[expert].astype(wide).T
        return (result.astype(x.dtype),)

    def flops(self, function: FunctionSpec) -> int:
        """A product and a sum for each element that is picked: of some of the experts, as large a part of all picks,
        rounded up."""
        weight, picks = function.inputs[1:]
        experts, rows, summed = weight.shape
        return -(-2 * picks.size * rows * summed * experts // self.weight.shape[0])

    def traffic(self, function: FunctionSpec) -> int:
        """The picks, the rows and the results, and the matrices of as many experts as there can be picks of these."""
        x, weight, picks = function.inputs
        experts, rows, summed = weight.shape
        read = min(experts, -(-picks.size * experts // self.weight.shape[0]))
        elements = x.size + function.outputs[0].size + read * rows * summed
        return elements * self.tensor.dtype.itemsize + picks.size * self.picks.dtype.itemsize

    def work(self, function: FunctionSpec) -> ExpertsWork:
        """Of some of the experts, as large a part of all picks, rounded up."""
        weight, picks = function.inputs[1:]
        experts, rows, summed = weight.shape
        return ExpertsWork(experts, -(-picks.size * experts // self.weight.shape[0]), rows, summed)

    @property
    def precision(self) -> str:
        return find_product_precision(self.tensor)

    def fan_in(self, k: int) -> int:
        return self.weight.shape[2]


def call(name: str, arguments: Sequence[Argument], attributes: Attributes) -> Operator:
    """`expert_matmul(x, weight, picks)`."""
    reject_others(name, attributes)
    return restore(require_tensors(name, arguments, 3), attributes)


def restore(inputs: tuple[TensorDesc, ...], attributes: Attributes) -> Operator:
    """The product of these tensors; raises OperatorError if there is none."""
    if len(inputs) != 3:
        raise OperatorError("expert_matmul has three inputs: a tensor, the experts' weight, and the picks")
    tensor, weight, picks = inputs
    if not picks.dtype.is_integer or picks.rank != 2:
        raise OperatorError(
            f"expert_matmul: the picks are {picks}, expected integers in two dimensions: tokens, slots",
            argument=2,
            hint="values, picks = topk(scores, 2)",
        )
    if not weight.dtype.is_float or weight.rank != 3:
        raise OperatorError(
            f"expert_matmul: the weight is {weight}, expected floats in three dimensions: experts, rows, columns",
            argument=1,
        )
    leading = [picks.shape[:1], picks.shape]
    if tensor.dtype is not weight.dtype or tensor.shape not in [(*extents, weight.shape[2]) for extents in leading]:
        tokens, slots = (f"{name}={extent}" for name, extent in zip(picks.dims, picks.shape, strict=True))
        summed = f"{weight.dims[2]}={weight.shape[2]}"
        raise OperatorError(
            f"expert_matmul: the tensor is {tensor}, expected {weight.dtype}[{tokens}, {summed}] or "
            f"{weight.dtype}[{tokens}, {slots}, {summed}]",
            argument=0,
        )
    return ExpertMatmul(tensor, weight, picks)


FAMILIES = {ExpertMatmul.family: restore}
