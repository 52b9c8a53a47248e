"""Detection: this machine's figures, and what is said of where they are from."""

import pytest

from einc.machines import detect
from einc.machines.detect import measure_copy_bandwidth
from einc.machines.load import count_host_cores, format_machine, parse_machine


def test_detection_yields_a_usable_machine():
    machine = detect.detect().machine
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


def test_the_host_has_the_bandwidth_that_was_measured(monkeypatch):
    """A copy reads and writes, and all sites share the memory that it goes through."""
    monkeypatch.setattr(detect, "detect_gpus", lambda **_: None)
    monkeypatch.setattr(detect, "run_tool", lambda command: None)
    monkeypatch.setattr(detect, "measure_copy_bandwidth", lambda: 12.0)
    monkeypatch.setattr(detect, "measure_memory", lambda: 7 * 2**30)
    detection = detect.detect()
    machine = detection.machine
    assert detection.sources == ("cores, memory and a copy: measured here",)
    cores = len(machine.sites)
    assert {(site.hbm_gbs, site.memory_bytes) for site in machine.sites} == {(round(24 / cores, 2), 7 * 2**30 // cores)}
    assert {resource.gbs for resource in machine.resources} <= {12.0}
