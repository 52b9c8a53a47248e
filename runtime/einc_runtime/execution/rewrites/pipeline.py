"""Runs the rewrite passes in their order; `rewrite` is the only entry point for both executors.

Every pass takes the tasks of a validated bundle and returns the same number of tasks, with a fence in the place of each
task that it removes, so that a task keeps its position. Only kernel splitting, which comes last, makes several tasks
of one. The plan itself stays as it is: rewrites belong to one execution of it.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

import msgspec

from einc_runtime.execution.rewrites.copy_elision import elide_copies
from einc_runtime.execution.rewrites.deduplication import deduplicate
from einc_runtime.execution.rewrites.dependencies import find_dependencies
from einc_runtime.execution.rewrites.kernel_splitting import KernelTime, count_parts, split_kernel
from einc_runtime.execution.rewrites.map_joining import JoinedMap, find_joined_maps, join
from einc_runtime.execution.rewrites.move_coalescing import coalesce_moves
from einc_runtime.plan.ranks import RankTask, select_tasks
from einc_runtime.plan.regions import ExecutablePlan
from einc_runtime.plan.schema import AggregateTask, AnyTask, CopyTask, FenceTask, KernelTask, TransferTask


class RewrittenTask(msgspec.Struct, frozen=True):
    """A task as it is run. `origin` is the position in the plan of the task that it was made from.

    `siblings` counts the tasks that differ from this one only in their site and in their part of the data, and
    `same_code` those that one kernel with the same attributes runs, for any operation. Both include this one. `peer` is
    the rank at the other end, if the task is one end of a message (`plan/ranks.py`). `then` is the map that is part of
    the task.
    """

    task: AnyTask
    origin: int
    siblings: int = 1
    same_code: int = 1
    peer: int | None = None
    then: JoinedMap | None = None


MAX_COALESCED_BYTES = 1 << 15
"""Moves of at most so many bytes are put together on CPUs: they take about as long as starting a task does."""


@dataclass(frozen=True, slots=True)
class RewriteOptions:
    """What an executor lets the passes do. The defaults are those of a single memory.

    `devices` gives every site its device; sites of one device share its memory. None: all sites share one memory.
    `peers`: pairs of devices; aggregations on the first one of a pair may read the memory of the second one.
    `enabled`: without it no pass runs, and the tasks only get the dependencies that their bytes need.
    `max_move_bytes`: moves of at most so many bytes are coalesced.
    `keep_fences`: leave a fence for each removed task, so that there are as many tasks as in the plan.
    `workers`: the threads that should all have work; read by splitting.
    `estimate`: the time that a kernel takes. None: no kernel is split.
    `merge_moves`: where all sites share one memory, let moves that are alike or near each other be one.
    `merge_states`: where all sites share one memory, let equal states of several be one (`find_merged_states`).
    `join_maps`: compute contractions and the maps of their results as one task.
    `rank`: the process whose tasks are wanted, where there are several; then `devices` are the ranks of the sites.
    Kernels are split as they are in one process, so that results are the same.
    """

    devices: Sequence[int] | None = None
    peers: Collection[tuple[int, int]] = ()
    enabled: bool = True
    max_move_bytes: float = math.inf
    keep_fences: bool = False
    workers: int = 1
    estimate: Callable[[RewrittenTask], KernelTime] | None = None
    merge_moves: bool = True
    merge_states: bool = False
    join_maps: bool = False
    rank: int | None = None

    @property
    def one_memory(self) -> bool:
        return self.devices is None or len(set(self.devices)) <= 1

    @property
    def is_part(self) -> bool:
        """Whether other processes run some of the tasks."""
        return self.rank is not None and not self.one_memory


def rewrite(bundle: ExecutablePlan, options: RewriteOptions) -> tuple[RewrittenTask, ...]:
    """The tasks of a validated bundle as an executor runs them, each waiting for earlier tasks of the result.

    Where all sites share one memory, tasks wait only for those that touch the same bytes, and so do the tasks of one
    rank. Several memories also keep the dependencies of the plan, which order transfers that share a link; they need
    `keep_fences`.
    """
    tasks = _rewrite_moves(bundle, options) if options.enabled else bundle.tasks
    codes = [(operation.kernel, repr(sorted(operation.kernel_attributes.items()))) for operation in bundle.operations]

    def find_code(task: AnyTask) -> tuple[object, ...]:
        """Equal for kernels of one name with the same attributes, for aggregations of as many copies, and for what one
        code moves."""
        if isinstance(task, KernelTask):
            return codes[task.operation]
        if isinstance(task, AggregateTask):
            return (AggregateTask, task.aggregation, len(task.reads), len(task.writes))
        return (type(task),) if isinstance(task, TransferTask | CopyTask) else _family(task)

    counted = tasks
    if options.is_part and options.enabled:  # as in one process: what becomes of a kernel depends on it
        counted = _rewrite_moves(bundle, dataclasses.replace(options, devices=None))
    sizes, same_code = Counter(map(_family, counted)), Counter(map(find_code, counted))
    rewritten = [
        RewrittenTask(item.task, item.position, sizes[_family(item.task)], same_code[find_code(item.task)], item.peer)
        for item in _select(bundle, tasks, options)
        if options.keep_fences or not isinstance(item.task, FenceTask)
    ]
    if options.enabled and options.join_maps:
        rewritten = _join_maps(bundle, tasks, rewritten)
    if options.enabled and options.estimate is not None:
        rewritten = [part for task in rewritten for part in _split(bundle, task, options.workers, options.estimate)]
    waits = find_dependencies(bundle, [item.task for item in rewritten])
    if not options.one_memory and not options.is_part:
        waits = tuple(tuple(sorted({*item.task.after, *after})) for item, after in zip(rewritten, waits, strict=True))
    return tuple(
        msgspec.structs.replace(item, task=msgspec.structs.replace(item.task, after=after))
        for item, after in zip(rewritten, waits, strict=True)
    )


def _join_maps(bundle: ExecutablePlan, tasks: Sequence[AnyTask], items: Sequence[RewrittenTask]) -> list[RewrittenTask]:
    """The items with contractions at the places of the maps that they are joined to."""
    joined = find_joined_maps(bundle, tasks)
    moved = {contraction: then for then, (contraction, _) in joined.items()}
    waiting: dict[int, RewrittenTask] = {}
    result: list[RewrittenTask] = []
    for item in items:
        if item.origin in moved:
            waiting[moved[item.origin]] = item
        elif item.origin in waiting:
            first, operand = waiting.pop(item.origin), joined[item.origin][1]
            assert isinstance(first.task, KernelTask)
            assert isinstance(item.task, KernelTask)
            then = JoinedMap(item.task.operation, operand)
            result.append(msgspec.structs.replace(first, task=join(first.task, item.task, operand), then=then))
        else:
            result.append(item)
    return result


def _select(bundle: ExecutablePlan, tasks: Sequence[AnyTask], options: RewriteOptions) -> Iterable[RankTask]:
    if options.rank is None or options.devices is None or options.one_memory:
        return itertools.starmap(RankTask, enumerate(tasks))
    return select_tasks(bundle, tasks, options.devices, options.rank)


def _rewrite_moves(bundle: ExecutablePlan, options: RewriteOptions) -> Sequence[AnyTask]:
    """The passes that change what is moved."""
    tasks = elide_copies(bundle, bundle.tasks, options.devices, options.peers)
    if not options.one_memory or not options.merge_moves:
        return tasks
    tasks = deduplicate(bundle, tasks, merge_states=options.merge_states)
    return coalesce_moves(bundle, tasks, options.max_move_bytes)


def _split(
    bundle: ExecutablePlan, item: RewrittenTask, workers: int, estimate: Callable[[RewrittenTask], KernelTime]
) -> Sequence[RewrittenTask]:
    task = item.task
    if not isinstance(task, KernelTask):
        return (item,)
    count = count_parts(item.siblings, workers, estimate(item))
    order = bundle.tensors[bundle.buffers[task.writes[0].buffer].tensor].order
    then = None if item.then is None else (bundle.operations[item.then.operation], item.then.operand)
    parts = split_kernel(bundle.operations[task.operation], task, count, order, then)
    if len(parts) == 1:
        return (item,)
    return [
        RewrittenTask(part, item.origin, item.siblings * len(parts), item.same_code * len(parts), then=item.then)
        for part in parts
    ]


def _family(task: AnyTask) -> tuple[object, ...]:
    """Equal for tasks that differ only in their site and in their part of the data."""
    return (task.operation,) if isinstance(task, KernelTask) else (type(task), task.serves)
