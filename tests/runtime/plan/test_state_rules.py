"""Plans that lie about a state: it is read last by what writes all of it anew, at the same bytes."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from einc_runtime.errors import PlanFault
from einc_runtime.plan.proof import prove
from einc_runtime.plan.schema import Block, Bundle, CopyTask, KernelTask, Region
from einc_runtime.plan.states import validate_states
from tests.support.changed_plans import appended, with_buffer, with_task
from tests.support.state_plans import compile_steps

PLAN = compile_steps(2, "ks=places/2")
STATES = [n for n, buffer in enumerate(PLAN.buffers) if buffer.role == "state"]
OLD = [n for n in STATES if PLAN.tensors[PLAN.buffers[n].tensor].kind == "state"]
NEW = [n for n in STATES if n not in OLD]
UPDATE = next(n for n, task in enumerate(PLAN.tasks) if isinstance(task, KernelTask) and task.reads[0].buffer in OLD)
NUMBER = {tensor.name: n for n, tensor in enumerate(PLAN.tensors)}


def with_operation(plan: Bundle, **fields: Any) -> Bundle:
    return replace(plan, operations=(replace(plan.operations[0], **fields), *plan.operations[1:]))


def with_tensor(plan: Bundle, name: str, **fields: Any) -> Bundle:
    tensors = list(plan.tensors)
    tensors[NUMBER[name]] = replace(tensors[NUMBER[name]], **fields)
    return replace(plan, tensors=tuple(tensors))


def shifted(plan: Bundle, *buffers: int) -> Bundle:
    """With these buffers behind everything else."""
    for number in buffers:
        site = plan.buffers[number].site
        plan = with_buffer(plan, number, offset=plan.memory[site])
        memory = [size + 4096 * (s == site) for s, size in enumerate(plan.memory)]
        plan = replace(plan, memory=tuple(memory))
    return plan


def copy_task(read: int, write: int) -> CopyTask:
    buffer = PLAN.buffers[read]
    regions = Region(read, buffer.block), Region(write, PLAN.buffers[write].block)
    return CopyTask(buffer.site, "y", tuple(range(len(PLAN.tasks))), (regions[0],), (regions[1],))


def part_of(k: int) -> Region:
    """The first head of what the update reads."""
    region = PLAN.tasks[UPDATE].reads[k]
    return replace(region, block=Block(region.block.lower, (1, *region.block.upper[1:])))


def without_attribute(field: str) -> dict[str, Any]:
    operation = PLAN.operations[0]
    return {field: {name: value for name, value in getattr(operation, field).items() if name != "in_place"}}


LIES: dict[str, tuple[Callable[[], Bundle], str]] = {
    "an input instead": (lambda: with_tensor(PLAN, "keys", kind="input"), "is no state"),
    "no update": (lambda: with_operation(PLAN, **without_attribute("kernel_attributes")), "not written over a state"),
    "not by its attributes": (lambda: with_operation(PLAN, **without_attribute("attributes")), "has nothing"),
    "in place, but not": (
        lambda: with_operation(PLAN, attributes={**PLAN.operations[0].attributes, "in_place": False}),
        "does not say so",
    ),
    "another reader": (
        lambda: replace(PLAN, operations=(PLAN.operations[0], replace(PLAN.operations[1], inputs=(NUMBER["keys"],)))),
        "has written over",
    ),
    "another order": (
        lambda: with_tensor(replace(PLAN, outputs=()), "ks", order=(1, 0, 2)), "otherwise than the state"
    ),
    "two updates": (
        lambda: replace(PLAN, operations=(PLAN.operations[0], replace(PLAN.operations[0], name="y", outputs=(4,)))),
        "has written over",
    ),
    "a result's role": (lambda: with_buffer(PLAN, NEW[0], role="result"), "shares bytes"),
    "an input's role": (lambda: with_buffer(PLAN, OLD[0], role="input"), "input buffer of a state"),
    "a scratch buffer": (lambda: with_buffer(PLAN, OLD[0], role="scratch"), "does not lie at the bytes"),
    "a state of an input": (lambda: with_buffer(PLAN, 1, role="state"), "not written over a state"),
    "elsewhere": (lambda: shifted(PLAN, NEW[0]), "does not lie at the bytes"),
    "the same twice": (lambda: replace(PLAN, buffers=(*PLAN.buffers, PLAN.buffers[OLD[0]])), "of the state twice"),
    "nothing over it": (lambda: shifted(with_buffer(PLAN, NEW[0], role="result"), NEW[0]), "nothing is written over"),
    "written elsewhere": (lambda: with_task(PLAN, UPDATE, writes=PLAN.tasks[UPDATE].reads[:1]), "does not lie where"),
    "no update in a run": (
        lambda: replace(PLAN, tasks=tuple(task for n, task in enumerate(PLAN.tasks) if n != UPDATE)),
        "no task updates this part",
    ),
    "read afterwards": (lambda: appended(PLAN, copy_task(OLD[0], OLD[0])), "only what updates it"),
    "written afterwards": (lambda: appended(PLAN, copy_task(NEW[0], NEW[0])), "only what updates it"),
    "a part of it": (lambda: with_task(PLAN, UPDATE, reads=(part_of(0), *PLAN.tasks[UPDATE].reads[1:])), "state has"),
}  # fmt: skip


@pytest.mark.parametrize("lie", LIES)
def test_lies_about_states_are_refused(lie: str) -> None:
    """By the proof; and what it finds first or the rules of states alone name the lie."""
    make, message = LIES[lie]
    plan, messages = make(), []
    for check in (prove, validate_states):
        try:
            check(plan)
        except PlanFault as fault:
            messages.append(fault.message)
        assert messages, "the proof takes it"
    assert any(re.search(message, text) for text in messages), messages


def test_the_plan_itself_is_proved() -> None:
    prove(PLAN)
    assert len(OLD) == len(NEW) == 2
    assert [PLAN.buffers[n].offset for n in OLD] == [PLAN.buffers[n].offset for n in NEW]
    state = sum(PLAN.buffers[n].block.size for n in OLD) * 4
    assert state == 4 * 17 * 5 * 4
