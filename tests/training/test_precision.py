"""Steps with 16-bit products keep weights in f32, scale losses of f16, and add up gradients of parts of a batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import einc as es
from einc.cli.main import main
from einc.core.tensor import DType
from einc.errors import UsageError
from einc.frontend import build
from einc.graph.graph import Graph
from einc.training.precision import mix_precision
from einc.training.steps import StepOptions, derive_training_step
from einc_runtime.errors import ArrayFault
from einc_runtime.plan.codec import encode

TEXT = """model classes
dim n = 21
dim w = 6
dim h = 10
dim c = 5
input x : f32[n, w]
input targets : i64[n]
weight u : f32[w, h]
weight gain : f32[h]
weight v : f32[h, c]
hidden = relu(rmsnorm(matmul(x, u), gain))
output loss = cross_entropy(matmul(hidden, v), targets)
"""
RNG = np.random.default_rng(6)
WEIGHTS = {
    "u": RNG.standard_normal((6, 10)).astype("f4"), "gain": np.ones(10, "f4"),
    "v": RNG.standard_normal((10, 5)).astype("f4"),
}  # fmt: skip
X, TARGETS = RNG.standard_normal((63, 6)).astype("f4"), RNG.integers(0, 5, 63)


def compile_step(text: str = TEXT, optimizer: str = "adamw", sites: int = 2, **options: Any) -> es.Plan:
    return es.compile(
        text, "host", sites, train="loss", optimizer=optimizer, selector="eindecomp", schedule="naive", **options
    ).loadWeights(WEIGHTS)


def count_types(graph: Graph) -> dict[str, str]:
    return {tensor.name: tensor.desc.dtype.value for tensor in graph.tensors}


def test_products_are_narrow_and_all_else_is_as_the_model_says() -> None:
    graph = mix_precision(build(TEXT, "m.ein"), "bf16", ["u"])
    types = count_types(graph)
    products = [node for node in graph.nodes if node.operator.title == "matmul"]
    assert [node.operator.outputs[0].dtype for node in products] == [DType.BF16] * 2
    assert all(desc.dtype is DType.BF16 for node in products for desc in node.operator.inputs)
    assert types["u"] == types["gain"] == types["loss"] == "f32"
    (norm,) = [node for node in graph.nodes if node.operator.family == "rows"]
    assert {desc.dtype for desc in norm.operator.inputs} == {DType.F32}
    narrow = build(TEXT.replace("f32", "bf16"), "m.ein")
    widened = count_types(mix_precision(narrow, "bf16", ["u", "v"]))
    assert (widened["u"], widened["v"], widened["gain"], widened["x"]) == ("f32", "f32", "bf16", "bf16")
    with pytest.raises(UsageError, match="no mixed precision 'f32'"):
        mix_precision(narrow, "f32", [])


def test_masks_with_numbers_beyond_16_bits_stay_wide() -> None:
    lines = "product = matmul(x, u)\nseen = where(product > 0.0, product, -3.4028235e+38)\nhidden = softmax(seen)"
    text = TEXT.replace("hidden = relu(rmsnorm(matmul(x, u), gain))", lines)
    graph = derive_training_step(build(text, "m.ein"), "loss", "sgd", options=StepOptions(precision="bf16"))
    types = count_types(graph)
    assert types["product"] == "bf16"
    assert types["seen"] == "f32"


def test_small_steps_change_weights_of_f32() -> None:
    """A rate of 1e-4 changes no bf16 weight of about 1; the f32 that it is rounded from goes on."""
    text = TEXT.replace("f32", "bf16").replace("matmul(hidden, v)", 'cast(matmul(hidden, v), "f32")')
    moved = []
    for options in ({}, {"precision": "bf16"}):
        plan = compile_step(text, "lion", **options)
        for _ in range(20):
            plan.trainStep(X[:21], TARGETS[:21], learning_rate=1e-4)
        moved.append(float(np.abs(plan.session.offload("gain").astype("f4") - 1).mean()))
    assert moved[0] == 0
    assert 5e-4 < moved[1] < 2.1e-3


def test_parts_of_a_batch_are_the_batch() -> None:
    parts = compile_step(accumulate=True, clip=0.3)
    whole = compile_step(TEXT.replace("n = 21", "n = 63"), sites=1, clip=0.3)
    for _ in range(4):
        ends = [slice(21 * n, 21 * n + 21) for n in range(3)]
        losses = [
            parts.trainStep(X[end], TARGETS[end], learning_rate=0.05, accumulate=(n + 1, 3))
            for n, end in enumerate(ends)
        ]
        assert np.mean(losses) == pytest.approx(whole.trainStep(X, TARGETS, learning_rate=0.05), rel=1e-5)
    for tensor in whole.session.states:
        expected = whole.session.offload(tensor.name)
        np.testing.assert_allclose(parts.session.offload(tensor.name), expected, rtol=1e-3, atol=1e-5)
    with pytest.raises(ArrayFault, match="no part 2 of 3"):
        whole.trainStep(X, TARGETS, learning_rate=0.05, accumulate=(2, 3))


def test_infinite_gradients_change_nothing_but_the_scale() -> None:
    plan = compile_step(precision="f16", clip=1.0)
    session = plan.session

    def read() -> dict[str, Any]:
        return {tensor.name: session.offload(tensor.name).copy() for tensor in session.states}

    plan.trainStep(X[:21], TARGETS[:21], learning_rate=0.01)
    before = read()
    assert (before["loss.scale"], before["loss.good"], before["loss.steps"]) == (65536, 1, 1)
    plan.trainStep(X[:21] * np.float32(1e5), TARGETS[:21], learning_rate=0.01)  # infinite in f16
    after = read()
    assert (after["loss.scale"], after["loss.good"], after["loss.steps"]) == (32768, 0, 1)
    for name in before.keys() - {"loss.scale", "loss.good"}:
        np.testing.assert_array_equal(before[name], after[name])
    session.load("loss.good", np.float32(1999))
    plan.trainStep(X[:21], TARGETS[:21], learning_rate=0.01)
    assert (read()["loss.scale"], read()["loss.good"], read()["loss.steps"]) == (65536, 0, 2)


def test_what_cannot_be_asked_for() -> None:
    graph = build(TEXT.replace("f32", "f16"), "m.ein")
    with pytest.raises(UsageError, match="'loss' is f16"):
        derive_training_step(graph, "loss", "adamw", None, StepOptions(precision="f16"))
    with pytest.raises(UsageError, match="for an optimizer"):
        es.compile(TEXT, "host", 1, train="loss", accumulate=True)


def test_a_run_of_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    """A step of three parts gets the samples of one of three times as many rows."""
    monkeypatch.chdir(tmp_path)
    np.save("x.npy", X)
    np.save("t.npy", TARGETS)
    np.savez("w.npz", **WEIGHTS)
    losses = []
    for name, text, options, words in (
        ("parts", TEXT, {"accumulate": True}, ["--accumulate", "3"]),
        ("whole", TEXT.replace("n = 21", "n = 63"), {}, []),
    ):
        Path(f"{name}.bin").write_bytes(encode(compile_step(text, sites=1, **options).bundle))
        data = ["--data", "x=x.npy", "--data", "targets=t.npy", "--weights", "w.npz"]
        run = ["--steps", "5", "--rate", "0.02", "--losses", f"{name}.csv"]
        assert main(["train", f"{name}.bin", *data, *run, *words]) == 0
        losses.append([float(line.split(",")[1]) for line in Path(f"{name}.csv").read_text().splitlines()[1:]])
    np.testing.assert_allclose(*losses, rtol=1e-4)
    assert main(["train", "whole.bin", *data, *run, "--accumulate", "3"]) == 2
    assert "compile it again with --accumulate" in capfd.readouterr().err
