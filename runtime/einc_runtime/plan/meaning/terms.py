"""The terms in which families are described: an application of one to tensors, and what it means for a plan."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Protocol, TypeVar

from einc_runtime.errors import PlanFault
from einc_runtime.plan.element_types import DTypeName
from einc_runtime.plan.schema import FLOATS as FLOATS
from einc_runtime.plan.schema import INTEGERS as INTEGERS
from einc_runtime.plan.schema import MAX_RANK as MAX_RANK
from einc_runtime.plan.schema import Attribute, Block, Function, JointAggregation, Scalar
from einc_runtime.text import escape_text

MAX_INDEX_VECTORS = 1 << 62
"""Index vectors, also those of all equations at all steps, are counted in 64 bits."""
MAX_TOTAL_LENGTH = 1 << 62
"""Sums of lengths stay below it, so that no kernel overflows."""

Interval = tuple[int, int]
Value = TypeVar("Value", bound=Scalar)


@dataclass(frozen=True, slots=True)
class TensorForm:
    """What is known of a tensor without its data: names and extents of its dimensions, and its element type."""

    dims: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: DTypeName

    @property
    def rank(self) -> int:
        return len(self.shape)

    def __str__(self) -> str:
        inner = ", ".join(f"{name}={extent}" for name, extent in zip(self.dims, self.shape, strict=True))
        return f"{self.dtype}[{inner}]"


@dataclass(frozen=True, slots=True)
class IndexForm:
    """An index along which an operation is cut. `cuts` are the positions where it may be; None means anywhere."""

    name: str
    extent: int
    cuts: tuple[int, ...] | None = None


def keep(lower: int, upper: int) -> Interval:
    """The bounds of a dimension that has the positions of its index."""
    return lower, upper


@dataclass(frozen=True, slots=True)
class BlockAxis:
    """One dimension of a block: `bounds` of the interval of index `index` (a position). Without one it is whole."""

    index: int | None = None
    bounds: Callable[[int, int], Interval] = keep

    def interval(self, chosen: Sequence[Interval], extent: int) -> Interval:
        """What a function has of a dimension of this extent, whose intervals are `chosen`."""
        return (0, extent) if self.index is None else self.bounds(*chosen[self.index])


class DerivedAxis(Protocol):
    """A dimension of a block whose bounds follow from the intervals of several indices."""

    @property
    def index(self) -> int | None: ...

    def interval(self, chosen: Sequence[Interval], extent: int) -> Interval: ...


Axes = tuple[DerivedAxis, ...]
WHOLE = BlockAxis()


def shifted(index: int, offset: int) -> BlockAxis:
    """A dimension in which the index starts at position `offset`."""
    return BlockAxis(index, lambda lower, upper: (lower + offset, upper + offset)) if offset else BlockAxis(index)


def scaled(index: int, factor: int) -> BlockAxis:
    """A dimension that has `factor` positions for each one of the index."""
    return BlockAxis(index, lambda lower, upper: (lower * factor, upper * factor)) if factor != 1 else BlockAxis(index)


@dataclass(frozen=True, slots=True)
class OperatorMeaning:
    """What a plan must say of an operation, apart from its cut.

    `inputs` and `outputs` say for each tensor which block a function has of it. Where this does not follow from the
    intervals alone, `require_functions` checks the functions in place of them, and `partial` are the indices whose cuts
    make partial outputs.
    """

    kernel: str
    attributes: dict[str, Attribute]
    results: tuple[TensorForm, ...]
    indices: tuple[IndexForm, ...]
    inputs: tuple[Axes, ...] = ()
    outputs: tuple[Axes, ...] = ()
    aggregations: tuple[str, ...] = ("sum",)
    joint_aggregations: tuple[JointAggregation, ...] = ()
    partial: tuple[int, ...] = ()
    require_functions: Callable[[Sequence[tuple[Interval, ...]], Sequence[Function]], None] | None = field(
        default=None, compare=False
    )


@dataclass(frozen=True, slots=True)
class Application:
    """An operator family applied to tensors. Its methods raise PlanFault where the attributes are not the family's."""

    family: str
    inputs: tuple[TensorForm, ...]
    attributes: dict[str, Attribute]

    def require(self, condition: bool, message: str) -> None:
        if not condition:
            raise PlanFault(f"{escape_text(self.family, 40)}: {message}")

    def allow(self, required: Sequence[str], optional: Sequence[str] = ()) -> None:
        """Raises PlanFault unless the attributes are these."""
        missing = [name for name in required if name not in self.attributes]
        self.require(not missing, f"the attribute '{', '.join(missing)}' is missing")
        unknown = sorted(set(self.attributes) - {*required, *optional})
        self.require(not unknown, f"it has no attribute '{escape_text(', '.join(unknown), 60)}'")

    def operands(self, count: int) -> tuple[TensorForm, ...]:
        """The inputs, which must be `count` many."""
        self.require(len(self.inputs) == count, f"it has {count} inputs, found {len(self.inputs)}")
        return self.inputs

    def value(self, name: str, kind: type[Value]) -> Value:
        """An attribute of this very type: a bool is no integer, and an integer no float."""
        value = self.attributes[name]
        if type(value) is not kind:
            raise PlanFault(f"{self.family}: the attribute '{name}' should be {kind.__name__}")
        return value

    def number(self, name: str, above: float = 0.0) -> float:
        """A finite float greater than `above`."""
        value = self.value(name, float)
        self.require(above < value < math.inf, f"the attribute '{name}' is {value}")
        return value

    def items(self, name: str, kind: type[Value]) -> tuple[Value, ...]:
        """A list of values of this very type."""
        values = self.attributes[name]
        typed = [value for value in values if type(value) is kind] if isinstance(values, list) else []
        self.require(typed == values, f"the attribute '{name}' should be a list of {kind.__name__}")
        return tuple(typed)

    def lengths(self, name: str, total: int) -> tuple[int, ...]:
        """A list of positive integers that add up to `total`."""
        lengths = self.items(name, int)
        fit = min(lengths, default=0) > 0 and sum(lengths) == total
        self.require(fit, f"the attribute '{name}' should be lengths that add up to {total}")
        return lengths

    def axis(self, tensor: TensorForm) -> int:
        """The attribute `axis`, a dimension of the tensor."""
        axis = self.value("axis", int)
        self.require(0 <= axis < tensor.rank, f"axis {axis} of a tensor of {tensor.rank} dimensions")
        return axis


def block_of(axes: Axes, shape: Sequence[int], chosen: Sequence[Interval]) -> Block:
    """The block of a tensor that a function has whose intervals are `chosen`."""
    bounds = [axis.interval(chosen, extent) for axis, extent in zip(axes, shape, strict=True)]
    return Block(tuple(lower for lower, _ in bounds), tuple(upper for _, upper in bounds))


def direct(indices: Sequence[int]) -> tuple[BlockAxis, ...]:
    """Dimensions that are these indices."""
    return tuple(map(BlockAxis, indices))


def unique_names(names: Sequence[str]) -> tuple[str, ...]:
    """The names, where the second of two equal ones gets `_2`, the third `_3`, unless that is a name as well."""
    unique: list[str] = []
    for name in names:
        numbered = (f"{name}_{number}" for number in itertools.count(2))
        candidates = (candidate for candidate in numbered if candidate not in unique and candidate not in names)
        unique.append(name if name not in unique else next(candidates))
    return tuple(unique)


def indices_along(tensor: TensorForm) -> tuple[IndexForm, ...]:
    """One index per dimension."""
    return tuple(map(IndexForm, unique_names(tensor.dims), tensor.shape))


@lru_cache(maxsize=256)
def ends_of(lengths: tuple[int, ...]) -> tuple[int, ...]:
    """Where each of the sequences ends that are packed one after the other."""
    return tuple(itertools.accumulate(lengths))
