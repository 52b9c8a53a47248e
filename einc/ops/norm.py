"""Normalization of the last dimension, which stays whole; every other dimension is shardable anywhere.

`rmsnorm` divides by the root of the mean square, and may multiply with a gain; `layernorm` subtracts the mean first,
and may add a bias last. An offset, which some models subtract from a gain before storing it, is added in the precision
of the computation.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from einc.core.spec import FunctionSpec
from einc.core.tensor import TensorDesc
from einc.errors import OperatorError
from einc.ops.arguments import Argument, read_number, reject_others, require_tensors
from einc.ops.base import Attributes, Operator
from einc.ops.derived import DerivedMappedOperator, restore_fields

if TYPE_CHECKING:
    from einc.ops.base import Array

CALLS = ("rmsnorm", "layernorm")
_OPERANDS = {"rmsnorm": ("x", "gain"), "layernorm": ("x", "gain", "bias")}
"""Those behind the first may be left out, the last one first."""
EPS = 1e-5
"""The default of PyTorch, and of most published models."""


@dataclass(frozen=True, slots=True)
class Norm(DerivedMappedOperator):
    """The first operand, normalized along its last dimension, times the sum of gain and offset, plus the bias, if there
    are these."""

    family: ClassVar[str] = "norm"

    kind: str
    operands: tuple[TensorDesc, ...]
    eps: float
    offset: float = 0.0

    @property
    def attributes(self) -> Attributes:
        return {"kind": self.kind, **self._numbers()}

    def _numbers(self) -> Attributes:
        return {"eps": self.eps, **({"offset": self.offset} if self.offset else {})}

    @property
    def title(self) -> str:
        return self.kind

    def reference(self, *arrays: Array) -> tuple[Array, ...]:
        import numpy as np

        from einc.ops.evaluate import find_accumulating_dtype

        x, *vectors = (array.astype(find_accumulating_dtype(self.operands[0].dtype)) for array in arrays)
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
        """Square, sum, quotient and gain; centering and the bias take three more."""
        return (4 if self.kind == "rmsnorm" else 7) * function.inputs[0].size


def call(name: str, arguments: Sequence[Argument], attributes: Attributes) -> Operator:
    """`rmsnorm(x, gain, eps=1e-5, offset=1.0)`, `layernorm(x, gain, bias, eps=1e-5)`, both also without vectors."""
    reject_others(name, attributes, "eps", "offset")
    kind, operands = name, require_tensors(name, arguments, min(max(len(arguments), 1), len(_OPERANDS[name])))
    tensor = operands[0]
    if not tensor.dtype.is_float:
        raise OperatorError(f"{kind} does not take {tensor.dtype}", argument=0, hint='convert it: cast(x, "f32")')
    if tensor.rank == 0:
        raise OperatorError(f"{kind}: {tensor} has no dimension to normalize", argument=0)
    if len(operands) == 1 and "offset" in attributes:
        raise OperatorError(f"{kind}: an offset is added to a gain, and there is none", argument="offset")
    for position, (label, operand) in enumerate(zip(_OPERANDS[kind], operands, strict=False)):
        if operand.dtype is not tensor.dtype:
            raise OperatorError(
                f"{kind}: the {label} is {operand.dtype}, expected {tensor.dtype} as the tensor",
                argument=position,
                hint=f'convert it: cast(g, "{tensor.dtype}")',
            )
        if position and operand.shape != tensor.shape[-1:]:
            raise OperatorError(
                f"{kind}: the {label} is {operand}, expected one dimension of {tensor.shape[-1]} as "
                f"'{tensor.dims[-1]}', the last of the tensor",
                argument=position,
            )
    eps, offset = (
        read_number(kind, attributes, "eps", EPS, above=0),
        read_number(kind, attributes, "offset", 0.0, above=-math.inf),
    )
    return Norm(kind, operands, eps, offset)


FAMILIES = {Norm.family: restore_fields(Norm)}
