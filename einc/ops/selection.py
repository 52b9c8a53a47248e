"""The largest of a dimension: `argmax` finds the one largest element, `topk` the k largest, each with its index.

The larger value comes first, and of equal values the one with the smaller index; not-a-number counts as larger than any
number. Every dimension is shardable anywhere: partial results are tuples of indices and values, which are combined by
the operations of the same names. A block with fewer than k elements fills its list up with the least value of its
type and the index NOWHERE, which comes last.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, TypeVar

from einc.core.dtypes import DType
from einc.core.intervals import ShardableIndex
from einc.core.spec import FunctionSpec
from einc.core.tensor import TensorDesc
from einc.errors import OperatorError
from einc.ops.arguments import Argument, no_others, one_tensor, positions, unique
from einc.ops.base import Attributes, DimMap, KernelCall, MappedOperator, Merge, Operator
from einc.ops.literals import dimension, shown

if TYPE_CHECKING:
    from einc.ops.base import Array

_Item = TypeVar("_Item")

CALLS = ("argmax", "topk")
INTO = "k"
"""What the dimension of `topk` that counts the largest is called where the call does not say."""


class _Selection(MappedOperator):
    """What the two have in common: one tensor, and the dimension `axis` of it that is searched."""

    __slots__ = ()

    tensor: TensorDesc
    axis: int

    @property
    def inputs(self) -> tuple[TensorDesc, ...]:
        return (self.tensor,)

    @property
    def indices(self) -> tuple[ShardableIndex, ...]:
        return tuple(map(ShardableIndex, unique(self.tensor.dims), self.tensor.shape))

    @property
    def input_maps(self) -> tuple[tuple[DimMap, ...], ...]:
        return (tuple(map(DimMap, unique(self.tensor.dims))),)

    @property
    def output_maps(self) -> tuple[tuple[DimMap, ...], ...]:
        kept = tuple(DimMap(name) for at, name in enumerate(unique(self.tensor.dims)) if at != self.axis)
        return ((*kept, DimMap())[: self.outputs[0].rank],) * 2

    @property
    def aggregations(self) -> tuple[str, ...]:
        return (self.family, self.family)

    @property
    @abstractmethod
    def merges(self) -> tuple[Merge, ...]: ...

    @property
    def kernel(self) -> KernelCall:
        return KernelCall(self.family, (("axis", self.axis),))

    def flops(self, function: FunctionSpec) -> int:
        """A comparison per element."""
        return function.inputs[0].size


@dataclass(frozen=True, slots=True)
class Argmax(_Selection):
    """The index (i64) of the largest element along a dimension, and its value; the dimension goes away."""

    family: ClassVar[str] = "argmax"

    tensor: TensorDesc
    axis: int

    @property
    def outputs(self) -> tuple[TensorDesc, ...]:
        dims, shape = _without(self.tensor.dims, self.axis), _without(self.tensor.shape, self.axis)
        return (TensorDesc(dims, shape, DType.I64), TensorDesc(dims, shape, self.tensor.dtype))

    @property
    def attributes(self) -> Attributes:
        return {"axis": self.axis}

    @property
    def merges(self) -> tuple[Merge, ...]:
        own = tuple(range(self.tensor.rank - 1))
        return (Merge("argmax", (0, 1), (own, own)),)

    def reference(self, *arrays: Array) -> tuple[Array, ...]:
        order = _ranked(arrays[0], self.axis)[..., :1]
        return (order[..., 0], _at(arrays[0], self.axis, order)[..., 0])


@dataclass(frozen=True, slots=True)
class TopK(_Selection):
    """The `count` largest elements along a dimension, in descending order, and their indices (i64).

    They stand along a dimension `into`, the last one, in place of the one that is searched.
    """

    family: ClassVar[str] = "topk"

    tensor: TensorDesc
    axis: int
    count: int
    into: str

    @property
    def outputs(self) -> tuple[TensorDesc, ...]:
        dims = unique((*_without(self.tensor.dims, self.axis), self.into))
        shape = (*_without(self.tensor.shape, self.axis), self.count)
        return (TensorDesc(dims, shape, self.tensor.dtype), TensorDesc(dims, shape, DType.I64))

    @property
    def attributes(self) -> Attributes:
        return {"axis": self.axis, "count": self.count, "into": self.into}

    @property
    def merges(self) -> tuple[Merge, ...]:
        own = tuple(range(self.tensor.rank))
        return (Merge("topk", (0, 1), (own, own), whole=own[-1:]),)

    def reference(self, *arrays: Array) -> tuple[Array, ...]:
        order = _ranked(arrays[0], self.axis)[..., : self.count]
        return (_at(arrays[0], self.axis, order), order)


def _without(items: tuple[_Item, ...], at: int) -> tuple[_Item, ...]:
    return items[:at] + items[at + 1 :]


def _ranked(x: Array, axis: int) -> Array:
    """The positions along `axis`, moved to the end, from the largest element to the smallest."""
    import numpy as np

    moved = np.moveaxis(x, axis, -1)
    if moved.dtype.kind == "i":
        return np.argsort(~moved, axis=-1, kind="stable")  # ascending, and unlike -x never out of range
    wide = moved.astype(np.float64)
    return np.lexsort((-wide, ~np.isnan(wide)), axis=-1)  # stable


def _at(x: Array, axis: int, order: Array) -> Array:
    import numpy as np

    return np.take_along_axis(np.moveaxis(x, axis, -1), order, -1)


def call(name: str, arguments: Sequence[Argument], attributes: Attributes) -> Operator:
    """`argmax(x, "vocab")`, `topk(x, 5, "vocab")`, `topk(x, 5, over="experts", into="choice")`; where no dimension is
    named, the last one is searched."""
    if name == "argmax":
        tensor, over = one_tensor(name, arguments, attributes, "over")
        return _argmax(tensor, _axis(name, tensor, over, attributes))
    no_others(name, attributes, "over", "into")
    if len(arguments) < 2 or not isinstance(arguments[0], TensorDesc):
        raise OperatorError("topk takes a tensor and how many elements to find", hint='topk(x, 5, "dimension")')
    others = {key: value for key, value in attributes.items() if key == "over"}
    tensor, over = one_tensor(name, (arguments[0], *arguments[2:]), others, "over")
    count, into = arguments[1], attributes.get("into", INTO)
    if isinstance(count, TensorDesc) or not isinstance(count, int) or isinstance(count, bool):
        raise OperatorError("topk: how many elements to find must be an integer", argument=1)
    return _topk(tensor, _axis(name, tensor, over, attributes), count, dimension("topk", "into", into))


def _axis(name: str, tensor: TensorDesc, over: Sequence[str], attributes: Attributes) -> int:
    if len(over) > 1:
        raise OperatorError(f"{name} searches one dimension", argument="over" if "over" in attributes else None)
    return positions(name, "over", attributes, tensor, over)[0] if over else tensor.rank - 1


def restore_argmax(inputs: tuple[TensorDesc, ...], attributes: Attributes) -> Operator:
    """The argmax with these attributes; raises OperatorError where they make none."""
    axis = attributes.get("axis")
    if len(inputs) != 1 or not isinstance(axis, int) or isinstance(axis, bool):
        raise OperatorError("argmax has one input and the attribute axis")
    return _argmax(inputs[0], axis)


def restore_topk(inputs: tuple[TensorDesc, ...], attributes: Attributes) -> Operator:
    """The topk with these attributes; raises OperatorError where they make none."""
    axis, count, into = (attributes.get(key) for key in ("axis", "count", "into"))
    if (
        len(inputs) != 1
        or not isinstance(axis, int)
        or not isinstance(count, int)
        or isinstance(axis, bool)
        or isinstance(count, bool)
    ):
        raise OperatorError("topk has one input and the attributes axis, count and into")
    return _topk(inputs[0], axis, count, dimension("topk", "into", into))


def _argmax(tensor: TensorDesc, axis: int) -> Operator:
    _check("argmax", tensor, axis)
    return Argmax(tensor, axis)


def _topk(tensor: TensorDesc, axis: int, count: int, into: str) -> Operator:
    _check("topk", tensor, axis)
    extent = tensor.shape[axis]
    if not 1 <= count <= extent:
        message = f"topk: dimension '{tensor.dims[axis]}' has {extent} elements, not the {shown(count)} asked for"
        raise OperatorError(message, argument=1)
    return TopK(tensor, axis, count, into)


def _check(name: str, tensor: TensorDesc, axis: int) -> None:
    if not 0 <= axis < tensor.rank:
        raise OperatorError(f"{name}: {tensor} has no dimension {axis}", argument=0)
    if tensor.dtype is DType.BOOL:
        raise OperatorError(f"{name} does not take bool", argument=0, hint='convert it: cast(x, "i32")')
