"""Detection: this machine's figures, and the machine that a list of GPUs makes."""

import sys
from types import SimpleNamespace

import pytest

from einc.machines import detect
from einc.machines.detect import build_gpu_machine, measure_copy_bandwidth
from einc.machines.load import count_host_cores, format_machine, load_machine, parse_machine


def test_detection_yields_a_usable_machine():
    machine = detect.detect()
    assert parse_machine(format_machine(machine)) == machine
    if machine.name == "host":
        assert len(machine.sites) == count_host_cores()
        assert 0.01 <= machine.sites[0].hbm_gbs < 10_000
        assert all(0.01 <= resource.gbs < 10_000 for resource in machine.resources)


def test_the_copy_bandwidth_is_measured():
    assert 0.01 <= measure_copy_bandwidth(size=2**20, repeats=2) < 10_000


def test_the_copy_bandwidth_is_that_of_the_quickest_try(monkeypatch):
    ticks = iter([0, 4e-3, 5, 5 + 2e-3, 7, 7 + 3e-3])
    monkeypatch.setattr(detect.time, "perf_counter", lambda: next(ticks))
    assert measure_copy_bandwidth(size=10**7, repeats=3) == pytest.approx(10**7 / 2e-3 / 1e9)


def test_known_gpus_get_their_preset_and_others_a_shared_bridge():
    h100 = build_gpu_machine([("NVIDIA H100 80GB HBM3", 85_000_000_000, 0.0)] * 4)
    assert h100.resources == load_machine("dgx-h100", 4).resources
    assert {site.memory_bytes for site in h100.sites} == {85_000_000_000 - 2**30}
    assert h100.sites[0].hbm_gbs == 3350
    mixed = build_gpu_machine([("NVIDIA A100-SXM4-40GB", 10, 1555.2), ("Tesla T4", 10, 320.1)])
    assert [site.hbm_gbs for site in mixed.sites] == [1555.2, 320.1]
    assert len(mixed.resources) == 1
    assert len(mixed.routes) == 2
    alone = build_gpu_machine([("Tesla T4", 10, 320.1)])
    assert alone.resources == ()
    assert parse_machine(format_machine(alone)) == alone


def test_the_host_has_the_bandwidth_that_was_measured(monkeypatch):
    """A copy reads and writes, and all sites share the memory that it goes through."""
    monkeypatch.setattr(detect, "find_visible_gpus", lambda: None)
    monkeypatch.setattr(detect, "measure_copy_bandwidth", lambda: 12.0)
    monkeypatch.setattr(detect, "_measure_memory", lambda: 7 * 2**30)
    machine = detect.detect()
    cores = len(machine.sites)
    assert {(site.hbm_gbs, site.memory_bytes) for site in machine.sites} == {(round(24 / cores, 2), 7 * 2**30 // cores)}
    assert {resource.gbs for resource in machine.resources} <= {12.0}


def test_gpus_are_asked_for_their_memory_and_its_rate(monkeypatch):
    """Those of an A100 of 40 GB: 1215 MHz at double data rate over 5120 bits are 1555 GB/s."""
    facts = {"name": b"NVIDIA A100-SXM4-40GB", "totalGlobalMem": 40 * 2**30}
    clocks = [{"memoryClockRate": 1_215_000, "memoryBusWidth": 5120}, {}]
    runtime = SimpleNamespace(getDeviceCount=lambda: 2, getDeviceProperties=lambda device: facts | clocks[device])
    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(cuda=SimpleNamespace(runtime=runtime)))
    machine = detect.find_visible_gpus()
    assert machine.name == "dgx-a100-x2"
    assert [site.hbm_gbs for site in machine.sites] == [1555.2, load_machine("dgx-a100").sites[0].hbm_gbs]
    assert {site.memory_bytes for site in machine.sites} == {39 * 2**30}
