"""Training steps compute what their optimizers say, of clipped gradients, and learn."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

import einc as es
from einc.errors import UsageError
from einc.frontend import build
from einc.training.steps import StepOptions, derive_training_step
from einc_runtime.errors import PlanFault
from einc_runtime.execution.session import Session
from einc_runtime.plan.proof import prove
from einc_runtime.plan.regions import reads_of
from einc_runtime.plan.schema import Bundle, KernelTask
from tests.support.changed_plans import with_task
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

LAYERS = """model layers
dim n = 24
dim w = 6
dim h = 9
dim c = 5
input x : f32[n, w]
input t : f32[n, c]
weight u : f32[w, h]
weight gain : f32[h]
weight v : f32[h, c] from "head.weight"
hidden = tanh(rmsnorm(matmul(x, u), gain))
e = matmul(hidden, v) - t
output loss = mean(e * e, "n", "c")
"""
ROWS = {"hidden": "n/2"}


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
    graph, arrays = derive_training_step(build(TEXT, "m.ein"), "loss", "sgd", None, StepOptions(clip)), draw()
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


def test_decay_of_some_weights() -> None:
    """Those that a pattern matches do not decay; a pattern that matches none is an error."""
    options = StepOptions(decay=0.3, undecayed=("b*",))
    graph, arrays = derive_training_step(build(TEXT, "m.ein"), "loss", "lion", None, options), draw()
    means = {"u.mean": np.zeros(3, "f4"), "b.mean": np.zeros((), "f4")}
    results, gradients = interpret(graph, {**arrays, **means}), slopes(arrays, None)
    for name, kept in (("u", 1 - 0.1 * 0.3), ("b", 1.0)):
        moved = arrays[name] * kept - 0.1 * np.sign(gradients[name])
        np.testing.assert_allclose(results[f"{name}.next"], moved, rtol=1e-5, atol=1e-6)
    with pytest.raises(UsageError, match="no weight has a name like 'c\\*'"):
        derive_training_step(build(TEXT, "m.ein"), "loss", "sgd", None, StepOptions(decay=0.1, undecayed=("c*",)))


def compile_step(optimizer: str, sites: int, **options: Any) -> Bundle:
    return es.compile(
        LAYERS, "host", sites, train="loss", optimizer=optimizer, clip=1.0, selector="eindecomp", schedule="naive",
        **options,
    ).bundle  # fmt: skip


def draw_layers() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(4)
    shapes = {"x": (24, 6), "t": (24, 5), "u": (6, 9), "gain": (9,), "v": (9, 5)}
    return {name: np.asarray(rng.standard_normal(shape), "f4") for name, shape in shapes.items()}


@pytest.mark.parametrize(
    ("optimizer", "sites", "options"),
    [
        ("adamw", 1, {}),
        ("adamw", 3, {"pins": ROWS | {"*.next": "i0/3"}}),  # each site has a third of all states
        ("sgd", 4, {"pins": ROWS | {"u.next": "i0/2,replicas/2"}}),
        ("lion", 2, {"input_placement": "once"}),
    ],
)
def test_steps_write_over_their_states(optimizer: str, sites: int, options: dict[str, Any]) -> None:
    """What a session has after several runs is what the graph computes, where each step is given what the last made."""
    bundle, arrays = compile_step(optimizer, sites, **options), draw_layers()
    session = Session(bundle)
    assert {"u", "u.mean" if optimizer != "sgd" else "u.velocity"} <= {tensor.name for tensor in session.states}
    assert set(session.missing) >= {"u", "gain", "v", "x"}
    session.load_all({**arrays, "learning_rate": np.array(0.05, "f4")})
    graph = derive_training_step(build(LAYERS, "m.ein"), "loss", optimizer, None, StepOptions(1.0))
    held = {tensor.name: np.zeros(tensor.shape, "f4") for tensor in session.states} | arrays
    losses = []
    for step in range(1, 6):
        if optimizer == "adamw":
            session.load("step", np.array(step, "f4"))
        session.execute()
        exact = interpret(graph, {**held, "learning_rate": np.array(0.05, "f4"), "step": np.array(step, "f4")})
        held |= {name.removesuffix(".next"): value for name, value in exact.items() if name != "loss"}
        np.testing.assert_allclose(session.offload("loss"), exact["loss"], rtol=1e-5)
        losses.append(float(exact["loss"]))
    for tensor in session.states:
        np.testing.assert_allclose(session.offload(tensor.name), held[tensor.name], rtol=1e-4, atol=1e-6)
        np.testing.assert_array_equal(session.offload(f"{tensor.name}.next"), session.offload(tensor.name))
    assert losses[-1] < losses[0]


def test_reproducible_steps_have_the_same_bits_on_any_sites() -> None:
    results = []
    for sites, pins in ((1, {}), (3, ROWS | {"*.next": "i0/3"})):
        session = Session(compile_step("adamw", sites, reproducible=True, pins=pins))
        session.load_all({**draw_layers(), "learning_rate": np.array(0.05, "f4")})
        for step in range(1, 4):
            session.load("step", np.array(step, "f4"))
            session.execute()
        results.append([session.offload(tensor.name).tobytes() for tensor in session.states])
    assert results[0] == results[1]


def test_states_have_one_place_and_no_copies() -> None:
    bundle = compile_step("adamw", 3, pins=ROWS | {"*.next": "i0/3"})
    states = [buffer for buffer in bundle.buffers if buffer.role == "state"]
    places = {(buffer.site, buffer.offset) for buffer in states}
    assert len(states) == 2 * len(places) == 2 * 3 * 9  # old and new, on three sites, of three weights with moments
    held = [sum(b.block.size * 4 for b in states if b.site == site) // 2 for site in range(3)]
    assert len(set(held)) == 1
    assert sum(held) == 3 * 4 * (6 * 9 + 9 + 9 * 5)


def test_updates_wait_for_all_that_reads_the_weight() -> None:
    """No dependency of an update on a reader can be left out, and nothing may read the old values afterwards."""
    bundle = compile_step("sgd", 2, pins=ROWS | {"*.next": "i0/2"})
    prove(bundle)
    ancestors: list[set[int]] = []
    for task in bundle.tasks:
        ancestors.append(set(task.after).union(*(ancestors[n] for n in task.after)))
    tried = 0
    for number, task in enumerate(bundle.tasks):
        if not isinstance(task, KernelTask) or not bundle.operations[task.operation].kernel_attributes.get("in_place"):
            continue
        readers = {n for n, t in enumerate(bundle.tasks) if task.reads[0].buffer in {r.buffer for r in reads_of(t)}}
        for reader in sorted(readers & {*task.after}):
            after = tuple(n for n in task.after if n != reader)
            if not any(reader in ancestors[n] for n in after):
                tried += 1
                with pytest.raises(PlanFault, match="without waiting for it"):
                    prove(with_task(bundle, number, after=after))
    late = replace(bundle.tasks[-1], after=tuple(range(len(bundle.tasks))))
    with pytest.raises(PlanFault):
        prove(replace(bundle, tasks=(*bundle.tasks, late)))


def test_weights_that_are_one_tensor_of_a_file_are_one() -> None:
    """As tied embeddings of imported models: the gradient is that of both uses."""
    text = TEXT.replace("weight u : f32[w]", 'weight u : f32[w] from "a"\ndim v = 3\nweight u2 : f32[v] from "a"')
    text = text.replace("+ b[] - t[n]", "+ sum[v](u2[v]) + b[] - t[n]")
    graph, arrays = derive_training_step(build(text, "m.ein"), "loss", "sgd"), draw()
    results = interpret(graph, {**arrays, **{f"{name}.velocity": 0 * arrays[name] for name in ("u", "b")}})
    assert "u2.next" not in results
    error = 2 * (arrays["x"] @ arrays["u"] + arrays["u"].sum() + arrays["b"] - arrays["t"]) / 5
    moved = arrays["u"] - 0.1 * (arrays["x"].T @ error + error.sum())
    np.testing.assert_allclose(results["u.next"], moved, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("first", ["", "[0:3]"])
def test_rows_of_a_tensor_that_others_share_are_one_weight(first: str) -> None:
    """Its gradient is that of the whole and of rows of it under another shape."""
    text = TEXT.replace("weight u : f32[w]", f'weight u : f32[w] from "a{first}"\ndim v = 2\ndim k = 1')
    text = text.replace("weight b", 'weight u2 : f32[v, k] from "a[1:3]"\nweight b')
    text = text.replace("+ b[] - t[n]", "+ sum[v, k](u2[v, k]) + b[] - t[n]")
    graph, arrays = derive_training_step(build(text, "m.ein"), "loss", "sgd", ["u2", "b"]), draw()
    (stored,) = [tensor.stored for tensor in graph.tensors if (tensor.stored or "").startswith("a")]
    assert stored == f"a{first}"
    results = interpret(graph, {**arrays, **{f"{name}.velocity": 0 * arrays[name] for name in ("u", "b")}})
    error = 2 * (arrays["x"] @ arrays["u"] + arrays["u"][1:].sum() + arrays["b"] - arrays["t"]) / 5
    moved = arrays["u"] - 0.1 * (arrays["x"].T @ error + error.sum() * np.array([0, 1, 1], "f4"))
    np.testing.assert_allclose(results["u.next"], moved, rtol=1e-5, atol=1e-6)


def test_what_cannot_be_asked_for() -> None:
    with pytest.raises(UsageError, match="there is no optimizer 'adam'"):
        derive_training_step(build(TEXT, "m.ein"), "loss", "adam")
    with pytest.raises(UsageError, match="gradients are those of a loss"):
        es.compile(TEXT, "host", 1, optimizer="sgd")
    with pytest.raises(UsageError, match="for an optimizer"):
        es.compile(TEXT, "host", 1, train="loss", clip=1.0)
