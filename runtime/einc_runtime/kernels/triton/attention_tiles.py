"""How large the tiles of the kernel `attention` are, and the parts of their columns."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from einc_runtime.kernels.triton.source import power_of_two

SMALL_MEMORY = frozenset({"sm_86", "sm_89", "sm_120", "sm_121", "gfx90a", "gfx942"})
"""Architectures with at most 99 KiB of shared memory for a program: tiles are smaller, with fewer pipeline stages."""


@dataclass(frozen=True, slots=True)
class AttentionTile:
    """The size of a program's work: rows and keys in a tile, warps, and stages of the pipeline of loads."""

    rows: int
    keys: int
    warps: int
    stages: int

    @staticmethod
    def choose(kind: str, head: int, rows: int, architecture: str) -> AttentionTile:
        """By type, width of heads and number of rows. 16-bit types use tensor cores, which need large tiles."""
        stages = 2 if architecture in SMALL_MEMORY else 3
        if kind in ("f16", "bf16"):
            large = 128 if head <= 128 and stages == 3 else 64 if head <= 256 else 32
            keys = 64 if head <= 128 else 32 if head <= 512 else 16
            row_count = min(large, max(16, power_of_two(rows)))
            return AttentionTile(row_count, keys, 8 if row_count * head >= 128 * 128 else 4, stages)
        small = 32 if kind == "f32" and head <= 128 else 16
        return AttentionTile(min(2 * small, max(16, power_of_two(rows))), small, 4, 2)


def divide_columns(width: int) -> tuple[tuple[int, int], ...]:
    """The parts of the columns of a tile, whose extents are powers of two: where each begins, and its extent. One has
    all of them, but if a tile of more than 512 columns would be padded to twice as many: latent rows of 576."""
    span = power_of_two(max(16, width))
    if span <= 512:
        return ((0, span),)
    half = span // 2
    return ((0, half), (half, power_of_two(max(16, width - half))))


@dataclass(frozen=True, slots=True)
class ColumnPart:
    """Some columns of a tile: the name of the vector that has them, and what stands behind names that are theirs."""

    columns: str
    number: str
    start: int
    span: int
    width: int

    @property
    def arange(self) -> str:
        return f"{f'{self.start} + ' if self.start else ''}tl.arange(0, {self.span})"

    def inside(self, columns: str) -> str:
        """The condition for columns that there are; empty where that is so for all."""
        return f"({columns} < {self.width})" if self.start + self.span > self.width else ""


def name_parts(letter: str, width: int) -> Iterator[ColumnPart]:
    for number, (start, span) in enumerate(divide_columns(width)):
        suffix = str(number) if number else ""
        yield ColumnPart(letter + suffix, suffix, start, span, width)
