"""About how long the exchange between two cuts takes, for all pairs of cuts of a producer and a consumer at once.

The time is that of the busiest resource, from the bytes that must cross it, with the latencies and the work of
combining and copying, which take what whole plans are charged for them (`einc.predict.costs`). On machines whose sites
are alike it equals the simulated time of a naive exchange in nearly all cases, and it costs microseconds per pair where
a simulation costs milliseconds. It ranks plans, which are simulated as a whole afterwards; what `einc explain` says of
cuts that were not built, `about`, is of it, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from itertools import pairwise, permutations, product

import numpy as np

from einc.core.tensor import Array, TensorType
from einc.exchange.network import Routing
from einc.machines.model import BYTES_PER_MS, MS_PER_US, Machine, Pair
from einc.predict.costs import find_combining_rate
from einc.search.cut_times import HeldBytes, estimate_entering, find_kinds, measure_cuts

MAX_OVERLAPS_AT_ONCE = 1 << 18
"""Overlaps of blocks that are computed at once (2 MiB)."""

NAIVE, SYNTHESIZED = 0, 1
"""The ways in which exchanges are estimated."""

MISSING_MS = 1e6
"""What an exchange between sites that cannot talk is charged."""


@dataclass(frozen=True, slots=True)
class Family:
    """The blocks of one tensor that the sites write, or read, with some cut: block i at site i.

    With two or more `replicas`, the blocks are that many times the same list, and all of them are whole; otherwise
    equal blocks that are written are partial copies of each other.
    """

    blocks: tuple[TensorType, ...]
    replicas: int = 1


class ExchangeEstimator:
    """Estimates exchanges on the first `sites` sites of a machine, in two ways.

    NAIVE exchanges gather aggregates copy by copy at every reader. SYNTHESIZED ones may also combine them once and pass
    the result on; where links differ, over other sites, too.
    """

    def __init__(self, machine: Machine, sites: int) -> None:
        self._sites = sites
        self._transfer_ms = machine.transfer_latency_us * MS_PER_US
        self._copying, self._combining = (_measure_combining(machine, sites, task) for task in ("copy", "aggregate"))
        self._links = _measure_links(machine, sites)
        self._cuts = None if has_equal_links(machine, sites) else measure_cuts(machine, sites)

    def estimate(self, produced: Sequence[Family], required: Sequence[Family], itemsize: int,
                 naive: bool = False, message_ms: float = 0.0) -> Array:  # fmt: skip
        """Milliseconds from the end of the producer's kernels until readers can start, as (2, produced, required):
        naive, and synthesized, or `naive` ones twice. `message_ms` are added for each message of a site on average."""
        producers, readers = _stack(produced, self._sites), _stack(required, self._sites)
        result = np.zeros((2, len(produced), len(required)))
        step = max(1, MAX_OVERLAPS_AT_ONCE // (len(required) * self._sites**2))
        overlaps = _Overlaps(producers, readers, itemsize)
        partial = producers.copies > 1
        for selected, estimate in ((~partial, self._estimate_whole), (partial, self._estimate_partial)):
            rows = np.flatnonzero(selected)
            for start in range(0, len(rows), step):
                some = rows[start : start + step]
                traffic = _measure_traffic(overlaps.measure(some), producers.select(some), readers, itemsize)
                messages = np.count_nonzero(traffic.crossing, axis=(2, 3)) if message_ms else 0
                result[:, some] = estimate(traffic, naive) + message_ms / self._sites * messages
        return result

    def _estimate_whole(self, traffic: _Traffic, naive: bool) -> Array:
        """What it takes to bring blocks that are whole: straight, and if sites may pass on what they got, so that no
        sender is the bottleneck."""
        arriving = traffic.crossing.sum(axis=2)
        latency = np.where(arriving.any(axis=2), self._transfer_ms, 0.0)
        # What is here already is copied beside what arrives.
        mixed = (traffic.local > 0) & (arriving > 0)
        copying = np.where(mixed, self._copying.launch_ms + 2 * traffic.local / self._copying.rates, 0.0).max(axis=2)
        plain = np.maximum(self._time_links(traffic.crossing) + latency, copying)
        moving = np.inf if naive else self._move(traffic, arriving.max(axis=2), arriving.sum(axis=2))
        return np.stack((plain, np.minimum(plain, np.maximum(moving + latency, copying))))

    def _estimate_partial(self, traffic: _Traffic, naive: bool) -> Array:
        """What it takes to combine partial copies: at every reader, and also once, before the results are sent on."""
        arriving = traffic.crossing.sum(axis=2)
        latency = np.where(arriving.any(axis=2), self._transfer_ms, 0.0)
        blocks = (traffic.crossing > 0).sum(axis=2) + (traffic.local > 0)
        parts = np.ceil(blocks / traffic.copies[:, None, None])
        combining = self._combining.launch_ms * parts
        combining += (arriving + traffic.local + traffic.needed) / self._combining.rates
        gathered = self._time_links(traffic.crossing) + latency
        gathered += np.where(traffic.needed > 0, combining, 0.0).max(axis=2)
        return np.stack((gathered, gathered if naive else np.minimum(gathered, self._combine_once(traffic))))

    def _move(self, traffic: _Traffic, received: Array, moved: Array) -> Array:
        """The time of moving alone, from the bytes that a site receives at most, and from all that are moved."""
        if self._cuts is None:
            most: Array = np.maximum(received / self._links.site_rate, moved / self._links.total_rate)
            return most
        return np.maximum(
            estimate_entering(self._cuts, traffic.list_held()).reshape(moved.shape), moved / self._cuts.total
        )

    def _combine_once(self, traffic: _Traffic) -> Array:
        """The time if every element is combined at one site, evenly spread, and then sent to its other readers."""
        copies = traffic.copies[:, None]
        # A producer site's bytes count once, however many readers take them; partial copies of one element also do.
        distinct = np.maximum(traffic.crossing.max(axis=3), traffic.local).sum(axis=2) / copies
        readers = np.maximum(1.0, traffic.needed.sum(axis=2) / np.maximum(distinct, 1.0))
        moved = distinct * (copies - 1 + readers - 1)
        received = (traffic.needed * (1 - 1 / readers)[:, :, None]).max(axis=2)
        moving = self._move(traffic, np.maximum(moved / self._sites, received), moved)
        rounds = 1 + (readers > 1 + 1e-9)
        combining = (
            self._combining.launch_ms.max() + distinct * (copies + 1) / self._sites / self._combining.rates.min()
        )
        time: Array = np.where(distinct > 0, moving + rounds * self._transfer_ms + combining, 0.0)
        return time

    def _time_links(self, crossing: Array) -> Array:
        """The time of the busiest resource."""
        flat = crossing.reshape(*crossing.shape[:2], -1)
        if not len(self._links.rates):
            worst = np.zeros(crossing.shape[:2])
        else:
            loads = np.add.reduceat(flat[:, :, self._links.pairs], self._links.starts, axis=2)
            worst = (loads / self._links.rates).max(axis=2)
        if self._links.missing.any():
            worst[(flat[:, :, self._links.missing.ravel()] > 0).any(axis=2)] = MISSING_MS
        return worst


@lru_cache(maxsize=4)
def make_estimator(machine: Machine, sites: int) -> ExchangeEstimator:
    """The estimator of these sites. Results are kept, as a search asks for it with each of its tables."""
    return ExchangeEstimator(machine, sites)


@dataclass(frozen=True, slots=True, eq=False)
class _Blocks:
    """Families as arrays: bounds (families, sites, rank), elements (families, sites; 0 where a site has no block),
    partial copies of every element, and replicas of every block (families), and for every site the first one that has
    the same block."""

    lower: Array
    upper: Array
    volume: Array
    copies: Array
    replicas: Array
    first: Array

    def select(self, some: Array) -> _Blocks:
        return _Blocks(*(getattr(self, each.name)[some] for each in fields(self)))


@dataclass(frozen=True, slots=True, eq=False)
class _Traffic:
    """Bytes, for all pairs (m, a) of families: `crossing[m, a, i, j]` from site i to site j, `local[m, a, j]` that site
    j has already, `needed[m, a, j]` that it reads. `copies[m]` are the partial copies.

    `lacking[m, a, i, j]` are the bytes of site i that site j reads and does not make itself, each other site with a
    replica counted, where they cross from one of these only. Sites with the same `produced[m, i]` have the same block,
    and with the same `required[m, a, j]` read the same.
    """

    crossing: Array
    local: Array
    needed: Array
    copies: Array
    lacking: Array
    produced: Array
    required: Array

    def list_held(self) -> HeldBytes:
        """The pairs of families, in order, as exchanges."""
        pairs, sites = self.lacking.shape[:2], self.lacking.shape[2]
        return HeldBytes(
            self.lacking.reshape(-1, sites, sites),
            np.broadcast_to(self.produced[:, None], (*pairs, sites)).reshape(-1, sites),
            self.required.reshape(-1, sites),
            np.repeat(self.copies == 1, pairs[1]),
        )


@dataclass(frozen=True, slots=True, eq=False)
class _Links:
    """The pairs of all resources (as positions in a matrix of sites by sites), those of resource r from `starts[r]` on,
    and the rate of each in bytes per ms.

    `site_rate` is what the slowest site can take in when all send to it, and `total_rate` what crosses the machine when
    all sites send alike. `missing` are pairs that cannot talk.
    """

    pairs: Array
    starts: Array
    rates: Array
    missing: Array
    site_rate: float
    total_rate: float


@dataclass(frozen=True, slots=True, eq=False)
class _Combining:
    """Per site what a task that combines or copies takes without its bytes, in ms, and the bytes per ms."""

    launch_ms: Array
    rates: Array


def _measure_combining(machine: Machine, sites: int, task: str) -> _Combining:
    rates = [find_combining_rate(site, task, machine.kernel_latency_us) for site in machine.sites[:sites]]
    return _Combining(
        np.array([rate.us * MS_PER_US for rate in rates]), np.array([rate.gbs * BYTES_PER_MS for rate in rates])
    )


def _measure_links(machine: Machine, sites: int) -> _Links:
    pairs, rates = [], []
    missing = ~np.eye(sites, dtype=bool)
    relayed = _list_relayed_pairs(machine, sites)
    for position, resource in enumerate(machine.resources):
        used_pairs = [(a, b) for a, b in resource.pairs if a < sites and b < sites] + relayed.get(position, [])
        if used_pairs:
            pairs.append(np.array([a * sites + b for a, b in used_pairs]))
            rates.append(resource.gbs * BYTES_PER_MS)
            for a, b in used_pairs:
                missing[a, b] = False

    def measure_rate(matrix: Array) -> float:
        flat = matrix.ravel()
        slowest = max((flat[positions].sum() / rate for positions, rate in zip(pairs, rates, strict=True)), default=0.0)
        return float(flat.sum() / slowest) if slowest else float("inf")

    everyone = np.where(missing | np.eye(sites, dtype=bool), 0.0, 1.0)
    incoming = [measure_rate(np.where(np.arange(sites)[None] == site, everyone, 0.0)) for site in range(sites)]
    starts = np.cumsum([0, *map(len, pairs)])[:-1]
    every = np.concatenate(pairs) if pairs else np.zeros(0, np.int64)
    return _Links(every, starts, np.array(rates), missing, min(incoming), measure_rate(everyone))


def _list_relayed_pairs(machine: Machine, sites: int) -> dict[int, list[Pair]]:
    """By resource the pairs that no resource joins and whose data crosses it on its way over other sites, once for
    each time that it crosses it."""
    pairs_of_resource: dict[int, list[Pair]] = {}
    ways = Routing(machine, range(sites))
    if ways.complete:
        return pairs_of_resource
    for a, b in permutations(range(sites), 2):
        if (a, b) not in machine.routes and ways.reaches(a, b):
            for hop in pairwise(ways.find_way(a, b)):
                for resource in machine.routes[hop]:
                    pairs_of_resource.setdefault(resource, []).append((a, b))
    return pairs_of_resource


def _stack(families: Sequence[Family], sites: int) -> _Blocks:
    count, rank = len(families), families[0].blocks[0].rank
    lower, upper = np.zeros((2, count, sites, rank), dtype=np.int64)
    volume = np.zeros((count, sites))
    for m, family in enumerate(families):
        used = len(family.blocks)
        lower[m, :used] = [block.lower for block in family.blocks]
        upper[m, :used] = [block.upper for block in family.blocks]
        volume[m, :used] = [block.size for block in family.blocks]
    same = (lower == lower[:, :1]).all(axis=2) & (upper == upper[:, :1]).all(axis=2) & (volume > 0)
    replicas = np.array([family.replicas for family in families])
    copies = np.where(replicas > 1, 1, same.sum(axis=1))
    return _Blocks(lower, upper, volume, copies, replicas, _find_first(lower, upper))


def find_covered(held: Sequence[Family], needed: Sequence[Family]) -> Array:
    """Whether every site has its block of a needed family if it has that of a held one, as (held, needed)."""
    sites = max(len(family.blocks) for family in (*held, *needed))
    have, want = _stack(held, sites), _stack(needed, sites)
    used = [np.array([len(family.blocks) for family in families]) for families in (held, needed)]
    inside = np.ones((len(held), len(needed), sites), dtype=bool)
    for d in range(have.lower.shape[2]):
        inside &= have.lower[:, None, :, d] <= want.lower[None, :, :, d]
        inside &= want.upper[None, :, :, d] <= have.upper[:, None, :, d]
    inside |= np.arange(sites) >= used[1][None, :, None]  # sites that need nothing
    covered: Array = inside.all(axis=2) & (used[1][None] <= used[0][:, None])
    return covered


def _find_first(lower: Array, upper: Array) -> Array:
    """For every site the first one that has the same block."""
    count, sites, rank = lower.shape
    same = np.ones((count, sites, sites), dtype=bool)
    for bounds, d in product((lower, upper), range(rank)):
        same &= bounds[:, :, None, d] == bounds[:, None, :, d]
    first: Array = same.argmax(axis=2)
    return first


def _measure_traffic(overlap: Array, produced: _Blocks, required: _Blocks, itemsize: int) -> _Traffic:
    """What crosses between sites once every reader is at the site that spares most."""
    needed = np.broadcast_to(required.volume[None] * float(itemsize), overlap.shape[:3]).copy()
    asked_first = np.broadcast_to(required.first, overlap.shape[:3]).copy()
    _place_readers(overlap, needed, asked_first)
    local = np.einsum("maii->mai", overlap).copy()
    np.einsum("maii->mai", overlap)[...] = 0.0
    lacking = overlap.copy() if (produced.replicas > 1).any() else overlap
    for m in np.flatnonzero(produced.replicas > 1):
        _choose_senders(overlap[m], local[m], int(produced.replicas[m]), int((produced.volume[m] > 0).sum()))
    return _Traffic(overlap, local, needed, produced.copies, lacking, produced.first, asked_first)


class _Overlaps:
    """The bytes that block i of family m and block j of family a share.

    Families of a port cut a dimension in few ways. So what two ways share is computed once, and multiplied over the
    dimensions.
    """

    def __init__(self, produced: _Blocks, required: _Blocks, itemsize: int) -> None:
        self._factor = float(itemsize)
        self._shared: list[tuple[Array, Array, Array]] = []
        for d in range(produced.lower.shape[2]):
            ends = [bounds[..., d] for bounds in (produced.lower, produced.upper, required.lower, required.upper)]
            rows, row_of = find_kinds(np.concatenate(ends[:2], axis=1))
            columns, column_of = find_kinds(np.concatenate(ends[2:], axis=1))
            sites = ends[0].shape[1]
            rows, columns = rows.astype(np.float64), columns.astype(np.float64)  # exact below 2^53
            shared = np.minimum(rows[:, None, sites:, None], columns[None, :, None, sites:])
            shared -= np.maximum(rows[:, None, :sites, None], columns[None, :, None, :sites])
            np.maximum(shared, 0.0, out=shared)
            if shared.size and shared.min() == shared.max():  # this dimension is not cut
                self._factor *= float(shared.max())
            else:
                self._shared.append((shared, row_of, column_of))
        if not self._shared:
            present = [(blocks.volume > 0).astype(np.float64) for blocks in (produced, required)]
            shared = present[0][:, None, :, None] * present[1][None, :, None, :]
            self._shared.append((shared, np.arange(len(present[0])), np.arange(len(present[1]))))

    def measure(self, some: Array) -> Array:
        """Those of the families `some` of producers and all of readers, as (m, a, i, j)."""
        shared, row_of, column_of = self._shared[0]
        overlap: Array = shared[row_of[some][:, None], column_of]
        overlap *= self._factor
        for shared, row_of, column_of in self._shared[1:]:
            overlap *= shared[row_of[some][:, None], column_of]
        return overlap


def _choose_senders(crossing: Array, local: Array, replicas: int, holders: int) -> None:
    """Of the sites with replicas of a block, one sends it to a reader, and none if the reader has one."""
    distinct = holders // replicas
    sites = crossing.shape[1]
    sender = np.zeros((sites, sites), dtype=bool)
    for reader in range(sites):
        for block in range(distinct):
            if reader >= holders or reader % distinct != block:
                sender[block + distinct * (reader % replicas), reader] = True
    crossing *= sender


def _place_readers(overlap: Array, *arrays: Array) -> None:
    """Moves readers to the sites that need the fewest bytes moved: permutes the last axes of all arrays in place.

    A reader stays at the site of its own number if no other would do better.
    """
    local = np.einsum("maii->mai", overlap)
    crossed = np.argwhere(~(local == overlap.max(axis=2)).all(axis=2))
    if not len(crossed):
        return
    from lap import lapjv

    sites = overlap.shape[2]
    stay = np.eye(sites)
    families = tuple(crossed.T)
    matrices = overlap[families]
    # The assignment that keeps most bytes local. A byte counts more than the preferences of all readers for their own
    # sites together, so that these decide between equally good assignments alone. Few matrices are unlike all others.
    distinct, kind_of = find_kinds(matrices.reshape(len(crossed), -1))
    readers = [
        lapjv(np.ascontiguousarray(-(matrix.reshape(sites, sites).T * (sites + 1)) - stay))[2] for matrix in distinct
    ]
    reader_at = np.array(readers, dtype=np.intp)[kind_of]
    overlap[families] = np.take_along_axis(matrices, reader_at[:, None], axis=2)
    for array in arrays:
        array[families] = np.take_along_axis(array[families], reader_at, axis=1)


def has_equal_links(machine: Machine, sites: int) -> bool:
    """Whether all pairs of the first `sites` sites can talk, and alone at the same rate."""
    routes = [crossed for pair, crossed in machine.routes.items() if max(pair) < sites]
    widths = {min(machine.resources[r].gbs for r in crossed) for crossed in routes}
    return len(widths) <= 1 and len(routes) == sites * (sites - 1)
