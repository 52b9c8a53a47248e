"""Tilings, overlays of blocks, and join-agg specs (paper, Definitions 2, 4 and 5, and Section 5.3)."""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass

from einc.core.tensor import TensorType

Tiling = tuple[TensorType, ...]
"""Distinct blocks in ascending order."""


def build_tiling(blocks: Iterable[TensorType]) -> Tiling:
    """The distinct blocks of a family, in ascending order."""
    return tuple(sorted(set(blocks)))


def clip_tiling(tiling: Tiling, part: TensorType | None) -> Tiling:
    """What is left of a tiling in a part of the tensor; None stands for all of it."""
    if part is None:
        return tiling
    return build_tiling(inside for block in tiling if (inside := block.intersect(part)) is not None)


class Overlay:
    """The grid formed by the bounds of several families of blocks in one tensor type.

    Its cells are the *atoms*: every block of the families is a disjoint union of cells.
    """

    __slots__ = ("cuts",)

    def __init__(self, full: TensorType, *families: Iterable[TensorType]) -> None:
        bounds: list[set[int]] = [{lo, up} for lo, up in zip(full.lower, full.upper, strict=True)]
        for block in itertools.chain(*families):
            for cuts, lo, up in zip(bounds, block.lower, block.upper, strict=True):
                cuts.add(lo)
                cuts.add(up)
        self.cuts: tuple[tuple[int, ...], ...] = tuple(tuple(sorted(cuts)) for cuts in bounds)

    def cells(self, block: TensorType) -> list[TensorType]:
        """The cells that make up `block`, in ascending order; its bounds must be among the cuts."""
        ranges = []
        for cuts, lo, up in zip(self.cuts, block.lower, block.upper, strict=True):
            inside = cuts[bisect_left(cuts, lo) : bisect_left(cuts, up) + 1]
            ranges.append(list(itertools.pairwise(inside)))
        return [TensorType(tuple(r[0] for r in cell), tuple(r[1] for r in cell)) for cell in itertools.product(*ranges)]


@dataclass(frozen=True, slots=True)
class FunctionSpec:
    """The blocks that one concrete operator reads and writes, one per input and output."""

    inputs: tuple[TensorType, ...]
    outputs: tuple[TensorType, ...]


@dataclass(frozen=True, slots=True)
class JoinAggSpec:
    """The set of function specifications that together implement an abstract operator.

    They are in the lexicographic order of their intervals; each runs on its own site.
    """

    functions: tuple[FunctionSpec, ...]
