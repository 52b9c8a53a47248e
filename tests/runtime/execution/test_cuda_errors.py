"""The CUDA executor where something is missing or fails, on a fake driver: one error, and everything is released."""

from __future__ import annotations

import gc

import numpy as np
import pytest

from einc_runtime.errors import KernelFault, MissingFault, ValueFault
from einc_runtime.execution.cuda.executor import CudaExecutor
from einc_runtime.execution.session import Session
from tests.support.compiled_plans import PLACES, TRANSFORMER, compiled
from tests.support.cuda_fake import FakeDriver
from tests.support.cuda_fake_kernels import NumpyKernels
from tests.support.cuda_plans import LAYOUTS, agree, block, chain, cpu_results, ffn, on_fake
from tests.support.plan_arrays import arrays_of, outputs_of
from tests.support.sampling import one_in

# What is not there


def test_too_few_devices_say_what_to_do():
    with pytest.raises(MissingFault) as caught:
        on_fake(ffn(4), driver=FakeDriver(1))
    assert caught.value.exit_code == 69
    assert caught.value.message == "the plan has 4 sites, and 1 GPU is visible"
    assert "--devices 0,0,0,0" in caught.value.hint
    with pytest.raises(MissingFault, match="there is no device 2: 2 GPUs are visible"):
        on_fake(ffn(4), [0, 1, 2, 0], FakeDriver(2))


def test_too_little_memory_is_an_error_with_numbers():
    bundle = ffn(4)
    needed = sum(bundle.memory)
    driver = FakeDriver(1, memory=needed - 1)
    told = r"GPU 0 \(Fake 0\) has .* GiB free, and running ffn takes .* for sites 0, 1"
    with pytest.raises(MissingFault, match=told):
        on_fake(bundle, [0] * 4, driver)
    assert not driver.counts["allocate"]
    assert not driver.leaks()


@pytest.mark.parametrize("no_peer", ["stage", "refuse"])
def test_devices_that_cannot_reach_each_other(no_peer):
    bundle = chain(4)
    driver = FakeDriver(2, unreachable={(1, 0)})
    if no_peer == "refuse":
        with pytest.raises(MissingFault, match=r"cannot reach each other's memory: 0 and 1") as caught:
            on_fake(bundle, [0, 0, 1, 1], driver, no_peer="refuse")
        assert "--no-peer stage" in caught.value.hint
        assert not driver.leaks()
        return
    arrays = arrays_of(bundle)
    session, executor, _ = on_fake(bundle, [0, 0, 1, 1], driver)
    assert executor.notes == (
        "GPUs 0 and 1 cannot reach each other's memory: what they exchange goes through the host's",
    )
    assert driver.counts["enable_peer"] == 0
    # Two buffers for each pair of sites at most; a stream of the sender, and one of the receiver.
    pairs = {(a, b) for a in (0, 1) for b in (2, 3)} | {(a, b) for a in (2, 3) for b in (0, 1)}
    assert 0 < driver.counts["allocate_host"] <= 2 * len(pairs)
    session.load_all(arrays)
    for _ in range(5):
        session.execute()
        agree({"y": session.offload("y")}, cpu_results(bundle, arrays))
    session.execute(trace=True)
    executor.close()
    assert not driver.leaks()


def test_closing_one_executor_leaves_access_to_another():
    bundle, driver = block(4), FakeDriver(4)
    _, first, _ = on_fake(bundle, driver=driver)
    session, second, _ = on_fake(bundle, driver=driver)
    assert driver.peers
    first.close()
    arrays = arrays_of(bundle)
    session.load_all(arrays)
    session.execute()
    agree(outputs_of(session), cpu_results(bundle, arrays))
    second.close()
    assert not driver.leaks()


def test_access_that_is_refused_is_staged():
    bundle = chain(4)
    driver = FakeDriver(2, refused={(0, 1)})
    session, executor, _ = on_fake(bundle, [0, 0, 1, 1], driver)
    assert executor.notes == (
        "GPUs 0 and 1 cannot reach each other's memory: what they exchange goes through the host's",
    )
    arrays = arrays_of(bundle)
    session.load_all(arrays)
    session.execute()
    agree({"y": session.offload("y")}, cpu_results(bundle, arrays))
    executor.close()
    assert not driver.leaks()


# What goes wrong


def run_once(bundle, driver, kernels=None, devices=(0, 1)):
    executor = CudaExecutor(bundle, devices, driver=driver, kernels=kernels or NumpyKernels(driver))
    session = Session(bundle, executor=executor)
    session.load_all(arrays_of(bundle))
    session.execute()
    session.execute(trace=True)
    session.offload(session.outputs[0].name)
    executor.close()


TURNED = """
model turned
dim m = 70
dim n = 66
input x : f32[m, n]
a = softmax(x, "n")
b = softmax(a, "m")
y = sum(b, "n")
output y
"""


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", ["turned", pytest.param("chain_a", marks=pytest.mark.slow)])
@pytest.mark.parametrize(("kind", "reachable"), one_in(3, ["once", "lost", "memory"], [True, False]))
def test_a_failure_of_any_call_is_one_error_and_leaves_nothing(kind, reachable, name):
    bundle = compiled(TURNED, 2, "f32") if name == "turned" else chain(2, name)
    unreachable = () if reachable else {(0, 1), (1, 0)}
    clean = FakeDriver(2, unreachable=unreachable)
    run_once(bundle, clean)
    assert not clean.leaks()
    assert {"kernel", "enable_peer" if reachable else "allocate_host"} <= clean.counts.keys()
    assert clean.counts["copy_async"] or name != "turned"
    for number in range(len(clean.calls)):
        driver = FakeDriver(
            2, unreachable=unreachable, fail_at=number, lost=kind == "lost", status=2 if kind == "memory" else 719
        )
        kernels = NumpyKernels(driver)
        with pytest.raises((KernelFault, MissingFault)) as caught:
            run_once(bundle, driver, kernels)
        assert "injected" in caught.value.render(), clean.calls[number]
        assert not driver.leaks(), (clean.calls[number], driver.leaks())
        assert driver.capture is None
        assert kernels.closed == 1


@pytest.mark.parametrize("stage", ["prepare", "bind", "launch"])
def test_a_kernel_that_fails_is_named(stage):
    driver = FakeDriver(2)
    kernels = NumpyKernels(driver, fail=(stage, "contract"))
    with pytest.raises(KernelFault) as caught:
        run_once(ffn(2), driver, kernels)
    assert caught.value.message == f"the contract at site 0 failed: RuntimeError: no {stage} of contract"
    assert "(kernel for act)" in caught.value.where
    assert not driver.leaks()
    assert kernels.closed == 1


@pytest.mark.parametrize(
    "call", [("synchronize", 0), ("allocate", 0, 64), ("wait_on_host", 1), ("fill_bytes", 0, 1, 0, 1)]
)
def test_a_kernel_may_not_wait_or_allocate_in_a_capture(call):
    driver = FakeDriver(2)

    class Careless(NumpyKernels):
        def _stage(self, stage, name):
            if stage == "launch" and driver.capture is not None:
                getattr(driver, call[0])(*call[1:])

    with pytest.raises(KernelFault, match=f"the contract at site 0 failed: Misuse: {call[0]} while a stream is being"):
        run_once(ffn(2), driver, Careless(driver))
    assert not driver.leaks()


def test_a_kernel_that_a_library_has_no_memory_for():
    class OutOfMemoryError(Exception):
        pass

    class Greedy(NumpyKernels):
        def _stage(self, stage, name):
            if stage == "bind":
                raise OutOfMemoryError("10 GiB asked for")

    driver = FakeDriver(2)
    with pytest.raises(MissingFault, match=r"the contract at site 0 ran out of GPU memory: .*10 GiB") as caught:
        run_once(ffn(2), driver, Greedy(driver))
    assert caught.value.exit_code == 69
    assert not driver.leaks()


def test_interrupts_leave_nothing():
    driver = FakeDriver(2)

    class Interrupted(NumpyKernels):
        def _stage(self, stage, name):
            if stage == "launch" and driver.capture is not None:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_once(ffn(2), driver, Interrupted(driver))
    assert not driver.leaks()
    assert driver.capture is None


def test_a_closed_executor_says_so_and_closes_once():
    session, executor, driver = on_fake(ffn(2))
    executor.close()
    executor.close()
    with pytest.raises(KernelFault, match="closed"):
        session.load_all(arrays_of(session.bundle))
    assert not driver.leaks()


def test_an_executor_that_is_not_closed_is_released_when_it_is_collected():
    driver = FakeDriver(2)
    executor = CudaExecutor(ffn(2), driver=driver, kernels=NumpyKernels(driver))
    assert driver.leaks()
    del executor
    gc.collect()
    assert not driver.leaks()


def test_nothing_is_collected_in_a_capture(monkeypatch):
    """What somebody forgot to close is released by the collector, which must not run while a graph is captured."""
    driver = FakeDriver(2)
    forgotten = CudaExecutor(ffn(2), driver=driver, kernels=NumpyKernels(driver))
    forgotten.itself = forgotten  # only the collector finds it
    del forgotten
    begin = driver.begin_capture

    def begin_capture(stream):
        begin(stream)
        gc.set_threshold(1)

    monkeypatch.setattr(driver, "begin_capture", begin_capture)
    threshold = gc.get_threshold()
    try:
        session, executor, _ = on_fake(ffn(2), None, driver)
    finally:
        gc.set_threshold(*threshold)
    assert gc.isenabled()
    session.load_all(arrays_of(ffn(2)))
    session.execute()
    executor.close()
    gc.collect()
    assert not driver.leaks()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_values_that_no_input_may_have(layout):
    bundle = compiled(TRANSFORMER, 5, "f32")
    driver = FakeDriver(5)
    session, executor, _ = on_fake(bundle, LAYOUTS[layout](5), driver)
    arrays = arrays_of(bundle, 3, places=PLACES)
    session.load_all(arrays)
    session.execute()
    good = outputs_of(session)
    agree(good, cpu_results(bundle, arrays))
    ids = np.arange(13) % 11
    ids[7] = 11
    session.load("ids", ids)
    for _ in range(2):
        with pytest.raises(ValueFault, match=r"the index program at site . failed: a bad value") as caught:
            session.execute()
        assert "(kernel for x)" in caught.value.where
    session.load("ids", arrays["ids"])
    session.execute()
    agree(outputs_of(session), good)
    session.load("ids", ids)
    with pytest.raises(ValueFault):
        session.execute(trace=True)
    executor.close()
    assert not driver.leaks()


def test_zeros_that_no_input_may_have_are_no_complaint():
    """Kernels warm up on zeros, which may be wrong where ids are computed."""
    text = "dim n = 6; dim d = 5; dim rows = 4; input ids : i64[n]; weight table : f32[rows, d]\n"
    bundle = compiled(f"{text}output x = embedding(ids - 1, table)", 2, "f32")
    for devices in (None, [0, 0]):
        session, executor, driver = on_fake(bundle, devices)
        table = np.arange(20, dtype="f4").reshape(4, 5)
        session.load_all({"ids": np.array([1, 4, 2, 3, 1, 2]), "table": table})
        session.execute()
        assert np.array_equal(session.offload("x"), table[[0, 3, 1, 2, 0, 1]])
        session.load("ids", np.array([1, 4, 2, 0, 1, 2]))
        with pytest.raises(ValueFault, match="the index program at site"):
            session.execute()
        executor.close()
        assert not driver.leaks()
