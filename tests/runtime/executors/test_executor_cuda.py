"""The CUDA executor on a fake driver that runs what is enqueued in any order that streams and events allow."""

from __future__ import annotations

import gc
import json
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from cuda_fake import FakeDriver, NumpyKernels
from handmade_plans import random_plan
from test_session_compiled import MODELS, compiled
from test_transformer_plans import MODEL as TRANSFORMER
from test_transformer_plans import PLACES

from runtime.bundle import FenceTask
from runtime.draws import random_input
from runtime.errors import KernelFault, MissingFault, ValueFault
from runtime.executors.cpu import CpuExecutor
from runtime.executors.cuda import CudaExecutor
from runtime.executors.cuda_capture import captured
from runtime.executors.cuda_driver import DriverError
from runtime.executors.cuda_holdings import Holdings
from runtime.session import Session

TINY = {"tokens": 13, "d_model": 11, "d_ff": 23}


@cache
def ffn(sites, dtype="f32"):
    return compiled((MODELS / "ffn.ein").read_text(), sites, dtype, **TINY)


@cache
def block(sites):
    text = (MODELS / "llama_block.ein").read_text()
    sizes = {"seq_lens": "[5, 9, 2]", "d_model": 48, "heads_q": 6, "heads_kv": 3, "d_head": 8, "d_ff": 40}
    return compiled(text, sites, "f32", **sizes)


@cache
def chain(sites, name="chain_a"):
    """With transfers both ways between any two sites, and aggregations."""
    return compiled((MODELS / f"{name}.ein").read_text(), sites, "f32", scale=300)


def arrays_of(bundle, seed=0, **given):
    return {t.name: random_input(t, seed) for t in bundle.tensors if t.kind != "value"} | given


def cpu_results(bundle, arrays):
    session = Session(bundle, executor=CpuExecutor(bundle, 1))
    session.load_all(arrays)
    session.execute()
    return {tensor.name: session.offload(tensor.name) for tensor in session.outputs}


def on_fake(bundle, devices=None, driver=None, **options):
    driver = driver or FakeDriver(len(bundle.memory))
    executor = CudaExecutor(bundle, devices, driver=driver, kernels=NumpyKernels(driver), **options)
    return Session(bundle, executor=executor), executor, driver


def agree(found, expected):
    assert found.keys() == expected.keys()
    for name, array in found.items():
        np.testing.assert_allclose(array.astype("f8"), expected[name].astype("f8"), rtol=1e-4, atol=1e-5)


LAYOUTS = {
    "one each": lambda sites: None,
    "all on one": lambda sites: [0] * sites,
    "two devices": lambda sites: [site % 2 for site in range(sites)],
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("make", [ffn, block])
@pytest.mark.parametrize("sites", [1, 2, 4, 8])
def test_compiled_plans_in_many_orders(make, sites, layout):
    bundle = make(sites)
    arrays = arrays_of(bundle)
    expected = cpu_results(bundle, arrays)
    driver = FakeDriver(max(sites, 2), seed=sites)
    session, executor, _ = on_fake(bundle, LAYOUTS[layout](sites), driver)
    session.load_all(arrays)
    for _ in range(3):
        session.execute()
        agree({tensor.name: session.offload(tensor.name) for tensor in session.outputs}, expected)
    executor.close()
    assert not driver.leaks()


@pytest.mark.parametrize("seed", range(18))
def test_random_plans_in_many_orders(seed):
    bundle = random_plan(seed)
    arrays = arrays_of(bundle, seed)
    expected = cpu_results(bundle, arrays)
    driver = FakeDriver(len(bundle.memory), seed=seed, unreachable={(0, 1), (1, 0)} if seed % 3 == 0 else ())
    devices = [site // 2 for site in range(len(bundle.memory))] if seed % 2 else None
    session, executor, _ = on_fake(bundle, devices, driver)
    session.load_all(arrays)
    for _ in range(4):
        session.execute()
        agree({tensor.name: session.offload(tensor.name) for tensor in session.outputs}, expected)
    session.execute(trace=True)
    agree({tensor.name: session.offload(tensor.name) for tensor in session.outputs}, expected)
    executor.close()
    assert not driver.leaks()
    assert executor.facts()["graph"]["waits"] >= 0


def test_replays_give_the_same_bits():
    bundle = block(8)
    results = set()
    for seed in range(3):
        session, _, _ = on_fake(bundle, driver=FakeDriver(8, seed=seed))
        session.load_all(arrays_of(bundle))
        session.execute()
        results.add(session.offload("y").tobytes())
    assert len(results) == 1


def test_an_execution_is_one_launch_and_nothing_is_taken_for_it():
    session, executor, driver = on_fake(block(4))
    session.load_all(arrays_of(session.bundle))
    assert driver.counts["begin_capture"] == driver.counts["end_capture"] == driver.counts["instantiate"] == 1
    assert driver.counts["allocate"] == len(driver.held["memory"])
    before = len(driver.calls)
    assert session.execute() > 0
    calls = [name for name, _ in driver.calls[before:]]
    assert calls == ["record", "launch", "record", "wait_on_host", "elapsed_ms"]
    assert executor.host_us > 0


def captured_steps(executor, driver, order=None):
    """The graph of a capture in which every step is one node, labelled by its number."""
    ready = executor._ready

    def launch_of(number):
        return lambda stream: driver.kernel(stream, number, None)

    launches = tuple(None if launch is None else launch_of(n) for n, launch in enumerate(ready.launches))
    holdings = Holdings(driver)
    captured(driver, holdings, replace(ready, launches=launches, order=order or ready.order))
    graph = max(driver.held["graph"].items())[1]
    holdings.release()
    return graph


def uncovered(executor, graph):
    """Dependencies between steps that no path of the graph keeps."""
    node_of = {node.label: n for n, node in graph.nodes.items()}
    reached = {}
    for n in sorted(graph.nodes):
        reached[n] = {n}.union(*(reached[p] for p in graph.nodes[n].after))
    steps = executor._ready.layout.steps
    return [
        (earlier, number)
        for number in node_of
        for earlier in real_dependencies(steps, number)
        if earlier not in node_of or node_of[earlier] not in reached[node_of[number]]
    ]


def real_dependencies(steps, number):
    """The steps that do something and that a step waits for, through those that do nothing."""
    found, pending = set(), list(steps[number].after)
    while pending:
        earlier = pending.pop()
        if steps[earlier].lane is None:
            pending += steps[earlier].after
        else:
            found.add(earlier)
    return found


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_task_is_captured_once_on_its_stream_with_every_dependency(layout):
    bundle = block(8)
    _, executor, driver = on_fake(bundle, LAYOUTS[layout](8), FakeDriver(8))
    graph, ready = captured_steps(executor, driver), executor._ready
    steps = ready.layout.steps
    assert sorted(node.label for node in graph.nodes.values()) == [n for n, s in enumerate(steps) if s.lane is not None]
    for node in graph.nodes.values():
        assert node.stream == ready.streams[steps[node.label].lane]
    assert not uncovered(executor, graph)
    tasks = [work.task for work, step in zip(ready.layout.works, steps, strict=True) if step.lane is not None]
    assert set(tasks) - {-1} == {n for n, task in enumerate(ready.blame.tasks) if not isinstance(task, FenceTask)}


def test_no_event_can_be_spared():
    bundle = chain(2)
    _, executor, driver = on_fake(bundle)
    order = executor._ready.order
    assert not uncovered(executor, captured_steps(executor, driver))
    for number, waits in enumerate(order.waits):
        for spared in waits:
            fewer = tuple(other for other in waits if other != spared)
            changed = replace(order, waits=(*order.waits[:number], fewer, *order.waits[number + 1 :]))
            try:
                missing = uncovered(executor, captured_steps(executor, driver, changed))
            except (DriverError, KernelFault):  # a stream that never joined, or one that was not joined back
                missing = [()]
            assert missing, (number, spared)


def test_a_traced_run_times_every_task_on_its_stream():
    bundle = block(4)
    driver = FakeDriver(2)
    session, executor, _ = on_fake(bundle, [0, 0, 1, 1], driver)
    session.load_all(arrays_of(bundle))
    before = driver.counts
    assert session.execute(trace=True) > 0
    assert driver.counts["launch"] == before["launch"]
    tasks = executor._ready.blame.tasks
    assert sorted(run.task for run in session.trace.runs) == [
        n for n, task in enumerate(tasks) if not isinstance(task, FenceTask)
    ]
    assert all(0 <= run.start_ms <= run.end_ms for run in session.trace.runs)
    ends = {run.task: run.end_ms for run in session.trace.runs}
    starts = {run.task: run.start_ms for run in session.trace.runs}
    devices = [0, 0, 1, 1]
    for number, task in enumerate(tasks):
        for earlier in task.after:
            if earlier in ends and number in starts and devices[task.site] == devices[tasks[earlier].site]:
                assert ends[earlier] <= starts[number]
    assert driver.counts["create_event"] - driver.counts["destroy_event"] == len(driver.held["event"])


# What is not there


def test_too_few_devices_say_what_to_do():
    with pytest.raises(MissingFault) as caught:
        on_fake(ffn(4), driver=FakeDriver(1))
    assert caught.value.exit_code == 69
    assert caught.value.message == "the plan has 4 sites, and 1 GPU is visible"
    assert "--devices 0,0,0,0" in caught.value.hint
    with pytest.raises(MissingFault, match="there is no device 2: 2 GPUs are visible"):
        on_fake(ffn(4), [0, 1, 2, 0], FakeDriver(2))


def test_too_little_memory_is_told_with_numbers():
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


def test_access_between_devices_is_given_back():
    driver = FakeDriver(4)
    _, executor, _ = on_fake(block(4), driver=driver)
    assert driver.counts["enable_peer"] == len(driver.held["peer"]) > 0
    executor.close()
    assert driver.counts["disable_peer"] == driver.counts["enable_peer"]


# What goes wrong


def run_once(bundle, driver, kernels=None, devices=(0, 1)):
    executor = CudaExecutor(bundle, devices, driver=driver, kernels=kernels or NumpyKernels(driver))
    session = Session(bundle, executor=executor)
    session.load_all(arrays_of(bundle))
    session.execute()
    session.execute(trace=True)
    session.offload(session.outputs[0].name)
    executor.close()


@pytest.mark.parametrize("name", ["chain_c", pytest.param("chain_a", marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", ["once", "lost", pytest.param("memory", marks=pytest.mark.slow)])
@pytest.mark.parametrize("reachable", [True, False])
def test_a_failure_of_any_call_is_one_error_and_leaves_nothing(kind, reachable, name):
    bundle = chain(2, name)
    unreachable = () if reachable else {(0, 1), (1, 0)}
    clean = FakeDriver(2, unreachable=unreachable)
    run_once(bundle, clean)
    assert not clean.leaks()
    assert {"copy_async", "kernel", "enable_peer" if reachable else "allocate_host"} <= clean.counts.keys()
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


def test_an_executor_that_nobody_closes_is_released_with_it():
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


@pytest.mark.parametrize("layout", LAYOUTS)
def test_values_that_no_input_may_have(layout):
    bundle = compiled(TRANSFORMER, 5, "f32")
    driver = FakeDriver(5)
    session, executor, _ = on_fake(bundle, LAYOUTS[layout](5), driver)
    arrays = arrays_of(bundle, 3, places=PLACES)
    session.load_all(arrays)
    session.execute()
    good = {tensor.name: session.offload(tensor.name) for tensor in session.outputs}
    agree(good, cpu_results(bundle, arrays))
    ids = np.arange(13) % 11
    ids[7] = 11
    session.load("ids", ids)
    for _ in range(2):
        with pytest.raises(ValueFault, match=r"the embedding at site . failed: a bad value") as caught:
            session.execute()
        assert "(kernel for x)" in caught.value.where
    session.load("ids", arrays["ids"])
    session.execute()
    agree({tensor.name: session.offload(tensor.name) for tensor in session.outputs}, good)
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
        with pytest.raises(ValueFault, match="the embedding at site"):
            session.execute()
        executor.close()
        assert not driver.leaks()


def test_facts_say_who_runs_what():
    bundle = ffn(4)
    _, executor, driver = on_fake(bundle, [0, 0, 1, 1], FakeDriver(2))
    facts = executor.facts()
    assert [device["sites"] for device in facts["devices"]] == [[0, 1], [2, 3]]
    assert facts["devices"][0]["architecture"] == "sm_90"
    assert sum(device["bytes"] for device in facts["devices"]) == sum(
        array.size for array, _ in driver.held["memory"].values()
    )
    contract = next(entry for entry in facts["kernels"] if entry["kernel"] == "contract")
    assert contract["provider"] == "numpy"
    assert contract["tasks"] >= 4
    assert facts["graph"]["streams"] == len(driver.held["stream"])
    json.dumps(facts)


def test_half_width_floats_are_loaded_and_fetched():
    for dtype in ("f16", "bf16"):
        bundle = ffn(2, dtype)
        session, executor, _ = on_fake(bundle)
        arrays = {name: array.astype("f4") if dtype == "bf16" else array for name, array in arrays_of(bundle).items()}
        session.load_all(arrays)
        session.execute()
        expected = cpu_results(bundle, arrays)["y"].astype("f8")
        found = session.offload("y")
        assert found.dtype.name == {"f16": "float16", "bf16": "bfloat16"}[dtype]
        assert np.abs(found.astype("f8") - expected).max() <= 1e-2 * np.abs(expected).max()
        executor.close()
