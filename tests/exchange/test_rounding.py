"""Every piece gets a route, and no schedule is shorter than the longest window."""

import dataclasses
import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from einc.exchange.network import build_network
from einc.exchange.synthesis import rounding
from einc.exchange.synthesis.allocation import allocate_routes, sum_volumes
from einc.exchange.synthesis.demands import find_demands, group_by_shape
from einc.exchange.synthesis.rounding import RoutePool
from einc.exchange.synthesis.routes import compute_duration, compute_load, list_crossed, list_needed_copies
from einc.exchange.synthesis.scheduling import ListScheduler, build_tasks
from einc.machines.load import load_machine
from tests.support.preambles import read_preamble
from tests.support.property_examples import examples


@st.composite
def preambles(draw):
    """Disjoint aggregates of one or two atoms, each at a site, wanted at some sites."""
    held, needed = [], []
    for number in range(draw(st.integers(1, 4))):
        atoms = [f"X{number}_{part}" for part in range(draw(st.integers(1, 2)))]
        held += [f"{atom} @ {draw(st.integers(0, 7))} (size: 9 MB)" for atom in atoms]
        sites = sorted(draw(st.sets(st.integers(0, 7), min_size=1, max_size=3)))
        needed.append(f"{'+'.join(atoms)} @ {', '.join(map(str, sites))}")
    return f"IN: {'; '.join(held)}\nOUT: {'; '.join(needed)}"


def routed(text, count):
    """Demands with the routes of `count` pieces each, and their network."""
    machine = load_machine("dgx-v100").ideal()
    program = read_preamble(text, "p", machine)
    network, demands = build_network(machine, program.gpus), find_demands(program)
    volumes = sum_volumes(group_by_shape(demands), [demand.size for demand in demands])
    packing = allocate_routes(volumes, network).finish() if demands else None
    return demands, packing and rounding.RouteChooser(demands, packing, network).choose([count] * len(demands)), network


def uses_of(route, size, network):
    """What a piece does on a route, step by step: (resource, time, head, tail)."""
    arrival, left, heads, uses = {}, {}, [], []
    for step in route:
        heads.append(max(arrival.get(copy, 0.0) for copy in list_needed_copies(step)))
        arrival[step.parts, step.destination] = heads[-1] + compute_duration(step, size, network)
    for step, head in zip(reversed(route), reversed(heads), strict=True):
        tail = left.get((step.parts, step.destination), 0.0)
        for copy in list_needed_copies(step):
            left[copy] = max(left.get(copy, 0.0), tail + compute_duration(step, size, network))
        uses += [
            (resource, compute_duration(step, size, network), round(head, 12), round(tail, 12))
            for resource in list_crossed(step, network)
        ]
    return uses


def longest_window(demands, chosen, network):
    """By brute force, from the steps of all pieces: (head, time, tail) by resource, and the worst of all thresholds."""
    steps = {}
    for demand, routes in zip(demands, chosen, strict=True):
        for route in routes:
            for resource, time, head, tail in uses_of(route, demand.size / len(routes), network):
                steps.setdefault(resource, []).append((head, time, tail))
    longest = 0.0
    for loads in steps.values():
        for head, tail in itertools.product({step[0] for step in loads}, {step[2] for step in loads}):
            inside = [time for before, time, after in loads if before >= head and after >= tail]
            longest = max(longest, head + sum(inside) + tail if inside else 0.0)
    return longest


@examples(30)
@given(preambles(), st.sampled_from([1, 3, 8]))
def test_what_pieces_do_is_worked_out_for_all_routes_of_a_pool_at_once(text, count):
    demands, chosen, network = routed(text, count)
    slow = dataclasses.replace(load_machine("dgx-v100"), transfer_latency_us=3.0, kernel_latency_us=7.0)
    network = build_network(slow, None)
    for demand, routes in zip(demands, chosen or (), strict=True):
        uses = RoutePool(routes, network).compute_uses(demand.size / count)
        expected = [(n, *use) for n, route in enumerate(routes) for use in uses_of(route, demand.size / count, network)]
        assert [*zip(uses.route, uses.resource, strict=True)] == [row[:2] for row in expected]
        assert np.column_stack(uses[2:]) == pytest.approx(np.array([row[2:] for row in expected]), rel=1e-11)


@examples(30)
@given(preambles(), st.sampled_from([1, 3, 8]), st.integers(0, 2**32 - 1))
def test_no_schedule_is_shorter_than_the_longest_window(text, count, seed):
    demands, chosen, network = routed(text, count)
    if not demands:
        return
    assert [len(routes) for routes in chosen] == [count] * len(demands)
    tasks = build_tasks(demands, chosen, network)
    keys = np.random.default_rng(seed).random(len(tasks.actions)).tolist()
    assert ListScheduler(tasks).schedule_forwards(keys).makespan >= longest_window(demands, chosen, network) * (
        1 - 1e-6
    )


def test_the_longest_windows_are_those_of_brute_force():
    demands, chosen, network = routed("IN: A @ 0; B @ 5\nOUT: A+B @ 3, 6; A @ 7", 6)
    pools = [RoutePool(list(dict.fromkeys(routes)), network) for routes in chosen]
    uses = [pool.compute_uses(demand.size / 6) for pool, demand in zip(pools, demands, strict=True)]
    counts = [
        np.array([routes.count(route) for route in pool.routes]) for pool, routes in zip(pools, chosen, strict=True)
    ]
    longest = max(time for time, _ in rounding._Windows(uses).find_longest(counts))
    assert longest == pytest.approx(longest_window(demands, chosen, network))


def test_resources_amid_long_routes_are_given_less_to_do():
    """All-reduce on the mesh: evened out by loads alone, the longest window takes 1.14 times the fullest resource."""
    demands, chosen, network = routed("IN: A @ 0; B @ 1; C @ 2; D @ 3\nOUT: A+B+C+D @ 0, 1, 2, 3", 48)
    load = np.zeros(len(network.rates))
    for route in chosen[0]:
        for resource, traffic in compute_load(route, network).items():
            load[resource] += traffic * demands[0].size / 48 / network.rates[resource]
    assert longest_window(demands, chosen, network) < load.max() * 1.05


def test_rounding_keeps_proportions():
    assert rounding._round_amounts(np.array([5.0, 3.0, 2.0]), 20).tolist() == [10, 6, 4]
    assert rounding._round_amounts(np.array([1.0, 1.0, 1.0]), 5).tolist() == [2, 2, 1]
    assert rounding._round_amounts(np.zeros(2), 3).sum() == 3
    assert sorted(rounding._take_turns(np.array([2, 0, 1]))) == [0, 0, 2]
