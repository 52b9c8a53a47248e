"""Scans in blocks: plans of them compute what the model says, are proved, and are chosen where steps would wait."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest

from einc.compiler import compile_model
from einc.frontend import build
from einc.graph.blocked_scans import block_scans
from einc.graph.fuse import fuse
from einc.logical.pins import parse_pin
from einc.options import CompileOptions
from einc.verification.figures import verify_figures
from einc.verification.model import verify_model
from einc_runtime.errors import PlanFault
from einc_runtime.execution.proved_plans import prove
from einc_runtime.execution.session import Session
from tests.support.scan_cases import LINEAR, SCANS, Array, compile_blocked, draw_arrays, scan_linearly

LONG = """
dim steps = 65536; dim lanes = 3
input a : f32[steps, lanes]; input b : f32[steps, lanes]
h = linear_recurrence(a, b, "steps")
output h
"""


def compare(case: str, results: Mapping[str, Array], arrays: Mapping[str, Array]) -> None:
    wide = {name: array.astype(np.float64) for name, array in arrays.items()}
    for name, expected in SCANS[case][1](wide).items():
        np.testing.assert_allclose(results[name], expected, rtol=2e-5, atol=2e-5, err_msg=name)


QUICK = {("linear", 1), ("selective", 2), ("gated", 3)}
ALL = [(case, blocks) for case in SCANS for blocks in (1, 2, 3, 5, 8)]


@pytest.mark.parametrize(
    ("case", "blocks"), [pytest.param(*pair, marks=[] if pair in QUICK else [pytest.mark.slow]) for pair in ALL]
)
def test_each_site_computes_a_block(case: str, blocks: int) -> None:
    """What a plan computes is what all steps one after the other do, in f64; and it is proved, also of the model."""
    text = SCANS[case][0]
    bundle = compile_blocked(text, blocks)
    parts = {operation.name.rpartition(".")[2] for operation in bundle.operations}
    assert bool(parts & {"starts", "totals"}) == (blocks > 1)
    prove(bundle)
    verify_figures(bundle)
    verify_model(bundle, fuse(build(text, "m.ein")))
    arrays = draw_arrays(text)
    compare(case, Session(bundle).run(arrays), arrays)


def test_parts_are_those_of_the_model() -> None:
    """What is carried, and how, is derived from the model's operator: a plan that says anything else is refused."""
    bundle, graph = compile_blocked(LINEAR, 3), fuse(build(LINEAR, "m.ein"))
    for name, attribute, old, new in (
        ("h.pairs", "aggregation", "add t2 x3", "add t2 x1"),
        ("h.starts", "programs", "add t2 x2", "sub t2 x2"),
        ("h.steps", "equations", "2[block, d]", "0.0"),
    ):
        position = next(k for k, operation in enumerate(bundle.operations) if operation.name == name)
        operation = bundle.operations[position]
        value = operation.attributes[attribute]
        changed = value.replace(old, new) if isinstance(value, str) else [str(x).replace(old, new) for x in value]  # type: ignore[union-attr]
        assert changed != value
        lie = msgspec.structs.replace(operation, attributes={**operation.attributes, attribute: changed})
        operations = (*bundle.operations[:position], lie, *bundle.operations[position + 1 :])
        with pytest.raises(PlanFault) as caught:
            verify_model(msgspec.structs.replace(bundle, operations=operations), graph)
        assert caught.value.where == f"operations[{position}] ('{name}').attributes['{attribute}']"


def test_a_long_scan_with_few_lanes_is_cut_into_blocks() -> None:
    """A whole scan takes 280 ns for each step on a GPU. A reproducible plan keeps it whole, and so do pins."""
    options = CompileOptions(machine="dgx-h100", devices=4)
    bundle = compile_model(LONG, "m.ein", options).bundle
    assert {tensor.name: tensor.shape for tensor in bundle.tensors}["h.starts"][0] >= 64
    verify_figures(bundle)
    verify_model(bundle, fuse(build(LONG, "m.ein")))
    restrictions: tuple[dict[str, Any], ...] = ({"reproducible": True}, {"pins": (parse_pin("h=lanes/3"),)})
    for kept in restrictions:
        undivided = compile_model(LONG, "m.ein", replace(options, **kept)).bundle
        assert [operation.name for operation in undivided.operations] == ["h"]
        assert undivided.predicted_ms > 65536 * 280e-6
        assert bundle.predicted_ms < undivided.predicted_ms / 20


def test_factors_without_a_finite_product_change_no_zeros() -> None:
    """Nothing is carried before the first term that is not 0."""
    text = LINEAR.replace("t = 37", "t = 400")
    arrays = {
        "a": np.full((400, 3), 4, np.float32),
        "b": np.zeros((400, 3), np.float32),
        "start": np.zeros(3, np.float32),
    }
    arrays["b"][390:] = 1
    results = Session(compile_blocked(text, 3)).run(arrays)
    assert np.array_equal(results["h"], scan_linearly(arrays["a"], arrays["b"]))


@pytest.mark.parametrize(
    "text",
    [
        "h[t, i] = tanh(x[t, i] + h[t - 1, i, outside = 0])",
        "h[t, i] = x[t, i] * h[t - 1, i, outside = 0] * h[t - 1, i, outside = 0]",
        "h[t, i] = x[t, i] + sum[k](w[i, k] * h[t - 1, k, outside = 0])",
        "h[t, i] = x[t, i] / h[t - 1, i, outside = 1]",
        "h[j, i] = sum[k < j](x[k, i])",
        "h[j, i] = sum[k >= j](x[k, i])",
    ],
)
def test_what_is_not_affine_stays_whole(text: str) -> None:
    head = "dim t = 12; dim i = 4\ninput x : f32[t, i]\nweight w : f32[i, i]\n"
    graph = fuse(build(f"{head}{text}\noutput h", "m.ein"))
    assert block_scans(graph, {node.name: 3 for node in graph.nodes}) == graph
