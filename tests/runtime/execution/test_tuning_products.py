"""Timing of algorithms on the fake driver: captured, in turns, with the fastest one chosen and nothing left behind."""

from __future__ import annotations

import ctypes
import math
from dataclasses import replace

import numpy as np
import pytest

from einc_runtime.execution.cuda.driver import DriverError
from einc_runtime.execution.cuda.tuning import COPIES, TUNING_ROUNDS, collect_choices, time_products
from einc_runtime.kernels.cuda.cublas import CublasError
from einc_runtime.kernels.gpu import Alternatives, ResultBytes
from tests.support.cuda_fake import FakeDriver


class Clocked(FakeDriver):
    """Time passes by what kernels say that they take."""

    def __init__(self, **options):
        super().__init__(**options)
        self.ran = []

    def launch_of(self, name, milliseconds):
        def run():
            self.ran.append(name)
            self.clock += milliseconds

        return lambda stream: self.kernel(stream, name, run)


def refuse(stream):
    raise CublasError("cublasLtMatmul: status 15 (not supported)")


def alternatives(driver, *milliseconds):
    launches = [refuse if ms is None else driver.launch_of(n, ms) for n, ms in enumerate(milliseconds)]
    records = tuple(bytes([n]) for n in range(len(launches)))
    return Alternatives("product", "a GPU", "library", 0, records, tuple(launches))


def test_the_fastest_way_is_chosen_and_those_that_are_refused_are_not():
    driver = Clocked()
    (timed,) = time_products(driver, [alternatives(driver, 8.0, 5.0, None, 6.0)], 100)
    assert timed.chosen == 1
    assert timed.ms[2] == math.inf
    assert timed.ms[1] < timed.ms[3] < timed.ms[0]
    assert driver.ran.count(0) == driver.ran.count(1) == 1 + COPIES * TUNING_ROUNDS
    starts = [name for name, before in zip(driver.ran, [None, *driver.ran], strict=False) if name != before][3:]
    assert set(starts[:3]) == set(starts[3:6]) == {0, 1, 3}  # in turns
    assert not driver.leaks()


def test_a_gain_within_the_noise_changes_nothing():
    driver = Clocked()
    (timed,) = time_products(driver, [alternatives(driver, 8.0, 7.99)], 100)
    assert timed.chosen == 0


def test_no_product_is_begun_after_the_time():
    driver = Clocked()
    products = [alternatives(driver, 1.0, 2.0)] * 3
    assert len(time_products(driver, products, 100)) == 3
    assert time_products(driver, products, -1) == []


def computing(driver, *ways, in_place=False):
    """Ways that take these milliseconds and write these values, or add them to what is there."""
    pointer = driver.allocate(0, 4096)
    memory = np.frombuffer((ctypes.c_uint8 * 4096).from_address(pointer), np.float32)
    memory[:] = np.random.default_rng(1).normal(0, 1, 1024)

    def launch_of(milliseconds, value):
        def run():
            driver.clock += milliseconds
            memory[:] = memory + value if in_place else value

        return lambda stream: driver.kernel(stream, "way", run)

    launches = tuple(launch_of(*way) for way in ways)
    records = (b"", *(f"tile {n}" for n in range(1, len(ways))))
    return Alternatives("p", "a GPU", "library", 0, records, launches, ResultBytes(pointer, 1024, "f32"))


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("checked", [1 << 20, 16])
def test_what_computes_something_else_is_not_chosen(monkeypatch, checked, in_place):
    """Also where a way is wrong at the end of the result only, and where sums are added to what is there."""
    monkeypatch.setattr("einc_runtime.execution.cuda.tuning.CHECKED_BYTES", checked)
    right, late = np.linspace(1, 2, 1024, dtype="f4"), np.linspace(1, 2, 1024, dtype="f4")
    late[-1] += 0.1
    nothing = np.full(1024, np.nan, "f4")
    driver = Clocked()
    product = computing(
        driver, (8.0, right), (1.0, late), (2.0, nothing), (5.0, right * np.float32(1 + 1e-6)), in_place=in_place
    )
    (timed,) = time_products(driver, [product], 100)
    assert timed.ms[1] == timed.ms[2] == math.inf
    assert timed.chosen == 3
    (tuning,) = collect_choices([timed])
    assert tuning.choices["p"].algorithm == "tile 3"
    driver.free(0, product.result.pointer)
    assert not driver.leaks()


def test_ways_of_which_only_infinities_differ_agree():
    usual, other = np.ones(1024, "f4"), np.ones(1024, "f4")
    usual[3], other[3] = np.inf, np.nan
    driver = Clocked()
    (timed,) = time_products(driver, [computing(driver, (8.0, usual), (5.0, other))], 100)
    assert timed.chosen == 1


def test_three_at_once_must_beat_them_as_they_are_after_tuning():
    """Two products of 4 ms each are tuned to 3 ms, so that both and their map take 7 ms of the 9 ms without tuning."""
    driver = Clocked()

    def timed_with(own):
        part = replace(alternatives(driver, 4.0, 3.0), name="part")
        gated = replace(alternatives(driver, 9.0, own), name="gated", parts=("part", "part"))
        return time_products(driver, [part, gated], 100)[1].chosen

    assert timed_with(7.5) == 0
    assert timed_with(6.5) == 1


@pytest.mark.parametrize("number", range(0, 60, 3))
def test_errors_of_the_device_are_raised_and_nothing_is_left(number):
    driver = Clocked(fail_at=number)
    with pytest.raises(DriverError, match=r"injected|the capture is broken"):
        time_products(driver, [alternatives(driver, 1.0, 2.0)], 100)
    assert not driver.leaks()
    assert driver.capture is None
