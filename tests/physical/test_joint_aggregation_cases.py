"""What moves of tuples and what does not, what they cost, and operators and programs whose tuples cannot be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from einc.core.tensor import TensorType
from einc.errors import InternalError
from einc.logical.candidates import enumerate_candidates
from einc.ops import registry
from einc.ops.base import Operator
from einc.physical.build import build
from einc.physical.program import DeviceProgram
from einc.physical.verify import verify
from einc_runtime.plan.regions import region_bytes
from einc_runtime.plan.schema import AggregateTask, KernelTask, Region, TransferTask
from tests.support.device_programs import program_of, tensor_name
from tests.support.joint_aggregation_toys import EXTENTS, SIGNATURES, Tuples
from tests.support.physical_toys import graph_of, late_switch, plan_of


def transpose(kind: str, j: int) -> Operator:
    tensor = Tuples(kind).outputs[j]
    return registry.call("transpose", [tensor, *reversed(tensor.dims)], {})


def program(
    kind: str, nodes: Sequence[tuple[str, Operator, Sequence[str]]], saved: Sequence[str], counts: Any, sites: int
) -> DeviceProgram:
    graph = graph_of([("p q", Tuples(kind), ("x", "y")), *nodes], saved)
    return build(plan_of(graph, sites, counts), late_switch(sites))


def moved(program: DeviceProgram, node: str) -> dict[str, int]:
    """Bytes that transfers move for a node, by tensor."""
    counts: dict[str, int] = {}
    for task in program.tasks:
        if isinstance(task, TransferTask) and task.serves == node:
            name = tensor_name(program, program.buffers[task.read.buffer])
            counts[name] = counts.get(name, 0) + region_bytes(program, task.read)
    return counts


def tuples(program: DeviceProgram, node: str) -> list[AggregateTask]:
    return [task for task in program.tasks if isinstance(task, AggregateTask) and task.serves == node]


def test_one_copy_moves_only_what_is_read() -> None:
    """Cut along i and a alone, nothing is combined: a reader of the companion moves nothing else."""
    reader = transpose("average", 0)  # p is the companion here: lse [a, i]
    built = program("average", [("r", reader, ("p",))], ["r"], {"p": (1, 4, 1), "r": (4, 1)}, 4)
    assert moved(built, "r") == {}
    built = program("average", [("r", reader, ("p",))], ["r"], {"p": (1, 4, 1), "r": (1, 3)}, 4)
    assert set(moved(built, "r")) == {"p"}
    assert not tuples(built, "r")


def test_partial_copies_carry_all_members_and_the_rest_does_not() -> None:
    """Of two readers of different members, the first brings tuples, the second only what it reads."""
    readers = [("r", transpose("top", 0), ("p",)), ("s", transpose("top", 1), ("q",))]
    counts = {"p": (1, 2, 1), "r": (1, 1, 1), "s": (1, 1, 1)}
    built = program("top", readers, ["r", "s"], counts, 2)
    size = EXTENTS["i"] * EXTENTS["a"] * EXTENTS["k"] * 8
    assert moved(built, "r") == {"p": size, "q": size}
    assert [len(task.reads) for task in tuples(built, "r")] == [4]
    assert moved(built, "s") == {}
    exchange = built.operations[1].exchange
    assert exchange is not None
    assert {holding.size for holding in program_of(exchange).holdings} == {2 * size}
    assert built.operations[2].exchange is None
    spread = program("top", readers, ["r", "s"], counts | {"s": (1, 2, 1)}, 2)
    assert set(moved(spread, "s")) <= {"q"}


def test_both_members_come_in_one_exchange() -> None:
    both = registry.call("add", list(Tuples("top").outputs), {})
    built = program("top", [("r", both, ("p", "q"))], ["r"], {"p": (1, 4, 1), "r": (1, 1, 1)}, 4)
    (combined,) = tuples(built, "r")
    assert (len(combined.reads), len(combined.writes)) == (8, 2)
    kernel = next(task for task in built.tasks if isinstance(task, KernelTask) and task.serves == "r")
    assert kernel.reads == combined.writes  # both land where the kernel reads them
    exchange = built.operations[1].exchange
    assert exchange is not None
    assert "OUT: A1+X1+Y1+Z1 @ S1" in exchange.program


def test_lists_are_combined_whole_and_copied_out() -> None:
    """A reader cut along the lists: every site gets whole ones and takes its part."""
    built = program("top", [("r", transpose("top", 0), ("p",))], ["r"], {"p": (1, 3, 1), "r": (3, 1, 1)}, 3)
    for task in tuples(built, "r"):
        assert all(region.block.upper[2] - region.block.lower[2] == 3 for region in task.writes)
    reads = [task.reads[0].block for task in built.tasks if isinstance(task, KernelTask) and task.serves == "r"]
    assert [(block.lower[2], block.upper[2]) for block in reads] == [(0, 1), (1, 2), (2, 3)]


def test_a_reader_may_cut_what_the_companion_lacks() -> None:
    """Every site combines its part of v with weights of its own; nobody needs all of it."""
    built = program("average", [("r", transpose("average", 1), ("q",))], ["r"], {"p": (1, 1, 4), "r": (4, 1, 1)}, 4)
    combined = tuples(built, "r")
    assert {task.site for task in combined} == {0, 1, 2, 3}
    for task in combined:
        average, weight = task.writes
        assert average.block.shape == (5, 3, 1)
        assert weight.block.shape == (3, 5)


@pytest.mark.parametrize("order", [("p", "q"), ("q", "p")])
def test_saved_members_come_home_together(order: tuple[str, str]) -> None:
    built = program("top", [], order, {"p": (1, 4, 1)}, 4)
    assert len([task for task in built.tasks if isinstance(task, AggregateTask)]) == 1
    first, second = built.outputs
    assert first.exchange is not None
    assert second.exchange is None
    sites = {built.buffers[region.buffer].site for output in built.outputs for region in output.regions}
    assert len(sites) == 1


@pytest.mark.parametrize("kind", SIGNATURES)
def test_every_member_counts_in_the_cost(kind: str) -> None:
    """What is aggregated is all partial elements beyond the size of the tensors, of all members."""
    operator = Tuples(kind)
    searched = [index.name for index in operator.indices].index("j")
    for candidate in enumerate_candidates(operator, 4):
        copies = len(candidate.intervals[searched])
        assert candidate.aggregation == (copies - 1) * sum(desc.type.size for desc in operator.outputs)


PROGRAM = program("top", [("r", transpose("top", 0), ("p",))], ["r"], {"p": (1, 3, 1), "r": (1, 1, 1)}, 3)
AT, TASK = next((i, task) for i, task in enumerate(PROGRAM.tasks) if isinstance(task, AggregateTask))


def narrow(region: Region) -> Region:
    block = region.block
    return Region(region.buffer, TensorType(block.lower, (*block.upper[:-1], block.upper[-1] - 1)))


MUTATIONS: dict[str, dict[str, Any]] = {
    "one member": {"reads": TASK.reads[::2], "writes": TASK.writes[:1]},
    "the other order": {"reads": TASK.reads[::-1], "writes": TASK.writes[::-1]},
    "half a copy": {"reads": TASK.reads[:-1]},
    "one copy": {"reads": TASK.reads[:2]},
    "crosswise": {"reads": (*TASK.reads[1::-1], *TASK.reads[2:])},
    "another operation": {"aggregation": "logsumexp"},
    "no operation": {"aggregation": None},
    "parts of lists": {"reads": tuple(map(narrow, TASK.reads)), "writes": tuple(map(narrow, TASK.writes))},
    "less of one": {
        "reads": tuple(narrow(region) if n % 2 else region for n, region in enumerate(TASK.reads)),
        "writes": (TASK.writes[0], narrow(TASK.writes[1])),
    },
}


@pytest.mark.parametrize("fault", MUTATIONS)
def test_aggregations_that_cannot_be_are_refused(fault: str) -> None:
    verify(PROGRAM)
    tasks = (*PROGRAM.tasks[:AT], msgspec.structs.replace(TASK, **MUTATIONS[fault]), *PROGRAM.tasks[AT + 1 :])
    with pytest.raises(InternalError, match=rf"tasks\[{AT}\]"):
        verify(replace(PROGRAM, tasks=tasks))
