"""The calls that `CupyNccl` makes: whole plans run on a fake of cupy's binding, and the installed one takes them."""

from __future__ import annotations

import pytest

from einc_runtime.errors import MissingFault
from einc_runtime.execution.cuda.cupy_nccl import CupyNccl
from einc_runtime.execution.cuda.driver import DriverError
from einc_runtime.execution.cuda.nccl import NcclMessage
from einc_runtime.execution.ranks.cuda_part import make_cuda_executor
from einc_runtime.execution.session import Session
from tests.support.cuda_fake import FakeDriver
from tests.support.cuda_fake_kernels import NumpyKernels
from tests.support.cuda_plans import chain, cpu_results
from tests.support.nccl_fake import FakeNccl, NcclWorld
from tests.support.plan_arrays import arrays_of, results
from tests.support.thread_links import ThreadWorld

METHODS = {"send": 5, "recv": 5, "check_async_error": 0, "abort": 0, "destroy": 0}
NCCL_CALLS = {"get_version": 0, "get_unique_id": 0, "groupStart": 0, "groupEnd": 0, "NcclCommunicator": 3}
"""What is used of `cupy.cuda.nccl`, and the numbers of arguments."""


class NcclError(RuntimeError):
    status = 3


class FakeLibrary:
    """cupy's binding of NCCL on the fake of NCCL: groups, C's order of arguments, and signed bytes of an id."""

    available = True

    def __init__(self, world, driver, version=22809):
        self.world, self.driver, self.number = world, driver, version
        self.group, self.joining, self.opened = [], [], 0
        library = self

        class NcclCommunicator:
            def __init__(self, count, identity, rank):
                assert library.opened, "several devices join in a group"
                assert bytes(part % 256 for part in identity) == bytes(range(128, 256))
                assert all(-128 <= part < 128 for part in identity)
                self.rank, self.device, self.count = rank, library.driver.current, count
                library.joining.append(self)

            def send(self, pointer, count, kind, peer, stream):
                assert (kind, library.opened) == (1, 1)
                library.group.append((self, NcclMessage(False, peer, pointer, count), stream))

            def recv(self, pointer, count, kind, peer, stream):
                assert (kind, library.opened) == (1, 1)
                library.group.append((self, NcclMessage(True, peer, pointer, count), stream))

            def check_async_error(self):
                if self.rank in library.world.lost:
                    raise NcclError("NCCL_ERROR_SYSTEM_ERROR")

            def abort(self):
                self.own.aborted = True

            def destroy(self):
                self.own.close()

        self.NcclCommunicator = NcclCommunicator

    def get_version(self):
        return self.number

    def get_unique_id(self):
        return tuple(part - 256 for part in range(128, 256))

    def groupStart(self):
        self.opened += 1

    def groupEnd(self):
        self.opened -= 1
        group, self.group, joining, self.joining = self.group, [], self.joining, []
        if joining:
            gpus = {one.device: one.rank for one in joining}
            own = FakeNccl(self.world, self.driver).join(bytes(range(128)), joining[0].count, gpus)
            for one in joining:
                one.own = own
        if group:
            (device,) = {one.device for one, _, _ in group}
            (stream,) = {stream for _, _, stream in group}
            group[0][0].own.exchange(device, [message for _, message, _ in group], stream)


def test_plans_run_through_cupys_calls(monkeypatch):
    monkeypatch.setenv("NCCL_GRAPH_MIXING_SUPPORT", "0")
    bundle = chain(4)
    arrays = arrays_of(bundle)
    threads, world = ThreadWorld(2), NcclWorld()

    def run(links):
        driver = FakeDriver(2, seed=links.rank, bus=str(links.rank))
        nccl = CupyNccl(driver, FakeLibrary(world, driver))
        executor = make_cuda_executor(bundle, links, driver=driver, kernels=NumpyKernels(driver), nccl=nccl)
        with Session(bundle, executor=executor) as session:
            found = results(session, arrays)
            versions = executor.facts().cuda.versions
        return found, versions["nccl"], driver.leaks()

    (first, version, _), *_ = found = threads.run(run)
    expected = cpu_results(bundle, arrays)
    assert version == "22809"
    assert [leaks for _, _, leaks in found] == [{}, {}]
    for name, array in expected.items():
        assert abs(first[name] - array).max() < 1e-3 * abs(array).max()


def test_errors_are_those_of_a_driver():
    world, driver = NcclWorld(), FakeDriver(1)
    nccl = CupyNccl(driver, FakeLibrary(world, driver))
    own = nccl.join(nccl.make_id(), 1, {0: 0})
    own.check()
    world.lost.add(0)
    with pytest.raises(DriverError, match="ncclCommGetAsyncError: NCCL_ERROR_SYSTEM_ERROR") as caught:
        own.check()
    assert caught.value.status == 3
    own.abort()
    assert next(iter(own._communicators.values())).own.aborted


def test_what_is_missing_is_named():
    driver = FakeDriver(1)
    with pytest.raises(MissingFault, match="NCCL is 21003, and must be 21100"):
        CupyNccl(driver, FakeLibrary(NcclWorld(), driver, version=21003))
    library = FakeLibrary(NcclWorld(), driver)
    library.available = False
    with pytest.raises(MissingFault, match="which cupy does not find"):
        CupyNccl(driver, library)


@pytest.mark.parametrize("name", [*NCCL_CALLS, *METHODS])
def test_cupy_takes_these_arguments(name):
    """By the line of its documentation; where NCCL is not installed, cupy does not show the binding."""
    nccl = pytest.importorskip("cupy.cuda.nccl", reason="cupy is not installed")
    if not nccl.available:
        pytest.skip("NCCL is not installed")
    found = getattr(nccl if name in NCCL_CALLS else nccl.NcclCommunicator, name)
    line = (found.__doc__ or "").splitlines()[0]
    if "(" in line:
        arguments = [one for one in line[line.index("(") + 1 : line.index(")")].split(",") if one.strip()]
        given = (NCCL_CALLS | METHODS)[name] + (name in METHODS)
        assert len(arguments) == given, line
