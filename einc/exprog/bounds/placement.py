"""Open partitions: the least bound over all memberships, by best-first search.

A partition without members asks for so many targets somewhere, which is never more than what any choice of them asks
for. So the bound of a partial choice holds for all its completions, and the least one that is still open at any moment
is a sound bound of the whole; the search may end early. Choices that differ in names alone, as equal blocks that trade
places, are bounded once; and once whatever takes pains, where a symmetry of the machine maps choices onto each other.
"""

from __future__ import annotations

import dataclasses
import heapq
import itertools
from collections.abc import Callable

from einc.exprog.bounds.certificate import Certificate
from einc.exprog.bounds.cut import MOST_SITES
from einc.exprog.bounds.demand import Demands
from einc.exprog.bounds.fabric import Fabric
from einc.exprog.bounds.outline import Outline
from einc.exprog.bounds.symmetry import class_of
from einc.exprog.program import Program

MOST_CHOICES = 1000
"""Partial choices that are bounded before the search ends with what it has."""

Bounded = Callable[[Demands, bool], Certificate]
"""The bound for demands, and whether to take pains."""


def least(program: Program, fabric: Fabric, bounded: Bounded, stop: Callable[[], bool]) -> Certificate:
    """The certificate of the membership with the least bound; its `memberships` may be incomplete where time ended.

    It has ended when `stop` says so.
    """
    outline, order = Outline(program), itertools.count()
    first = bounded(outline.demands(program.partitions), False)
    if len(fabric.sites) > MOST_SITES:
        return first
    queue = [(first.bound_ms, 0, next(order), program.partitions, first, False)]
    seen: set[tuple[frozenset[int], object]] = set()
    classes: set[object] = set()
    choices = 0
    while True:
        value, depth, _, chosen, certificate, final = heapq.heappop(queue)
        position = next((k for k, one in enumerate(chosen) if one.members is None), None)
        if final or choices >= MOST_CHOICES or stop():
            names = {partition.name for partition in program.partitions if partition.members is None}
            memberships = tuple((p.name, p.members) for p in chosen if p.name in names and p.members)
            return dataclasses.replace(certificate, memberships=memberships)
        if position is None:
            demands = outline.demands(chosen)
            alike = demands if demands.tangles else class_of(demands, fabric)
            if alike in classes:
                continue
            classes.add(alike)
            choices += 10
            certificate = bounded(demands, True)
            heapq.heappush(queue, (max(value, certificate.bound_ms), depth, next(order), chosen, certificate, True))
            continue
        partition = chosen[position]
        taken = frozenset(site for other in chosen for site in other.members or ())
        for members in itertools.combinations([site for site in fabric.sites if site not in taken], partition.size):
            filled = dataclasses.replace(partition, members=members)
            child = (*chosen[:position], filled, *chosen[position + 1 :])
            demands = outline.demands(child)
            key = (taken.union(members), demands.signature())
            if key in seen:
                continue
            seen.add(key)
            certificate = bounded(demands, False)
            choices += 1
            heapq.heappush(queue, (max(value, certificate.bound_ms), depth - 1, next(order), child, certificate, False))
