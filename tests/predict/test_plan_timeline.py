"""Predicted timelines: by hand, against an oracle that shares no code, against the simulator of exchange programs, and
within the bounds that hold for any schedule."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from einc.errors import MachineError
from einc.exchange.language.closure import order_firings
from einc.exchange.language.parser import parse
from einc.exchange.language.program import collect_atom_sizes
from einc.exchange.language.resolve import resolve
from einc.exchange.naive import build_naive_body
from einc.exchange.simulation.simulator import simulate
from einc.machines.load import load_machine
from einc.predict.costs import TaskCost, TaskKind
from einc.predict.timeline import TooLarge, time_tasks
from tests.support.predict_cases import graphs, machines, pair, switch
from tests.support.predict_oracle import oracle
from tests.support.work_bounds import capacity_bound_ms, critical_path_ms

GB = 10**9


def run(site, after=(), size=0, flops=0, precision="f32"):
    return TaskCost(TaskKind.KERNEL, site, after, size, flops, precision)


def move(site, target, after=(), size=GB):
    return TaskCost(TaskKind.TRANSFER, site, after, size, target=target)


def test_nothing_takes_no_time():
    assert time_tasks((), pair()).predicted_ms == 0


@pytest.mark.parametrize(
    ("work", "expected"),
    [
        (run(0, size=GB), 10.0),  # 1 GB at 100 GB/s
        (run(0, size=GB, flops=10**10), 10.0),  # 10 ms at 1 TFLOP/s: both take as long
        (run(0, size=GB, flops=2 * 10**10), 20.0),
        (run(0, size=GB, flops=2 * 10**10, precision="f16"), 10.0),  # 5 ms at 4 TFLOP/s: the bytes decide
        (run(0, size=GB, flops=8 * 10**10, precision="f16"), 20.0),
        (run(0, size=GB, flops=3 * 10**10, precision="bf16"), 30.0),  # no peak of its own: that of f32
        (move(0, 1), 100.0),
        (TaskCost(TaskKind.FENCE, 0), 0.0),
    ],
)
def test_one_task(work, expected):
    assert time_tasks((work,), pair()).predicted_ms == pytest.approx(expected)


def test_without_peaks_only_bytes_count():
    assert time_tasks((run(0, size=GB, flops=10**18),), pair(flops=())).predicted_ms == pytest.approx(10)


def test_latencies_precede_transfers_and_occupy_sites():
    machine = pair(transfer=1000.0, kernel=2000.0)
    works = (run(0, size=GB), move(0, 1, (0,)), run(0, size=GB), run(1, (1,), size=GB))
    timeline = time_tasks(works, machine)
    assert timeline.starts == pytest.approx((0, 12, 12, 113))
    assert timeline.ends == pytest.approx((12, 113, 24, 125))
    assert time_tasks(works, machine.ideal()).ends == pytest.approx((10, 110, 20, 120))


def test_kernels_of_a_site_run_one_at_a_time_and_transfers_overlap_with_them():
    works = (run(0, size=GB), move(0, 1, (), GB // 5), run(0, size=GB), run(1, size=GB))
    timeline = time_tasks(works, pair())
    assert timeline.ends == pytest.approx((10, 20, 20, 10))


def test_the_first_of_the_program_that_can_run_runs():
    works = (move(1, 0, (), GB // 4), run(0, (0,), size=GB), run(0, size=GB), run(0, size=2 * GB))
    timeline = time_tasks(works, pair())  # the transfer ends after 25 ms: tasks 2 and 3 do not wait for task 1
    assert timeline.starts == pytest.approx((0, 30, 0, 10))
    assert timeline.predicted_ms == pytest.approx(40)


def test_a_task_that_waited_longer_gives_way_to_an_earlier_one():
    works = (move(1, 0, (), GB // 20), run(0, (0,), size=GB), run(0, size=GB), run(0, size=GB))
    timeline = time_tasks(works, pair())  # ready after 5 ms, while task 2 runs: next is 1, then 3
    assert timeline.starts == pytest.approx((0, 10, 0, 20))


def test_transfers_share_an_egress():
    timeline = time_tasks((move(0, 1), move(0, 2), move(1, 2, (), 2 * GB)), switch(3))
    # Site 0's egress is shared until 200; into site 2, one flow has 5 GB/s of 10, the other the rest.
    assert timeline.ends == pytest.approx((200, 200, 300))


def test_fences_pass_on_what_they_wait_for():
    works = (run(0, size=GB), TaskCost(TaskKind.FENCE, 0, (0,)), TaskCost(TaskKind.FENCE, 0, (1,)), move(0, 1, (2,)))
    assert time_tasks(works, pair()).ends == pytest.approx((10, 10, 10, 110))


def test_a_way_that_is_not_there_is_an_error():
    with pytest.raises(MachineError, match="connects site 0 with site 1"):
        time_tasks((move(0, 1),), pair().restrict((0,)))


@given(st.data())
def test_the_oracle_agrees(data):
    machine = data.draw(machines())
    works = data.draw(graphs(len(machine.sites)))
    timeline = time_tasks(works, machine)
    starts, ends = oracle(works, machine)
    assert timeline.starts == pytest.approx(starts, rel=1e-9, abs=1e-9)
    assert timeline.ends == pytest.approx(ends, rel=1e-9, abs=1e-9)
    assert timeline.predicted_ms == max(timeline.ends)


@given(st.data())
def test_no_schedule_beats_the_bounds(data):
    machine = data.draw(machines())
    works = data.draw(graphs(len(machine.sites)))
    predicted = time_tasks(works, machine).predicted_ms
    assert predicted >= critical_path_ms(works, machine) * (1 - 1e-9)
    assert predicted >= capacity_bound_ms(works, machine) * (1 - 1e-9)
    alone = sum(critical_path_ms((work._replace(after=()),), machine) for work in works)
    assert predicted <= alone * (1 + 1e-9)  # as long as anything is left, something moves or runs


def works_of_exchange(program):
    """An exchange program as tasks: its firings, one aggregation at a site at a time."""
    sizes = collect_atom_sizes(program)
    makers, works, ends = {}, [], {}
    for firing in order_firings(program):
        action = firing.action
        size = sizes[action.aggregate[0]]
        waits = [task for awaited in action.after for task in ends[awaited.aggregate, awaited.source]]
        ready = sorted({task for part in firing.parts for task in makers.get((part, action.source), ())} | set(waits))
        mine = list(ready)
        if len(firing.parts) > 1:
            works.append(TaskCost(TaskKind.COMBINE, action.source, tuple(ready), (len(firing.parts) + 1) * size))
            mine = [len(works) - 1]
            makers.setdefault((action.aggregate, action.source), mine)
        for site in action.destinations:
            works.append(TaskCost(TaskKind.TRANSFER, action.source, tuple(mine), size, target=site))
            makers.setdefault((action.aggregate, site), [len(works) - 1])
            ends.setdefault((action.aggregate, action.source), []).append(len(works) - 1)
    return tuple(works)


EXCHANGES = {
    "swap": "IN: A @ 0; B @ 1\nOUT: A @ 1; B @ 0\nA @ 0 -> 1\nB @ 1 -> 0",
    "relay": "IN: A @ 0\nOUT: A @ 7\nA @ 0 -> 3 -> 7",
    "multicast": "IN: A @ 0 (size: 3 GB)\nOUT: A @ 1, 2, 3, 7\nA @ 0 -> 1, 2\nA @ 2 -> 3, 7",
    "waits": "IN: A @ 0; B @ 0\nOUT: A @ 2; B @ 2\nA @ 0 -> 2\nB @ 0 -> 2 after (A @ 0 -> 2)",
    "reduction": "IN: A @ 0; B @ 1; C @ 2\nOUT: A+B+C @ 3\nA @ 0 -> 1\nA+B @ 1 -> 2\nA+B+C @ 2 -> 3",
    "doubling": "IN: A @ 0; B @ 1; C @ 2; D @ 3\nOUT: A+B+C+D @ 0; A+B+C+D @ 1; A+B+C+D @ 2; A+B+C+D @ 3\n"
    "A @ 0 -> 1\nB @ 1 -> 0\nC @ 2 -> 3\nD @ 3 -> 2\nA+B @ 0 -> 2\nA+B @ 1 -> 3\nC+D @ 2 -> 0\nC+D @ 3 -> 1\n"
    "A+B+C+D @ 0\nA+B+C+D @ 1\nA+B+C+D @ 2\nA+B+C+D @ 3",
}


@pytest.mark.parametrize("name", EXCHANGES)
@pytest.mark.parametrize("machine", ["dgx-h100", "dgx-v100"])
@pytest.mark.parametrize("ideal", [True, False])
def test_a_single_exchange_takes_what_its_simulation_says(name, machine, ideal):
    loaded = load_machine(machine)
    loaded = loaded.ideal() if ideal else loaded
    program = resolve(parse(EXCHANGES[name], "exchange"), loaded)
    timeline = time_tasks(works_of_exchange(program), loaded)
    assert timeline.predicted_ms == pytest.approx(simulate(program, loaded).completion_ms, rel=1e-9)


@pytest.mark.parametrize("machine", ["dgx-a100", "dgx-v100"])
def test_naive_exchanges_without_aggregation_agree_with_the_simulator(machine):
    loaded = load_machine(machine)
    for seed in range(6):
        holders = "; ".join(f"X{a} @ {(a * 3 + seed) % 8} (size: {1 + (a * 7 + seed) % 5} GB)" for a in range(6))
        outputs = "; ".join(f"X{a} @ {s}" for a in range(6) for s in range(8) if (a + s * (seed + 1)) % 3)
        program = build_naive_body(resolve(parse(f"IN: {holders}\nOUT: {outputs}\n", "exchange"), loaded), loaded)
        timeline = time_tasks(works_of_exchange(program), loaded)
        assert timeline.predicted_ms == pytest.approx(simulate(program, loaded).completion_ms, rel=1e-9)


def test_effort_is_bounded():
    works = tuple(move(0, 1, (), GB * (1 + n)) for n in range(20))
    enough = sum(1 + 20 - n for n in range(20))
    assert time_tasks(works, pair(), enough).predicted_ms == pytest.approx(100 * 210)
    with pytest.raises(TooLarge):
        time_tasks(works, pair(), enough - 1)
