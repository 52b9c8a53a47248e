"""The memory plan: reuse, peaks, and the error where a site is too small."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import pytest

from einc.compiler import compile_model
from einc.core.tensor import DType, TensorType
from einc.errors import CapacityError, SourceSpan
from einc.graph.graph import Graph
from einc.options import CompileOptions
from einc.physical.build import build
from einc.physical.memory import ALIGNMENT, ArenaAllocator, plan_memory
from einc_runtime.plan.schema import Buffer, BufferRole, CopyTask, Region
from tests.support.device_programs import kind_of
from tests.support.physical_toys import Formula, computed, graph_of, plan_of, switch

COPY = Formula(("i",), (("i", "sum"),), (("i", 1000),))


TENSOR = computed("a", (16,), DType.F64)


def copy(reads: tuple[Region, ...], writes: tuple[Region, ...], after: tuple[int, ...] = ()) -> CopyTask:
    return CopyTask(0, "n", after, reads, writes)


def chain(length: int) -> Graph:
    names = ["x", *(f"h{n}" for n in range(length))]
    return graph_of([(source, COPY, (read,)) for read, source in itertools.pairwise(names)], names[-1:])


def test_a_chain_needs_two_scratch_buffers() -> None:
    program = build(plan_of(chain(9), 1, {f"h{n}": (1,) for n in range(9)}), switch(1))
    size = 8000
    assert program.memory == (4 * size,)  # the input, the result, and two blocks in turn
    scratch = {buffer.offset for buffer in program.buffers if buffer.role == "scratch"}
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
    arena = ArenaAllocator(128)
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
        assert all(start + size <= start_of or start_of + length <= start for start_of, length in live.values())
        units = range(start // ALIGNMENT, (start + size) // ALIGNMENT)
        assert set(evicted) == {last[unit] for unit in units if unit in last}
        last.update(dict.fromkeys(units, buffer))
        live[buffer] = (start, size)
    assert arena.top <= 128 + 300 * 12 * ALIGNMENT


def test_the_tightest_hole_is_taken_and_the_lowest_of_equal_ones() -> None:
    arena = ArenaAllocator(0)
    starts = [arena.allocate(units * ALIGNMENT, b)[0] for b, units in enumerate((2, 1, 1, 1, 1, 1, 3, 1))]
    for hole, units in ((0, 2), (2, 1), (4, 1), (6, 3)):
        arena.release(starts[hole], units * ALIGNMENT)
    assert [arena.allocate(ALIGNMENT, 8 + n)[0] for n in range(3)] == [starts[2], starts[4], starts[0]]
    assert arena.allocate(3 * ALIGNMENT, 11)[0] == starts[6]


def test_reuse_waits_for_all_last_readers_through_one_fence() -> None:
    half, full = [TensorType((0,), (8,)), TensorType((8,), (16,))], TensorType((0,), (16,))
    buffers = [
        Buffer(0, 0, 0, full, "scratch"),
        Buffer(0, 0, 0, full, "result"),
    ]
    buffers.append(Buffer(0, 0, 0, full, "scratch"))
    tasks = [copy((), (Region(0, part),)) for part in half]
    tasks += [copy((Region(0, part),), (Region(1, part),), (i,)) for i, part in enumerate(half)]
    tasks += [copy((), (Region(2, part),)) for part in half]
    memory = plan_memory([TENSOR], buffers, tasks, 1, {})
    assert memory.buffers[0].offset == memory.buffers[2].offset == 128
    assert memory.sizes == (256,)
    assert memory.kept == (128,)
    assert [(kind_of(task), task.after) for task in memory.tasks[4:]] == [
        ("fence", (2, 3)), ("copy", (4,)), ("copy", (4,)),
    ]  # fmt: skip


def test_reuse_waits_for_the_reader_alone_who_waited_for_the_writer() -> None:
    full, halves = TensorType((0,), (16,)), [TensorType((0,), (8,)), TensorType((8,), (16,))]
    roles: tuple[BufferRole, ...] = ("scratch", "result", "scratch")
    buffers = [Buffer(0, 0, 0, full, role) for role in roles]
    tasks = [
        copy((), (Region(0, full),)),
        copy((Region(0, full),), (Region(1, full),), (0,)),
        *(copy((), (Region(2, part),)) for part in halves),
    ]
    planned = plan_memory([TENSOR], buffers, tasks, 1, {}).tasks
    assert [(kind_of(task), task.after) for task in planned[2:]] == [("copy", (1,))] * 2  # no fence


def test_a_buffer_lives_until_its_last_write_even_if_nobody_reads_that() -> None:
    full, halves = TensorType((0,), (16,)), [TensorType((0,), (8,)), TensorType((8,), (16,))]
    buffers = [Buffer(0, 0, 0, full, "scratch") for _ in range(2)]
    tasks = [
        copy((), (Region(0, halves[0]),)),
        copy((Region(0, halves[0]),), (Region(1, halves[0]),), (0,)),
        copy((), (Region(0, halves[1]),)),
    ]
    memory = plan_memory([TENSOR], buffers, tasks, 1, {})
    assert sorted(buffer.offset for buffer in memory.buffers) == [0, 128]


def test_a_buffer_that_may_be_written_early_takes_no_bytes_that_are_read_until_its_first_writer() -> None:
    """The third buffer may be written while the second task reads the first one."""
    full = TensorType((0,), (16,))
    buffers = [Buffer(0, 0, 0, full, "scratch") for _ in range(3)]
    tasks = [
        copy((), (Region(0, full),)),
        copy((Region(0, full),), (Region(1, full),), (0,)),
        copy((Region(1, full),), (Region(2, full),), (1,)),
    ]
    late, early = (plan_memory([TENSOR], buffers, tasks, 1, {}, begins=begins) for begins in ({}, {2: 1}))
    assert [buffer.offset for buffer in late.buffers] == [0, 128, 0]
    assert [buffer.offset for buffer in early.buffers] == [0, 128, 256]


def test_room_for_epilogues_is_given_up_where_memory_is_short() -> None:
    text = """
    model residual
    dim m = 96
    dim n = 80
    input x : f32[m, n]
    weight w : f32[n, n]
    a[m, n] = x[m, k] * w[k, n]
    b = silu(a)
    c[m, n] = b[m, k] * w[k, n]
    r = x + c
    y = softmax(r, "n")
    output y
    """
    options = CompileOptions("host", 1, selector="eindecomp")
    roomy = compile_model(text, "m.ein", options).bundle
    short = compile_model(text, "m.ein", replace(options, memory=max(roomy.memory) - 1)).bundle
    assert max(short.memory) < max(roomy.memory)
