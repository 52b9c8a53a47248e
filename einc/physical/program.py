"""The device program: the part of a plan file that is executed, and the logical plan that it carries out.

A *region* is a block of a buffer, in the coordinates of the tensor that the buffer holds a block of. Tasks read and
write regions. So slicing a producer's block into atoms, and laying out atoms as a consumer's block, need no copies of
their own: transfers and aggregations read and write with strides. What is left of the paper's decompose and recompose
kernels is the copy task, for pieces that are at the right site already.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import msgspec

from einc.logical.plan import LogicalPlan
from einc.predict.timeline import TimedRun
from einc_runtime.plan.record import Repetition
from einc_runtime.plan.regions import reads_of, writes_of
from einc_runtime.plan.schema import (
    AggregateTask,
    AggregationName,
    AnyTask,
    Block,
    Buffer,
    CopyTask,
    Exchange,
    FenceTask,
    InputPlacement,
    KernelTask,
    Operation,
    Output,
    Region,
    Tensor,
    TransferTask,
)


@dataclass(frozen=True, slots=True)
class DeviceProgram:
    """Everything that a machine has to do, in the records of the plan file.

    Tensors and operations stand in the order of the graph. `memory[s]` is the size in bytes of the arena of site s.
    `predicted_ms` is the simulated time on the machine that the program was built for, and `timed` the simulation,
    where it is still known. With a `repetition`, a layer stands for its copies, too: `plan`, `memory` and
    `predicted_ms` are those of the whole.
    """

    plan: LogicalPlan
    tensors: tuple[Tensor, ...]
    operations: tuple[Operation, ...]
    buffers: tuple[Buffer, ...]
    tasks: tuple[AnyTask, ...]
    outputs: tuple[Output, ...]
    memory: tuple[int, ...]
    predicted_ms: float
    repetition: Repetition | None = None
    timed: TimedRun | None = field(default=None, compare=False, repr=False)

    def forget_times(self) -> DeviceProgram:
        """The program without the times of its tasks, which take as much memory as these."""
        return replace(self, timed=None)

    @property
    def input_placement(self) -> InputPlacement:
        """Where inputs and weights lie before the first task (`LogicalPlan.input_placement`)."""
        return self.plan.input_placement


class DeviceProgramBuilder:
    """A device program under construction. Buffers and tasks are appended, and their positions do not change.

    `serves` is the operator or output that the tasks added now belong to. Offsets of buffers are 0 until memory is
    planned. `aliases` has the buffers that are written over another one, and that one: they get the same offset.
    """

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self.tensors = tensors
        self.buffers: list[Buffer] = []
        self.tasks: list[AnyTask] = []
        self.serves = ""
        self.aliases: dict[int, int] = {}
        self._loads: dict[tuple[int, int, Block], Region] = {}
        self._fences: dict[tuple[int, Region], int] = {}
        self._state_readers: dict[int, tuple[int, ...]] = {}

    def fork(self) -> DeviceProgramBuilder:
        """The same program so far; neither changes the other."""
        forked = copy.copy(self)
        forked.buffers, forked.tasks = self.buffers.copy(), self.tasks.copy()
        forked.aliases, forked._loads, forked._fences = self.aliases.copy(), self._loads.copy(), self._fences.copy()
        forked._state_readers = self._state_readers.copy()
        return forked

    def add_buffer(
        self, site: int, tensor: int, block: Block, role: Literal["input", "weight", "state", "scratch"] = "scratch"
    ) -> Region:
        """A new buffer for `block`, as the region that fills it."""
        self.buffers.append(Buffer(site, 0, tensor, block, role))
        if role == "state":
            self._state_readers[len(self.buffers) - 1] = ()
        return Region(len(self.buffers) - 1, block)

    def add_update(self, tensor: int, old: Region) -> Region:
        """A buffer for the block of a tensor that is written over `old`, the same block of a state."""
        region = self.add_buffer(self.buffers[old.buffer].site, tensor, old.block, "state")
        self.aliases[region.buffer] = old.buffer
        return region

    def load(self, site: int, tensor: int, block: Block) -> Region:
        """The region at a site where `block` of an input, weight or state is before the first task."""
        key = (site, tensor, block)
        if key not in self._loads:
            kind = self.tensors[tensor].kind
            assert kind != "value"
            self._loads[key] = self.add_buffer(site, tensor, block, kind)
        return self._loads[key]

    def list_readers(self, buffer: int) -> tuple[int, ...]:
        """The tasks so far that read a buffer of a state."""
        return self._state_readers[buffer]

    def keep(self, buffer: int) -> None:
        """Makes a scratch buffer live to the end."""
        if self.buffers[buffer].role == "scratch":
            self.buffers[buffer] = msgspec.structs.replace(self.buffers[buffer], role="result")

    def add_kernel(
        self,
        site: int,
        operation: int,
        function: int,
        reads: tuple[Region, ...],
        writes: tuple[Region, ...],
        after: Iterable[int],
    ) -> int:
        return self._add(KernelTask(site, self.serves, _sort_unique(after), operation, function, reads, writes))

    def add_transfer(self, site: int, read: Region, write: Region, after: Iterable[int]) -> int:
        return self._add(TransferTask(site, self.serves, _sort_unique(after), read, write))

    def add_aggregation(
        self,
        site: int,
        aggregation: AggregationName,
        reads: tuple[Region, ...],
        writes: tuple[Region, ...],
        after: Iterable[int],
    ) -> int:
        return self._add(AggregateTask(site, self.serves, _sort_unique(after), aggregation, reads, writes))

    def add_copy(self, site: int, reads: tuple[Region, ...], writes: tuple[Region, ...], after: Iterable[int]) -> int:
        return self._add(CopyTask(site, self.serves, _sort_unique(after), reads, writes))

    def add_fence(self, site: int, after: Iterable[int]) -> int:
        return self._add(FenceTask(site, self.serves, _sort_unique(after)))

    def join(self, site: int, region: Region, ready: tuple[int, ...]) -> tuple[int, ...]:
        """What readers of a whole block wait for that several tasks fill: one fence for all readers."""
        if len(ready) < 2:
            return ready
        key = site, region
        if key not in self._fences:
            self._fences[key] = self.add_fence(site, ready)
        return (self._fences[key],)

    def _add(self, task: AnyTask) -> int:
        """Appends a task and returns its position."""
        for region in reads_of(task):
            if region.buffer in self._state_readers:
                self._state_readers[region.buffer] += (len(self.tasks),)
        self.tasks.append(task)
        return len(self.tasks) - 1

    def find_redundant_loads(self) -> dict[int, int]:
        """Loaded buffers whose block lies in that of another loaded buffer of the same site, and that other buffer."""
        groups: dict[tuple[int, int], list[Region]] = {}
        for (site, tensor, _), region in self._loads.items():
            groups.setdefault((site, tensor), []).append(region)
        redundant: dict[int, int] = {}
        for group in groups.values():
            kept: list[Region] = []
            for region in sorted(group, key=lambda region: (-region.block.size, region.block)):
                larger = next((region_kept for region_kept in kept if region_kept.block.contains(region.block)), None)
                if larger is None:
                    kept.append(region)
                else:
                    redundant[region.buffer] = larger.buffer
        return redundant


def _sort_unique(positions: Iterable[int]) -> tuple[int, ...]:
    return tuple(sorted(set(positions)))


def renumber_buffers(task: AnyTask, number: dict[int, int]) -> AnyTask:
    """The task with buffer b of its regions replaced by buffer `number[b]`."""
    if isinstance(task, FenceTask):
        return task
    if isinstance(task, TransferTask):
        read, write = renumber_regions((task.read, task.write), number)
        return msgspec.structs.replace(task, read=read, write=write)
    return msgspec.structs.replace(
        task, reads=renumber_regions(task.reads, number), writes=renumber_regions(task.writes, number)
    )


def renumber_regions(regions: tuple[Region, ...], number: dict[int, int]) -> tuple[Region, ...]:
    return tuple([Region(number[region.buffer], region.block) for region in regions])


def dump(program: DeviceProgram) -> str:
    """Sites, memory, buffers, exchanges and tasks; equal programs have equal texts."""
    return "\n".join(_format_lines(program)) + "\n"


def _format_lines(program: DeviceProgram) -> Iterator[str]:
    yield f"device program {program.plan.graph.name}: {program.plan.sites} sites"
    yield ""
    yield "memory"
    for site, size in enumerate(program.memory):
        yield f"  site {site}: {size} bytes"
    yield ""
    yield "buffers"
    for b, buffer in enumerate(program.buffers):
        tensor = program.tensors[buffer.tensor]
        where = f"site {buffer.site} + {buffer.offset}"
        yield f"  b{b} = {tensor.dtype} {tensor.name}{buffer.block} at {where}, {buffer.role}"
    positions: dict[str, list[int]] = {}
    for position, task in enumerate(program.tasks):
        positions.setdefault(task.serves, []).append(position)
    for operation in program.operations:
        sites = ", ".join(str(function.site) for function in operation.functions)
        yield ""
        yield f"operator {operation.name} ({operation.title}) on sites {sites}"
        yield from _format_exchange(operation.exchange)
        # The tasks of an output of the same name come after the kernels; they are listed with the output below.
        yield from _format_tasks(program, _take_until_kernels(program, positions.get(operation.name, [])))
    for output in program.outputs:
        name = program.tensors[output.tensor].name
        yield ""
        yield f"output {name} = {_format_regions(output.regions)}"
        yield from _format_exchange(output.exchange)
        task_positions = positions.get(name, [])
        yield from _format_tasks(program, task_positions[len(_take_until_kernels(program, task_positions)) :])


def _take_until_kernels(program: DeviceProgram, positions: list[int]) -> list[int]:
    """The leading tasks up to the last kernel."""
    kernels = [i for i, position in enumerate(positions) if isinstance(program.tasks[position], KernelTask)]
    return positions[: kernels[-1] + 1] if kernels else []


def _format_exchange(exchange: Exchange | None) -> Iterator[str]:
    if exchange is not None:
        yield "  exchange" + (" (naive)" if exchange.naive else "")
        for line in exchange.program.splitlines():
            yield f"    {line}".rstrip()


def _format_tasks(program: DeviceProgram, positions: Sequence[int]) -> Iterator[str]:
    for position in positions:
        yield f"  t{position} = {_format_task(program.tasks[position])}"


def _format_task(task: AnyTask) -> str:
    kind = str(task.__struct_config__.tag)
    if isinstance(task, KernelTask):
        kind += f" {task.function}"
    if isinstance(task, AggregateTask):
        kind += f" {task.aggregation}"
    text = f"{kind} at {task.site}"
    reads, writes = reads_of(task), writes_of(task)
    if reads or writes:
        text += f": {_format_regions(reads)} -> {_format_regions(writes)}"
    return text + (f" after {', '.join(f't{before}' for before in task.after)}" if task.after else "")


def _format_regions(regions: Sequence[Region]) -> str:
    return ", ".join(f"b{region.buffer}{region.block}" for region in regions)
