"""The placing of operators, one after another: sites, exchanges and kernels, from plan records to buffers and tasks.

What has been placed can be copied (`Placer.fork`), and is collected at the end for the passes behind (`passes.py`).

Placement goes by an estimate of when sites will have done the kernels that were given to them so far. It counts kernels
and what they wait for, and no exchanges. So it is the same whatever exchange programs are chosen, and a plan has the
same placement with all of them. Kernels take what the simulation of a whole plan charges for them.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import msgspec

from einc.logical.plan import LogicalPlan
from einc.machines.model import Machine
from einc.physical.atoms import find_inflows
from einc.physical.few_layers import FewLayers
from einc.physical.homes import Homes, StateHomes
from einc.physical.lowering import Lowering
from einc.physical.passes import BuildState
from einc.physical.placement import place_among
from einc.physical.program import DeviceProgram, DeviceProgramBuilder
from einc.physical.records import OperationRecorder, place_operation, trim_later
from einc.physical.residency import CompleteBlock, PartialCopy, PlacedParts, Residencies, Residency
from einc.physical.schedule import OUTPUT, NaiveScheduler, Scheduler
from einc.predict.costs import compute_occupied_ms, describe_kernel
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
        recorder = recorder or OperationRecorder()
        return PlanRecords(recorder.record_tensors(plan.graph), recorder.record(plan))


@dataclass(frozen=True, slots=True)
class _Placed:
    """Function specifications on sites, with the exchange that brings them their inputs."""

    sites: tuple[int, ...]
    exchange: Exchange | None
    lowering: Lowering


class Placer:
    """The state that grows from operator to operator; `outputs` has the saved tensors that are at their places."""

    def __init__(self, plan: LogicalPlan, machine: Machine, scheduler: Scheduler, records: PlanRecords) -> None:
        self._plan = plan
        self._machine = machine
        self._scheduler = scheduler
        self._tensors = records.tensors
        self._operations = list(records.operations)
        self._last_users = _find_last_users(plan)
        self._outputs: dict[str, Output] = {}
        self._builder = DeviceProgramBuilder(records.tensors)
        self._number = {tensor.name: number for number, tensor in enumerate(records.tensors)}
        self._known = Residencies()
        self._residencies = self._known.view(None)
        self._placed: dict[int, PlacedParts] = {}
        self._starts: list[tuple[int, int]] = []  # by node: its first task and buffer
        self._occupancy = Occupancy(machine, plan.used_sites) if has_choice(plan, records) else None
        self._updates = find_updates(records.operations)
        self._states = StateHomes(records.operations)
        self._once = plan.input_placement == "once"
        self._homes = Homes(records.tensors, plan.used_sites)
        self._nearby = (
            NaiveScheduler(machine, plan.used_sites, timed=False) if self._once else None
        )  # for first readers

    def fork(self, plan: LogicalPlan, records: PlanRecords, placed: int) -> Placer:
        """A placer of another plan, whose first operations are the `placed` ones of this; neither changes the other.

        Both plans compute their batch at once.
        """
        forked = copy.copy(self)
        forked._plan = plan
        forked._operations = [*self._operations[:placed], *records.operations[placed:]]
        forked._outputs = dict(self._outputs)
        forked._builder = self._builder.fork()
        forked._known = self._known.fork()
        forked._residencies = forked._known.view(None)
        forked._placed = {}
        forked._starts = self._starts.copy()
        forked._occupancy = None if self._occupancy is None else self._occupancy.fork()
        forked._homes = self._homes.fork()
        return forked

    def place(self, number: int, part: int | None = None) -> None:
        """Places an operator, or a part of it, and brings home the outputs that no later one uses."""
        self._starts.append((len(self._builder.tasks), len(self._builder.buffers)))
        tiles = self._plan.choices[number].candidate.tiles
        for tile in [part] if tiles is None else range(tiles.count):
            self._residencies = self._known.view(tile)
            self._place_node(number, tile)
        self._residencies = self._known.view(part)
        node = self._plan.graph.nodes[number]
        for name in self._plan.graph.outputs:
            if self._last_users.get(name) == node.name:
                brought, before = self._bring_home(name, number, part), self._outputs.get(name)
                self._outputs[name] = brought if before is None else _join_outputs(before, brought)

    def _place_node(self, number: int, part: int | None) -> None:
        """Places an operator, brings its inputs and runs its function specifications."""
        operation = self._operations[number]
        chosen, among = self._select_part(number, part)
        functions = [operation.functions[f] for f in chosen]
        self._builder.serves = operation.name
        positions: dict[int, list[int]] = {}
        for k, tensor in enumerate(operation.inputs):
            if tensor not in self._residencies:
                self._add_homes(self._states.list_homes(tensor))
            if tensor in self._residencies or (self._once and self._tensors[tensor].kind != STATE):
                positions.setdefault(tensor, []).append(k)
        blocks = {
            tensor: [tuple(dict.fromkeys([function.inputs[k] for k in ks])) for function in functions]
            for tensor, ks in positions.items()
        }
        busy_ms = None if self._occupancy is None else self._occupancy.busy_ms(operation.inputs)
        self._settle(blocks, len(functions), busy_ms)
        first = len(self._builder.tasks)
        updates = operation.outputs[0] in self._updates
        given_sites = self._states.find_sites(operation) if updates else self._find_tile_sites(number)
        placed = self._place(operation.name, blocks, len(functions), busy_ms, given_sites, among)
        # A site does its tasks for others before its kernel; otherwise the others would have to wait for the kernel.
        owed: dict[int, list[int]] = {}
        for t, task in enumerate(self._builder.tasks[first:], first):
            if not isinstance(task, TransferTask):
                owed.setdefault(task.site, []).append(t)
        brought = {tensor: r for r, tensor in enumerate(blocks)}
        copies: list[list[PartialCopy]] = [[] for _ in operation.outputs]
        for f, function, site in zip(chosen, functions, placed.sites, strict=True):
            reads: list[Region] = []
            after = [*owed.get(site, ())]
            for tensor, block in zip(operation.inputs, function.inputs, strict=True):
                if tensor in brought:
                    region, ready = placed.lowering.operand(brought[tensor], site, block)
                    after.extend(ready)
                else:
                    region = self._builder.load(site, tensor, block)
                reads.append(region)
            if updates:
                after.extend(self._builder.list_readers(reads[0].buffer))
            writes = [
                self._builder.add_update(tensor, reads[0])
                if tensor in self._updates
                else self._builder.add_buffer(site, tensor, block)
                for tensor, block in zip(operation.outputs, function.outputs, strict=True)
            ]
            kernel = self._builder.add_kernel(site, number, f, tuple(reads), tuple(writes), after)
            for output_copies, region in zip(copies, writes, strict=True):
                output_copies.append(PartialCopy(f, site, region, kernel))
        planned = self._placed.setdefault(number, PlacedParts())
        planned.sites.update(zip(chosen, placed.sites, strict=True))
        planned.exchanges.append(placed.exchange)
        if len(planned.sites) == len(operation.functions):
            operation = self._operations[number] = place_operation(operation, planned.sites, planned.exchanges)
            if self._occupancy is not None:
                self._occupancy.add(operation)
        groups = groups_of(operation, self._tensors)
        for tensor, output_copies in zip(operation.outputs, copies, strict=True):
            self._residencies[tensor] = Residency.of(
                tensor, self._tensors[tensor], groups[tensor], output_copies, operation.replicas
            )

    def _select_part(self, number: int, part: int | None) -> tuple[Sequence[int], Sequence[int] | None]:
        """The functions of a part of an operator, and the sites that may run them; None stands for all sites."""
        division, functions = self._plan.division, len(self._operations[number].functions)
        candidate = self._plan.choices[number].candidate
        if part is not None and candidate.tiles is not None:
            return candidate.list_tile(part), None
        if division is None:
            return range(functions), None
        intervals = self._plan.choices[number].candidate.intervals
        return division.list_functions(number, part, intervals, functions), division.find_sites(number, part)

    def _find_tile_sites(self, number: int) -> tuple[int, ...] | None:
        """The sites of an operator's tile before, which the next one has, too."""
        candidate, planned = self._plan.choices[number].candidate, self._placed.get(number)
        if candidate.tiles is None or planned is None:
            return None
        return tuple([planned.sites[f] for f in candidate.list_tile(0)])

    def _bring_home(self, name: str, last: int, part: int | None) -> Output:
        """Brings each distinct block of a computed tensor, or of a part of it, to one site, where it stays.

        `last` is the last node that produces or reads it.
        """
        self._builder.serves = name
        tensor = self._number[name]
        among = None if self._plan.division is None else self._plan.division.find_sites(last, part)
        home: Output | None = None
        for tiling in self._list_tilings(tensor):
            placed = self._place(
                OUTPUT.format(name), {tensor: [(block,) for block in tiling]}, len(tiling), among=among
            )
            regions = tuple(
                placed.lowering.operand(0, site, block)[0] for site, block in zip(placed.sites, tiling, strict=True)
            )
            for region in regions:
                self._builder.keep(region.buffer)
            brought = Output(tensor, regions, placed.exchange)
            home = brought if home is None else _join_outputs(home, brought)
        assert home is not None
        return home

    def _list_tilings(self, tensor: int) -> list[list[Block]]:
        """The blocks of a computed tensor, by what is brought home together: tile by tile, if its operator has such."""
        maker = next(n for n, operation in enumerate(self._operations) if tensor in operation.outputs)
        candidate = self._plan.choices[maker].candidate
        tilings: dict[int, list[Block]] = {}
        for block, copies in sorted(self._residencies[tensor].copies.items()):
            tilings.setdefault(candidate.find_tile(copies[0].function), []).append(block)
        return [tilings[tile] for tile in sorted(tilings)]

    def _load_output(self, name: str) -> Output:
        """A saved input or weight: the whole of it, loaded at site 0; with homes, its blocks where they lie."""
        tensor = self._number[name]
        full_block = Block.whole(self._tensors[tensor].shape)
        if not self._once:
            return Output(tensor, (self._builder.load(0, tensor, full_block),), None)
        self._add_homes(self._homes.settle({tensor: [(full_block,)]}, (0,)))
        homes = [home.region for home in self._residencies[tensor].wholes if not home.ready]  # no task brought them
        return Output(tensor, tuple(sorted(homes, key=lambda region: region.block)), None)

    def collect(self, few: FewLayers | None = None) -> BuildState:
        """What has been placed, with what is saved and not computed; a `few` layers may stand for many."""
        names, builder = self._plan.graph.outputs, self._builder
        self._outputs.update({name: self._load_output(name) for name in names if name not in self._outputs})
        saved = (self._outputs[name] for name in names)
        program = DeviceProgram(
            self._plan,
            self._tensors,
            tuple(self._operations),
            tuple(builder.buffers),
            tuple(builder.tasks),
            tuple(msgspec.structs.replace(output, later=trim_later(output.later)) for output in saved),
            (0,) * self._plan.sites,
            0.0,
        )
        starts = (*self._starts, (len(builder.tasks), len(builder.buffers)))
        return BuildState(program, self._machine, builder.aliases, builder.find_redundant_loads(), starts, few)

    def _settle(
        self, blocks: dict[int, list[tuple[Block, ...]]], functions: int, busy_ms: Sequence[float] | None
    ) -> None:
        """Gives homes to what is read for the first time, near the function specifications that read it.

        These are placed by the inputs that exist already.
        """
        loaded = {
            tensor: function_blocks
            for tensor, function_blocks in blocks.items()
            if self._tensors[tensor].kind not in ("value", STATE)
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
        sites: tuple[int, ...] | None = None,
        among: Sequence[int] | None = None,
    ) -> _Placed:
        """Chooses sites for function specifications that read these blocks, unless they are given, and brings the
        blocks there.

        `name` is that of the exchange; `busy_ms` is as for schedulers. `among` are the sites that may be chosen.
        """
        reads, inflows = find_inflows(blocks, self._residencies)
        if sites is None and among is not None:
            sites = place_among(inflows, functions, self._plan.sites, among)
        if sites is None:
            scheduled = self._scheduler.schedule(name, inflows, functions, busy_ms)
        else:
            scheduled = self._scheduler.bring(name, inflows, sites)
        lowering = Lowering(self._builder, reads, inflows, scheduled.sites)
        if scheduled.preamble is not None:
            lowering.run(scheduled.firings, scheduled.preamble.atoms, self._machine)
        lowering.finish()
        return _Placed(scheduled.sites, scheduled.exchange, lowering)


def has_choice(plan: LogicalPlan, records: PlanRecords) -> bool:
    """Whether placement depends on when sites are free: where operators that leave some idle may run on others."""
    return plan.spread and any(len(operation.functions) < plan.used_sites for operation in records.operations)


def _find_last_users(plan: LogicalPlan) -> dict[str, str]:
    """For every computed tensor, the last node that produces or reads it: of one that is made in parts, the last that
    is computed in parts, and of any other, the last that is computed at once."""
    last: dict[str, str] = {}
    produced_in_parts: dict[str, bool] = {}
    for number, node in enumerate(plan.graph.nodes):
        in_parts = plan.division is not None and plan.division.index_of[number] is not None
        produced_in_parts.update(dict.fromkeys(node.outputs, in_parts))
        for name in (*node.outputs, *node.inputs):
            if produced_in_parts.get(name) == in_parts:
                last[name] = node.name
    return last


def _join_outputs(output: Output, part: Output) -> Output:
    later = (*output.later, part.exchange)
    return msgspec.structs.replace(output, regions=(*output.regions, *part.regions), later=later)


class Occupancy:
    """Milliseconds from the beginning: when each site is free, and when each computed tensor (a position) is there."""

    def __init__(self, machine: Machine, sites: int) -> None:
        self._machine = machine
        self._free = [0.0] * sites
        self._ready: dict[int, float] = {}

    def fork(self) -> Occupancy:
        """The same state; neither changes the other."""
        forked = copy.copy(self)
        forked._free, forked._ready = self._free.copy(), self._ready.copy()
        return forked

    def busy_ms(self, tensors: Iterable[int]) -> list[float]:
        """Per site, how long it would still be busy when all of these tensors are there."""
        ready = self._find_ready(tensors)
        return [max(0.0, free - ready) for free in self._free]

    def add(self, operation: Operation) -> None:
        """Counts the functions of an operation, which has been placed."""
        ready = self._find_ready(operation.inputs)
        machine = self._machine
        ends = []
        for function in operation.functions:
            site = machine.sites[function.site]
            length = compute_occupied_ms(describe_kernel(operation, function), site, machine.kernel_latency_us)
            end = max(ready, self._free[function.site]) + length
            self._free[function.site] = end
            ends.append(end)
        self._ready.update(dict.fromkeys(operation.outputs, max(ends)))

    def _find_ready(self, tensors: Iterable[int]) -> float:
        return max((self._ready.get(tensor, 0.0) for tensor in tensors), default=0.0)
