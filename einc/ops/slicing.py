"""A box of a tensor. Every dimension is shardable anywhere; blocks are read from their places in the whole tensor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from einc.core.spec import FunctionSpec
from einc.core.tensor import TensorDesc, TensorType
from einc.errors import OperatorError
from einc.ops.arguments import Argument, find_positions, format_value, is_integer, require_tensors
from einc.ops.base import Attribute, Attributes, Operator
from einc.ops.derived import DerivedMappedOperator
from einc.ops.windows import compose_box

if TYPE_CHECKING:
    from einc.ops.base import Array

CALLS = ("slice",)


@dataclass(frozen=True, slots=True)
class Slice(DerivedMappedOperator):
    """The positions from start up to stop of every dimension."""

    family: ClassVar[str] = "slice"

    tensor: TensorDesc
    starts: tuple[int, ...]
    stops: tuple[int, ...]

    def reference(self, *arrays: Array) -> tuple[Array, ...]:
        return (arrays[0][tuple(map(slice, self.starts, self.stops))],)

    def flops(self, function: FunctionSpec) -> int:
        return 0

    @property
    def part(self) -> TensorType:
        return TensorType(self.starts, self.stops)

    def fuse(self, k: int, producer: Operator) -> Operator | None:
        """A slice of a slice is a slice."""
        if producer.part is None:
            return None
        return cut_out(producer.inputs[0], compose_box(producer.part, self.part))


def cut_out(tensor: TensorDesc, box: TensorType) -> Slice:
    """The slice that is the part `box` of a tensor."""
    return Slice(tensor, box.lower, box.upper)


def call(name: str, arguments: Sequence[Argument], attributes: Attributes) -> Operator:
    """`slice(x, tokens=[0, 128], heads=[2, 4])`: for each dimension the first position, and the one after the last."""
    (tensor,) = require_tensors(name, arguments, 1)
    starts, stops = [0] * tensor.rank, list(tensor.shape)
    for dim, bounds in attributes.items():
        (at,) = find_positions(name, tensor, [(dim, dim)])
        if not _is_range(bounds, tensor.shape[at]):
            raise OperatorError(
                f"{name}: '{dim}' must be [start, stop] within 0 and {tensor.shape[at]}, not {format_value(bounds)}",
                argument=dim,
            )
        assert isinstance(bounds, tuple)
        starts[at], stops[at] = int(bounds[0]), int(bounds[1])
    return Slice(tensor, tuple(starts), tuple(stops))


def restore(inputs: tuple[TensorDesc, ...], attributes: Attributes) -> Operator:
    """The slice with these attributes; raises OperatorError if they are not those of a slice."""
    starts, stops = attributes.get("starts"), attributes.get("stops")
    if len(inputs) == 1 and isinstance(starts, tuple) and isinstance(stops, tuple):
        (tensor,) = inputs
        if len(starts) == len(stops) == tensor.rank and all(
            map(_is_range, zip(starts, stops, strict=True), tensor.shape)
        ):
            return Slice(tensor, tuple(map(int, starts)), tuple(map(int, stops)))
    raise OperatorError("slice has one input, and a range within every dimension")


def _is_range(bounds: Attribute, extent: int) -> bool:
    if not isinstance(bounds, tuple) or len(bounds) != 2:
        return False
    start, stop = bounds
    return is_integer(start) and is_integer(stop) and 0 <= start < stop <= extent


FAMILIES = {Slice.family: restore}
