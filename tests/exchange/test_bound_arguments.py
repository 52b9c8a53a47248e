"""Each argument of the bounds against an independent computation of the same number."""

import dataclasses
import itertools
from collections import deque

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy.optimize import linprog

from einc.exchange.bounds.closed_form import count_transfers
from einc.exchange.bounds.cut import CutWitness, count_needed_bytes, find_best_cut
from einc.exchange.bounds.demands import DemandClass, DemandTable, collect_demands
from einc.exchange.bounds.flow import FlowRow, FlowWitness, solve_flow
from einc.exchange.language.program import Partition, Requirement
from einc.exchange.network import build_network
from einc.machines.load import load_machine
from tests.support.bound_cases import COLLECTIVES, GB, preamble
from tests.support.exchange_oracle import machines_and_programs
from tests.support.property_examples import examples

few = examples(60)


# The parts, each against an independent way to the same number.


def fewest_calls(sites, holders, targets):
    """By breadth-first search: how many one-way calls until all targets know all atoms."""
    start = tuple(frozenset(a for a, holder in enumerate(holders) if holder >> site & 1) for site in range(sites))
    queue, seen = deque([(start, 0)]), {start}
    while True:
        state, calls = queue.popleft()
        if all(len(state[site]) == len(holders) for site in range(sites) if targets >> site & 1):
            return calls
        for source, target in itertools.permutations(range(sites), 2):
            after = list(state)
            after[target] = state[target] | state[source]
            if (key := tuple(after)) not in seen:
                seen.add(key)
                queue.append((key, calls + 1))


@few
@given(st.integers(2, 4), st.data())
def test_counting_is_never_above_the_fewest_calls(sites, data):
    some = st.integers(1, (1 << sites) - 1)
    holders = tuple(sorted(set(data.draw(st.lists(some, min_size=1, max_size=3)))))
    complete = (1 << sites) - 1
    for holder in holders:
        complete &= holder
    targets = data.draw(some) & ~complete
    demand = DemandClass((("A",),), 1, holders, targets, complete=complete)
    fewest = fewest_calls(sites, holders, targets)
    assert count_transfers(demand) <= fewest
    single = len(holders) > 1 and all(holder.bit_count() == 1 for holder in holders)
    if targets and (complete or single):
        assert count_transfers(demand) == fewest


@few
@given(machines_and_programs())
def test_rank_equals_numpys(case):
    _, program = case
    demands = collect_demands(program)
    atoms = sorted({atom for holding in program.holdings for atom in holding.aggregate})

    def rank(names):
        return np.linalg.matrix_rank([[atom in name for atom in atoms] for name in names]) if names else 0

    for sites in range(1, 16):
        needed = 0
        for size in {holding.size for holding in program.holdings}:
            missing, held = [], []
            for requirement in program.requirements:
                if any(sites >> site & 1 for site in requirement.targets):
                    missing.append(requirement.aggregate)
            for holding in program.holdings:
                if holding.size == size and any(sites >> site & 1 for site in holding.sites):
                    held.append(holding.aggregate)
            missing = [
                name
                for name in missing
                if name[0] in {a for h in program.holdings if h.size == size for a in h.aggregate}
            ]
            needed += size * int(rank(held + missing) - rank(held))
        # Copies that cannot become parts do not count for us, so that we may see more, never less.
        assert count_needed_bytes(demands, sites) >= needed
        if all(len(holding.aggregate) == 1 for holding in program.holdings):
            assert count_needed_bytes(demands, sites) == needed


@few
@given(machines_and_programs())
def test_the_best_cut_is_the_best_of_all_sets(case):
    machine, program = case
    demands, network = collect_demands(program), build_network(machine, program.gpus)
    sets = [mask for mask in range(1, network.all_sites) if not mask & ~network.all_sites]
    worth = max(
        (CutWitness(mask).proved_ms(demands, network) for mask in sets if count_needed_bytes(demands, mask)),
        default=0.0,
    )
    best_cut = find_best_cut(demands, network)
    assert (0.0 if best_cut is None else best_cut.proved_ms(demands, network)) == pytest.approx(worth)


def without_names(demands):
    """What bounds see of demands: the names of aggregates do not matter."""
    return dataclasses.replace(
        demands, family=tuple(dataclasses.replace(demand, aggregates=()) for demand in demands.family)
    )


@few
@given(machines_and_programs(), st.data())
def test_demands_of_a_membership_are_those_of_its_sites(case, data):
    """Sites named through a partition, chosen after the table was made, count as if they were written out."""
    _, program = case
    members = tuple(sorted(data.draw(st.sets(st.integers(0, 3), min_size=1))))
    chosen = data.draw(st.sets(st.integers(0, len(program.requirements) - 1)))
    requirements = tuple(
        Requirement(requirement.aggregate, (*requirement.targets, "P")) if number in chosen else requirement
        for number, requirement in enumerate(program.requirements)
    )
    written = tuple(
        Requirement(requirement.aggregate, tuple(sorted({*requirement.targets, *members})))
        if number in chosen
        else requirement
        for number, requirement in enumerate(program.requirements)
    )
    table = DemandTable(dataclasses.replace(program, requirements=requirements))
    listed = table.list_demands((Partition("P", len(members), members),))
    expected = collect_demands(dataclasses.replace(program, requirements=written))
    assert without_names(listed) == without_names(expected)


@examples(25)
@given(st.sampled_from(["dgx-v100", "dgx-h100"]), st.data())
def test_flow_is_the_optimal_fractional_multicast(preset, data):
    """Against the textbook program with a flow per target, in units of GB and ms."""
    sites = sorted(data.draw(st.sets(st.integers(0, 7), min_size=3, max_size=5)))
    machine = load_machine(preset).ideal().restrict(sites)
    count = len(sites)
    atoms = []
    for k in range(data.draw(st.integers(1, 3))):
        holders = tuple(sorted(data.draw(st.sets(st.integers(0, count - 1), min_size=1, max_size=2))))
        targets = tuple(sorted(data.draw(st.sets(st.integers(0, count - 1), min_size=1)) - set(holders)))
        atoms.append((f"A{k}", holders, targets, data.draw(st.integers(1, 4))))
    assume(any(targets for _, _, targets, _ in atoms))
    program = preamble([(n, h, s * GB) for n, h, _, s in atoms], [(n, t) for n, _, t, _ in atoms if t])
    pairs = sorted(machine.routes)
    flows = [(a, t) for a in range(len(atoms)) for t in atoms[a][2]]
    width = len(pairs)
    columns = 1 + width * (len(atoms) + len(flows))
    upper, equal, right = [], [], []
    for position, resource in enumerate(machine.resources):
        row = np.zeros(columns)
        row[0] = -resource.gbs / 1000
        for a in range(len(atoms)):
            for k, pair in enumerate(pairs):
                row[1 + a * width + k] = position in machine.routes[pair]
        upper.append(row)
    for f, (a, target) in enumerate(flows):
        start = 1 + width * (len(atoms) + f)
        for k in range(width):
            row = np.zeros(columns)
            row[start + k], row[1 + a * width + k] = 1, -1
            upper.append(row)
        for site in set(range(count)) - set(atoms[a][1]):
            row = np.zeros(columns)
            for k, (source, destination) in enumerate(pairs):
                row[start + k] = (destination == site) - (source == site)
            equal.append(row)
            right.append(atoms[a][3] if site == target else 0)
    cost = np.zeros(columns)
    cost[0] = 1
    optimum = linprog(cost, np.array(upper), np.zeros(len(upper)), np.array(equal), right).fun
    demands, network = collect_demands(program), build_network(machine, None)
    flow = solve_flow(demands, network)
    assert flow.proved_ms(demands, network) == pytest.approx(optimum, rel=1e-5)


def test_a_witness_proves_only_what_holds():
    machine, program = load_machine("dgx-v100").ideal(), COLLECTIVES["all-reduce"]
    demands, network = collect_demands(program), build_network(machine, None)
    good = solve_flow(demands, network)
    worth = good.proved_ms(demands, network)
    heavier = tuple(dataclasses.replace(row, weight=row.weight * 2) for row in good.rows)
    assert FlowWitness(heavier, good.prices, "").proved_ms(demands, network) <= worth * (1 + 1e-9)
    cheaper = tuple((resource, price / 2) for resource, price in good.prices)
    assert FlowWitness(good.rows, cheaper, "").proved_ms(demands, network) <= worth * (1 + 1e-9)
    assert FlowWitness((FlowRow(0, "enter", 255, 9.0),), good.prices, "").proved_ms(demands, network) == 0
    assert FlowWitness((FlowRow(0, "receive", 3, 9.0),), good.prices, "").proved_ms(demands, network) == 0
    assert FlowWitness((*good.rows, FlowRow(0, "leave", 1, -1.0)), good.prices, "").proved_ms(demands, network) == 0
    assert FlowWitness(good.rows, (*good.prices, (0, -1.0)), "").proved_ms(demands, network) == 0
    assert CutWitness(0).proved_ms(demands, network) == CutWitness(255).proved_ms(demands, network) == 0
