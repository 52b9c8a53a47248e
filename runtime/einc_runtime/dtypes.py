"""Element types of a plan as numpy types. ml_dtypes is imported only when a plan has bf16 or f8."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from einc_runtime.plan import schema
from einc_runtime.plan.element_types import ELEMENT_FORMATS, find_element_type

Array = np.ndarray[Any, np.dtype[Any]]
Floats = np.ndarray[Any, np.dtype[np.float64]]
Ints = np.ndarray[Any, np.dtype[np.int64]]
DType = np.dtype[Any]

ITEMSIZE: dict[str, int] = dict(schema.ITEMSIZE.items())
_NAMES: dict[DType, str] = {np.dtype(each.numpy): name for name, each in ELEMENT_FORMATS.items() if each.numpy}
_ML_DTYPES: dict[str, str] = {each.ml: name for name, each in ELEMENT_FORMATS.items() if each.ml}

FLOATS: frozenset[str] = frozenset(schema.FLOATS)
NARROW_FLOATS: frozenset[str] = frozenset(schema.NARROW_FLOATS)
NARROW_LARGEST: dict[str, float] = dict(schema.NARROW_LARGEST.items())
INTEGERS: frozenset[str] = frozenset(schema.INTEGERS)


@cache
def storage_dtype(name: str) -> DType:
    """The numpy type that holds elements of `name` in memory."""
    known = find_element_type(name)
    if known.ml:
        import ml_dtypes

        dtype: DType = np.dtype(getattr(ml_dtypes, known.ml))
        return dtype
    return np.dtype(known.numpy)


def compute_type(name: str) -> str:
    """The type in which elements of type `name` are computed: f32 for floats of 16 and 8 bits, else the type itself."""
    return "f32" if name in ("f16", "bf16", "f8e8m0", *NARROW_FLOATS) else name


def find_dtype_name(dtype: DType) -> str | None:
    """The plan's name for a numpy type of native byte order; None for types that plans cannot have."""
    known = _NAMES.get(dtype)
    return _ML_DTYPES.get(dtype.name) if known is None else known
