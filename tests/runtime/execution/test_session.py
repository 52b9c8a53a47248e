"""Sessions: what is loaded and refused, executed again, offloaded and traced."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import ml_dtypes
import msgspec
import numpy as np
import pytest
import safetensors.numpy

from einc_runtime.cli.arrays import read_inputs
from einc_runtime.errors import ArrayFault, MissingFault, PlanFault
from einc_runtime.execution import backends
from einc_runtime.execution.cpu.executor import CpuExecutor
from einc_runtime.execution.data.safetensors import SafetensorsFile
from einc_runtime.execution.session import Session
from einc_runtime.execution.trace import format_trace, make_task_events, task_kind
from einc_runtime.plan.schema import Tensor
from tests.support.compiled_plans import compiled
from tests.support.handmade_plans import random_plan, reference, two_site_plan
from tests.support.plan_arrays import arrays_of


@pytest.fixture
def bundle():
    return two_site_plan()


X = np.arange(12, dtype="f4").reshape(4, 3) - 5
W = np.arange(6, dtype="f4").reshape(3, 2) / 3 - 1
Y = np.maximum(X @ W, 0)
WHOLE = """
model whole
dim i = 4
dim j = 3
dim k = 2
input x : f32[i, j]
weight w : f32[j, k]
a = matmul(x, w)
y = relu(a)
output y
"""
"""The same on one site, where the weight is in one piece."""


def test_load_execute_offload_and_again(bundle):
    session = Session(bundle)
    assert session.backend == "cpu"
    assert [tensor.name for tensor in session.inputs] == ["x"]
    assert session.missing == ("x", "w")
    session.load_weights({"w": W})
    session.load("x", X)
    assert session.missing == ()
    assert session.execute() > 0
    first = session.offload("y")
    np.testing.assert_allclose(first, Y, rtol=1e-6)
    session.load("x", 2 * X)  # weights stay
    session.execute()
    np.testing.assert_allclose(session.offload("y"), 2 * Y, rtol=1e-6)
    np.testing.assert_allclose(first, Y, rtol=1e-6)  # what was offloaded is the caller's own
    X2 = X.copy()
    session.load("x", X2)
    X2[:] = 0  # and so is what was loaded
    session.execute()
    np.testing.assert_allclose(session.offload("y"), Y, rtol=1e-6)


def test_weights_are_read_where_they_are_used(tmp_path, monkeypatch):
    """A whole weight of the stored type goes from the file into the session's memory; others are converted."""
    bundle, path = compiled(WHOLE, 1), tmp_path / "w.safetensors"
    read = []
    original = SafetensorsFile.read_into
    monkeypatch.setattr(SafetensorsFile, "read_into", lambda *args: (read.append(args[1]), original(*args)))
    session = Session(bundle)
    session.load("x", X)
    for array, count in ((W, 1), (2 * W, 2), (W.astype("f2"), 2)):
        safetensors.numpy.save_file({"w": array}, path)
        session.load_weights(path)
        session.execute()
        np.testing.assert_allclose(session.offload("y"), np.maximum(X @ array.astype("f4"), 0), rtol=1e-5)
        assert len(read) == count


def test_a_weight_that_was_read_in_part_is_missing(tmp_path, monkeypatch):
    path = tmp_path / "w.safetensors"
    safetensors.numpy.save_file({"w": W}, path)
    session = Session(compiled(WHOLE, 1))
    session.load("x", X)
    session.load_weights(path)

    def cut(self, name, memory):
        memory[:1] = 7
        raise ArrayFault("cut")

    monkeypatch.setattr(SafetensorsFile, "read_into", cut)
    with pytest.raises(ArrayFault, match="cut"):
        session.load_weights(path)
    assert session.missing == ("w",)


def test_byte_order_and_memory_order_do_not_matter(bundle):
    session = Session(bundle)
    for x in (X.astype(">f4"), np.asfortranarray(X), np.asfortranarray(X.astype(">f4")), np.repeat(X, 2, 0)[::2]):
        session.load_all({"x": x, "w": W})
        session.execute()
        np.testing.assert_allclose(session.offload("y"), Y, rtol=1e-6)


@pytest.mark.parametrize(
    ("name", "array", "message"),
    [
        ("x", X.astype("f8"), r"expected f32\[4, 3\] for input 'x', found f64\[4, 3\] \(cast it to float32\)"),
        ("x", X.T, r"found f32\[3, 4\]"),
        ("x", X[:3], r"found f32\[3, 3\]"),
        ("x", X.astype("f2"), "found f16"),
        ("x", X.astype("u1"), "found uint8"),
        ("x", X.astype(object), "found object"),
        ("x", X.tolist(), "not a numpy array but list"),
        ("w", X, r"expected f32\[3, 2\] for weight 'w'"),
        ("xx", X, "no input 'xx' .there are 'x', 'w'"),
        ("y", X, "no input 'y'"),
        ("a", X, "no input 'a'"),
    ],
)
def test_what_does_not_fit_is_not_loaded(bundle, name, array, message):
    session = Session(bundle)
    with pytest.raises(ArrayFault, match=message):
        session.load(name, array)
    assert session.missing == ("x", "w")


def test_all_problems_are_reported_together(bundle):
    session = Session(bundle)
    with pytest.raises(ArrayFault) as caught:
        session.load_all([("x", X), ("x", X), ("w", X), ("v", X)])
    for part in ("'x' is given twice", "weight 'w'", "no input 'v'"):
        assert part in caught.value.message
    with pytest.raises(ArrayFault, match="nothing is loaded for 'x', 'w'"):
        session.execute()
    with pytest.raises(ArrayFault, match="'w' is not there"):
        session.load_weights({"u": W})


def test_offloading_needs_an_execution_and_an_output(bundle):
    session = Session(bundle)
    with pytest.raises(ArrayFault, match="not computed yet") as caught:
        session.offload("y")
    assert caught.value.hint == "execute first"
    with pytest.raises(ArrayFault, match="saves no 'a'") as caught:
        session.offload("a")
    assert "'y'" in caught.value.hint


def test_backends_and_devices(bundle):
    with pytest.raises(MissingFault) as caught:
        Session(bundle, backend="cuda", devices=(99, 99))
    assert caught.value.exit_code == 69
    with pytest.raises(MissingFault, match="no backend 'tpu'"):
        Session(bundle, backend="tpu")
    with pytest.raises(PlanFault, match="3 devices") as refused:
        Session(bundle, devices=(0, 1, 2))
    assert "one for each site" in (refused.value.hint or "")
    assert Session(bundle, backend="auto", devices=(0, 0)).backend == "cpu"


@pytest.mark.parametrize("machine", ["host", "dgx-a100"])
@pytest.mark.parametrize("gpus", [0, 2])
@pytest.mark.parametrize("cupy", [False, True])
def test_visible_gpus_that_are_not_used_are_noted(bundle, monkeypatch, machine, gpus, cupy):
    monkeypatch.setattr(backends, "count_visible_gpus", lambda: gpus)
    monkeypatch.setattr(backends, "is_cupy_installed", lambda: cupy)
    note = backends.note_unused_gpus(msgspec.structs.replace(bundle, machine=machine))
    assert (note is not None) == (machine != "host" and gpus > 0 and not cupy)


def test_bf16_takes_float32_and_comes_as_bf16():
    bundle = random_plan(3, sites=4, operations=2, dtype="bf16")
    arrays = arrays_of(bundle)
    results = []
    for kind in (ml_dtypes.bfloat16, np.float32):
        session = Session(bundle)
        session.load_all({name: array.astype(kind) for name, array in arrays.items()})
        session.execute()
        results.append(session.offload(session.outputs[0].name))
        assert results[-1].dtype == ml_dtypes.bfloat16
    np.testing.assert_array_equal(results[0], results[1])
    half = Session(random_plan(3, sites=4, operations=2, dtype="f16"))
    with pytest.raises(ArrayFault, match="expected f16"):
        half.load_all({name: array.astype(np.float32) for name, array in arrays.items()})


def test_scalars_and_unused_inputs():
    bundle = random_plan(1, sites=3, operations=2)
    extra = msgspec.structs.replace(bundle.tensors[0], name="unused")
    bundle = msgspec.structs.replace(bundle, tensors=(*bundle.tensors, extra))
    session = Session(bundle)
    arrays = arrays_of(bundle)
    session.load_all(arrays)
    session.execute()
    expected = reference(bundle, arrays)
    np.testing.assert_allclose(session.offload(session.outputs[0].name), expected[session.outputs[0].name], rtol=1e-4)


def test_traces_name_every_task_that_ran(bundle):
    session = Session(bundle, executor=CpuExecutor(bundle, 3, rewrites=False))
    session.load_all({"x": X, "w": W})
    session.execute()
    assert session.trace is None
    milliseconds = session.execute(trace=True)
    trace = session.trace
    assert trace.completion_ms == milliseconds
    assert sorted(run.task for run in trace.runs) == list(range(len(bundle.tasks)))
    spared = Session(bundle)
    spared.load_all({"x": X, "w": W})
    spared.execute(trace=True)
    assert {task_kind(bundle.tasks[run.task]) for run in spared.trace.runs} >= {"kernel", "aggregate"}
    for run in trace.runs:
        assert 0 <= run.start_ms <= run.end_ms <= milliseconds
        assert run.worker in range(3)
    document = json.loads(format_trace(make_task_events(bundle, trace.runs), "measured", "ffn"))
    drawn = [record for record in document["traceEvents"] if record["ph"] == "X"]
    assert {record["args"]["task"] for record in drawn} == {
        number for number, task in enumerate(bundle.tasks) if task_kind(task) != "fence"
    }
    assert {record["cat"] for record in drawn} >= {"kernel", "transfer"}


def test_importing_the_session_is_cheap():
    heavy = ("numpy", "ml_dtypes", "threadpoolctl", "einc", "lark")
    code = f"import sys, einc_runtime.execution.session; print([m for m in {heavy} if m in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert found.strip() == "[]"


def test_a_plan_without_bf16_does_not_import_ml_dtypes():
    code = """
import sys
from pathlib import Path
from einc_runtime.plan.schema import Tensor
from tests.support.handmade_plans import two_site_plan
from tests.support.plan_arrays import arrays_of, results
from einc_runtime.execution.session import Session
results(Session(two_site_plan()), arrays_of(two_site_plan()))
print("ml_dtypes" in sys.modules, "einc" in sys.modules)
"""
    root = Path(__file__).parents[3]
    found = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True).stdout
    assert found.split() == ["False", "False"]


def test_what_nothing_uses_is_neither_drawn_nor_needed(bundle):
    """64 TiB, which no machine could draw."""
    unused = [Tensor(kind, ("i",), (1 << 44,), "f32", kind) for kind in ("input", "weight")]
    bundle = msgspec.structs.replace(bundle, tensors=(*bundle.tensors, *unused))
    session = Session(bundle)
    inputs = read_inputs(bundle, ["rand:0"])
    assert list(inputs) == ["x"]
    session.load_all(inputs)
    session.load_weights("rand:1")
    assert session.missing == ()
    assert session.execute() > 0
