"""`verify` refuses every mutation that breaks the structure, and `races` every lost dependency."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from einc.core.tensor import TensorType
from einc.errors import InternalError
from einc.physical.build import build
from einc.physical.program import BufferRole, DeviceProgram, Region, Task, TaskKind
from einc.physical.verify import verify
from tests.support.physical_toys import Formula, graph_of, plan_of, switch
from tests.support.racing import races

PRODUCT = Formula(("ij", "jk"), (("ik", "sum"),), (("i", 6), ("j", 6), ("k", 6)))


def program() -> DeviceProgram:
    nodes = [("h", PRODUCT, ("x", "w")), ("g", PRODUCT, ("h", "w")), ("y", PRODUCT, ("g", "h"))]
    counts = {"h": (1, 2, 2), "g": (2, 2, 1), "y": (2, 1, 2)}
    return build(plan_of(graph_of(nodes, ["y", "g"], weights=["w"]), 4, counts), switch(4))


PROGRAM = program()


def first(kind: TaskKind) -> int:
    return next(i for i, task in enumerate(PROGRAM.tasks) if task.kind is kind)


def with_task(position: int, **changes: Any) -> DeviceProgram:
    tasks = list(PROGRAM.tasks)
    tasks[position] = replace(tasks[position], **changes)
    return replace(PROGRAM, tasks=tuple(tasks))


def with_buffer(position: int, **changes: Any) -> DeviceProgram:
    buffers = list(PROGRAM.buffers)
    buffers[position] = replace(buffers[position], **changes)
    return replace(PROGRAM, buffers=tuple(buffers))


def shrunk(block: TensorType) -> TensorType:
    return TensorType(block.lower, (block.upper[0] - 1, *block.upper[1:]))


def moved_write(kind: TaskKind) -> DeviceProgram:
    """A write to a buffer at the wrong site."""
    task = PROGRAM.tasks[first(kind)]
    region = task.writes[0]
    old = PROGRAM.buffers[region.buffer]
    at = task.site if kind is TaskKind.TRANSFER else (task.site + 1) % 4
    return with_buffer(region.buffer, site=at) if at != old.site else PROGRAM


KERNEL, SEND, ADD, COPY = (first(k) for k in (TaskKind.KERNEL, TaskKind.TRANSFER, TaskKind.AGGREGATE, TaskKind.COPY))
TASKS = PROGRAM.tasks
LOADED = next(b for b, buffer in enumerate(PROGRAM.buffers) if buffer.role is BufferRole.WEIGHT)
Y, G = PROGRAM.outputs
RESULT = Y.regions[0].buffer


def reading(position: int, *blocks: TensorType) -> DeviceProgram:
    """The task reads other blocks of its buffers."""
    reads = TASKS[position].reads
    changed = tuple(Region(region.buffer, block) for region, block in zip(reads, blocks, strict=False))
    return with_task(position, reads=(*changed, *reads[len(changed) :]))


OUTSIDE = TensorType((0, 0), (6, 7))

MUTATIONS: dict[str, Callable[[], DeviceProgram]] = {
    "waits for itself": lambda: with_task(SEND, after=(SEND,)),
    "waits for a later task": lambda: with_task(SEND, after=(SEND + 1,)),
    "waits out of order": lambda: with_task(len(TASKS) - 1, after=(1, 0)),
    "another function": lambda: with_task(KERNEL, function=1),
    "no function": lambda: with_task(KERNEL, function=None),
    "function twice": lambda: replace(PROGRAM, tasks=(*TASKS, TASKS[KERNEL])),
    "function left out": lambda: replace(PROGRAM, tasks=tuple(t for t in TASKS if t.function != 3 or t.node != "y")),
    "unknown operator": lambda: with_task(KERNEL, node="nobody"),
    "a function on a transfer": lambda: with_task(SEND, function=0),
    "smaller kernel input": lambda: reading(KERNEL, shrunk(TASKS[KERNEL].reads[0].block)),
    "kernel inputs exchanged": lambda: with_task(KERNEL, reads=TASKS[KERNEL].reads[::-1]),
    "kernel without inputs": lambda: with_task(KERNEL, reads=()),
    "region outside of its buffer": lambda: reading(SEND, OUTSIDE),
    "no such buffer": lambda: with_task(SEND, reads=(Region(len(PROGRAM.buffers), TASKS[SEND].reads[0].block),)),
    "negative buffer": lambda: with_task(SEND, reads=(Region(-1, TASKS[SEND].reads[0].block),)),
    "shapes differ": lambda: reading(SEND, shrunk(TASKS[SEND].reads[0].block)),
    "one part to combine": lambda: with_task(ADD, reads=TASKS[ADD].reads[:1]),
    "no aggregation": lambda: with_task(ADD, aggregation=None),
    "aggregation on a transfer": lambda: with_task(SEND, aggregation="sum"),
    "copy without partner": lambda: with_task(COPY, writes=()),
    "transfer runs at its end": lambda: with_task(SEND, site=PROGRAM.buffers[TASKS[SEND].writes[0].buffer].site),
    "transfer within a site": lambda: moved_write(TaskKind.TRANSFER),
    "aggregate elsewhere": lambda: moved_write(TaskKind.AGGREGATE),
    "kernel writes a weight": lambda: with_task(KERNEL, writes=(Region(LOADED, TASKS[KERNEL].writes[0].block),)),
    "read before written": lambda: replace(PROGRAM, tasks=tuple(t for i, t in enumerate(TASKS) if i != SEND)),
    "data on a fence": lambda: with_task(SEND, kind=TaskKind.FENCE),
    "another dtype": lambda: with_buffer(LOADED, dtype=type(PROGRAM.buffers[0].dtype).F32),
    "a block outside of its tensor": lambda: with_buffer(LOADED, block=TensorType((0, 0), (6, 7))),
    "an empty block": lambda: with_buffer(LOADED, block=TensorType((0, 0), (0, 6))),
    "beyond the arena": lambda: replace(PROGRAM, memory=(64, *PROGRAM.memory[1:])),
    "odd offset": lambda: replace(PROGRAM, offsets=(8, *PROGRAM.offsets[1:])),
    "negative offset": lambda: replace(PROGRAM, offsets=(-64, *PROGRAM.offsets[1:])),
    "weights overlap": lambda: replace(PROGRAM, offsets=(0,) * len(PROGRAM.offsets)),
    "an offset too few": lambda: replace(PROGRAM, offsets=PROGRAM.offsets[1:]),
    "a site twice": lambda: replace(PROGRAM, sites=((0, 0, 1, 2), *PROGRAM.sites[1:])),
    "a site too many": lambda: replace(PROGRAM, sites=((0, 1, 2, 4), *PROGRAM.sites[1:])),
    "operator without sites": lambda: replace(PROGRAM, sites=PROGRAM.sites[1:]),
    "output in scratch": lambda: with_buffer(RESULT, role=BufferRole.SCRATCH),
    "output left out": lambda: replace(PROGRAM, outputs=PROGRAM.outputs[:1]),
    "part of an output": lambda: replace(PROGRAM, outputs=(replace(Y, regions=Y.regions[1:]), G)),
    "output of another tensor": lambda: replace(PROGRAM, outputs=(replace(Y, regions=G.regions), G)),
}


def test_the_program_itself_is_fine() -> None:
    verify(PROGRAM)
    assert next(races(PROGRAM), None) is None


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_mutation_is_refused(name: str) -> None:
    mutant = MUTATIONS[name]()
    assert mutant != PROGRAM
    with pytest.raises(InternalError):
        verify(mutant)


def test_a_lost_dependency_is_a_race() -> None:
    found = kept = 0
    for position, task in enumerate(PROGRAM.tasks):
        for lost in task.after:
            mutant = with_task(position, after=tuple(before for before in task.after if before != lost))
            if still_after(mutant.tasks, position, lost):
                kept += 1
                continue
            found += 1
            assert next(races(mutant), None) is not None, (position, lost)
    assert found > 10 * kept


def still_after(tasks: tuple[Task, ...], position: int, lost: int) -> bool:
    reached, todo = set(), [position]
    while todo:
        for before in tasks[todo.pop()].after:
            if before not in reached:
                reached.add(before)
                todo.append(before)
    return lost in reached
