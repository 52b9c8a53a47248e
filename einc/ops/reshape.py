"""Reshape: the same elements in row-major order under other dimensions.

The dimensions fall into groups: each group is a run of old dimensions and a run of new ones that have equally many
elements. A group may be cut at the positions of its leading dimensions that are boundaries both before and after, so
that a block is a box on both sides: heads * d_head is cut between heads.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from einc.core.intervals import ShardableIndex
from einc.core.spec import FunctionSpec
from einc.core.tensor import TensorDesc
from einc.errors import OperatorError
from einc.ops.arguments import Argument, format_value, is_integer, make_unique, require_tensors
from einc.ops.base import Attributes, DimMap, KernelCall, MappedOperator, Operator

if TYPE_CHECKING:
    from einc.ops.base import Array

CALLS = ("reshape",)

_USAGE = "name the new dimensions, with their extents: reshape(x, rows=4, columns=5)"


@dataclass(frozen=True, slots=True)
class _ReshapeCut:
    """How one group may be cut: its leading dimensions before and after, and their positions per interval position."""

    extent: int
    old: int
    old_scale: int
    new: int
    new_scale: int


@dataclass(frozen=True, slots=True)
class Reshape(MappedOperator):
    """One tensor under new dimensions `dims` with extents `shape`."""

    family: ClassVar[str] = "reshape"

    tensor: TensorDesc
    dims: tuple[str, ...]
    shape: tuple[int, ...]

    @property
    def outputs(self) -> tuple[TensorDesc, ...]:
        return (TensorDesc(self.dims, self.shape, self.tensor.dtype),)

    @property
    def indices(self) -> tuple[ShardableIndex, ...]:
        cuts = _find_cuts(self.tensor.shape, self.shape)
        return tuple(ShardableIndex(n, cut.extent) for n, cut in zip(self._names(cuts), cuts, strict=True))

    @property
    def input_maps(self) -> tuple[tuple[DimMap, ...], ...]:
        cuts = _find_cuts(self.tensor.shape, self.shape)
        led = {cut.old: DimMap(n, cut.old_scale) for n, cut in zip(self._names(cuts), cuts, strict=True)}
        return (tuple(led.get(at, DimMap()) for at in range(self.tensor.rank)),)

    @property
    def output_maps(self) -> tuple[tuple[DimMap, ...], ...]:
        cuts = _find_cuts(self.tensor.shape, self.shape)
        led = {cut.new: DimMap(n, cut.new_scale) for n, cut in zip(self._names(cuts), cuts, strict=True)}
        return (tuple(led.get(at, DimMap()) for at in range(len(self.shape))),)

    @property
    def kernel(self) -> KernelCall:
        return KernelCall("reshape")

    def reference(self, *arrays: Array) -> tuple[Array, ...]:
        return (arrays[0].reshape(self.shape),)

    def flops(self, function: FunctionSpec) -> int:
        return 0

    def _names(self, cuts: Sequence[_ReshapeCut]) -> tuple[str, ...]:
        """The name of each index: that of the dimension whose every position it runs over, else the names of both."""
        names = []
        for cut in cuts:
            old, new = self.tensor.dims[cut.old], self.dims[cut.new]
            names.append(new if cut.new_scale == 1 else old if cut.old_scale == 1 else f"{old}_{new}")
        return make_unique(names)


def _find_cuts(old: tuple[int, ...], new: tuple[int, ...]) -> tuple[_ReshapeCut, ...]:
    """The groups of two shapes of equal size that can be cut at all; dimensions of extent 1 belong to none."""
    left = [at for at, extent in enumerate(old) if extent > 1]
    right = [at for at, extent in enumerate(new) if extent > 1]
    cuts = []
    while left:
        first, second = left.pop(0), right.pop(0)
        inner, other = 1, 1  # elements per position of the leading dimensions
        while old[first] * inner != new[second] * other:
            if old[first] * inner < new[second] * other:
                inner *= old[left.pop(0)]
            else:
                other *= new[right.pop(0)]
        unit = math.lcm(inner, other)
        extent = old[first] * inner // unit
        if extent > 1:
            cuts.append(_ReshapeCut(extent, first, unit // inner, second, unit // other))
    return tuple(cuts)


def call(name: str, arguments: Sequence[Argument], attributes: Attributes) -> Operator:
    """`reshape(x, tokens=1024, heads=32, d_head=128)`: the new dimensions in order, with their extents."""
    if len(arguments) > 1:
        raise OperatorError(f"{name} takes one tensor, not {len(arguments)} arguments", argument=1, hint=_USAGE)
    (tensor,) = require_tensors(name, arguments, 1)
    for dim, extent in attributes.items():
        if not is_integer(extent) or extent < 1:
            raise OperatorError(
                f"{name}: the extent of dimension '{dim}' must be a positive integer, not {format_value(extent)}",
                argument=dim,
            )
    return _make_reshape(name, tensor, tuple(attributes), tuple(filter(is_integer, attributes.values())))


def restore(inputs: tuple[TensorDesc, ...], attributes: Attributes) -> Operator:
    """The reshape with these attributes; raises OperatorError where they are not those of a reshape."""
    dims, shape = attributes.get("dims"), attributes.get("shape")
    if len(inputs) != 1 or not isinstance(dims, tuple) or not isinstance(shape, tuple) or len(dims) != len(shape):
        raise OperatorError("reshape has one input and the attributes dims and shape")
    extents = tuple(extent for extent in shape if is_integer(extent) and extent > 0)
    if len(extents) != len(shape):
        raise OperatorError("reshape: extents must be positive integers")
    return _make_reshape("reshape", inputs[0], tuple(map(str, dims)), extents)


def _make_reshape(name: str, tensor: TensorDesc, dims: tuple[str, ...], shape: tuple[int, ...]) -> Operator:
    if math.prod(shape) != tensor.type.size:
        raise OperatorError(
            f"{name}: {tensor} has {tensor.type.size} elements, "
            f"[{', '.join(f'{d}={e}' for d, e in zip(dims, shape, strict=True))}] has {math.prod(shape)}",
            argument=0,
            hint="the new extents must multiply to the same number",
        )
    return Reshape(tensor, dims, shape)


FAMILIES = {Reshape.family: restore}
