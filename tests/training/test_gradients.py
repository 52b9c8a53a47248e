"""Gradients are the slopes of the loss, for every operator and definition of the library, also where plans cut them."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import einc as es
from einc.compiler import Compiled
from einc.errors import ModelError, UsageError
from einc.frontend import build
from einc.graph.fuse import fuse
from einc.options import CompileOptions
from einc.training.gradients import derive_gradients
from einc_runtime.execution.session import Session
from einc_runtime.plan.proof import prove
from tests.support.gradient_cases import STEPPED, GradientCase, list_library_cases, list_operator_cases
from tests.support.graph_interpreter import interpret

MODEL = """
model small
dim tokens = 6
dim width = 4
dim vocabulary = 9
input ids : i64[tokens]
weight table : f32[vocabulary, width]
weight gain : f32[width]
x = rmsnorm(embedding(ids, table), gain)
h = reshape(x, heads = 2, tokens = tokens, d = 2)
y = attention(h, h, h, causal = true)
output loss = sum(y * y, "heads", "tokens", "d")
"""


@pytest.fixture(scope="module")
def cases() -> dict[str, GradientCase]:
    """Every operator and definition; made once, as that takes seconds."""
    return dict(itertools.chain(list_operator_cases(), list_library_cases()))


@pytest.mark.parametrize("part", range(4))
def test_slopes(cases: dict[str, GradientCase], part: int) -> None:
    for name in sorted(cases.keys() - {"recurrence largest"})[part::4]:
        check(name, cases[name])


def test_extremes_within_a_recurrence_are_refused(cases: dict[str, GradientCase]) -> None:
    with pytest.raises(ModelError, match="aggregates by max at each step"):
        check("recurrence largest", cases["recurrence largest"])


def check(title: str, case: GradientCase) -> None:
    names = case.differentiable
    results = interpret(fuse(derive_gradients(case.graph, "loss", names)), case.arrays)
    rng = np.random.default_rng(5)
    for name in names:
        direction = rng.standard_normal(case.arrays[name].shape)
        slope = float((results[f"{name}.gradient"] * direction).sum())
        assert slope == pytest.approx(case.slope(name, direction), rel=1e-6, abs=1e-6), (title, name)


def test_what_has_no_gradient() -> None:
    for name in sorted(STEPPED - {"floordiv"}):
        with pytest.raises(UsageError, match="only through integers, comparisons or steps"):
            derive(f'model m\nweight w : f32[3]\noutput loss = sum({name}(w), "n3")')
    text = "model m\ninput c : f32[1, 4, 2]\nweight w : f32[1, 1, 2]\ninput p : i64[1]\n"
    text += 'y = append(c, w, p)\noutput loss = sum(y, "n1", "n4", "n2")'
    with pytest.raises(ModelError) as refused:
        derive(text)
    assert "m.ein:5:5: no gradient can be derived: 'y' (append) has no gradient" in refused.value.render()


def test_losses_and_names_are_checked() -> None:
    with pytest.raises(UsageError, match="no output 'los'"):
        derive_gradients(build(MODEL, "m.ein"), "los")
    with pytest.raises(UsageError, match="expected one float"):
        derive(MODEL.replace('sum(y * y, "heads", "tokens", "d")', "y * y"))
    with pytest.raises(UsageError, match=r"'ids' is .* only floats"):
        derive_gradients(build(MODEL, "m.ein"), "loss", ["ids"])
    with pytest.raises(UsageError, match="does not depend on 'other'"):
        derive_gradients(build(MODEL + "weight other : f32[2]", "m.ein"), "loss", ["other"])


def derive(text: str) -> None:
    derive_gradients(build(text, "m.ein"), "loss")


@pytest.mark.parametrize("sites", [3])
def test_plans_compute_them(sites: int) -> None:
    graph = derive_gradients(build(MODEL, "m.ein"), "loss")
    bundle = Compiled(graph, CompileOptions(machine="host", devices=sites, selector="eindecomp")).bundle
    prove(bundle)
    rng = np.random.default_rng(1)
    arrays = {"ids": rng.integers(0, 9, 6), "table": rng.standard_normal((9, 4), "f4"), "gain": np.ones(4, "f4")}
    session = Session(bundle)
    for name, array in arrays.items():
        session.load(name, array)
    session.execute()
    for name, expected in interpret(graph, arrays).items():
        np.testing.assert_allclose(session.offload(name), expected, rtol=1e-4, atol=1e-5)


def test_a_single_key_is_compared_without_a_sum() -> None:
    """As where a loss picks one of many classes for each token, by keys [tokens, 1]."""
    text = """model picked
dim n = 5
dim m = 7
dim single = 1
input keys : i64[n, single]
weight x : f64[n, m]
picked[n, single] = x[n, keys[n, single]]
output loss = sum(picked * picked, "n", "single")
"""
    graph = fuse(derive_gradients(build(text, "m.ein"), "loss"))
    assert [node.name for node in graph.nodes if node.operator.attributes.get("aggregation") == "sum"] == ["loss"]
    keys, x = np.array([[3], [0], [6], [3], [2]]), np.arange(35.0).reshape(5, 7)
    expected = np.zeros((5, 7))
    np.put_along_axis(expected, keys, 2 * np.take_along_axis(x, keys, 1), 1)
    np.testing.assert_array_equal(interpret(graph, {"keys": keys, "x": x})["x.gradient"], expected)


def test_grad_adds_to_a_graph() -> None:
    graph = es.createGraph("g")
    x = graph.insertTensor(es.tensorDesc([3, 2], "f64"), "x")
    loss = graph.equation("loss[] = sum[i, j](x[i, j] * x[i, j] * x[i, j])", x=x)
    (gradient,) = es.grad(graph, loss, [x])
    graph.save(gradient, "slope")
    plan = es.compileGraph(graph, 2, machine="host")
    values = np.arange(6.0).reshape(3, 2)
    session = Session(plan.bundle)
    session.load("x", values)
    session.execute()
    np.testing.assert_allclose(session.offload("slope"), 3 * values**2)
