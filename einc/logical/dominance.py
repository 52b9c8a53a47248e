"""Values that no optimal assignment needs, removed before any table is built.

Many candidates of an operator differ only in tilings that no neighbour could match, or cost so much more than
another that not even a saved repartition pays for them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, slots=True, eq=False)
class Link:
    """A cost of `weight` for variables a < b, unless the classes of their values are equal (natural numbers)."""

    a: int
    b: int
    weight: int
    classes_a: Array
    classes_b: Array


def link_table(link: Link, values_a: Array, values_b: Array, dtype: np.dtype[Any]) -> Array:
    """The cost of every pair of the given values."""
    import numpy as np

    table = np.zeros((len(values_a), len(values_b)), dtype)
    table[link.classes_a[values_a][:, None] != link.classes_b[values_b][None, :]] = link.weight
    return table


def surviving_values(costs: Sequence[Array], links: Sequence[Link]) -> list[Array]:
    """Per variable, in ascending order, the positions of the values that may stand in an answer of `minimize`.

    Removes a value where another one is strictly better whatever the neighbours do, and all but the first of several
    that are interchangeable. Variables are visited again while their neighbours lose values.
    """
    import numpy as np

    views: list[list[tuple[int, int, Array, Array]]] = [[] for _ in costs]
    for link in links:
        views[link.a].append((link.b, link.weight, link.classes_a, link.classes_b))
        views[link.b].append((link.a, link.weight, link.classes_b, link.classes_a))
    numbers = 1 + max((int(classes.max()) for link in links for classes in (link.classes_a, link.classes_b)), default=0)
    left = [np.arange(len(cost)) for cost in costs]
    waiting = dict.fromkeys(range(len(costs)))  # an ordered set
    while waiting:
        v = next(iter(waiting))
        del waiting[v]
        kept = left[v]
        if len(kept) == 1:
            continue
        gain = costs[v][kept][:, None] - costs[v][kept][None, :]  # of the second value over the first, at the least
        same = gain == 0
        for u, weight, mine, theirs in views[v]:
            offered = np.zeros(numbers, dtype=bool)
            offered[theirs[left[u]]] = True
            classes = np.where(offered[mine[kept]], mine[kept], -1)  # -1: matched by no neighbour
            differ = classes[:, None] != classes[None, :]
            gain[differ & (classes != -1)[:, None]] -= weight
            same &= ~differ
        earlier = np.tri(len(kept), k=-1, dtype=bool)
        lost = ((gain > 0) | (same & earlier)).any(axis=1)
        if lost.any():
            left[v] = kept[~lost]
            waiting.update((u, None) for u, *_ in views[v])
    return left
