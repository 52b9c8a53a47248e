"""What all kernels share: invocations, kernels of the CPU, their scratch memory, and tables of builders.

A kernel is prepared once for its views and run many times. Its builder returns a `Kernel`, which is bound to a worker's
scratch memory before it first runs there. Running it parses nothing. Attributes, types and blocks are those that the
family of the operation has (`plan/meaning`): reading a plan checks that.
"""

from __future__ import annotations

import importlib
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Generic, TypeVar, cast

import numpy as np

from einc_runtime.dtypes import NARROW_LARGEST, Array, DType, find_dtype_name
from einc_runtime.errors import PlanFault
from einc_runtime.plan.reproducible import ATTRIBUTE
from einc_runtime.plan.schema import Attribute, Block

ALIGNMENT = 64
"""Bytes of a cache line and of the widest vector."""
Run = Callable[[], None]

ANY_NUMBER = 1 << 40
"""More invocations than there are: with so many alike, all are worth machine code."""

View = TypeVar("View")
Other = TypeVar("Other")
Value = TypeVar("Value")


class PrepackedOperand:
    """A constant operand in the layout that a library needs. After `make`, it is in `data` and takes `size` bytes.

    Sessions in several threads may share it: of those that make it at once, one does, and the others wait."""

    __slots__ = ("__weakref__", "_lock", "_make", "data", "size", "source")

    def __init__(self, source: Array, size: int, make: Callable[[], Array]) -> None:
        self.source, self.size, self._make = source, size, make
        self.data: Array | None = None
        self._lock = threading.Lock()

    def make(self) -> None:
        with self._lock:
            if self.data is None:
                self.data = self._make()


@dataclass(frozen=True, slots=True)
class Kernel:
    """A prepared invocation on the CPU. `bind` takes a byte array of at least `scratch` bytes and returns the callable.

    `nanoseconds` is a rough estimate of its time on one core, which decides the order in which tasks start. `prepacked`
    are constant operands that the kernel can use in another layout, if the executor makes them. `is_stream` says that
    it reads its operands in one stream, so that parts of it take no longer together.
    """

    bind: Callable[[Array], Run]
    scratch: int = 0
    nanoseconds: float = 0.0
    prepacked: tuple[PrepackedOperand, ...] = ()
    is_stream: bool = False


@dataclass(frozen=True, slots=True)
class Invocation(Generic[View]):
    """A kernel as an operation names it, on regions of memory; blocks are their bounds in tensor coordinates.

    An execution has `repetitions` invocations of its kind, itself included: machine code is worth more with many.
    """

    name: str
    attributes: Mapping[str, Attribute]
    inputs: Sequence[View]
    outputs: Sequence[View]
    input_blocks: Sequence[Block] = ()
    output_blocks: Sequence[Block] = ()
    repetitions: int = 1

    def on(self, inputs: Sequence[Other], outputs: Sequence[Other]) -> Invocation[Other]:
        """The same kernel on other memory."""
        blocks = self.input_blocks, self.output_blocks
        return Invocation(self.name, self.attributes, inputs, outputs, *blocks, self.repetitions)

    @property
    def is_reproducible(self) -> bool:
        """Whether it has the attribute of reproducible plans."""
        return ATTRIBUTE in self.attributes

    def without_mark(self) -> Invocation[View]:
        """The same invocation without the attribute of reproducible plans, compiled however small it is: the code
        decides about bits."""
        attributes = {name: value for name, value in self.attributes.items() if name != ATTRIBUTE}
        return replace(self, attributes=attributes, repetitions=ANY_NUMBER)

    @property
    def input(self) -> View:
        """The first input."""
        return self.inputs[0]

    @property
    def output(self) -> View:
        """The first output."""
        return self.outputs[0]

    def attribute(self, name: str, kind: type[Value]) -> Value:
        """An attribute, which is of this type."""
        return cast(Value, self.attributes[name])

    def number(self, name: str, default: float) -> float:
        """An attribute that is a float; if it is missing, the default."""
        return self.attribute(name, float) if name in self.attributes else default


@dataclass(frozen=True, slots=True)
class JointInvocation(Generic[View]):
    """An aggregation of copies of a tuple of tensors, on regions of memory.

    `reads` has as many views as `writes` for each copy, copy after copy. `dims` says for every member which dimension
    of the first member each of its dimensions is. `definition` is the text of an aggregation that the plan defines; of
    such a one, there may be one tensor. `repetitions` are as in `Invocation`.
    """

    aggregation: str
    reads: Sequence[View]
    writes: Sequence[View]
    dims: Sequence[Sequence[int]]
    definition: str = ""
    repetitions: int = 1

    def on(self, reads: Sequence[Other], writes: Sequence[Other]) -> JointInvocation[Other]:
        """The same aggregation on other memory."""
        return JointInvocation(self.aggregation, reads, writes, self.dims, self.definition, self.repetitions)


@dataclass(frozen=True, slots=True)
class GatedInvocations(Generic[View]):
    """Two products that do not depend on each other, and the map whose operands at `places` are their results."""

    first: Invocation[View]
    second: Invocation[View]
    then: Invocation[View]
    places: tuple[int, int]

    @property
    def parts(self) -> tuple[Invocation[View], Invocation[View], Invocation[View]]:
        return self.first, self.second, self.then

    @property
    def names(self) -> tuple[str, str, str]:
        return self.first.name, self.second.name, self.then.name


COMPOSED_KERNELS = frozenset({"index"})
"""Kernels that move elements and leave what is computed to another kernel, of which each runtime has a form."""

KernelBuilder = Callable[[Invocation[Array]], Kernel]
"""Prepares one invocation."""

BuilderTable = Mapping[str, tuple[str, str]]
"""Name of a kernel or an aggregation -> module and function that builds it."""


def find_builder(name: str, table: BuilderTable) -> Any:
    """The function that builds a kernel or an aggregation; its module is imported when it is first needed."""
    return _import_builder(*table[name])


@cache
def _import_builder(module: str, function: str) -> Any:
    return getattr(importlib.import_module(module), function)


class ScratchAllocator:
    """Hands out offsets in a kernel's scratch memory while the kernel is prepared; `size` is the total in bytes."""

    __slots__ = ("size",)

    def __init__(self) -> None:
        self.size = 0

    def take(self, shape: Sequence[int], dtype: DType, order: Sequence[int] = ()) -> ScratchArray:
        """A dense array; `order` lists its dimensions from the largest stride to the smallest, where it is another."""
        array = ScratchArray(self.size, tuple(shape), dtype, tuple(order) or tuple(range(len(shape))))
        self.size += -(-max(1, math.prod(shape)) * dtype.itemsize // ALIGNMENT) * ALIGNMENT
        return array


@dataclass(frozen=True, slots=True)
class ScratchArray:
    """A future array at a byte offset of a worker's scratch memory."""

    offset: int
    shape: tuple[int, ...]
    dtype: DType
    order: tuple[int, ...]

    def of(self, memory: Array) -> Array:
        """The array in a worker's memory."""
        shape = [self.shape[dim] for dim in self.order]
        return np.ndarray(shape, self.dtype, memory.data, self.offset).transpose(np.argsort(self.order))

    def stand_in(self) -> Array:
        """One of its shape and strides, whose pages are never touched."""
        return replace(self, offset=0).of(np.empty(math.prod(self.shape) * self.dtype.itemsize, np.uint8))


def allocate_aligned(size: int) -> Array:
    """Bytes that begin where a line of the cache does; their pages are taken when they are first written. Products of
    packed operands that begin elsewhere take up to twice as long."""
    raw = np.empty(size + ALIGNMENT, np.uint8)
    start: int = -address(raw) % ALIGNMENT
    return raw[start : start + size]


def address(array: Array) -> int:
    """The address of its first element."""
    return int(array.__array_interface__["data"][0])


def store(source: Any, target: Any) -> None:
    """Copies an array to another of the same shape, rounding or widening elements."""
    largest = NARROW_LARGEST.get(find_dtype_name(target.dtype) or "") if target.itemsize == 1 else None
    if largest is not None and source.dtype != target.dtype:  # ml_dtypes rounds to nearest, and what is larger to NaN
        with np.errstate(over="ignore"):
            source = np.clip(source.astype(np.float32), -largest, largest).astype(target.dtype)
    np.copyto(target, source, casting="unsafe")


def view_as_integers(array: Array) -> Array:
    """The same bytes as integers where the type is not numpy's own: numpy moves integers faster."""
    return array.view(f"u{array.itemsize}") if array.dtype.kind == "V" else array


def dtype_name(array: Array) -> str:
    """The plan's name for the type of the elements. Raises PlanFault for other types."""
    name = find_dtype_name(array.dtype)
    if name is None:
        raise PlanFault(f"no kernel works on elements of type {array.dtype}")
    return name
