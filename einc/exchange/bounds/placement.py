"""Open partitions: the least bound over all memberships.

What is quickly told of all memberships at once says which to bound with all pains first: those of the least bound, and
of these the ones that send the fewest bytes. Once what is told of the next promises no less than the least one found,
that is the least of all; before, the search may end with what is told of those that are left. Memberships that differ
in names alone, as equal blocks that trade places, or by a symmetry of the machine are bounded once.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable

import numpy as np

from einc.exchange.bounds.certificate import Certificate
from einc.exchange.bounds.demand import Demands
from einc.exchange.bounds.outline import Outline
from einc.exchange.bounds.quick import quick_bounds
from einc.exchange.bounds.symmetry import class_of
from einc.exchange.language.program import Program
from einc.exchange.memberships import MOST_SITES, Ints, all_masks, membership
from einc.exchange.network import Network

MOST_TRIED = 100
"""Memberships that are looked at on their own before the search ends."""

_DIGITS = 9
"""Bounds that differ in later digits count as equal."""

Bounded = Callable[[Demands, bool], Certificate]
"""The bound for demands, and whether to take pains."""


def least(program: Program, network: Network, bounded: Bounded, stop: Callable[[], bool]) -> Certificate:
    """The certificate of the membership with the least bound; it has ended early when `stop` says so.

    On more than MOST_SITES sites, one that holds for any membership, without any.
    """
    outline = Outline(program)
    if len(network.sites) > MOST_SITES:
        return bounded(outline.demands(program.partitions), False)
    masks = _distinct(program, outline, all_masks(program, network.sites))
    bounds, sent = quick_bounds(program, outline, masks, network)
    order = np.lexsort((sent, (bounds / max(float(bounds.max()), 1e-300)).round(_DIGITS)))
    best: Certificate | None = None
    classes: set[object] = set()
    for tried, pick in enumerate(order):
        if best is not None and bounds[pick] >= best.bound_ms * (1 - 1e-9):
            return best
        chosen = membership(program, masks[pick], network.sites)
        members = {one.name: chosen.get(one.name, one.members) for one in program.partitions}
        demands = outline.demands([dataclasses.replace(one, members=members[one.name]) for one in program.partitions])
        ended = tried >= MOST_TRIED or stop()
        if not ended:
            alike = demands if demands.tangles else class_of(demands, network)
            if alike in classes:
                continue
            classes.add(alike)
        found = dataclasses.replace(bounded(demands, not ended), memberships=tuple(chosen.items()))
        if ended:
            return dataclasses.replace(found, bound_ms=min(found.bound_ms, float(bounds[order[tried:]].min())))
        if best is None or found.bound_ms < best.bound_ms:
            best = found
    assert best is not None, "there is at least one membership"
    return best


def _distinct(program: Program, outline: Outline, masks: Ints) -> Ints:
    """Memberships without those in which partitions have traded places that nothing tells apart."""
    if outline.demands(program.partitions).tangles:
        return masks
    named: dict[tuple[frozenset[str], object], tuple[int, int]] = {}
    for one in outline.family:
        key = frozenset(one.partitions), (one.holders, one.complete, one.whole, one.parts, one.sites)
        size, largest = named.get(key, (0, 0))
        named[key] = size + one.size, max(largest, one.largest)
    open_ = [one for one in program.partitions if one.members is None]
    for (i, its), (j, other) in itertools.combinations(enumerate(open_), 2):
        trade = {its.name: other.name, other.name: its.name}
        if its.size == other.size and named == {
            (frozenset([trade.get(name, name) for name in names]), rest): own for (names, rest), own in named.items()
        }:
            masks = masks[masks[:, i] < masks[:, j]]
    return masks
