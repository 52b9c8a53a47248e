"""The paper's plan as the paper's system runs it, as far as its text says: what a plan of einc does not have is added.

- **Kernels that cut and join** (Section 5.3): before each exchange program, decompose kernels slice every resident copy
  of a producer's block into its atoms, and after it, recompose kernels join the atoms that a concrete operator reads.
  Blocks that are one atom need neither. Each byte is read and written once more. The text does not say whether such a
  kernel handles a block or an atom; `Launches` has both.
- **A kernel for each operator** of its API: `silu(gate) * up` is two. The text knows no fusion.
- **The memory of its GPU**: what was measured of A100s was measured on cards of 2039 GB/s.

All that is added takes a launch and its bytes at the rates of the machine, like every kernel. Nothing was fitted.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass, replace

import msgspec

from einc.compiler import Compiled
from einc.core.spec import Overlay
from einc.core.tensor import TensorType
from einc.machines.model import Machine
from einc.physical.program import DeviceProgram
from einc.predict.breakdown import find_critical_chain
from einc.predict.costs import TaskCost, TaskKind, compute_task_costs
from einc.predict.timeline import PlanTimeline, time_tasks
from einc_runtime.plan.regions import reads_of, region_bytes
from einc_runtime.plan.schema import AnyTask, Block, CopyTask, KernelTask

UNFUSED = frozenset({"f"})
"""Operators of models/llama_block.ein that are two calls of the paper's API: an activation, and a product with it."""

MEASURED_GBS = 2039.0
"""The memory's rate of the A100s that kernels were measured on, of 80 GB: NVIDIA's data sheet."""

PASSES = 2
"""A kernel that cuts or joins reads its bytes and writes them."""


class Launches(enum.Enum):
    """How many kernels cut a block into atoms, or join them: one for the block, or one for each atom."""

    BLOCK = "a kernel for each block"
    ATOM = "a kernel for each atom"


@dataclass(frozen=True, slots=True)
class Replay:
    """The tasks with their times. `added` are the positions of those that the plan of einc does not have."""

    costs: tuple[TaskCost, ...]
    times: PlanTimeline
    added: frozenset[int]

    def count(self) -> dict[str, int]:
        """The nodes of a CUDA graph with all this, those added, and those that its end waits for, one after another."""

        def is_node(position: int) -> bool:
            return self.costs[position].kind is not TaskKind.FENCE

        return {
            "nodes": sum(map(is_node, range(len(self.costs)))),
            "added": len(self.added),
            "waits": sum(map(is_node, find_critical_chain(self.costs, self.times))),
        }


def replay(compiled: Compiled, launches: Launches) -> Replay:
    """The plan of `compiled` with what the paper's system runs besides, on its machine."""
    machine = slow_memory(compiled.target.machine)
    run = _Run(compiled.program, launches)
    for position, task in enumerate(compiled.program.tasks):
        run.add(position, task)
    return Replay(tuple(run.costs), time_tasks(run.costs, machine), frozenset(run.added))


def slow_memory(machine: Machine) -> Machine:
    """The machine whose memory keeps up the part of its peak that was measured of faster memory."""
    sites = []
    for site in machine.sites:
        assert site.gpu is not None, "the paper's GPUs were measured"
        share = site.hbm_gbs / MEASURED_GBS
        gpu = msgspec.structs.replace(
            site.gpu,
            **{
                kind: tuple(
                    msgspec.structs.replace(rates, memory_tbs=rates.memory_tbs * share)
                    for rates in getattr(site.gpu, kind)
                )
                for kind in ("products", "prefill", "decode", "experts")
            },
        )
        sites.append(replace(site, gpu=gpu))
    return replace(machine, sites=tuple(sites))


class _Run:
    """The tasks so far, with those that are added; `number` has the new positions of the plan's own."""

    def __init__(self, program: DeviceProgram, launches: Launches) -> None:
        self.costs: list[TaskCost] = []
        self.added: set[int] = set()
        self._program = program
        self._launches = launches
        self._planned = compute_task_costs(program)
        self._number: list[int] = []
        self._atoms = dict(_count_atoms(program))
        self._makers: dict[int, int] = {}  # by buffer that a kernel writes: the kernel
        self._cut: dict[tuple[int, str], int] = {}  # by buffer and reader: the last kernel that cuts it

    def add(self, position: int, task: AnyTask) -> None:
        """Adds a task, after the kernels that cut what it reads or, if it is a kernel, join it."""
        after = [self._number[before] for before in task.after]
        if isinstance(task, KernelTask):
            after = [*after, *self._cut_read(task)]
            name = self._program.operations[task.operation].name
            for region in task.reads:
                tensor = self._program.buffers[region.buffer].tensor
                atoms = self._atoms.get((name, tensor, region.block), 1)
                if atoms > 1:
                    size = region_bytes(self._program, region)
                    after.append(self._insert(task.site, after, size, atoms))
            if name in UNFUSED:
                after.append(self._insert(task.site, after, region_bytes(self._program, task.writes[0]), 1))
            for region in task.writes:
                self._makers[region.buffer] = position
        else:
            after += self._cut_read(task)
        cost = self._planned[position]
        if isinstance(task, CopyTask):  # a part of what a recompose kernel does
            cost = TaskCost(TaskKind.FENCE, cost.site)
        self._number.append(len(self.costs))
        self.costs.append(cost._replace(after=tuple(sorted(set(after)))))

    def _cut_read(self, task: AnyTask) -> Iterator[int]:
        """The kernels that cut the blocks that a task reads, which are added when they are first needed."""
        for region in reads_of(task):
            maker = self._makers.get(region.buffer)
            if maker is None:
                continue
            buffer = self._program.buffers[region.buffer]
            key = region.buffer, task.serves
            atoms = self._atoms.get((task.serves, buffer.tensor, buffer.block), 1)
            if atoms > 1 and key not in self._cut:
                size = region_bytes(self._program, msgspec.structs.replace(region, block=buffer.block))
                self._cut[key] = self._insert(buffer.site, [self._number[maker]], size, atoms)
            if key in self._cut:
                yield self._cut[key]

    def _insert(self, site: int, after: list[int], size: int, atoms: int) -> int:
        """Kernels one after the other that move `size` bytes in all; the position of the last."""
        count = 1 if self._launches is Launches.BLOCK else atoms
        for _ in range(count):
            cost = TaskCost(TaskKind.COMBINE, site, tuple(sorted(set(after))), PASSES * size // count, task="copy")
            after = [len(self.costs)]
            self.added.add(len(self.costs))
            self.costs.append(cost)
        return after[0]


def _count_atoms(program: DeviceProgram) -> Iterator[tuple[tuple[str, int, Block], int]]:
    """By operator that reads, computed tensor, and block that is made or read: the atoms that the block consists of."""
    made: dict[int, list[Block]] = {}
    for operation in program.operations:
        for k, tensor in enumerate(operation.inputs):
            if tensor not in made:
                continue
            read = [function.inputs[k] for function in operation.functions]
            whole = Block.whole(program.tensors[tensor].shape)
            overlay = Overlay(_bound(whole), map(_bound, made[tensor]), map(_bound, read))
            for block in {*made[tensor], *read}:
                yield (operation.name, tensor, block), len(overlay.cells(_bound(block)))
        for j, tensor in enumerate(operation.outputs):
            made[tensor] = [function.outputs[j] for function in operation.functions]


def _bound(block: Block) -> TensorType:
    return TensorType(block.lower, block.upper)
