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
from einc_runtime.plan.peer_sums import find_peer_sums, list_waits
from einc_runtime.plan.proof import prove_data
from einc_runtime.plan.regions import reads_of, writes_of
from tests.support.cuda_fake import FakeDriver
from tests.support.cuda_fake_kernels import NumpyKernels
from tests.support.launch_cases import (
    PartByPart,
    Sequences,
    compile_cut_step,
    compile_gathering_step,
    run_twice,
    step_arrays,
)


@pytest.fixture(scope="module", params=[compile_cut_step, compile_gathering_step])
def step(request):
    """A step with two sums, which gather nothing, or the norms that they begin."""
    return request.param(3)


def is_gathering(step):
    return any(s.gathers for s in find(step))


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
        gathered = {step.tensors[step.buffers[step.tasks[g].read.buffer].tensor].name for g in s.gathers}
        assert gathered == ({"layer.0.n" if "layer.0.r" in serves[sums.index(s)] else "last_x"} if s.gathers else set())
        assert len(s.gathers) in (0, 6)


def test_sums_of_many_layers_are_all_made_so():
    """Of 80 layers, thousands of buffers share few bytes."""
    sizes = {"heads_q": 8, "heads_kv": 8, "d_model": 16, "d_head": 2, "d_ff": 16, "vocab": 16, "cache": 4}
    step = compile_cut_step(8, n_layers=80, **sizes)
    assert len(list_peer_sums(step, rewrite_for_devices(step, range(8)))) == len(find(step)) == 160


def test_tasks_between_others_keep_a_sum_apart(step):
    """A part that waits for what comes after another part cannot begin together with it."""
    (first, *_) = find(step)
    tasks = list(step.tasks)
    late = tasks[first.tasks[-1]]
    tasks[first.tasks[-1]] = msgspec.structs.replace(late, after=(*late.after, first.tasks[0]))
    assert [s.tasks for s in find_peer_sums(step, tasks, ())] == [s.tasks for s in find(step)[1:]]


def test_what_is_run_is_proved_with_flags_as_waits(step):
    """A part of a sum begins when all that any part waits for has ended, and reads its copies where they lie. What is
    gathered is written by the launch of the part, and there when the part of its site has ended."""
    tasks, sums = write_as_run(step)
    assert len(sums) == 2
    prove_data(msgspec.structs.replace(step, tasks=tuple(tasks)))
    number = sums[0].tasks[1]
    read = {region.buffer for region in reads_of(tasks[number])}
    products = [before for before in tasks[number].after if {r.buffer for r in writes_of(tasks[before])} & read]
    assert len(products) == 3
    for lost in products:  # without any of them, the sum races
        without = tuple(before for before in tasks[number].after if before != lost)
        changed = [*tasks[:number], msgspec.structs.replace(tasks[number], after=without), *tasks[number + 1 :]]
        with pytest.raises(PlanFault, match="without waiting"):
            prove_data(msgspec.structs.replace(step, tasks=tuple(changed)))


def write_as_run(step):
    """The tasks as they are run, with flags as waits: all of a unit begins when all parts have begun, and what is
    gathered waits for nothing else than the launch that writes it."""
    tasks = list(rewrite_for_devices(step, range(3)))
    sums = list_peer_sums(step, tasks)
    members = {launch.tasks[0]: launch.tasks for launch in find_launches(step, tasks)}
    for peer_sum in sums:
        units = {n: members.get(n, (n,)) for n in peer_sum.tasks}
        inner = {*peer_sum.moves, *(m for unit in units.values() for m in unit)}
        own = {tasks[n].site: unit for n, unit in units.items()}
        together = {before for n in (*peer_sum.moves, *peer_sum.tasks) for before in tasks[n].after}
        waits = {*together, *(b for g in peer_sum.gathers for b in list_waits(tasks, g))} - inner
        assert all(before < peer_sum.first for before in waits)
        for number in peer_sum.tasks:
            tasks[number] = msgspec.structs.replace(tasks[number], after=tuple(sorted(waits)))
        for gather in peer_sum.gathers:
            (maker,) = [m for m in own[tasks[gather].site] if tasks[gather].read in writes_of(tasks[m])]
            tasks[gather] = msgspec.structs.replace(tasks[gather], after=(maker,))
    return tasks, sums


def test_what_lies_where_a_part_reads_is_not_gathered_by_it(step):
    """A program may write there while another one still reads."""
    for peer_sum in find(step):
        for gather in peer_sum.gathers[:1]:
            (move,) = [
                m for m in peer_sum.moves
                if step.tasks[m].site == step.buffers[step.tasks[gather].write.buffer].site
                and step.buffers[step.tasks[m].write.buffer].site == step.tasks[gather].site
            ]  # fmt: skip
            buffers, (written, read) = list(step.buffers), (step.tasks[n] for n in (gather, move))
            buffers[written.write.buffer] = msgspec.structs.replace(
                buffers[written.write.buffer], offset=buffers[read.read.buffer].offset
            )
            moved = msgspec.structs.replace(step, buffers=tuple(buffers))
            assert gather not in find(moved)[find(step).index(peer_sum)].gathers


def test_what_waits_for_another_part_is_not_gathered(step):
    for peer_sum in find(step):
        for gather in peer_sum.gathers[:1]:
            tasks = list(step.tasks)
            late = next(n for n in peer_sum.tasks if tasks[n].site != tasks[gather].site)
            tasks[gather] = msgspec.structs.replace(tasks[gather], after=(*tasks[gather].after, late))
            (found,) = [s for s in find_peer_sums(step, tasks, find_launches(step, tasks)) if s.tasks == peer_sum.tasks]
            assert found.gathers == tuple(g for g in peer_sum.gathers if g != gather)


def test_events_and_flags_keep_every_wait(step):
    """All that a task waits for has ended when it begins, in every order that streams, events and flags allow."""
    tasks = rewrite_for_devices(step, range(3))
    sums = list_peer_sums(step, tasks)
    schedule = schedule_steps(step, tasks, range(3), (), (), sums)
    members = {launch.tasks[0]: launch.tasks for launch in find_launches(step, tasks)}
    positions = {s.task: n for n, s in enumerate(schedule.steps) if s.kind is StepKind.TASK}
    units = {n: members[n] for s in sums for n in s.tasks if n in members}
    schedule = schedule.fuse_steps({positions[n]: [positions[m] for m in unit[1:]] for n, unit in units.items()})
    order = schedule_events(schedule.steps, schedule.streams)
    plain = schedule_steps(step, tasks, range(3), ())
    assert order.edges < schedule_events(plain.steps, plain.streams).edges
    begun = find_ended_before(schedule, order)
    step_of = positions
    gathered = {g: positions[n] for s in sums for g in s.gathers for n in s.tasks if tasks[n].site == tasks[g].site}
    # what a part has written elsewhere is there when any part has ended
    written = {n: {positions[p] for p in s.tasks} for s in sums if s.gathers for n in map(positions.get, s.tasks)}
    for number, task in enumerate(tasks):
        if schedule.steps[step_of[number]].stream is None:
            continue
        pending = list(task.after)
        while pending:
            earlier = step_of[pending.pop()]
            if schedule.steps[earlier].task in gathered:
                maker = gathered[schedule.steps[earlier].task]
                assert any(other in begun[step_of[number]] for other in written[maker]), (number, earlier)
            elif schedule.steps[earlier].stream is None:
                pending += tasks[schedule.steps[earlier].task].after
            else:
                assert earlier in begun[step_of[number]], (number, earlier)
    for s in sums:
        part_at = {tasks[n].site: n for n in s.tasks}
        for gather in s.gathers:
            maker, reader = part_at[tasks[gather].site], part_at[step.buffers[tasks[gather].write.buffer].site]
            assert schedule.steps[step_of[gather]].after == (step_of[reader],)
            before_sum = [b for b in list_waits(tasks, gather) if b < s.first]
            assert all(
                step_of[b] in begun[step_of[maker]] for b in before_sum if schedule.steps[step_of[b]].stream is not None
            )


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
    results, notes = run_on(step, range(3), driver, kernels)
    agree(results, expected)
    has_kernels = not is_gathering(step) or make is PartByPart
    assert kernels.waited_by_flags == (6 if has_kernels else 0)
    assert has_kernels or [note for note in notes if "by events" in note]
    assert bool(driver.gathered) == (is_gathering(step) and has_kernels)


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


def test_a_gathering_kernel_writes_for_all_and_its_last_program_waits():
    """A part of 3 x 40 goes into another array, whose rows are longer, on each of two other devices."""
    views = [GpuArray(n << 20, (3, 40), (160, 4), "f32", n) for n in (1, 2, 3)]
    target, write = GpuTarget(1, "a GPU", (9, 0), 132), GpuArray(9 << 20, (3, 40), (160, 4), "f32", 1)
    copies = [GpuArray((9 + n) << 20, (3, 40), (480, 4), "f32", n) for n in (2, 3)]
    flags = PeerFlags(64, (128, 192), is_gathering=True, copies=tuple((write, copy) for copy in copies))
    sequence = Sequences().prepare_aggregate("sum", views, write, target, flags)
    (launch,) = sequence.steps
    assert [a for a in launch.arguments if isinstance(a, int)][3:] == [
        *(c.pointer for c in copies),
        write.pointer,
        64,
        128,
        192,
    ]
    lines = [line.strip() for line in launch.source.text.splitlines()]
    stores = [n for n, line in enumerate(lines) if line.startswith("tl.store(")]
    barrier = lines.index("tl.debug_barrier()")
    counted = lines.index('written = tl.atomic_add(awaited + 4, 1, sem="acq_rel", scope="gpu")')
    told = [n for n, line in enumerate(lines) if line.startswith("tl.atomic_xchg(peer")]
    assert len([n for n in stores if "failed" not in lines[n]]) == 3
    assert max(n for n in stores if "failed" not in lines[n]) < barrier < counted < told[2]
    assert [lines[n].split(",")[0] for n in told] == [
        "tl.atomic_xchg(peer0", "tl.atomic_xchg(peer1", "tl.atomic_xchg(peer0 + 2", "tl.atomic_xchg(peer1 + 2"
    ]  # fmt: skip
