"""Races in device programs, by comparing accesses pairwise."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from einc.physical.program import DeviceProgram
from einc_runtime.plan.regions import ExecutablePlan, reads_of, span, writes_of
from einc_runtime.plan.schema import AnyTask, Region


def races(program: DeviceProgram) -> Iterator[str]:
    """Pairs of tasks that touch the same bytes, at least one of them writing, and may run in either order.

    Regions count as overlapping where their buffers share bytes and, inside one buffer, where their blocks intersect.
    Quadratic in the tasks of a site.
    """
    ancestors = _ancestors(program.tasks)
    touching: list[list[tuple[int, Region, bool]]] = [[] for _ in program.memory]
    for position, task in enumerate(program.tasks):
        for regions, writes in ((reads_of(task), False), (writes_of(task), True)):
            for region in regions:
                touching[program.buffers[region.buffer].site].append((position, region, writes))
    for accesses in touching:
        for i, (late, region, writes) in enumerate(accesses):
            for early, earlier_region, also_writes in accesses[:i]:
                if early == late or not (writes or also_writes) or ancestors[late] >> early & 1:
                    continue
                if _overlap(program, region, earlier_region):
                    yield f"tasks {early} and {late} race on buffers {earlier_region.buffer} and {region.buffer}"


def _ancestors(tasks: Sequence[AnyTask]) -> list[int]:
    """For every task the set of tasks that have ended before it starts, as bits."""
    ancestors: list[int] = []
    for task in tasks:
        bits = 0
        for before in task.after:
            bits |= ancestors[before] | 1 << before
        ancestors.append(bits)
    return ancestors


def _overlap(plan: ExecutablePlan, a: Region, b: Region) -> bool:
    if a.buffer == b.buffer:
        return a.block.intersect(b.block) is not None
    (first, first_end), (second, second_end) = span(plan, a.buffer), span(plan, b.buffer)
    return first < second_end and second < first_end
