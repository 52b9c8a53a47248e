"""Tensors in parts: blocks of one tensor as arrays of their own, with names that say where they lie.

`y[0:192, 192:384]` has rows 0 to 191 of `y`, and columns 192 to 383; `y[0:192]` has these rows, of which each is whole,
and its array may have the elements of a row in several dimensions. A block that is a whole tensor has its name.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from einc_runtime.dtypes import Array, storage_dtype
from einc_runtime.errors import PlanFault
from einc_runtime.execution.data.stored_arrays import StoredArray, StoredArrays
from einc_runtime.plan.boxes import StepBudget, find_uncovered
from einc_runtime.plan.schema import Block, Tensor

MAX_PART_STEPS = 1 << 20
"""Steps for the parts of one tensor. There are some thousand at most: one for each site, or for its cells."""

_PART_NAME = re.compile(r"(?P<name>.+)\[(?P<ends>\d{1,18}:\d{1,18}(?:, \d{1,18}:\d{1,18}){0,31})\]", re.DOTALL)


@dataclass(frozen=True, slots=True)
class TensorPart:
    """A block of a tensor, and the name of the array that has it; whether its name says nothing but rows."""

    block: Block
    stored: str
    has_rows: bool = False


def name_block(name: str, block: Block, shape: Sequence[int]) -> str:
    """The name of a tensor's block."""
    if block == Block.whole(shape):
        return name
    ends = ", ".join(f"{lower}:{upper}" for lower, upper in zip(block.lower, block.upper, strict=True))
    return f"{name}[{ends}]"


def find_parts(names: Collection[str]) -> Mapping[str, tuple[TensorPart, ...]]:
    """The parts among the names of arrays, by the name of their tensor."""
    parts_by_name: dict[str, list[TensorPart]] = {}
    for stored in names:
        match = _PART_NAME.fullmatch(stored)
        if match is not None:
            ends = [tuple(map(int, interval.split(":"))) for interval in match["ends"].split(", ")]
            block = Block(tuple(lower for lower, _ in ends), tuple(upper for _, upper in ends))
            parts_by_name.setdefault(match["name"], []).append(TensorPart(block, stored))
    return {name: tuple(tensor_parts) for name, tensor_parts in parts_by_name.items()}


def _extend_rows(part: TensorPart, shape: Sequence[int]) -> TensorPart:
    """The part of a tensor of that shape: rows are whole where nothing is said of them."""
    lower, upper = part.block.lower, part.block.upper
    if len(lower) != 1 or len(shape) < 2:
        return part
    return TensorPart(Block((*lower, *(0 for _ in shape[1:])), (*upper, *shape[1:])), part.stored, has_rows=True)


def _has_elements(shape: Sequence[int], part: TensorPart) -> bool:
    """Whether an array of that shape has the block, or as many elements as rows have."""
    return tuple(shape) == part.block.shape or (part.has_rows and math.prod(shape) == part.block.size)


def join_parts(
    tensor: Tensor, parts: Sequence[TensorPart], files: StoredArrays, needed_blocks: Sequence[Block]
) -> StoredArray | str:
    """The parts as one array of the tensor's shape, or what is wrong with them.

    Only the parts that have something of `needed_blocks` are read. The rest of the array has no values, and no
    memory either, until something is written there.
    """
    full_block = Block.whole(tensor.shape)
    parts = [_extend_rows(part, tensor.shape) for part in parts]
    stored_parts = [(part, files.find(part.stored)) for part in parts]
    for part, array in stored_parts:
        if not full_block.contains(part.block) or not part.block.size:
            return f"should be {tensor.dtype}{list(tensor.shape)}, and '{part.stored}' is not inside"
        if not _has_elements(array.shape, part):
            return (
                f"is in parts, of which '{part.stored}' should be {list(part.block.shape)}, found {list(array.shape)}"
            )
    kinds = sorted({array.dtype for _, array in stored_parts})
    if len(kinds) > 1:
        return f"is in parts of different types: {', '.join(kinds)}"
    budget = StepBudget(MAX_PART_STEPS)
    try:
        lacking = (
            find_uncovered(block, [part.block for part in parts], budget, tensor.name) for block in needed_blocks
        )
        missing = next((position for position in lacking if position is not None), None)
    except PlanFault:
        return f"is in {len(parts)} parts, which are too many to be put together"
    if missing is not None:
        return f"is in {len(parts)} parts, and none has {missing}"
    needed = [
        (part, array) for part, array in stored_parts if any(part.block.overlaps(block) for block in needed_blocks)
    ]

    def read(_: Tensor) -> Array:
        values = np.empty(tensor.shape, storage_dtype(kinds[0]))
        for part, array in needed:
            slices: tuple[Any, ...] = tuple(
                slice(lo, up) for lo, up in zip(part.block.lower, part.block.upper, strict=True)
            )
            values[(*slices, ...)] = array.read(tensor).reshape(part.block.shape)
        return values

    return StoredArray(kinds[0], tensor.shape, read)
