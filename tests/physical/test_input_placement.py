"""Inputs and weights that lie on one site each: where, what moves, and that plans compute what they should."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import replace

import msgspec
import numpy as np
import pytest

from einc.compiler import compile_model
from einc.graph.graph import Graph
from einc.logical.optimize import optimize
from einc.logical.plan import LogicalPlan
from einc.options import CompileOptions
from einc.physical.build import build, build_fast
from einc.physical.homes import MAX_HOME_PIECES, MIN_PIECE, Homes, find_new_blocks
from einc.physical.program import DeviceProgram
from einc.physical.verify import verify
from einc_runtime.errors import PlanFault
from einc_runtime.plan.codec import decode, encode
from einc_runtime.plan.proof import prove
from einc_runtime.plan.regions import region_bytes, writes_of
from einc_runtime.plan.schema import ITEMSIZE, Block, Bundle, KernelTask, Tensor, TransferTask
from tests.support.compiled_plans import EVERYTHING, close, everything, execute
from tests.support.physical_interpreter import interpret
from tests.support.physical_toys import Wild, formula, graph_of, random_graph, switch, whole_arrays
from tests.support.racing import races

Element = tuple[int, ...]


def elements(block: Block) -> Iterator[Element]:
    return itertools.product(*itertools.starmap(range, zip(block.lower, block.upper, strict=True)))


def some_block(rng: random.Random, shape: tuple[int, ...]) -> Block:
    ends = [sorted(rng.sample(range(extent + 1), 2)) for extent in shape]
    return Block(tuple(lo for lo, _ in ends), tuple(up for _, up in ends))


@pytest.mark.parametrize("rank", range(4))
def test_new_blocks_are_what_was_not_there(rank: int) -> None:
    """Element by element: nothing twice, nothing that was there, and the readers of each element."""
    rng = random.Random(rank)
    for _ in range(20):
        shape = tuple(rng.randint(2, 6) for _ in range(rank))
        held: list[Block] = []
        for _ in range(3):
            reads = [tuple({some_block(rng, shape) for _ in range(rng.randint(1, 2))}) for _ in range(3)]
            present = {element for block in held for element in elements(block)}
            expected: dict[Element, set[int]] = {}
            for f, read in enumerate(reads):
                for element in set().union(*map(elements, read)) - present:
                    expected.setdefault(element, set()).add(f)
            new_blocks = find_new_blocks(shape, held, reads)
            listed = [(element, sites) for block, sites in new_blocks.items() for element in elements(block)]
            assert len(listed) == len({element for element, _ in listed})
            assert {element: set(sites) for element, sites in listed} == expected
            held += new_blocks


def test_disjoint_blocks_stay_whole_although_their_bounds_cross() -> None:
    pinwheel = [Block((0, 0), (1, 2)), Block((0, 2), (2, 3)), Block((2, 1), (3, 3)), Block((1, 0), (3, 1))]
    assert list(find_new_blocks((3, 3), [], [(block,) for block in pinwheel])) == pinwheel


def test_what_several_sites_read_is_spread_over_them() -> None:
    tensors = [
        Tensor("large", ("i", "j"), (40, 8192), "f32", "weight"),
        Tensor("small", ("i",), (100,), "f32", "weight"),
        Tensor("cut", ("i",), (6 * MIN_PIECE,), "f16", "input"),
    ]
    homes = Homes(tensors, 6)
    large, small = Block.whole((40, 8192)), Block.whole((100,))
    homes_of = homes.settle({0: [(large,)] * 5, 1: [(small,)] * 5}, (4, 0, 5, 1, 3))
    pieces = {site: block.shape for tensor, block, site in homes_of if tensor == 0}
    assert pieces == dict.fromkeys((4, 0, 5, 1, 3), (8, 8192))
    assert [(block, site) for tensor, block, site in homes_of if tensor == 1] == [(small, 4)]
    halves = [Block((0,), (3 * MIN_PIECE,)), Block((3 * MIN_PIECE,), (6 * MIN_PIECE,))]
    assert homes.settle({2: [(halves[0],), (halves[1],)]}, (2, 5)) == [(2, halves[0], 2), (2, halves[1], 5)]
    assert homes.settle({0: [(large,)] * 6, 2: [(halves[0],), ()]}, range(6)) == []


def test_pieces_of_a_plan_for_many_sites_are_not_too_many_and_fill_the_emptiest_sites() -> None:
    shape = (40, MIN_PIECE)
    homes = Homes([Tensor(name, ("i", "j"), shape, "f32", "weight") for name in "ab"], 40)
    held = [homes.settle({t: [(Block.whole(shape),)] * 40}, range(40)) for t in (0, 1)]
    assert [len(pieces) for pieces in held] == [MAX_HOME_PIECES, MAX_HOME_PIECES]
    assert {site for _, _, site in held[0]}.isdisjoint(site for _, _, site in held[1])


def plan_once(graph: Graph, sites: int, seed: int) -> LogicalPlan:
    """A random plan whose inputs and weights lie on one site each."""
    return replace(optimize(graph, sites, selector="random", seed=seed), input_placement="once")


def wanted_elsewhere(program: DeviceProgram) -> tuple[int, int, int]:
    """Of all inputs and weights: bytes that anyone reads, bytes that are loaded, bytes that sites lack and read."""
    loaded: dict[tuple[int, int], set[Element]] = {}
    needed: dict[tuple[int, int], set[Element]] = {}
    for buffer in program.buffers:
        if buffer.role in ("input", "weight"):
            elements_of = loaded.setdefault((buffer.tensor, buffer.site), set())
            assert elements_of.isdisjoint(elements(buffer.block))
            elements_of.update(elements(buffer.block))
    for operation in program.operations:
        for function in operation.functions:
            for tensor, block in zip(operation.inputs, function.inputs, strict=True):
                if program.tensors[tensor].kind != "value":
                    needed.setdefault((tensor, function.site), set()).update(elements(block))
    read = total = lacking = 0
    for number, tensor in enumerate(program.tensors):
        present = [loaded_elements for (tensor, _), loaded_elements in loaded.items() if tensor == number]
        needed_elements = [elements_of for (tensor, _), elements_of in needed.items() if tensor == number]
        width = ITEMSIZE[tensor.dtype]
        assert len(set().union(*present)) == sum(map(len, present))  # no element at two sites
        assert set().union(*needed_elements) <= set().union(*present)
        read += width * len(set().union(*needed_elements))
        total += width * sum(map(len, present))
        sites = range(program.plan.sites)
        lacking += width * sum(
            len(needed.get((number, site), set()) - loaded.get((number, site), set())) for site in sites
        )
    return read, total, lacking


def count_moved(program: DeviceProgram) -> int:
    """Bytes of inputs and weights that are sent."""
    return sum(
        region_bytes(program, task.read)
        for task in program.tasks
        if isinstance(task, TransferTask) and program.tensors[program.buffers[task.read.buffer].tensor].kind != "value"
    )


@pytest.mark.parametrize("block", [0, *(pytest.param(block, marks=pytest.mark.slow) for block in (1, 2))])
def test_random_graphs_compute_their_reference_and_move_what_is_missing(block: int) -> None:
    several = 0
    for seed in range(block * 5, block * 5 + 5):
        rng = random.Random(seed)
        graph, sites = random_graph(rng), rng.randint(1, 8)
        plan, machine = plan_once(graph, sites, seed), switch(sites)
        schedulers = (None, Wild(rng, machine, sites))
        programs = [build(plan, machine, scheduler) for scheduler in schedulers]
        for program in (*programs, *([build_fast(plan, machine)] if seed % 5 == 0 else [])):
            verify(program)
            assert next(races(program), None) is None
            arrays = whole_arrays(graph)
            results = interpret(program, arrays, seed, rounds=2)
            for name in graph.outputs:
                np.testing.assert_array_equal(results[name], arrays[name], err_msg=name)
            read, total, lacking = wanted_elsewhere(program)
            assert total >= read
            assert count_moved(program) >= lacking
            several += lacking > 0
        assert count_moved(programs[0]) == wanted_elsewhere(programs[0])[2]
    assert several > 3


def test_the_three_dimensional_product_moves_its_cost_without_two_matrices() -> None:
    """The paper's cost of a product counts each block at home as well (Section 4.4)."""
    text = "dim n = 512\ninput a : f16[n, n]\ninput b : f16[n, m]\noutput c = matmul(a, b)\ndim m = 512"
    bundle = compiled(text, 8, selector="eindecomp", schedule="naive")
    moved = sum(region_bytes(bundle, task.read) for task in bundle.tasks if isinstance(task, TransferTask))
    assert bundle.total_cost == 5 * 512**2
    assert moved == 2 * (bundle.total_cost - 2 * 512**2)


def compiled(text: str, sites: int, **options: object) -> Bundle:
    chosen = CompileOptions("dgx-a100", sites, input_placement="once", **options)  # type: ignore[arg-type]
    return decode(encode(compile_model(text, "m.ein", chosen).bundle))


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("sites", "schedule"),
    [(1, "naive"), (3, "naive"), (5, "synthesized"), pytest.param(8, "naive", marks=pytest.mark.slow)],
)
def test_every_kernel_computes_from_inputs_that_lie_once(sites: int, schedule: str) -> None:
    bundle = compiled(EVERYTHING, sites, schedule=schedule)
    prove(bundle)
    arrays, results = execute(bundle, sites)
    for output, expected in zip(results, everything(arrays), strict=True):
        close(output, expected, "f32")


@pytest.mark.parametrize("sites", [1, 4, 7])
def test_inputs_that_are_saved_stay_where_they_are(sites: int) -> None:
    graph = graph_of(
        [("y", formula("ij -> i:sum", i=6, j=5), ["x"]), ("z", formula("ij -> j:max", i=6, j=5), ["x"])],
        ["y", "z", "x"],
    )
    program = build(plan_once(graph, sites, sites), switch(sites))
    verify(program)
    arrays = whole_arrays(graph)
    results = interpret(program, arrays, sites, rounds=2)
    for name in graph.outputs:
        np.testing.assert_array_equal(results[name], arrays[name], err_msg=name)


PRODUCT = """
dim n = 512
dim m = 256
input x : f32[n, m]
weight w : f32[m, n]
output y = matmul(x, w)
"""


def test_plans_that_load_twice_or_bring_too_little_are_refused() -> None:
    bundle = compiled(PRODUCT, 4)
    prove(bundle)
    sends = [t for t, task in enumerate(bundle.tasks) if isinstance(task, TransferTask)]
    assert sends
    for t in sends:
        task = bundle.tasks[t]
        assert isinstance(task, TransferTask)
        # The receiver is given the block from the beginning, which is what a plan with replicas does.
        copy = bundle.buffers[task.write.buffer]
        kind = bundle.tensors[copy.tensor].kind
        buffers = list(bundle.buffers)
        buffers[task.write.buffer] = msgspec.structs.replace(copy, role=kind)
        writers = {
            u
            for u, later in enumerate(bundle.tasks)
            if task.write.buffer in {region.buffer for region in writes_of(later)}
        }
        kept = [u for u in range(len(bundle.tasks)) if u not in writers]
        number = {u: position for position, u in enumerate(kept)}
        tasks = tuple(
            msgspec.structs.replace(
                bundle.tasks[u], after=tuple(number[before] for before in bundle.tasks[u].after if before in number)
            )
            for u in kept
        )
        mutant = msgspec.structs.replace(bundle, buffers=tuple(buffers), tasks=tasks)
        with pytest.raises(PlanFault, match="at one site each"):
            prove(mutant)
        prove(msgspec.structs.replace(mutant, input_placement="replicated"))
        # A reader that does not wait for what it is sent.
        for k, reader in enumerate(bundle.tasks):
            if isinstance(reader, KernelTask) and t in reader.after:
                after = tuple(before for before in reader.after if before != t)
                changed = msgspec.structs.replace(reader, after=after)
                torn = (*bundle.tasks[:k], changed, *bundle.tasks[k + 1 :])
                with pytest.raises(PlanFault, match="without waiting"):
                    prove(msgspec.structs.replace(bundle, tasks=torn))
