"""About how long a synthesized exchange takes where some pairs of sites have wider links than others.

There, exchange programs split data and pass it on over other sites, so that a narrow or shared path between two sites
says little. Sets of sites say more: all that one of them lacks must enter it over the links that lead there. A
synthesized exchange takes a little longer than the worst of these bounds: by how much is one number
(REACHED_LINK_PART), where simulation has none. So this ranks plans, and those that rank high are built and simulated.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np

from einc.core.tensor import Array
from einc.exchange.network import Network, make_mask
from einc.machines.model import Machine
from einc.machines.site_counts import MANY_SITES

REACHED_LINK_PART = 0.83
"""The part of the rate of the links that synthesized exchanges reach, in the middle."""

MAX_EXCHANGES_AT_ONCE = 512
"""Exchanges that are looked at together, which bounds the memory."""


@dataclass(frozen=True, slots=True, eq=False)
class CutRates:
    """Sets of sites as rows `inside[s, i]`, the bytes per ms that can be expected to enter each, and those that all
    links carry together."""

    inside: Array
    rates: Array
    total: float


@dataclass(frozen=True, slots=True, eq=False)
class HeldBytes:
    """Exchanges e by the bytes `size[e, i, j]` of site i that site j reads and does not make itself.

    Sites with the same `produced[e, i]` have the same block: whole if `complete[e]`, otherwise in partial copies, which
    may be combined on the way. Sites with the same `required[e, j]` read the same block.
    """

    size: Array
    produced: Array
    required: Array
    complete: Array


def measure_cuts(machine: Machine, sites: int) -> CutRates:
    """The sets of the first `sites` sites that data must enter, and how fast it does."""
    network = Network(machine, tuple(range(sites)))
    sets = _list_sets(network)
    inside = np.array([[site in members for site in range(sites)] for members in sets], dtype=bool)
    rates = np.array([network.entering(make_mask(members))[0] for members in sets])
    return CutRates(inside.reshape(-1, sites), REACHED_LINK_PART * rates, REACHED_LINK_PART * network.total_capacity)


def _list_sets(network: Network) -> list[tuple[int, ...]]:
    """All sets but the empty and the full one; of many sites, those of every level of the network, and what they leave.

    Where many sites have no levels between single ones and all, runs of sites stand for them.
    """
    everyone = network.sites
    if len(everyone) <= MANY_SITES:
        return [some for count in range(1, len(everyone)) for some in itertools.combinations(everyone, count)]
    sets = {cluster for level in network.levels for cluster in level if len(cluster) < len(everyone)}
    if all(len(cluster) == 1 for cluster in sets):
        lengths = [1 << power for power in range((len(everyone) - 1).bit_length())]
        sets = {everyone[at : at + length] for length in lengths for at in range(0, len(everyone), length)}
    return sorted(sets | {tuple(site for site in everyone if site not in members) for members in sets})


def estimate_entering(cuts: CutRates, held: HeldBytes) -> Array:
    """Milliseconds of each exchange: what takes longest to enter a set of sites."""
    worst = np.zeros(len(held.size))
    members = cuts.inside.sum(axis=1)
    single, all_but_one = members == 1, (members > 1) & (members == cuts.inside.shape[1] - 1)
    several = np.flatnonzero(~single & ~all_but_one)
    at, left = cuts.inside[single].argmax(axis=1), cuts.inside[all_but_one].argmin(axis=1)
    inside = cuts.inside[several]
    rates = np.concatenate((cuts.rates[single], cuts.rates[all_but_one], cuts.rates[several]))
    for start in range(0, len(worst), MAX_EXCHANGES_AT_ONCE) if len(rates) else ():
        some = slice(start, start + MAX_EXCHANGES_AT_ONCE)
        part = HeldBytes(held.size[some], held.produced[some], held.required[some], held.complete[some])
        entering = np.concatenate(
            (_count_arriving(part)[:, at], _count_leaving(part)[:, left], _count_entering(part, inside)), axis=1
        )
        with np.errstate(divide="ignore", invalid="ignore"):
            worst[some] = np.where(entering > 0, entering / rates, 0.0).max(axis=1)
    return worst


def _count_entering(held: HeldBytes, inside: Array) -> Array:
    """Per exchange and set, the bytes that enter it: what several sites of the set read, or hold outside of it, enters
    once."""
    if not len(inside):
        return np.zeros((len(held.size), 0))
    senders = _mark_senders(inside, held.produced, held.complete)
    readers = _mark_first(inside, held.required)
    # The product has, for each set and sender, the bytes of its block that the set's readers lack.
    entering: Array = (np.matmul(readers, held.size.transpose(0, 2, 1)) * senders).sum(axis=2)
    return entering


def _count_arriving(held: HeldBytes) -> Array:
    """Per exchange and site, the bytes that enter it alone."""
    kinds, number = find_kinds(np.column_stack((held.produced, held.complete)))
    labels, is_complete = kinds[:, :-1], kinds[:, -1].astype(bool)
    made_there = is_complete[:, None, None] & (labels[:, :, None] == labels[:, None])
    senders = (_mark_first_elsewhere(labels) & ~made_there).astype(np.float64)
    arriving: Array = np.einsum("eij,eij->ej", held.size, senders[number])
    return arriving


def _count_leaving(held: HeldBytes) -> Array:
    """Per exchange and site, the bytes that it alone has for all others."""
    kinds, number = find_kinds(np.column_stack((held.produced, held.complete)))
    shared = kinds[:, -1:].astype(bool) & ((kinds[:, :-1, None] == kinds[:, None, :-1]).sum(axis=2) > 1)
    reading, reading_number = find_kinds(held.required)
    readers = _mark_first_elsewhere(reading).transpose(0, 2, 1).astype(np.float64)
    leaving: Array = np.einsum("eij,eij->ei", held.size, readers[reading_number])
    return np.where(shared[number], 0.0, leaving)


def _mark_first_elsewhere(labels: Array) -> Array:
    """Per row of labels and sites i and j, whether i is the first site other than j that has its label."""
    before = np.tri(labels.shape[1], k=-1, dtype=bool) & (labels[:, :, None] == labels[:, None])
    count = before.sum(axis=2)[:, :, None]
    marks: Array = ((count == 0) | ((count == 1) & before)) & ~np.eye(labels.shape[1], dtype=bool)
    return marks


def _mark_first(inside: Array, labels: Array) -> Array:
    """Per exchange and set of sites, 1 for each site of the set that is the first one there with its label."""
    kinds, number = find_kinds(labels)
    before = np.tri(labels.shape[1], k=-1, dtype=bool) & (kinds[:, :, None] == kinds[:, None])
    taken = np.matmul(inside.astype(np.float64), before.transpose(0, 2, 1).astype(np.float64)) > 0
    marks: Array = (inside & ~taken).astype(np.float64)[number]
    return marks


def _mark_senders(inside: Array, labels: Array, complete: Array) -> Array:
    """Per exchange and set, 1 for each site outside that is the first one there with its block.

    Not where a site of the set has the whole block, too.
    """
    kinds, number = find_kinds(np.column_stack((labels, complete)))
    kinds, is_complete = kinds[:, :-1], kinds[:, -1].astype(bool)
    same_label = kinds[:, :, None] == kinds[:, None]
    held_inside = np.matmul(inside.astype(np.float64), same_label.astype(np.float64)) > 0
    marks: Array = np.where(is_complete[:, None, None] & held_inside, 0.0, _mark_first(~inside, kinds))
    return marks[number]


def find_kinds(rows: Array) -> tuple[Array, Array]:
    """The distinct rows of natural numbers, and for every row the position of its equal."""
    packed = np.ascontiguousarray(rows, dtype=np.int64)
    _, first, number = np.unique(
        packed.view(np.dtype((np.void, packed.itemsize * packed.shape[1]))).ravel(),
        return_index=True,
        return_inverse=True,
    )
    return rows[first], number
