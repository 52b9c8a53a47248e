"""The cut bound: what a set of sites lacks has to enter it.

A message is a sum of atoms. What is held in a set S at the end is a sum of what was held there and of what entered; so
as many copies enter as the required aggregates add to the rank of what S holds. For aggregates that share no atoms that
is one each, where some atom of it is not in S.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any

from einc.exchange.bounds.demands import DemandSet, OverlapGroup, format_bytes, format_latency, format_rate
from einc.exchange.network import Network, list_sites, make_mask
from einc.machines.site_counts import MANY_SITES

if TYPE_CHECKING:
    import numpy as np

    from einc_runtime.dtypes import Floats

    Floats32 = np.ndarray[Any, np.dtype[np.float32]]

BATCH = 1024
"""Sets of sites that are handled at a time, which bounds the memory."""

_PRIME = 2**31 - 1  # a rank modulo a prime is never above the rank


@dataclass(frozen=True, slots=True)
class CutWitness:
    """A set of sites, and the bytes that have to enter it."""

    sites: int

    def proved_ms(self, demands: DemandSet, network: Network) -> float:
        needed = count_needed_bytes(demands, self.sites)
        capacity, _ = network.entering(self.sites)
        if not needed:
            return 0.0
        return needed / capacity + network.transfer_latency if capacity else float("inf")

    def explain(self, demands: DemandSet, network: Network) -> str:
        needed = format_bytes(count_needed_bytes(demands, self.sites))
        capacity = format_rate(network.entering(self.sites)[0])
        names = ", ".join(map(str, list_sites(self.sites)))
        if self.sites.bit_count() > len(network.sites) // 2 + 1:
            names = f"all but {', '.join(map(str, list_sites(network.all_sites & ~self.sites)))}"
        return f"cut {{{names}}}: {needed} must enter through {capacity}{format_latency(network.transfer_latency)}"


def find_best_cut(demands: DemandSet, network: Network) -> CutWitness | None:
    """The cut that proves most: of all cuts, or, on more than MANY_SITES sites, of a family of sensible ones."""
    import numpy as np

    chosen = list_cuts(demands, network)
    needed = _count_needed_in_all(demands, chosen)
    if not needed.any():
        return None
    with np.errstate(divide="ignore", invalid="ignore"):
        times = np.where(needed > 0, needed / _compute_capacities(network, chosen), 0.0)
    return CutWitness(chosen[int(times.argmax())])


def list_cuts(demands: DemandSet, network: Network) -> tuple[int, ...]:
    """The sets of sites to try."""
    if len(network.sites) <= MANY_SITES:
        return _list_all_sets(network.sites)
    singles = [1 << site for site in network.sites]
    runs = []
    length = 2
    while length < len(network.sites):
        runs += [make_mask(network.sites[at : at + length]) for at in range(0, len(network.sites), length)]
        length *= 2
    demand_sets = [mask for demand in demands.family for mask in (demand.targets, *demand.holders)][:64]
    both: Iterable[int] = (mask for part in (singles, demand_sets, runs) for mask in part)
    return tuple(
        side
        for mask in dict.fromkeys(both)
        for side in (mask, network.all_sites & ~mask)
        if side and side != network.all_sites
    )


@lru_cache(maxsize=4)
def _compute_capacities(network: Network, chosen: tuple[int, ...]) -> Floats:
    """The capacity into each set. Results are kept, as searches of memberships ask for the same sets again."""
    import numpy as np

    return np.array([network.entering(sites)[0] for sites in chosen])


@cache
def _list_all_sets(sites: tuple[int, ...]) -> tuple[int, ...]:
    """All sets of sites but the empty and the full one, small ones first."""
    counts = range(1, len(sites))
    return tuple(make_mask(some) for count in counts for some in itertools.combinations(sites, count))


def _count_needed_in_all(demands: DemandSet, chosen: tuple[int, ...]) -> Floats:
    """`count_needed_bytes` of many sets, up to rounding."""
    import numpy as np

    family = demands.family
    if demands.overlapping or not family:
        return np.array([float(count_needed_bytes(demands, sites)) for sites in chosen])
    width = max(chosen, default=0).bit_length()
    holders = _make_rows(tuple(holder for demand in family for holder in demand.holders), width)
    targets = _make_rows(tuple(demand.targets for demand in family), width)
    first = np.cumsum([0, *(len(demand.holders) for demand in family[:-1])])
    sizes = np.array([float(demand.size) for demand in family])
    needed = []
    for start in range(0, len(chosen), BATCH):
        inside = _make_rows(chosen[start : start + BATCH], width).T
        lacking = np.logical_or.reduceat(holders @ inside == 0, first)
        needed.append(sizes @ (lacking & (targets @ inside != 0)))
    return np.concatenate(needed)


@lru_cache(maxsize=4)
def _make_rows(masks: tuple[int, ...], width: int) -> Floats32:
    """Sets of the first `width` sites as rows of ones and zeros; kept for searches of memberships."""
    import numpy as np

    length, first = -(-width // 8), (1 << width) - 1
    packed = np.frombuffer(b"".join((mask & first).to_bytes(length, "little") for mask in masks), np.uint8)
    return np.unpackbits(packed.reshape(-1, length), axis=1, bitorder="little").astype(np.float32)


def count_needed_bytes(demands: DemandSet, sites: int) -> int:
    """The bytes that have to enter a set of sites."""
    overlapping = {name for group in demands.overlapping for name, _ in group.required}
    needed = 0
    for demand in demands.family:
        if demand.must_enter(sites) and (not overlapping or overlapping.isdisjoint(demand.aggregates)):
            needed += demand.size
    for group in demands.overlapping:
        needed += group.size * max(_compute_added_rank(group, sites), _count_entering(demands, group, sites))
    return needed


def _count_entering(demands: DemandSet, group: OverlapGroup, sites: int) -> int:
    """How many disjoint aggregates of a group have to enter."""
    names = {name for name, _ in group.required}
    return sum(len(names.intersection(demand.aggregates)) for demand in demands.family if demand.must_enter(sites))


def _compute_added_rank(group: OverlapGroup, sites: int) -> int:
    """By how much the aggregates required in a set of sites raise the rank of the copies that are there."""
    number: dict[str, int] = {}
    pivots: dict[int, dict[int, int]] = {}  # first column -> row with 1 there

    def adds(name: Sequence[str]) -> bool:
        row = dict.fromkeys((number.setdefault(atom, len(number)) for atom in name), 1)
        while row:
            lead = min(row)
            if lead not in pivots:
                inverse = pow(row[lead], -1, _PRIME)
                pivots[lead] = {column: value * inverse % _PRIME for column, value in row.items()}
                return True
            factor = row[lead]
            for column, value in pivots[lead].items():
                left = (row.get(column, 0) - factor * value) % _PRIME
                if left:
                    row[column] = left
                else:
                    row.pop(column, None)
        return False

    for copy, where in group.copies:
        if where & sites:
            adds(copy)
    return sum([adds(name) for name, targets in group.required if targets & sites])
