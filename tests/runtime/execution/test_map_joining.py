"""Contractions and the maps of their results as one task: the same values, and only where nothing is lost."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from einc_runtime.execution.cpu.executor import CpuExecutor
from einc_runtime.execution.rewrites import kernel_splitting, map_joining, pipeline
from einc_runtime.execution.rewrites.map_joining import find_joined_maps
from einc_runtime.execution.session import Session
from einc_runtime.plan.schema import Region
from tests.support.compiled_plans import MODELS, close, compiled
from tests.support.plan_arrays import arrays_of, results

pytestmark = pytest.mark.usefixtures("provider")

MODEL = """
model joined
dim t = 37
dim m = 24
dim h = 3
dim d = 8
dim f = 40
input  x : f32[t, m]
weight q : f32[h, d, m]
weight c : f32[h, d]
weight u : f32[f, m]
weight b : f32[f]
weight w : f32[m, f]
weight e : f32[m]
k[h, t, d] = x[t, m] * q[h, d, m]
s[h, t, d] = silu(k[h, t, d] + c[h, d])
a[t, f] = x[t, m] * u[f, m]
g = gelu(a + b) * (a + b)
o[t, m] = g[t, f] * w[m, f]
y = x + o + e
output y
output s
"""
BLOCK = {"seq_lens": [9, 14], "d_model": 24, "heads_q": 6, "heads_kv": 2, "d_head": 4, "d_ff": 40}


@pytest.fixture(autouse=True)
def always(monkeypatch):
    monkeypatch.setattr(map_joining, "MIN_BYTES", 1)


def run(bundle, workers, seed=3):
    executor = CpuExecutor(bundle, workers, poison=True)
    outputs = [array.copy() for array in results(Session(bundle, executor=executor), arrays_of(bundle, seed)).values()]
    return sum(item.then is not None for item in executor._tasks), outputs


def bundles(dtype):
    block = (MODELS / "llama_block.ein").read_text()
    return {
        **{f"{sites} sites": compiled(MODEL, sites, dtype) for sites in (1, 2, 3)},
        **{f"block, {sites} sites": compiled(block, sites, dtype, **BLOCK) for sites in (1, 2)},
    }


@pytest.mark.sampled(3)
@pytest.mark.parametrize("dtype", ["f32", "bf16", "f64"])
def test_joined_maps_have_the_bits_of_separate_ones(dtype, monkeypatch):
    plans = bundles(dtype)
    found = {name: run(bundle, 1) for name, bundle in plans.items()}
    assert min(joined for joined, _ in found.values()) >= 1
    assert found["1 sites"][0] == 3
    monkeypatch.setattr(pipeline, "find_joined_maps", lambda *_: {})
    for name, bundle in plans.items():
        joined, expected = run(bundle, 1)
        assert joined == 0
        assert all(a.tobytes() == b.tobytes() for a, b in zip(found[name][1], expected, strict=True)), name


@pytest.mark.parametrize("sites", [1, 3])
def test_joined_maps_are_cut_with_their_contractions(sites, monkeypatch):
    monkeypatch.setattr(kernel_splitting, "MIN_PART_NS", 1e-3)
    monkeypatch.setattr(kernel_splitting, "MIN_STREAM_NS", 1e-3)
    bundle = compiled(MODEL, sites, "f32")
    _, whole = run(bundle, 1)
    joined, parts = run(bundle, 5)
    assert joined > 3
    for found, expected in zip(parts, whole, strict=True):
        close(found, expected.astype("f8"), "f32")


def test_nothing_is_joined_where_an_operand_is_lost_or_lies_where_the_result_goes():
    bundle = compiled(MODEL, 1, "f32")
    found = find_joined_maps(bundle, bundle.tasks)
    number, (contraction, _) = max(found.items())
    target = bundle.tasks[number].writes[0].buffer
    operand = next(r.buffer for r in bundle.tasks[contraction].reads if bundle.buffers[r.buffer].role == "scratch")

    def moved(buffer, offset):
        buffers = list(bundle.buffers)
        buffers[buffer] = msgspec.structs.replace(buffers[buffer], offset=offset)
        return msgspec.structs.replace(bundle, buffers=tuple(buffers))

    there = moved(target, bundle.buffers[operand].offset)
    assert set(find_joined_maps(there, bundle.tasks)) == set(found) - {number}

    def with_write(buffer):
        written = bundle.tasks[contraction].reads[0].block
        between = msgspec.structs.replace(bundle.tasks[0], writes=(Region(buffer, written),))
        return [*bundle.tasks[:number], between, *bundle.tasks[number:]]

    other = next(n for n, buffer in enumerate(bundle.buffers) if buffer.role == "input")
    later = {number + 1} | set(found) - {number}
    assert set(find_joined_maps(bundle, with_write(other))) == later
    assert set(find_joined_maps(bundle, with_write(operand))) == later - {number + 1}
    over = moved(other, bundle.buffers[operand].offset)
    assert number + 1 not in find_joined_maps(over, with_write(other))


@pytest.mark.parametrize(
    ("line", "joined", "expected"),
    [
        ("y = relu(p)", 1, lambda p, q, r: np.maximum(p, 0)),
        ("y[j, i] = relu(p[i, j])", 0, lambda p, q, r: np.maximum(p, 0).T),
        ("y = relu(p) + p", 1, lambda p, q, r: np.maximum(p, 0) + p),
        ("y = relu(p + q)", 1, lambda p, q, r: np.maximum(p + q, 0)),
        ("y = p - r", 1, lambda p, q, r: p - r),
    ],
)
def test_a_map_works_in_place_on_the_element_that_it_computes(line, joined, expected):
    text = f"""
model m
dim i = 9
dim j = 9
dim k = 5
input a : f32[i, k]
input b : f32[k, j]
input q : f32[i, j]
input r : f32[j]
p[i, j] = a[i, k] * b[k, j]
{line}
output y
"""
    bundle = compiled(text, 1, "f32")
    assert len(find_joined_maps(bundle, bundle.tasks)) == joined
    _, (found,) = run(bundle, 2)
    a, b, q, r = (array.astype("f8") for array in map(arrays_of(bundle, 3).get, "abqr"))
    close(found, expected(a @ b, q, r), "f32")


def test_small_results_stay_apart(monkeypatch):
    monkeypatch.setattr(map_joining, "MIN_BYTES", 37 * 40 * 4 + 1)
    bundle = compiled(MODEL, 1, "f32")
    assert not find_joined_maps(bundle, bundle.tasks)
