"""Checks on the buffers, tasks and outputs of a plan whose operations have been checked.

A plan file passes them when it is loaded, and the device program of a compilation when it has been built.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from einc_runtime.errors import PlanFault
from einc_runtime.plan import boxes
from einc_runtime.plan.checks import require, require_block, require_position, require_unique
from einc_runtime.plan.joint_aggregation import aggregation_groups, require_aggregation
from einc_runtime.plan.regions import ExecutablePlan, buffer_bytes, is_loaded
from einc_runtime.plan.schema import (
    ITEMSIZE,
    LOADED_ROLES,
    AggregateTask,
    AnyTask,
    Block,
    Buffer,
    CopyTask,
    Function,
    KernelTask,
    Region,
    TransferTask,
)
from einc_runtime.plan.states import STATE, validate_states
from einc_runtime.text import escape_text


def validate_tasks(plan: ExecutablePlan, corners: int) -> None:
    """Raises PlanFault, naming the part, at the first fault; `corners` limits the steps of the checks of tilings."""
    _check_buffers(plan)
    if plan.input_placement == "once":
        _check_homes(plan, boxes.StepBudget(corners))
    _check_tasks(plan)
    validate_states(plan)
    _check_outputs(plan, boxes.StepBudget(corners))


def _check_buffers(plan: ExecutablePlan) -> None:
    """Buffers are aligned and lie in their arenas. Only scratch buffers share bytes, and only with one another; what is
    written over a state lies where that does (`states`)."""
    spans: list[list[tuple[int, int, int]]] = [[] for _ in plan.memory]
    for i, buffer in enumerate(plan.buffers):
        where = f"buffers[{i}]"
        require_position(buffer.site, len(plan.memory), "site", f"{where}.site")
        require_position(buffer.tensor, len(plan.tensors), "tensor", f"{where}.tensor")
        tensor = plan.tensors[buffer.tensor]
        require_block(buffer.block, Block.whole(tensor.shape), f"{where}.block")
        loaded = buffer.role in LOADED_ROLES
        require(not loaded or buffer.role == tensor.kind, f"{where}.role", f"{buffer.role} buffer of a {tensor.kind}")
        width, arena = ITEMSIZE[tensor.dtype], plan.memory[buffer.site]
        end = buffer.offset + buffer_bytes(plan, buffer)
        inside = buffer.offset >= 0 and end <= arena
        require(inside, where, f"bytes {buffer.offset} to {end} are outside the arena of {arena}")
        require(buffer.offset % width == 0, f"{where}.offset", f"{buffer.offset} is no multiple of {width}")
        if buffer.role != STATE or tensor.kind == STATE:
            spans[buffer.site].append((buffer.offset, end, i))
    for site in spans:
        _check_overlaps(plan.buffers, sorted(site))


def _check_homes(plan: ExecutablePlan, budget: boxes.StepBudget) -> None:
    """No element of an input or weight is loaded twice, at one site or at two."""
    loaded: dict[int, list[int]] = {}
    for i, buffer in enumerate(plan.buffers):
        if buffer.role in LOADED_ROLES:
            loaded.setdefault(buffer.tensor, []).append(i)
    for tensor, numbers in loaded.items():
        overlap = boxes.find_overlap([plan.buffers[i].block for i in numbers], budget, f"tensors[{tensor}]")
        if overlap is not None:
            first, second = (numbers[position] for position in overlap)
            message = f"it is loaded with elements of tensor {tensor} that buffer {first} is loaded with, too"
            raise PlanFault(f"{message}, in a plan that has them at one site each", where=f"buffers[{second}]")


def _check_overlaps(buffers: Sequence[Buffer], spans: Sequence[tuple[int, int, int]]) -> None:
    """`spans` are the (first byte, end, buffer) of a site in ascending order."""
    last = last_kept = (0, -1)  # the furthest end so far, of any buffer and of one that is not scratch; and whose
    for start, end, i in spans:
        kept = buffers[i].role != "scratch"
        reach, furthest = last if kept else last_kept
        if start < reach:
            raise PlanFault(f"it shares bytes with buffer {furthest}, and not both are scratch", where=f"buffers[{i}]")
        last = max(last, (end, i))
        if kept:
            last_kept = max(last_kept, (end, i))


def _check_tasks(plan: ExecutablePlan) -> None:
    # Of millions of tasks, texts of faults are made where there is one: `require` would have them made for each.
    names = {operation.name for operation in plan.operations}
    names.update(plan.tensors[o.tensor].name for o in plan.outputs if 0 <= o.tensor < len(plan.tensors))
    aggregating = aggregation_groups(plan)
    written = [is_loaded(plan, number) for number in range(len(plan.buffers))]
    missing = [set(range(len(operation.functions))) for operation in plan.operations]
    for i, task in enumerate(plan.tasks):
        where = f"tasks[{i}]"
        require_position(task.site, len(plan.memory), "site", f"{where}.site")
        if task.serves not in names:
            raise PlanFault(f"'{escape_text(task.serves, 60)}' is no operation or output", where=f"{where}.serves")
        earlier = -1
        for position in task.after:
            if not earlier < position < i:
                raise PlanFault(f"{position} is not in ascending order below {i}", where=f"{where}.after")
            earlier = position
        reads, writes = _list_regions(plan, task, where)
        for at, region in reads:
            if not written[region.buffer]:
                raise PlanFault(f"no earlier task writes buffer {region.buffer}", where=at)
        for at, region in writes:
            role = plan.buffers[region.buffer].role
            if role in LOADED_ROLES:
                raise PlanFault(f"a task writes the {role} buffer {region.buffer}", where=at)
            written[region.buffer] = True
        if isinstance(task, KernelTask):
            _check_kernel(plan, task, missing, where)
        elif isinstance(task, TransferTask):
            _check_same_block(plan, task.read, task.write, where)
        elif isinstance(task, AggregateTask):
            require_aggregation(plan, task, aggregating, where)
            for k, region in enumerate(task.reads):
                _check_same_block(plan, region, task.writes[k % len(task.writes)], where)
        elif isinstance(task, CopyTask):
            require(len(task.reads) == len(task.writes), where, f"{len(task.reads)} reads, {len(task.writes)} writes")
            for read, write in zip(task.reads, task.writes, strict=True):
                _check_same_block(plan, read, write, where)
    for operation, left in enumerate(missing):
        require(not left, f"operations[{operation}]", f"no task runs its function {min(left, default=0)}")


Located = list[tuple[str, Region]]


def _list_regions(plan: ExecutablePlan, task: AnyTask, where: str) -> tuple[Located, Located]:
    """What a task reads and writes, with the places in the plan; all of it exists, at the sites where it must be."""
    if isinstance(task, TransferTask):
        reads, writes = [(f"{where}.read", task.read)], [(f"{where}.write", task.write)]
    elif isinstance(task, KernelTask | CopyTask | AggregateTask):
        reads = [(f"{where}.reads[{k}]", region) for k, region in enumerate(task.reads)]
        writes = [(f"{where}.writes[{k}]", region) for k, region in enumerate(task.writes)]
    else:
        return [], []
    for at, region in itertools.chain(reads, writes):
        _check_region(plan, region, at)
    for at, region in reads if isinstance(task, TransferTask) else itertools.chain(reads, writes):
        site = plan.buffers[region.buffer].site
        if site != task.site:
            raise PlanFault(f"buffer {region.buffer} is at site {site}, and the task runs at {task.site}", where=at)
    if isinstance(task, TransferTask):
        destination = plan.buffers[task.write.buffer].site
        require(destination != task.site, f"{where}.write", f"a transfer from site {destination} to itself")
    return reads, writes


def _check_region(plan: ExecutablePlan, region: Region, where: str) -> None:
    require_position(region.buffer, len(plan.buffers), "buffer", where)
    require_block(region.block, plan.buffers[region.buffer].block, where)


def _check_same_block(plan: ExecutablePlan, read: Region, write: Region, where: str) -> None:
    """Both regions hold one block of one tensor."""
    if read.block != write.block:
        raise PlanFault(f"it reads {read.block} and writes {write.block}", where=where)
    source, target = plan.buffers[read.buffer].tensor, plan.buffers[write.buffer].tensor
    if source != target:
        raise PlanFault(f"it reads tensor {source} and writes tensor {target}", where=where)


def _check_kernel(plan: ExecutablePlan, task: KernelTask, missing: list[set[int]], where: str) -> None:
    require_position(task.operation, len(plan.operations), "operation", f"{where}.operation")
    operation = plan.operations[task.operation]
    require_position(task.function, len(operation.functions), "function", f"{where}.function")
    left = missing[task.operation]
    require(task.function in left, where, f"function {task.function} of operation {task.operation} runs twice")
    left.remove(task.function)
    function: Function = operation.functions[task.function]
    require(task.site == function.site, f"{where}.site", f"{task.site}, and the function's is {function.site}")
    _check_operands(plan, task.reads, function.inputs, operation.inputs, f"{where}.reads")
    _check_operands(plan, task.writes, function.outputs, operation.outputs, f"{where}.writes")


def _check_operands(
    plan: ExecutablePlan, regions: Sequence[Region], blocks: Sequence[Block], tensors: Sequence[int], where: str
) -> None:
    require(len(regions) == len(blocks), where, f"{len(regions)} regions, where the function has {len(blocks)}")
    for k, (region, block, tensor) in enumerate(zip(regions, blocks, tensors, strict=True)):
        buffer_tensor = plan.buffers[region.buffer].tensor
        require(buffer_tensor == tensor, f"{where}[{k}]", f"tensor {buffer_tensor}, where the function takes {tensor}")
        if region.block != block:
            message = f"{region.block}, where the function takes {block}"
            raise PlanFault(message, where=f"{where}[{k}]")


def _check_outputs(plan: ExecutablePlan, budget: boxes.StepBudget) -> None:
    """The regions of every output cover its tensor, and lie in buffers that live to the end."""
    require_unique((output.tensor for output in plan.outputs), "outputs")
    for i, output in enumerate(plan.outputs):
        where = f"outputs[{i}]"
        require_position(output.tensor, len(plan.tensors), "tensor", f"{where}.tensor")
        in_order = not plan.tensors[output.tensor].order
        require(in_order, f"{where}.tensor", "an output must have its dimensions in the declared order")
        for k, region in enumerate(output.regions):
            at = f"{where}.regions[{k}]"
            _check_region(plan, region, at)
            buffer = plan.buffers[region.buffer]
            require(buffer.tensor == output.tensor, at, f"it holds tensor {buffer.tensor}, not {output.tensor}")
            require(buffer.role != "scratch", at, f"buffer {region.buffer} is scratch, which does not live to the end")
        require_unique(output.regions, f"{where}.regions")
        outer = Block.whole(plan.tensors[output.tensor].shape)
        missing = boxes.find_uncovered(outer, [region.block for region in output.regions], budget, f"{where}.regions")
        require(missing is None, f"{where}.regions", f"{missing} is in none of them")
