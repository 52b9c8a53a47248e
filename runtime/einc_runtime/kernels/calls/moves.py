"""Invocations of the kernels that move elements as they are (`concat`, `regroup`), and moves of whole regions:
attributes, arrays and blocks held against each other."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from einc_runtime.dtypes import Array
from einc_runtime.errors import PlanFault
from einc_runtime.kernels.base import Invocation


def concat_parts(invocation: Invocation[Array]) -> tuple[list[Array], list[Array]]:
    """Parts of the inputs, and the parts of the output that get them; what inputs have beside that is not looked at."""
    invocation.allow("axis", "extents")
    inputs, target = invocation.inputs, invocation.output
    axis, extents = invocation.attribute("axis", int), invocation.integers("extents")
    if not 0 <= axis < target.ndim or len(extents) != len(inputs):
        raise PlanFault(f"concat of {len(inputs)} inputs and {len(extents)} extents along axis {axis}")
    origin, reached, blocks = invocation.output_blocks[0].lower[axis], 0, invocation.input_blocks
    sources: list[Array] = []
    goals: list[Array] = []
    for offset, array, block in zip(itertools.accumulate(extents[:-1], initial=0), inputs, blocks, strict=True):
        start, stop = offset + block.lower[axis] - origin, offset + block.upper[axis] - origin
        low, up = max(start, 0), min(stop, target.shape[axis])
        if low >= up:
            continue
        part = (slice(None),) * axis
        goal, source = target[(*part, slice(low, up))], array[(*part, slice(low - start, up - start))]
        if low != reached or goal.shape != source.shape or goal.dtype != source.dtype:
            raise PlanFault(f"concat of {source.dtype}{source.shape} into {goal.dtype}{goal.shape} at {low}")
        sources.append(source)
        goals.append(goal)
        reached = up
    if reached != target.shape[axis]:
        raise PlanFault(f"concat fills {reached} of {target.shape[axis]} positions")
    return sources, goals


def regrouped(invocation: Invocation[Array]) -> tuple[Array, Array]:
    """The input and the output, which have the same elements in row-major order."""
    invocation.allow()
    source, target = invocation.input, invocation.output
    if source.dtype != target.dtype or source.size != target.size:
        raise PlanFault(f"regroup of {source.size} elements of {source.dtype} into {target.size} of {target.dtype}")
    return source, target


def require_alike(reads: Sequence[Array], writes: Sequence[Array]) -> None:
    """That what is moved has the form of what it moves to."""
    for source, target in zip(reads, writes, strict=True):
        if source.shape != target.shape or source.dtype != target.dtype:
            raise PlanFault(f"a region of {source.shape} {source.dtype} moves to one of {target.shape} {target.dtype}")
