"""Launches of several tasks in Triton's interpreter: a decode step gives what its tasks give one by one, and the CPU's
kernels."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from einc_runtime.execution.cpu.executor import CpuExecutor
from einc_runtime.execution.session import Session
from einc_runtime.plan.launches import find_launches
from tests.support.launch_cases import (
    compile_cut_step,
    compile_gathering_step,
    compile_step,
    run_twice,
    step_arrays,
)
from tests.support.triton_plans import InterpretedKernels, interpreted


class Joined(InterpretedKernels):
    """Counts the launches of several tasks by their kind."""

    def __init__(self, driver):
        super().__init__(driver)
        self.joined = Counter()

    def prepare_launch(self, kind, parts, kept, target, flags=None):
        kernel = super().prepare_launch(kind, parts, kept, target, flags)
        self.joined[kind] += kernel is not None
        return kernel

    def prepare_gated_pair(self, *given):
        kernel = super().prepare_gated_pair(*given)
        self.joined["gated"] += kernel is not None
        return kernel


class Separate(InterpretedKernels):
    def prepare_launch(self, kind, parts, kept, target, flags=None):
        return None

    def prepare_gated_pair(self, *given):
        return None


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(("sites", "dtype", "devices"), [(1, "f32", 1), (1, "f16", 1), (3, "f32", 1), (2, "bf16", 2)])
def test_a_decode_step_with_joint_launches(sites, dtype, devices):
    bundle = compile_step(sites, dtype)
    arrays = step_arrays(bundle, seed=sites)
    with interpreted(bundle, devices, Joined) as session:
        joined = run_twice(session, arrays)
        counts = session._executor._kernels.joined
    with interpreted(bundle, devices, Separate) as session:
        separate = run_twice(session, arrays)
    cpu = run_twice(Session(bundle, executor=CpuExecutor(bundle, 1)), arrays)
    expected = Counter(launch.kind for launch in find_launches(bundle, bundle.tasks))
    assert sites > 1 or {kind: counts[kind] for kind in ("places", "products", "gated")} == {
        "places": 1, "products": 1, "gated": 1
    }  # fmt: skip
    assert counts["rows"] >= expected["rows"] > 0 or sites == 1
    tolerance = {"f32": 1e-5, "f16": 1e-2, "bf16": 8e-2}[dtype]
    for name, values in joined.items():
        size = np.abs(cpu[name]).max()
        assert np.abs(values - separate[name]).max() <= tolerance * size
        assert np.abs(values - cpu[name]).max() <= tolerance * size


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("compile_plan", [compile_cut_step, compile_gathering_step])
def test_a_step_whose_sums_are_made_out_of_the_memory_of_all_gpus(compile_plan, monkeypatch):
    """The bits are those of GPUs that wait for each other by events."""
    bundle = compile_plan(3)
    arrays = step_arrays(bundle, seed=3)
    results = []
    for blocking in ("0", "1"):
        monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", blocking)
        with interpreted(bundle, 3, Joined) as session:
            results.append(run_twice(session, arrays))
            assert any("of_peers" in name for name in session._executor._kernels.functions) == (blocking == "0")
    for name, values in results[0].items():
        np.testing.assert_array_equal(values, results[1][name])
