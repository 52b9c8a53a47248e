"""Compiled plans against whole-array numpy: every kernel, any number of sites, all floating types, odd sizes."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from runtime.draws import random_input
from runtime.executors.cpu import CpuExecutor
from runtime.session import Session

MODELS = Path(__file__).parents[2] / "models"
TOLERANCE = {"f64": 1e-12, "f32": 1e-5, "f16": 1e-2, "bf16": 8e-2}


def compiled(text, sites, dtype=None, **definitions):
    from einc.compiler import compile_model
    from einc.options import CompileOptions

    settings = tuple((name, str(value)) for name, value in definitions.items())
    options = CompileOptions(machine="host", devices=sites, definitions=settings, dtype=dtype)
    return compile_model(text, "model.ein", options).bundle


def execute(bundle, seed=0, workers=3):
    """Inputs and weights as f64, and the outputs of a poisoned run in a random order of tasks."""
    rng = random.Random(seed)
    executor = CpuExecutor(bundle, workers, poison=True, ranks=[rng.random() for _ in bundle.tasks])
    session = Session(bundle, executor=executor)
    arrays = {t.name: random_input(t, seed) for t in bundle.tensors if t.kind != "value"}
    session.load_all(arrays)
    session.execute()
    outputs = [session.offload(tensor.name) for tensor in session.outputs]
    return {name: array.astype("f8") for name, array in arrays.items()}, outputs


def close(found, expected, dtype):
    error = np.abs(found.astype("f8") - expected).max()
    assert error <= TOLERANCE[dtype] * np.abs(expected).max()


@pytest.mark.parametrize("sites", range(1, 9))
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_ffn(sites, dtype):
    text = (MODELS / "ffn.ein").read_text()
    bundle = compiled(text, sites, dtype, tokens=37, d_model=29, d_ff=53)
    a, (y,) = execute(bundle, sites)
    close(y, np.maximum(a["x"] @ a["w1"], 0) @ a["w2"], dtype)


CHAINS = {
    "chain_a": "(m1 m2) (((m3 m4) ((m5 m6) (m7 m8))) m9)",
    "chain_b": "(m1 m2) ((m3 m4) m5)",
    "chain_c": "m1 (m2 m3)",
}


@pytest.mark.parametrize("sites", [2, 3, 5, 7, 8])
@pytest.mark.parametrize("name", ["chain_a", "chain_b", "chain_c", "chain_d", "chain_e"])
def test_chains(name, sites):
    bundle = compiled((MODELS / f"{name}.ein").read_text(), sites, "f32", scale=300)
    a, (y,) = execute(bundle, sites)
    factors = [a[f"m{k + 1}"] for k in range(len(a))]
    close(y, np.linalg.multi_dot(factors), "f32")


EVERYTHING = """
model everything
param n = 1
dim b = 3 * n
dim s = 11
dim t = 7
dim h = 2
dim d = 5
input  x : f32[b, s, h, d]
input  y : f32[b, t, h, d]
weight v : f32[h, d]
weight w : f32[h, d, s]
scores[b, h, s, t] = x[b, s, h, d] * y[b, t, h, d]
p = softmax(scores)
z[b, s, h, d] = p[b, h, s, t] * y[b, t, h, d]
g = gelu(z + v) * sigmoid(x)
biggest[b, h] = max[s, d](g[b, s, h, d])
norm[b, s] = sum[h, d](g[b, s, h, d] * g[b, s, h, d])
u[b, t] = min[h, d](abs(y[b, t, h, d] - v[h, d]))
o[s, b] = g[b, s, h, d] * w[h, d, s]
c = where(o > 0.1, silu(o), tanh(o) / 2.0)
output biggest, norm, u, c
"""


def everything(a):
    x, y, v, w = a["x"], a["y"], a["v"], a["w"]
    import math

    scores = np.einsum("bshd,bthd->bhst", x, y)
    p = np.exp(scores - scores.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    z = np.einsum("bhst,bthd->bshd", p, y) + v
    g = z * 0.5 * np.vectorize(math.erfc)(-z / math.sqrt(2)) / (1 + np.exp(-x))
    o = np.einsum("bshd,hds->sb", g, w)
    c = np.where(o > 0.1, o / (1 + np.exp(-o)), np.tanh(o) / 2)
    return g.max((1, 3)), (g * g).sum((2, 3)), np.abs(y - v).min((2, 3)), c


@pytest.mark.parametrize("sites", [1, 2, 3, 4, 5, 6, 8])
@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_every_kernel_in_one_model(sites, dtype):
    bundle = compiled(EVERYTHING, sites, dtype)
    assert {operation.kernel for operation in bundle.operations} >= {"contract", "map", "reduce", "softmax"}
    a, found = execute(bundle, sites)
    for output, expected in zip(found, everything(a), strict=True):
        assert output.shape == expected.shape
        close(output, expected, dtype)


def test_compiled_plans_are_bit_identical_from_run_to_run():
    bundle = compiled((MODELS / "chain_b.ein").read_text(), 6, "f32", scale=200)
    results = {execute(bundle, 1, workers)[1][0].tobytes() for workers in (1, 2, 3, 4) for _ in range(3)}
    assert len(results) == 1


@pytest.mark.slow
@pytest.mark.parametrize("sites", [9, 12, 16, 30, 72])
def test_many_sites(sites):
    bundle = compiled(EVERYTHING, sites, "f32", n=4)
    a, found = execute(bundle, sites)
    for output, expected in zip(found, everything(a), strict=True):
        close(output, expected, "f32")
