"""Floats of 8 bits as published files have them, widened while they are read, as transformers widens them.

They are tensors of type F8_E4M3 or F8_E5M2. `NAME_scale_inv` (DeepSeek) or `NAME_scale` (compressed-tensors), if there
is one, has a factor for each block of a matrix, for each row, or for all of it. Blocks are of 128 rows and columns, of
which the last may be cut off, or else of equal parts.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

import numpy as np

from einc_runtime.dtypes import Array, storage_dtype
from einc_runtime.errors import ArrayFault
from einc_runtime.execution.data.stored_arrays import StoredArray, StoredArrays
from einc_runtime.plan.element_types import ELEMENT_FORMATS
from einc_runtime.plan.schema import NARROW_BLOCK, Tensor

F8_TYPES = {each.safetensors: str(name) for name, each in ELEMENT_FORMATS.items() if each.safetensors.startswith("F8_")}
"""What a plan calls the types of safetensors."""
_FACTORS = ("_scale_inv", "_scale")
_INVERSE = "_inv"
"""What the names of scales in DeepSeek's layout end with, in place of nothing."""
_PAIRS, _EXPONENTS = "_blocks", "_scales"


def view_floats(files: StoredArrays, read_bytes: Callable[[str], Array]) -> StoredArrays:
    """The arrays with those of narrow floats as f32; `read_bytes` reads the bytes of an array of any type."""
    inverses = {name.removesuffix(_INVERSE) for name in files.names if name.endswith(_FACTORS[0])} - {*files.names}

    def find(name: str) -> StoredArray:
        name += _INVERSE * (name in inverses)
        stored = files.find(name)
        return _find_f8(files, name, stored, read_bytes) if stored.dtype in F8_TYPES else stored

    return StoredArrays({*files.names, *inverses}, find) if inverses else StoredArrays(files.names, find)


def find_packed(names: Collection[str]) -> set[str]:
    """The names of tensors of MXFP4 (gpt-oss), of which files have the pairs, `NAME_blocks`, and the exponents,
    `NAME_scales`."""
    pairs = (name.removesuffix(_PAIRS) for name in names if name.endswith(_PAIRS))
    return {base for base in pairs if base + _EXPONENTS in names and base not in names}


def _find_f8(files: StoredArrays, name: str, stored: StoredArray, read_bytes: Callable[[str], Array]) -> StoredArray:
    """A tensor of 8-bit floats, multiplied by its scales."""
    scale_name = next((name + end for end in _FACTORS if name + end in files.names), None)

    def widen(of: str, array: StoredArray, tensor: Tensor) -> Array:
        if array.dtype not in F8_TYPES:
            return array.read(tensor).astype(np.float32)
        values: Array = read_bytes(of).view(storage_dtype(F8_TYPES[array.dtype])).astype(np.float32)
        return values.reshape(array.shape)

    def read(tensor: Tensor) -> Array:
        values = widen(name, stored, tensor)
        if scale_name is None:
            return values
        scales = widen(scale_name, files.find(scale_name), tensor)
        return scale_blocks(values, scales, scale_name)

    kind = F8_TYPES[stored.dtype]
    narrow = StoredArray(kind, stored.shape, lambda _: read_bytes(name).view(storage_dtype(kind)).reshape(stored.shape))
    return StoredArray("f32", stored.shape, read, narrow=narrow)


def scale_blocks(values: Array, scales: Array, name: str) -> Array:
    """A tensor [..., rows, columns] with each block multiplied by its scale; `name` is that of the scales."""
    if scales.size == 1:
        return values * scales.reshape(())
    if values.ndim < 2 or scales.ndim > values.ndim:
        raise _make_fault(values, scales, name)
    grid = scales.reshape(*scales.shape, *[1] * (2 - scales.ndim)) if scales.ndim < 2 else scales
    for axis in (-2, -1):
        extent, count = values.shape[axis], grid.shape[axis]
        if count == -(-extent // NARROW_BLOCK):
            grid = np.repeat(grid, NARROW_BLOCK, axis).take(range(extent), axis)
        elif count and extent % count == 0:
            grid = np.repeat(grid, extent // count, axis)
        else:
            raise _make_fault(values, scales, name)
    if grid.shape[:-2] != values.shape[:-2]:
        raise _make_fault(values, scales, name)
    return values * grid


def _make_fault(values: Array, scales: Array, name: str) -> ArrayFault:
    return ArrayFault(f"'{name[:100]}' has scales of {list(scales.shape)}, which are none of {list(values.shape)}")
