"""Geometry of blocks: containment, intersection, difference, and whether blocks tile a tensor (paper, Definition 2)."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Sequence
from operator import sub

from einc_runtime.errors import PlanFault
from einc_runtime.plan.schema import Block


class Budget:
    """Bounds the work that a hostile plan may cause, where a real one causes far less."""

    def __init__(self, steps: int) -> None:
        self.left = steps

    def spend(self, steps: int, where: str) -> None:
        self.left -= steps
        if self.left < 0:
            raise PlanFault("the plan is too intricate to be checked", where=where)


def whole(shape: Sequence[int]) -> Block:
    """The block that is all of a tensor."""
    return Block((0,) * len(shape), tuple(shape))


def shape(block: Block) -> tuple[int, ...]:
    """Its extents."""
    return tuple(map(sub, block.upper, block.lower))


def size(block: Block) -> int:
    """Number of elements."""
    return math.prod(map(sub, block.upper, block.lower))


def show(block: Block) -> str:
    return "[" + ", ".join(f"{lo}:{up}" for lo, up in zip(block.lower, block.upper, strict=True)) + "]"


def inside(inner: Block, outer: Block) -> bool:
    """Whether `inner` has the rank of `outer` and lies in it."""
    if len(inner.lower) != len(outer.lower):
        return False
    for lo, up, first, last in zip(inner.lower, inner.upper, outer.lower, outer.upper, strict=True):
        if lo < first or last < up:
            return False
    return True


def overlap(a: Block, b: Block) -> bool:
    """Whether two blocks of equal rank have elements in common."""
    for lo, up, start, end in zip(a.lower, a.upper, b.lower, b.upper, strict=True):
        if lo >= end or start >= up:
            return False
    return True


def disjoint(blocks: Sequence[Block]) -> bool:
    """Whether no two of these have elements in common. Along the dimension that is cut most, few meet."""
    rank = len(blocks[0].lower) if blocks else 0
    along = max(range(rank), key=lambda d: len({block.lower[d] for block in blocks}), default=None)
    if along is None:
        return len(blocks) < 2
    near: list[Block] = []
    for block in sorted(blocks, key=lambda block: block.lower[along]):
        near = [other for other in near if other.upper[along] > block.lower[along]]
        if any(overlap(other, block) for other in near):
            return False
        near.append(block)
    return True


def intersect(a: Block, b: Block) -> Block | None:
    """The common part of two blocks of equal rank, or None where it is empty."""
    if not overlap(a, b):
        return None
    return Block(tuple(map(max, a.lower, b.lower)), tuple(map(min, a.upper, b.upper)))


def subtract(a: Block, b: Block) -> list[Block]:
    """Disjoint blocks that make up `a` without `b`, where `b` lies in `a`: at most two per dimension."""
    rest = []
    lower, upper = list(a.lower), list(a.upper)
    for d, (lo, up) in enumerate(zip(b.lower, b.upper, strict=True)):
        if lower[d] < lo:
            rest.append(Block(tuple(lower), (*upper[:d], lo, *upper[d + 1 :])))
        if up < upper[d]:
            rest.append(Block((*lower[:d], up, *lower[d + 1 :]), tuple(upper)))
        lower[d], upper[d] = lo, up
    return rest


def tiling_fault(outer: Block, blocks: Sequence[Block], budget: Budget, where: str) -> str | None:
    """Why distinct non-empty blocks inside `outer` do not tile it, in words, or None where they do.

    A block is the signed sum of its corners (the finite differences of its indicator function give them back), and
    indicator functions add up to that of `outer` exactly where the corners do. This takes time linear in the number
    of blocks; only dimensions that some block does not span count.
    """
    bounds = [list(zip(block.lower, block.upper, strict=True)) for block in blocks]
    spans = list(zip(outer.lower, outer.upper, strict=True))
    cut = [d for d, span in enumerate(spans) if any(block[d] != span for block in bounds)]
    if len(cut) >= len(blocks):  # a tiling by n blocks is cut along fewer than n dimensions
        return f"{len(blocks)} blocks cannot tile {show(outer)}"
    budget.spend(len(blocks) << len(cut), where)
    signs = [math.prod(sign) for sign in itertools.product((1, -1), repeat=len(cut))]
    corners: Counter[tuple[int, ...]] = Counter()
    for block in [*bounds, spans]:
        weight = 1 if block is not spans else -1
        for corner, sign in zip(itertools.product(*(block[d] for d in cut)), signs, strict=True):
            corners[corner] += weight * sign
    if any(corners.values()):
        covered = sum(map(size, blocks))
        return f"the blocks do not tile {show(outer)} ({covered} of {size(outer)} elements, overlaps counted)"
    return None
