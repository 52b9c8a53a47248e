"""Plans whose partial results are combined by a definition of the model: cut along what is aggregated, on 1 to 8
sites."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
import pytest

from einc.compiler import compile_model
from einc.errors import UsageError
from einc.logical.pins import parse_pin
from einc.options import CompileOptions
from einc_runtime.errors import PlanFault
from einc_runtime.execution import proved_plans
from einc_runtime.execution.cpu.executor import CpuExecutor
from einc_runtime.execution.rewrites import kernel_splitting
from einc_runtime.execution.session import Session
from einc_runtime.plan.proof import prove
from einc_runtime.plan.schema import AggregateTask, Bundle
from einc_runtime.plan.validation import validate
from tests.support.aggregate_cases import DEFINITIONS

MODEL = f"""
model statistics
dim rows = 5
dim places = 203
input x : f32[rows, places]
{DEFINITIONS}
l[rows] = logaddexp[j](x[rows, j])
n[rows], m[rows], s[rows] = welford[j](1.0, x[rows, j], 0.0)
least[rows], at[rows] = smallest[j](x[rows, j], j)
output l, m, least, at
output v = s / n
"""


def compile_cut(sites: int, names: Sequence[str], *, reproducible: bool = False) -> Bundle:
    """A plan in which operators are cut along what they aggregate, into as many parts as there are sites."""
    pins = tuple(parse_pin(f"{name}=j/{sites}") for name in names) if sites > 1 else ()
    options = CompileOptions(machine="host", devices=sites, pins=pins, reproducible=reproducible)
    return compile_model(MODEL, "m.ein", options).bundle


def draw() -> np.ndarray:
    return np.random.default_rng(4).normal(1, 2, (5, 203)).astype(np.float32)


@pytest.mark.parametrize("sites", [1, 2, 3, 5, 8])
def test_partial_results_are_combined_by_the_definition(sites: int) -> None:
    bundle = compile_cut(sites, ("l", "m", "least"))
    prove(bundle)
    x = draw()
    names = {task.aggregation for task in bundle.tasks if isinstance(task, AggregateTask)}
    assert names == ({"defined", "defined_exact"} if sites > 1 else set())
    results = Session(bundle).run({"x": x})
    wide = x.astype(np.float64)
    assert np.allclose(results["l"], np.logaddexp.reduce(wide, 1), rtol=1e-6)
    assert np.allclose(results["m"], wide.mean(1), rtol=1e-5)
    assert np.allclose(results["v"], wide.var(1), rtol=1e-5)
    assert (results["least"] == x.min(1)).all()
    assert (results["at"] == x.argmin(1)).all()


def test_a_reproducible_plan_cuts_what_is_exact_alone() -> None:
    bundle = compile_cut(4, ("least",), reproducible=True)
    prove(bundle)
    x = draw()
    whole, cut = (Session(plan).run({"x": x}) for plan in (compile_cut(1, (), reproducible=True), bundle))
    assert all(whole[name].tobytes() == cut[name].tobytes() for name in whole)
    with pytest.raises(UsageError, match="l=j/4"):
        compile_cut(4, ("l",), reproducible=True)


@pytest.mark.parametrize("workers", [1, 3])
def test_kernels_of_one_site_are_split_for_its_cores(workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_splitting, "MIN_PART_NS", 1e-3)
    bundle, x = compile_cut(1, ()), draw()
    executor = CpuExecutor(bundle, workers, poison=True)
    results = Session(bundle, executor=executor).run({"x": x})
    assert (results["at"] == x.argmin(1)).all()
    assert np.allclose(results["v"], x.astype(np.float64).var(1), rtol=1e-5)


def test_another_definition_is_a_lie() -> None:
    """The proof reads the definition in the plan: kernels with another one, and tasks that name another, are lies."""
    bundle = compile_cut(2, ("l",))
    position, operation = next((k, o) for k, o in enumerate(bundle.operations) if o.title.startswith("logaddexp"))
    text = str(operation.kernel_attributes["aggregation"])
    for changed in (text.replace("max", "min"), text.replace(" commutative", ""), text.replace("-inf", "0.0"), "sum"):
        lie = msgspec.structs.replace(
            operation, kernel_attributes={**operation.kernel_attributes, "aggregation": changed}
        )
        operations = (*bundle.operations[:position], lie, *bundle.operations[position + 1 :])
        with pytest.raises(PlanFault):
            prove(msgspec.structs.replace(bundle, operations=operations))
    tasks = [
        msgspec.structs.replace(task, aggregation="defined_exact") if isinstance(task, AggregateTask) else task
        for task in bundle.tasks
    ]
    with pytest.raises(PlanFault, match="defined_exact"):
        validate(msgspec.structs.replace(bundle, tasks=tuple(tasks)))


def test_the_proof_tries_the_laws() -> None:
    """A definition that breaks a law, in all attributes alike, is refused by the proof of the runtime: what blocks and
    tasks contribute follows from it, but each cut would have a result of its own."""
    bundle = compile_cut(2, ("l", "least"))
    proved_plans.prove(bundle)
    lies = {
        "logaddexp": [("-inf", "0.5", "its identity 0.5 changes values"), ("sub x0 x1", "add x0 x1", "associative")],
        "smallest": [("min x1 x3", "copy x1", "is not commutative"), ("[inf", "[3.0", "its identity")],
    }
    for name, changes in lies.items():
        position, operation = next((k, o) for k, o in enumerate(bundle.operations) if o.title.startswith(name))
        text = str(operation.attributes["aggregation"])
        for old, new, law in changes:
            assert old in text, text
            changed = {"aggregation": text.replace(old, new, 1)}
            lie = msgspec.structs.replace(
                operation,
                attributes={**operation.attributes, **changed},
                kernel_attributes={**operation.kernel_attributes, **changed},
            )
            operations = (*bundle.operations[:position], lie, *bundle.operations[position + 1 :])
            plan = msgspec.structs.replace(bundle, operations=operations)
            prove(plan)  # what is derived from the definition fits it
            with pytest.raises(PlanFault, match=f"aggregate '{name}'.*{law}") as caught:
                Session(plan)
            assert f"operations[{position}]" in caught.value.render()
