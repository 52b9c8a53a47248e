"""Timing of algorithms on the fake driver: captured, in turns, with the fastest one chosen and nothing left behind."""

from __future__ import annotations

import math

import pytest

from einc_runtime.execution.cuda.driver import DriverError
from einc_runtime.execution.cuda.tuning import COPIES, ROUNDS, time_products
from einc_runtime.kernels.cuda.cublas import CublasError
from einc_runtime.kernels.gpu import Alternatives
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
    assert driver.ran.count(0) == driver.ran.count(1) == 1 + COPIES * ROUNDS
    starts = [name for name, before in zip(driver.ran, [None, *driver.ran], strict=False) if name != before][3:]
    assert set(starts[:3]) == set(starts[3:6]) == {0, 1, 3}  # in turns
    assert not driver.leaks()


def test_a_gain_within_the_noise_changes_nothing():
    driver = Clocked()
    (timed,) = time_products(driver, [alternatives(driver, 8.0, 7.99)], 100)
    assert timed.chosen == 0


def test_no_product_is_begun_after_the_time():
    driver, told = Clocked(), []
    products = [alternatives(driver, 1.0, 2.0)] * 3
    assert len(time_products(driver, products, 100, lambda *at: told.append(at))) == 3
    assert told == [(1, 3), (2, 3), (3, 3)]
    assert time_products(driver, products, -1) == []


@pytest.mark.parametrize("number", range(0, 60, 3))
def test_errors_of_the_device_are_raised_and_nothing_is_left(number):
    driver = Clocked(fail_at=number)
    with pytest.raises(DriverError, match=r"injected|the capture is broken"):
        time_products(driver, [alternatives(driver, 1.0, 2.0)], 100)
    assert not driver.leaks()
    assert driver.capture is None
