"""The memory plan: reuse, peaks, and the error where a site is too small."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import pytest

from einc.core.tensor import DType, TensorType
from einc.errors import CapacityError, SourceSpan
from einc.graph.graph import Graph
from einc.physical.arena import ALIGNMENT, Arena
from einc.physical.build import build
from einc.physical.memory import plan_memory
from einc.physical.program import Buffer, BufferRole, Region, Task, TaskKind
from tests.support.physical_toys import Formula, graph_of, plan_of, switch

COPY = Formula(("i",), (("i", "sum"),), (("i", 1000),))


def chain(length: int) -> Graph:
    names = ["x", *(f"h{n}" for n in range(length))]
    return graph_of([(made, COPY, (read,)) for read, made in itertools.pairwise(names)], names[-1:])


def test_a_chain_needs_two_scratch_buffers() -> None:
    program = build(plan_of(chain(9), 1, {f"h{n}": (1,) for n in range(9)}), switch(1))
    size = 8000
    assert program.memory == (4 * size,)  # the input, the result, and two blocks in turn
    scratch = {offset for b, offset in zip(program.buffers, program.offsets, strict=True) if b.role.value == "scratch"}
    assert len(scratch) == 2


def test_the_error_names_operator_site_and_shortfall() -> None:
    graph = chain(3)
    span = SourceSpan("m.ein", 7, 1, 3, "h1 = ...")
    graph = replace(graph, nodes=tuple(replace(node, span=span if node.name == "h1" else None) for node in graph.nodes))
    plan = plan_of(graph, 2, {f"h{n}": (2,) for n in range(3)})
    needed = max(build(plan, switch(2)).memory)
    assert build(plan, switch(2, memory_bytes=needed)).memory == (needed, needed)
    with pytest.raises(CapacityError) as caught:
        build(plan, switch(2, memory_bytes=needed - 500))
    assert caught.value.render() == (
        "m.ein:7:1: h1: site 0 of switch would need 15.75 KiB of memory (8,064 B for inputs, weights and results, "
        "8,064 B for values in between) and has 15.26 KiB: 500 B too little\n"
        "    h1 = ...\n"
        "    ^^\n"
        "    hint: more devices (--devices), a machine with more memory, a smaller dtype or smaller dims would help"
    )


def test_the_error_names_the_reader_of_the_largest_tensor_where_there_is_no_scratch() -> None:
    plan = plan_of(graph_of([("y", COPY, ("x",))], ["y"]), 1, {"y": (1,)})
    with pytest.raises(CapacityError, match=r"^y: site 0 of switch would need 15.62 KiB .*, 0 B for values"):
        build(plan, switch(1, memory_bytes=100))


@pytest.mark.parametrize("seed", range(20))
def test_an_arena_never_gives_bytes_twice(seed: int) -> None:
    rng = random.Random(seed)
    arena = Arena(128)
    live: dict[int, tuple[int, int]] = {}
    last: dict[int, int] = {}  # unit of memory -> the buffer that had it last
    for buffer in range(300):
        while live and rng.random() < 0.48:
            gone = rng.choice(sorted(live))
            arena.release(*live.pop(gone))
        size = rng.randint(1, 12) * ALIGNMENT
        start, evicted = arena.allocate(size, buffer)
        assert start >= 128
        assert start + size <= arena.top
        assert all(start + size <= other or other + length <= start for other, length in live.values())
        units = range(start // ALIGNMENT, (start + size) // ALIGNMENT)
        assert set(evicted) == {last[unit] for unit in units if unit in last}
        last.update(dict.fromkeys(units, buffer))
        live[buffer] = (start, size)
    assert arena.top <= 128 + 300 * 12 * ALIGNMENT


def test_the_tightest_hole_is_taken_and_the_lowest_of_equal_ones() -> None:
    arena = Arena(0)
    starts = [arena.allocate(units * ALIGNMENT, b)[0] for b, units in enumerate((2, 1, 1, 1, 1, 1, 3, 1))]
    for hole, units in ((0, 2), (2, 1), (4, 1), (6, 3)):
        arena.release(starts[hole], units * ALIGNMENT)
    assert [arena.allocate(ALIGNMENT, 8 + n)[0] for n in range(3)] == [starts[2], starts[4], starts[0]]
    assert arena.allocate(3 * ALIGNMENT, 11)[0] == starts[6]


def test_reuse_waits_for_all_last_readers_through_one_fence() -> None:
    half, whole = [TensorType((0,), (8,)), TensorType((8,), (16,))], TensorType((0,), (16,))
    buffers = [
        Buffer(0, "a", whole, DType.F64, BufferRole.SCRATCH),
        Buffer(0, "r", whole, DType.F64, BufferRole.RESULT),
    ]
    buffers.append(Buffer(0, "b", whole, DType.F64, BufferRole.SCRATCH))
    tasks = [Task(TaskKind.COPY, 0, "n", (), (Region(0, part),)) for part in half]
    tasks += [Task(TaskKind.COPY, 0, "n", (Region(0, part),), (Region(1, part),), (i,)) for i, part in enumerate(half)]
    tasks += [Task(TaskKind.COPY, 0, "n", (), (Region(2, part),)) for part in half]
    memory = plan_memory(buffers, tasks, 1)
    assert memory.offsets[0] == memory.offsets[2] == 128
    assert memory.sizes == (256,)
    assert memory.kept == (128,)
    assert [(task.kind, task.after) for task in memory.tasks[4:]] == [
        (TaskKind.FENCE, (2, 3)), (TaskKind.COPY, (4,)), (TaskKind.COPY, (4,)),
    ]  # fmt: skip


def test_reuse_waits_for_the_reader_alone_who_waited_for_the_writer() -> None:
    whole, halves = TensorType((0,), (16,)), [TensorType((0,), (8,)), TensorType((8,), (16,))]
    roles = {"a": BufferRole.SCRATCH, "r": BufferRole.RESULT, "b": BufferRole.SCRATCH}
    buffers = [Buffer(0, name, whole, DType.F64, role) for name, role in roles.items()]
    tasks = [
        Task(TaskKind.COPY, 0, "n", (), (Region(0, whole),)),
        Task(TaskKind.COPY, 0, "n", (Region(0, whole),), (Region(1, whole),), (0,)),
        *(Task(TaskKind.COPY, 0, "n", (), (Region(2, part),)) for part in halves),
    ]
    found = plan_memory(buffers, tasks, 1).tasks
    assert [(task.kind, task.after) for task in found[2:]] == [(TaskKind.COPY, (1,))] * 2  # no fence


def test_a_buffer_lives_until_its_last_write_even_if_nobody_reads_that() -> None:
    whole, halves = TensorType((0,), (16,)), [TensorType((0,), (8,)), TensorType((8,), (16,))]
    buffers = [Buffer(0, name, whole, DType.F64, BufferRole.SCRATCH) for name in "ab"]
    tasks = [
        Task(TaskKind.COPY, 0, "n", (), (Region(0, halves[0]),)),
        Task(TaskKind.COPY, 0, "n", (Region(0, halves[0]),), (Region(1, halves[0]),), (0,)),
        Task(TaskKind.COPY, 0, "n", (), (Region(0, halves[1]),)),
    ]
    memory = plan_memory(buffers, tasks, 1)
    assert sorted(memory.offsets) == [0, 128]
