"""Sites that share processor cores: which tasks the executor of CPUs really runs, and when its cores run them.

Where all sites lie in one memory, the executor rewrites a plan before it runs it: readers read the source of a transfer
instead of a copy, and kernels that are too few to keep all cores busy are cut.
The same passes are applied here, because they decide most of what a plan costs on such a machine. What is left runs on
the machine's cores, as many tasks at once as there are cores. Of the tasks that are ready, the one with the longest
chain of tasks after it starts first. A transfer that is left is a copy, which a core makes.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from einc.machines.model import Machine
from einc.predict.costs import TaskCost, TaskKind, compute_occupied_ms, compute_task_costs, name_combining
from einc.predict.launches import charge_launches
from einc.predict.peer_sums import charge_peer_sums
from einc_runtime.plan.launches import JointLaunch, find_launches
from einc_runtime.plan.peer_sums import PeerSum
from einc_runtime.plan.regions import ExecutablePlan, reads_of, region_bytes, writes_of
from einc_runtime.plan.schema import AggregateTask, FenceTask, KernelTask

if TYPE_CHECKING:
    from einc_runtime.execution.rewrites import RewrittenTask

WEIGHT_FLOPS = 20
"""Operations for the weight of a row of a partial tuple, of which most are an exponential. Of all that is combined,
only this takes longer to compute than to move, where rows are short."""


@dataclass(frozen=True, slots=True)
class RunTasks:
    """What is run of a plan: the costs of its tasks, and for each the position in the plan that it was made from.

    `launches` are the tasks of the plan that count as one launch, and `peer_sums` those that read what other GPUs have.
    """

    costs: tuple[TaskCost, ...]
    origins: tuple[int, ...]
    launches: tuple[JointLaunch, ...] = ()
    peer_sums: tuple[PeerSum, ...] = ()


def list_run_tasks(plan: ExecutablePlan, machine: Machine) -> RunTasks:
    """The tasks that a machine runs for a plan, each after those that it waits for.

    On a machine whose sites share cores they are rewritten. On all others they are the tasks of the plan, some of which
    are one launch.
    """
    planned = compute_task_costs(plan)
    if machine.cores is None:
        launches = find_launches(plan, plan.tasks) if machine.joins_launches else ()
        charged = charge_launches(plan, planned, launches)
        charged, peer_sums = charge_peer_sums(plan, machine, charged, launches)
        return RunTasks(charged, tuple(range(len(planned))), launches, peer_sums)

    from einc_runtime.execution.rewrites import MAX_COALESCED_BYTES, KernelTime, RewriteOptions, rewrite

    def estimate(item: RewrittenTask) -> KernelTime:
        cost = _measure_part(plan, planned, item)
        return KernelTime(1e6 * compute_occupied_ms(cost, machine.sites[cost.site], 0.0))

    options = RewriteOptions(
        max_move_bytes=MAX_COALESCED_BYTES,
        workers=machine.cores or 1,
        estimate=estimate,
    )
    items = rewrite(plan, options)
    return RunTasks(tuple(_measure_part(plan, planned, item) for item in items), tuple(item.origin for item in items))


def _measure_part(plan: ExecutablePlan, planned: Sequence[TaskCost], item: RewrittenTask) -> TaskCost:
    """The cost of a task that was rewritten: its share of the operations, and the bytes that it still accesses."""
    task, planned_cost = item.task, planned[item.origin]
    writes = writes_of(task)
    size = sum([region_bytes(plan, region) for region in (*reads_of(task), *writes)])
    if not isinstance(task, KernelTask):
        assert not isinstance(task, FenceTask)  # left out
        flops = 0
        if isinstance(task, AggregateTask) and len(writes) > 1:
            flops = WEIGHT_FLOPS * len(task.reads) // len(writes) * writes[1].block.size
        return TaskCost(TaskKind.COMBINE, task.site, task.after, size, flops, task=name_combining(task))
    function = plan.operations[task.operation].functions[task.function]
    share = writes[0].block.size / max(1, function.outputs[0].size)
    size = planned_cost.size if share == 1 else size
    return planned_cost._replace(
        after=task.after,
        size=size,
        flops=round(planned_cost.flops * share),
        work=planned_cost.work if share == 1 else None,
    )


@dataclass(frozen=True, slots=True)
class CoreSchedule:
    """Milliseconds from the beginning, by position of the task, and the core that ran it: -1 for a fence."""

    starts: tuple[float, ...]
    ends: tuple[float, ...]
    cores: tuple[int, ...]


def schedule_on_cores(costs: Sequence[TaskCost], machine: Machine) -> CoreSchedule:
    """Runs tasks on the machine's cores: each takes one core, and a fence takes no time.

    Of the tasks that are ready, the one with the longest chain from its start to the end of the plan starts first; of
    equals, the first in the program.
    """
    lengths = [
        0.0 if cost.kind is TaskKind.FENCE
        else compute_occupied_ms(cost, machine.sites[cost.site], machine.kernel_latency_us)
        for cost in costs
    ]  # fmt: skip
    followers: list[list[int]] = [[] for _ in costs]
    for position, cost in enumerate(costs):
        for before in cost.after:
            followers[before].append(position)
    ranks = list(lengths)
    for position in range(len(costs) - 1, -1, -1):
        ranks[position] += max((ranks[later] for later in followers[position]), default=0.0)
    waiting = [len(cost.after) for cost in costs]
    starts, ends, cores = [0.0] * len(costs), [0.0] * len(costs), [-1] * len(costs)
    ready: list[tuple[float, int]] = []
    idle, running = list(range(machine.cores or 1)), list[tuple[float, int]]()
    now = 0.0

    def release(first: Sequence[int]) -> None:
        """Makes tasks ready; a fence ends at once, and makes others ready."""
        stack = list(first)
        while stack:
            position = stack.pop()
            if costs[position].kind is not TaskKind.FENCE:
                heapq.heappush(ready, (-ranks[position], position))
                continue
            starts[position] = ends[position] = now
            stack += end(position)

    def end(position: int) -> list[int]:
        """The tasks that waited for nothing else than this one."""
        for follower in followers[position]:
            waiting[follower] -= 1
        return [follower for follower in dict.fromkeys(followers[position]) if not waiting[follower]]

    release([position for position, count in enumerate(waiting) if not count])
    while ready or running:
        while ready and idle:
            position = heapq.heappop(ready)[1]
            cores[position] = heapq.heappop(idle)
            starts[position], ends[position] = now, now + lengths[position]
            heapq.heappush(running, (ends[position], position))
        now, position = heapq.heappop(running)
        heapq.heappush(idle, cores[position])
        release(end(position))
    return CoreSchedule(tuple(starts), tuple(ends), tuple(cores))
