"""Element types, boxes of index vectors, and descriptions of whole tensors (paper, Section 3.1).

numpy, and ml_dtypes for bf16 and f8, are imported only when an array type is asked for.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from einc.errors import InternalError
from einc_runtime.plan import element_types
from einc_runtime.plan.element_types import ElementFormat
from einc_runtime.plan.schema import Block

if TYPE_CHECKING:
    import numpy as np


Array: TypeAlias = "np.ndarray[Any, np.dtype[Any]]"
"""A text, so that who only names arrays does not import numpy."""

FLOAT_NAMES = {
    "float16": "f16", "half": "f16", "fp16": "f16", "bfloat16": "bf16", "float32": "f32", "float": "f32", "fp32": "f32",
    "float64": "f64", "double": "f64", "fp64": "f64",
}  # fmt: skip
"""What floating types are called by PyTorch, numpy, configurations and people."""


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
    F8E4M3 = "f8e4m3"
    F8E5M2 = "f8e5m2"
    F4X2 = "f4x2"
    F8E8M0 = "f8e8m0"

    @property
    def record(self) -> ElementFormat:
        """What is the same for all elements of this type."""
        return _RECORDS[self]

    @property
    def itemsize(self) -> int:
        """Width in bytes."""
        return _RECORDS[self].width

    @property
    def is_float(self) -> bool:
        return self.record.kind == "float"

    @property
    def is_integer(self) -> bool:
        return self.record.kind == "integer"

    @property
    def is_quantized(self) -> bool:
        """Whether it only stores parts of weights. No value of a model has such a type."""
        return self.record.kind == "stored"

    @property
    def is_narrow_float(self) -> bool:
        """Whether it is a float of 8 bits, which values have and nothing is computed in."""
        return self.record.kind == "narrow"

    def numpy(self) -> np.dtype[Any]:
        """The numpy type that holds it (ml_dtypes' for bf16 and f8)."""
        import numpy as np

        known = self.record
        if known.ml:
            import ml_dtypes

            dtype: np.dtype[Any] = np.dtype(getattr(ml_dtypes, known.ml))
            return dtype
        return np.dtype(known.numpy)

    def __str__(self) -> str:
        return self.value


_RECORDS = {DType(name): record for name, record in element_types.ELEMENT_FORMATS.items()}
ELEMENT_TYPES = tuple(dtype for dtype in DType if not dtype.is_quantized)
"""The types of values of models."""


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
