"""Weights that the CPU executor lays out once: new values are seen, sites share them, and memory is limited."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from einc_runtime.execution.cpu import memory
from einc_runtime.execution.cpu.executor import CpuExecutor
from einc_runtime.execution.session import Session
from einc_runtime.execution.shared_buffers import SharedBuffers
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


@pytest.mark.sampled(2)
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
        assert executor.facts().cpu.memory_bytes.packed > 0


@pytest.mark.parametrize("copies", [False, True])
def test_results_do_not_depend_on_what_is_laid_out(copies, monkeypatch):
    bundle = compiled(MODEL, 4, "f16")
    arrays, found = arrays_of(bundle, 3), []
    for available in (None, 1 << 40, 1 << 10):
        monkeypatch.setattr(memory, "available_memory", lambda available=available: available)
        executor = CpuExecutor(bundle, 2, rewrites=not copies)
        assert bool(executor.facts().cpu.memory_bytes.packed) == (not copies and available != 1 << 10)
        session = Session(bundle, executor=executor)
        session.load_all(arrays)
        session.execute()
        found.append(session.offload("y"))
        close(found[-1], exact(arrays), "f16")
        session.execute()
        assert np.array_equal(session.offload("y"), found[-1])


@pytest.mark.parametrize("dtype", ["f32", "f16"])
@pytest.mark.parametrize("tokens", [12, 131])
def test_weights_of_several_plans_are_there_once(dtype, tokens):
    """What multiplies many rows packs in each call, and leaves nothing behind."""
    bundle = compiled(MODEL.replace("131", str(tokens)), 1, dtype)
    common = SharedBuffers(prepack=False)
    executor = CpuExecutor(bundle, 2, common=common)
    session = Session(bundle, executor=executor, common=common)
    arrays = arrays_of(bundle, 3)
    session.load_all(arrays)
    for _ in range(2):
        session.execute()
        close(session.offload("y"), exact(arrays), dtype)
    assert not [kernel for kernel in executor._kernels if kernel.prepacked]
    assert executor.facts().cpu.memory_bytes.packed == 0


@pytest.mark.parametrize("dtype", ["f32", "f16"])
def test_weights_that_another_executor_has_laid_out_are_noticed_when_they_change(dtype, monkeypatch):
    """The second executor has too little memory for layouts of its own, and uses those of the first one."""
    bundle, common = compiled(MODEL, 1, dtype), SharedBuffers()
    executors = [CpuExecutor(bundle, 2, common=common)]
    monkeypatch.setattr(memory, "available_memory", lambda: 10)
    monkeypatch.setattr(memory, "require_memory", lambda *_: None)
    executors.append(CpuExecutor(bundle, 2, common=common))
    assert executors[1].facts().cpu.memory_bytes.packed == 0
    sessions = [Session(bundle, executor=executor, common=common) for executor in executors]
    for seed in (1, 2, 3):
        arrays = arrays_of(bundle, seed)
        sessions[0].load_all({name: arrays[name] for name in "ab"})
        for session in (sessions[0], sessions[1], sessions[0]):
            session.load_all({"x": arrays["x"]})
            session.execute()
            close(session.offload("y"), exact(arrays), dtype)


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


TIED = """
model tied
dim tokens = 40
dim vocab = 301
dim wide = 131
input ids : i64[tokens]
weight table : f16[vocab, wide]
weight up : f16[wide, wide]
x = embedding(ids, table)
h[tokens, out] = x[tokens, wide] * up[out, wide]
y[tokens, vocab] = h[tokens, wide] * table[vocab, wide]
output y
"""


@pytest.mark.parametrize("sites", [1, 3])
def test_weights_that_are_laid_out_are_kept_where_somebody_else_reads_them(sites):
    """With `poison`, what would be given back is filled with NaNs: whoever reads it computes one."""
    bundle = compiled(TIED, sites)
    executor = CpuExecutor(bundle, 2, poison=True)
    session = Session(bundle, executor=executor)
    names = [tensor.name for tensor in bundle.tensors]
    for seed in (1, 2):
        fresh = arrays_of(bundle, seed)
        session.load_all(fresh)
        for _ in range(2):
            session.execute()
            ids, table, up = (fresh[name] for name in ("ids", "table", "up"))
            rows = table[ids].astype("f8")
            close(session.offload("y"), (rows @ up.astype("f8").T) @ table.astype("f8").T, "f16")
    replaced = {array.ctypes.data for array in executor._prepacked._replaced.values()}
    kinds = {
        names[buffer.tensor]
        for number, buffer in enumerate(bundle.buffers)
        if executor.memory_of(number).ctypes.data in replaced
    }
    # On several sites, a block of the table may be there for the product alone, and products may be too small to pack.
    assert kinds == {"up"} if sites == 1 else kinds <= {"up", "table"}
    assert executor.facts().cpu.memory_bytes.released == sum(
        array.nbytes for array in {id(a): a for a in executor._prepacked._replaced.values()}.values()
    )


@pytest.mark.skipif(sys.platform != "linux", reason="memory is given back on Linux")
def test_memory_of_weights_is_given_back_until_they_are_loaded_again():
    bundle = compiled(MODEL, 1, "f16")
    executor = CpuExecutor(bundle, 2)
    session = Session(bundle, executor=executor)
    arrays = arrays_of(bundle, 1)
    session.load_all(arrays)
    places = {bundle.tensors[b.tensor].name: executor.memory_of(n) for n, b in enumerate(bundle.buffers)}
    for _ in range(2):
        session.load("a", arrays["a"])
        assert np.count_nonzero(places["a"]) > 0.99 * places["a"].size
        session.execute()
        close(session.offload("y"), exact(arrays), "f16")
        assert np.count_nonzero(places["a"]) < 0.2 * places["a"].size  # but for pages that belong to others, too
    shared = Session(bundle, "cpu", common=SharedBuffers())
    shared.load_all(arrays)
    shared.execute()
    assert shared.facts.cpu.memory_bytes.released == 0
    shared.close()
