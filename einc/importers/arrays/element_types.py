"""Element types of other formats, and how the language carries them.

Integers that the language does not have are carried by wider ones: those of 8 and 16 bits by i32, those of 32 bits
without a sign by i64. After each operation that may leave their range, they wrap around. Integers of 64 bits without a
sign are carried by i64, which has the same bits; they are right below 2**63.
"""

from __future__ import annotations

from enum import Enum

import ml_dtypes
import numpy as np

from einc.core.tensor import DType


class ElementType(Enum):
    """An element type by its name in numpy."""

    BOOL = "bool"
    I8 = "int8"
    I16 = "int16"
    I32 = "int32"
    I64 = "int64"
    U8 = "uint8"
    U16 = "uint16"
    U32 = "uint32"
    U64 = "uint64"
    F16 = "float16"
    BF16 = "bfloat16"
    F32 = "float32"
    F64 = "float64"

    @property
    def numpy(self) -> np.dtype[np.generic]:
        dtype: np.dtype[np.generic] = np.dtype(ml_dtypes.bfloat16 if self is ElementType.BF16 else self.value)
        return dtype

    @property
    def carrier(self) -> DType:
        """The type that tensors have in the language."""
        return _CARRIERS[self]

    @property
    def is_float(self) -> bool:
        return self.carrier.is_float

    @property
    def is_bool(self) -> bool:
        return self is ElementType.BOOL

    @property
    def is_integer(self) -> bool:
        return self.carrier.is_integer

    @property
    def is_unsigned(self) -> bool:
        return self.value.startswith("uint")

    @property
    def bits(self) -> int:
        return 8 * self.numpy.itemsize

    @property
    def is_widened(self) -> bool:
        """Whether the carrier has more values, so that results wrap around."""
        return self.is_integer and (self.is_unsigned or self.bits < 32) and self is not ElementType.U64

    def wrap(self, text: str) -> str:
        """An expression of the carrier's type, brought into the range of this type."""
        if not self.is_widened:
            return text
        half = 0 if self.is_unsigned else 2 ** (self.bits - 1)
        modulus = 2**self.bits
        return f"({text} + {half}) % {modulus} - {half}" if half else f"({text}) % {modulus}"


_CARRIERS = {
    ElementType.BOOL: DType.BOOL, ElementType.I8: DType.I32, ElementType.I16: DType.I32, ElementType.I32: DType.I32,
    ElementType.I64: DType.I64, ElementType.U8: DType.I32, ElementType.U16: DType.I32, ElementType.U32: DType.I64,
    ElementType.U64: DType.I64, ElementType.F16: DType.F16, ElementType.BF16: DType.BF16, ElementType.F32: DType.F32,
    ElementType.F64: DType.F64,
}  # fmt: skip


def find_element_type(dtype: np.dtype[np.generic]) -> ElementType | None:
    """The element type of a numpy array; None if it is none of numbers and booleans that einc knows."""
    return next((known for known in ElementType if known.value == dtype.name), None)
