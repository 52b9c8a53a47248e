"""Training steps compute what their optimizers say, of clipped gradients, and learn."""

from __future__ import annotations

import numpy as np
import pytest

import einc as es
from einc.errors import UsageError
from einc.frontend import build
from einc.training.steps import derive_training_step
from einc_runtime.execution.session import Session
from tests.support.graph_interpreter import interpret

TEXT = """model m
dim n = 5
dim w = 3
input x : f32[n, w]
input t : f32[n]
weight u : f32[w]
weight b : f32[]
e[n] = sum[w](x[n, w] * u[w]) + b[] - t[n]
output loss = mean(e * e, "n")
"""


def draw() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(2)
    shapes = {"x": (5, 3), "t": (5,), "u": (3,), "b": ()}
    arrays = {name: np.asarray(rng.standard_normal(shape), "f4") for name, shape in shapes.items()}
    return {**arrays, "learning_rate": np.array(0.1, "f4")}


def slopes(arrays: dict[str, np.ndarray], clip: float | None) -> dict[str, np.ndarray]:
    """The gradients by hand."""
    error = 2 * (arrays["x"] @ arrays["u"] + arrays["b"] - arrays["t"]) / 5
    by_name = {"u": arrays["x"].T @ error, "b": error.sum()}
    norm = np.sqrt(sum((g * g).sum() for g in by_name.values()))
    return {name: g * (1 if clip is None else min(1, clip / norm)) for name, g in by_name.items()}


@pytest.mark.parametrize("clip", [None, 0.5])
def test_momentum(clip: float | None) -> None:
    graph, arrays = derive_training_step(build(TEXT, "m.ein"), "loss", "sgd", None, clip), draw()
    velocity = {"u": np.array([1.0, -2.0, 0.5], "f4"), "b": np.array(0.25, "f4")}
    results = interpret(graph, {**arrays, **{f"{name}.velocity": v for name, v in velocity.items()}})
    assert list(results) == ["loss", "u.next", "u.velocity.next", "b.next", "b.velocity.next"]
    for name, gradient in slopes(arrays, clip).items():
        moved = 0.9 * velocity[name] + gradient
        np.testing.assert_allclose(results[f"{name}.velocity.next"], moved, rtol=1e-5)
        np.testing.assert_allclose(results[f"{name}.next"], arrays[name] - 0.1 * moved, rtol=1e-5, atol=1e-6)


def test_chosen_weights_and_first_step_of_adamw() -> None:
    graph, arrays = derive_training_step(build(TEXT, "m.ein"), "loss", "adamw", ["u"]), draw()
    states = {name: np.zeros(3, "f4") for name in ("u.mean", "u.square")}
    results = interpret(graph, {**arrays, **states, "step": np.array(1, "f4")})
    assert list(results) == ["loss", "u.next", "u.mean.next", "u.square.next"]
    moved = arrays["u"] * (1 - 0.1 * 0.01) - 0.1 * np.sign(slopes(arrays, None)["u"])  # the first step has length 1
    np.testing.assert_allclose(results["u.next"], moved, rtol=1e-5)


def test_plans_learn() -> None:
    plan = es.compile(TEXT, "host", 2, train="loss", optimizer="lion", selector="eindecomp", schedule="naive")
    session, arrays = Session(plan.bundle), draw()
    kept = {"u": arrays["u"], "b": arrays["b"], "u.mean": np.zeros(3, "f4"), "b.mean": np.zeros((), "f4")}
    for name in ("x", "t", "learning_rate"):
        session.load(name, arrays[name])
    losses = []
    for _ in range(30):
        for name, array in kept.items():
            session.load(name, array)
        session.execute()
        kept = {name: session.offload(f"{name}.next") for name in kept}
        losses.append(float(session.offload("loss")))
    assert min(losses) < losses[0] / 4


def test_what_cannot_be_asked_for() -> None:
    with pytest.raises(UsageError, match="there is no optimizer 'adam'"):
        derive_training_step(build(TEXT, "m.ein"), "loss", "adam")
    with pytest.raises(UsageError, match="gradients are those of a loss"):
        es.compile(TEXT, "host", 1, optimizer="sgd")
    with pytest.raises(UsageError, match="clipped for an optimizer"):
        es.compile(TEXT, "host", 1, train="loss", clip=1.0)
