"""Single lies about plans, each of which the proof finds: races, double counting, missing parts, lost bytes."""

import random

import msgspec
import pytest

from einc_runtime.errors import PlanFault
from einc_runtime.plan import validation
from einc_runtime.plan.proof import prove, prove_data
from einc_runtime.plan.schema import (
    AggregateTask,
    CopyTask,
    Index,
    KernelTask,
    Region,
    TransferTask,
)
from tests.support.changed_plans import appended, fault_of, gathered, with_buffer, with_task
from tests.support.handmade_plans import Planner, box, random_plan, two_site_plan

PLAN = two_site_plan()


# Single lies about the smallest plan: see `two_site_plan`. Task 3 adds up a[0:2] at site 0 for the kernel of task 4.


def test_a_partial_value_is_no_input():
    """Site 0 feeds its own partial product to the relu."""
    message = fault_of(with_task(PLAN, 4, reads=(Region(5, box((0, 2), (0, 2))),)))
    assert message.startswith("tasks[4] (operation 'y', function 0, site 0).reads[0]: [0:2, 0:2]")
    assert "combines functions {1} of its producer, and lacks {0}" in message


def replicated_plan():
    """Two sites compute the same halves of y (functions 0, 1 and 0, 1 again); z reads them, and a third site too."""
    planner = Planner(5, random.Random(3))
    x = planner.tensor("x", (4, 2), "input", ("i", "j"))
    y = planner.tensor("y", (4, 2), "value", ("i", "j"))
    z = planner.tensor("z", (4, 2), "value", ("i", "j"))
    relu = {"program": "t0 = relu x0", "indices": "i j -> i j"}
    indices = {"i": 4, "j": 2}
    planner.operation("y", "map", relu, indices, {"i": 2, "j": 1}, [x], ["ij"], y, "ij", 2)
    planner.operation("z", "map", relu, indices, {"i": 1, "j": 1}, [y], ["ij"], z, "ij", 5)
    planner.save(z)
    return planner.bundle()


def test_replicas_are_one_function_and_no_partial_copies():
    plan = replicated_plan()
    prove(plan)
    operation = plan.operations[0]
    assert [function.outputs for function in operation.functions[:2]] * 2 == [f.outputs for f in operation.functions]
    # The same tasks, where equal blocks are partial copies: each reader lacks the other half of the sum.
    single = msgspec.structs.replace(operation, indices=(*operation.indices, Index("r", 2, None, ((0, 1), (1, 2)))))
    functions = tuple(operation.functions[f] for f in (0, 2, 1, 3))
    summed = msgspec.structs.replace(single, functions=functions, replicas=1)
    number = (0, 2, 1, 3)
    tasks = tuple(
        msgspec.structs.replace(task, function=number.index(task.function))
        if isinstance(task, KernelTask) and task.operation == 0
        else task
        for task in plan.tasks
    )
    lie = msgspec.structs.replace(plan, operations=(summed, *plan.operations[1:]), tasks=tasks)
    with pytest.raises(PlanFault, match=r"combines functions \{[0-3]\} of its producer, and lacks \{[0-3]\}"):
        prove_data(lie)
    assert "operations[0].indices" in fault_of(lie)


def test_replicas_are_not_added_up():
    """The reader sums the halves that it has with those of the other replica, as if both were partial."""
    plan = replicated_plan()
    position, task = next((p, t) for p, t in enumerate(plan.tasks) if isinstance(t, CopyTask) and t.serves == "z")
    added = AggregateTask(task.site, "z", task.after, "sum", (task.reads[0],) * 2, (task.writes[0],))
    tasks = (*plan.tasks[:position], added, *plan.tasks[position + 1 :])
    assert "counts functions" in fault_of(msgspec.structs.replace(plan, tasks=tasks))


def test_replicas_read_the_same_data():
    """Either they say that they read other blocks, or they read what is not complete."""
    plan = replicated_plan()
    first, second = plan.operations
    for field, part in (("inputs", "differs from it"), ("outputs", "differs from it")):
        changed = msgspec.structs.replace(first.functions[2], **{field: getattr(first.functions[1], field)})
        functions = (*first.functions[:2], changed, first.functions[3])
        lie = msgspec.structs.replace(plan, operations=(msgspec.structs.replace(first, functions=functions), second))
        assert part in fault_of(lie)
    idle = msgspec.structs.replace(first.functions[3], flops=first.functions[3].flops + 1)
    lie = msgspec.structs.replace(first, functions=(*first.functions[:3], idle))
    assert "differs from it" in fault_of(msgspec.structs.replace(plan, operations=(lie, second)))
    missing = [p for p, t in enumerate(plan.tasks) if t.serves == "z" and isinstance(t, TransferTask)]
    for position in missing:
        task = plan.tasks[position]
        half = msgspec.structs.replace(task.read.block, upper=(task.read.block.upper[0], 1))
        lie = with_task(plan, position, read=Region(task.read.buffer, half), write=Region(task.write.buffer, half))
        assert "elements" in fault_of(lie)


def test_only_whole_blocks_are_replicated(monkeypatch):
    monkeypatch.setattr(validation, "require_labels", lambda bundle: [])  # no family has such an index
    plan = replicated_plan()
    operation = plan.operations[1]
    functions = operation.functions[:4]
    index = Index("r", 2, None, ((0, 1), (1, 2)))
    lie = msgspec.structs.replace(operation, indices=(*operation.indices, index), functions=functions, replicas=2)
    message = fault_of(msgspec.structs.replace(plan, operations=(plan.operations[0], lie)))
    assert message.startswith("operations[1].functions, output 0")
    assert "twice" in message


def test_a_part_that_counts_twice_is_found():
    lie = with_task(PLAN, 3, reads=(Region(5, box((0, 2), (0, 2))),) * 2)
    assert "tasks[3] (for 'y', site 0).reads[1]: [0:2, 0:2] counts functions {1} of its producer twice" in fault_of(lie)
    three = with_task(PLAN, 3, reads=(*PLAN.tasks[3].reads, PLAN.tasks[3].reads[0]))
    assert "twice" in fault_of(three)


def test_a_partial_value_is_no_output():
    """The relu's result is brought home before it is whole: an output of the first product instead."""
    planner = Planner(2, random.Random(0))
    x = planner.tensor("x", (2, 4), "input", ("i", "j"))
    w = planner.tensor("w", (4, 2), "weight", ("j", "k"))
    y = planner.tensor("y", (2, 2), "value", ("i", "k"))
    planner.operation(
        "y", "contract", {"equation": "i j, j k -> i k"}, {"i": 2, "j": 4, "k": 2}, {"i": 1, "j": 2, "k": 1},
        [x, w], ["ij", "jk"], y, "ik",
    )  # fmt: skip
    planner.save(y)
    plan = planner.bundle()
    prove(plan)
    last = plan.tasks[-1]
    assert isinstance(last, AggregateTask)
    for keep in last.reads:
        copy = CopyTask(last.site, "y", last.after, (keep,), last.writes)
        lie = msgspec.structs.replace(plan, tasks=(*plan.tasks[:-1], copy))
        assert fault_of(lie).startswith("outputs[0].regions[0] ('y'): [0:2, 0:2] combines functions")


def test_a_region_written_in_part_is_found():
    half = box((0, 1), (0, 2))
    lie = with_task(PLAN, 2, read=Region(2, half), write=Region(7, half))
    told = "only 2 of the 4 elements of [0:2, 0:2] are written in buffer 7"
    assert fault_of(lie) == f"tasks[3] (for 'y', site 0).reads[0]: {told}"


def test_a_region_of_which_the_wrong_part_is_written_is_found():
    moved = with_buffer(PLAN, 7, block=box((0, 4), (0, 2)), offset=PLAN.memory[0])
    moved = msgspec.structs.replace(moved, memory=(PLAN.memory[0] + 32, PLAN.memory[1]))
    prove(moved)
    below = box((2, 4), (0, 2))
    lie = with_task(moved, 2, read=Region(2, below), write=Region(7, below))
    assert "only 0 of the 4 elements" in fault_of(lie)


def test_bytes_that_another_buffer_took_are_lost():
    """Buffer 7 lands on buffer 5, which task 5 has yet to send."""
    lie = with_buffer(PLAN, 7, offset=PLAN.buffers[5].offset)
    assert "writes bytes of buffer 7 [0:2, 0:2] that tasks[1] uses, without waiting for it" in fault_of(lie)
    waits = with_task(lie, 2, after=(0, 1))
    assert "buffer 5 is read after buffer 7 has taken its bytes" in fault_of(waits)


def test_an_aggregation_may_be_in_place_in_its_first_operand_only():
    region = Region(7, box((0, 2), (0, 2)))
    kernel = {"reads": (region,)}
    first = with_task(with_task(PLAN, 3, writes=(region,)), 4, **kernel)
    assert first.tasks[3].reads[0] == region
    prove(first)
    second = with_task(first, 3, reads=first.tasks[3].reads[::-1])
    assert "writes bytes of buffer 7 [0:2, 0:2] that it also uses in another way" in fault_of(second)


def test_a_task_must_not_overlap_with_itself():
    """A kernel whose result stands on its operand, and a copy whose pieces overlap."""
    on_itself = with_buffer(PLAN, 8, offset=PLAN.buffers[6].offset)
    assert "that it also uses in another way" in fault_of(on_itself)
    task = PLAN.tasks[9]
    twice = with_task(PLAN, 9, reads=task.reads * 2, writes=task.writes * 2)
    assert "that it also uses in another way" in fault_of(twice)


def test_a_buffer_may_serve_again_once_all_are_done_with_it():
    """Buffer 14 of the output stands alone; buffer 15 may land on what task 1 left, after task 5 and task 3."""
    again = with_buffer(PLAN, 15, offset=PLAN.buffers[5].offset)
    assert "without waiting for it" in fault_of(again)
    for after, users in (((3, 7), 5), ((5, 7), 3)):
        if after == (3, 7):  # task 7 comes after task 5
            prove(with_task(again, 10, after=after))
        else:
            assert f"tasks[{users}]" in fault_of(with_task(again, 10, after=after))


def test_a_write_nobody_waits_for_is_found():
    lie = with_task(PLAN, 4, after=())
    message = fault_of(lie)
    assert message.startswith("tasks[4] (operation 'y', function 0, site 0).reads[0]")
    assert "reads buffer 6 [0:2, 0:2], which tasks[3] writes, without waiting for it" in message


def test_late_readers_need_not_be_waited_for_but_late_writers_must_wait():
    """A copy over a result that was saved: harmless when it puts the same there, and comes last."""
    copy = PLAN.tasks[9]
    assert "that tasks[9] uses" in fault_of(appended(PLAN, copy))
    prove(appended(PLAN, msgspec.structs.replace(copy, after=(8, 9))))


def test_validation_comes_first():
    with pytest.raises(PlanFault, match="there is no tensor 9"):
        prove(with_buffer(PLAN, 0, tensor=9))


def test_functions_that_share_a_block_with_no_other_need_no_aggregation():
    for seed in range(30):
        plan = random_plan(seed, 1, 3)
        assert not any(isinstance(task, AggregateTask | TransferTask) for task in plan.tasks)
        prove(plan)


def test_a_fence_stands_for_what_it_waits_for_and_no_more():
    """It does not wait for the last reader of the bytes that the rows behind it take: each has to do that itself."""
    plan, begin = gathered(3)
    prove(plan)
    fence, reader = begin - 1, begin - 2
    lie = with_task(plan, fence, after=plan.tasks[reader].after)
    for row in range(begin, begin + 3):
        assert f"tasks[{row}]" in fault_of(lie)
        assert f"that tasks[{reader}] uses, without waiting for it" in fault_of(lie)
        lie = with_task(lie, row, after=(reader, fence))
    prove(lie)
