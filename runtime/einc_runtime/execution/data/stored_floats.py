"""Floats of 8 and 4 bits as published files have them, widened while they are read, as transformers widens them.

- F8: a tensor of type F8_E4M3 or F8_E5M2. `NAME_scale_inv` (DeepSeek) or `NAME_scale` (compressed-tensors), if there is
  one, has a factor for each block of a matrix, for each row, or for all of it. Blocks are of 128 rows and columns, of
  which the last may be cut off, or else of equal parts.
- MXFP4 (gpt-oss): `NAME_blocks` [experts, rows, groups, 16] has two values of 4 bits in a byte, the first in the low
  half, and `NAME_scales` [experts, rows, groups] an exponent of two, plus 127, for each 32 of them. The tensor is
  NAME [experts, columns, rows].
"""

from __future__ import annotations

from collections.abc import Callable, Collection

import numpy as np

from einc_runtime.dtypes import Array, storage_dtype
from einc_runtime.errors import ArrayFault
from einc_runtime.execution.data.stored_arrays import StoredArray, StoredArrays
from einc_runtime.plan.schema import NARROW_BLOCK, Tensor

F8_TYPES = {"F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2", "F8_E8M0": "float8_e8m0fnu"}
"""What ml_dtypes calls the types of safetensors."""
F4_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)
"""What 4 bits stand for (E2M1): a sign, two bits of an exponent, one of a fraction."""
_FACTORS = ("_scale_inv", "_scale")
_INVERSE = "_inv"
"""What the names of scales in DeepSeek's layout end with, in place of nothing."""
PLAN_TYPES = {"F8_E4M3": "f8e4m3", "F8_E5M2": "f8e5m2"}
"""What a plan calls them; it has no exponents alone."""
_PAIRS, _EXPONENTS = "_blocks", "_scales"


def view_floats(files: StoredArrays, read_bytes: Callable[[str], Array]) -> StoredArrays:
    """The arrays with those of narrow floats as f32; `read_bytes` reads the bytes of an array of any type."""
    packed = find_packed(files.names)
    inverses = {name.removesuffix(_INVERSE) for name in files.names if name.endswith(_FACTORS[0])} - {*files.names}

    def find(name: str) -> StoredArray:
        if name in packed:
            return _find_f4(files, name)
        name += _INVERSE * (name in inverses)
        stored = files.find(name)
        return _find_f8(files, name, stored, read_bytes) if stored.dtype in F8_TYPES else stored

    more = packed | inverses
    return StoredArrays({*files.names, *more}, find) if more else StoredArrays(files.names, find)


def find_packed(names: Collection[str]) -> set[str]:
    """The names of tensors of MXFP4, of which files have the pairs and the exponents."""
    pairs = (name.removesuffix(_PAIRS) for name in names if name.endswith(_PAIRS))
    return {base for base in pairs if base + _EXPONENTS in names and base not in names}


def _find_f8(files: StoredArrays, name: str, stored: StoredArray, read_bytes: Callable[[str], Array]) -> StoredArray:
    """A tensor of 8-bit floats, multiplied by its scales."""
    scale_name = next((name + end for end in _FACTORS if name + end in files.names), None)

    def widen(of: str, array: StoredArray, tensor: Tensor) -> Array:
        if array.dtype not in F8_TYPES:
            return array.read(tensor).astype(np.float32)
        import ml_dtypes

        values: Array = read_bytes(of).view(getattr(ml_dtypes, F8_TYPES[array.dtype])).astype(np.float32)
        return values.reshape(array.shape)

    def read(tensor: Tensor) -> Array:
        values = widen(name, stored, tensor)
        if scale_name is None:
            return values
        scales = widen(scale_name, files.find(scale_name), tensor)
        return scale_blocks(values, scales, scale_name)

    kind = PLAN_TYPES.get(stored.dtype)
    narrow = None
    if kind is not None:
        narrow = StoredArray(
            kind, stored.shape, lambda _: read_bytes(name).view(storage_dtype(kind)).reshape(stored.shape)
        )
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


def _find_f4(files: StoredArrays, name: str) -> StoredArray:
    """A tensor of MXFP4, in the order that transformers has it: the last two dimensions are exchanged."""
    blocks, exponents = files.find(name + _PAIRS), files.find(name + _EXPONENTS)
    if blocks.dtype != "i4x2" or exponents.dtype != "i4x2" or blocks.shape[:-1] != exponents.shape:
        return StoredArray("unfit blocks", blocks.shape, blocks.read)
    *outer, rows, groups, width = blocks.shape if len(blocks.shape) > 2 else (1, *blocks.shape)

    def read(tensor: Tensor) -> Array:
        pairs = blocks.read(tensor).view(np.uint8)
        table = np.array(F4_VALUES, np.float32)
        values = np.stack([table[pairs & 15], table[pairs >> 4]], axis=-1).reshape(*pairs.shape[:-1], 2 * width)
        powers = exponents.read(tensor).view(np.uint8).astype(np.int32) - 127
        scaled = np.ldexp(values, powers[..., None]).reshape(*outer, rows, groups * width * 2)
        exchanged: Array = np.swapaxes(scaled, -1, -2)
        return exchanged

    return StoredArray("f32", (*outer, groups * width * 2, rows), read)
