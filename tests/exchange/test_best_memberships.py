"""Memberships and routes that the synthesis chooses, against brute force."""

import dataclasses
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from einc.errors import ProgramError
from einc.exchange.bounds import bound
from einc.exchange.bounds.closed_form import CombiningWitness, CountingWitness, count_transfers
from einc.exchange.bounds.cut import CutWitness
from einc.exchange.bounds.demands import DemandTable
from einc.exchange.bounds.demands import collect_demands as wanted_of
from einc.exchange.bounds.memberships import compute_quick_bounds
from einc.exchange.language.program import Holding, Partition, Program, Requirement
from einc.exchange.memberships import close_partitions, decode_masks, enumerate_masks
from einc.exchange.network import build_network
from einc.exchange.synthesis.allocation import allocate_greedily, allocate_routes, sum_volumes
from einc.exchange.synthesis.demands import find_demands, group_by_shape
from einc.exchange.synthesis.placement import choose_fewest_bytes, find_demands_anywhere, place, tabulate_moved_bytes
from einc.exchange.synthesis.routes import compute_load
from einc.machines.load import load_machine
from einc.machines.model import Machine, Resource, Site
from tests.support.property_examples import examples


def switch(sites: int) -> Machine:
    pairs = [(a, b) for a in range(sites) for b in range(sites) if a != b]
    out = [Resource(f"out {s}", 10.0, tuple(pair for pair in pairs if pair[0] == s)) for s in range(sites)]
    into = [Resource(f"into {s}", 10.0, tuple(pair for pair in pairs if pair[1] == s)) for s in range(sites)]
    return Machine("switch", (Site(100.0, 1 << 30),) * sites, (*out, *into))


@st.composite
def preambles(draw, sites=5, most=5):
    """Open and fixed partitions, and up to `most` aggregates of one or two atoms that they need."""
    sizes = draw(st.sampled_from([split for split in [(1, 1, 1), (2, 1), (2, 2), (1, 2, 1)] if sum(split) < sites]))
    partitions = [Partition(f"S{k}", size) for k, size in enumerate(sizes)]
    if draw(st.booleans()):
        partitions[0] = Partition("S0", sizes[0], tuple(range(sites - 2, sites - 2 + sizes[0])))
    holdings, requirements = [], []
    for number in range(draw(st.integers(1, most))):
        size = draw(st.sampled_from([1000, 3000, 50_000]))
        names = tuple(f"A{number}{part}" for part in range(draw(st.integers(1, 2))))
        for name in names:
            where = draw(st.sets(st.integers(0, sites - 1), min_size=1, max_size=2))
            holdings.append(Holding((name,), tuple(sorted(where)), size))
        drawn_names = draw(st.sets(st.sampled_from([partition.name for partition in partitions]), min_size=1))
        requirements.append(Requirement(names, tuple(sorted(drawn_names))))
    return Program(None, tuple(partitions), tuple(holdings), tuple(requirements), ())


def closed(program, count=5):
    """Every membership, in lexicographic order, by brute force."""
    for sites in itertools.permutations(range(count)):
        left = [
            site for site in sites if not any(site in (partition.members or ()) for partition in program.partitions)
        ]
        chosen, at = {}, 0
        for part in program.partitions:
            if part.members is None:
                chosen[part.name] = tuple(left[at : at + part.size])
                at += part.size
        if all(list(members) == sorted(members) for members in chosen.values()):
            yield chosen


def received(program):
    """Bytes of the parts that are missing at their targets, counted once per member of a partition."""
    total = 0
    members = {partition.name: partition.members for partition in program.partitions}
    for requirement in program.requirements:
        for atom in requirement.aggregate:
            holding = next(holding for holding in program.holdings if holding.aggregate == (atom,))
            for target in requirement.targets:
                total += sum(holding.size for site in members[target] if site not in holding.sites)
    return total


@examples(60)
@given(preambles())
def test_memberships_against_brute_force(program):
    sites = tuple(range(5))
    expected = list(dict.fromkeys(tuple(sorted(chosen.items())) for chosen in closed(program)))
    memberships = [tuple(sorted(decode_masks(program, row, sites).items())) for row in enumerate_masks(program, sites)]
    assert sorted(memberships) == sorted(expected)
    assert len(set(memberships)) == len(memberships)
    assert memberships == sorted(memberships)
    if any(partition.members is None for partition in program.partitions):
        best = min(received(close_partitions(program, dict(chosen))) for chosen in expected)
        assert received(close_partitions(program, choose_fewest_bytes(program, sites))) == best
        missing = tabulate_moved_bytes(program, find_demands_anywhere(program, sites), sites)
        assert missing.min() >= 0


@examples(40)
@given(preambles())
def test_quick_bounds_are_those_of_all_cuts_combining_and_counting(program):
    machine = load_machine("dgx-v100").restrict((0, 1, 4, 6, 7))
    network = build_network(machine, None)
    masks = enumerate_masks(program, network.sites)
    bounds, sent = compute_quick_bounds(program, DemandTable(program), masks, network)
    for row, quick, bytes_ in zip(masks, bounds, sent, strict=True):
        demands = wanted_of(close_partitions(program, decode_masks(program, row, network.sites)))
        sets = range(1, network.all_sites)
        proved = [CutWitness(members).proved_ms(demands, network) for members in sets] + [
            CountingWitness().proved_ms(demands, network)
        ]
        proved += [CombiningWitness(members).proved_ms(demands, network) for members in (*sets, network.all_sites)]
        assert quick == pytest.approx(max(proved), rel=1e-9, abs=1e-12)
        assert bytes_ == sum(member.size * count_transfers(member) for member in demands.family)


@examples(30)
@given(preambles())
def test_bounds_that_end_early_agree_up_to_what_is_enough(program):
    machine = load_machine("dgx-v100").restrict((0, 1, 4, 6, 7))
    network = build_network(machine, None)
    least = bound(program, machine).bound_ms
    bounds, _ = compute_quick_bounds(program, DemandTable(program), enumerate_masks(program, network.sites), network)
    for part in (0.7, 1.0, 1.3):
        early = bound(program, machine, enough_ms=part * least).bound_ms
        assert min(early, part * least) == pytest.approx(min(1.0, part) * least, rel=1e-8)
        masks = enumerate_masks(program, network.sites)
        quick, _ = compute_quick_bounds(program, DemandTable(program), masks, network, part * least)
        assert (np.minimum(quick, part * least) >= np.minimum(bounds, part * least) * (1 - 1e-8)).all()
        assert (quick <= bounds).all()


def check_the_placement(program, sites):
    """The fullest resource takes no longer than under any other membership, each packed on its own."""
    machine = load_machine("dgx-v100").restrict(range(sites)).ideal()
    network = build_network(machine, program.gpus)
    placed, _, packing = place(program, network, 0.02)
    each = {tuple(sorted(chosen.items())): chosen for chosen in closed(program, sites)}
    least = min(place(close_partitions(program, chosen), network, 0.02)[2].fullest_ms for chosen in each.values())
    assert packing.fullest_ms <= least * 1.03 + 1e-12
    assert placed.partitions != program.partitions or not any(
        partition.members is None for partition in program.partitions
    )


@examples(30)
@given(preambles(4, 4))
def test_the_placement_is_the_best_of_all(program):
    check_the_placement(program, 4)


@pytest.mark.slow
@settings(max_examples=100)
@given(preambles())
def test_the_placement_is_the_best_of_all_among_five_sites(program):
    check_the_placement(program, 5)


def test_too_few_sites_are_an_error():
    program = Program(None, (Partition("S", 4, (0, 1, 2, 3)), Partition("T", 2)), (), (), ())
    for search in (enumerate_masks, choose_fewest_bytes):
        with pytest.raises(ProgramError, match="need 2 sites, and 1 are left"):
            search(program, range(5))


@pytest.mark.parametrize("sites", [8, 20])
def test_a_greedy_packing_is_a_packing_near_the_best(sites):
    machine = switch(sites)
    holdings, requirements = [], []
    for k in range(sites):
        parts = [f"X{k}p{part}" for part in range(3)]
        for part, name in enumerate(parts):
            holdings.append(Holding((name,), ((k + part) % sites,), 10_000 + 100 * k))
        targets = tuple(sorted({(k + 5) % sites, (3 * k) % sites}))
        requirements.append(Requirement(tuple(parts), targets))
    program = Program(None, (), tuple(holdings), tuple(requirements), ())
    demands, network = find_demands(program), build_network(machine, program.gpus)
    volumes = sum_volumes(group_by_shape(demands), [demand.size for demand in demands])
    packing = allocate_greedily(volumes, network)
    load = dict.fromkeys(range(len(network.rates)), 0.0)
    for shape, volume in volumes.items():
        assert sum(amount for _, amount in packing.routes[shape]) == pytest.approx(volume)
        for route, amount in packing.routes[shape]:
            for resource, traffic in compute_load(route, network).items():
                load[resource] += traffic * amount / network.rates[resource]
    assert max(load.values()) == pytest.approx(packing.fullest_ms)
    best = allocate_routes(volumes, network).fullest_ms
    assert best * (1 - 1e-6) <= packing.fullest_ms <= best * 1.25


def test_a_large_preamble_is_placed_without_a_linear_program(monkeypatch):
    machine = switch(20)
    holdings = tuple(Holding((f"A{k}",), (k % 20,), 1000 + k) for k in range(200))
    requirements = tuple(
        Requirement((f"A{k}",), tuple(sorted({(k * 7 + 3) % 20, (k * 3 + 1) % 20}))) for k in range(200)
    )
    program = dataclasses.replace(Program(None, (), holdings, requirements, ()))
    network = build_network(machine, program.gpus)
    monkeypatch.setattr("einc.exchange.synthesis.placement._MAX_LP_SIZE", 0)
    placed, demands, packing = place(program, network, 0.02)
    assert placed == program
    assert len(packing.routes) == len(group_by_shape(demands))
