"""Plans that say that they are reproducible and are not, or the other way round."""

from __future__ import annotations

import functools
from typing import Any

import msgspec
import pytest

from einc.compiler import compile_model
from einc.options import CompileOptions
from einc_runtime.errors import PlanFault
from einc_runtime.plan.proof import prove
from einc_runtime.plan.schema import AggregateTask, Bundle

MODEL = """
model m
dim a = 4; dim b = 6; dim c = 8
input x : f32[a, b]
input w : f32[b, c]
y = matmul(x, w)
at, most = argmax(y, "c")
output y, at, most
"""


@functools.cache
def plan(reproducible: bool) -> Bundle:
    options = CompileOptions(machine="host", devices=4, selector="random", seed=3, reproducible=reproducible)
    return compile_model(MODEL, "m.ein", options).bundle


def marked(bundle: Bundle, *, skip: int = -1) -> Bundle:
    """The plan with the mark of reproducible plans in every operation but one."""
    operations = list(bundle.operations)
    for position, operation in enumerate(operations):
        attributes: dict[str, Any] = {k: v for k, v in operation.kernel_attributes.items() if k != "reproducible"}
        if position != skip:
            attributes["reproducible"] = True
        operations[position] = msgspec.structs.replace(operation, kernel_attributes=attributes)
    return msgspec.structs.replace(bundle, operations=tuple(operations), reproducible=True)


def test_both_kinds_are_proved() -> None:
    prove(plan(False))
    prove(plan(True))
    assert marked(plan(True)) == plan(True)


def test_every_operation_has_the_mark_or_none() -> None:
    with pytest.raises(PlanFault, match="expected in every operation"):
        prove(marked(plan(True), skip=1))
    with pytest.raises(PlanFault, match="expected in no operation"):
        prove(msgspec.structs.replace(plan(True), reproducible=False))


def test_no_partial_results_are_combined() -> None:
    bundle = plan(False)
    assert any(isinstance(task, AggregateTask) and task.aggregation == "sum" for task in bundle.tasks)
    with pytest.raises(PlanFault, match="partial results would be combined"):
        prove(marked(bundle))


def test_no_task_adds() -> None:
    bundle = plan(True)
    kernel = next(task for task in bundle.tasks if getattr(task, "operation", None) == 0)
    (region,) = kernel.writes  # type: ignore[union-attr]
    added = AggregateTask(kernel.site, "y", (), "sum", (region, region), (region,))
    lie = msgspec.structs.replace(bundle, tasks=(*bundle.tasks, added))
    with pytest.raises(PlanFault, match="aggregates nothing by 'sum'"):
        prove(lie)
