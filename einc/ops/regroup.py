"""Dimension regrouping: the same elements in row-major order under other dimensions (a reshape).

Dimensions fall into groups, each a run of old ones and a run of new ones with equal numbers of elements. A group may
be cut between two positions of its leading dimensions where a cut stands on both sides, so that a block is a box
before and after: heads * d_head is cut between heads.
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
from einc.ops.arguments import Argument, tensors, unique
from einc.ops.base import Attributes, DimMap, KernelCall, MappedOperator, Operator
from einc.ops.literals import is_integer, shown

if TYPE_CHECKING:
    from einc.ops.base import Array

CALLS = ("regroup",)


@dataclass(frozen=True, slots=True)
class _Cut:
    """Where one group may be cut: the dimensions that lead it before and after, and how far each moves per position."""

    extent: int
    old: int
    old_scale: int
    new: int
    new_scale: int


@dataclass(frozen=True, slots=True)
class Regroup(MappedOperator):
    """One tensor, laid out anew with dimensions `dims` of extents `shape`."""

    family: ClassVar[str] = "regroup"

    tensor: TensorDesc
    dims: tuple[str, ...]
    shape: tuple[int, ...]

    @property
    def outputs(self) -> tuple[TensorDesc, ...]:
        return (TensorDesc(self.dims, self.shape, self.tensor.dtype),)

    @property
    def indices(self) -> tuple[ShardableIndex, ...]:
        cuts = _cuts(self.tensor.shape, self.shape)
        return tuple(ShardableIndex(n, cut.extent) for n, cut in zip(self._names(cuts), cuts, strict=True))

    @property
    def input_maps(self) -> tuple[tuple[DimMap, ...], ...]:
        cuts = _cuts(self.tensor.shape, self.shape)
        led = {cut.old: DimMap(n, cut.old_scale) for n, cut in zip(self._names(cuts), cuts, strict=True)}
        return (tuple(led.get(at, DimMap()) for at in range(self.tensor.rank)),)

    @property
    def output_maps(self) -> tuple[tuple[DimMap, ...], ...]:
        cuts = _cuts(self.tensor.shape, self.shape)
        led = {cut.new: DimMap(n, cut.new_scale) for n, cut in zip(self._names(cuts), cuts, strict=True)}
        return (tuple(led.get(at, DimMap()) for at in range(len(self.shape))),)

    @property
    def kernel(self) -> KernelCall:
        return KernelCall("regroup")

    def reference(self, *arrays: Array) -> tuple[Array, ...]:
        return (arrays[0].reshape(self.shape),)

    def flops(self, function: FunctionSpec) -> int:
        return 0

    def _names(self, cuts: Sequence[_Cut]) -> tuple[str, ...]:
        """An index that runs over every position of a leading dimension has its name, any other both names."""
        names = []
        for cut in cuts:
            old, new = self.tensor.dims[cut.old], self.dims[cut.new]
            names.append(new if cut.new_scale == 1 else old if cut.old_scale == 1 else f"{old}_{new}")
        return unique(names)


def _cuts(old: tuple[int, ...], new: tuple[int, ...]) -> tuple[_Cut, ...]:
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
            cuts.append(_Cut(extent, first, unit // inner, second, unit // other))
    return tuple(cuts)


def call(name: str, arguments: Sequence[Argument], attributes: Attributes) -> Operator:
    """`regroup(x, tokens=1024, heads=32, d_head=128)`: the new dimensions in order, with their extents."""
    (tensor,) = tensors(name, arguments, 1)
    for dim, extent in attributes.items():
        if not is_integer(extent) or extent < 1:
            raise OperatorError(
                f"regroup: the extent of dimension '{dim}' must be a positive integer, not {shown(extent)}",
                argument=dim,
            )
    return _regroup(tensor, tuple(attributes), tuple(filter(is_integer, attributes.values())))


def restore(inputs: tuple[TensorDesc, ...], attributes: Attributes) -> Operator:
    """The regrouping with these attributes; raises OperatorError where they make none."""
    dims, shape = attributes.get("dims"), attributes.get("shape")
    if len(inputs) != 1 or not isinstance(dims, tuple) or not isinstance(shape, tuple) or len(dims) != len(shape):
        raise OperatorError("regroup has one input and the attributes dims and shape")
    extents = tuple(extent for extent in shape if is_integer(extent) and extent > 0)
    if len(extents) != len(shape):
        raise OperatorError("regroup: extents must be positive integers")
    return _regroup(inputs[0], tuple(map(str, dims)), extents)


def _regroup(tensor: TensorDesc, dims: tuple[str, ...], shape: tuple[int, ...]) -> Operator:
    if math.prod(shape) != tensor.type.size:
        raise OperatorError(
            f"regroup: {tensor} has {tensor.type.size} elements, "
            f"[{', '.join(f'{d}={e}' for d, e in zip(dims, shape, strict=True))}] has {math.prod(shape)}",
            argument=0,
            hint="the new extents must multiply to the same number",
        )
    return Regroup(tensor, dims, shape)


FAMILIES = {Regroup.family: restore}
