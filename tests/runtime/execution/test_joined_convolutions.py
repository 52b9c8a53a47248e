"""Convolutions and the maps of their results as one call of a library: the same values, in the memory of the plan."""

from __future__ import annotations

import pytest

from einc_runtime.execution.cpu.executor import CpuExecutor
from einc_runtime.execution.rewrites import map_joining, order_channels, pipeline, separate_results
from einc_runtime.execution.session import Session
from einc_runtime.kernels import index_convolutions
from einc_runtime.kernels.numpy import onednn
from tests.support.compiled_plans import close, compiled
from tests.support.plan_arrays import arrays_of, results

pytestmark = pytest.mark.skipif(not onednn.is_available(), reason="oneDNN is not installed")

MODEL = """
model residual
dim n = 6
dim c = 24
dim f = 40
dim h = 9
dim w = 7
input  x : f32[n, c, h, w]
weight a : f32[f, c, 3, 3]
weight b : f32[c, f, 1, 1]
weight d : f32[f, c, 1, 1]
weight s : f32[f]
weight t : f32[f]
weight u : f32[c]
o = relu(x)
p[n, f, h: i = h, w: j = w] = o[n, c, i + r - 1, j + q - 1, outside = 0] * a[f, c, r, q]
k[n, f, h, w] = relu(p[n, f, h, w] * s[f] + t[f])
l[n, c, h: i = h, w: j = w] = k[n, f, i, j] * b[c, f, 0, 0]
m[n, c, h, w] = relu(l[n, c, h, w] - u[c] + o[n, c, h, w])
e[n, f, v: i = 5, z: j = 4] = m[n, c, 2 * i, 2 * j] * d[f, c, 0, 0]
y[n, f, v, z] = silu(e[n, f, v, z] + t[f])
output y
"""


@pytest.fixture(autouse=True)
def always(monkeypatch):
    monkeypatch.setattr(map_joining, "MIN_BYTES", 1)
    for name in ("MIN_PACKED_PRODUCTS", "MIN_ROWS"):
        monkeypatch.setattr(index_convolutions, name, 1)


def run(bundle, workers, **options):
    executor = CpuExecutor(bundle, workers, poison=True, **options)
    outputs = [array.copy() for array in results(Session(bundle, executor=executor), arrays_of(bundle, 3)).values()]
    return sum(item.then is not None for item in executor._tasks), outputs


@pytest.mark.parametrize(("sites", "workers"), [(1, 1), (1, 4), (3, 2)])
def test_joined_convolutions_have_the_bits_of_separate_ones(sites, workers, monkeypatch):
    bundle = compiled(MODEL, sites, "f32")
    joined, fused = run(bundle, workers)
    assert joined >= 2 * sites
    _, plain = run(bundle, workers, rewrites=False)
    monkeypatch.setattr(pipeline, "find_joined_maps", lambda *_: {})
    separate, expected = run(bundle, workers)
    assert separate == 0
    assert fused[0].tobytes() == expected[0].tobytes()
    close(fused[0], plain[0].astype("f8"), "f32")


def test_a_sum_is_stored_where_its_operand_was():
    bundle = order_channels(compiled(MODEL, 1, "f32"))
    moved = separate_results(bundle)
    places = {moved.tensors[record.tensor].name: record.offset for record in moved.buffers}
    assert places["m"] == places["o"]
    assert len({places[name] for name in "opk"}) == 3
    assert separate_results(moved) == moved
    without = compiled(MODEL.replace("f32", "f64"), 1, "f64")
    assert separate_results(without) is without
