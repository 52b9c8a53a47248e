"""`einc.compile`: every form of a model becomes a plan that runs, and what is not one gets one clear error."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import einc
from einc.errors import ModelError, UsageError
from einc.importers.pytorch.importing import TorchModel
from einc_runtime.errors import ArrayFault, PlanFault, ReportedError
from einc_runtime.plan.codec import read_bundle

TEXT = """
model pair
param scale = 2
dim rows = 6
dim width = 5
input x : f32[rows, width]
input z : f32[rows, width]
weight w : f32[width, width] from "layer.w"
output y = matmul(x, w) * scale - z
"""
LIMITED = TorchModel(TEXT, {}, ("x", "z"), ("y",), (), (), {"rows": 9})
OPTIONS = {"selector": "eindecomp", "schedule": "naive"}
X, Z, W = (
    np.random.default_rng(seed).standard_normal(shape).astype("f4")
    for seed, shape in enumerate([(7, 5)] * 2 + [(5, 5)])
)


def plan_text(**more: object) -> einc.Plan:
    return einc.compile(TEXT, "dgx-a100", 3, params={"rows": 7, "scale": 3.5}, **OPTIONS, **more)  # type: ignore[arg-type]


def test_a_text_runs_by_order_and_by_name(tmp_path: Path) -> None:
    plan = plan_text(weights={"layer.w": W})
    for result in (plan.run(X, Z), plan.run(X, z=Z), plan.run(z=Z, x=X), plan.run({"x": X, "z": Z})):
        assert np.allclose(result["y"], 3.5 * (X @ W) - Z, atol=1e-5)
    proof = plan.verify()
    assert str(proof).startswith("proved:\n    every operation")
    assert "its operations and tensors are those of its model, no more and no less" in proof.proved
    plan.save(tmp_path / "pair.bin")
    assert read_bundle(str(tmp_path / "pair.bin")) == plan.bundle
    assert repr(plan).startswith("<plan of pair for 3 sites of dgx-a100, predicted ")
    assert str(plan).startswith("pair on 3 sites of dgx-a100: ")
    assert plan.explain()["model"] == "pair"


def test_files_and_graphs_are_models_too(tmp_path: Path) -> None:
    path = tmp_path / "pair.ein"
    path.write_text(TEXT)
    of_file = einc.compile(path, "dgx-a100", [0, 1, 2], params={"rows": 7, "scale": 3.5}, **OPTIONS)
    assert of_file.bundle.tasks == plan_text().bundle.tasks
    graph = einc.createGraph()
    x = graph.insertTensor(einc.tensorDesc([4, 4]), "x")
    graph.save(graph.matmul(x, x), "y")
    assert np.allclose(einc.compile(graph, "host", 2).run(x=np.eye(4, dtype="f4"))["y"], np.eye(4))


def test_a_plan_of_another_model_is_not_verified() -> None:
    plan = plan_text()
    compiled = einc.compile(TEXT.replace("- z", "+ z"), "dgx-a100", 3, params={"rows": 7, "scale": 3.5}, **OPTIONS)
    with pytest.raises(PlanFault, match=r"it should be 'mul\+add'"):
        replace(plan, graph=compiled.graph).verify()


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: einc.compile("pair.ein"), UsageError, "there is no such file"),
        (lambda: einc.compile(3), UsageError, "not a int"),
        (lambda: einc.compile(TEXT, colour="red"), UsageError, "compile has no option 'colour'"),
        (lambda: einc.compile(TEXT, schedule="quick"), UsageError, "'quick'"),
        (lambda: einc.compile(TEXT, pins=["y=rows/2"]), UsageError, r"pins is \['y=rows/2'\]"),
        (lambda: einc.compile(TEXT, params={"rows": object()}), UsageError, "a param is a number"),
        (lambda: einc.compile(TEXT, params={"lines": 3}), ModelError, "'lines'(.|\n)*there are scale, rows, width"),
        (lambda: einc.compile(LIMITED, params={"rows": 10}), UsageError, "rows is 10, and at most 9"),
        (lambda: einc.compile(einc.createGraph(), params={"rows": 3}), UsageError, "this model is a graph"),
        (lambda: plan_text().run(X, Z, W), ArrayFault, "the plan has 2 inputs: x, z"),
        (lambda: plan_text().run(X, x=X), ArrayFault, "x is given in the order"),
        (lambda: plan_text().run(X, q=X), ArrayFault, "q|z"),
        (lambda: plan_text().run(X, Z), ArrayFault, "w"),
    ],
)  # fmt: skip
def test_mistakes_get_one_error(call, error: type[ReportedError], message: str) -> None:
    with pytest.raises(error, match=message):
        call()
