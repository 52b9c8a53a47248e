"""The join-agg specs that an operator offers over a number of sites, with the sub-costs that depend on them alone
(paper, Sections 3.3, 4.2 and 4.3).

Every spec that an operator builds is checked here, so that later stages see valid ones only.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import islice
from math import prod

from einc.core.intervals import Intervals, count_reachable_sites, enumerate_factorizations
from einc.core.spec import JoinAggSpec, Tiling, find_spec_fault, find_tiling_fault
from einc.core.tensor import TensorDesc, TensorType
from einc.errors import InternalError
from einc.logical.plan import Candidate
from einc.ops.base import Operator, find_tuple_fault

MAX_BOUNDS = 1 << 22
"""Bound on the dimensions of all blocks of all specs of an operator, so that very high ranks cannot take minutes.

At 72 sites, an operator over eight indices stays below it for most tensors. Above it, only the first requests in
ascending order of their interval counts are taken.
"""


@lru_cache(maxsize=128)
def enumerate_candidates(operator: Operator, sites: int) -> tuple[Candidate, ...]:
    """All join-agg specs with exactly p' function specifications, in lexicographic order of their intervals.

    p' is `sites`, or the largest number below it that is a product of admissible interval counts. There is always
    at least one candidate. Raises InternalError if the operator returns anything but a join-agg spec.
    """
    limits = [index.max_intervals for index in operator.indices]
    used = count_reachable_sites(sites, limits)
    rank = sum(desc.rank for desc in (*operator.inputs, *operator.outputs))
    counts = islice(enumerate_factorizations(used, limits), max(1, MAX_BOUNDS // (used * max(1, rank))))
    requests = sorted(
        tuple(index.intervals(count) for index, count in zip(operator.indices, request, strict=True))
        for request in counts
    )
    inputs = [_BlockCache(desc, must_tile=False) for desc in operator.inputs]
    outputs = [_BlockCache(desc, must_tile=True) for desc in operator.outputs]
    return tuple(_build_candidate(operator, request, inputs, outputs) for request in requests)


class _BlockCache:
    """Remembers the blocks and tilings of one tensor, so that each is measured and checked only once.

    Enumeration would spend most of its time on hashing and comparing blocks. So equal blocks are replaced by the first
    of them, and from then on blocks are compared by identity.
    """

    __slots__ = ("blocks", "must_tile", "tilings", "whole")

    def __init__(self, desc: TensorDesc, must_tile: bool) -> None:
        self.whole = desc.type
        self.must_tile = must_tile
        self.blocks: dict[TensorType, tuple[TensorType, int]] = {}  # to the first equal one, and its size
        self.tilings: dict[tuple[int, ...], Tiling] = {}  # by the identities of its blocks

    def measure(self, blocks: list[TensorType]) -> tuple[Tiling, int] | None:
        """The distinct blocks and the total size of all blocks; None if a spec may not have these blocks."""
        known: dict[int, tuple[TensorType, int]] = {}
        for block in {id(block): block for block in blocks}.values():
            first = self.blocks.get(block)
            if first is None:
                if not self.whole.contains(block):
                    return None
                first = self.blocks[block] = (block, block.size)
            known[id(block)] = first
        tiling = tuple(sorted({id(first): first for first, _ in known.values()}.values(), key=_get_bounds))
        key = tuple(map(id, tiling))
        if key not in self.tilings:
            if self.must_tile and find_tiling_fault(self.whole, tiling) is not None:
                return None
            self.tilings[key] = tiling
        return self.tilings[key], sum(known[id(block)][1] for block in blocks)


def _get_bounds(block: TensorType) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return (block.lower, block.upper)


def _build_candidate(
    operator: Operator, request: Intervals, inputs: Sequence[_BlockCache], outputs: Sequence[_BlockCache]
) -> Candidate:
    """The spec for one request, after checking it, with its costs."""
    spec = operator.build_spec(request)
    expected = prod(map(len, request))
    if len(spec.functions) != expected:
        raise _make_refusal(operator, request, f"{len(spec.functions)} function specifications instead of {expected}")
    if any(len(f.inputs) != len(inputs) or len(f.outputs) != len(outputs) for f in spec.functions):
        raise _make_refusal(operator, request, _find_fault(operator, spec))
    functions = spec.functions if operator.joint_aggregations else ()
    fault = next((fault for f in functions if (fault := find_tuple_fault(operator, f)) is not None), None)
    if fault is not None:
        raise _make_refusal(operator, request, fault)
    reads = [cache.measure([f.inputs[k] for f in spec.functions]) for k, cache in enumerate(inputs)]
    writes = [cache.measure([f.outputs[j] for f in spec.functions]) for j, cache in enumerate(outputs)]
    sound_reads, sound_writes = [r for r in reads if r is not None], [w for w in writes if w is not None]
    if len(sound_reads) + len(sound_writes) != len(inputs) + len(outputs):
        raise _make_refusal(operator, request, _find_fault(operator, spec))
    return Candidate(
        intervals=request,
        spec=spec,
        join=sum(size for _, size in sound_reads),
        # The distinct blocks tile the tensor, so what exceeds its size is the partial copies that must be moved.
        aggregation=sum(size - output.whole.size for (_, size), output in zip(sound_writes, outputs, strict=True)),
        input_tilings=tuple(tiling for tiling, _ in sound_reads),
        output_tilings=tuple(tiling for tiling, _ in sound_writes),
    )


def _find_fault(operator: Operator, spec: JoinAggSpec) -> str:
    """What is wrong with the spec, in words."""
    fault = find_spec_fault(spec, [desc.type for desc in operator.inputs], [desc.type for desc in operator.outputs])
    return fault or "a block or tiling is unsound"


def _make_refusal(operator: Operator, request: Intervals, fault: str) -> InternalError:
    asked = ", ".join(
        f"{index.name} in {len(intervals)}" for index, intervals in zip(operator.indices, request, strict=True)
    )
    return InternalError(
        f"operator {operator.title} ({operator.family}) returned no join-agg spec for the request [{asked}]: {fault}",
        hint="this is a bug in the operator's build_spec",
    )
