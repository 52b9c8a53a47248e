"""Element types of a plan as numpy types. ml_dtypes is imported only when a plan has bf16 or f8."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from einc_runtime.plan import schema

Array = np.ndarray[Any, np.dtype[Any]]
DType = np.dtype[Any]

ITEMSIZE: dict[str, int] = dict(schema.ITEMSIZE.items())
_NUMPY_NAMES: dict[str, str] = dict(schema.NUMPY_NAMES.items())
_NAMES = {np.dtype(numpy_name): name for name, numpy_name in _NUMPY_NAMES.items()}
_ML_NAMES: dict[str, str] = dict(schema.ML_NAMES.items())
_ML_DTYPES = {ml_name: name for name, ml_name in _ML_NAMES.items()}

FLOATS: frozenset[str] = frozenset(schema.FLOATS)
NARROW_FLOATS: frozenset[str] = frozenset(schema.NARROW_FLOATS)
NARROW_LARGEST: dict[str, float] = dict(schema.NARROW_LARGEST.items())
INTEGERS: frozenset[str] = frozenset(schema.INTEGERS)


@cache
def storage_dtype(name: str) -> DType:
    """The numpy type that holds elements of `name` in memory."""
    if name in _ML_NAMES:
        import ml_dtypes

        dtype: DType = np.dtype(getattr(ml_dtypes, _ML_NAMES[name]))
        return dtype
    return np.dtype(_NUMPY_NAMES[name])


def compute_type(name: str) -> str:
    """The type in which elements of type `name` are computed: f32 for floats of 16 and 8 bits, else the type itself."""
    return "f32" if name in ("f16", "bf16", *NARROW_FLOATS) else name


def find_dtype_name(dtype: DType) -> str | None:
    """The plan's name for a numpy type of native byte order; None for types that plans cannot have."""
    known = _NAMES.get(dtype)
    return _ML_DTYPES.get(dtype.name) if known is None else known
