"""What a kernel is to the runtime: prepared once for its views, then run many times.

A builder looks at attributes, shapes and strides, refuses what does not fit (PlanFault), and returns a `Kernel`. A
kernel is bound to a worker's scratch memory before it first runs there; running it parses and allocates nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from runtime.bundle import Attribute, Block
from runtime.dtypes import Array, DType, name_of
from runtime.errors import PlanFault

if TYPE_CHECKING:
    from runtime.kernels.packs import Pack

ALIGNMENT = 64
Run = Callable[[], None]


@dataclass(frozen=True, slots=True)
class Kernel:
    """`bind` takes a byte array of at least `scratch` bytes and gives the callable.

    `nanoseconds` is a rough estimate of its time on one core, for the order in which tasks are started. `packs` are
    constant operands that it can use in another layout, if whoever runs it makes them.
    """

    bind: Callable[[Array], Run]
    scratch: int = 0
    nanoseconds: float = 0.0
    packs: tuple[Pack, ...] = ()


class Builder(Protocol):
    """Prepares one invocation. Views are the regions themselves; blocks are their bounds in tensor coordinates."""

    def __call__(
        self,
        attributes: Mapping[str, Attribute],
        inputs: Sequence[Array],
        outputs: Sequence[Array],
        input_blocks: Sequence[Block],
        output_blocks: Sequence[Block],
    ) -> Kernel: ...


class MergeBuilder(Protocol):
    """Prepares one aggregation of tuples: `copies` and `target` have one view per member.

    `dims` says which dimension of the first member each dimension of each member is. The views of the first copy may
    be those of the target.
    """

    def __call__(
        self, copies: Sequence[Sequence[Array]], target: Sequence[Array], dims: Sequence[Sequence[int]]
    ) -> Kernel: ...


class ScratchPlan:
    """Hands out offsets in a kernel's scratch memory while it is prepared; `size` is what it needs in all."""

    __slots__ = ("size",)

    def __init__(self) -> None:
        self.size = 0

    def take(self, shape: Sequence[int], dtype: DType) -> ScratchArray:
        array = ScratchArray(self.size, tuple(shape), dtype)
        self.size += -(-max(1, math.prod(shape)) * dtype.itemsize // ALIGNMENT) * ALIGNMENT
        return array


@dataclass(frozen=True, slots=True)
class ScratchArray:
    """An array to be, at a byte offset of a worker's scratch memory."""

    offset: int
    shape: tuple[int, ...]
    dtype: DType

    def of(self, memory: Array) -> Array:
        return np.ndarray(self.shape, self.dtype, memory.data, self.offset)


def address(array: Array) -> int:
    """Where its first element is in memory."""
    return int(array.__array_interface__["data"][0])


def store(source: Any, target: Any) -> None:
    """Copies one array to another of its shape, rounding or widening."""
    np.copyto(target, source, casting="unsafe")


def dtype_name(array: Array) -> str:
    name = name_of(array.dtype)
    if name is None:
        raise PlanFault(f"no kernel works on elements of type {array.dtype}")
    return name


def attribute(attributes: Mapping[str, Attribute], allowed: Sequence[str], name: str, kind: type) -> Attribute:
    """One required attribute; unknown names beside it, a missing one, or one of another type are the plan's fault."""
    unknown = sorted(set(attributes) - set(allowed))
    if unknown:
        raise PlanFault(f"unknown kernel attribute '{unknown[0]}'; expected {', '.join(allowed) or 'none'}")
    if name not in attributes:
        raise PlanFault(f"the kernel attribute '{name}' is missing")
    value = attributes[name]
    if type(value) is not kind:
        raise PlanFault(f"the kernel attribute '{name}' should be {kind.__name__}, found {type(value).__name__}")
    return value


def text(attributes: Mapping[str, Attribute], allowed: Sequence[str], name: str) -> str:
    value = attribute(attributes, allowed, name, str)
    assert isinstance(value, str)
    return value


def factor(attributes: Mapping[str, Attribute], allowed: Sequence[str]) -> float:
    """The attribute `scale`, a number that a result is multiplied by; 1 where it is not given."""
    if "scale" not in attributes:
        return 1.0
    value = attribute(attributes, allowed, "scale", float)
    assert isinstance(value, float)
    if not math.isfinite(value):
        raise PlanFault(f"the kernel attribute 'scale' is {value}")
    return value


def single(arrays: Sequence[Array]) -> Array:
    if len(arrays) != 1:
        raise PlanFault(f"a kernel with one input or output is given {len(arrays)}")
    return arrays[0]


def integers(attributes: Mapping[str, Attribute], allowed: Sequence[str], name: str) -> list[int]:
    """One required attribute: a list of positive integers, not empty."""
    values = attribute(attributes, allowed, name, list)
    assert isinstance(values, list)
    found = [value for value in values if isinstance(value, int) and not isinstance(value, bool) and value > 0]
    if not found or len(found) < len(values) or sum(found) >= 1 << 62:
        raise PlanFault(f"the kernel attribute '{name}' should be a list of positive integers")
    return found
