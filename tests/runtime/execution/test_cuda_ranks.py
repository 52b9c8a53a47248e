"""Plans on GPUs of several ranks, on fakes of CUDA and NCCL: the bits of one process, whatever arrives when."""

from __future__ import annotations

import threading
import time
from dataclasses import replace

import numpy as np
import pytest

from einc_runtime.errors import KernelFault, MissingFault, PlanFault
from einc_runtime.execution.cuda import executor as cuda
from einc_runtime.execution.cuda import lanes
from einc_runtime.execution.cuda.lanes import Lanes
from einc_runtime.execution.cuda.resources import CudaResources
from einc_runtime.execution.cuda.streams import StepKind
from einc_runtime.execution.ranks.cuda_part import agree_on_gpus
from einc_runtime.execution.ranks.part import take_part
from einc_runtime.plan.lanes import LaneStep, prove_lanes
from einc_runtime.plan.ranks import RankTask
from tests.support import nccl_fake
from tests.support.compiled_plans import EVERYTHING, PLACES, TRANSFORMER, compiled
from tests.support.cuda_fake import FakeDriver
from tests.support.cuda_fake_kernels import NumpyKernels
from tests.support.cuda_plans import agree, block, chain, cpu_results, on_fake
from tests.support.cuda_ranks import run_on_fakes
from tests.support.handmade_plans import random_plan
from tests.support.lane_interleavings import Interleavings, read_graph
from tests.support.plan_arrays import arrays_of, outputs_of, results
from tests.support.thread_links import ThreadWorld


def bits(arrays):
    return {name: array.tobytes() for name, array in arrays.items()}


def in_one_process(bundle, arrays, devices=None):
    session, executor, _ = on_fake(bundle, devices, FakeDriver(len(bundle.memory)))
    found = bits(results(session, arrays))
    executor.close()
    return found


def run_and_close(arrays):
    """A program of a rank: three runs, one of them traced, and what is left of the GPUs afterwards."""

    def run(rank):
        found = [bits(results(rank.session, arrays))]
        for traced in (True, False):
            rank.session.execute(trace=traced)
            found.append(bits(outputs_of(rank.session)))
        facts = rank.session.facts
        rank.session.close()
        return found, facts, rank.driver.leaks(), rank.session.trace

    return run


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("text", "given", "size", "options"),
    [
        (EVERYTHING, {}, 4, {}),
        (EVERYTHING, {}, 3, {"shares": (1, 2, 1)}),
        (EVERYTHING, {}, 2, {"devices": (0, 0, 1, 1)}),
        (EVERYTHING, {}, 2, {"devices": (1, 1, 0, 1)}),
        (TRANSFORMER, {"places": PLACES}, 4, {}),
    ],
)
def test_several_ranks_compute_the_bits_of_one_process(text, given, size, options):
    bundle = compiled(text, 4, "f32")
    arrays = arrays_of(bundle, **given)
    expected = in_one_process(bundle, arrays)
    found, world = run_on_fakes(bundle, size, run_and_close(arrays), seed=size, **options)
    first, *others = found
    assert first[0] == [expected] * 3
    assert all(not leaks for _, _, leaks, _ in found)
    assert all(facts.messages > 0 and facts.ranks == size for _, facts, _, _ in found)
    assert sorted(site for _, facts, _, _ in found for device in facts.cuda.devices for site in device.sites) == [
        0, 1, 2, 3,
    ]  # fmt: skip
    assert {run.task for run in first[3].runs} >= {run.task for _, _, _, trace in others for run in trace.runs}
    assert world.delivered > 0


@pytest.mark.parametrize("seed", range(6))
def test_random_plans_in_many_orders(seed):
    """Regions that are not dense, memory that is used again, and GPUs that cannot reach each other."""
    bundle = random_plan(seed, sites=3 + seed % 3, operations=3, reuse=seed % 2 == 0)
    arrays = arrays_of(bundle)
    sites, size = len(bundle.memory), 2 + seed % 2
    devices = [site % 2 for site in range(sites)] if seed % 3 == 0 else None
    found, _ = run_on_fakes(bundle, size, run_and_close(arrays), seed=seed, devices=devices)
    expected = cpu_results(bundle, arrays)
    for one in found[0][0]:
        agree({name: np.frombuffer(one[name], array.dtype).reshape(array.shape) for name, array in expected.items()},
              expected)  # fmt: skip
    assert all(not leaks for _, _, leaks, _ in found)


def lane_steps(executor):
    """The tasks of a rank and its steps, as its executor schedules them: what is proved is what is run."""
    plan = executor.part._plan
    schedule = plan.schedule
    tasks = {}
    steps, number = [], {}
    for position, step in enumerate(schedule.steps):
        if step.stream is None or step.kind in (StepKind.OUTPUTS, StepKind.STATUS):
            continue
        tasks[position] = step.messages or (step.task,)
    ranked = sorted({task for own in tasks.values() for task in own})
    place = {task: n for n, task in enumerate(ranked)}
    known = {}

    def resolve(position):
        """The steps on streams that are waited for with a step."""
        step = schedule.steps[position]
        if step.stream is not None:
            return {position}
        if position not in known:
            known[position] = set().union(*(resolve(earlier) for earlier in step.after), set())
        return known[position]

    lane = {}  # the groups of a GPU are on one stream
    for position, own in tasks.items():
        after = {number[e] for one in schedule.steps[position].after for e in resolve(one)}
        number[position] = len(steps)
        device = schedule.device_of(position)
        gpu = executor.part._lanes._communicators.gpus[device]
        if schedule.steps[position].messages:
            after |= {lane[gpu]} if gpu in lane else set()
            lane[gpu] = number[position]
        steps.append(LaneStep(tuple(place[task] for task in own), gpu, tuple(sorted(after))))
    bundle = executor.part.bundle
    messages = take_part(executor.bundle, executor._owners, executor._links.rank).messages
    peers = {task: executor._owners[site] for task, site in messages.items()}
    return [RankTask(task, bundle.tasks[task], peers.get(task)) for task in ranked], steps


@pytest.mark.parametrize("size", [2, 4])
def test_the_schedules_of_executors_are_proved(size):
    bundle = chain(4)
    found, _ = run_on_fakes(bundle, size, lambda rank: lane_steps(rank.executor))
    items, steps = [items for items, _ in found], [steps for _, steps in found]
    assert prove_lanes(bundle, items, steps) > 3
    assert any(len(step.places) > 1 for own in steps for step in own)


def graphs_of(bundle, size, **options):
    return run_on_fakes(bundle, size, lambda rank: read_graph(rank.links.rank, rank.driver), **options)[0]


PLANS = {
    "chain": (lambda: chain(4), 4, {}),
    "block": (lambda: block(4), 2, {}),
    "two on a GPU": (lambda: block(4), 2, {"devices": (0, 0, 0, 0)}),
}


def count_hangs(bundle, size, options, seeds):
    interleavings = Interleavings(graphs_of(bundle, size, **options))
    assert sum(bool(node.ends) for node in interleavings.nodes) > 3
    return sum(bool(interleavings.find_hang(seed)) for seed in seeds)


@pytest.mark.parametrize("name", PLANS)
def test_no_interleaving_hangs(name):
    make, size, options = PLANS[name]
    assert count_hangs(make(), size, options, range(20)) == 0


@pytest.mark.slow
def test_none_of_100_000_interleavings_hangs():
    for make, size, options in PLANS.values():
        assert count_hangs(make(), size, options, range(33_334)) == 0


def test_what_does_not_wait_can_hang():
    """The check can fail: some groups begin before what comes before them on their GPU."""
    graphs = graphs_of(chain(4), 4)
    hangs = 0
    for rank in range(4):
        for number, node in enumerate(graphs[rank]):
            if node.ends and node.after:
                early = replace(node, after=())
                nodes = [early if n == number else one for n, one in enumerate(graphs[rank])]
                flawed = Interleavings([nodes if r == rank else own for r, own in enumerate(graphs)])
                hangs += any(flawed.find_hang(seed) for seed in range(20))
    assert hangs > 0


def test_a_failure_ends_everything_within_seconds():
    """A kernel that fails on one rank while others wait in their graphs: communicators are aborted, all is released."""
    bundle = chain(3)
    arrays = arrays_of(bundle)
    drivers = []

    def run(rank):
        drivers.append(rank.driver)
        rank.session.load_all(arrays)
        if rank.links.rank == 1:
            rank.driver.fail_at, rank.driver.lost = len(rank.driver.calls) + 1, False
        rank.session.execute()

    start = time.monotonic()
    with pytest.raises(KernelFault, match="injected"):
        run_on_fakes(bundle, 3, run)
    assert time.monotonic() - start < 5
    assert all(not driver.held["instance"] for driver in drivers)


def test_an_error_of_a_connection_ends_a_run_that_waits():
    bundle = chain(2)
    arrays = arrays_of(bundle)

    def run(rank):
        rank.session.load_all(arrays)
        world = rank.executor.part._lanes._communicators.world
        if rank.links.rank == 0:
            world.lost.add(0)  # and the other one never comes
            with pytest.raises(KernelFault, match="a connection is lost"):
                rank.executor.part.execute()
            return rank.driver.leaks(), rank.executor.closed
        return None

    found, _ = run_on_fakes(bundle, 2, run)
    assert found[0] == ({}, True)


def test_what_fails_in_preparing_is_reported():
    with pytest.raises(KernelFault, match="no prepare of contract"):
        run_on_fakes(chain(2), 2, lambda rank: None, kernels=lambda d: NumpyKernels(d, fail=("prepare", "contract")))


@pytest.mark.parametrize(
    ("gpus", "devices", "expected"),
    [
        ([["a", "b", "c", "d"]] * 2, None, [(0, 1), (2, 3)]),  # one machine, where all see all
        ([["a", "b"], ["c", "d"]], None, [(0, 1), (0, 1)]),  # each sees its own
        ([["a", "b", "c"], ["b", "a", "d", "c"]], None, [(0, 1), (2, 3)]),
        ([["a", "b"], ["c", "d"]], (1, 1, 0, 0), [(1, 1), (0, 0)]),
        ([["a", "b", "c"]] * 2, None, "rank 1"),
        ([["a", "b"]] * 2, (0, 0, 0, 0), "ranks 0 and 1 have the same GPU"),
        ([["a", "b"], ["c"]], (0, 1, 0, 1), "there is no device 1: 1 GPU is visible there"),
    ],
)
def test_ranks_agree_on_gpus(gpus, devices, expected):
    class Seen:
        def __init__(self, names):
            self.names = names

        def device_count(self):
            return len(self.names)

        def address(self, device):
            return self.names[device]

    def run(links):
        return agree_on_gpus(links, Seen(gpus[links.rank]), (0, 0, 1, 1), devices)

    if isinstance(expected, str):
        with pytest.raises(MissingFault) as caught:
            ThreadWorld(2).run(run)
        assert expected in caught.value.render()
        return
    found = ThreadWorld(2).run(run)
    assert [own.devices for own in found] == expected
    assert found[0].gpus == found[1].gpus
    assert found[0].count == len(set(found[0].gpus)) == len({(r, d) for r, own in enumerate(expected) for d in own})


def test_more_ranks_than_sites_are_refused():
    with pytest.raises(PlanFault, match="4 ranks cannot share the 3 sites"):
        run_on_fakes(chain(3), 4, lambda rank: None)


def test_groups_that_connect_gpus_wait_forever(monkeypatch):
    """Why GPUs are connected one by one: with a whole group at once, some plan hangs, and the fake finds it."""
    monkeypatch.setattr(nccl_fake, "PATIENCE", 0.5)
    monkeypatch.setattr(Lanes, "list_first_meetings", lambda *_: [])
    bundle = compiled(EVERYTHING, 4, "f32")
    with pytest.raises(KernelFault, match="connecting waits forever"):
        run_on_fakes(bundle, 3, lambda rank: None)


def test_gpus_are_not_connected_in_a_capture(monkeypatch):
    monkeypatch.setattr(cuda, "warm_up_messages", lambda *_: None)
    with pytest.raises(KernelFault, match="connected in a capture"):
        run_on_fakes(chain(4), 2, lambda rank: None)


def test_a_failure_is_reported_although_nothing_can_be_released(monkeypatch):
    monkeypatch.setattr(lanes, "END_SECONDS", 0.1)
    over = threading.Event()

    class Stuck:
        def abort(self):
            over.wait(20)

        release = abort

    own = Lanes(chain(4), {}, Stuck, sites=(), versions={})
    own.connect(CudaResources(FakeDriver(1)))
    start = time.monotonic()
    own.end(Stuck())
    over.set()
    assert 0.1 <= time.monotonic() - start < 2
