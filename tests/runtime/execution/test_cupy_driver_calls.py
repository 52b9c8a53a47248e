"""The calls that `CupyDriver` makes for the executor: whole plans run on a fake of cupy."""

from __future__ import annotations

import pytest

from einc_runtime.errors import KernelFault, MissingFault
from einc_runtime.execution.cuda.cupy_driver import CupyDriver
from einc_runtime.execution.cuda.executor import CudaExecutor
from einc_runtime.execution.cuda.hip_driver import HipDriver, HipRuntime
from einc_runtime.execution.session import Session
from tests.support.cuda_fake import FakeDriver
from tests.support.cuda_fake_kernels import NumpyKernels
from tests.support.cuda_fake_runtime import FakeRuntime
from tests.support.cuda_plans import agree, block, chain, cpu_results, ffn
from tests.support.driver_calls import DRIVER_CALLS
from tests.support.hip_fake import HipLibrary
from tests.support.plan_arrays import arrays_of, outputs_of


def cupy_driver(fake):
    """The real driver over the fake binding."""
    driver = object.__new__(CupyDriver)
    driver._runtime = FakeRuntime(fake)
    driver._error = FakeRuntime.CUDARuntimeError
    return driver


def hip_driver(fake):
    return HipDriver(HipRuntime(HipLibrary(fake)))


@pytest.fixture(params=[cupy_driver, hip_driver], ids=["cuda", "hip"])
def make_driver(request):
    return request.param


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("make", "places", "unreachable"),
    [
        (ffn, None, ()),
        (chain, [0, 1, 0, 1], ()),
        (chain, [0, 0, 0, 0], ()),
        (block, [1, 0, 1, 0], [(0, 1)]),
    ],
)
def test_plans_run_through_the_calls_of_a_library(make_driver, make, places, unreachable):
    bundle = make(4)
    fake = FakeDriver(4 if places is None else 2, unreachable=unreachable, seed=3)
    executor = CudaExecutor(bundle, places, driver=make_driver(fake), kernels=NumpyKernels(fake))
    session, arrays = Session(bundle, executor=executor), arrays_of(bundle)
    session.load_all(arrays)
    expected = cpu_results(bundle, arrays)
    for traced in (False, True, False):
        session.execute(trace=traced)
        agree(outputs_of(session), expected)
    assert executor.facts().cuda.devices[0].architecture == {cupy_driver: "sm_90", hip_driver: "gfx942"}[make_driver]
    executor.close()
    assert not fake.leaks()


def test_all_of_the_binding_that_is_used_is_there():
    there = {name for name in vars(FakeRuntime) if callable(getattr(FakeRuntime, name)) and not name.startswith("_")}
    assert there - {"CUDARuntimeError"} == set(DRIVER_CALLS)


@pytest.mark.parametrize(("status", "kind"), [(719, KernelFault), (2, MissingFault)])
def test_statuses_become_different_faults(make_driver, status, kind):
    bundle = ffn(2)
    for fail_at in (5, 12, 40):
        fake = FakeDriver(2, fail_at=fail_at, status=status)
        with pytest.raises(kind):
            CudaExecutor(bundle, None, driver=make_driver(fake), kernels=NumpyKernels(fake))
        assert not fake.leaks()


def test_access_that_others_had_enabled_is_no_error(make_driver):
    fake = FakeDriver(2)
    driver = make_driver(fake)
    driver.enable_peer(0, 1)
    driver.enable_peer(0, 1)
    assert fake.peers == {(0, 1)}
