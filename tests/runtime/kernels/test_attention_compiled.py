"""Compiled plans with attention against whole arrays, with heads, sequences and keys cut as the optimizer chooses."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from einc.compiler import compile_model
from einc.graph.graph import TensorKind
from einc.logical.candidates import enumerate_flexible_candidates
from einc.options import CompileOptions
from einc.physical.build import build
from einc.physical.records import emit
from einc_runtime.execution.cpu.executor import CpuExecutor
from einc_runtime.execution.session import Session
from einc_runtime.plan.proof import prove
from tests.support.compiled_plans import close, compiled
from tests.support.plan_arrays import outputs_of


def executed(bundle, arrays, seed=0):
    """The outputs of a poisoned run in a random order of tasks, by name, after the plan is proved."""
    prove(bundle)
    rng = random.Random(seed)
    session = Session(bundle, executor=CpuExecutor(bundle, 3, poison=True, ranks=[rng.random() for _ in bundle.tasks]))
    for name, array in arrays.items():
        session.load(name, array)
    session.execute()
    return outputs_of(session)


BLOCK = """
model packed
dim tokens = 19
dim d_model = 10
dim heads_q = 6
dim heads_kv = 3
dim d_head = 4
input x : f32[tokens, d_model]
weight wq : f32[d_model, heads_q, d_head]
weight wk : f32[d_model, heads_kv, d_head]
weight wv : f32[d_model, heads_kv, d_head]
weight wo : f32[heads_q, d_head, d_model]
q[heads_q, tokens, d_head] = sum[i](x[tokens, i] * wq[i, heads_q, d_head])
k[heads_kv, tokens, d_head] = sum[i](x[tokens, i] * wk[i, heads_kv, d_head])
v[heads_kv, tokens, d_head] = sum[i](x[tokens, i] * wv[i, heads_kv, d_head])
o, lse = attention(q, k, v, causal=true, seq_lens=[7, 3, 9])
y[tokens, j] = sum[h, i](o[h, tokens, i] * wo[h, i, j])
output y
output lse
"""


def block_of(a, lens):
    """The definition in f64, one sequence and one head after another."""
    q, k, v = (np.einsum("ti,ihd->htd", a["x"], a[w]) for w in ("wq", "wk", "wv"))
    o, lse = np.zeros_like(q), np.zeros(q.shape[:2])
    start = 0
    for length in lens:
        rows = slice(start, start + length)
        for h in range(len(q)):
            kv = h // (len(q) // len(k))
            scores = q[h, rows] @ k[kv, rows].T / np.sqrt(q.shape[2])
            scores[np.triu_indices(length, 1)] = -np.inf
            lse[h, rows] = np.log(np.exp(scores).sum(1))
            o[h, rows] = np.exp(scores - lse[h, rows, None]) @ v[kv, rows]
        start += length
    return np.einsum("hti,hij->tj", o, a["wo"]), lse


@pytest.mark.sampled(6)
@pytest.mark.parametrize("sites", range(1, 9))
@pytest.mark.parametrize("heads", [(6, 3), (5, 5), (4, 1)], ids=str)
def test_a_block_on_any_number_of_sites(sites, heads):
    bundle = compiled(BLOCK, sites, heads_q=heads[0], heads_kv=heads[1])
    rng = np.random.default_rng(sites)
    shapes = {t.name: t.shape for t in bundle.tensors if t.kind != "value"}
    arrays = {name: rng.normal(0, 0.6, shape).astype("f4") for name, shape in shapes.items()}
    y, lse = block_of({name: array.astype("f8") for name, array in arrays.items()}, (7, 3, 9))
    found = executed(bundle, arrays, sites)
    close(found["y"], y, "f32")
    close(found["lse"], lse, "f32")


@pytest.mark.sampled(2)
@pytest.mark.parametrize("sites", [2, 3, 6])
def test_a_block_whose_queries_are_cut(sites):
    """Every cut of queries that is offered, evenly and by work, with the optimizer's cuts around it."""
    options = CompileOptions(machine="host", selector="eindecomp", devices=sites, schedule="naive")
    stages = compile_model(BLOCK, "model.ein", options)
    plan = stages.plan
    at = next(n for n, node in enumerate(plan.graph.nodes) if node.operator.family == "attention")
    offers = enumerate_flexible_candidates(plan.graph.nodes[at].operator, sites)
    cuts = [candidate for candidate in offers if len(candidate.intervals[2]) > 1]
    assert {len(candidate.intervals[0]) for candidate in cuts} == ({1, 2, 3} if sites == 6 else {1})
    shapes = {tensor.name: tensor.desc.shape for tensor in plan.graph.tensors if tensor.kind is not TensorKind.VALUE}
    rng = np.random.default_rng(sites)
    arrays = {name: rng.normal(0, 0.6, shape).astype("f4") for name, shape in shapes.items()}
    y, lse = block_of({name: array.astype("f8") for name, array in arrays.items()}, (7, 3, 9))
    for candidate in cuts:
        choices = [replace(c, candidate=candidate) if n == at else c for n, c in enumerate(plan.choices)]
        program = build(replace(plan, choices=tuple(choices)), stages.target.machine)
        found = executed(emit(program, stages.target.machine, stages.target.devices, "naive"), arrays, sites)
        close(found["y"], y, "f32")
        close(found["lse"], lse, "f32")


DECODE = """
model decode
dim tokens = 2
dim cache = 43
dim heads_q = 4
dim heads_kv = 1
dim d_head = 8
input q : f32[heads_q, tokens, d_head]
input k : f32[heads_kv, cache, d_head]
input v : f32[heads_kv, cache, d_head]
input positions : i64[tokens]
input valid : bool[cache]
o = attention(q, k, v, causal=true, q_lens=[1, 1], k_lens=[23, 20], positions=positions, mask=valid)
output o
"""


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", ["f32", "f64", "f16", "bf16"])
@pytest.mark.parametrize("sites", range(1, 9))
def test_decoding_over_a_cache_that_is_cut(sites, dtype):
    """One head of keys and two sequences: more sites than two cut the keys. The rest of the cache is unused."""
    bundle = compiled(DECODE, sites, dtype)
    rng = np.random.default_rng(sites)
    q, k, v = rng.normal(size=(4, 2, 8)), rng.normal(size=(1, 43, 8)), rng.normal(size=(1, 43, 8))
    places, valid = [13, 4], rng.random(43) < 0.8
    valid[[0, 23]] = True
    from einc_runtime.dtypes import storage_dtype

    q, k, v = (x.astype(storage_dtype(dtype)) for x in (q, k, v))
    expected = np.zeros((4, 2, 8))
    for t, start in enumerate((0, 23)):
        seen = [j for j in range(start, start + places[t] + 1) if valid[j]]
        scores = q[:, t].astype("f8") @ k[0, seen].astype("f8").T / np.sqrt(8)
        weights = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
        expected[:, t] = weights @ v[0, seen].astype("f8")
    k[:, 14:23] = v[:, 14:23] = k[:, 28:] = v[:, 28:] = np.nan
    arrays = {"q": q, "k": k, "v": v, "positions": np.array(places), "valid": valid}
    close(executed(bundle, arrays, sites)["o"], expected, dtype)
    (operation,) = bundle.operations
    if sites in (3, 5, 6, 8):
        keys = next(index for index in operation.indices if index.name == "keys")
        assert len(keys.intervals) > 1


@pytest.mark.parametrize("sites", [4, 8])
def test_keys_that_nobody_sees_at_some_sites(sites):
    """A causal mask: whole parts of the keys are behind all queries of another part, or of the sequence."""
    text = DECODE.replace("q_lens=[1, 1], k_lens=[23, 20], positions=positions, mask=valid", "q_lens=[2], k_lens=[43]")
    text = text.replace("input positions : i64[tokens]\n", "").replace("input valid : bool[cache]\n", "")
    windowed = text.replace("causal=true", "causal=true, window=3")
    rng = np.random.default_rng(sites)
    q, k, v = (rng.normal(size=shape).astype("f4") for shape in ((4, 2, 8), (1, 43, 8), (1, 43, 8)))
    expected = np.zeros((4, 2, 8))
    for t in (0, 1):
        seen = slice(42 + t - 3, 42 + t)
        scores = q[:, t].astype("f8") @ k[0, seen].astype("f8").T / np.sqrt(8)
        expected[:, t] = np.exp(scores) / np.exp(scores).sum(1, keepdims=True) @ v[0, seen].astype("f8")
    close(executed(compiled(windowed, sites), {"q": q, "k": k, "v": v})["o"], expected, "f32")
