"""Geometry of several blocks: overlap, difference, and whether they tile a tensor (paper, Definition 2)."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Sequence

from einc_runtime.errors import PlanFault
from einc_runtime.plan.schema import Block


class StepBudget:
    """The number of steps that checking a plan may take. A hostile plan may need more; a real one needs far fewer."""

    def __init__(self, steps: int) -> None:
        self.left = steps

    def spend(self, steps: int, where: str) -> None:
        self.left -= steps
        if self.left < 0:
            raise PlanFault("the plan is too complex to be checked", where=where)


def are_disjoint(blocks: Sequence[Block]) -> bool:
    """Whether no two of these have elements in common."""
    return find_overlap(blocks) is None


def find_overlap(blocks: Sequence[Block], budget: StepBudget | None = None, where: str = "") -> tuple[int, int] | None:
    """The positions of two blocks with elements in common, the smaller first, or None where there are none.

    Compares neighbours along the dimension with most cuts.
    """
    rank = len(blocks[0].lower) if blocks else 0
    along = max(range(rank), key=lambda d: len({block.lower[d] for block in blocks}), default=None)
    if along is None:
        return None if len(blocks) < 2 else (0, 1)
    near: list[int] = []
    for position in sorted(range(len(blocks)), key=lambda position: blocks[position].lower[along]):
        block = blocks[position]
        near = [earlier for earlier in near if blocks[earlier].upper[along] > block.lower[along]]
        if budget is not None:
            budget.spend(1 + len(near), where)
        for earlier in near:
            if blocks[earlier].overlaps(block):
                return min(earlier, position), max(earlier, position)
        near.append(position)
    return None


def subtract(a: Block, b: Block) -> list[Block]:
    """Disjoint blocks that make up `a` without `b`, where `b` lies in `a`: at most two per dimension."""
    remaining = []
    lower, upper = list(a.lower), list(a.upper)
    for d, (lo, up) in enumerate(zip(b.lower, b.upper, strict=True)):
        if lower[d] < lo:
            remaining.append(Block(tuple(lower), (*upper[:d], lo, *upper[d + 1 :])))
        if up < upper[d]:
            remaining.append(Block((*lower[:d], up, *lower[d + 1 :]), tuple(upper)))
        lower[d], upper[d] = lo, up
    return remaining


def find_uncovered(outer: Block, blocks: Sequence[Block], budget: StepBudget, where: str) -> Block | None:
    """A part of `outer` that is in none of these blocks, which may overlap and go beyond it; None where there is none.

    What is left of `outer` is kept as disjoint blocks.
    """
    left = [outer]
    for block in dict.fromkeys(blocks):
        budget.spend(1 + len(left), where)
        remaining: list[Block] = []
        for part in left:
            common = part.intersect(block)
            remaining += [part] if common is None else subtract(part, common)
        left = remaining
    return left[0] if left else None


def find_tiling_fault(outer: Block, blocks: Sequence[Block], budget: StepBudget, where: str) -> str | None:
    """Why distinct non-empty blocks inside `outer` do not tile it, in words, or None where they do.

    Each corner of a block gets a sign: the product of +1 for every lower and -1 for every upper bound in it. The signed
    corners are the finite differences of the block's indicator function, so they determine it. Therefore the indicator
    functions of the blocks add up to that of `outer` exactly if the signed corners do. The time is linear in the number
    of blocks. Dimensions that all blocks span are left out.
    """
    bounds = [list(zip(block.lower, block.upper, strict=True)) for block in blocks]
    spans = list(zip(outer.lower, outer.upper, strict=True))
    cut = [d for d, span in enumerate(spans) if any(block[d] != span for block in bounds)]
    if len(cut) >= len(blocks):  # a tiling by n blocks is cut along fewer than n dimensions
        return f"{len(blocks)} blocks cannot tile {outer}"
    budget.spend(len(blocks) << len(cut), where)
    signs = [math.prod(sign) for sign in itertools.product((1, -1), repeat=len(cut))]
    corners: Counter[tuple[int, ...]] = Counter()
    for block in [*bounds, spans]:
        weight = 1 if block is not spans else -1
        for corner, sign in zip(itertools.product(*(block[d] for d in cut)), signs, strict=True):
            corners[corner] += weight * sign
    if any(corners.values()):
        covered = sum(block.size for block in blocks)
        return f"the blocks do not tile {outer} ({covered} of {outer.size} elements, overlaps counted)"
    return None
