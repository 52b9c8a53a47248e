"""Seeded worlds (docs/trust.md): a sample of them does no harm, worlds replay, and bugs made on purpose are found."""

from __future__ import annotations

import json
import random
import time
from contextlib import contextmanager, suppress
from types import SimpleNamespace

import pytest

pytest.importorskip("greenlet")  # comes with the extra `dev`

from einc_runtime.disk import replace_file
from einc_runtime.execution.cpu import executor as cpu_executor
from einc_runtime.execution.cpu import host
from einc_runtime.execution.cpu.thread_pool import _PoolState
from einc_runtime.kernels.cuda import kernel_cache
from einc_runtime.kernels.cuda.triton_compile import KernelBinary
from tests.worlds.executor_world import ExecutorWorlds, needs_compiler
from tests.worlds.file_world import FileWorlds
from tests.worlds.plans import drop_dependency
from tests.worlds.simulated_disk import Crash, SimulatedDisk
from tests.worlds.simulation import Finding, SimulatedMonitor
from tests.worlds.worlds import Worlds

FOUND = ()
"""Seeds of worlds that once ended with a finding."""

over = []  # worlds that ended with a finding: see `tests.worlds.worlds`


def test_a_sample_of_worlds_does_no_harm():
    """As many worlds as this core runs in 1.2 seconds; `make worlds` runs a million."""
    worlds, met, end = Worlds(), set(), time.process_time() + 1.2
    for seed in (*FOUND, *range(100_000)):
        if time.process_time() > end and seed not in FOUND:
            break
        if seed in FOUND or not needs_compiler(seed):
            met.add(worlds.run(seed))
    assert {"executor: none", "executor: interrupt", "files: crash"} <= met


def test_a_world_is_a_function_of_its_seed():
    def steps(worlds):
        seen = []
        for seed in range(40):
            if not needs_compiler(seed):
                worlds.run(seed)
                seen.append((worlds.scheduler.steps, worlds.scheduler.time, worlds.scheduler.rng.getstate()))
        return seen

    worlds = ExecutorWorlds()
    first = steps(worlds)
    assert steps(worlds) == first
    assert len({time for _, time, _ in first}) > 30


def find(worlds, seeds, first=0):
    """The first of so many seeds whose world has a finding, and the finding."""
    over.append(worlds)
    for seed in range(first, first + seeds):
        if not needs_compiler(seed):
            try:
                worlds.run(seed)
            except Finding as finding:
                return seed, str(finding)
    return None


def test_a_dropped_dependency_is_found():
    """Of a plan that is run in every world, all dependencies that do not follow from others, one after the other."""
    base = ExecutorWorlds()
    after = base._prepare(0, 3).executor.after
    before = []
    for earlier in after:
        before.append(set(earlier).union(*(before[predecessor] for predecessor in earlier)))
    needed = [
        (task, position)
        for task, earlier in enumerate(after)
        for position, predecessor in enumerate(earlier)
        if not any(predecessor in before[successor] for successor in earlier)
    ]
    assert len(needed) > 5
    for task, position in random.Random(1).sample(needed, 5):
        worlds = ExecutorWorlds()
        prepared = worlds._prepare(0, 3)
        worlds._prepare = lambda number, workers, prepared=prepared: prepared
        worlds._run_short_of_memory = lambda *_: None
        worlds.after = lambda _, task=task, position=position: drop_dependency(after, task, position)
        assert find(worlds, 150) is not None, (task, position)


def finish_quietly(self):
    self.stopped = True


@pytest.mark.parametrize(
    ("owner", "name", "bug", "message"),
    [
        (_PoolState, "_finish", finish_quietly, "lost wake-up"),
        (SimulatedMonitor, "notify", lambda self, n=1: None, "lost wake-up"),
        (_PoolState, "end", _PoolState.stop, "runs when the run is over"),
    ],
)
def test_a_lost_wake_up_and_a_worker_that_stays_are_found(monkeypatch, owner, name, bug, message):
    if owner is SimulatedMonitor:  # only tasks that become ready are not told; the end of the run is
        monkeypatch.setattr(SimulatedMonitor, "notify_all", lambda self, n=SimulatedMonitor.notify: n(self, 99))
    monkeypatch.setattr(owner, name, bug)
    trouble = find(ExecutorWorlds(), 600)
    assert trouble is not None
    assert message in trouble[1]


def test_a_limit_of_blas_that_an_interrupt_leaves_is_found(monkeypatch):
    @contextmanager
    def careless():
        host._limit_blas("careless")
        try:
            yield
        finally:
            host._release_blas("careless")

    monkeypatch.setattr(cpu_executor, "single_threaded_blas", careless)
    trouble = find(ExecutorWorlds(), 3000, first=2100)
    host._release_blas("careless")
    assert trouble is not None
    assert "BLAS" in trouble[1]


@pytest.mark.parametrize("fault", ["error", "crash", "interrupt", "late interrupt", "short", "none"])
def test_a_kernel_that_is_stored_has_all_its_code_before_it_has_a_note(tmp_path, fault):
    binary = KernelBinary("kernel", bytes(range(250)), 4, 0, "triton 3")
    source = SimpleNamespace(name="map", key="f" * 40, text="text of the source\n" * 9)
    complete = 0
    for at in range(1, 40):
        for seed in range(6):
            disk = SimulatedDisk(random.Random(seed), fault, at)
            with suppress(OSError, KeyboardInterrupt, Crash):
                kernel_cache.store(source, "sm_90", binary, tmp_path, disk)
            listed = disk.restart() if fault == "crash" else {path: file.data for path, file in disk.files.items()}
            files = {path.suffix: data for path, data in listed.items()}
            assert fault == "crash" or ".tmp" not in files
            assert files.get(".cubin", binary.code) == binary.code
            if ".json" in files:
                complete += 1
                assert json.loads(files[".json"])["function"] == "kernel"
                assert files[".cubin"] == binary.code
    assert complete > 20


def publish_first(target, write, disk):
    beside = target.parent / "new"
    with disk.create(beside, target) as stream:
        disk.rename(beside, target)
        write(stream)
        stream.flush()
        disk.sync(stream)


def sync_never(target, write, disk):
    beside = target.parent / "new"
    try:
        with disk.create(beside, target) as stream:
            write(stream)
        disk.rename(beside, target)
    except BaseException:
        disk.remove(beside)
        raise


def sync_what_is_not_flushed(target, write, disk):
    beside = target.parent / "new"
    try:
        with disk.create(beside, target) as stream:
            write(stream)
            disk.sync(stream)
        disk.rename(beside, target)
    except BaseException:
        disk.remove(beside)
        raise


def remove_never(target, write, disk):
    beside = target.parent / "new"
    with disk.create(beside, target) as stream:
        write(stream)
        stream.flush()
        disk.sync(stream)
    disk.rename(beside, target)


def remove_after_errors_alone(target, write, disk):
    beside = target.parent / "new"
    try:
        with disk.create(beside, target) as stream:
            write(stream)
            stream.flush()
            disk.sync(stream)
        disk.rename(beside, target)
    except Exception:
        disk.remove(beside)
        raise


@pytest.mark.parametrize(
    ("bug", "message"),
    [
        (publish_first, "half a"),
        (sync_never, "after a crash"),
        (sync_what_is_not_flushed, "after a crash"),
        (remove_never, "temporary file"),
        (remove_after_errors_alone, "KeyboardInterrupt"),
    ],
)
def test_careless_writing_is_found(bug, message):
    trouble = find(FileWorlds(bug), 300)
    assert trouble is not None
    assert message in trouble[1]
    assert find(FileWorlds(replace_file), 300) is None
