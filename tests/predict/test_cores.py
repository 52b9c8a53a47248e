"""Sites that share cores: the tasks that are predicted are those that the executor runs, on as many cores."""

import itertools
import random
from dataclasses import replace

import pytest

from einc.calibration.models import QUICK
from einc.calibration.samples import compile_probe
from einc.machines.load import load_machine
from einc.machines.model import KernelRate, Machine, Site
from einc.plan_reading.timing import time_plan
from einc.predict.breakdown import break_down, find_critical_chain
from einc.predict.cores import list_run_tasks, schedule_on_cores
from einc.predict.costs import TaskCost, TaskKind, compute_task_costs
from einc.predict.timeline import predict, time_tasks
from einc_runtime.execution.cpu.executor import CpuExecutor

RATE = (("contract", KernelRate(10, 1e11, 10)), ("copy", KernelRate(5, gbs=10)))


def predict_ms(plan, machine):
    return predict(plan, machine).timeline.predicted_ms


def shared(sites, cores=2):
    machine = load_machine("host", sites)
    return replace(machine, cores=cores, sites=tuple(replace(site, kernels=RATE) for site in machine.sites))


@pytest.mark.parametrize(
    ("probe", "sites"),
    [(0, 2), (1, 8), (2, 5), *(pytest.param(probe, 8, marks=pytest.mark.slow) for probe in (3, 4))],
)
def test_what_is_predicted_is_what_is_run(probe, sites):
    machine = shared(sites)
    for seed in range(3):
        bundle = compile_probe(replace(QUICK[probe], seed=seed), machine)
        executor = CpuExecutor(bundle, workers=2)
        tasks = list_run_tasks(bundle, machine)
        assert set(tasks.origins) == {item.origin for item in executor._tasks}
        run = [item for item in executor._tasks if len([o for o in tasks.origins if o == item.origin]) == 1]
        after = {item.origin: len(item.task.after) for item in run}
        if len(tasks.origins) == len(executor._tasks) == len(set(tasks.origins)):
            assert {o: len(c.after) for o, c in zip(tasks.origins, tasks.costs, strict=True)} == after


def draw_tasks(draw, count, sites):
    costs = []
    for position in range(count):
        after = tuple(sorted(draw.sample(range(position), min(position, draw.randrange(3)))))
        kind = draw.choice([TaskKind.KERNEL, TaskKind.COMBINE, TaskKind.FENCE])
        costs.append(TaskCost(kind, draw.randrange(sites), after, draw.randrange(1000), task=""))
    return costs


@pytest.mark.parametrize("seed", range(30))
def test_a_schedule_is_greedy_and_keeps_its_promises(seed):
    draw = random.Random(seed)
    cores = draw.randint(1, 4)
    machine = Machine("m", (Site(1e-6, 1),) * 5, (), cores=cores)
    costs = draw_tasks(draw, draw.randrange(1, 40), 5)
    scheduled = schedule_on_cores(costs, machine)
    lengths = [0 if cost.kind is TaskKind.FENCE else cost.size for cost in costs]
    for position, cost in enumerate(costs):
        start, end = scheduled.starts[position], scheduled.ends[position]
        assert end - start == pytest.approx(lengths[position])
        assert all(scheduled.ends[before] <= start for before in cost.after)
        ready = max((scheduled.ends[before] for before in cost.after), default=0.0)
        if cost.kind is TaskKind.FENCE:
            assert (start, end) == (ready, ready)
            assert scheduled.cores[position] == -1
        elif start > ready:  # then all cores were busy until it started
            for time in (ready, (ready + start) / 2):
                busy = {
                    scheduled.cores[k] for k in range(len(costs)) if scheduled.starts[k] <= time < scheduled.ends[k]
                }
                assert len(busy) == cores
    for core in range(cores):
        spans = sorted(
            (scheduled.starts[k], scheduled.ends[k]) for k in range(len(costs)) if scheduled.cores[k] == core
        )
        assert all(first[1] <= second[0] for first, second in itertools.pairwise(spans))


def test_all_time_of_a_plan_is_attributed():
    machine = shared(8)
    bundle = compile_probe(QUICK[3], machine)
    tasks = list_run_tasks(bundle, machine)
    times = time_tasks(tasks.costs, machine)
    labels = [bundle.tasks[origin].serves for origin in tasks.origins]
    breakdown = break_down(tasks.costs, labels, times, machine, [1] * len(labels))
    label_times = breakdown.labels.values()
    total = sum(label.compute + label.combine + label.waiting for label in label_times) + breakdown.tail
    assert total == pytest.approx(times.predicted_ms)
    assert sum(label.critical for label in label_times) == pytest.approx(times.predicted_ms)
    chain = find_critical_chain(tasks.costs, times)
    assert times.ends[chain[-1]] == times.predicted_ms
    assert bundle.predicted_ms == pytest.approx(times.predicted_ms) == pytest.approx(predict_ms(bundle, machine))
    plan = time_plan(bundle, machine)
    assert len(plan.times.starts) == len(bundle.tasks)
    assert max(plan.times.ends) == pytest.approx(times.predicted_ms)
    for position, task in enumerate(bundle.tasks):
        assert plan.times.starts[position] <= plan.times.ends[position], task


def test_other_machines_are_timed_as_before():
    machine = load_machine("dgx-a100", 4)
    bundle = compile_probe(QUICK[2], machine)
    tasks = list_run_tasks(bundle, machine)
    assert tasks.costs == compute_task_costs(bundle)
    assert tasks.origins == tuple(range(len(bundle.tasks)))


def test_more_cores_are_never_slower_here_and_latencies_can_be_left_out():
    bundle = compile_probe(QUICK[2], shared(8))
    times = [predict_ms(bundle, shared(8, cores)) for cores in (1, 2, 8)]
    assert times[0] > times[1] > times[2]
    machine = shared(8)
    assert machine.ideal().sites[0].find_rate("copy", "f32") == KernelRate(0.0, gbs=10)
    assert predict_ms(bundle, machine.ideal()) < predict_ms(bundle, machine)
