"""Weights that the CPU executor lays out once: new values are seen, sites share them, and memory is limited."""

from __future__ import annotations

import numpy as np
import pytest

from einc_runtime.execution.cpu import memory
from einc_runtime.execution.cpu.executor import CpuExecutor
from einc_runtime.execution.session import Session
from einc_runtime.plan.schema import Region
from tests.support.compiled_plans import compiled
from tests.support.plan_arrays import arrays_of

MODEL = """
model two_layers
dim tokens = 131
dim wide = 301
dim narrow = 211
input x : f32[tokens, wide]
weight a : f32[narrow, wide]
weight b : f32[narrow, wide]
h[tokens, narrow] = x[tokens, wide] * a[narrow, wide]
g = relu(h)
y[tokens, wide] = g[tokens, narrow] * b[narrow, wide]
output y
"""


def exact(arrays):
    x, a, b = (arrays[name].astype("f8") for name in "xab")
    return np.maximum(x @ a.T, 0) @ b


def close(found, expected, dtype):
    assert np.abs(found.astype("f8") - expected).max() <= {"f16": 5e-3, "f32": 1e-5}[dtype] * np.abs(expected).max()


@pytest.mark.parametrize("dtype", ["f32", "f16"])
@pytest.mark.parametrize("sites", [1, 3])
def test_weights_that_are_loaded_again_are_laid_out_again(sites, dtype):
    bundle = compiled(MODEL, sites, dtype)
    executor = CpuExecutor(bundle, 2, poison=True)
    session = Session(bundle, executor=executor)
    arrays = {}
    for seed, names in enumerate(["xab", "x", "b", "ab", ""]):
        fresh = arrays_of(bundle, seed)
        arrays |= {name: fresh[name] for name in names}
        session.load_all({name: arrays[name] for name in names})
        session.execute()
        close(session.offload("y"), exact(arrays), dtype)
    if dtype == "f16":
        assert executor.facts()["memory_bytes"]["packed"] > 0


@pytest.mark.parametrize("copies", [False, True])
def test_results_do_not_depend_on_what_is_laid_out(copies, monkeypatch):
    bundle = compiled(MODEL, 4, "f16")
    arrays, found = arrays_of(bundle, 3), []
    for available in (None, 1 << 40, 1 << 10):
        monkeypatch.setattr(memory, "available_memory", lambda available=available: available)
        executor = CpuExecutor(bundle, 2, rewrites=not copies)
        assert bool(executor.facts()["memory_bytes"]["packed"]) == (not copies and available != 1 << 10)
        session = Session(bundle, executor=executor)
        session.load_all(arrays)
        session.execute()
        found.append(session.offload("y"))
        close(found[-1], exact(arrays), "f16")
        session.execute()
        assert np.array_equal(session.offload("y"), found[-1])


def test_kernels_cannot_write_weights_and_sites_share_them():
    bundle = compiled(MODEL, 3)
    for copies in (False, True):
        arenas = CpuExecutor(bundle, 1, rewrites=not copies)._memory
        places: dict[object, list[int]] = {}
        for buffer, array in zip(bundle.buffers, arenas.buffers, strict=True):
            view = arenas.view(Region(bundle.buffers.index(buffer), buffer.block))
            assert view.flags.writeable == (buffer.role != "weight")
            if buffer.role in ("input", "weight"):
                places.setdefault((buffer.tensor, buffer.block), []).append(array.ctypes.data)
        repeated = [found for found in places.values() if len(found) > 1]
        assert repeated
        assert all(len(set(found)) == (len(found) if copies else 1) for found in repeated)
