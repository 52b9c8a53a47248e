"""Preambles: the paper's example to the letter, names, and what later consumers start from."""

from __future__ import annotations

import re

import pytest

from einc.core.spec import Overlay
from einc.core.tensor import DType, TensorDesc, TensorType
from einc.ops.registry import call
from einc.physical.atoms import Grid
from einc.physical.build import build
from einc.physical.preamble import build_preamble
from einc.physical.program import DeviceProgram
from einc.physical.residency import CompleteBlock, PartialCopy, Residency
from einc_runtime.plan.schema import Region
from tests.support.device_programs import program_of
from tests.support.physical_toys import (
    Formula,
    Window,
    aggregates_alone,
    computed,
    graph_of,
    inflow_of,
    plan_of,
    switch,
)

PAPER = """\
GPUS: 0, 1, 2, 3
PARTITIONS: S1 {0} S2 {1} S3 {2} S4 {3}
IN:  X1 @ 0; X2 @ 0; Y1 @ 1; Y2 @ 1; X3 @ 2; X4 @ 2; Y3 @ 3; Y4 @ 3
OUT: X1+Y1 @ S1; X2+Y2 @ S2; X3+Y3 @ S3; X4+Y4 @ S4
"""


def declarations(program: DeviceProgram, node: int) -> str:
    """The preamble of a node's exchange without sizes, one declaration a line."""
    exchange = program.operations[node].exchange
    assert exchange is not None
    text = re.sub(r" \(size: [^)]*\)", "", exchange.program)
    return re.sub(r";\n *", "; ", text).split("\n\n")[0] + "\n"


def test_the_example_of_section_5_3() -> None:
    a, b = TensorDesc(("i", "j"), (256, 512), DType.F32), TensorDesc(("j", "k"), (512, 256), DType.F32)
    matmul = call("matmul", (a, b), {})
    softmax = call("softmax", matmul.outputs, {})
    graph = graph_of([("c", matmul, ("a", "b")), ("s", softmax, ("c",))], ["s"])
    counts = {"c": (2, 2, 1), "s": tuple(4 if index.extent == 256 else 1 for index in softmax.indices)}
    program = build(plan_of(graph, 4, counts), switch(4))
    assert declarations(program, 1) == PAPER
    exchange = program.operations[1].exchange
    assert exchange is not None
    assert {holding.size for holding in program_of(exchange).holdings} == {64 * 256 * 4}


def residency(copies: int, sites: list[int], name: str = "h") -> Residency:
    """A tensor of 8 elements in two halves, with `copies` copies each."""
    halves = [TensorType((0,), (4,)), TensorType((4,), (8,))]
    inflows = [
        PartialCopy(f, site, Region(f, halves[f // copies]), f)
        for f, site in zip(range(2 * copies), sites, strict=True)
    ]
    return Residency.of(0, computed(name, (8,), DType.F32), aggregates_alone("sum", 1), inflows)


def block(lower: int, upper: int) -> TensorType:
    return TensorType((lower,), (upper,))


def test_later_consumers_start_from_aggregates() -> None:
    tensor = residency(2, [0, 1, 2, 3])
    tensor.add(CompleteBlock(3, Region(9, block(2, 6)), (5,)))
    inflow = inflow_of(tensor, [((block(0, 4)),), ((block(4, 8)),)])
    preamble = build_preamble([inflow], (0, 3), 4)
    assert preamble is not None
    program = preamble.program
    text = [("+".join(holding.aggregate), holding.sites, holding.size) for holding in program.holdings]
    assert text == [
        ("X1", (0,), 8), ("X2", (0,), 8), ("Y1", (1,), 8), ("Y2", (1,), 8),
        ("X3", (2,), 8), ("Y3", (3,), 8), ("X2+Y2", (3,), 8),
    ]  # fmt: skip
    out = [("+".join(requirement.aggregate), requirement.targets) for requirement in program.requirements]
    assert out == [("X1+Y1", ("S1",)), ("X2+Y2", ("S1",)), ("X3+Y3", ("S2",))]  # [4:6) is whole at site 3: left out
    assert inflow.grid.block(preamble.atoms["Y3"].cell) == block(6, 8)


def test_nothing_to_do_is_no_program() -> None:
    tensor = residency(1, [2, 0])
    assert build_preamble([inflow_of(tensor, [(block(0, 4),), (block(4, 8),)])], (2, 0), 3) is None
    assert build_preamble([], (0, 1, 2), 3) is None


def test_single_copies_are_listed_where_they_are_whole() -> None:
    tensor = residency(1, [0, 1])
    tensor.add(CompleteBlock(2, Region(9, block(0, 4)), (5,)))
    preamble = build_preamble([inflow_of(tensor, [(block(0, 8),)])], (1,), 3)
    assert preamble is not None
    assert [(h.aggregate, h.sites) for h in preamble.program.holdings] == [(("X1",), (0, 2))]
    assert [r.targets for r in preamble.program.requirements] == [("S1",)]


def test_several_tensors_are_told_apart_by_short_names() -> None:
    tensors = [residency(2, [0, 1, 2, 3], name) for name in ("l.0.act", "l.1.act", "x[2]", "7")]
    preamble = build_preamble([inflow_of(tensor, [(block(0, 8),)]) for tensor in tensors], (0,), 4)
    assert preamble is not None
    names = [requirement.aggregate for requirement in preamble.program.requirements]
    assert names[0] == ("act_X1", "act_Y1")
    assert names[2] == ("act_2_X1", "act_2_Y1")
    assert names[4:] == [("x_2__X1", "x_2__Y1"), ("x_2__X2", "x_2__Y2"), ("_7_X1", "_7_Y1"), ("_7_X2", "_7_Y2")]
    assert all(re.fullmatch("[A-Za-z_][A-Za-z0-9_.]*", name) for aggregate in names for name in aggregate)


def test_many_copies_have_distinct_names_none_of_them_a_partition() -> None:
    tensor = residency(700, [f % 1400 for f in range(1400)])
    preamble = build_preamble([inflow_of(tensor, [(block(0, 8),)])], (0,), 1400)
    assert preamble is not None
    aggregate = preamble.program.requirements[0].aggregate
    assert len(set(aggregate)) == 700
    assert {"X1", "Y1", "W1", "XX1", "XY1", "YX1", "XXX1"} <= set(aggregate)
    assert not set(aggregate) & {partition.name for partition in preamble.program.partitions}


@pytest.mark.parametrize(("shape", "cuts"), [((), []), ((5,), [2]), ((4, 6, 3), [1, 2, 0])])
def test_cells_of_a_grid_are_its_blocks_in_order(shape: tuple[int, ...], cuts: list[int]) -> None:
    full = TensorType.whole(shape)
    parts = [TensorType(tuple(cuts), shape)] if cuts else [full]
    grid = Grid(Overlay(full, parts).cuts)
    cells = [grid.block(cell) for cell in range(len(grid))]
    assert cells == sorted(cells)
    assert [cell.size for cell in cells] == grid.volumes()
    assert sum(grid.volumes()) == full.size
    for part in (full, *parts):
        assert [grid.block(cell) for cell in grid.cells(part)] == [cell for cell in cells if part.contains(cell)]


def test_shared_halos_are_atoms_of_both_consumers() -> None:
    double = Formula(("i",), (("i", "sum"),), (("i", 9),))
    graph = graph_of([("h", double, ("x",)), ("y", Window(9), ("h",))], ["y"])
    program = build(plan_of(graph, 2, {"h": (2,), "y": (2,)}), switch(2))
    # h is cut at 4, the window needs [0:5) and [4:9): only element 4 moves
    exchange = program.operations[1].exchange
    assert exchange is not None
    assert [holding.size for holding in program_of(exchange).holdings] == [8]
    assert [requirement.targets for requirement in program_of(exchange).requirements] == [("S1", "S2")]
