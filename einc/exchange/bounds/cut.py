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

from einc.exchange.bounds.certificate import after_latency, bytes_text, rate_text
from einc.exchange.bounds.demand import Demands, Tangle
from einc.exchange.network import Network, list_sites, make_mask

if TYPE_CHECKING:
    import numpy as np

    Floats = np.ndarray[Any, np.dtype[np.float64]]
    Floats32 = np.ndarray[Any, np.dtype[np.float32]]

MOST_SITES = 8
"""Up to so many sites, all sets of sites are tried."""

AT_A_TIME = 1024
"""Sets of sites that are looked at together, which bounds the memory that this takes."""

_PRIME = 2**31 - 1  # a rank modulo a prime is never above the rank


@dataclass(frozen=True, slots=True)
class Cut:
    """A set of sites, and the bytes that have to enter it."""

    sites: int

    def worth(self, demands: Demands, network: Network) -> float:
        needed = needed_in(demands, self.sites)
        capacity, _ = network.entering(self.sites)
        if not needed:
            return 0.0
        return needed / capacity + network.transfer_latency if capacity else float("inf")

    def words(self, demands: Demands, network: Network) -> str:
        needed = bytes_text(needed_in(demands, self.sites))
        capacity = rate_text(network.entering(self.sites)[0])
        names = ", ".join(map(str, list_sites(self.sites)))
        if self.sites.bit_count() > len(network.sites) // 2 + 1:
            names = f"all but {', '.join(map(str, list_sites(network.all_sites & ~self.sites)))}"
        return f"cut {{{names}}}: {needed} must enter through {capacity}{after_latency(network.transfer_latency)}"


def best_cut(demands: Demands, network: Network) -> Cut | None:
    """The cut that proves most, of all or, on more than MOST_SITES sites, of a family of sensible ones."""
    import numpy as np

    chosen = cuts(demands, network)
    needed = _needed_in_all(demands, chosen)
    if not needed.any():
        return None
    with np.errstate(divide="ignore", invalid="ignore"):
        times = np.where(needed > 0, needed / _capacities(network, chosen), 0.0)
    return Cut(chosen[int(times.argmax())])


def cuts(demands: Demands, network: Network) -> tuple[int, ...]:
    """The sets of sites to try."""
    if len(network.sites) <= MOST_SITES:
        return _all_sets(network.sites)
    singles = [1 << site for site in network.sites]
    runs = []
    length = 2
    while length < len(network.sites):
        runs += [make_mask(network.sites[at : at + length]) for at in range(0, len(network.sites), length)]
        length *= 2
    own = [mask for demand in demands.family for mask in (demand.targets, *demand.holders)][:64]
    both: Iterable[int] = (mask for part in (singles, own, runs) for mask in part)
    return tuple(
        side
        for mask in dict.fromkeys(both)
        for side in (mask, network.all_sites & ~mask)
        if side and side != network.all_sites
    )


@lru_cache(maxsize=4)
def _capacities(network: Network, chosen: tuple[int, ...]) -> Floats:
    """What can enter each set; searches of memberships ask for the same ones in turns."""
    import numpy as np

    return np.array([network.entering(sites)[0] for sites in chosen])


@cache
def _all_sets(sites: tuple[int, ...]) -> tuple[int, ...]:
    """All sets of sites but none and all of them, small ones first."""
    counts = range(1, len(sites))
    return tuple(make_mask(some) for count in counts for some in itertools.combinations(sites, count))


def _needed_in_all(demands: Demands, chosen: tuple[int, ...]) -> Floats:
    """`needed_in` of many sets, up to rounding."""
    import numpy as np

    family = demands.family
    if demands.tangles or not family:
        return np.array([float(needed_in(demands, sites)) for sites in chosen])
    width = max(chosen, default=0).bit_length()
    holders = _rows(tuple(holder for demand in family for holder in demand.holders), width)
    targets = _rows(tuple(demand.targets for demand in family), width)
    first = np.cumsum([0, *(len(demand.holders) for demand in family[:-1])])
    sizes = np.array([float(demand.size) for demand in family])
    needed = []
    for start in range(0, len(chosen), AT_A_TIME):
        inside = _rows(chosen[start : start + AT_A_TIME], width).T
        lacking = np.logical_or.reduceat(holders @ inside == 0, first)
        needed.append(sizes @ (lacking & (targets @ inside != 0)))
    return np.concatenate(needed)


@lru_cache(maxsize=4)
def _rows(masks: tuple[int, ...], width: int) -> Floats32:
    """Sets of the first `width` sites as rows of ones and zeros; searches of memberships ask for many in turns."""
    import numpy as np

    length, first = -(-width // 8), (1 << width) - 1
    packed = np.frombuffer(b"".join((mask & first).to_bytes(length, "little") for mask in masks), np.uint8)
    return np.unpackbits(packed.reshape(-1, length), axis=1, bitorder="little").astype(np.float32)


def needed_in(demands: Demands, sites: int) -> int:
    """The bytes that have to enter a set of sites."""
    tangled = {name for tangle in demands.tangles for name, _ in tangle.wanted}
    needed = 0
    for demand in demands.family:
        if demand.must_enter(sites) and (not tangled or tangled.isdisjoint(demand.aggregates)):
            needed += demand.size
    for tangle in demands.tangles:
        needed += tangle.size * max(_added_rank(tangle, sites), _entering(demands, tangle, sites))
    return needed


def _entering(demands: Demands, tangle: Tangle, sites: int) -> int:
    """How many disjoint aggregates of a tangle have to enter."""
    names = {name for name, _ in tangle.wanted}
    return sum(len(names.intersection(demand.aggregates)) for demand in demands.family if demand.must_enter(sites))


def _added_rank(tangle: Tangle, sites: int) -> int:
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

    for copy, where in tangle.copies:
        if where & sites:
            adds(copy)
    return sum([adds(name) for name, targets in tangle.wanted if targets & sites])
