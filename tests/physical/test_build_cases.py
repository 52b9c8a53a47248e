"""Device programs of small graphs by hand: what moves, what is read in place, and what is kept."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from einc.core.tensor import TensorType
from einc.errors import MachineError
from einc.exchange.language.closure import order_firings
from einc.exchange.language.printer import print_program
from einc.exchange.language.program import Action
from einc.graph.graph import Graph
from einc.machines.model import Machine, Resource
from einc.physical.atoms import Inflow
from einc.physical.build import build
from einc.physical.preamble import build_preamble
from einc.physical.program import DeviceProgram
from einc.physical.schedule import NaiveScheduler, ScheduledExchange
from einc.physical.verify import verify
from einc_runtime.plan.regions import reads_of
from einc_runtime.plan.schema import AggregateTask, Exchange, FenceTask, KernelTask, TransferTask
from tests.support.device_programs import exchanges_of, kind_of, program_of, tensor_name
from tests.support.physical_interpreter import interpret
from tests.support.physical_toys import Formula, Window, formula, graph_of, late_switch, plan_of, switch, whole_arrays
from tests.support.racing import races


def compiled(graph: Graph, sites: int, machine: Machine | None = None, **counts: tuple[int, ...]) -> DeviceProgram:
    program = build(plan_of(graph, sites, counts), switch(sites) if machine is None else machine)
    verify(program)
    assert next(races(program), None) is None
    arrays = whole_arrays(graph)
    for seed in range(4):
        for name, array in interpret(program, arrays, seed).items():
            np.testing.assert_array_equal(array, arrays[name])
    return program


def kinds(program: DeviceProgram) -> Counter[str]:
    return Counter(kind_of(task) for task in program.tasks)


ROWS = formula("ij -> ij:sum", i=7, j=6)


def test_one_site_runs_kernels_only() -> None:
    graph = graph_of([("c", formula("ij jk -> ik:sum", i=7, j=6, k=5), ("a", "b"))], ["c"])
    program = compiled(graph, 1, c=(1, 1, 1))
    assert kinds(program) == {"kernel": 1}
    assert exchanges_of(program) == []


def test_equal_cuts_move_nothing_and_read_in_place() -> None:
    graph = graph_of([("h", ROWS, ("x",)), ("y", ROWS, ("h",))], ["y"])
    program = compiled(graph, 3, h=(3, 1), y=(3, 1))
    assert kinds(program) == {"kernel": 6}


def test_a_square_brings_its_tensor_once() -> None:
    square = formula("ij ij -> ij:sum", i=7, j=6)
    graph = graph_of([("h", ROWS, ("x",)), ("y", square, ("h", "h"))], ["y"])
    program = compiled(graph, 2, h=(2, 1), y=(1, 2))
    assert kinds(program) == {"kernel": 4, "transfer": 2, "copy": 2}
    assert all(
        task.reads[0] == task.reads[1] for task in program.tasks if task.serves == "y" and isinstance(task, KernelTask)
    )


def test_a_product_with_itself_needs_two_blocks_of_one_tensor() -> None:
    gram = formula("ij kj -> ik:sum", i=7, j=6, k=7)
    graph = graph_of([("h", ROWS, ("x",)), ("y", gram, ("h", "h"))], ["y"])
    program = compiled(graph, 4, h=(4, 1), y=(2, 1, 2))
    kernels = [task for task in program.tasks if task.serves == "y" and isinstance(task, KernelTask)]
    assert {len({region.block for region in task.reads}) for task in kernels} == {1, 2}


def test_partial_sums_are_combined_straight_into_the_consumers_block() -> None:
    graph = graph_of([("c", formula("ij jk -> ik:sum", i=7, j=6, k=5), ("a", "b")), ("y", ROWS5, ("c",))], ["y"])
    program = compiled(graph, 4, c=(1, 4, 1), y=(4, 1))
    assert kinds(program) == {"kernel": 8, "transfer": 12, "aggregate": 4}
    for task in program.tasks:
        if isinstance(task, AggregateTask):
            reader = next(t for t in program.tasks if t.serves == "y" and task.writes[0] in reads_of(t))
            assert isinstance(reader, KernelTask)


ROWS5 = formula("ik -> ik:sum", i=7, k=5)


def test_the_second_consumer_starts_from_what_the_first_aggregated() -> None:
    product = formula("ij jk -> ik:sum", i=7, j=6, k=5)
    graph = graph_of([("c", product, ("a", "b")), ("y", ROWS5, ("c",)), ("z", ROWS5, ("c",))], ["y", "z"])
    program = compiled(graph, 3, c=(1, 3, 1), y=(3, 1), z=(3, 1))
    assert program.operations[1].exchange is not None
    assert program.operations[2].exchange is None
    assert Counter(kind_of(task) for task in program.tasks if task.serves == "z") == {"kernel": 3}


def test_an_output_that_others_read_is_brought_home_once() -> None:
    product = formula("ij jk -> ik:sum", i=7, j=6, k=5)
    graph = graph_of([("c", product, ("a", "b")), ("y", ROWS5, ("c",))], ["c", "y"])
    program = compiled(graph, 3, c=(1, 3, 1), y=(1, 1))
    assert kinds(program) == {"kernel": 4, "transfer": 2, "aggregate": 1}
    assert program.outputs[0].exchange is None  # y's exchange has aggregated all of it already
    assert program.buffers[program.outputs[0].regions[0].buffer].role == "result"


def test_an_input_may_be_an_output() -> None:
    graph = graph_of([("y", ROWS, ("x",))], ["y"])
    program = compiled(replace(graph, outputs=("x", "y")), 2, y=(1, 2))
    (region,) = program.outputs[0].regions
    assert program.buffers[region.buffer].role == "input"
    assert [b.block for b in program.buffers if tensor_name(program, b) == "x" and b.site == 0] == [
        TensorType.whole((7, 6))
    ]
    assert [tensor_name(program, output.tensor) for output in program.outputs] == ["x", "y"]


def test_weights_are_loaded_where_they_are_needed_and_never_move() -> None:
    nodes = [("h", formula("ij jk -> ik:sum", i=7, j=6, k=6), ("x", "w"))]
    nodes.append(("y", formula("ik kj -> ij:sum", i=7, j=6, k=6), ("h", "w")))
    program = compiled(graph_of(nodes, ["y"], weights=["w"]), 2, h=(2, 1, 1), y=(2, 1, 1))
    assert [(b.site, b.block.shape) for b in program.buffers if tensor_name(program, b) == "w"] == [
        (0, (6, 6)),
        (1, (6, 6)),
    ]
    assert all(b.role == "weight" for b in program.buffers if tensor_name(program, b) == "w")
    program = compiled(graph_of(nodes, ["y"], weights=["w"]), 2, h=(2, 1, 1), y=(1, 1, 2))
    held = {b.site: b.block for b in program.buffers if tensor_name(program, b) == "w"}
    assert held == {0: TensorType.whole((6, 6)), 1: TensorType.whole((6, 6))}  # y's halves are parts of these


def test_idle_sites_hold_nothing() -> None:
    program = compiled(graph_of([("h", ROWS, ("x",)), ("y", ROWS, ("h",))], ["y"]), 8, h=(7, 1), y=(1, 6))
    assert program.memory[7] == 0
    assert len(program.operations[1].functions) == 6


def test_scalars_travel_too() -> None:
    total, spread = formula("ij -> :sum", i=7, j=6), Formula(("", "ij"), (("ij", "sum"),), (("i", 7), ("j", 6)))
    graph = graph_of([("s", total, ("x",)), ("y", spread, ("s", "x"))], ["s", "y"])
    program = compiled(graph, 4, s=(2, 2), y=(2, 2))
    assert kinds(program)["aggregate"] >= 4


def test_several_outputs_aggregate_each_in_its_way() -> None:
    both = formula("ij -> i:max j:min ij:sum", i=7, j=6)
    graph = graph_of([("m n o", both, ("x",)), ("y", formula("i j -> ij:sum", i=7, j=6), ("m", "n"))], ["o", "y", "n"])
    program = compiled(graph, 4, m=(2, 2), y=(4, 1))
    assert {task.aggregation for task in program.tasks if isinstance(task, AggregateTask)} == {"max", "min"}


def test_halos_overlap() -> None:
    graph = graph_of([("h", formula("i -> i:sum", i=9), ("x",)), ("y", Window(9), ("h",))], ["y"])
    program = compiled(graph, 3, h=(3,), y=(3,))
    assert kinds(program) == {"kernel": 6, "transfer": 2, "copy": 2}  # [0:3) is in place; [2:6) and [5:9) lack one each


def test_what_many_tasks_have_filled_is_waited_for_through_one_fence() -> None:
    diagonal, names = formula("ij -> ij:sum", i=6, j=2), ("y", "z", "u")
    graph = graph_of([("h", diagonal, ("x",)), *((name, diagonal, ("h",)) for name in names)], names)
    program = compiled(graph, 3, late_switch(3), h=(3, 1), y=(1, 1), z=(1, 1), u=(1, 1))
    assert kinds(program) == {"kernel": 6, "transfer": 2, "copy": 1, "fence": 1}
    fence = next(number for number, task in enumerate(program.tasks) if isinstance(task, FenceTask))
    later = [task for task in program.tasks if task.serves in ("z", "u") and isinstance(task, KernelTask)]
    assert [task.after for task in later] == [(fence,), (fence,)]


def test_transfers_wait_for_what_the_program_says() -> None:
    graph = graph_of([("h", ROWS, ("x",)), ("y", ROWS, ("h",))], ["y"])

    class InTurn(NaiveScheduler):
        """Every transfer waits for the one before it."""

        def schedule(
            self, node: str, inflows: Sequence[Inflow], functions: int, busy_ms: Sequence[float] | None = None
        ) -> ScheduledExchange:
            scheduled = super().schedule(node, inflows, functions, busy_ms)
            if scheduled.preamble is None:
                return scheduled
            actions: list[Action] = []
            for action in program_of(scheduled.exchange).actions:
                waits = tuple(replace(before, after=()) for before in actions[-1:])
                actions.append(replace(action, after=waits))
            program = replace(scheduled.preamble.program, actions=tuple(actions))
            return replace(scheduled, exchange=Exchange(print_program(program)), firings=order_firings(program))

    program = build(plan_of(graph, 3, {"h": (3, 1), "y": (1, 3)}), switch(3), InTurn(switch(3), 3))
    verify(program)
    moves = [n for n, task in enumerate(program.tasks) if isinstance(task, TransferTask) and task.serves == "y"]
    assert len(moves) == 6
    assert all(before in program.tasks[move].after for before, move in itertools.pairwise(moves))


def test_sites_that_cannot_talk_are_named() -> None:
    graph = graph_of([("h", ROWS, ("x",)), ("y", ROWS, ("h",))], ["y"])
    machine = replace(switch(3), name="island", resources=(Resource("link", 1.0, ((0, 1), (1, 0))),))
    with pytest.raises(
        MachineError, match=r"y needs data of site [012] at site [012], and site [012] cannot reach site"
    ) as caught:
        build(plan_of(graph, 3, {"h": (3, 1), "y": (1, 3)}), machine)
    assert caught.value.hint
    compiled(graph, 3, machine, h=(3, 1), y=(3, 1))  # nothing moves, so nothing is missed


def test_a_missing_link_is_relayed() -> None:
    graph = graph_of([("h", ROWS, ("x",)), ("y", ROWS, ("h",))], ["y"])
    links = tuple(Resource(f"{a}{b}", 1.0, ((a, b), (b, a))) for a, b in ((0, 1), (1, 2), (2, 3)))
    machine = replace(switch(4), resources=links)
    program = compiled(graph, 4, machine, h=(4, 1), y=(1, 4))
    buffers = program.buffers
    sent = [task for task in program.tasks if isinstance(task, TransferTask)]
    assert {abs(task.site - buffers[task.write.buffer].site) for task in sent} == {1}
    assert len(sent) == 20  # 0 sends 1 + 2 + 3 hops for others, and so on, and each hop is one transfer


def test_too_few_sites_are_an_error() -> None:
    graph = graph_of([("y", ROWS, ("x",))], ["y"])
    with pytest.raises(MachineError, match="the plan is for 4 sites, and machine switch has 2"):
        build(plan_of(graph, 4, {"y": (4, 1)}), switch(2))


def test_an_exchange_that_is_planned_once_serves_all_layers() -> None:
    product = formula("ij jk -> ik:sum", i=6, j=6, k=6)
    nodes = [(f"h{n}", product, ("x" if n == 0 else f"h{n - 1}", f"w{n}")) for n in range(5)]
    program = compiled(graph_of(nodes, ["h4"]), 4, **{f"h{n}": (1, 4, 1) for n in range(5)})
    programs = [operation.exchange.program for operation in program.operations if operation.exchange is not None]
    assert len(programs) == 4
    assert len({id(p) for p in programs}) == 1


def test_an_aggregate_at_a_relay_serves_later_consumers() -> None:
    product, rows = formula("ij jk -> ik:sum", i=7, j=6, k=5), formula("ik -> ik:sum", i=7, k=5)
    graph = graph_of([("c", product, ("a", "b")), ("y", rows, ("c",)), ("z", rows, ("c",))], ["y", "z"])

    places = iter([(0, 1, 2), (0,), (0,), (2,), (2,)])  # of c, y, the output y, z, the output z

    class Relayed:
        """All parts meet at site 2, and the sum goes on from there."""

        def schedule(
            self, node: str, inflows: Sequence[Inflow], functions: int, busy_ms: Sequence[float] | None = None
        ) -> ScheduledExchange:
            sites = next(places)
            needed = build_preamble(inflows, sites, 3)
            if needed is None:
                return ScheduledExchange(sites)
            (aggregate,) = {requirement.aggregate for requirement in needed.program.requirements}
            parts = [h for h in needed.program.holdings if len(h.aggregate) == 1]
            actions = [Action(h.aggregate, s, (2,)) for h in parts for s in h.sites if s != 2]
            program = replace(needed.program, actions=(*actions, Action(aggregate, 2, (0,))))
            return ScheduledExchange(sites, needed, Exchange(print_program(program)), order_firings(program))

    program = build(plan_of(graph, 3, {"c": (1, 3, 1), "y": (1, 1), "z": (1, 1)}), switch(3), Relayed())
    verify(program)
    assert kinds(program) == {"kernel": 5, "transfer": 3, "aggregate": 1}
    assert program.operations[2].exchange is None
    arrays = whole_arrays(graph)
    np.testing.assert_array_equal(interpret(program, arrays, 0)["z"], arrays["z"])
