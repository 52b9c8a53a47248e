"""Plans brought back as graphs and logical plans, and plans of another version of einc, which are not."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from einc.compiler import Compiled, compile_model
from einc.errors import OperatorError
from einc.options import CompileOptions
from einc.report.document import explain
from einc.report.restore import compute_outputs, restore_graph, restore_plan
from einc_runtime.plan.schema import Bundle

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
    made = compiled()
    found = restore_plan(made.bundle)
    assert found.choices == made.plan.choices
    assert [node.operator for node in found.graph.nodes] == [node.operator for node in made.graph.nodes]
    assert [(t.name, t.desc, t.kind) for t in found.graph.tensors] == [
        (t.name, t.desc, t.kind) for t in made.graph.tensors
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
    others = {
        "cannot be restored": with_operation(bundle, 0, family="unheard of"),
        "does not make the outputs": msgspec.structs.replace(bundle, tensors=tensors),
        "is cut as this version of einc would not cut it": with_operation(bundle, 0, indices=uncommon),
    }
    for words, other in others.items():
        with pytest.raises(OperatorError, match=words):
            restore_plan(other)
        document = explain(other, all_specs=True)
        assert [(op["next_best"], op["candidates"]) for op in document["ops"]] == [(None, None)] * 3
    assert restore_graph(others["is cut as this version of einc would not cut it"]).name == "m"


def test_outputs_that_are_read_again_are_there_in_the_end():
    text = "dim n = 3\ninput x : f64[n]\nh = relu(x)\ny = h + x\noutput h, y"
    bundle = compile_model(text, "m.ein", CompileOptions(machine="host", devices=1)).bundle
    x = np.array([-1.0, 0.5, 2.0])
    found = compute_outputs(bundle, {"x": x})
    assert {name: array.tolist() for name, array in found.items()} == {"h": [0, 0.5, 2], "y": [-1, 1, 4]}
