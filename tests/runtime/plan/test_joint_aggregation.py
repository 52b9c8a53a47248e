"""Lies about what aggregates together: refused by the checks on a plan, or by the proof of what its tasks compute."""

from __future__ import annotations

import functools
from typing import Any

import msgspec
import pytest

from einc.core.tensor import DType, TensorDesc
from einc.graph.builder import GraphBuilder
from einc.logical.candidates import enumerate_candidates
from einc.logical.optimize import optimize
from einc.logical.plan import Choice, LogicalPlan
from einc.machines.load import load_machine
from einc.ops import registry
from einc.physical.build import build
from einc.physical.records import emit
from einc_runtime.errors import PlanFault
from einc_runtime.plan.codec import decode, encode
from einc_runtime.plan.meaning.operations import require_blocks, require_labels
from einc_runtime.plan.proof import prove
from einc_runtime.plan.schema import AggregateTask, Block, Bundle, JointAggregation, Region
from einc_runtime.plan.validation import validate


@functools.cache
def plan() -> Bundle:
    """The three largest of [rows, columns], cut in two along both, on four sites; both results are saved."""
    builder = GraphBuilder("largest")
    builder.input("x", TensorDesc(("rows", "columns"), (4, 10), DType.F32))
    operator = registry.call("topk", [builder.desc("x"), 3, "columns"], {})
    for name in builder.apply(operator, ["x"], ["first", "second"]):
        builder.save(name)
    graph = builder.build()
    halves = next(c for c in enumerate_candidates(operator, 4) if [len(parts) for parts in c.intervals] == [2, 2])
    logical = LogicalPlan(graph, 4, "by hand", (Choice("first", halves, 0),), False, 0)
    machine = load_machine("host", 4)
    return emit(build(logical, machine), machine, (0, 1, 2, 3), "naive")


def aggregation(bundle: Bundle) -> tuple[int, AggregateTask]:
    return next((i, task) for i, task in enumerate(bundle.tasks) if isinstance(task, AggregateTask))


def with_operation(bundle: Bundle, **changes: object) -> Bundle:
    changed = msgspec.structs.replace(bundle.operations[0], **changes)
    return msgspec.structs.replace(bundle, operations=(changed,))


def with_task(bundle: Bundle, **changes: object) -> Bundle:
    at, task = aggregation(bundle)
    changed = msgspec.structs.replace(task, **changes)
    return msgspec.structs.replace(bundle, tasks=(*bundle.tasks[:at], changed, *bundle.tasks[at + 1 :]))


def test_the_plans_themselves_are_fine() -> None:
    bundle = plan()
    assert decode(encode(bundle)) == bundle
    prove(bundle)
    assert sum(isinstance(task, AggregateTask) for task in bundle.tasks) == 2
    _, task = aggregation(bundle)
    assert (task.aggregation, len(task.reads), len(task.writes)) == ("topk", 4, 2)
    (merge,) = bundle.operations[0].joint_aggregations
    assert (merge.outputs, merge.uncut) == ((0, 1), (1,))
    second = bundle.outputs[1]
    assert second.exchange is None  # it came along with the first


LISTS = ((0, 1), (0, 1))
CHANGES: dict[str, dict[str, Any]] = {
    "none": {"joint_aggregations": ()},
    "of one": {"joint_aggregations": (JointAggregation((0,), ((0, 1),), (1,)),)},
    "the same again": {"joint_aggregations": (JointAggregation((0, 1), LISTS, (1,)),) * 2},
    "unknown output": {"joint_aggregations": (JointAggregation((0, 2), LISTS, (1,)),)},
    "transposed": {"joint_aggregations": (JointAggregation((0, 1), ((0, 1), (1, 0)), (1,)),)},
    "what is cut is whole": {"joint_aggregations": (JointAggregation((0, 1), LISTS, (0,)),)},
    "sums": {"aggregations": ("sum", "sum")},
    "two names": {"aggregations": ("topk", "logsumexp")},
}


@pytest.mark.parametrize("fault", CHANGES)
def test_an_operation_aggregates_together_what_its_family_does(fault: str) -> None:
    (field,) = CHANGES[fault]
    with pytest.raises(PlanFault, match="where topk with its attributes has") as caught:
        validate(with_operation(plan(), **CHANGES[fault]))
    assert caught.value.where == f"operations[0].{field}"


def test_blocks_of_one_function_belong_together() -> None:
    """The values of two functions change places, so that both outputs are still tiled."""
    functions = plan().operations[0].functions
    crossed = [
        msgspec.structs.replace(f, outputs=(f.outputs[0], functions[k].outputs[1]))
        for f, k in zip(functions, (2, 3, 0, 1), strict=True)
    ]
    with pytest.raises(PlanFault, match="where its intervals and topk give"):
        require_blocks(require_labels(with_operation(plan(), functions=tuple(crossed))))


def test_lists_are_not_cut() -> None:
    """Each half of the lists' places from one half of the columns: the outputs are tiled, the lists are not whole."""
    functions = plan().operations[0].functions
    halves = []
    for n, function in enumerate(functions):
        rows = (function.outputs[0].lower[0], function.outputs[0].upper[0])
        part = Block((rows[0], (0, 2)[n % 2]), (rows[1], (2, 3)[n % 2]))
        halves.append(msgspec.structs.replace(function, outputs=(part, part)))
    with pytest.raises(PlanFault, match="where its intervals and topk give"):
        require_blocks(require_labels(with_operation(plan(), functions=tuple(halves))))


def narrow(region: Region) -> Region:
    """Without the last position of the last dimension."""
    upper = (*region.block.upper[:-1], region.block.upper[-1] - 1)
    return Region(region.buffer, Block(region.block.lower, upper))


TASKS = {
    "members change places": (lambda t: {"writes": t.writes[::-1], "reads": t.reads[::-1]}, "aggregate together"),
    "one member alone": (lambda t: {"writes": t.writes[:1], "reads": t.reads[::2]}, "aggregate together"),
    "a member twice": (lambda t: {"writes": t.writes[:1] * 2}, "aggregate together"),
    "nothing": (lambda t: {"writes": ()}, "at least one"),
    "one copy": (lambda t: {"reads": t.reads[:2]}, "not two or more copies"),
    "half a copy more": (lambda t: {"reads": t.reads + t.reads[:1]}, "not two or more copies"),
    "copies read crosswise": (lambda t: {"reads": t.reads[:1] + t.reads[2:] + t.reads[1:2]}, "it reads tensor"),
    "another operation": (lambda t: {"aggregation": "max"}, "max, where the tensor's is topk"),
    "parts of lists": (
        lambda t: {"reads": tuple(map(narrow, t.reads)), "writes": tuple(map(narrow, t.writes))},
        "must be whole",
    ),
    "less of one member": (
        lambda t: {"reads": (t.reads[0], narrow(t.reads[1])) * 2, "writes": (t.writes[0], narrow(t.writes[1]))},
        "[0:2, 0:2], where [0:2, 0:3] belongs to [0:2, 0:3]",
    ),
}


@pytest.mark.parametrize("fault", TASKS)
def test_a_lie_about_an_aggregation_is_named(fault: str) -> None:
    change, message = TASKS[fault]
    bundle = plan()
    with pytest.raises(PlanFault) as caught:
        validate(with_task(bundle, **change(aggregation(bundle)[1])))
    assert message in caught.value.render()


def test_members_of_different_copies_are_no_tuple() -> None:
    """Each member still combines all functions, but values and indices are paired wrongly."""
    bundle = plan()
    a, b, c, d = aggregation(bundle)[1].reads
    with pytest.raises(PlanFault, match=r"of member 1 combines functions .*and what belongs to it"):
        prove(with_task(bundle, reads=(a, d, c, b)))


def test_a_copy_of_a_tuple_counts_once() -> None:
    bundle = plan()
    reads = aggregation(bundle)[1].reads
    with pytest.raises(PlanFault, match="twice"):
        prove(with_task(bundle, reads=(*reads, *reads[:2])))
    with pytest.raises(PlanFault, match="twice"):
        prove(with_task(bundle, reads=reads[:2] * 2))


def test_lists_of_pieces_that_differ_are_no_tuple() -> None:
    """One place of the lists has been aggregated further than the others: mixing them would count a copy twice."""
    from einc_runtime.plan.boxes import StepBudget
    from einc_runtime.plan.joint_aggregation import aggregation_groups
    from einc_runtime.plan.proof import _require_tuple

    bundle = plan()
    group = aggregation_groups(bundle)[bundle.operations[0].outputs[0]]
    first, second = Block((0, 0), (2, 1)), Block((0, 1), (2, 3))
    even, uneven = [(first, 3), (second, 3)], [(first, 3), (second, 1)]
    budget = StepBudget(1000)
    _require_tuple([even, even], group, budget, "here")
    for copy in ([uneven, uneven], [even, uneven], [uneven, even]):
        with pytest.raises(PlanFault):
            _require_tuple(copy, group, budget, "here")


@pytest.mark.parametrize("sites", [2, 3, 5, 8])
def test_any_one_task_left_out_is_noticed(sites: int) -> None:
    builder = GraphBuilder("largest")
    builder.input("x", TensorDesc(("rows", "columns"), (3, 16), DType.F32))
    operator = registry.call("topk", [builder.desc("x"), 2, "columns"], {})
    values, places = builder.apply(operator, ["x"], ["v", "i"])
    builder.save(builder.apply(registry.call("exp", [builder.desc(values)], {}), [values], ["e"])[0])
    builder.save(places)
    machine = load_machine("host", sites)
    bundle = emit(build(optimize(builder.build(), sites, "random", 1), machine), machine, tuple(range(sites)), "naive")
    prove(bundle)
    for at in range(len(bundle.tasks)):
        left = [task for i, task in enumerate(bundle.tasks) if i != at]
        shifted = tuple(msgspec.structs.replace(t, after=tuple(b - (b > at) for b in t.after if b != at)) for t in left)
        with pytest.raises(PlanFault):
            prove(msgspec.structs.replace(bundle, tasks=shifted))


def test_pieces_of_two_copies_are_combined_where_they_meet() -> None:
    from einc_runtime.plan.proof import _combine

    rows = [Block((0, 0), (1, 3)), Block((1, 0), (2, 3))]
    complete = Block((0, 0), (2, 3))
    assert _combine([(row, 1) for row in rows], [(row, 2) for row in rows], "here") == [(row, 3) for row in rows]
    assert _combine([(complete, 1)], [(row, 2) for row in rows], "here") == [(row, 3) for row in rows]
