"""The physical optimizer: from a logical plan and a machine to a device program (paper, Section 5).

Operators are visited in topological order. A scheduler places each on sites and plans its inputs' exchange, which is
lowered to tasks, and its kernels follow. A saved output is brought home right after the last operator that uses it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain

import msgspec

from einc.errors import CapacityError, MachineError
from einc.logical.plan import LogicalPlan
from einc.machines.model import Machine
from einc.physical.atoms import find_inflows
from einc.physical.given import OUTPUT
from einc.physical.homes import Homes
from einc.physical.lowering import Lowering
from einc.physical.memory import MemoryPlan, check_capacity, plan_memory
from einc.physical.occupancy import Occupancy
from einc.physical.program import DeviceProgram, DeviceProgramBuilder, renumber_buffers, renumber_regions
from einc.physical.records import OperationRecorder, make_tensor_records, place_operation
from einc.physical.refining import OtherPrograms, RefiningScheduler
from einc.physical.residency import CompleteBlock, PartialCopy, Residency
from einc.physical.schedule import NaiveScheduler, Scheduler
from einc.physical.synthesis import SearchScope, SynthesizingScheduler
from einc.predict.timeline import predict_ms
from einc_runtime.plan.epilogues import find_joint_tasks
from einc_runtime.plan.joint_aggregation import AggregationGroup, groups_of
from einc_runtime.plan.schema import Block, Exchange, Operation, Output, Region, Tensor, TransferTask
from einc_runtime.plan.states import STATE, find_updates


@dataclass(frozen=True, slots=True)
class PlanRecords:
    """The plan file's records of a logical plan, before anything has been placed."""

    tensors: tuple[Tensor, ...]
    operations: tuple[Operation, ...]

    @staticmethod
    def of(plan: LogicalPlan, recorder: OperationRecorder | None = None) -> PlanRecords:
        """The records of a plan; `recorder` has made those of other plans of the same graph."""
        return PlanRecords(make_tensor_records(plan.graph), (recorder or OperationRecorder()).record(plan))


def build(
    plan: LogicalPlan,
    machine: Machine,
    scheduler: Scheduler | None = None,
    records: PlanRecords | None = None,
    *,
    check_memory: bool = True,
) -> DeviceProgram:
    """The device program that runs `plan` on sites 0, 1, ... of `machine`, with naive exchanges by default.

    `records` are those of the plan, for callers that build several programs of it. Raises MachineError where sites that
    must exchange data cannot talk, or where there are too few of them, and CapacityError where a site's memory is too
    small, unless `check_memory` is false.
    """
    if len(machine.sites) < plan.sites:
        raise MachineError(f"the plan is for {plan.sites} sites, and machine {machine.name} has {len(machine.sites)}")
    placer = _Placer(
        plan, machine, scheduler or NaiveScheduler(machine, plan.used_sites), records or PlanRecords.of(plan)
    )
    last_user = _find_last_users(plan)
    outputs: dict[str, Output] = {}
    for number, node in enumerate(plan.graph.nodes):
        placer.place_node(number)
        for name in plan.graph.outputs:
            if last_user.get(name) == node.name:
                outputs[name] = placer.bring_home(name)
    for name in plan.graph.outputs:
        if name not in last_user:
            outputs[name] = placer.load_output(name)
    return placer.finish(tuple(outputs[name] for name in plan.graph.outputs), check_memory)


def build_fast(plan: LogicalPlan, machine: Machine, scheduler: SynthesizingScheduler | None = None) -> DeviceProgram:
    """The fastest of three device programs by predicted time, with synthesized exchanges.

    The first may choose all placements, the second keeps the naive ones, the third is the naive program. A placement
    that is good for one exchange may be bad for the next, and the order in which an exchange moves its pieces may keep
    kernels waiting; so whole programs are compared. Times and bounds of every exchange are recorded, unless the
    scheduler's time is over. What the scheduler has found for earlier plans is used again. When too little time is left
    to build another program, the naive one is taken without times of its exchanges. Raises what `build` raises.
    """
    scheduler = scheduler or SynthesizingScheduler(machine, plan.used_sites)
    records = PlanRecords.of(plan)
    best: DeviceProgram | None = None
    started = time.monotonic()
    naive = build(plan, machine, scheduler.naive, records, check_memory=False)
    took, limit = time.monotonic() - started, naive.predicted_ms
    for scope in scheduler.scopes:
        if scheduler.budget.left < 2 * took and fits(naive, machine):
            return naive
        scheduler.restart(scope, len(plan.graph.nodes) + len(plan.graph.outputs))
        try:
            best = build(plan, machine, scheduler, records)
        except CapacityError:
            if scope is SearchScope.NOTHING:
                raise
            continue
        if best.predicted_ms <= limit or scope is SearchScope.NOTHING:
            break
    assert best is not None
    return best


def fits(program: DeviceProgram, machine: Machine) -> bool:
    """Whether every site has enough memory."""
    return all(need <= site.memory_bytes for need, site in zip(program.memory, machine.sites, strict=False))


def refine(
    program: DeviceProgram,
    machine: Machine,
    scheduler: Scheduler,
    user_programs: OtherPrograms,
    records: PlanRecords | None = None,
) -> DeviceProgram:
    """The program with the exchanges that a person gives, and with proposals where the whole is faster with them.

    `scheduler` must make the program again. Raises what `build` raises, and ProgramError for given exchanges that are
    not valid.
    """
    plan = program.plan
    given_exchanges, proposed = user_programs.given_exchanges, user_programs.proposed
    if given_exchanges is not None:
        program = build(plan, machine, RefiningScheduler(scheduler, OtherPrograms(given_exchanges)), records)
        given_exchanges.require_used()
    if proposed is not None:
        proposed.restart(len(plan.graph.nodes) + len(plan.graph.outputs))
        try:
            faster = build(plan, machine, RefiningScheduler(scheduler, user_programs), records)
        except CapacityError as error:
            proposed.lines.append(f"the proposals are not used, as the plan with them does not fit: {error.message}")
            return program
        if faster.predicted_ms < program.predicted_ms:
            return faster
        if _count_proposed(faster):
            proposed.lines.append(
                f"the proposals are not used: the plan takes {faster.predicted_ms:.4g} ms with them and"
                f" {program.predicted_ms:.4g} ms without"
            )
    return program


def _count_proposed(program: DeviceProgram) -> int:
    """The number of exchanges whose program is from a proposer."""
    operators = (operation.exchange for operation in program.operations)
    outputs = (output.exchange for output in program.outputs)
    return sum(exchange is not None and exchange.author == "proposer" for exchange in chain(operators, outputs))


def _find_last_users(plan: LogicalPlan) -> dict[str, str]:
    """For every computed tensor, the last node that produces or reads it."""
    computed = {name for node in plan.graph.nodes for name in node.outputs}
    return {name: node.name for node in plan.graph.nodes for name in (*node.outputs, *node.inputs) if name in computed}


@dataclass(frozen=True, slots=True)
class _Placed:
    """Function specifications on sites, with the exchange that brings them their inputs."""

    sites: tuple[int, ...]
    exchange: Exchange | None
    lowering: Lowering


class _Placer:
    """The state that grows from operator to operator."""

    def __init__(self, plan: LogicalPlan, machine: Machine, scheduler: Scheduler, records: PlanRecords) -> None:
        self._plan = plan
        self._machine = machine
        self._scheduler = scheduler
        self._tensors = records.tensors
        self._operations = list(records.operations)
        self._builder = DeviceProgramBuilder(records.tensors)
        self._number = {tensor.name: number for number, tensor in enumerate(records.tensors)}
        self._residencies: dict[int, Residency] = {}
        has_choice = plan.spread and any(len(operation.functions) < plan.used_sites for operation in records.operations)
        self._occupancy = Occupancy(machine, plan.used_sites) if has_choice else None
        self._updates = find_updates(records.operations)
        self._once = plan.input_placement == "once"
        self._homes = Homes(records.tensors, plan.used_sites)
        self._nearby = (
            NaiveScheduler(machine, plan.used_sites, timed=False) if self._once else None
        )  # for first readers

    def place_node(self, number: int) -> None:
        """Places an operator, brings its inputs and runs its function specifications."""
        operation = self._operations[number]
        functions = operation.functions
        self._builder.serves = operation.name
        positions: dict[int, list[int]] = {}
        for k, tensor in enumerate(operation.inputs):
            if tensor in self._residencies or (self._once and self._tensors[tensor].kind != STATE):
                positions.setdefault(tensor, []).append(k)
        blocks = {
            tensor: [tuple(dict.fromkeys([function.inputs[k] for k in ks])) for function in functions]
            for tensor, ks in positions.items()
        }
        busy_ms = None if self._occupancy is None else self._occupancy.busy_ms(operation.inputs)
        self._settle(blocks, len(functions), busy_ms)
        first = len(self._builder.tasks)
        placed = self._place(operation.name, blocks, len(functions), busy_ms)
        # A site does its tasks for others before its kernel; otherwise the others would have to wait for the kernel.
        owed: dict[int, list[int]] = {}
        for t, task in enumerate(self._builder.tasks[first:], first):
            if not isinstance(task, TransferTask):
                owed.setdefault(task.site, []).append(t)
        brought = {tensor: r for r, tensor in enumerate(blocks)}
        copies: list[list[PartialCopy]] = [[] for _ in operation.outputs]
        for f, (function, site) in enumerate(zip(functions, placed.sites, strict=True)):
            reads: list[Region] = []
            after = [*owed.get(site, ())]
            for tensor, block in zip(operation.inputs, function.inputs, strict=True):
                if tensor in brought:
                    region, ready = placed.lowering.operand(brought[tensor], site, block)
                    after.extend(ready)
                else:
                    region = self._builder.load(site, tensor, block)
                reads.append(region)
            writes = [
                self._builder.add_update(tensor, reads[0])
                if tensor in self._updates
                else self._builder.add_buffer(site, tensor, block)
                for tensor, block in zip(operation.outputs, function.outputs, strict=True)
            ]
            kernel = self._builder.add_kernel(site, number, f, tuple(reads), tuple(writes), after)
            for output_copies, region in zip(copies, writes, strict=True):
                output_copies.append(PartialCopy(f, site, region, kernel))
        operation = self._operations[number] = place_operation(operation, placed.sites, placed.exchange)
        if self._occupancy is not None:
            self._occupancy.add(operation)
        groups = groups_of(operation, self._tensors)
        for tensor, output_copies in zip(operation.outputs, copies, strict=True):
            self._residencies[tensor] = Residency.of(
                tensor, self._tensors[tensor], groups[tensor], output_copies, operation.replicas
            )

    def bring_home(self, name: str) -> Output:
        """Brings each distinct block of a computed tensor to one site, where it stays."""
        self._builder.serves = name
        tensor = self._number[name]
        tiling = sorted(self._residencies[tensor].copies)
        placed = self._place(OUTPUT.format(name), {tensor: [(block,) for block in tiling]}, len(tiling))
        regions = tuple(
            placed.lowering.operand(0, site, block)[0] for site, block in zip(placed.sites, tiling, strict=True)
        )
        for region in regions:
            self._builder.keep(region.buffer)
        return Output(tensor, regions, placed.exchange)

    def load_output(self, name: str) -> Output:
        """A saved input or weight: the whole of it, loaded at site 0; with homes, its blocks where they lie."""
        tensor = self._number[name]
        full_block = Block.whole(self._tensors[tensor].shape)
        if not self._once:
            return Output(tensor, (self._builder.load(0, tensor, full_block),), None)
        self._add_homes(self._homes.settle({tensor: [(full_block,)]}, (0,)))
        homes = [home.region for home in self._residencies[tensor].wholes if not home.ready]  # no task brought them
        return Output(tensor, tuple(sorted(homes, key=lambda region: region.block)), None)

    def finish(self, outputs: tuple[Output, ...], check_memory: bool) -> DeviceProgram:
        """Drops superfluous buffers, plans memory, checks that it suffices, and predicts the time."""
        redundant = self._builder.find_redundant_loads()
        kept = [b for b in range(len(self._builder.buffers)) if b not in redundant]
        buffers, tasks = [self._builder.buffers[b] for b in kept], self._builder.tasks
        aliases = self._builder.aliases
        if redundant:
            number = {b: i for i, b in enumerate(kept)}
            number.update([(b, number[larger]) for b, larger in redundant.items()])
            tasks = [renumber_buffers(task, number) for task in tasks]
            aliases = {number[new]: number[old] for new, old in aliases.items()}
            outputs = tuple(
                msgspec.structs.replace(output, regions=renumber_regions(output.regions, number)) for output in outputs
            )
        program = DeviceProgram(
            self._plan,
            self._tensors,
            tuple(self._operations),
            tuple(buffers),
            tuple(tasks),
            outputs,
            (0,) * self._plan.sites,
            0.0,
        )
        memory = self._plan_memory(program, aliases)
        if check_memory:
            check_capacity(self._plan, self._machine, self._tensors, memory)
        program = replace(program, buffers=memory.buffers, tasks=memory.tasks, memory=memory.sizes)
        return replace(program, predicted_ms=predict_ms(program, self._machine))

    def _plan_memory(self, program: DeviceProgram, aliases: Mapping[int, int]) -> MemoryPlan:
        """Leaves room for what GPUs may compute together, unless a site has too little memory for that."""
        joined = find_joint_tasks(program, program.tasks)
        arguments = program.tensors, program.buffers, program.tasks, self._plan.sites
        memory = plan_memory(*arguments, joined, aliases)
        sites = zip(memory.sizes, self._machine.sites, strict=False)
        if joined and any(needed > site.memory_bytes for needed, site in sites):
            memory = plan_memory(*arguments, {}, aliases)
        return memory

    def _settle(
        self, blocks: dict[int, list[tuple[Block, ...]]], functions: int, busy_ms: Sequence[float] | None
    ) -> None:
        """Gives homes to what is read for the first time, near the function specifications that read it.

        These are placed by the inputs that exist already.
        """
        loaded = {
            tensor: function_blocks
            for tensor, function_blocks in blocks.items()
            if self._tensors[tensor].kind != "value"
        }
        if not loaded or self._nearby is None:
            return
        present = {tensor: function_blocks for tensor, function_blocks in blocks.items() if tensor in self._residencies}
        _, inflows = find_inflows(present, self._residencies)
        self._add_homes(self._homes.settle(loaded, self._nearby.place(inflows, functions, busy_ms)))

    def _add_homes(self, homes: Sequence[tuple[int, Block, int]]) -> None:
        """Adds the buffers at homes (tensor, block, site), which are whole from the beginning."""
        for tensor, block, site in homes:
            record = self._tensors[tensor]
            assert record.kind != "value"
            if tensor not in self._residencies:
                group = AggregationGroup.single("sum", tensor, len(record.shape))
                self._residencies[tensor] = Residency(tensor, record, group, {})
            region = self._builder.add_buffer(site, tensor, block, record.kind)
            self._residencies[tensor].add(CompleteBlock(site, region, ()))

    def _place(
        self,
        name: str,
        blocks: dict[int, list[tuple[Block, ...]]],
        functions: int,
        busy_ms: Sequence[float] | None = None,
    ) -> _Placed:
        """Chooses sites for function specifications that read these blocks, and brings the blocks there.

        `name` is that of the exchange; `busy_ms` is as for schedulers.
        """
        reads, inflows = find_inflows(blocks, self._residencies)
        scheduled = self._scheduler.schedule(name, inflows, functions, busy_ms)
        lowering = Lowering(self._builder, reads, inflows, scheduled.sites)
        if scheduled.preamble is not None:
            lowering.run(scheduled.firings, scheduled.preamble.atoms, self._machine)
        lowering.finish()
        return _Placed(scheduled.sites, scheduled.exchange, lowering)
