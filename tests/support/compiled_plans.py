"""Plans of the compiler for the runtime's tests, their execution on the CPU, and what they should give."""

from __future__ import annotations

import math
import random
from pathlib import Path

import numpy as np

from einc.compiler import compile_model
from einc.options import CompileOptions
from einc_runtime.execution.cpu.executor import CpuExecutor
from einc_runtime.execution.session import Session
from tests.support.plan_arrays import arrays_of, results

MODELS = Path(__file__).parents[2] / "models"
TOLERANCE = {"f64": 1e-12, "f32": 1e-5, "f16": 1e-2, "bf16": 8e-2}


def compiled(text, sites, dtype=None, **definitions):
    settings = tuple((name, str(value)) for name, value in definitions.items())
    # The paper's selector cuts small operators, too: `fastest` would compute them whole, and nothing would move.
    options = CompileOptions(machine="host", devices=sites, definitions=settings, dtype=dtype, selector="eindecomp")
    return compile_model(text, "model.ein", options).bundle


def execute(bundle, seed=0, workers=3):
    """Inputs and weights as f64, and the outputs of a poisoned run in a random order of tasks."""
    rng = random.Random(seed)
    executor = CpuExecutor(bundle, workers, poison=True, ranks=[rng.random() for _ in bundle.tasks])
    session = Session(bundle, executor=executor)
    arrays = arrays_of(bundle, seed)
    outputs = list(results(session, arrays).values())
    return {name: array.astype("f8") for name, array in arrays.items()}, outputs


def close(computed, expected, dtype):
    error = np.abs(computed.astype("f8") - expected).max()
    assert error <= TOLERANCE[dtype] * np.abs(expected).max()


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
    scores = np.einsum("bshd,bthd->bhst", x, y)
    p = np.exp(scores - scores.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    z = np.einsum("bhst,bthd->bshd", p, y) + v
    g = z * 0.5 * np.vectorize(math.erfc)(-z / math.sqrt(2)) / (1 + np.exp(-x))
    o = np.einsum("bshd,hds->sb", g, w)
    c = np.where(o > 0.1, o / (1 + np.exp(-o)), np.tanh(o) / 2)
    return g.max((1, 3)), (g * g).sum((2, 3)), np.abs(y - v).min((2, 3)), c


TRANSFORMER = """
dim tokens = 13; dim d = 12; dim heads = 3; dim d_head = 4; dim vocabulary = 11; dim rows = 20
input  ids    : i64[tokens]
input  places : i64[tokens]
input  cache  : f32[heads, rows, d_head]
input  keep   : bool[tokens]
weight table  : f32[vocabulary, d]
weight gain   : f32[d]
weight bias   : f32[d]
weight wq     : f32[heads, d, d_head]
x = embedding(ids, table)
h = rmsnorm(x, gain, eps=1e-6)
q = matmul(h, wq)
r = rope(q, theta=500.0, seq_lens=[6, 7])
p = rope(q, positions=places, scaling="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
         original_length=16)
c = append(cache, r + p, places, cache_lens=[8, 12], new_lens=[6, 7])
l = layernorm(x, gain, bias)
whole = concat(l, h, over="tokens", into="both")
m = meanpool(slice(whole, both=[6, 19]), keep, seq_lens=[3, 10], into="sentences")
output c
output m
output again = embedding(cast(mod(ids, 3), "i32"), h)
"""
PLACES = np.array([3, 0, 7, 2, 1, 5, 11, 4, 0, 2, 9, 10, 3])
