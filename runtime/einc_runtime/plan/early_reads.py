"""Which weights a GPU brings into its cache while it waits for other GPUs.

A product of few rows takes as long as memory needs for its weights, and before it, its GPU may wait: for the partial
results of others that a sum needs. Memory is idle meanwhile, and the weights are known. So a launch beside the others
asks for their first bytes, which the product then finds in the cache. It computes nothing: results are the same with it
and without it.

Which products these are follows from the tasks alone, for the compiler and the executor alike.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from einc_runtime.plan.launches import MAX_FEW_ROWS, JointLaunch, find_launches, multiplies_few_rows
from einc_runtime.plan.regions import ExecutablePlan, find_users, reads_of, writes_of
from einc_runtime.plan.schema import (
    AggregateTask,
    AnyTask,
    Block,
    CopyTask,
    FenceTask,
    KernelTask,
    Region,
    TransferTask,
)

CACHE_PART = 0.4
"""The part of a GPU's second cache that is filled ahead. Both halves of the cache of A100 and H100 may keep what all
multiprocessors read, so that little more than a half holds different bytes; of a projection of 0.4 of the cache, what
lay between took up to a third on an RTX PRO 6000 where a layer of experts came before its reader (pull requests 576 and
578 of local-inference-lab/vllm). Here only sums and norms of few rows come between."""

LIGHT_KERNELS = frozenset({"map", "rmsnorm", "layernorm", "rope", "append"})
"""Kernels that read little where a product of few rows follows, so that what was brought stays in the cache."""


@dataclass(frozen=True, slots=True)
class EarlyRead:
    """What may be read ahead for the product of a task (a position): `regions` of weights, in the order of the operands
    of its launch, from when the task `after` has ended, which is the last one of its site before the wait. `between`
    are the tasks of the site after the wait that come before the product, each the first of its launch."""

    task: int
    after: int
    regions: tuple[Region, ...]
    between: tuple[int, ...]


def find_early_reads(
    plan: ExecutablePlan,
    tasks: Sequence[AnyTask],
    messages: Collection[int] = (),
    launches: Sequence[JointLaunch] | None = None,
) -> tuple[EarlyRead, ...]:
    """All of a plan, by the site and the order of its tasks. In a part of a plan, `messages` are the tasks that have
    another end elsewhere. `launches` is `find_launches`, for callers that have it."""
    if not any(multiplies_few_rows(plan, task) for task in tasks):
        return ()
    launches = find_launches(plan, tasks) if launches is None else launches
    steps = {launch.tasks[0]: launch.tasks for launch in launches}
    later = {number for members in steps.values() for number in members[1:]}
    sources = _find_sources(tasks, messages, 1 << len(plan.memory))
    _, writers = find_users(tasks)
    by_site: dict[int, list[tuple[int, ...]]] = {}
    for number, task in enumerate(tasks):
        if number not in later and number not in messages and not isinstance(task, FenceTask | TransferTask):
            by_site.setdefault(task.site, []).append(steps.get(number, (number,)))
    return tuple(
        read
        for site, site_steps in sorted(by_site.items())
        for read in _find_of_site(plan, tasks, 1 << site, site_steps, sources, writers)
    )


def _find_of_site(
    plan: ExecutablePlan,
    tasks: Sequence[AnyTask],
    site: int,
    steps: Sequence[tuple[int, ...]],
    sources: Sequence[int],
    writers: Mapping[int, Sequence[int]],
) -> Iterator[EarlyRead]:
    """`site` is the bit of the site in masks such as `sources`."""
    after: int | None = None
    between: list[int] = []
    for before, step in zip([(), *steps], steps, strict=False):
        awaited = [number for member in step for number in tasks[member].after if number not in step]
        if before and any(sources[number] & ~site for number in awaited):
            after, between = before[-1], []
        if after is None:
            continue
        if any(multiplies_few_rows(plan, tasks[member]) for member in step):
            regions = dict.fromkeys(region for member in step for region in reads_of(tasks[member]))
            weights = tuple(region for region in regions if _is_weight(plan, region, writers))
            if weights:
                yield EarlyRead(step[0], after, weights, tuple(between))
        elif all(_is_light(plan, tasks[member]) for member in step):
            between.append(step[0])
            continue
        after = None


def _find_sources(tasks: Sequence[AnyTask], messages: Collection[int], elsewhere: int) -> list[int]:
    """For every task where something must have happened when it has ended, as bits: at its site, `elsewhere` for
    messages, and for fences where what they wait for happens."""
    sources: list[int] = []
    for number, task in enumerate(tasks):
        mask = elsewhere if number in messages else 0 if isinstance(task, FenceTask) else 1 << task.site
        if isinstance(task, FenceTask):
            for number in task.after:
                mask |= sources[number]
        sources.append(mask)
    return sources


def _is_weight(plan: ExecutablePlan, region: Region, writers: Mapping[int, Sequence[int]]) -> bool:
    return plan.buffers[region.buffer].role == "weight" and not writers.get(region.buffer)


def has_few_rows(block: Block) -> bool:
    """Whether a block is so small in some dimension as what products of few rows make."""
    return min(block.shape, default=1) <= MAX_FEW_ROWS


def _is_light(plan: ExecutablePlan, task: AnyTask) -> bool:
    if not all(has_few_rows(region.block) for region in writes_of(task)):
        return False
    if isinstance(task, KernelTask):
        return plan.operations[task.operation].kernel in LIGHT_KERNELS
    return isinstance(task, AggregateTask | CopyTask)
