"""The join-agg specs that an operator offers over a number of sites, with the sub-costs that depend on them alone
(paper, Sections 3.3, 4.2 and 4.3).

The strict offer is the paper's: as many function specifications as there are sites. The flexible one adds cuts along
further indices (`ShardableIndex.instead_of`), and specs with fewer function specifications, for fewer sites or with
each computed on several sites, which then need no exchange to have the result.
Every spec that an operator builds is checked here, so that later stages see valid ones only.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import chain, islice

from einc.core.intervals import (
    Intervals,
    count_reachable_sites,
    enumerate_factorizations,
    enumerate_requests,
    limit_intervals,
)
from einc.core.spec import Tiling
from einc.core.tensor import TensorDesc, TensorType
from einc.logical.plan import Candidate
from einc.machines.site_counts import LARGE_MACHINE_SITES
from einc.ops.base import Operator

MAX_BOUNDS = 1 << 22
"""Bound on the dimensions of all blocks of all specs of an operator, so that very high ranks cannot take minutes.

At 72 sites, an operator over eight indices stays below it for most tensors. Above it, only the first requests in
ascending order of their interval counts are taken.
"""

MAX_EXTRA = 3, 2
"""The flexible offer has at most so many further candidates for each strict one: on up to LARGE_MACHINE_SITES sites,
and on more: tables of times grow with the square of their number."""

MIN_EXTRA = 64, 32
"""It may have as many in any case, since a prime number of sites has few strict candidates."""

MAX_FURTHER_CUTS = 64, 16
"""So many candidates beside these may cut further indices."""

MAX_KEPT_OFFERS = 256
"""Offers that are kept for later: those of a training step, which has up to 150 unlike operators."""


@lru_cache(maxsize=MAX_KEPT_OFFERS)
def enumerate_candidates(operator: Operator, sites: int) -> tuple[Candidate, ...]:
    """All join-agg specs with exactly p' function specifications, in lexicographic order of their intervals.

    p' is `sites`, or the largest number below it that is a product of admissible interval counts. There is always
    at least one candidate.
    """
    enumeration = _Enumeration(operator)
    return tuple(enumeration.build_all(count_reachable_sites(sites, enumeration.limits)))


@lru_cache(maxsize=MAX_KEPT_OFFERS)
def enumerate_flexible_candidates(
    operator: Operator, sites: int, *, fewer: bool = True, replicated: bool = True
) -> tuple[Candidate, ...]:
    """The strict candidates, in their order, then cuts along further indices, then fewer function specifications.

    With `fewer`, each of these runs on one site, and other sites stay idle. With `replicated`, it runs on as many sites
    as there are for each (`Candidate.replicas`), if that is at least two, no output block is a partial copy, and
    replicas cannot differ by more than rounding; the strict ones are offered in this way too where they leave so many
    sites idle. An odd number of sites may be used as if there were one less, which can be cut in more ways: whole
    operators and cuts along further indices are offered for that, too. The last candidates have one function
    specification, which does everything at one site or at all.
    """
    enumeration = _Enumeration(operator)
    strict = enumerate_candidates(operator, sites)
    used = len(strict[0].spec.functions)
    may_replicate = replicated and is_replicable(operator)
    spares = fewer and sites % 2 == 1 and 2 < sites <= LARGE_MACHINE_SITES

    def offer(built: Sequence[Candidate], alone: bool) -> Iterator[Candidate]:
        for candidate in built:
            if alone:
                yield candidate
            replicas = sites // len(candidate.spec.functions)
            if may_replicate and replicas > 1 and not candidate.aggregation:
                yield replicate(candidate, replicas)
                if replicas == sites and spares:
                    yield replicate(candidate, sites - 1)

    many = sites > LARGE_MACHINE_SITES
    most = max(MIN_EXTRA[many], MAX_EXTRA[many] * len(strict))
    known = {candidate.spec for candidate in strict}
    further = [
        option for option in enumeration.build_further(used, sites, MAX_FURTHER_CUTS[many]) if option.spec not in known
    ]
    if spares:
        below = count_reachable_sites(sites - 1, enumeration.limits)
        known |= {candidate.spec for candidate in further}
        further += [
            option
            for option in enumeration.build_further(below, sites - 1, MAX_FURTHER_CUTS[many])
            if option.spec not in known
        ]
    offered = [*offer(strict, alone=False)]
    left = most - len(offered)
    offers: dict[int, list[Candidate]] = {}
    for count in enumeration.list_smaller_counts(used, sites) if fewer or may_replicate else ():
        if enumeration.count(count, left) <= left:
            smaller = [*offer([*enumeration.build_all(count)], alone=fewer)]
            if len(smaller) <= left:
                offers[count] = smaller
                left -= len(smaller)
    return (
        *strict,
        *further,
        *offered,
        *(option for count in sorted(offers, reverse=True) for option in offers[count]),
    )


def is_replicable(operator: Operator) -> bool:
    """Whether results that are computed on several sites differ by rounding at most.

    Sites may add up what they read in different orders. Where an operator makes discrete values of floats (it compares
    them, or ranks them), one rounding error could then make a replica choose otherwise.
    """
    return all(desc.dtype.is_float for desc in operator.outputs) or not any(
        desc.dtype.is_float for desc in operator.inputs
    )


@lru_cache(maxsize=1024)
def build_candidates(operator: Operator, counts: tuple[int, ...], replicas: int = 1) -> tuple[Candidate, ...]:
    """The candidates that cut every index into as many intervals as `counts` says, each computed on `replicas` sites.

    There is one for every way to choose the intervals. Raises ValueError where the operator cannot be cut so, or where
    replicas are not possible.
    """
    requests = enumerate_requests(operator.indices, counts)
    return tuple(_build_replicated(operator, request, replicas) for request in requests)


@lru_cache(maxsize=1024)
def restore_candidate(operator: Operator, intervals: Intervals, replicas: int = 1) -> Candidate:
    """The candidate with these intervals, computed on `replicas` sites each.

    Raises ValueError where the operator is not cut so, or where replicas are not possible.
    """
    if len(intervals) != len(operator.indices):
        raise ValueError(f"operator {operator.title} has {len(operator.indices)} indices, not {len(intervals)}")
    for index, index_intervals in zip(operator.indices, intervals, strict=True):
        if index_intervals not in index.choices(len(index_intervals)):
            raise ValueError(f"index {index.name} is never cut into these intervals")
    return _build_replicated(operator, intervals, replicas)


def _build_replicated(operator: Operator, request: Intervals, replicas: int) -> Candidate:
    candidate = _Enumeration(operator).build(request)
    if replicas == 1:
        return candidate
    if candidate.aggregation or not is_replicable(operator):
        raise ValueError(f"operator {operator.title} cannot compute the same blocks on several sites with this cut")
    return replicate(candidate, replicas)


def replicate(candidate: Candidate, replicas: int) -> Candidate:
    """The candidate with each of its function specifications on `replicas` sites."""
    return replace(candidate, replicas=replicas, join=candidate.join * replicas)


class _Enumeration:
    """Builds the candidates of one operator, which share their blocks.

    `limits` are the most intervals of each of its indices in the strict offer.
    """

    __slots__ = ("_inputs", "_operator", "_outputs", "_rank", "limits")

    def __init__(self, operator: Operator) -> None:
        self._operator = operator
        self.limits = limit_intervals(operator.indices)
        self._rank = sum(desc.rank for desc in (*operator.inputs, *operator.outputs))
        self._inputs = [_BlockCache(desc) for desc in operator.inputs]
        self._outputs = [_BlockCache(desc) for desc in operator.outputs]

    def _iterate(self, functions: int) -> Iterator[tuple[int, ...]]:
        """The interval counts whose product is `functions`."""
        limit = max(1, MAX_BOUNDS // (functions * max(1, self._rank)))
        return islice(enumerate_factorizations(functions, self.limits), limit)

    def count(self, functions: int, limit: int) -> int:
        """The number of candidates with as many function specifications; of more than `limit`, one more."""
        return sum(1 for _ in islice(self._iterate(functions), max(0, limit) + 1))

    def list_smaller_counts(self, used: int, sites: int) -> list[int]:
        """Numbers of function specifications below `used` that can be reached, the most useful first.

        These are one and the two halves of the sites, then divisors and powers of two, then those that allow more cuts
        than `used` does: six can be had in more ways than seven.
        """

        def rank(count: int) -> int | None:
            if count in (1, sites // 2, (sites + 1) // 2):
                return 0
            if used % count == 0 or sites % count == 0 or count & (count - 1) == 0:
                return 1
            return 2 if sites <= LARGE_MACHINE_SITES and self.count(count, ways) > ways else None

        ways = self.count(used, MAX_BOUNDS)
        ranks = {count: rank(count) for count in range(1, used) if self.count(count, 1)}
        return sorted((count for count, ranked in ranks.items() if ranked is not None), key=lambda c: (ranks[c], c))

    def build_all(self, functions: int) -> Iterator[Candidate]:
        """The candidates with as many function specifications, in lexicographic order of their intervals."""
        requests = sorted(
            tuple(index.intervals(count) for index, count in zip(self._operator.indices, counts, strict=True))
            for counts in self._iterate(functions)
        )
        return map(self.build, requests)

    def build_further(self, used: int, sites: int, most: int) -> Iterator[Candidate]:
        """Candidates along the indices beyond the strict offer that use as many sites as that offer, or more.

        Those that cut the fewest indices come before others up to `most`; the order is that of their intervals.
        """
        indices = self._operator.indices
        requests: list[Intervals] = []
        for position, further in enumerate(indices):
            if further.instead_of:
                limits = limit_intervals(indices, further)
                functions = count_reachable_sites(sites, limits)
                if functions >= used:
                    counts = (cut for cut in enumerate_factorizations(functions, limits) if cut[position] > 1)
                    requests += chain.from_iterable(enumerate_requests(indices, cut) for cut in counts)
        requests.sort(key=lambda request: (sum(len(index_intervals) > 1 for index_intervals in request), request))
        return map(self.build, sorted(requests[:most]))

    def build(self, request: Intervals) -> Candidate:
        return _build_candidate(self._operator, request, self._inputs, self._outputs)


class _BlockCache:
    """Remembers the blocks and tilings of one tensor, so that each is measured only once.

    Enumeration would spend most of its time on hashing and comparing blocks. So equal blocks are replaced by the first
    of them, and from then on blocks are compared by identity.
    """

    __slots__ = ("blocks", "full", "tilings")

    def __init__(self, desc: TensorDesc) -> None:
        self.full = desc.type
        self.blocks: dict[TensorType, tuple[TensorType, int]] = {}  # to the first equal one, and its size
        self.tilings: dict[tuple[int, ...], Tiling] = {}  # by the identities of its blocks

    def measure(self, blocks: list[TensorType]) -> tuple[Tiling, int]:
        """The distinct blocks and the total size of all blocks."""
        known: dict[int, tuple[TensorType, int]] = {}
        for block in {id(block): block for block in blocks}.values():
            first = self.blocks.get(block)
            if first is None:
                first = self.blocks[block] = (block, block.size)
            known[id(block)] = first
        tiling = tuple(sorted({id(first): first for first, _ in known.values()}.values(), key=_get_bounds))
        return self.tilings.setdefault(tuple(map(id, tiling)), tiling), sum(known[id(block)][1] for block in blocks)


def _get_bounds(block: TensorType) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return (block.lower, block.upper)


def _build_candidate(
    operator: Operator, request: Intervals, inputs: Sequence[_BlockCache], outputs: Sequence[_BlockCache]
) -> Candidate:
    """The spec for one request, with its costs. That blocks are those of the operator is proved of the whole plan."""
    spec = operator.build_spec(request)
    reads = [cache.measure([f.inputs[k] for f in spec.functions]) for k, cache in enumerate(inputs)]
    writes = [cache.measure([f.outputs[j] for f in spec.functions]) for j, cache in enumerate(outputs)]
    return Candidate(
        intervals=request,
        spec=spec,
        join=sum(size for _, size in reads),
        # The distinct blocks tile the tensor, so what exceeds its size is the partial copies that must be moved.
        aggregation=sum(size - output.full.size for (_, size), output in zip(writes, outputs, strict=True)),
        input_tilings=tuple(tiling for tiling, _ in reads),
        output_tilings=tuple(tiling for tiling, _ in writes),
    )
