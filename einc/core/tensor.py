"""Element types, boxes of index vectors, and descriptions of whole tensors (paper, Section 3.1).

numpy, and ml_dtypes for bf16, are imported only when an array type is asked for.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from einc.errors import InternalError
from einc_runtime.plan import schema
from einc_runtime.plan.schema import Block

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
    I8 = "i8"
    I4X2 = "i4x2"

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

    @property
    def is_quantized(self) -> bool:
        """Whether it only stores weights: 8-bit integers, or two 4-bit integers in a byte. Models do not name it."""
        return self in (DType.I8, DType.I4X2)

    def numpy(self) -> np.dtype[Any]:
        """The numpy type that holds it (ml_dtypes' for bf16)."""
        import numpy as np

        if self is DType.BF16:
            import ml_dtypes

            bfloat16: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
            return bfloat16
        return np.dtype(_NUMPY_NAMES[self])

    def __str__(self) -> str:
        return self.value


_ITEMSIZE = {DType(name): width for name, width in schema.ITEMSIZE.items()}
ELEMENT_TYPES = tuple(dtype for dtype in DType if not dtype.is_quantized)
"""The types in which models compute."""
_FLOATS = frozenset(DType(name) for name in schema.FLOATS)
_NUMPY_NAMES = {DType(name): numpy_name for name, numpy_name in schema.NUMPY_NAMES.items()}


TensorType = Block
"""The paper's name for a block. A zero-bounded one describes a whole tensor; any other describes a part of one."""


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
