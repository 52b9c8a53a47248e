"""An aggregation of tuples: its copies and its target held against each other, and members side by side."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from runtime.dtypes import FLOATS, Array, compute
from runtime.errors import PlanFault
from runtime.kernels.base import dtype_name
from runtime.kernels.ranking import INDEX

Copies = Sequence[Sequence[Array]]


def average_types(copies: Copies, target: Sequence[Array]) -> list[str]:
    """The element types of averages and of the logarithms of their weights. Raises PlanFault for anything else."""
    kinds = _same(copies, target)
    if len(target) != 2 or kinds[0] not in FLOATS or kinds[1] not in ("f32", compute(kinds[0])):
        raise PlanFault("logsumexp merges floats and the logarithms of their weights in f32, or f64 beside f64")
    return kinds


def ranked_types(copies: Copies, target: Sequence[Array], index: int) -> list[str]:
    """The element types of numbers and their indices, which are at `index`. Raises PlanFault for anything else."""
    kinds = _same(copies, target)
    if len(target) != 2 or target[0].size != target[1].size or kinds[index] != INDEX or kinds[1 - index] == "bool":
        raise PlanFault(f"numbers are ranked with indices of type {INDEX}, one each")
    return kinds


def spread(view: Array, dims: Sequence[int], rank: int) -> Array:
    """A member as a view with the rank of the first one, of extent 1 along what it lacks."""
    ordered = view.transpose([dims.index(d) for d in sorted(dims)])
    return np.expand_dims(ordered, tuple(d for d in range(rank) if d not in dims))


def _same(copies: Copies, target: Sequence[Array]) -> list[str]:
    """The members' element types; all copies have the target's types and shapes."""
    for copy in copies:
        if [(a.shape, a.dtype) for a in copy] != [(a.shape, a.dtype) for a in target]:
            raise PlanFault("an aggregation combines copies of different shapes or types")
    return [dtype_name(array) for array in target]
