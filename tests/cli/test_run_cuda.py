"""`einc run --backend cuda` on the fake driver: what it prints, and which backend is chosen by itself."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from einc.cli.main import main
from einc_runtime.execution import backends
from einc_runtime.execution.cuda import executor as cuda
from einc_runtime.execution.session import Session
from einc_runtime.kernels.cuda.tuning import read_tunings
from einc_runtime.kernels.gpu import Alternatives
from einc_runtime.plan.codec import decode
from tests.support.cuda_fake import FakeDriver
from tests.support.cuda_fake_kernels import NumpyKernels

SITES = 4
GIVEN = ("--inputs", "rand:0", "--weights", "rand:1")


LOADED: list = []
"""The tunings that kernels were made with, and the kernels."""

CUT = ["--selector", "eindecomp"]
"""It cuts even these small products, so that something moves."""


@pytest.fixture
def plan(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model = Path(__file__).parents[2] / "models" / "chain_c.ein"
    assert (
        main(["compile", str(model), "-m", "dgx-h100", "--devices", str(SITES), "-D", "scale=300", "-o", "p.bin", *CUT])
        == 0
    )
    return "p.bin"


@pytest.fixture
def driver(monkeypatch):
    fake = FakeDriver(2, unreachable={(0, 1), (1, 0)})
    monkeypatch.setattr(cuda, "_load_driver", lambda: fake)

    def load_kernels(folders, tunings):
        LOADED.append((folders, tunings))
        return NumpyKernels(fake)

    monkeypatch.setattr(cuda, "_load_kernels", load_kernels)
    monkeypatch.setattr(backends, "count_visible_gpus", lambda: fake.devices)
    monkeypatch.setattr(backends, "is_cupy_installed", lambda: True)
    return fake


def test_a_plan_runs_and_is_reported(plan, driver, einc):
    result = einc(
        "run", plan, *GIVEN, "--devices", "0,0,1,1", "--check", "--repeat", "3", "--trace", "t.json", "--json"
    )
    assert result.code == 0, result.err
    said = json.loads(result.out)
    assert said["backend"] == "cuda"
    assert len(said["ms"]) == len(said["host_us"]) == 3
    assert said["max_rel_error"] < 1e-2
    assert [device["sites"] for device in said["devices"]] == [[0, 1], [2, 3]]
    assert {kernel["provider"] for kernel in said["kernels"]} == {"numpy", "cuda"}
    assert said["versions"] == {"numpy": np.__version__}
    assert "GPUs 0 and 1 cannot reach each other's memory" in result.err
    assert driver.counts["launch"] == 3
    assert not driver.leaks()
    events = json.loads(Path("t.json").read_text())["traceEvents"]
    tasks = {event["args"]["task"] for event in events if event.get("ph") == "X" and "task" in event.get("args", {})}
    assert tasks <= set(range(len(decode(Path(plan).read_bytes()).tasks)))
    assert len(tasks) > SITES


def test_kernels_beside_a_plan_are_for_that_plan_alone(plan, driver, einc):
    Path("other.bin").write_bytes(Path(plan).read_bytes())
    for name in (plan, "other.bin"):
        assert einc("run", name, *GIVEN, "--devices", "0,0,1,1").code == 0
        assert LOADED[-1][0] == (Path(f"{name}.kernels"),)


def test_what_is_missing_is_told_with_its_exit_code(plan, driver, einc):
    result = einc("run", plan, *GIVEN)
    assert result.code == 69
    assert "the plan has 4 sites, and 2 GPUs are visible" in result.err
    assert "--devices 0,0,1,1" in result.err
    result = einc("run", plan, *GIVEN, "--devices", "0,0,1,1", "--no-peer", "refuse")
    assert result.code == 69
    assert "--no-peer stage" in result.err
    assert not driver.leaks()


def test_a_failing_device_is_one_error(plan, driver, einc):
    driver.fail_at, driver.lost = 150, True
    result = einc("run", plan, *GIVEN, "--devices", "0,0,1,1")
    assert result.code == 70, result.err
    assert result.err.count("injected") == 1
    assert "Traceback" not in result.err
    assert not driver.leaks()


@pytest.mark.parametrize(
    ("machine", "gpus", "cupy", "expected"),
    [
        ("dgx-h100", 4, True, "cuda"),
        ("dgx-h100", 4, False, "cpu"),
        ("dgx-h100", 0, True, "cpu"),
        ("host", 4, True, "cpu"),
    ],
)
def test_the_backend_is_chosen(machine, gpus, cupy, expected, plan, driver, monkeypatch):
    import msgspec

    driver.devices, driver.unreachable = SITES, set()
    monkeypatch.setattr(backends, "count_visible_gpus", lambda: gpus)
    monkeypatch.setattr(backends, "is_cupy_installed", lambda: cupy)
    bundle = msgspec.structs.replace(decode(Path(plan).read_bytes()), machine=machine)
    with Session(bundle) as session:
        assert session.backend == expected
        assert any("without cupy" in note for note in session.notes) is (gpus > 0 and not cupy)
    assert not driver.leaks()


def test_a_plan_is_tuned_once_and_runs_with_what_was_chosen(plan, driver, einc, monkeypatch):
    driver.devices, driver.unreachable = SITES, set()

    def list_alternatives(self, limit):
        assert limit == 16
        slow, fast = (
            lambda stream, ms=ms: driver.kernel(stream, "gemm", lambda: setattr(driver, "clock", driver.clock + ms))
            for ms in (9.0, 4.0)
        )
        return [Alternatives("a product", "a GPU", "cublasLt 1", 0, (b"", bytes(64)), (slow, fast))]

    monkeypatch.setattr(NumpyKernels, "list_alternatives", list_alternatives, raising=False)
    result = einc("run", plan, *GIVEN, "--tune", "--json")
    assert result.code == 0, result.err
    (tuning,) = read_tunings(Path(plan + ".tuning.json"))
    (choice,) = tuning.choices.values()
    assert (tuning.gpu, tuning.library, choice.algorithm) == ("a GPU", "cublasLt 1", bytes(64))
    assert choice.ms < choice.usual_ms
    assert LOADED[-1][1] == (tuning,)
    count = len(LOADED)
    assert einc("run", plan, *GIVEN, "--tune").code == 0
    assert len(LOADED) == count + 1  # it was not tuned again
    said = einc("tune", plan, "--json")
    first = json.loads(said.out)["products"][0]
    assert (first["tuned"], first["refused"], first["kernel"]) == (True, 0, "")
    assert "1 product" in einc("tune", plan).out
    Path(plan + ".tuning.json").write_text("{}")
    assert einc("run", plan, *GIVEN).code == 74
    assert not driver.leaks()


def test_nothing_is_tuned_without_a_gpu(plan, einc, monkeypatch):
    monkeypatch.setattr(backends, "count_visible_gpus", lambda: 0)
    assert einc("tune", plan).code == 69
    result = einc("run", plan, *GIVEN, "--tune")
    assert result.code == 0
    assert "nothing is tuned on the CPU" in result.err
    assert not Path(plan + ".tuning.json").exists()
