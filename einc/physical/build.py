"""The physical optimizer: from a logical plan and a machine to a device program (paper, Section 5).

Operators are visited in topological order. A scheduler places each on sites and plans its inputs' exchange, which is
lowered to tasks, and its kernels follow. A saved output is brought home right after the last operator that uses it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from einc.core.tensor import TensorType
from einc.errors import MachineError
from einc.graph.graph import Node, TensorKind
from einc.logical.plan import Choice, LogicalPlan
from einc.machines.model import Machine
from einc.physical.atoms import inflows_of
from einc.physical.capacity import check_capacity
from einc.physical.draft import Draft
from einc.physical.lowering import Lowering
from einc.physical.memory import plan_memory
from einc.physical.program import BufferRole, DeviceProgram, Exchange, Output, Region, Task, TaskKind
from einc.physical.residency import Copy, Residency, groups_of
from einc.physical.schedule import Naive, Scheduler

_ROLES = {TensorKind.INPUT: BufferRole.INPUT, TensorKind.WEIGHT: BufferRole.WEIGHT}


def build(plan: LogicalPlan, machine: Machine, scheduler: Scheduler | None = None) -> DeviceProgram:
    """The device program that runs `plan` on sites 0, 1, ... of `machine`, with naive exchanges unless told otherwise.

    Raises MachineError where sites that must exchange data cannot talk, or where there are too few of them, and
    CapacityError where a site's memory is too small.
    """
    if len(machine.sites) < plan.sites:
        raise MachineError(f"the plan is for {plan.sites} sites, and machine {machine.name} has {len(machine.sites)}")
    builder = _Builder(plan, machine, scheduler or Naive(machine, plan.sites))
    last_user = _last_users(plan)
    outputs: dict[str, Output] = {}
    for name in plan.graph.outputs:
        if name not in last_user:
            outputs[name] = builder.loaded_output(name)
    for node, choice in zip(plan.graph.nodes, plan.choices, strict=True):
        builder.node(node, choice)
        for name in plan.graph.outputs:
            if last_user.get(name) == node.name:
                outputs[name] = builder.output(name)
    return builder.finish(tuple(outputs[name] for name in plan.graph.outputs))


def _last_users(plan: LogicalPlan) -> dict[str, str]:
    """For every computed tensor, the last node that produces or reads it."""
    computed = {name for node in plan.graph.nodes for name in node.outputs}
    return {name: node.name for node in plan.graph.nodes for name in (*node.outputs, *node.inputs) if name in computed}


@dataclass(frozen=True, slots=True)
class _Placed:
    """Function specifications on sites, with what brings them their inputs."""

    sites: tuple[int, ...]
    exchange: Exchange | None
    lowering: Lowering


class _Builder:
    """The state that grows from operator to operator."""

    def __init__(self, plan: LogicalPlan, machine: Machine, scheduler: Scheduler) -> None:
        self._plan = plan
        self._machine = machine
        self._scheduler = scheduler
        self._draft = Draft()
        self._tensors = plan.graph.tensor_table()
        self._residencies: dict[str, Residency] = {}
        self._sites: list[tuple[int, ...]] = []
        self._exchanges: list[Exchange | None] = []

    def node(self, node: Node, choice: Choice) -> None:
        """Places an operator, brings its inputs and runs its function specifications."""
        self._draft.node = node.name
        functions = choice.candidate.spec.functions
        positions: dict[str, list[int]] = {}
        for k, name in enumerate(node.inputs):
            if name in self._residencies:
                positions.setdefault(name, []).append(k)
        blocks = {
            name: [tuple(dict.fromkeys(function.inputs[k] for k in ks)) for function in functions]
            for name, ks in positions.items()
        }
        first = len(self._draft.tasks)
        placed = self._place(blocks, len(functions))
        # What a site does for others comes before its kernel, which would keep them waiting for all of its time.
        owed: dict[int, list[int]] = {}
        for t, task in enumerate(self._draft.tasks[first:], first):
            if task.kind is not TaskKind.TRANSFER:
                owed.setdefault(task.site, []).append(t)
        brought = {name: r for r, name in enumerate(blocks)}
        copies: list[list[Copy]] = [[] for _ in node.outputs]
        for f, (function, site) in enumerate(zip(functions, placed.sites, strict=True)):
            reads: list[Region] = []
            after = [*owed.get(site, ())]
            for name, block in zip(node.inputs, function.inputs, strict=True):
                if name in brought:
                    region, ready = placed.lowering.operand(brought[name], site, block)
                    after.extend(ready)
                else:
                    region = self._load(name, site, block)
                reads.append(region)
            writes = [
                self._draft.buffer(site, name, self._tensors[name].desc, block)
                for name, block in zip(node.outputs, function.outputs, strict=True)
            ]
            kernel = self._draft.task(TaskKind.KERNEL, site, tuple(reads), tuple(writes), after, function=f)
            for own, region in zip(copies, writes, strict=True):
                own.append(Copy(f, site, region, kernel))
        self._sites.append(placed.sites)
        self._exchanges.append(placed.exchange)
        for name, own, group in zip(node.outputs, copies, groups_of(node), strict=True):
            self._residencies[name] = Residency.of(name, self._tensors[name].desc, group, own)

    def output(self, name: str) -> Output:
        """Brings each distinct block of a computed tensor to one site, where it stays."""
        self._draft.node = name
        tiling = sorted(self._residencies[name].copies)
        placed = self._place({name: [(block,) for block in tiling]}, len(tiling))
        regions = tuple(
            placed.lowering.operand(0, site, block)[0] for site, block in zip(placed.sites, tiling, strict=True)
        )
        for region in regions:
            self._draft.keep(region.buffer)
        return Output(name, regions, placed.exchange)

    def loaded_output(self, name: str) -> Output:
        """A saved input or weight: the whole of it, loaded at site 0."""
        return Output(name, (self._load(name, 0, self._tensors[name].desc.type),), None)

    def finish(self, outputs: tuple[Output, ...]) -> DeviceProgram:
        """Drops superfluous buffers, plans memory and checks that it suffices."""
        merged = self._draft.merged_loads()
        kept = [b for b in range(len(self._draft.buffers)) if b not in merged]
        number = {b: i for i, b in enumerate(kept)}
        number.update((b, number[larger]) for b, larger in merged.items())

        def moved(regions: tuple[Region, ...]) -> tuple[Region, ...]:
            return tuple(Region(number[region.buffer], region.block) for region in regions)

        buffers = tuple(self._draft.buffers[b] for b in kept)
        tasks: Sequence[Task] = self._draft.tasks
        if merged:
            tasks = [replace(task, reads=moved(task.reads), writes=moved(task.writes)) for task in tasks]
            outputs = tuple(replace(output, regions=moved(output.regions)) for output in outputs)
        memory = plan_memory(buffers, tasks, self._plan.sites)
        check_capacity(self._plan, self._machine, buffers, memory)
        return DeviceProgram(
            self._plan,
            tuple(self._sites),
            tuple(self._exchanges),
            buffers,
            memory.tasks,
            outputs,
            memory.offsets,
            memory.sizes,
        )

    def _load(self, name: str, site: int, block: TensorType) -> Region:
        tensor = self._tensors[name]
        return self._draft.load(site, name, tensor.desc, block, _ROLES[tensor.kind])

    def _place(self, blocks: dict[str, list[tuple[TensorType, ...]]], functions: int) -> _Placed:
        """Chooses sites for function specifications that read these blocks, and brings the blocks there."""
        reads, inflows = inflows_of(blocks, self._residencies)
        scheduled = self._scheduler.schedule(self._draft.node, inflows, functions)
        lowering = Lowering(self._draft, reads, inflows, scheduled.sites)
        if scheduled.preamble is not None:
            lowering.run(scheduled.firings, scheduled.preamble.atoms, self._machine)
        lowering.finish()
        return _Placed(scheduled.sites, scheduled.exchange, lowering)
