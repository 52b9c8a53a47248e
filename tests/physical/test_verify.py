"""`verify` refuses every mutation that breaks the structure, and `races` every lost dependency."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from einc.errors import InternalError
from einc.physical.build import build
from einc.physical.program import DeviceProgram
from einc.physical.records import place_operation
from einc.physical.verify import verify
from einc_runtime.plan.regions import writes_of
from einc_runtime.plan.schema import AnyTask, Block, Function, KernelTask, Region, TransferTask
from tests.support.device_programs import kind_of
from tests.support.physical_toys import Formula, graph_of, plan_of, switch
from tests.support.racing import races

PRODUCT = Formula(("ij", "jk"), (("ik", "sum"),), (("i", 6), ("j", 6), ("k", 6)))


def program() -> DeviceProgram:
    nodes = [("h", PRODUCT, ("x", "w")), ("g", PRODUCT, ("h", "w")), ("y", PRODUCT, ("g", "h"))]
    counts = {"h": (1, 2, 2), "g": (2, 2, 1), "y": (2, 1, 2)}
    return build(plan_of(graph_of(nodes, ["y", "g"], weights=["w"]), 4, counts), switch(4))


PROGRAM = program()


def first(kind: str) -> int:
    return next(i for i, task in enumerate(PROGRAM.tasks) if kind_of(task) == kind)


def with_task(position: int, **changes: Any) -> DeviceProgram:
    tasks = list(PROGRAM.tasks)
    tasks[position] = msgspec.structs.replace(tasks[position], **changes)
    return replace(PROGRAM, tasks=tuple(tasks))


def with_buffer(position: int, **changes: Any) -> DeviceProgram:
    buffers = list(PROGRAM.buffers)
    buffers[position] = msgspec.structs.replace(buffers[position], **changes)
    return replace(PROGRAM, buffers=tuple(buffers))


def with_sites(operation: int, *sites: int) -> DeviceProgram:
    """The functions of an operation at other sites."""
    operations = list(PROGRAM.operations)
    operations[operation] = place_operation(
        operations[operation], dict(enumerate(sites)), [operations[operation].exchange]
    )
    return replace(PROGRAM, operations=tuple(operations))


def with_functions(operation: int, functions: tuple[Function, ...]) -> DeviceProgram:
    operations = list(PROGRAM.operations)
    operations[operation] = msgspec.structs.replace(operations[operation], functions=functions)
    return replace(PROGRAM, operations=tuple(operations))


def without_tasks(gone: Callable[[AnyTask], bool]) -> DeviceProgram:
    return replace(PROGRAM, tasks=tuple(task for task in PROGRAM.tasks if not gone(task)))


def shrunk(block: Block) -> Block:
    return Block(block.lower, (block.upper[0] - 1, *block.upper[1:]))


def moved_write(position: int) -> DeviceProgram:
    """A write to a buffer at the wrong site."""
    task = PROGRAM.tasks[position]
    region = writes_of(task)[0]
    old = PROGRAM.buffers[region.buffer]
    at = task.site if isinstance(task, TransferTask) else (task.site + 1) % 4
    return with_buffer(region.buffer, site=at) if at != old.site else PROGRAM


TASKS: Any = PROGRAM.tasks
KERNEL, SEND, ADD, COPY = map(first, ("kernel", "transfer", "aggregate", "copy"))
LOADED = next(b for b, buffer in enumerate(PROGRAM.buffers) if buffer.role == "weight")
Y, G = PROGRAM.outputs
RESULT = Y.regions[0].buffer
H = PROGRAM.operations[0].functions


def reading(position: int, block: Block) -> DeviceProgram:
    """The task reads another block of its first buffer."""
    if isinstance(TASKS[position], TransferTask):
        return with_task(position, read=Region(TASKS[position].read.buffer, block))
    first, *remaining = TASKS[position].reads
    return with_task(position, reads=(Region(first.buffer, block), *remaining))


def at_offset(buffer: int, offset: int) -> DeviceProgram:
    return with_buffer(buffer, offset=offset)


def all_at_offset_0() -> DeviceProgram:
    return replace(PROGRAM, buffers=tuple(msgspec.structs.replace(buffer, offset=0) for buffer in PROGRAM.buffers))


OUTSIDE = Block((0, 0), (6, 7))

MUTATIONS: dict[str, Callable[[], DeviceProgram]] = {
    "waits for itself": lambda: with_task(SEND, after=(SEND,)),
    "waits for a later task": lambda: with_task(SEND, after=(SEND + 1,)),
    "waits out of order": lambda: with_task(len(TASKS) - 1, after=(1, 0)),
    "another function": lambda: with_task(KERNEL, function=1),
    "no such function": lambda: with_task(KERNEL, function=4),
    "function twice": lambda: replace(PROGRAM, tasks=(*TASKS, TASKS[KERNEL])),
    "function left out": lambda: without_tasks(
        lambda task: isinstance(task, KernelTask) and task.function == 3 and task.serves == "y"
    ),
    "serves an unknown operator": lambda: with_task(KERNEL, serves="nobody"),
    "no such operator": lambda: with_task(KERNEL, operation=3),
    "smaller kernel input": lambda: reading(KERNEL, shrunk(TASKS[KERNEL].reads[0].block)),
    "kernel inputs exchanged": lambda: with_task(KERNEL, reads=TASKS[KERNEL].reads[::-1]),
    "kernel without inputs": lambda: with_task(KERNEL, reads=()),
    "region outside of its buffer": lambda: reading(SEND, OUTSIDE),
    "no such buffer": lambda: with_task(SEND, read=Region(len(PROGRAM.buffers), TASKS[SEND].read.block)),
    "negative buffer": lambda: with_task(SEND, read=Region(-1, TASKS[SEND].read.block)),
    "shapes differ": lambda: reading(SEND, shrunk(TASKS[SEND].read.block)),
    "one part to combine": lambda: with_task(ADD, reads=TASKS[ADD].reads[:1]),
    "another aggregation": lambda: with_task(ADD, aggregation="max"),
    "copy without partner": lambda: with_task(COPY, writes=()),
    "transfer runs at its end": lambda: with_task(SEND, site=PROGRAM.buffers[TASKS[SEND].write.buffer].site),
    "transfer within a site": lambda: moved_write(SEND),
    "aggregate elsewhere": lambda: moved_write(ADD),
    "kernel writes a weight": lambda: with_task(KERNEL, writes=(Region(LOADED, TASKS[KERNEL].writes[0].block),)),
    "read before written": lambda: replace(PROGRAM, tasks=tuple(t for i, t in enumerate(TASKS) if i != SEND)),
    "buffer of another tensor": lambda: with_buffer(LOADED, tensor=PROGRAM.operations[0].inputs[0]),
    "a block outside of its tensor": lambda: with_buffer(LOADED, block=OUTSIDE),
    "an empty block": lambda: with_buffer(LOADED, block=Block((0, 0), (0, 6))),
    "beyond the arena": lambda: replace(PROGRAM, memory=(64, *PROGRAM.memory[1:])),
    "odd offset": lambda: at_offset(0, 8),
    "negative offset": lambda: at_offset(0, -64),
    "weights overlap": lambda: replace(
        PROGRAM, buffers=tuple(at_offset(b, 0).buffers[b] for b in range(len(PROGRAM.buffers)))
    ),
    "an arena too few": lambda: replace(PROGRAM, memory=PROGRAM.memory[:-1]),
    "a site twice": lambda: with_sites(0, 0, 0, 1, 2),
    "a site too many": lambda: with_sites(0, 0, 1, 2, 4),
    "functions that nobody specified": lambda: with_functions(0, (*H[1:], H[0])),
    "operator without operation": lambda: replace(PROGRAM, operations=PROGRAM.operations[1:]),
    "operation of another operator": lambda: replace(PROGRAM, operations=PROGRAM.operations[::-1]),
    "output in scratch": lambda: with_buffer(RESULT, role="scratch"),
    "output left out": lambda: replace(PROGRAM, outputs=PROGRAM.outputs[:1]),
    "part of an output": lambda: replace(PROGRAM, outputs=(msgspec.structs.replace(Y, regions=Y.regions[1:]), G)),
    "output of another tensor": lambda: replace(PROGRAM, outputs=(msgspec.structs.replace(Y, regions=G.regions), G)),
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
    refused = kept = 0
    for position, task in enumerate(PROGRAM.tasks):
        for lost in task.after:
            mutant = with_task(position, after=tuple(before for before in task.after if before != lost))
            if still_after(mutant.tasks, position, lost):
                kept += 1
                continue
            refused += 1
            assert next(races(mutant), None) is not None, (position, lost)
    assert refused > 10 * kept


def still_after(tasks: tuple[AnyTask, ...], position: int, lost: int) -> bool:
    reached, todo = set(), [position]
    while todo:
        for before in tasks[todo.pop()].after:
            if before not in reached:
                reached.add(before)
                todo.append(before)
    return lost in reached
