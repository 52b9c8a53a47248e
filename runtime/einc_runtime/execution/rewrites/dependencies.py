"""What tasks have to wait for where all sites share one memory: those whose bytes they touch, and nobody else.

A plan's own dependencies also keep transfers from sharing a link, which is no reason to wait here. Tasks in their order
in the plan are one of the orders that it allows, and all of these give the same result; so it is enough that any two
tasks that touch the same bytes, one of them writing, run in that order.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from einc_runtime.execution.rewrites.lifetimes import Arena
from einc_runtime.plan.boxes import inside, overlap
from einc_runtime.plan.regions import reads_of, span, writes_of
from einc_runtime.plan.schema import AnyTask, Block, Bundle

Access = tuple[int, Block]


def dependencies(bundle: Bundle, tasks: Sequence[AnyTask]) -> tuple[tuple[int, ...], ...]:
    """For every task the earlier ones that it must wait for, ascending; what follows from others may be left out."""
    sweep = _Sweep(bundle)
    return tuple(sweep.step(number, task) for number, task in enumerate(tasks))


@dataclass(slots=True)
class _Holding:
    """The accesses to a buffer since it was given its bytes, and `before`: those to what was there till then."""

    reads: list[Access] = field(default_factory=list)
    writes: list[Access] = field(default_factory=list)
    before: tuple[int, ...] = ()

    def tasks(self) -> set[int]:
        """Everything after which nobody uses the buffer."""
        return {number for number, _ in (*self.reads, *self.writes)}


class _Sweep:
    def __init__(self, bundle: Bundle) -> None:
        self.spans = [span(bundle, number) for number in range(len(bundle.buffers))]
        self.sites = [buffer.site for buffer in bundle.buffers]
        self.loaded = [buffer.role in ("input", "weight") for buffer in bundle.buffers]
        self.arenas = [Arena() for _ in bundle.memory]
        self.holdings: dict[int, _Holding] = {}
        self.after: list[tuple[int, ...]] = []

    def step(self, number: int, task: AnyTask) -> tuple[int, ...]:
        reads = [region for region in reads_of(task) if not self.loaded[region.buffer]]
        found: set[int] = set()
        for region in reads:
            found.update(_hits(self._holding(region.buffer).writes, region.block))
        for region in writes_of(task):
            holding = self._holding(region.buffer)
            hits = _hits(holding.writes, region.block) | _hits(holding.reads, region.block)
            found |= hits or set(holding.before)
        for region in writes_of(task):
            holding = self._holding(region.buffer)
            holding.reads = [access for access in holding.reads if not inside(access[1], region.block)]
            holding.writes = [access for access in holding.writes if not inside(access[1], region.block)]
            holding.writes.append((number, region.block))
        for region in reads:  # also of a buffer that has just lost its bytes to one that is written
            self.holdings[region.buffer].reads.append((number, region.block))
        found.discard(number)
        self.after.append(tuple(sorted(found)))
        return self.after[-1]

    def _holding(self, buffer: int) -> _Holding:
        """The buffer's record; where others have its bytes, it gets them, and remembers who used them."""
        arena = self.arenas[self.sites[buffer]]
        if buffer not in self.holdings or buffer not in arena.whole:
            displaced = arena.take(buffer, *self.spans[buffer])
            before = set().union(*(self.holdings[other].tasks() for other in displaced if other in self.holdings))
            self.holdings[buffer] = _Holding(before=self._last(before))
        return self.holdings[buffer]

    def _last(self, tasks: set[int]) -> tuple[int, ...]:
        """Without those that others of them wait for."""
        implied = set().union(*(self.after[number] for number in tasks if number < len(self.after)))
        return tuple(sorted(tasks - implied))


def _hits(accesses: Iterable[Access], block: Block) -> set[int]:
    return {number for number, other in accesses if overlap(other, block)}
