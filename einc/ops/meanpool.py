"""The mean of every packed sequence over those of its tokens for which a mask holds.

Columns are shardable anywhere, tokens between sequences: each mean is computed in one place.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from einc.core.spec import FunctionSpec
from einc.core.tensor import DType, TensorDesc
from einc.errors import OperatorError
from einc.ops.arguments import (
    Argument,
    compute_ends,
    read_dimension,
    read_lengths,
    reject_others,
    require_tensors,
)
from einc.ops.base import Attributes, Operator
from einc.ops.derived import DerivedMappedOperator

if TYPE_CHECKING:
    from einc.ops.base import Array

CALLS = ("meanpool",)
SEQUENCES = "sequences"
"""The default name of the result's dimension of sequences."""


@dataclass(frozen=True, slots=True)
class MeanPool(DerivedMappedOperator):
    """`tensor` [tokens, columns] and `mask` [tokens] to [sequences, columns]; zeros if the mask holds for no token."""

    family: ClassVar[str] = "meanpool"

    tensor: TensorDesc
    mask: TensorDesc
    seq_lens: tuple[int, ...]
    into: str

    def reference(self, *arrays: Array) -> tuple[Array, ...]:
        import numpy as np

        from einc.ops.evaluate import find_accumulating_dtype

        x, mask = arrays
        result = np.zeros(self.outputs[0].shape, find_accumulating_dtype(self.tensor.dtype))
        for number, (end, length) in enumerate(zip(compute_ends(self.seq_lens), self.seq_lens, strict=True)):
            chosen = x[end - length : end][mask[end - length : end]]
            if len(chosen):
                result[number] = chosen.astype(result.dtype).mean(axis=0)
        return (result.astype(x.dtype),)

    def flops(self, function: FunctionSpec) -> int:
        return function.inputs[0].size


def call(name: str, arguments: Sequence[Argument], attributes: Attributes) -> Operator:
    """`meanpool(x, mask, seq_lens=[5, 3], into="sentences")`."""
    reject_others(name, attributes, "seq_lens", "into")
    return restore(require_tensors(name, arguments, 2), attributes)


def restore(inputs: tuple[TensorDesc, ...], attributes: Attributes) -> Operator:
    """The operator with these attributes; raises OperatorError if they are not those of a mean."""
    if len(inputs) != 2:
        raise OperatorError("meanpool has two inputs, a tensor and a mask")
    tensor, mask = inputs
    if tensor.rank != 2 or not tensor.dtype.is_float:
        raise OperatorError(f"meanpool: expected floats [tokens, columns], found {tensor}", argument=0)
    tokens, columns = tensor.dims
    if mask.dtype is not DType.BOOL or mask.shape != tensor.shape[:1]:
        raise OperatorError(
            f"meanpool: the mask is {mask}, expected bool[{tokens}={tensor.shape[0]}], true for what counts", argument=1
        )
    into = read_dimension("meanpool", "into", attributes.get("into", SEQUENCES))
    if into == columns:
        raise OperatorError(f"meanpool: 'into' must be a name other than '{columns}', not {into!r}", argument="into")
    return MeanPool(tensor, mask, read_lengths("meanpool", attributes, "seq_lens", tensor.shape[0], tokens), into)


FAMILIES = {MeanPool.family: restore}
