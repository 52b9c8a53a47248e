"""Tensor types with lower and upper bounds, projections, and descriptions of whole tensors (paper, Section 3.1)."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass

from einc.core.dtypes import DType
from einc.errors import InternalError


@dataclass(frozen=True, slots=True, order=True)
class TensorType:
    """A box of index vectors: `lower` inclusive, `upper` exclusive (Definition 1).

    A zero-bounded type describes a whole tensor; any other is a *block* of one. Types order by lower bounds, then
    upper bounds.
    """

    lower: tuple[int, ...]
    upper: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(self.lower) != len(self.upper) or any(map(operator.gt, self.lower, self.upper)):
            raise InternalError(f"no tensor type has bounds {self.lower} and {self.upper}")

    @staticmethod
    def whole(shape: Sequence[int]) -> TensorType:
        """The zero-bounded type of a shape."""
        return TensorType((0,) * len(shape), tuple(shape))

    @property
    def rank(self) -> int:
        return len(self.lower)

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(map(operator.sub, self.upper, self.lower))

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    def contains(self, other: TensorType) -> bool:
        """Whether `other` is a projection of this type (Definition 4)."""
        return (
            self.rank == other.rank
            and all(map(operator.le, self.lower, other.lower))
            and all(map(operator.ge, self.upper, other.upper))
        )

    def intersect(self, other: TensorType) -> TensorType | None:
        """The common box, or None where it is empty."""
        lower = tuple(map(max, self.lower, other.lower))
        upper = tuple(map(min, self.upper, other.upper))
        if any(lo >= up for lo, up in zip(lower, upper, strict=True)):
            return None
        return TensorType(lower, upper)

    def projected(self, dims: Sequence[int]) -> TensorType:
        """The type with these dimensions alone, in their order."""
        return TensorType(tuple(self.lower[d] for d in dims), tuple(self.upper[d] for d in dims))

    def __str__(self) -> str:
        return "[" + ", ".join(f"{lo}:{up}" for lo, up in zip(self.lower, self.upper, strict=True)) + "]"


@dataclass(frozen=True, slots=True)
class TensorDesc:
    """A whole tensor as the language declares it: named dimensions, extents and element type."""

    dims: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: DType

    def __post_init__(self) -> None:
        if len(self.dims) != len(self.shape):
            raise InternalError(f"{len(self.dims)} names for {len(self.shape)} dimensions")

    @property
    def type(self) -> TensorType:
        return TensorType.whole(self.shape)

    @property
    def rank(self) -> int:
        return len(self.shape)

    def __str__(self) -> str:
        inner = ", ".join(f"{n}={e}" for n, e in zip(self.dims, self.shape, strict=True))
        return f"{self.dtype}[{inner}]"
