"""The interface that every operator family implements; code outside `ops` knows operators only through it.

An operator states its signature, where it may be cut, how a request for intervals becomes a join-agg spec, how
partial outputs aggregate, what it means on whole arrays, and which kernel runs one function specification
(paper, Sections 3.2 and 3.3).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache
from itertools import chain, product
from typing import Any, ClassVar

from einc.core.intervals import Interval, Intervals, ShardableIndex
from einc.core.spec import FunctionSpec, JoinAggSpec
from einc.core.tensor import Array, DType, TensorDesc, TensorType
from einc.errors import OperatorError
from einc_runtime.plan.meaning.terms import keep
from einc_runtime.plan.schema import JointAggregation
from einc_runtime.plan.work import ProductWork, Work

Attribute = bool | int | float | str | tuple[bool | int | float | str, ...]
Attributes = Mapping[str, Attribute]
Shape = tuple[int, ...]
Labels = tuple[str, ...]
"""One index name per dimension of a tensor."""


@dataclass(frozen=True, slots=True)
class KernelCall:
    """The concrete operator: the name of a kernel of the runtime, and the attributes that all its invocations share.

    The blocks of an invocation, bounds included, come with each call.
    """

    name: str
    attributes: tuple[tuple[str, Attribute], ...] = ()


class Operator(ABC):
    """An abstract operator applied to tensors of known types (Definition 3).

    Implementations are frozen, hashable dataclasses. Equal operators have equal specs, so that repeated blocks of a
    model are planned once. Their fields are tensors and attributes, unless they say otherwise.
    """

    __slots__ = ()

    family: ClassVar[str]
    """The name under which `ops.registry` restores it from a bundle."""

    is_program: ClassVar[bool] = False
    """Whether it is an index program or a recurrence. Such an operator may be a scan, which blocks may make faster, and
    elementwise operators may be computed inside it."""

    @property
    def title(self) -> str:
        """Its name for readers: `softmax`, `matmul`, `silu+mul`."""
        return self.family

    @property
    def inputs(self) -> tuple[TensorDesc, ...]:
        """The fields that are tensors, or tuples of them, in order."""
        return tuple(chain.from_iterable(map(_list_tensors, self._fields())))

    @property
    @abstractmethod
    def outputs(self) -> tuple[TensorDesc, ...]: ...

    @property
    def attributes(self) -> Attributes:
        """Everything that `registry.restore` needs, beside the types of the inputs, to make an equal operator."""
        values = zip(_list_field_names(type(self)), self._fields(), strict=True)
        return {name: value for name, value in values if not _list_tensors(value)}

    def _fields(self) -> Iterator[Any]:
        return (getattr(self, name) for name in _list_field_names(type(self)))

    @property
    @abstractmethod
    def indices(self) -> tuple[ShardableIndex, ...]:
        """The shardable indices, in the order in which plans list them."""

    @abstractmethod
    def build_spec(self, intervals: Intervals) -> JoinAggSpec:
        """The join-agg spec for these intervals (one tuple per shardable index).

        Its number of function specifications is the product of the interval counts; they are in lexicographic order.
        """

    @property
    def aggregations(self) -> tuple[str, ...]:
        """Per output, the name of what combines its partial blocks: `sum`, also where no block is partial.

        An output that aggregates alone has `sum`, `max`, `min` or `prod`, any other the name of its joint aggregation.
        """
        return ("sum",) * len(self.outputs)

    @property
    def joint_aggregations(self) -> tuple[JointAggregation, ...]:
        """Which outputs aggregate together; an output in none of them aggregates alone. No output is in two.

        Every function specification puts out one tuple: its block of a member is its block of the primary, projected
        to that member's dimensions. All members have the same name in `aggregations`: `logsumexp` or `topk`.
        """
        return ()

    @property
    def memory_orders(self) -> tuple[tuple[int, ...] | None, ...]:
        """Per input, then per output: the best order of its dimensions in memory for the kernel, from the slowest to
        the fastest; None if the order does not matter."""
        return (None,) * (len(self.inputs) + len(self.outputs))

    @property
    @abstractmethod
    def kernel(self) -> KernelCall: ...

    @abstractmethod
    def reference(self, *arrays: Array) -> tuple[Array, ...]:
        """The meaning on whole arrays, in plain numpy; contractions and sums are computed in f32 or wider."""

    @abstractmethod
    def flops(self, function: FunctionSpec) -> int:
        """Floating point operations of one function specification."""

    def work(self, function: FunctionSpec) -> Work | None:
        """What the time of one function specification depends on beyond `flops` and `traffic`, for operators that do
        more than go through their bytes."""
        return None

    def apply_to(self, inputs: Sequence[str]) -> Operator:
        """This operator on the tensors of these names: another one where it costs less if several inputs are one."""
        return self

    def update(self) -> Operator:
        """This operator where its first input is a state, which the first output is written over.

        Raises OperatorError for operators that cannot do that.
        """
        raise OperatorError(
            f"{self.title} reads a state, and only append(state, ...) may do so",
            argument=0,
            hint="read what append returns: it has the new contents",
        )

    def traffic(self, function: FunctionSpec) -> int:
        """The bytes of memory that one function specification reads and writes: each of its blocks once.

        Two inputs are counted separately even if they are the same block of one tensor, unless `apply_to` says that an
        operator reads it once.
        """
        inputs = zip(function.inputs, self.inputs, strict=True)
        outputs = zip(function.outputs, self.outputs, strict=True)
        return sum(block.size * desc.dtype.itemsize for block, desc in (*inputs, *outputs))

    @property
    def costs_by_shape(self) -> bool:
        """Whether function specifications with blocks of the same shapes have the same `flops`, `work` and `traffic`,
        wherever these lie. It need not be said, and saves time."""
        return False

    @property
    def precision(self) -> str:
        """The dtype whose peak limits `flops`, as machine files name it.

        Operators without matrix products compute in f32, also for 16-bit types (f64 for f64).
        """
        return find_vector_precision(*self.inputs, *self.outputs)

    def fan_in(self, k: int) -> int:
        """How many elements of input `k` are contracted into one element of output (for scaling random weights)."""
        return 1

    def fuse(self, k: int, producer: Operator) -> Operator | None:
        """This operator with `producer` computed inside it in place of input `k`, or None if that is impossible.

        The inputs of the result are this operator's, with input `k` replaced by the producer's inputs in place.
        """
        return None

    def exchange(self) -> Operator | None:
        """The operator with its two inputs in the other order, with the same result; None if there is none."""
        return None

    def keep_outputs(self, outputs: Sequence[int]) -> tuple[Operator, tuple[int, ...]] | None:
        """The operator with only these outputs, and the inputs that it still has; None if it computes all alike."""
        return None

    @property
    def reads(self) -> tuple[TensorType, ...]:
        """Per input, the part of it that the operator reads, however it is cut."""
        return tuple(desc.type for desc in self.inputs)

    @property
    def part(self) -> TensorType | None:
        """The part of the only input that a slice puts out; None for any other operator."""
        return None

    @property
    def joins_every_reader(self) -> bool:
        """Whether each of its readers computes it again rather than that its result is kept: it costs nothing there."""
        return self.part is not None

    def restrict(self, box: TensorType) -> Restriction | None:
        """The operator that computes the part `box` of this one's only output from parts of its inputs alone.

        None if that is impossible.
        """
        return None

    def merge(self, first: int, second: int) -> Operator | None:
        """This operator without the later input `second`, for the case that input `first` is the same tensor.

        None if it must be read twice (the two are indexed differently), or if the kernel needs it twice.
        """
        return None


@dataclass(frozen=True, slots=True)
class Restriction:
    """An operator that computes a part of another one's output; its input k is the part `boxes[k]` of the other's."""

    operator: Operator
    boxes: tuple[TensorType, ...]


@cache
def _list_field_names(family: Any) -> tuple[str, ...]:
    return tuple(field.name for field in fields(family))


def _list_tensors(value: object) -> tuple[TensorDesc, ...]:
    """The tensors in the value of a field: itself, its items, or none if it is an attribute."""
    items = value if isinstance(value, tuple) else (value,)
    return tuple(item for item in items if isinstance(item, TensorDesc))


def find_vector_precision(*tensors: TensorDesc) -> str:
    """The dtype whose peak limits operations on single elements: f64 if a tensor has it, else f32."""
    return "f64" if any(desc.dtype is DType.F64 for desc in tensors) else "f32"


def find_product_precision(*operands: TensorDesc) -> str:
    """The dtype whose peak limits matrix products: that of the operands, if they share a floating one."""
    first = operands[0].dtype
    share_dtype = first.is_float and all(desc.dtype is first for desc in operands)
    return first.value if share_dtype else find_vector_precision(*operands)


def describe_product(labels: Sequence[Sequence[str]], result: Sequence[str], shapes: Sequence[Shape]) -> ProductWork:
    """The product of matrices that two tensors with named indices have, where `result` names those of their product.

    Indices of both that stay are the batch; those of one that stay its rows, or columns; what is summed is the depth.
    """
    extents = {
        name: extent
        for names, shape in zip(labels, shapes, strict=True)
        for name, extent in zip(names, shape, strict=True)
    }
    left, right = map(set, labels)
    kept = set(result)

    def count(names: set[str]) -> int:
        return math.prod(extents[name] for name in names)

    return ProductWork(
        count(left & right & kept),
        count((left - right) & kept),
        count((right - left) & kept),
        count(set(extents) - kept),
    )


@dataclass(frozen=True, slots=True)
class DimMap:
    """How one dimension of a tensor follows a shardable index: it has the bounds of its interval, or those that `span`
    makes of them; with no index it is whole."""

    index: str | None = None
    span: Callable[[int, int], Interval] = keep


class MappedOperator(Operator):
    """An operator whose every dimension follows at most one shardable index; it inherits its specs."""

    __slots__ = ()

    @property
    @abstractmethod
    def input_maps(self) -> tuple[tuple[DimMap, ...], ...]:
        """For every input, one map per dimension."""

    @property
    @abstractmethod
    def output_maps(self) -> tuple[tuple[DimMap, ...], ...]:
        """For every output, one map per dimension."""

    def build_spec(self, intervals: Intervals) -> JoinAggSpec:
        names = [index.name for index in self.indices]
        tensors = zip((*self.input_maps, *self.output_maps), (*self.inputs, *self.outputs), strict=True)
        blocks = [_build_blocks(maps, desc.shape, names, intervals) for maps, desc in tensors]
        first = len(self.inputs)
        return JoinAggSpec(tuple(FunctionSpec(row[:first], row[first:]) for row in zip(*blocks, strict=True)))


def _build_blocks(
    maps: Sequence[DimMap], shape: Sequence[int], names: Sequence[str], intervals: Intervals
) -> list[TensorType]:
    """The block of one tensor in every function specification; equal blocks are one object."""
    used = [s for s, name in enumerate(names) if any(m.index == name for m in maps)]
    slots = {names[s]: slot for slot, s in enumerate(used)}
    dimensions = [  # the slot of a dimension's index in a combination, and the bounds for each of its intervals
        (slots[m.index], [m.span(*interval) for interval in intervals[names.index(m.index)]])
        if m.index is not None
        else (len(used), [(0, extent)])
        for m, extent in zip(maps, shape, strict=True)
    ]
    distinct: list[TensorType] = []
    for combination in product(*(range(len(intervals[s])) for s in used), (0,)):
        bounds = [choices[combination[slot]] for slot, choices in dimensions]
        distinct.append(TensorType(tuple([lo for lo, _ in bounds]), tuple([up for _, up in bounds])))
    places = [0]
    for s, parts in enumerate(intervals):
        choices = range(len(parts))
        places = (
            [p * len(parts) + k for p in places for k in choices] if s in used else [p for p in places for _ in choices]
        )
    return [distinct[position] for position in places]
