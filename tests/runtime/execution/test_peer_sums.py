"""Sums that GPUs make out of each other's memory: which ones, and that nobody waits forever, or too little."""

from __future__ import annotations

import ctypes
import itertools
from dataclasses import replace
from functools import partial

import msgspec
import numpy as np
import pytest

from einc_runtime.errors import PlanFault
from einc_runtime.execution.cuda.events import schedule_events
from einc_runtime.execution.cuda.executor import CudaExecutor
from einc_runtime.execution.cuda.peer_flags import FlagMemory, list_peer_sums
from einc_runtime.execution.cuda.preparation import rewrite_for_devices
from einc_runtime.execution.cuda.streams import StepKind, schedule_steps
from einc_runtime.execution.session import Session
from einc_runtime.kernels.gpu import LATE_PEERS, GpuArray, GpuTarget, PeerFlags
from einc_runtime.plan.launches import find_launches
from einc_runtime.plan.peer_sums import find_peer_sums
from einc_runtime.plan.proof import prove_data
from tests.support.cuda_fake import FakeDriver
from tests.support.cuda_fake_kernels import NumpyKernels
from tests.support.launch_cases import PartByPart, Sequences, compile_cut_step, run_twice, step_arrays


@pytest.fixture(scope="module")
def step():
    return compile_cut_step(3)


def find(bundle):
    return find_peer_sums(bundle, bundle.tasks, find_launches(bundle, bundle.tasks))


def test_small_sums_of_all_sites_are_made_out_of_their_memory(step):
    sums = find(step)
    serves = [{step.tasks[number].serves for number in s.tasks} for s in sums]
    assert serves == [{"layer.0.r"}, {"x.0"}]
    for s in sums:
        assert sorted(step.tasks[number].site for number in s.tasks) == [0, 1, 2]
        assert len(s.moves) == 6
        read = {region.buffer for number in s.tasks for region in step.tasks[number].reads}
        assert all(step.tasks[move].write.buffer in read for move in s.moves)


def test_tasks_between_others_keep_a_sum_apart(step):
    """A part that waits for what comes after another part cannot begin together with it."""
    (first, *_) = find(step)
    tasks = list(step.tasks)
    late = tasks[first.tasks[-1]]
    tasks[first.tasks[-1]] = msgspec.structs.replace(late, after=(*late.after, first.tasks[0]))
    assert [s.tasks for s in find_peer_sums(step, tasks, ())] == [s.tasks for s in find(step)[1:]]


def test_what_is_run_is_proved_with_flags_as_waits(step):
    """A part of a sum begins when all that any part waits for has ended, and reads its copies where they lie."""
    tasks = list(rewrite_for_devices(step, range(3)))
    sums = list_peer_sums(step, tasks)
    for peer_sum in sums:
        moves = set(peer_sum.moves)
        waits = {before for n in (*moves, *peer_sum.tasks) for before in tasks[n].after} - moves
        for number in peer_sum.tasks:
            tasks[number] = msgspec.structs.replace(tasks[number], after=tuple(sorted(waits)))
    assert len(sums) == 2
    prove_data(msgspec.structs.replace(step, tasks=tuple(tasks)))
    number = sums[0].tasks[1]
    for lost in tasks[number].after:  # products of three sites: without any of them, the sum races
        without = tuple(before for before in tasks[number].after if before != lost)
        changed = [*tasks[:number], msgspec.structs.replace(tasks[number], after=without), *tasks[number + 1 :]]
        with pytest.raises(PlanFault, match="without waiting"):
            prove_data(msgspec.structs.replace(step, tasks=tuple(changed)))


def test_events_and_flags_keep_every_wait(step):
    """All that a task waits for has ended when it begins, in every order that streams, events and flags allow."""
    tasks = rewrite_for_devices(step, range(3))
    schedule = schedule_steps(step, tasks, range(3), (), (), list_peer_sums(step, tasks))
    order = schedule_events(schedule.steps, schedule.streams)
    plain = schedule_steps(step, tasks, range(3), ())
    assert order.edges < schedule_events(plain.steps, plain.streams).edges
    begun = find_ended_before(schedule, order)
    step_of = {s.task: n for n, s in enumerate(schedule.steps) if s.kind is StepKind.TASK}
    for number, task in enumerate(tasks):
        if schedule.steps[step_of[number]].stream is None:
            continue
        pending = list(task.after)
        while pending:
            earlier = step_of[pending.pop()]
            if schedule.steps[earlier].stream is None:
                pending += tasks[schedule.steps[earlier].task].after
            else:
                assert earlier in begun[step_of[number]], (number, earlier)


def find_ended_before(schedule, order):
    """For every step those that have surely ended when it begins to read: by brute force, to a fixed point."""
    steps = schedule.steps
    before = {n: set() for n, s in enumerate(steps) if s.stream is not None}
    for stream in range(len(schedule.streams)):
        here = [n for n in before if steps[n].stream == stream]
        for earlier, later in itertools.pairwise(here):
            before[later].add(earlier)
    for n in before:
        before[n] |= {w for w in order.waits[n] if w >= 0}
    ended = {n: set() for n in before}
    while True:
        old = {n: len(of) for n, of in ended.items()}
        for n in before:
            ended[n] |= before[n].union(*(ended[b] for b in before[n]))
            ended[n] = ended[n].union(
                *(
                    before[p].union(*(ended[b] for b in before[p]))
                    for p in before
                    if steps[n].peer_sum == steps[p].peer_sum >= 0
                )
            )
        if {n: len(of) for n, of in ended.items()} == old:
            return ended


def run_on(step, devices, driver, kernels):
    with Session(step, executor=CudaExecutor(step, list(devices), driver=driver, kernels=kernels)) as session:
        results = run_twice(session, step_arrays(step, 5))
        notes = session.facts.cuda.notes
    assert not driver.leaks()
    return results, notes


@pytest.fixture(scope="module")
def expected(step):
    driver = FakeDriver(1, seed=1)
    return run_on(step, (0, 0, 0), driver, PartByPart(driver))[0]


def agree(results, expected):
    for name, values in results.items():
        np.testing.assert_array_equal(values, expected[name])


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("make", [NumpyKernels, PartByPart])
def test_results_are_those_of_one_device(step, expected, make, seed):
    driver = FakeDriver(3, seed=seed)
    kernels = make(driver)
    agree(run_on(step, range(3), driver, kernels)[0], expected)
    assert kernels.waited_by_flags == 6


def test_flags_that_are_not_taken_back_are_noticed(step, expected, monkeypatch):
    """In the second execution, nobody waits for anybody then."""
    monkeypatch.setattr(FlagMemory, "make_reset", lambda flags, device: lambda stream: None)
    wrong = 0
    for seed in range(6):
        driver = FakeDriver(3, seed=seed)
        results, _ = run_on(step, range(3), driver, PartByPart(driver))
        wrong += any((results[name] != values).any() for name, values in expected.items())
    assert wrong


@pytest.mark.parametrize("case", ["one GPU plays all", "no atomics", "blocking launches"])
def test_without_what_flags_need_events_are_waited_for(step, expected, monkeypatch, case):
    driver = FakeDriver(3, seed=2, silent=[(2, 0)] if case == "no atomics" else ())
    if case == "one GPU plays all":
        driver.address = lambda device: "0000:0"
    if case == "blocking launches":
        monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", "1")
    kernels = PartByPart(driver)
    agree(run_on(step, range(3), driver, kernels)[0], expected)
    assert not kernels.waited_by_flags


class Late(PartByPart):
    """GPUs that run one kernel at a time, all together: those that wait for each other give up."""

    def prepare_launch(self, kind, parts, kept, target, flags=None):
        kernel = super().prepare_launch(kind, parts, kept, target)
        if kernel is None or flags is None:
            return kernel

        def bind(workspace, status):
            run = partial(setattr, ctypes.c_int32.from_address(status), "value", 1)
            return lambda stream: self.driver.kernel(stream, kind, run)

        return replace(kernel, bind=bind, status_message=LATE_PEERS)


def test_gpus_that_run_no_kernels_beside_each_other_wait_by_events(step, expected):
    driver = FakeDriver(3, seed=2)
    results, notes = run_on(step, range(3), driver, Late(driver))
    agree(results, expected)
    assert [note for note in notes if "by events" in note]


def test_a_kernel_with_flags_tells_all_and_waits_for_all():
    views = [GpuArray(n << 20, (3, 40), (160, 4), "f32", n) for n in (1, 2, 3)]
    target = GpuTarget(1, "a GPU", (9, 0), 132)
    plain = Sequences().prepare_aggregate("sum", views, replace(views[0], pointer=9 << 20), target)
    flagged = [
        Sequences().prepare_aggregate("sum", views, replace(views[0], pointer=9 << 20), target, flags)
        for flags in (PeerFlags(64, (128, 192)), PeerFlags(4096, (8192, 12288)))
    ]
    (first,), (second,) = (sequence.steps for sequence in flagged)
    assert first.source == second.source
    assert first.source.name != plain.steps[0].source.name
    assert [a for a in first.arguments if isinstance(a, int)][-3:] == [64, 128, 192]
    assert flagged[0].status_message == LATE_PEERS
    assert list(first.source.signature())[-4:] == ["awaited", "failed", "peer0", "peer1"]
