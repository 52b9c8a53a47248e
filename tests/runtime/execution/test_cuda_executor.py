"""The CUDA executor on a fake driver, which runs what is enqueued in any order that streams and events allow."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest

from einc.compiler import compile_model
from einc.options import CompileOptions
from einc_runtime.errors import KernelFault
from einc_runtime.execution.cuda.capture import capture
from einc_runtime.execution.cuda.driver import DriverError
from einc_runtime.execution.cuda.resources import CudaResources
from einc_runtime.execution.data.random_arrays import make_random_array
from einc_runtime.execution.facts import list_facts
from einc_runtime.plan.schema import LOADED_ROLES, FenceTask, TransferTask
from tests.support.compiled_plans import MODELS
from tests.support.cuda_fake import FakeDriver
from tests.support.cuda_plans import LAYOUTS, agree, block, chain, cpu_results, ffn, on_fake
from tests.support.handmade_plans import random_plan
from tests.support.plan_arrays import outputs_of
from tests.support.sampling import one_in


def arrays_of(bundle, seed=0, **given):
    return {t.name: make_random_array(t, seed) for t in bundle.tensors if t.kind != "value"} | given


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("sites", "make", "layout"), one_in(2, [1, 2, 4, 8], [ffn, block], LAYOUTS))
def test_compiled_plans_in_many_orders(make, sites, layout):
    bundle = make(sites)
    arrays = arrays_of(bundle)
    expected = cpu_results(bundle, arrays)
    driver = FakeDriver(max(sites, 2), seed=sites)
    session, executor, _ = on_fake(bundle, LAYOUTS[layout](sites), driver)
    session.load_all(arrays)
    for _ in range(3):
        session.execute()
        agree(outputs_of(session), expected)
    executor.close()
    assert not driver.leaks()


def test_what_lies_on_one_device_is_brought_in_every_execution():
    options = CompileOptions("host", 4, (("scale", "300"),), selector="random", dtype="f32", input_placement="once")
    bundle = compile_model((MODELS / "chain_d.ein").read_text(), "m.ein", options).bundle
    loaded = [buffer.site for buffer in bundle.buffers if buffer.role in LOADED_ROLES]
    sent = {task.read.buffer for task in bundle.tasks if isinstance(task, TransferTask)}
    assert len(set(loaded)) > 1
    assert any(bundle.buffers[number].role in LOADED_ROLES for number in sent)
    session, executor, driver = on_fake(bundle)
    for seed in (1, 2):
        arrays = arrays_of(bundle, seed)
        session.load_all(arrays)
        for _ in range(2):
            session.execute()
            agree(outputs_of(session), cpu_results(bundle, arrays))
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
        agree(outputs_of(session), expected)
    session.execute(trace=True)
    agree(outputs_of(session), expected)
    executor.close()
    assert not driver.leaks()
    assert executor.facts().cuda.graph.waits >= 0


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
    replay = ["record", "launch", "record", "wait_on_host", "elapsed_ms"]
    assert calls == ["copy_async", *["copy"] * 3, *replay], "small inputs are one copy to each device"
    before = len(driver.calls)
    session.execute()
    assert [name for name, _ in driver.calls[before:]] == replay
    assert executor.host_us > 0


def test_small_inputs_and_outputs_of_launches_that_nobody_waited_for():
    session, executor, driver = on_fake(block(2))
    given = arrays_of(session.bundle)
    expected = session.run(given)["y"]
    session.load_all({name: np.zeros_like(values) for name, values in given.items()})
    executor.enqueue()
    session.load_all(given)
    session.execute()
    executor.enqueue()
    executor.wait()
    before = len(driver.calls)
    np.testing.assert_array_equal(session.offload("y"), expected)
    assert not driver.calls[before:], "small outputs are on the host already"


def captured_steps(executor, driver, order=None):
    """The graph of a capture in which every step is one node, labelled by its number."""
    plan = executor._plan

    def launch_of(number):
        return lambda stream: driver.kernel(stream, number, None)

    launches = tuple(None if launch is None else launch_of(n) for n, launch in enumerate(plan.launches))
    resources = CudaResources(driver)
    capture(driver, resources, replace(plan, launches=launches, event_schedule=order or plan.event_schedule))
    graph = max(driver.held["graph"].items())[1]
    resources.release()
    return graph


def uncovered(executor, graph):
    """Dependencies between steps that no path of the graph keeps."""
    node_of = {node.label: n for n, node in graph.nodes.items()}
    reached = {}
    for n in sorted(graph.nodes):
        reached[n] = {n}.union(*(reached[p] for p in graph.nodes[n].after))
    steps = executor._plan.schedule.steps
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
        if steps[earlier].stream is None:
            pending += steps[earlier].after
        else:
            found.add(earlier)
    return found


@pytest.mark.sampled(2)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_task_is_captured_once_on_its_stream_with_every_dependency(layout):
    bundle = block(8)
    by_events = FakeDriver(8, silent=permutations(range(8), 2))
    _, executor, driver = on_fake(bundle, LAYOUTS[layout](8), by_events)
    graph, plan = captured_steps(executor, driver), executor._plan
    steps = plan.schedule.steps
    assert sorted(node.label for node in graph.nodes.values()) == [
        n for n, s in enumerate(steps) if s.stream is not None
    ]
    for node in graph.nodes.values():
        assert node.stream == plan.stream_handles[steps[node.label].stream]
    assert not uncovered(executor, graph)
    tasks = [step.task for step in steps if step.stream is not None]
    assert set(tasks) - {-1} == {n for n, task in enumerate(plan.errors.tasks) if not isinstance(task, FenceTask)}


def test_every_event_is_needed():
    bundle = chain(2)
    _, executor, driver = on_fake(bundle, None, FakeDriver(2, silent=permutations(range(2), 2)))
    order = executor._plan.event_schedule
    assert not uncovered(executor, captured_steps(executor, driver))
    for number, waits in enumerate(order.waits):
        for dropped in waits:
            fewer = tuple(other for other in waits if other != dropped)
            changed = replace(order, waits=(*order.waits[:number], fewer, *order.waits[number + 1 :]))
            try:
                missing = uncovered(executor, captured_steps(executor, driver, changed))
            except (DriverError, KernelFault):  # a stream that never joined, or one that was not joined back
                missing = [()]
            assert missing, (number, dropped)


def test_a_traced_run_times_every_task_on_its_stream():
    bundle = block(4)
    driver = FakeDriver(2)
    session, executor, _ = on_fake(bundle, [0, 0, 1, 1], driver)
    session.load_all(arrays_of(bundle))
    before = driver.counts
    assert session.execute(trace=True) > 0
    assert driver.counts["launch"] == before["launch"]
    tasks = executor._plan.errors.tasks
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


def test_facts_say_which_library_runs_each_kernel():
    bundle = ffn(4)
    _, executor, driver = on_fake(bundle, [0, 0, 1, 1], FakeDriver(2))
    facts = executor.facts()
    assert [device.sites for device in facts.cuda.devices] == [(0, 1), (2, 3)]
    assert facts.cuda.devices[0].architecture == "sm_90"
    assert sum(device.bytes for device in facts.cuda.devices) == sum(
        array.size for array, _ in driver.held["memory"].values()
    )
    contract = next(entry for entry in facts.cuda.kernels if entry.kernel == "contract")
    assert contract.provider == "numpy"
    assert contract.tasks >= 4
    assert facts.cuda.graph.streams == len(driver.held["stream"])
    assert json.loads(json.dumps(list_facts(facts)))["devices"][1]["sites"] == [2, 3]


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
