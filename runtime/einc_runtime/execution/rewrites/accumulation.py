"""Accumulation in place: where sites share a memory, products add to partial results, and separate sums are not needed.

Kernels that make partial copies of one block, all of which go into the same sums, are divided into a few chains. The
first kernel of a chain writes its copy, and each of the others adds its own result to that. The sums then read one copy
per chain. A sum with a single copy left to read becomes a transfer, which copy elision may remove. There are as many
chains as keep all workers busy. The order of additions depends only on the plan and the number of workers.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence

import msgspec

from einc_runtime.plan.regions import ExecutablePlan, find_output_buffers, find_users, writes_of
from einc_runtime.plan.schema import AggregateTask, AnyTask, Block, KernelTask, Region, TransferTask

CHAINS_PER_WORKER = 2
"""More than one chain for each worker, so that a worker need not wait for a slow chain of another one."""

CanAccumulate = Callable[[KernelTask, Region], bool]
"""Whether a kernel can add its result to a region instead of writing it where it does."""


def accumulate_in_place(
    bundle: ExecutablePlan, tasks: Sequence[AnyTask], workers: int, can_accumulate: CanAccumulate
) -> tuple[tuple[AnyTask, ...], frozenset[int]]:
    """The tasks, some of them with other regions, and the positions of the kernels that add to what they write."""
    changed, accumulating = list(tasks), set[int]()
    for groups in _find_groups(bundle, tasks).values():
        for members in groups:
            count = -(-CHAINS_PER_WORKER * workers // len(groups))
            for chain in _divide(members, count):
                first, *others = [tasks[number] for number in chain]
                target = writes_of(first)[0]
                if others and all(isinstance(task, KernelTask) and can_accumulate(task, target) for task in others):
                    for number in chain[1:]:
                        changed[number] = msgspec.structs.replace(changed[number], writes=(target,))
                    accumulating.update(chain[1:])
    unused = {writes_of(tasks[number])[0].buffer for number in accumulating}
    for number, task in enumerate(changed):
        if isinstance(task, AggregateTask):
            reads = tuple(region for region in task.reads if region.buffer not in unused)
            if len(reads) == 1:
                changed[number] = TransferTask(task.site, task.serves, task.after, read=reads[0], write=task.writes[0])
            elif len(reads) < len(task.reads):
                changed[number] = msgspec.structs.replace(task, reads=reads)
    return tuple(changed), frozenset(accumulating)


def _find_groups(bundle: ExecutablePlan, tasks: Sequence[AnyTask]) -> dict[int, list[list[int]]]:
    """By operation: groups of kernels that write copies of one block, which the same sums and no other tasks read."""
    (readers, writers), saved = find_users(tasks), find_output_buffers(bundle)
    copies: dict[tuple[int, Block, tuple[int, ...]], list[int]] = defaultdict(list)
    for number, task in enumerate(tasks):
        if not isinstance(task, KernelTask) or len(task.writes) != 1:
            continue
        buffer = task.writes[0].buffer
        sums = tuple(sorted(set(readers[buffer])))
        if buffer not in saved and set(writers[buffer]) == {number} and _are_sums(tasks, sums, buffer):
            copies[task.operation, task.writes[0].block, sums].append(number)
    groups: dict[int, list[list[int]]] = defaultdict(list)
    for (operation, _, sums), members in copies.items():
        if sums and len(members) > 1:
            groups[operation].append(members)
    return groups


def _are_sums(tasks: Sequence[AnyTask], numbers: Sequence[int], buffer: int) -> bool:
    """Whether all of these are sums of single tensors that read the buffer once and do not write it."""
    for number in numbers:
        task = tasks[number]
        if not isinstance(task, AggregateTask) or task.aggregation != "sum" or len(task.writes) != 1:
            return False
        if sum(region.buffer == buffer for region in task.reads) != 1 or task.writes[0].buffer == buffer:
            return False
    return True


def _divide(members: Sequence[int], count: int) -> Iterator[Sequence[int]]:
    """Consecutive members in at most `count` chains of nearly equal length."""
    count = min(count, len(members))
    bounds = [k * len(members) // count for k in range(count + 1)]
    for start, end in itertools.pairwise(bounds):
        yield members[start:end]
