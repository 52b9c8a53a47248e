"""Element types, boxes of index vectors, and descriptions of whole tensors (paper, Section 3.1).

numpy, and ml_dtypes for bf16, are imported only when an array type is asked for.
"""

from __future__ import annotations

import enum
import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from einc.errors import InternalError

if TYPE_CHECKING:
    import numpy as np


class DType(enum.Enum):
    """The element types of the language; the value is the name used in model texts and bundles."""

    F16 = "f16"
    BF16 = "bf16"
    F32 = "f32"
    F64 = "f64"
    I32 = "i32"
    I64 = "i64"
    BOOL = "bool"

    @property
    def itemsize(self) -> int:
        """Width in bytes."""
        return _ITEMSIZE[self]

    @property
    def is_float(self) -> bool:
        return self in _FLOATS

    @property
    def is_integer(self) -> bool:
        return self in (DType.I32, DType.I64)

    def numpy(self) -> np.dtype[Any]:
        """The numpy type that holds it (ml_dtypes' for bf16)."""
        import numpy as np

        if self is DType.BF16:
            import ml_dtypes

            bfloat16: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
            return bfloat16
        return np.dtype(_NUMPY[self])

    def __str__(self) -> str:
        return self.value


_ITEMSIZE = {
    DType.F16: 2, DType.BF16: 2, DType.F32: 4, DType.F64: 8, DType.I32: 4, DType.I64: 8, DType.BOOL: 1,
}  # fmt: skip
_FLOATS = frozenset({DType.F16, DType.BF16, DType.F32, DType.F64})
_NUMPY = {
    DType.F16: "float16", DType.F32: "float32", DType.F64: "float64",
    DType.I32: "int32", DType.I64: "int64", DType.BOOL: "bool",
}  # fmt: skip


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
