"""Arenas that one multicast object stands for, and sums by it: on a fake that enforces CUDA's rules."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from einc_runtime.environment import MULTICAST
from einc_runtime.errors import KernelFault, MissingFault
from einc_runtime.execution.cpu.executor import CpuExecutor
from einc_runtime.execution.cuda.driver import DriverError
from einc_runtime.execution.cuda.executor import CudaExecutor
from einc_runtime.execution.cuda.virtual_memory import DRIVER_PROTOTYPES, CudaVirtualMemory
from einc_runtime.execution.session import Session
from tests.support.cuda_fake import FakeDriver
from tests.support.cuda_fake_kernels import NumpyKernels
from tests.support.cuda_plans import agrees_with_the_cpu, block, chain, ffn
from tests.support.launch_cases import compile_cut_step, run_twice, step_arrays

UNIT = 1 << 12
FORMS = {"block": block, "ffn": ffn, "chain": chain}


@pytest.fixture
def wanted(monkeypatch):
    monkeypatch.setenv(MULTICAST, "1")


def executed(bundle, driver):
    executor = CudaExecutor(bundle, None, driver=driver, kernels=NumpyKernels(driver))
    agrees_with_the_cpu(bundle, executor)
    return executor


def count_sums(executor):
    return sum(own.tasks for own in executor.facts().cuda.kernels if own.variant == "multicast sum")


@pytest.mark.parametrize(("name", "sites"), [("block", 2), ("ffn", 4), ("chain", 4)])
def test_plans_compute_the_same_on_multicast_memory(wanted, name, sites):
    bundle = FORMS[name](sites)
    driver = FakeDriver(sites, seed=sites, multicast=UNIT)
    executor = executed(bundle, driver)
    facts = executor.facts()
    sizes = {own.bytes % UNIT for own in facts.cuda.devices}
    assert driver.counts["create"] == driver.counts["bind"] == driver.counts["add_device"] == sites
    assert not any("multicast" in note for note in executor.notes)
    assert len(sizes) <= sites
    executor.close()
    assert not driver.leaks()


def test_sums_over_all_sites_at_one_offset_are_made_by_the_object(wanted):
    driver = FakeDriver(2, seed=2, multicast=UNIT)
    executor = executed(chain(2), driver)
    assert count_sums(executor) == 8
    executor.close()


def test_switches_make_all_sums_of_a_step_of_decoding(wanted):
    """Where sites have equally much of everything, their partial results lie at one offset."""
    bundle = compile_cut_step(2, heads_q=4, heads_kv=2, vocab=96)
    driver = FakeDriver(2, seed=3, multicast=UNIT)
    arrays = step_arrays(bundle, 5)
    results = []
    for executor in (CudaExecutor(bundle, None, driver=driver, kernels=NumpyKernels(driver)), CpuExecutor(bundle, 1)):
        with Session(bundle, executor=executor) as session:
            results.append(run_twice(session, arrays))
            assert executor.name == "cpu" or count_sums(executor) == 2 * 2
    for name, values in results[1].items():
        np.testing.assert_allclose(results[0][name], values, atol=1e-5 * np.abs(values).max())


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"multicast": None}, "no multicast memory"),
        ({"multicast": 0}, "no multicast memory"),
        ({"multicast": UNIT, "unreachable": [(0, 1), (1, 0)]}, "reach each other"),
    ],
)
def test_machines_without_it_take_memory_as_ever_and_say_so(wanted, options, why):
    driver = FakeDriver(2, **options)
    executor = executed(ffn(2), driver)
    assert any(why in note for note in executor.notes)
    assert not driver.counts["create"]
    assert not count_sums(executor)
    executor.close()
    assert not driver.leaks()


def test_sites_that_share_a_device_take_memory_as_ever(wanted):
    driver = FakeDriver(2, multicast=UNIT)
    executor = CudaExecutor(block(4), [0, 0, 1, 1], driver=driver, kernels=NumpyKernels(driver))
    assert any("a GPU for every site" in note for note in executor.notes)
    executor.close()


def test_nobody_who_does_not_ask_for_it_gets_it(monkeypatch):
    for value in ("", "0", "yes"):
        monkeypatch.setenv(MULTICAST, value)
        driver = FakeDriver(2, multicast=UNIT)
        executor = CudaExecutor(ffn(2), None, driver=driver, kernels=NumpyKernels(driver))
        assert not driver.counts["virtual_memory"]
        assert not executor.notes
        executor.close()


def test_whatever_fails_on_the_way_memory_is_taken_as_ever(wanted):
    """Every call that makes an object or memory of it fails once: the plan runs all the same, and nothing is left."""
    bundle, kinds = ffn(2), ("unit", "create", "reserve", "map", "allow", "create_multicast", "add_device", "bind")
    first = FakeDriver(2, multicast=UNIT)
    CudaExecutor(bundle, None, driver=first, kernels=NumpyKernels(first)).close()
    places = [number for number, (name, _) in enumerate(first.calls) if name in kinds]
    assert len(places) == 1 + 2 + 3 * 3 + 1 + 2 + 2
    for place in places:
        driver = FakeDriver(2, multicast=UNIT, fail_at=place)
        executor = CudaExecutor(bundle, None, driver=driver, kernels=NumpyKernels(driver))
        assert any("multicast memory cannot be had" in note for note in executor.notes), place
        assert not driver.held["allocation"], place
        assert not driver.held["multicast"], place
        executor.close()
        assert not driver.leaks(), place


@pytest.mark.parametrize("step", range(0, 60, 7))
def test_a_lost_device_leaves_nothing_behind(wanted, step):
    bundle = ffn(2)
    first = FakeDriver(2, multicast=UNIT)
    CudaExecutor(bundle, None, driver=first, kernels=NumpyKernels(first)).close()
    begin = next(number for number, (name, _) in enumerate(first.calls) if name == "unit")
    driver = FakeDriver(2, multicast=UNIT, fail_at=begin + step, lost=True)
    with pytest.raises((KernelFault, MissingFault, DriverError)):
        CudaExecutor(bundle, None, driver=driver, kernels=NumpyKernels(driver)).execute()
    assert not driver.leaks()


class Library:
    """libcuda, as far as it is called: it records arguments, and gives numbers that it counts up."""

    def __init__(self, *, attributes=1, fails=""):
        self.calls, self.number, self.attributes, self.fails = [], 100, attributes, fails

    def __getattr__(self, name):
        if name not in DRIVER_PROTOTYPES:
            raise AttributeError(name)
        call = Call(self, name)
        setattr(self, name, call)
        return call


WRITES = {
    "cuDeviceGet": ctypes.c_int, "cuDeviceGetAttribute": ctypes.c_int, "cuMemGetAllocationGranularity": ctypes.c_size_t,
    "cuMulticastGetGranularity": ctypes.c_size_t, "cuMemCreate": ctypes.c_uint64, "cuMulticastCreate": ctypes.c_uint64,
    "cuMemAddressReserve": ctypes.c_uint64,
}  # fmt: skip


class Call:
    def __init__(self, library, name):
        self.library, self.name = library, name

    def __call__(self, *arguments):
        library, name = self.library, self.name
        assert len(arguments) == len(self.argtypes) == len(DRIVER_PROTOTYPES[name])
        library.calls.append((name, *arguments))
        if library.fails == name:
            return 801
        if name in WRITES:
            given = {"cuDeviceGet": arguments[-1] + 50, "cuDeviceGetAttribute": library.attributes,
                     "cuMemGetAllocationGranularity": 2 << 20, "cuMulticastGetGranularity": 512 << 20}  # fmt: skip
            library.number += 1
            WRITES[name].from_address(arguments[0]).value = given.get(name, library.number)
        return 0


def words(address, count, kind="u4"):
    return np.frombuffer((ctypes.c_uint8 * (count * np.dtype(kind).itemsize)).from_address(address), kind).tolist()


def test_the_calls_are_those_of_cudas_driver(monkeypatch):
    library = Library()
    memory = CudaVirtualMemory(library)
    seen = {}
    real = Call.__call__

    def recorded(self, *arguments):
        if self.name == "cuMemCreate":
            seen["properties"] = words(arguments[2], 4)
        if self.name == "cuMemSetAccess":
            seen["access"] = words(arguments[2], 6)
        if self.name == "cuMulticastCreate":
            seen["object"] = words(arguments[1], 1), words(arguments[1] + 8, 3, "u8")
        return real(self, *arguments)

    monkeypatch.setattr(Call, "__call__", recorded)
    assert memory.unit([0, 3]) == 512 << 20
    handle = memory.create(3, 1 << 29)
    address = memory.reserve(1 << 29, 512 << 20)
    memory.map(address, 1 << 29, handle)
    memory.allow(address, 1 << 29, [0, 3])
    assert seen["properties"] == [1, 0, 1, 53]  # pinned, no handles for others, on the device that has the ordinal 3
    assert seen["access"] == [1, 50, 3, 1, 53, 3]
    multicast = memory.create_multicast(2, 1 << 29)
    assert seen["object"] == ([2], [1 << 29, 0, 0])
    memory.add_device(multicast, 3)
    memory.bind(multicast, handle, 1 << 29)
    memory.unbind(multicast, 3, 1 << 29)
    memory.unmap(address, 1 << 29)
    memory.free(address, 1 << 29)
    memory.release(handle)
    said = {name: arguments for name, *arguments in library.calls}
    assert said["cuMemMap"] == [address, 1 << 29, 0, handle, 0]
    assert said["cuMemAddressReserve"][1:] == [1 << 29, 512 << 20, 0, 0]
    assert said["cuMulticastAddDevice"] == [multicast, 53]
    assert said["cuMulticastBindMem"] == [multicast, 0, handle, 0, 1 << 29, 0]
    assert said["cuMulticastUnbind"] == [multicast, 53, 0, 1 << 29]
    assert said["cuMemRelease"] == [handle]


def test_a_device_without_multicast_has_no_unit_and_errors_are_named():
    assert CudaVirtualMemory(Library(attributes=0)).unit([0, 1]) == 0
    with pytest.raises(DriverError, match="cuMemCreate: status 801"):
        CudaVirtualMemory(Library(fails="cuMemCreate")).create(0, 1 << 21)
    with pytest.raises(AttributeError):
        CudaVirtualMemory(object())
