"""Plans that say that they are reproducible and are not, or the other way round."""

from __future__ import annotations

import functools
from typing import Any

import msgspec
import pytest

from einc.compiler import compile_model
from einc.options import CompileOptions
from einc_runtime.errors import PlanFault
from einc_runtime.plan.codec import decode
from einc_runtime.plan.proof import prove
from einc_runtime.plan.schema import AggregateTask, Bundle
from tests.mutation.plans import CASES, make_plan

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
    with pytest.raises(PlanFault, match=r"nothing, where .* with its attributes has True"):
        prove(marked(plan(True), skip=1))
    with pytest.raises(PlanFault, match=r"True, where .* with its attributes has nothing"):
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


def without_cuts(bundle: Bundle, name: str, index: str) -> Bundle:
    """The plan with an index of one operation that says that it cannot be cut."""
    operations = list(bundle.operations)
    at = next(k for k, operation in enumerate(operations) if operation.name == name)
    indices = [
        msgspec.structs.replace(declared, cuts=()) if declared.name == index else declared
        for declared in operations[at].indices
    ]
    assert tuple(indices) != operations[at].indices
    operations[at] = msgspec.structs.replace(operations[at], indices=tuple(indices))
    return msgspec.structs.replace(bundle, operations=tuple(operations))


@pytest.mark.parametrize(("name", "index"), [("y", "i"), ("y", "k"), ("argmax.most", "a"), ("argmax.most", "k")])
def test_only_what_would_be_added_is_kept_whole(name: str, index: str) -> None:
    """Rows and columns of a product may be cut, and so may what is only searched, although one site cuts nothing."""
    options = CompileOptions(machine="host", devices=1, reproducible=True)
    bundle = compile_model(MODEL, "m.ein", options).bundle
    prove(bundle)
    with pytest.raises(PlanFault, match="with its attributes has") as caught:
        prove(without_cuts(bundle, name, index))
    assert str(caught.value.where).endswith(".indices")


def test_an_index_of_one_element_keeps_its_cuts() -> None:
    """It is whole anyway, so nothing is said of it."""
    options = CompileOptions(machine="host", devices=4, selector="random", seed=3, reproducible=True)
    bundle = compile_model(MODEL.replace("dim b = 6", "dim b = 1"), "m.ein", options).bundle
    (product,) = [operation for operation in bundle.operations if operation.name == "y"]
    assert {index.name: index.cuts for index in product.indices}["j"] != ()
    prove(bundle)


def test_keys_of_attention_are_kept_whole() -> None:
    """Partial results over keys would be combined."""
    case = CASES["attention-sequence"]
    options = CompileOptions(machine="host", devices=3, selector="eindecomp", schedule="naive", reproducible=True)
    bundle = compile_model(case.source, case.file, options).bundle
    assert {index.name: index.cuts for index in bundle.operations[0].indices}["keys"] == ()
    prove(bundle)
    with pytest.raises(PlanFault, match="partial results would be combined"):
        prove(marked(decode(make_plan("attention-sequence"))))
