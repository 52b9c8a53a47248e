"""Operators on rows, which stay whole; every other dimension is shardable anywhere: softmax, and norms.

`softmax` goes along one dimension, the norms along the last. `rmsnorm` divides by the root of the mean square, and may
multiply with a gain; `layernorm` subtracts the mean first, and may add a bias last. An offset, which some models
subtract from a gain before storing it, is added in the precision of the computation.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from einc.core.spec import FunctionSpec
from einc.core.tensor import Array, TensorDesc
from einc.errors import OperatorError
from einc.ops.arguments import Argument, find_axis, read_number, reject_others, require_tensors, take_tensor_and_names
from einc.ops.base import Attributes, Operator
from einc.ops.derived import DerivedMappedOperator, restore_fields

CALLS = ("softmax", "rmsnorm", "layernorm")
_OPERANDS = {"rmsnorm": ("x", "gain"), "layernorm": ("x", "gain", "bias")}
"""Those behind the first may be left out, the last one first."""
_ROW_OPERATIONS = {"softmax": 5, "rmsnorm": 4, "layernorm": 7}
"""Per element: maximum, difference, exponential, sum and quotient; square, sum, quotient and gain; centering and the
bias take three more."""
EPS = 1e-5
"""The default of PyTorch, and of most published models."""


@dataclass(frozen=True, slots=True)
class RowOperator(DerivedMappedOperator):
    """The softmax of the first operand along `axis`; or its rows normalized, with `eps` added to the mean square, times
    the sum of gain and `offset`, plus the bias, if there are these."""

    family: ClassVar[str] = "rows"

    kind: str
    operands: tuple[TensorDesc, ...]
    axis: int
    eps: float = 0.0
    offset: float = 0.0

    @property
    def attributes(self) -> Attributes:
        eps: Attributes = {"eps": self.eps} if self.eps else {}
        offset: Attributes = {"offset": self.offset} if self.offset else {}
        return {"kind": self.kind, "axis": self.axis, **eps, **offset}

    @property
    def title(self) -> str:
        return self.kind

    def reference(self, *arrays: Array) -> tuple[Array, ...]:
        import numpy as np

        from einc.ops.evaluate import find_accumulating_dtype

        x, *vectors = (array.astype(find_accumulating_dtype(self.operands[0].dtype)) for array in arrays)
        if self.kind == "softmax":
            powers = np.exp(x - x.max(axis=self.axis, keepdims=True))
            return ((powers / powers.sum(axis=self.axis, keepdims=True)).astype(arrays[0].dtype),)
        if self.kind == "layernorm":
            x = x - x.mean(axis=-1, keepdims=True)
        result = x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + self.eps)
        for gain in vectors[:1]:
            result = result * (gain + self.offset)
        for bias in vectors[1:]:
            result = result + bias
        return (result.astype(arrays[0].dtype),)

    @property
    def costs_by_shape(self) -> bool:
        return True

    def flops(self, function: FunctionSpec) -> int:
        return _ROW_OPERATIONS[self.kind] * function.inputs[0].size


def call(name: str, arguments: Sequence[Argument], attributes: Attributes) -> Operator:
    """`softmax(scores, "keys")`, without a name over the last dimension; `rmsnorm(x, gain, eps=1e-5, offset=1.0)`,
    `layernorm(x, gain, bias, eps=1e-5)`, both also without vectors."""
    if name == "softmax":
        reject_others(name, attributes, "over")
        tensor, over = take_tensor_and_names(name, arguments, attributes, "over")
        _require_float(name, tensor)
        return RowOperator(name, (tensor,), find_axis(name, tensor, over))
    reject_others(name, attributes, "eps", "offset")
    operands = require_tensors(name, arguments, min(max(len(arguments), 1), len(_OPERANDS[name])))
    tensor = operands[0]
    _require_float(name, tensor)
    if tensor.rank == 0:
        raise OperatorError(f"{name}: {tensor} has no dimension to normalize", argument=0)
    if len(operands) == 1 and "offset" in attributes:
        raise OperatorError(f"{name}: an offset is added to a gain, and there is none", argument="offset")
    for position, (label, operand) in enumerate(zip(_OPERANDS[name], operands, strict=False)):
        if operand.dtype is not tensor.dtype:
            raise OperatorError(
                f"{name}: the {label} is {operand.dtype}, expected {tensor.dtype} as the tensor",
                argument=position,
                hint=f'convert it: cast(g, "{tensor.dtype}")',
            )
        if position and operand.shape != tensor.shape[-1:]:
            raise OperatorError(
                f"{name}: the {label} is {operand}, expected one dimension of {tensor.shape[-1]} as "
                f"'{tensor.dims[-1]}', the last of the tensor",
                argument=position,
            )
    eps = read_number(name, attributes, "eps", EPS, above=0)
    offset = read_number(name, attributes, "offset", 0.0, above=-math.inf)
    return RowOperator(name, operands, tensor.rank - 1, eps, offset)


def _require_float(name: str, tensor: TensorDesc) -> None:
    if not tensor.dtype.is_float:
        raise OperatorError(f"{name} does not take {tensor.dtype}", argument=0, hint='convert it: cast(x, "f32")')


FAMILIES = {RowOperator.family: restore_fields(RowOperator)}
