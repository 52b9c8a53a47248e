"""Parts of quantized weights as the layouts of published files have them, converted while they are read.

In a plan, values are i8, or pairs of 4 bits in bytes (each plus 8, the first in the low half), by rows; zero points are
i8. Files have 32-bit words of 8 or 4 values, the first in the lowest bits:

- `plain` (compressed-tensors): rows as in a plan. Values of 8 bits are i8 as they are, or are in words, each plus 128.
  Zero points are i8, or are in words along the rows, each plus 8 or 128. Floats of 4 bits and powers of two are bytes.
- `gptq`: [k / 8, n] words along k, scales [groups, n], zero points [groups, n / 8], each less 1; `gptq_v2`: not less 1.
  Groups must be neighbours: a `g_idx` that says otherwise is refused.
- `blocks`: floats of 8 bits in rows as in a plan, with a scale for each block of 128 rows and 128 columns. In a plan
  every row has the scales of its blocks, so that rows may be cut anywhere.
- `packed` (gpt-oss): pairs of 4 bits by groups, [rows, groups, 16], with a power of two for each group beside them.
- `inverse`: a number that tensors were multiplied with, of which a plan has the inverse as a factor.
- `awq`: [k, n / 8] words along n, in the order 0, 2, 4, 6, 1, 3, 5, 7 from the lowest bits, 4 bits alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from einc_runtime.dtypes import Array, storage_dtype
from einc_runtime.errors import ArrayFault
from einc_runtime.execution.data.stored_arrays import StoredArray, StoredArrays
from einc_runtime.plan.schema import NARROW_BLOCK, NARROW_FLOATS, QUANTIZED, Tensor

AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
"""The columns of eight that a word has, from its lowest bits."""
LAYOUTS = ("gptq", "gptq_v2", "awq", "blocks", "packed", "inverse")
PACKED = "_packed"


def split_layout(name: str) -> tuple[str, str]:
    """The layout that a stored name starts with, empty for plain ones, and the rest of the name."""
    layout, colon, stored_name = name.partition(":")
    return (layout, stored_name) if colon and layout in LAYOUTS else ("", name)


def view_layout(files: StoredArrays, layout: str, tensor: Tensor) -> StoredArrays:
    """The arrays as a plan has them; those that are not converted are as they were."""
    if layout == "inverse":
        return StoredArrays(files.names, lambda name: _invert(files.find(name)))
    if layout == "packed":
        return StoredArrays(files.names, lambda name: _join_groups(files.find(name)))
    if layout == "blocks":
        return StoredArrays(files.names, lambda name: _repeat_rows(files, name))
    if layout:
        return StoredArrays(files.names, lambda name: _convert(files, layout, name, tensor))
    if tensor.dtype in NARROW_FLOATS:
        return StoredArrays(files.names, lambda name: files.find(name).narrow or files.find(name))
    if tensor.dtype not in QUANTIZED:
        return files
    packed = {name.removesuffix(PACKED) for name in files.names if name.endswith(PACKED)}
    convert = _convert_bytes if tensor.dtype in _OF_BYTES else _convert_plain
    return StoredArrays({*files.names, *packed}, lambda name: convert(files, name, tensor))


_OF_BYTES = ("f4x2", "f8e8m0")
"""Types whose bytes files may have as bytes of no type."""


def _convert_bytes(files: StoredArrays, name: str, tensor: Tensor) -> StoredArray:
    stored = files.find(name if name in files.names else name + PACKED)
    if stored.narrow is not None or stored.dtype != "i4x2":
        return stored.narrow or stored
    kind = storage_dtype(tensor.dtype)
    return StoredArray(tensor.dtype, stored.shape, lambda t: stored.read(t).view(kind))


def _invert(stored: StoredArray) -> StoredArray:
    """The inverse of one number, as a tensor without dimensions."""
    if math.prod(stored.shape) != 1 or stored.dtype != "f32":
        return stored

    def read(tensor: Tensor) -> Array:
        with np.errstate(divide="ignore"):
            inverse: Array = np.float32(1) / stored.read(tensor).reshape(())
        return np.asarray(inverse)

    return StoredArray("f32", (), read)


def _join_groups(stored: StoredArray) -> StoredArray:
    """The values of groups [..., groups, bytes] as rows."""
    if stored.dtype != "i4x2" or len(stored.shape) < 2:
        return stored
    *outer, groups, width = stored.shape
    shape = (*outer, groups * width)
    return StoredArray("f4x2", shape, lambda t: stored.read(t).reshape(shape).view(storage_dtype("f4x2")))


def _repeat_rows(files: StoredArrays, name: str) -> StoredArray:
    """The scales of blocks, of which each row of a block has those of its own."""
    stored, values = files.find(name), name.removesuffix("_scale")
    shape = files.find(values).shape if values in files.names else ()
    if len(shape) != 2 or len(stored.shape) != 2 or stored.shape[0] != -(-shape[0] // NARROW_BLOCK):
        return stored

    def read(tensor: Tensor) -> Array:
        scales = stored.read(tensor).astype(np.float32, copy=False)
        repeated: Array = np.repeat(scales, NARROW_BLOCK, axis=0)[: shape[0]]
        return repeated

    return StoredArray("f32", (shape[0], stored.shape[1]), read)


def unpack_words(words: Array, bits: int, axis: int) -> Array:
    """The values in 32-bit words, as uint8, along an axis of a matrix."""
    shifts = np.arange(0, 32, bits, dtype=np.uint32)
    mask = np.uint32((1 << bits) - 1)
    wide = np.ascontiguousarray(words).view(np.uint32)
    parts = np.stack([((wide >> shift) & mask).astype(np.uint8) for shift in shifts], axis=axis + 1)
    shape = list(words.shape)
    shape[axis] *= len(shifts)
    return parts.reshape(shape)


def pack_pairs(values: Array) -> Array:
    """Values from 0 to 15 along the last axis, two in a byte, the first in the low half."""
    packed: Array = values[..., 0::2] | values[..., 1::2] << 4
    return packed


def _convert_plain(files: StoredArrays, name: str, tensor: Tensor) -> StoredArray:
    stored = files.find(name if name in files.names else name + PACKED)
    if stored.dtype != "i32" or not stored.shape:
        return stored
    *rows, words = stored.shape
    if tensor.dtype == "i4x2":
        return StoredArray("i4x2", (*rows, words * 4), lambda t: _bytes_of(stored.read(t)))
    if not name.endswith("_zero_point"):
        return StoredArray("i8", (*rows, words * 4), lambda t: (_bytes_of(stored.read(t)) ^ 0x80).view(np.int8))
    scales = files.find(name.removesuffix("_zero_point") + "_scale")
    count = scales.shape[0] if scales.shape else 0
    bits = 4 if stored.shape[0] == -(-count // 8) else 8

    def read(t: Tensor) -> Array:
        values = unpack_words(stored.read(t), bits, 0)[:count]
        return (values.astype(np.int16) - (1 << bits - 1)).astype(np.int8)

    return StoredArray("i8", (count, *stored.shape[1:]), read)


def _bytes_of(words: Array) -> Array:
    little = np.ascontiguousarray(words).astype("<i4", copy=False)
    return little.view(np.uint8)


def _convert(files: StoredArrays, layout: str, name: str, tensor: Tensor) -> StoredArray:
    """The array `name` of GPTQ or AWQ: rows and columns are exchanged, and values are unpacked."""
    stored = files.find(name)
    base, _, part = name.rpartition(".")
    if len(stored.shape) != 2:
        return stored
    first, second = stored.shape
    if part == "scales":
        return StoredArray(stored.dtype, (second, first), lambda t: stored.read(t).T)
    if stored.dtype != "i32" or f"{base}.scales" not in files.names:
        return stored
    groups, columns = files.find(f"{base}.scales").shape
    if part == "qzeros":
        return StoredArray("i8", (columns, groups), lambda t: _read_zeros(stored.read(t), layout, columns, name))
    bits = 4 if tensor.dtype == "i4x2" else 8
    if layout == "awq":
        return StoredArray(tensor.dtype, (second * 8, first // 2), lambda t: pack_pairs(_unpack_awq(stored.read(t)).T))
    check = _find_order(files, base, groups)

    def read(t: Tensor) -> Array:
        check(t)
        values = unpack_words(stored.read(t), bits, 0).T
        return pack_pairs(values) if bits == 4 else (np.ascontiguousarray(values) ^ 0x80).view(np.int8)

    depth = first * (32 // bits)
    return StoredArray(tensor.dtype, (second, depth // 2 if bits == 4 else depth), read)


def _unpack_awq(words: Array) -> Array:
    values = unpack_words(words, 4, 1).reshape(len(words), -1, 8)
    unpacked: Array = values[..., np.argsort(AWQ_ORDER)].reshape(len(words), -1)
    return unpacked


def _read_zeros(words: Array, layout: str, columns: int, name: str) -> Array:
    """Zero points [columns, groups], less what values are stored plus."""
    bits = 32 * words.shape[1] // max(1, columns)
    values = _unpack_awq(words) if layout == "awq" else unpack_words(words, bits if bits in (4, 8) else 4, 1)
    zeros = values[:, :columns].T.astype(np.int16) - (1 << bits - 1) + (layout == "gptq")
    if zeros.size and zeros.max() > 127:
        raise ArrayFault(f"'{name}' has a zero point of {zeros.max() + (1 << bits - 1)}, and at most 255 is supported")
    signed: Array = zeros.astype(np.int8)
    return signed


def _find_order(files: StoredArrays, base: str, groups: int) -> Callable[[Tensor], None]:
    """Returns what raises ArrayFault where a `g_idx` puts elements into groups that are not neighbours."""
    name = f"{base}.g_idx"
    if name not in files.names:
        return lambda _: None
    stored = files.find(name)

    def check(tensor: Tensor) -> None:
        order = stored.read(tensor).ravel()
        if not np.array_equal(order, np.arange(len(order)) * groups // max(1, len(order))):
            raise ArrayFault(
                f"'{name}' orders groups by activations (desc_act), which is not supported",
                hint="quantize the model without desc_act, or with static groups",
            )

    return check
