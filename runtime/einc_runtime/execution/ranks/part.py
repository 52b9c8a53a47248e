"""One rank's part of a plan as a bundle of its own, with the rank's sites alone, as executors of GPUs take it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from einc_runtime.plan.ranks import RankTask, select_tasks
from einc_runtime.plan.regions import reads_of, writes_of
from einc_runtime.plan.schema import AnyTask, Block, Buffer, Bundle, FenceTask, Tensor

EMPTY_TENSOR = Tensor("nothing", ("none",), (0,), "f32", "value")
"""The tensor of empty buffers."""


@dataclass(frozen=True, slots=True)
class PlanPart:
    """`bundle` has the tasks and buffers of one rank under the numbers that they have in the plan, and the rank's sites
    under numbers of its own: `sites` has their numbers in the plan. `messages` has the tasks that are ends of messages,
    each with the site at the other end (a number in the plan). In the place of what others have are fences and empty
    buffers."""

    bundle: Bundle
    sites: tuple[int, ...]
    messages: dict[int, int]


def take_part(bundle: Bundle, ranks: Sequence[int], rank: int) -> PlanPart:
    """The part of a rank; `ranks` has the rank of every site. Tasks wait for nothing: that is to be found anew."""
    sites = tuple(site for site, owner in enumerate(ranks) if owner == rank)
    new_numbers = {site: number for number, site in enumerate(sites)}
    tasks: list[AnyTask] = [FenceTask(0, task.serves, ()) for task in bundle.tasks]
    messages: dict[int, int] = {}
    for item in select_tasks(bundle, bundle.tasks, ranks, rank):
        task, plan_task = item.task, bundle.tasks[item.position]
        site = task.site
        if item.peer is not None:
            (region,) = (*writes_of(task), *reads_of(task))
            site = bundle.buffers[region.buffer].site
            (far_end,) = writes_of(plan_task) if reads_of(task) else reads_of(plan_task)
            messages[item.position] = bundle.buffers[far_end.buffer].site
        tasks[item.position] = msgspec.structs.replace(task, site=new_numbers[site], after=())
    nothing = Buffer(0, 0, len(bundle.tensors), Block((0,), (0,)), "scratch")
    part = msgspec.structs.replace(
        bundle,
        tasks=tuple(tasks),
        tensors=(*bundle.tensors, EMPTY_TENSOR),
        buffers=tuple(
            msgspec.structs.replace(buffer, site=new_numbers[buffer.site]) if buffer.site in new_numbers else nothing
            for buffer in bundle.buffers
        ),
        memory=tuple(bundle.memory[site] for site in sites),
        devices=tuple(bundle.devices[site] for site in sites),
        outputs=tuple(
            msgspec.structs.replace(
                output,
                regions=tuple(region for region in output.regions if bundle.buffers[region.buffer].site in new_numbers),
            )
            for output in bundle.outputs
        ),
    )
    return PlanPart(part, sites, messages)


def list_gpu_tasks(bundle: Bundle, ranks: Sequence[int], rank: int) -> list[RankTask]:
    """The tasks of a rank as it runs them, in their order, with a GPU for every site; what they wait for are places in
    this list."""
    from einc_runtime.execution.cuda.preparation import rewrite_for_devices

    part = take_part(bundle, ranks, rank)
    tasks = rewrite_for_devices(part.bundle, range(len(part.sites)), is_part=True)
    places: dict[int, int] = {}
    items: list[RankTask] = []
    for position, task in enumerate(tasks):
        if not isinstance(task, FenceTask):
            peer = ranks[part.messages[position]] if position in part.messages else None
            after = tuple(places[earlier] for earlier in task.after if earlier in places)
            places[position] = len(items)
            items.append(RankTask(position, msgspec.structs.replace(task, after=after), peer))
    return items
