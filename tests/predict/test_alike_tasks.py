"""Plans that look alike from several sites, simulated by one task of each class: all tasks start and end as they do one
by one, and what is not alike is kept apart."""

import random

import pytest

from einc.exchange.simulation.fluid import Fluid, find_private_capacities
from einc.machines.load import load_machine
from einc.predict import timeline
from einc.predict.alike import merge_alike
from einc.predict.costs import EarlyBytes, TaskCost, TaskKind

SITES, NODE = 16, 8


def draw(seed: int, odd: int) -> list[TaskCost]:
    """Rounds of equal tasks at all sites of two nodes; `odd` tasks are given another size afterwards."""
    noise = random.Random(seed)
    costs: list[TaskCost] = []
    rounds: list[list[int]] = []
    for _ in range(noise.randint(3, 9)):
        size = noise.randint(1, 90) * 10**6
        befores = noise.sample(rounds, min(len(rounds), noise.randint(0, 2)))
        shift, kind = noise.randint(1, SITES - 1), noise.choice(list(TaskKind))
        numbers = []
        reads_ahead = kind is TaskKind.KERNEL and noise.random() < 1 / 2  # half of them
        for site in range(SITES):
            after = tuple(sorted({before[(site + turn * shift) % SITES] for before in befores for turn in (0, 1)}))
            if kind is TaskKind.TRANSFER:
                numbers.append(len(costs))
                costs.append(TaskCost(kind, site, after, size, target=(site + shift) % SITES))
            else:
                numbers.append(len(costs))
                cost = TaskCost(kind, site, after, size, 10**10 if kind is TaskKind.KERNEL else 0, "f16")
                costs.append(read_ahead(cost, rounds, costs) if reads_ahead else cost)
        rounds.append(numbers)
    for task in noise.sample(range(len(costs)), odd):
        costs[task] = costs[task]._replace(size=costs[task].size + 3_000_001)
    return costs


def read_ahead(cost: TaskCost, rounds: list[list[int]], costs: list[TaskCost]) -> TaskCost:
    """The kernel, which reads half of its bytes ahead from when the last one of its site before it has ended."""
    runs = [numbers[cost.site] for numbers in rounds if costs[numbers[0]].kind in (TaskKind.KERNEL, TaskKind.COMBINE)]
    if not runs:
        return cost
    after = tuple(dict.fromkeys((*cost.after, runs[-1])))
    return cost._replace(after=after, early=EarlyBytes(cost.size // 2, runs[-1], 1000))


@pytest.mark.parametrize("odd", [0, 1])
@pytest.mark.parametrize("seed", range(12))
def test_merged_tasks_take_place_when_they_do_one_by_one(seed, odd, monkeypatch):
    machine = load_machine("dgx-h100x2")
    costs = draw(seed, odd)
    merged = timeline.time_tasks(costs, machine)
    monkeypatch.setattr(timeline, "merge_alike", lambda *_: None)
    plain = timeline.time_tasks(costs, machine)
    assert merged.ends == pytest.approx(plain.ends, rel=1e-9)
    assert merged.starts == pytest.approx(plain.starts, rel=1e-9)


def test_equal_nodes_and_sites_are_one_class():
    machine = load_machine("dgx-h100x2")
    costs = [TaskCost(TaskKind.TRANSFER, a, (), 10**6, target=(a + NODE) % SITES) for a in range(SITES)]
    costs += [TaskCost(TaskKind.KERNEL, a, (a,), 10**6) for a in range(SITES)]
    merged = merge_alike(costs, timeline.find_lanes(costs, machine), machine)
    assert merged is not None
    assert len(merged.costs) == 2
    assert merged.costs[1].after == (0,)


def test_few_sites_are_not_merged():
    machine = load_machine("dgx-h100")
    costs = [TaskCost(TaskKind.KERNEL, a, (), 10**6) for a in range(8)]
    assert merge_alike(costs, timeline.find_lanes(costs, machine), machine) is None


def test_the_order_of_a_site_keeps_tasks_apart():
    """Two sites run the same two tasks in different orders."""
    machine = load_machine("dgx-h100x2")
    costs = []
    for site in range(SITES):
        sizes = (10**9, 10**6) if site % 3 else (10**6, 10**9)
        costs += [TaskCost(TaskKind.KERNEL, site, (), size) for size in sizes]
    ends = timeline.time_tasks(costs, machine).ends
    assert ends[0] < ends[2]
    assert ends[1] == pytest.approx(ends[3], rel=1e-3)


def test_a_lane_may_take_several_shares():
    """Three shares of one resource: a third of its rate; once the lane has ended, the other has it alone."""
    routes = ((0, 0, 0), (0,))
    fluid = Fluid([8.0], routes, find_private_capacities([8.0], routes))
    fluid.join(0, 4.0, (0, 0), 0.0)
    fluid.join(1, 6.0, (1, 0), 0.0)
    fluid.balance(0.0)
    assert fluid.upcoming() == 2.0  # 8 / 4 shares: 2 per ms each
    assert fluid.leave(2.0, 0.0) == [(0, (0, 0))]
    fluid.balance(2.0)
    assert fluid.upcoming() == pytest.approx(2.25)  # 2 of 6 are left, at 8 per ms
