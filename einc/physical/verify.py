"""Structural verification of device programs, in linear time, in every compilation.

That the tasks compute the right values is proved from the bundle alone, by the runtime.
"""

from __future__ import annotations

from collections.abc import Mapping

from einc.errors import InternalError
from einc.graph.graph import GraphTensor
from einc.physical.arena import ALIGNMENT
from einc.physical.program import BufferRole, DeviceProgram, Task, TaskKind
from einc.physical.residency import Group, groups_of

_LOADED = (BufferRole.INPUT, BufferRole.WEIGHT)


def verify(program: DeviceProgram) -> None:
    """Raises InternalError, naming the task or buffer, at the first thing that cannot be."""
    _lengths(program)
    _buffers(program)
    written = [buffer.role in _LOADED for buffer in program.buffers]
    tensors = program.plan.graph.tensor_table()
    nodes = {node.name: position for position, node in enumerate(program.plan.graph.nodes)}
    groups = {
        name: group
        for node in program.plan.graph.nodes
        for name, group in zip(node.outputs, groups_of(node), strict=True)
    }
    ran: set[tuple[str, int]] = set()
    for position, task in enumerate(program.tasks):
        fault = _task_fault(program, position, task, written)
        if fault is None and task.kind is TaskKind.KERNEL:
            fault = _kernel_fault(program, task, nodes.get(task.node))
        if fault is None and task.kind is TaskKind.AGGREGATE:
            fault = _aggregation_fault(program, task, groups, tensors)
        if fault is None and task.function is not None:
            fault = "runs a function specification again" if (task.node, task.function) in ran else None
            ran.add((task.node, task.function))
        if fault is not None:
            raise InternalError(f"task {position} ({task.kind.value} for {task.node} at site {task.site}): {fault}")
    if len(ran) != sum(map(len, program.sites)):
        raise InternalError(f"{len(ran)} function specifications run, of {sum(map(len, program.sites))}")
    for output in program.outputs:
        size = sum(region.block.size for region in output.regions)
        for region in output.regions:
            buffer = program.buffers[region.buffer]
            if buffer.tensor != output.tensor or not buffer.block.contains(region.block):
                raise InternalError(f"output {output.tensor}: buffer {region.buffer} does not hold {region.block}")
            if buffer.role is BufferRole.SCRATCH or not written[region.buffer]:
                raise InternalError(f"output {output.tensor}: buffer {region.buffer} does not live to the end")
        if size != tensors[output.tensor].desc.type.size:
            raise InternalError(f"output {output.tensor}: {size} elements come home")


def _lengths(program: DeviceProgram) -> None:
    graph, choices = program.plan.graph, program.plan.choices
    if not len(graph.nodes) == len(choices) == len(program.sites) == len(program.exchanges):
        raise InternalError("not every operator has a choice, sites and an exchange")
    for node, choice, sites in zip(graph.nodes, choices, program.sites, strict=True):
        if len(sites) != len(choice.candidate.spec.functions) or len(set(sites)) != len(sites):
            raise InternalError(f"{node.name}: its function specifications do not have a site each")
        if not all(0 <= site < program.plan.sites for site in sites):
            raise InternalError(f"{node.name}: sites {sites} of {program.plan.sites}")
    if tuple(output.tensor for output in program.outputs) != graph.outputs:
        raise InternalError("the saved outputs are not the graph's")
    if len(program.offsets) != len(program.buffers) or len(program.memory) != program.plan.sites:
        raise InternalError("not every buffer has an offset and every site an arena")


def _buffers(program: DeviceProgram) -> None:
    """Buffers lie inside their arenas, and only scratch buffers share bytes, with one another."""
    tensors = program.plan.graph.tensor_table()
    spans: list[list[tuple[int, int, int]]] = [[] for _ in program.memory]
    for b, (buffer, offset) in enumerate(zip(program.buffers, program.offsets, strict=True)):
        desc = tensors[buffer.tensor].desc
        if buffer.dtype is not desc.dtype or not desc.type.contains(buffer.block) or not buffer.block.size:
            raise InternalError(f"buffer {b} holds {buffer.dtype}{buffer.block} of {buffer.tensor}, which is {desc}")
        end = offset + buffer.size_bytes
        if offset < 0 or offset % ALIGNMENT or end > program.memory[buffer.site]:
            raise InternalError(f"buffer {b} takes bytes {offset} to {end} of {program.memory[buffer.site]}")
        spans[buffer.site].append((offset, end, b))
    for site in spans:
        reach = reach_kept = 0
        for start, end, b in sorted(site):
            kept = program.buffers[b].role is not BufferRole.SCRATCH
            if start < (reach if kept else reach_kept):
                raise InternalError(f"buffer {b} shares bytes with another, and not both are scratch")
            reach, reach_kept = max(reach, end), max(reach_kept, end) if kept else reach_kept


def _task_fault(program: DeviceProgram, position: int, task: Task, written: list[bool]) -> str | None:
    """Why a task cannot be, or None; marks what it writes."""
    if any(not 0 <= before < position for before in task.after) or list(task.after) != sorted(set(task.after)):
        return f"waits for tasks {task.after}"
    buffers = program.buffers
    for region in (*task.reads, *task.writes):
        if not (0 <= region.buffer < len(buffers) and buffers[region.buffer].block.contains(region.block)):
            return f"region {region.block} is outside of buffer {region.buffer}"
    for region in task.reads:
        if not written[region.buffer]:
            return f"reads buffer {region.buffer} before it is written"
        if buffers[region.buffer].site != task.site:
            return f"reads buffer {region.buffer} of another site"
    for region in task.writes:
        buffer = buffers[region.buffer]
        if buffer.role in _LOADED:
            return f"writes the {buffer.role.value} buffer {region.buffer}"
        if (buffer.site == task.site) is (task.kind is TaskKind.TRANSFER):
            return f"writes buffer {region.buffer} at site {buffer.site}"
        written[region.buffer] = True
    if task.kind is TaskKind.KERNEL:
        return None  # its operands are compared with its function specification
    if task.function is not None:
        return "runs a function specification"
    if task.kind is TaskKind.FENCE:
        return "a fence touches data" if task.reads or task.writes else None
    return _moving_fault(program, task)


def _kernel_fault(program: DeviceProgram, task: Task, n: int | None) -> str | None:
    """A kernel of node number `n`."""
    sites = () if n is None else program.sites[n]
    if n is None or task.function is None or not 0 <= task.function < len(sites) or sites[task.function] != task.site:
        return f"function specification {task.function} does not run here"
    node = program.plan.graph.nodes[n]
    function = program.plan.choices[n].candidate.spec.functions[task.function]
    wanted = [*zip(node.inputs, function.inputs, strict=True), *zip(node.outputs, function.outputs, strict=True)]
    found = [(program.buffers[region.buffer].tensor, region.block) for region in (*task.reads, *task.writes)]
    return None if found == wanted and len(task.reads) == len(node.inputs) else f"takes {found}, should take {wanted}"


def _moving_fault(program: DeviceProgram, task: Task) -> str | None:
    """Transfers, aggregations and copies."""
    reads, writes = len(task.reads), len(task.writes)
    if task.kind is TaskKind.COPY:
        fits, pairs = reads == writes > 0, zip(task.reads, task.writes, strict=False)
    elif task.kind is TaskKind.TRANSFER:
        fits, pairs = reads == writes == 1, zip(task.reads, task.writes, strict=False)
    else:
        copies, left = divmod(reads, max(1, writes))
        fits, pairs = copies >= 2 and not left and writes > 0, zip(task.reads, task.writes * copies, strict=False)
    if not fits:
        return f"has {reads} reads and {writes} writes"
    if (task.aggregation is not None) is not (task.kind is TaskKind.AGGREGATE):
        return f"has the aggregation {task.aggregation}"
    for read, write in pairs:
        if read.block != write.block or program.buffers[read.buffer].tensor != program.buffers[write.buffer].tensor:
            return f"reads {read.block} of buffer {read.buffer}, writes {write.block} of buffer {write.buffer}"
    return None


def _aggregation_fault(
    program: DeviceProgram, task: Task, groups: Mapping[str, Group], tensors: Mapping[str, GraphTensor]
) -> str | None:
    """The regions, pairwise equal in any case, are of what aggregates together by this operation."""
    names = tuple(program.buffers[region.buffer].tensor for region in task.writes)
    group = groups.get(names[0])
    if group is None or (group.operation, group.members) != (task.aggregation, names):
        return f"aggregates {', '.join(names)} by {task.aggregation}"
    primary, whole = task.writes[0].block, tensors[names[0]].desc.type
    for region, dims in zip(task.writes, group.dims, strict=True):
        if region.block != primary.projected(dims):
            return f"aggregates {region.block} together with {primary}"
    uncut = (primary.projected(group.whole), whole.projected(group.whole))
    return None if uncut[0] == uncut[1] else f"aggregates a part {primary} of what must be whole"
