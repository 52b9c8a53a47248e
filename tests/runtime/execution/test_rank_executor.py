"""Plans in several processes, with links between threads: the bits of one process, whatever arrives when."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from einc_runtime.environment import MPI_SIZE_OF
from einc_runtime.errors import KernelFault, PlanFault
from einc_runtime.execution.cpu.executor import CpuExecutor
from einc_runtime.execution.cpu.messages import Message
from einc_runtime.execution.ranks import mpi
from einc_runtime.execution.ranks.carrier import Arrivals, MessageCarrier
from einc_runtime.execution.ranks.cpu_part import make_cpu_executor
from einc_runtime.execution.ranks.watch import RankFailure, Watch
from einc_runtime.execution.rewrites import map_joining
from einc_runtime.execution.session import Session
from einc_runtime.plan.schema import KernelTask
from tests.support.compiled_plans import EVERYTHING, PLACES, TRANSFORMER, compiled
from tests.support.plan_arrays import arrays_of, outputs_of, results
from tests.support.thread_links import ThreadWorld

PLANS = {"every kind of kernel": (EVERYTHING, {}), "caches and lookups": (TRANSFORMER, {"places": PLACES})}


def bits(arrays):
    return {name: array.tobytes() for name, array in arrays.items()}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("sizes", [(2, 3), (8,)])
@pytest.mark.parametrize("name", PLANS)
def test_several_ranks_compute_the_bits_of_one_process(name, sizes):
    text, given = PLANS[name]
    bundle = compiled(text, 8, "f32")
    arrays = arrays_of(bundle, **given)
    expected = bits(results(Session(bundle, executor=CpuExecutor(bundle, 2)), arrays))
    for size in sizes:

        def run(links, size=size):
            executor = make_cpu_executor(bundle, links, 1, total=2, poison=True)
            with Session(bundle, executor=executor) as session:
                found = results(session, arrays)
                session.execute(trace=True)  # again, in the same memory
                return found, outputs_of(session), executor.facts().messages, session.trace, size

        (first, again, _, trace, _), *others = ThreadWorld(size, seed=size).run(run)
        assert bits(first) == bits(again) == expected
        assert sum(messages for _, _, messages, _, _ in others) > 10
        assert {run.worker for run in trace.runs} == set(range(size))


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("rows", "depth", "columns"), [(520, 8, 256), (264, 500, 300)])
def test_kernels_are_cut_as_in_one_process(rows, depth, columns, monkeypatch):
    """There, the map is a part of the contraction's tasks."""
    monkeypatch.setattr(map_joining, "MIN_BYTES", 1)
    text = f"""
model m
dim t = {rows}
dim a = {depth}
dim f = {columns}
input x : f32[t, a]
weight w : f32[a, f]
weight c : f32[f]
p[t, f] = x[t, a] * w[a, f]
y = gelu(p + c)
output y
"""
    bundle = compiled(text, 2, "f32")
    arrays = arrays_of(bundle, 3)

    def run(executor):
        found = results(Session(bundle, executor=executor), arrays)["y"].tobytes()
        return found, sum(is_contraction(item) for item in getattr(executor, "part", executor)._tasks)

    def is_contraction(item):
        return isinstance(item.task, KernelTask) and bundle.operations[item.task.operation].kernel == "contract"

    for workers in (8, 32):
        executor = CpuExecutor(bundle, workers)
        assert any(item.then is not None for item in executor._tasks)
        bits, count = run(executor)
        ranks = ThreadWorld(2).run(lambda links, total=workers: run(make_cpu_executor(bundle, links, 1, total=total)))
        assert ranks[0][0] == bits
        assert sum(own for _, own in ranks) == count


def test_ranks_with_unequal_numbers_of_sites_compute_the_same_bits():
    bundle = compiled(EVERYTHING, 5, "f32")
    arrays = arrays_of(bundle)
    expected = bits(results(Session(bundle, executor=CpuExecutor(bundle, 2)), arrays))

    def run(links):
        executor = make_cpu_executor(bundle, links, 1, total=2, shares=(1, 3, 1))
        sites = {buffer.site for number, buffer in enumerate(bundle.buffers) if executor.holds(number)}
        return bits(results(Session(bundle, executor=executor), arrays)), sites

    found = ThreadWorld(3).run(run)
    assert found[0][0] == expected
    assert [sites for _, sites in found] == [{0}, {1, 2, 3}, {4}]


def test_ranks_hold_what_they_need_and_no_more():
    bundle = compiled(TRANSFORMER, 8, "f32")

    def run(links):
        executor = make_cpu_executor(bundle, links, 1, total=2)
        session = Session(bundle, executor=executor)
        held = [number for number in range(len(bundle.buffers)) if executor.holds(number)]
        return held, session.missing, executor.facts().cpu.memory_bytes.plan

    found = ThreadWorld(4).run(run)
    assert sorted(number for held, _, _ in found for number in held) == list(range(len(bundle.buffers)))
    assert sum(memory for _, _, memory in found) == sum(bundle.memory)
    for held, missing, _ in found:
        buffers = [bundle.buffers[number] for number in held]
        assert set(missing) == {bundle.tensors[b.tensor].name for b in buffers if b.role in ("input", "weight")}


def test_a_task_that_fails_on_one_rank_is_reported_there():
    bundle = compiled(EVERYTHING, 3, "f32")
    arrays = arrays_of(bundle)

    def run(links):
        fail = (lambda _: 1 / 0) if links.rank == 1 else None
        executor = make_cpu_executor(bundle, links, 1, total=2, note_task=fail)
        return results(Session(bundle, executor=executor), arrays)

    with pytest.raises(KernelFault, match="at site 1 failed: ZeroDivisionError"):
        ThreadWorld(3).run(run)


@pytest.mark.parametrize(
    ("variables", "several"),
    [
        ({}, False),
        ({"PMI_RANK": "3", "PMI_SIZE": "8"}, True),
        ({"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2"}, True),
        ({"PMIX_RANK": "1"}, True),
        ({"PMIX_RANK": "0", "SLURM_NTASKS": "1"}, False),
        ({"PMI_RANK": "0", "PMI_SIZE": "1"}, False),
        ({"SLURM_NTASKS": "8"}, False),
    ],
)
def test_one_process_in_a_job_needs_no_mpi(variables, several, monkeypatch):
    for name in (*MPI_SIZE_OF, *MPI_SIZE_OF.values()):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert mpi.is_started_by_mpi() is several


def test_more_ranks_than_sites_are_refused():
    bundle = compiled(EVERYTHING, 3, "f32")
    with pytest.raises(PlanFault, match="4 ranks cannot share the 3 sites"):
        ThreadWorld(4).run(lambda links: make_cpu_executor(bundle, links))


@pytest.mark.parametrize("dtype", ["f4", "f2", "?"])
def test_regions_arrive_in_any_layout(dtype):
    """From rows of a larger array into columns of another one, late and in any order."""
    values = np.arange(5 * 7).reshape(5, 7).astype(dtype)

    def run(links):
        memory = np.zeros((9, 11), dtype)
        views = {10: memory[1:6, 2:9], 11: memory[:5, 4:], 12: np.zeros((7, 5), dtype).T}
        messages = {task: Message(task, 1 - links.rank, view, links.rank == 1) for task, view in views.items()}
        carrier, ended = MessageCarrier(links, Arrivals(), messages), []
        for task, view in views.items():
            if links.rank == 0:
                view[...] = values + task if dtype != "?" else values
                carrier.start(task)
                while carrier.is_waiting:  # the next one changes the same memory
                    ended += carrier.end_some()
            else:
                carrier.start(task)
                while carrier.is_waiting:
                    ended += carrier.end_some()
                assert np.array_equal(view, values + task if dtype != "?" else values)
        return ended

    assert ThreadWorld(2, patience=9).run(run) == [[10, 11, 12]] * 2


def watch_of(links, found):
    return Watch(links, found.append, lambda task: f"number {task}")


def test_a_failure_is_reported_once_by_rank_0(monkeypatch):
    def run(links):
        found = []
        watch = watch_of(links, found)
        watch.start()
        if links.rank:
            watch.report(RankFailure(f"no such file {links.rank}", "usage", 2, "w.npz", None))
        watch._thread.join(1.0 if links.rank == 0 else 0.5)
        watch.stop()
        return [(fault.message, fault.where, fault.exit_code, fault.code) for fault in found]

    first, *others = ThreadWorld(3).run(run)
    assert first == [("no such file 1", "rank 1, w.npz", 2, "usage")]
    assert others == [[], []]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("silent", [0, 2])
def test_a_rank_that_says_nothing_is_lost(silent, monkeypatch):
    monkeypatch.setattr("einc_runtime.execution.ranks.watch.SILENCE", 0.4)
    monkeypatch.setattr("einc_runtime.execution.ranks.watch.BEAT", 0.1)

    over = threading.Event()

    def run(links):
        found = []
        watch = watch_of(links, found)
        watch.note_task(17)
        if links.rank != silent:
            watch.start()
        else:
            links.tell(0, b"B17")
        while not over.wait(0.01):
            if found:
                over.set()
        watch.stop()
        return [(fault.where, fault.message) for fault in found]

    results = ThreadWorld(3).run(run)
    reporting = 1 if silent == 0 else 0
    ((where, message),) = results[reporting]
    assert where == f"rank {silent}"
    assert "has not answered for 0.4 seconds" in message
    assert ("its last task is number 17" if silent else "it has begun no task") in message
    assert [found for rank, found in enumerate(results) if rank != reporting] == [[], []]


def test_data_on_the_way_are_signs_of_life(monkeypatch):
    """A rank whose beats wait behind its data on a slow link is not lost; without data on the way, it is."""
    monkeypatch.setattr("einc_runtime.execution.ranks.watch.SILENCE", 0.3)
    monkeypatch.setattr("einc_runtime.execution.ranks.watch.BEAT", 0.1)
    done = threading.Event()

    def run(links):
        if links.rank:
            done.wait(20)
            return None
        found, arrivals = [], Arrivals()
        watch = watch_of(links, found)
        arrivals.expect(1, 1_200_000)
        watch.look_at(arrivals)
        watch.start()
        watch._thread.join(1.0)
        alive = not found
        arrivals.end(1, 1_200_000)  # and now nothing more
        watch._thread.join(20)
        done.set()
        watch.stop()
        return alive, len(found)

    assert ThreadWorld(2).run(run)[0] == (True, 1)
