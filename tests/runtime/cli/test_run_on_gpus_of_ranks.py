"""`einc run` on GPUs of several ranks, which are threads here: what rank 0 prints, and what ranks agree on."""

from __future__ import annotations

import json
import threading

import msgspec
import pytest

from einc_runtime.cli import output
from einc_runtime.cli import run as command
from einc_runtime.cli.ranks import World
from einc_runtime.cli.run import RunOptions, run_options
from einc_runtime.errors import MissingFault, PlanFault
from einc_runtime.execution import backends
from einc_runtime.execution.cpu.executor import CpuExecutor
from einc_runtime.execution.cuda import executor as cuda
from einc_runtime.execution.ranks import cuda_part
from einc_runtime.execution.ranks.watch import Watch
from einc_runtime.plan.codec import encode
from tests.support.cuda_fake import FakeDriver
from tests.support.cuda_fake_kernels import NumpyKernels
from tests.support.cuda_plans import chain
from tests.support.nccl_fake import FakeNccl, NcclWorld
from tests.support.thread_links import ThreadWorld

DEFAULTS = {
    "inputs": ("rand:0",), "weights": ("rand:1",), "targets": (), "backend": "cuda", "devices": None,
    "no_peer": "stage", "expect": (), "repeat": 2, "trace": None, "no_verify": True, "tune": False, "ranks": None,
    "sites_per_rank": None, "shards": False, "as_json": True,
}  # fmt: skip


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Runs a plan of four sites on two ranks, each with three GPUs, and returns what rank 0 prints."""
    path = tmp_path / "p.bin"
    path.write_bytes(encode(msgspec.structs.replace(chain(4), machine="four-gpus")))  # `host` has none
    of_thread, printed, drivers = threading.local(), [], []
    monkeypatch.setattr(cuda_part, "_load_driver", lambda: of_thread.driver)
    monkeypatch.setattr(cuda_part, "_load_nccl", lambda driver: FakeNccl(of_thread.world, driver))
    monkeypatch.setattr(cuda, "_load_kernels", lambda folders, tunings: NumpyKernels(of_thread.driver))
    monkeypatch.setattr(backends, "count_visible_gpus", lambda: getattr(of_thread, "visible", 3))
    monkeypatch.setattr(backends, "is_cupy_installed", lambda: True)
    monkeypatch.setattr(output, "say_json", printed.append)

    def start(blind=(), shares=None, **options):
        threads = ThreadWorld(2)
        world = NcclWorld(is_over=lambda: threads.aborted is not None)

        def run_rank(links):
            of_thread.driver, of_thread.world = FakeDriver(3, bus=str(links.rank)), world
            of_thread.visible = 0 if links.rank in blind else 3
            drivers.append(of_thread.driver)
            ranks = World(links, Watch(links, lambda fault: None, str), lambda task: None, shares)
            command._run(RunOptions(plan=str(path), **DEFAULTS | options), None, ranks)

        threads.run(run_rank)
        assert all(not driver.leaks() for driver in drivers)
        (document,) = printed
        return document

    return start


def test_options_are_those_of_the_command():
    """What `run` gives to the runtime has the fields that are given here."""
    parameters = run_options(lambda: None).__click_params__
    assert {parameter.name for parameter in parameters} == {*DEFAULTS, "plan"}


def test_rank_0_reports(run, tmp_path):
    document = json.loads(json.dumps(run(trace=str(tmp_path / "t.json"), shares=(1, 3))))
    assert document["backend"] == "cuda"
    assert (document["ranks"], len(document["ms"]), len(document["host_us"])) == (2, 2, 2)
    assert document["messages"] > 0
    assert [device["sites"] for device in document["devices"]] == [[0]]
    assert document["versions"]["nccl"] == "22809"
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    tasks = {event["args"]["task"] for event in events if event.get("ph") == "X"}
    assert {chain(4).tasks[task].site for task in tasks} == {0, 1, 2, 3}


def test_gpus_are_used_where_all_ranks_would(run):
    assert run(backend="auto", blind={1})["backend"] == "cpu"


def test_several_gpus_of_a_rank_are_noted(run, monkeypatch):
    notes = []
    monkeypatch.setattr(output, "note", notes.append)
    assert run(backend="auto")["backend"] == "cuda"
    assert any("a rank for each GPU is safer" in note for note in notes)


def test_what_cannot_be_is_said(run):
    with pytest.raises(PlanFault, match="2 devices are given for a plan of 4 sites"):
        run(devices=(0, 1))
    with pytest.raises(MissingFault, match="plans are tuned in one process"):
        run(tune=True)


def test_the_executor_of_cpus_is_not_used(run, monkeypatch):
    monkeypatch.setattr(CpuExecutor, "execute", lambda *_: 1 / 0)
    assert run()["backend"] == "cuda"
