"""Operators that stand for another one: for one of several equal parts of the batch, or with results that have the same
bits however they are cut.

A search plans one part where a plan computes part after part. Along one of its indices, an operator is cut into equal
parts. The first of them is an operator by itself: its tensors are the blocks that the first part reads and writes, and
its cuts are those of the whole operator inside of this part. The other parts are cut in the same way.

A sum has other bits in another order. So an index along which partial results would be combined is not cut, unless they
are only compared; and kernels compute every element in one order, wherever it lies (docs/reproducible.md).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod
from typing import ClassVar

from einc.core.intervals import Interval, Intervals, ShardableIndex
from einc.core.spec import FunctionSpec, JoinAggSpec
from einc.core.tensor import Array, TensorDesc, TensorType
from einc.ops.base import Attributes, KernelCall, Operator
from einc_runtime.plan.reproducible import ATTRIBUTE, ORDERLESS
from einc_runtime.plan.schema import JointAggregation
from einc_runtime.plan.work import Work


@dataclass(frozen=True, slots=True)
class WrappingOperator(Operator):
    """What the operator `plain` is, where a class that derives from this one does not say otherwise."""

    plain: Operator

    @property
    def title(self) -> str:
        return self.plain.title

    @property
    def inputs(self) -> tuple[TensorDesc, ...]:
        return self.plain.inputs

    @property
    def outputs(self) -> tuple[TensorDesc, ...]:
        return self.plain.outputs

    @property
    def attributes(self) -> Attributes:
        return self.plain.attributes

    @property
    def aggregations(self) -> tuple[str, ...]:
        return self.plain.aggregations

    @property
    def joint_aggregations(self) -> tuple[JointAggregation, ...]:
        return self.plain.joint_aggregations

    @property
    def memory_orders(self) -> tuple[tuple[int, ...] | None, ...]:
        return self.plain.memory_orders

    def flops(self, function: FunctionSpec) -> int:
        return self.plain.flops(function)

    def apply_to(self, inputs: Sequence[str]) -> Operator:
        plain = self.plain.apply_to(inputs)
        return self if plain is self.plain else replace(self, plain=plain)

    def traffic(self, function: FunctionSpec) -> int:
        return self.plain.traffic(function)

    def work(self, function: FunctionSpec) -> Work | None:
        return self.plain.work(function)

    @property
    def precision(self) -> str:
        return self.plain.precision

    def fan_in(self, k: int) -> int:
        return self.plain.fan_in(k)


@dataclass(frozen=True, slots=True)
class BatchPart(WrappingOperator):
    """The first of `parts` parts of the operator `plain` along its index at position `index`.

    `find_parts_fault` has found no fault with these parts. It stands in no plan file: plans have the operator `plain`
    with the cuts of all parts (`spread_intervals`).
    """

    family: ClassVar[str] = "batch_part"

    index: int
    parts: int

    @property
    def inputs(self) -> tuple[TensorDesc, ...]:
        return tuple(map(_restrict, self.plain.inputs, self._first.inputs))

    @property
    def outputs(self) -> tuple[TensorDesc, ...]:
        return tuple(map(_restrict, self.plain.outputs, self._first.outputs))

    @property
    def _first(self) -> FunctionSpec:
        return build_parts(self.plain, self.index, self.parts)[0]

    @property
    def indices(self) -> tuple[ShardableIndex, ...]:
        return _restrict_indices(self.plain, self.index, self.parts)

    def build_spec(self, intervals: Intervals) -> JoinAggSpec:
        spec = self.plain.build_spec(self.spread_intervals(intervals))
        count, inner = len(intervals[self.index]), prod(map(len, intervals[self.index + 1 :]))
        stride = count * self.parts
        return JoinAggSpec(tuple([f for n, f in enumerate(spec.functions) if n // inner % stride < count]))

    def spread_intervals(self, intervals: Intervals) -> Intervals:
        """The intervals of the whole operator, whose parts are all cut as this one is by `intervals`."""
        cut = intervals[self.index]
        extent = cut[-1][1]
        all_parts = tuple([(k * extent + lo, k * extent + up) for k in range(self.parts) for lo, up in cut])
        return (*intervals[: self.index], all_parts, *intervals[self.index + 1 :])

    @property
    def kernel(self) -> KernelCall:
        return self.plain.kernel

    def reference(self, *arrays: Array) -> tuple[Array, ...]:
        raise NotImplementedError("a part of an operator is planned, and never computed by itself")

    @property
    def reads(self) -> tuple[TensorType, ...]:
        clipped = (read.intersect(desc.type) for read, desc in zip(self.plain.reads, self.inputs, strict=True))
        return tuple(desc.type if read is None else read for read, desc in zip(clipped, self.inputs, strict=True))


def _restrict(desc: TensorDesc, block: TensorType) -> TensorDesc:
    return replace(desc, shape=block.upper)


@lru_cache(maxsize=1024)
def build_parts(operator: Operator, index: int, parts: int) -> tuple[FunctionSpec, ...]:
    """What each of so many parts along an index reads and writes. Raises ValueError for cuts that are not possible."""
    intervals = [shardable.intervals(1) for shardable in operator.indices]
    intervals[index] = operator.indices[index].intervals(parts)
    return operator.build_spec(tuple(intervals)).functions


def find_parts_fault(operator: Operator, index: int, parts: int) -> str | None:
    """Why an operator has no equal parts along an index, each with a block of every output; None if it has."""
    shardable = operator.indices[index]
    if shardable.max_intervals < parts:
        return f"it can be cut into {shardable.max_intervals} along {shardable.name}"
    try:
        functions = build_parts(operator, index, parts)
    except ValueError as error:
        return str(error)
    first = functions[0]
    extent = shardable.intervals(parts)[0][1]
    if any(bounds != (k * extent, (k + 1) * extent) for k, bounds in enumerate(shardable.intervals(parts))):
        return f"the {shardable.extent} positions of {shardable.name} are not {parts} equal parts"
    if any(block.lower != (0,) * block.rank for block in (*first.inputs, *first.outputs)):
        return "its first part does not begin where its tensors do"
    if any(
        [b.shape for b in f.inputs + f.outputs] != [b.shape for b in first.inputs + first.outputs] for f in functions
    ):
        return "its parts do not read and write as much as each other"
    if any(len({f.outputs[j] for f in functions}) < parts for j in range(len(operator.outputs))):
        return f"cut along {shardable.name}, it makes partial results"
    return None


@lru_cache(maxsize=1024)
def _restrict_indices(operator: Operator, index: int, parts: int) -> tuple[ShardableIndex, ...]:
    """The indices of the first part. An index that cannot be cut beside the parts stays whole."""
    extent = operator.indices[index].extent // parts
    indices = []
    for position, shardable in enumerate(operator.indices):
        if position == index:
            indices.append(_restrict_index(shardable, extent, parts))
        elif _can_be_cut(operator, position, index, parts):
            indices.append(shardable)
        else:
            indices.append(replace(shardable, cuts=(), limit=None, work=None, balance=None))
    return tuple(indices)


def _restrict_index(index: ShardableIndex, extent: int, parts: int) -> ShardableIndex:
    limit = None if index.limit is None else index.limit // parts
    if index.cuts is None:
        return replace(index, extent=extent, limit=limit, balance=None)
    inside = tuple([cut for cut in index.cuts if cut < extent])
    work = None if index.work is None else index.work[: len(inside) + 1]
    return replace(index, extent=extent, cuts=inside, limit=limit, work=work)


def _can_be_cut(operator: Operator, position: int, index: int, parts: int) -> bool:
    shardable = operator.indices[position]
    if shardable.max_intervals < 2:
        return True
    intervals: list[tuple[Interval, ...]] = [shardable.intervals(1) for shardable in operator.indices]
    intervals[index], intervals[position] = operator.indices[index].intervals(parts), shardable.intervals(2)
    try:
        operator.build_spec(tuple(intervals))
    except ValueError:
        return False
    return True


@dataclass(frozen=True, slots=True)
class ReproducibleOperator(WrappingOperator):
    """The operator `plain` with fewer cuts and another kernel; everything else is the same.

    It is made after fusion. A plan has the family and the attributes of the plain operator.
    """

    family: ClassVar[str] = "reproducible"

    @property
    def indices(self) -> tuple[ShardableIndex, ...]:
        return _keep_sums_whole(self.plain)

    def build_spec(self, intervals: Intervals) -> JoinAggSpec:
        return self.plain.build_spec(intervals)

    @property
    def kernel(self) -> KernelCall:
        call = self.plain.kernel
        return KernelCall(call.name, (*call.attributes, (ATTRIBUTE, True)))

    def reference(self, *arrays: Array) -> tuple[Array, ...]:
        return self.plain.reference(*arrays)

    @property
    def reads(self) -> tuple[TensorType, ...]:
        return self.plain.reads

    @property
    def part(self) -> TensorType | None:
        return self.plain.part


def find_plain(operator: Operator) -> Operator:
    """The operator behind a reproducible one, and any other operator itself."""
    return operator.plain if isinstance(operator, ReproducibleOperator) else operator


@lru_cache(maxsize=1024)
def _keep_sums_whole(operator: Operator) -> tuple[ShardableIndex, ...]:
    ordered = set(find_ordered_indices(operator))
    return tuple(
        replace(index, cuts=(), limit=None, work=None, balance=None) if position in ordered else index
        for position, index in enumerate(operator.indices)
    )


def find_ordered_indices(operator: Operator) -> Iterator[int]:
    """The positions of the indices whose cuts make partial results that are more than compared with each other."""
    indices = operator.indices
    uncut = [index.intervals(1) for index in indices]
    for position, index in enumerate(indices):
        if index.max_intervals > 1:
            functions = operator.build_spec((*uncut[:position], index.intervals(2), *uncut[position + 1 :])).functions
            for name, *blocks in zip(operator.aggregations, *(function.outputs for function in functions), strict=True):
                if name not in ORDERLESS and len(set(blocks)) < len(blocks):
                    yield position
                    break
