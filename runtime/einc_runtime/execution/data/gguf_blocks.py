"""The element types of GGUF files, and what blocks of them stand for (ggml-common.h and ggml-quants.c of ggml).

A block has `elements` neighbours of a row in `bytes` bytes. What a type has here as a function is widened to f32, with
the same operations in the same order as in ggml, so that results have the same bits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from einc_runtime.dtypes import Array

BLOCK_ELEMENTS = 32
"""Elements of a block of the simple types."""
SUPER_BLOCK_ELEMENTS = 256
"""Elements of a block of the types called K."""
_WIDENED_AT_ONCE = 1 << 22  # elements that are widened at a time: their temporary arrays stay below 100 MB


@dataclass(frozen=True, slots=True)
class BlockType:
    name: str
    elements: int
    bytes: int


BLOCK_TYPES = {
    number: BlockType(name, elements, size)
    for number, name, elements, size in (
        (0, "F32", 1, 4), (1, "F16", 1, 2), (2, "Q4_0", 32, 18), (3, "Q4_1", 32, 20), (6, "Q5_0", 32, 22),
        (7, "Q5_1", 32, 24), (8, "Q8_0", 32, 34), (9, "Q8_1", 32, 40), (10, "Q2_K", 256, 84), (11, "Q3_K", 256, 110),
        (12, "Q4_K", 256, 144), (13, "Q5_K", 256, 176), (14, "Q6_K", 256, 210), (15, "Q8_K", 256, 292),
        (16, "IQ2_XXS", 256, 66), (17, "IQ2_XS", 256, 74), (18, "IQ3_XXS", 256, 98), (19, "IQ1_S", 256, 50),
        (20, "IQ4_NL", 32, 18), (21, "IQ3_S", 256, 110), (22, "IQ2_S", 256, 82), (23, "IQ4_XS", 256, 136),
        (24, "I8", 1, 1), (25, "I16", 1, 2), (26, "I32", 1, 4), (27, "I64", 1, 8), (28, "F64", 1, 8),
        (29, "IQ1_M", 256, 56), (30, "BF16", 1, 2), (34, "TQ1_0", 256, 54), (35, "TQ2_0", 256, 66),
        (39, "MXFP4", 32, 17),
    )
}  # fmt: skip
"""By their number in files."""
BYTES_PER_BLOCK = {kind.name: kind.bytes for kind in BLOCK_TYPES.values()}
DENSE_TYPES = {"F32": "f32", "F16": "f16", "BF16": "bf16", "F64": "f64", "I32": "i32", "I64": "i64"}
"""What einc calls the types that are no blocks."""


def widen_blocks(data: Array, kind: str) -> Array:
    """The elements [blocks * elements] of blocks, as f32."""
    widen, size = WIDENING[kind], BYTES_PER_BLOCK[kind]
    blocks = data.reshape(-1, size)
    elements = BLOCK_ELEMENTS if kind in _SIMPLE else SUPER_BLOCK_ELEMENTS
    result = np.empty((len(blocks), elements), np.float32)
    step = max(1, _WIDENED_AT_ONCE // elements)
    with np.errstate(invalid="ignore", over="ignore"):  # scales may be infinities
        for first in range(0, len(blocks), step):
            result[first : first + step] = widen(blocks[first : first + step])
    return result.reshape(-1)


def split_q8(data: Array) -> tuple[Array, Array]:
    """The integers [blocks, 32] of Q8_0, as i8, and the scale of each block, as f16."""
    blocks = data.reshape(-1, BYTES_PER_BLOCK["Q8_0"])
    return np.ascontiguousarray(blocks[:, 2:]).view(np.int8), _floats(blocks, 0)[:, 0]


def split_q4(data: Array) -> tuple[Array, Array]:
    """The pairs [blocks, 16] of Q4_0, as plans have them (each plus 8, neighbours in one byte), and scales as f16."""
    blocks = data.reshape(-1, BYTES_PER_BLOCK["Q4_0"])
    values = _nibbles(blocks[:, 2:])
    return values[:, 0::2] | values[:, 1::2] << 4, _floats(blocks, 0)[:, 0]


def _floats(blocks: Array, offset: int) -> Array:
    """The f16 [blocks, 1] at an offset of each block."""
    return np.ascontiguousarray(blocks[:, offset : offset + 2]).view("<f2")


def _wide(blocks: Array, offset: int) -> Array:
    return _floats(blocks, offset).astype(np.float32)


def _nibbles(pairs: Array) -> Array:
    """Values of 4 bits [blocks, 2 n] of bytes [blocks, n]: first all low halves, then all high ones."""
    return np.concatenate([pairs & 15, pairs >> 4], axis=1)


def _fifth_bits(blocks: Array, offset: int) -> Array:
    """The bits [blocks, 32] of four bytes, the lowest first, where the fifth bit of a value is."""
    return np.unpackbits(blocks[:, offset : offset + 4], axis=1, bitorder="little") << 4


def _widen_q4_0(blocks: Array) -> Array:
    return _wide(blocks, 0) * (_nibbles(blocks[:, 2:]).astype(np.float32) - 8)


def _widen_q4_1(blocks: Array) -> Array:
    return _wide(blocks, 0) * _nibbles(blocks[:, 4:]).astype(np.float32) + _wide(blocks, 2)


def _widen_q5_0(blocks: Array) -> Array:
    values = _nibbles(blocks[:, 6:]) | _fifth_bits(blocks, 2)
    return _wide(blocks, 0) * (values.astype(np.float32) - 16)


def _widen_q5_1(blocks: Array) -> Array:
    values = _nibbles(blocks[:, 8:]) | _fifth_bits(blocks, 4)
    return _wide(blocks, 0) * values.astype(np.float32) + _wide(blocks, 2)


def _widen_q8_0(blocks: Array) -> Array:
    return _wide(blocks, 0) * np.ascontiguousarray(blocks[:, 2:]).view(np.int8).astype(np.float32)


def _read_scales(blocks: Array) -> tuple[Array, Array]:
    """The scales and minima [blocks, 8, 1] of the parts of 32 elements in Q4_K and Q5_K: f16 times 6 bits each.

    Twelve bytes have 16 numbers: the low 6 bits of the first eight bytes, and for the second half of the parts the
    nibbles of the last four, below the two high bits of the first eight.
    """
    packed = blocks[:, 4:16].reshape(-1, 3, 4)
    low, high, high_parts = packed[:, 0], packed[:, 1], packed[:, 2]
    scales = np.concatenate([low & 63, (high_parts & 15) | (low >> 2 & 48)], axis=1)
    minima = np.concatenate([high & 63, (high_parts >> 4) | (high >> 2 & 48)], axis=1)
    return (
        (_wide(blocks, 0) * scales.astype(np.float32))[..., None],
        (_wide(blocks, 2) * minima.astype(np.float32))[..., None],
    )


def _nibbles_of_parts(pairs: Array) -> Array:
    """Values of 4 bits [blocks, 8, 32]: each 32 bytes have one part in their low halves, and the next one above."""
    quarters = pairs.reshape(-1, 4, 1, 32)
    return np.concatenate([quarters & 15, quarters >> 4], axis=2).reshape(-1, 8, 32)


def _widen_q4_k(blocks: Array) -> Array:
    scales, minima = _read_scales(blocks)
    elements: Array = scales * _nibbles_of_parts(blocks[:, 16:]).astype(np.float32) - minima
    return elements.reshape(-1, SUPER_BLOCK_ELEMENTS)


def _widen_q5_k(blocks: Array) -> Array:
    scales, minima = _read_scales(blocks)
    shifts = np.arange(8, dtype=np.uint8)[:, None]  # bit p of a byte belongs to part p
    fifth = (blocks[:, None, 16:48] >> shifts & 1) << 4
    values = _nibbles_of_parts(blocks[:, 48:]) | fifth
    elements: Array = scales * values.astype(np.float32) - minima
    return elements.reshape(-1, SUPER_BLOCK_ELEMENTS)


def _widen_q6_k(blocks: Array) -> Array:
    pairs = blocks[:, :128].reshape(-1, 2, 1, 64)
    low = np.concatenate([pairs & 15, pairs >> 4], axis=2).reshape(-1, 8, 32)
    shifts = np.arange(0, 8, 2, dtype=np.uint8)[:, None]
    high = (blocks[:, 128:192].reshape(-1, 2, 1, 32) >> shifts & 3).reshape(-1, 8, 32)
    values = (low | high << 4).astype(np.float32).reshape(-1, 16, 16) - 32
    scales = np.ascontiguousarray(blocks[:, 192:208]).view(np.int8).astype(np.float32) * _wide(blocks, 208)
    elements: Array = scales[..., None] * values
    return elements.reshape(-1, SUPER_BLOCK_ELEMENTS)


WIDENING: dict[str, Callable[[Array], Array]] = {
    "Q4_0": _widen_q4_0, "Q4_1": _widen_q4_1, "Q5_0": _widen_q5_0, "Q5_1": _widen_q5_1, "Q8_0": _widen_q8_0,
    "Q4_K": _widen_q4_k, "Q5_K": _widen_q5_k, "Q6_K": _widen_q6_k,
}  # fmt: skip
_SIMPLE = frozenset(("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"))
