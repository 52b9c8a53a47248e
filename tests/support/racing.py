"""Races in device programs, by comparing accesses pairwise."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from einc.physical.program import Buffer, DeviceProgram, Region, Task


def races(program: DeviceProgram) -> Iterator[str]:
    """Pairs of tasks that touch the same bytes, at least one of them writing, and may run in either order.

    Regions count as overlapping where their buffers share bytes and, inside one buffer, where their blocks intersect.
    Quadratic in the tasks of a site.
    """
    ancestors = _ancestors(program.tasks)
    touching: list[list[tuple[int, Region, bool]]] = [[] for _ in program.memory]
    for position, task in enumerate(program.tasks):
        for regions, writes in ((task.reads, False), (task.writes, True)):
            for region in regions:
                touching[program.buffers[region.buffer].site].append((position, region, writes))
    for accesses in touching:
        for i, (late, region, writes) in enumerate(accesses):
            for early, other, also_writes in accesses[:i]:
                if early == late or not (writes or also_writes) or ancestors[late] >> early & 1:
                    continue
                if _overlap(program.buffers, program.offsets, region, other):
                    yield f"tasks {early} and {late} race on buffers {other.buffer} and {region.buffer}"


def _ancestors(tasks: Sequence[Task]) -> list[int]:
    """For every task the set of tasks that have ended before it starts, as bits."""
    ancestors: list[int] = []
    for task in tasks:
        bits = 0
        for before in task.after:
            bits |= ancestors[before] | 1 << before
        ancestors.append(bits)
    return ancestors


def _overlap(buffers: Sequence[Buffer], offsets: Sequence[int], a: Region, b: Region) -> bool:
    if a.buffer == b.buffer:
        return a.block.intersect(b.block) is not None
    first, second = offsets[a.buffer], offsets[b.buffer]
    return first < second + buffers[b.buffer].size_bytes and second < first + buffers[a.buffer].size_bytes
