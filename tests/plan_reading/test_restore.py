"""Plans brought back as graphs and logical plans, and plans of another version of einc, which are not."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from einc.compiler import Compiled, compile_model
from einc.errors import OperatorError
from einc.options import CompileOptions
from einc.plan_reading.restore import compute_outputs, measure_movements, restore_graph, restore_plan
from einc.report.document import explain
from einc_runtime.cli.comparison import ROUNDING, compare, tolerance_of
from einc_runtime.execution.session import Session
from einc_runtime.plan.schema import AggregateTask, Bundle
from tests.support.plan_arrays import arrays_of, results

MODEL = """
model m
dim n = 6; dim m = 8
input x : f32[n, m]
weight w : f32[m, m]
h = relu(matmul(x, w))
output y = softmax(h, "m")
"""


def compiled() -> Compiled:
    return compile_model(MODEL, "m.ein", CompileOptions(machine="host", devices=4))


def with_operation(bundle: Bundle, n: int, **changes: object) -> Bundle:
    operations = list(bundle.operations)
    operations[n] = msgspec.structs.replace(operations[n], **changes)
    return msgspec.structs.replace(bundle, operations=tuple(operations))


def test_a_plan_comes_back_as_it_was() -> None:
    bundle = compiled()
    plan = restore_plan(bundle.bundle)
    assert plan.choices == bundle.plan.choices
    assert [node.operator for node in plan.graph.nodes] == [node.operator for node in bundle.graph.nodes]
    assert [(t.name, t.desc, t.kind) for t in plan.graph.tensors] == [
        (t.name, t.desc, t.kind) for t in bundle.graph.tensors
    ]


def test_what_another_version_planned_is_refused_and_explained_without_alternatives() -> None:
    bundle = compiled().bundle
    index = bundle.operations[0].indices[0]
    cut = tuple((p, p + 1) for p in range(index.extent))
    uncommon = (msgspec.structs.replace(index, intervals=cut), *bundle.operations[0].indices[1:])
    tensors = tuple(
        msgspec.structs.replace(t, dims=("n", "other")) if t.name == bundle.operations[0].name else t
        for t in bundle.tensors
    )
    statements = {
        "cannot be restored": with_operation(bundle, 0, family="unheard of"),
        "does not make the outputs": msgspec.structs.replace(bundle, tensors=tensors),
        "is cut as this version of einc would not cut it": with_operation(bundle, 0, indices=uncommon),
    }
    for words, text in statements.items():
        with pytest.raises(OperatorError, match=words):
            restore_plan(text)
        document = explain(text, all_specs=True)
        assert [(op["next_best"], op["candidates"]) for op in document["ops"]] == [(None, None)] * 3
    assert restore_graph(statements["is cut as this version of einc would not cut it"]).name == "m"


def test_outputs_that_are_read_again_are_there_in_the_end():
    text = "dim n = 3\ninput x : f64[n]\nh = relu(x)\ny = h + x\noutput h, y"
    bundle = compile_model(text, "m.ein", CompileOptions(machine="host", devices=1)).bundle
    x = np.array([-1.0, 0.5, 2.0])
    outputs = compute_outputs(bundle, {"x": x})
    assert {name: array.tolist() for name, array in outputs.items()} == {"h": [0, 0.5, 2], "y": [-1, 1, 4]}


def test_a_mean_whose_terms_cancel_moves_more_than_its_own_rounding():
    """bf16[17] in two parts: partial sums are rounded, and the result is much smaller than they are."""
    text = 'model m\ndim n = 17\ninput x : bf16[n]\ny = mean(x, "n")\noutput y\n'
    bundle = compile_model(text, "m.ein", CompileOptions("host", 2, selector="eindecomp", time_limit=3.0)).bundle
    assert any(isinstance(task, AggregateTask) for task in bundle.tasks)
    tolerance, alarms, refused = tolerance_of(bundle), 0, 0
    for seed in range(60):
        arrays = arrays_of(bundle, seed)
        outputs, exact = results(Session(bundle), arrays), compute_outputs(bundle, arrays)
        alarms += not compare(outputs, exact, tolerance).holds
        moved = measure_movements(bundle, arrays, tolerance * ROUNDING)
        assert compare(outputs, exact, tolerance, moved).holds
        wrong = {"y": outputs["y"] + (arrays["x"][0] / 17).astype(outputs["y"].dtype)}  # one term counts twice
        if abs(exact["y"]) < 0.05 < abs(arrays["x"][0]) / 10:
            assert not compare(wrong, exact, tolerance, moved).holds
            refused += 1
    assert alarms
    assert refused
