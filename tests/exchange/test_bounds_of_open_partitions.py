"""Bounds of open partitions are the least over all memberships, also where symmetries save some of the work."""

import dataclasses
import itertools

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from einc.exchange.bounds import bound, verify
from einc.exchange.bounds.demands import collect_demands
from einc.exchange.bounds.memberships import find_symmetries, find_symmetry_class
from einc.exchange.language.program import Holding, Partition, Program, Requirement
from einc.exchange.language.resolve import read_program
from einc.exchange.network import build_network
from einc.machines.load import load_machine
from einc.machines.model import Machine, Resource
from tests.support.bound_cases import GB, preamble
from tests.support.exchange_oracle import CUBE_MESH, machines_and_programs
from tests.support.property_examples import examples

few = examples(60)


@pytest.mark.parametrize("preset", ["dgx-v100", "dgx-h100"])
def test_open_partitions_take_the_least_of_all_memberships(preset):
    machine = load_machine(preset).ideal()
    program = Program(
        (0, 1, 2, 3, 4),
        (Partition("G", 2), Partition("H", 1), Partition("I", 1, (4,))),
        tuple(Holding((name,), (site,), size * GB) for name, site, size in [("A", 0, 1), ("B", 1, 1), ("C", 2, 2)]),
        (Requirement(("A", "B"), ("G",)), Requirement(("C",), ("H", "I")), Requirement(("A",), (3,))),
        (),
    )
    each = {}
    for chosen in itertools.permutations(range(4), 3):
        members = (tuple(sorted(chosen[:2])), chosen[2:])
        partitions = (Partition("G", 2, members[0]), Partition("H", 1, members[1]), Partition("I", 1, (4,)))
        each[members] = bound(dataclasses.replace(program, partitions=partitions), machine).bound_ms
    certificate = bound(program, machine)
    assert certificate.bound_ms == pytest.approx(min(each.values()))
    assert each[tuple(members for _, members in certificate.memberships)] == pytest.approx(certificate.bound_ms)
    assert verify(certificate, program, machine)


@examples(30)
@given(st.data())
def test_the_search_for_memberships_equals_trying_them_all(data):
    machine = load_machine("dgx-v100").ideal().restrict((0, 1, 4, 6))
    some = st.sets(st.integers(0, 3), min_size=1, max_size=2).map(sorted).map(tuple)
    atoms = [f"A{k}" for k in range(data.draw(st.integers(1, 4)))]
    holdings = tuple(Holding((atom,), data.draw(some), GB) for atom in atoms)
    sizes = data.draw(st.sampled_from([(1,), (1, 1), (2, 1), (1, 1, 1), (1, 1, 1, 1), (2, 2)]))
    names = [f"G{k}" for k in range(len(sizes))]
    target = st.sampled_from([*names, 0, 3])
    drawn = st.tuples(st.sets(st.sampled_from(atoms), min_size=1), st.sets(target, min_size=1, max_size=3))
    requirements = tuple(
        Requirement(tuple(sorted(name)), tuple(sorted(targets, key=str)))
        for name, targets in data.draw(st.lists(drawn, min_size=1, max_size=3))
    )
    program = Program(None, tuple(map(Partition, names, sizes)), holdings, requirements, ())
    each = []
    for sites in itertools.permutations(range(4), sum(sizes)):
        members = [sites[sum(sizes[:k]) : sum(sizes[: k + 1])] for k in range(len(sizes))]
        if all(list(chosen) == sorted(chosen) for chosen in members):
            partitions = tuple(map(Partition, names, sizes, members))
            each.append(bound(dataclasses.replace(program, partitions=partitions), machine, thorough=False).bound_ms)
    certificate = bound(program, machine, thorough=False)
    assert certificate.bound_ms == pytest.approx(min(each))
    assert verify(certificate, program, machine)


def test_the_symmetries_of_the_mesh_are_those_of_its_links():
    """By brute force: all permutations of the sites under which every pair has the links that it had."""
    network = build_network(load_machine("dgx-v100").ideal(), None)
    links = np.zeros((8, 8))
    for (source, destination), route in network.paths.items():
        links[source, destination] = sum(network.rates[resource] for resource in route)
    expected = [p for p in itertools.permutations(range(8)) if (links[np.ix_(p, p)] == links).all()]
    assert [tuple(image[site] for site in range(8)) for image in find_symmetries(network)] == expected
    assert len(expected) == 4


def test_no_symmetry_maps_a_slow_link_or_memory_to_a_fast_one():
    machine = load_machine("dgx-a100").ideal().restrict((0, 1, 2, 3))
    slow = dataclasses.replace(machine.sites[2], hbm_gbs=machine.sites[2].hbm_gbs / 2)
    changed = dataclasses.replace(machine, sites=(*machine.sites[:2], slow, machine.sites[3]))
    assert len(find_symmetries(build_network(machine, None))) == 24
    assert all(image[2] == 2 for image in find_symmetries(build_network(changed, None)))
    slower = dataclasses.replace(machine.resources[0], gbs=1.0)
    changed = dataclasses.replace(machine, resources=(slower, *machine.resources[1:]))
    assert len(find_symmetries(build_network(changed, None))) == 6


def test_the_search_for_symmetries_ends_where_only_the_last_site_tells_the_others_apart():
    """Twelve of 13 sites could be exchanged in 12! ways, were it not for the rates of their links to the last one."""
    site = load_machine("dgx-a100").ideal().sites[0]
    links = [
        Resource(f"{a}>{b}", 50.0 + (min(a, b) if max(a, b) == 12 else 0), ((a, b),))
        for a, b in itertools.permutations(range(13), 2)
    ]
    machine = dataclasses.replace(load_machine("dgx-a100").ideal(), sites=(site,) * 13, resources=tuple(links))
    assert find_symmetries(build_network(machine, None)) == ({number: number for number in range(13)},)


@few
@given(machines_and_programs(), st.data())
def test_what_a_symmetry_maps_onto_each_other_is_alike_and_has_the_same_bound(case, data):
    _, program = case
    machine = load_machine("dgx-v100").ideal()
    network = build_network(machine, None)
    image = data.draw(st.sampled_from(find_symmetries(network)))
    mapped = dataclasses.replace(
        program,
        gpus=None,
        holdings=tuple(
            dataclasses.replace(holding, sites=tuple(sorted(image[site] for site in holding.sites)))
            for holding in program.holdings
        ),
        requirements=tuple(
            dataclasses.replace(requirement, targets=tuple(sorted(image[site] for site in requirement.targets)))
            for requirement in program.requirements
        ),
    )
    expected, found_demands = collect_demands(dataclasses.replace(program, gpus=None)), collect_demands(mapped)
    assume(not expected.overlapping)
    assert find_symmetry_class(expected, network) == find_symmetry_class(found_demands, network)
    before, after = (bound(dataclasses.replace(p, gpus=None), machine).bound_ms for p in (program, mapped))
    assert before == pytest.approx(after)


def test_demands_of_different_sizes_or_places_are_not_alike():
    network = build_network(load_machine("dgx-v100").ideal(), None)

    def alike(name, holder, size, target):
        return find_symmetry_class(collect_demands(preamble([(name, (holder,), size)], [(name, (target,))])), network)

    assert alike("A", 0, GB, 1) == alike("B", 1, GB, 0)
    assert len({alike("A", 0, GB, 1), alike("A", 0, GB + 1, 1), alike("A", 0, GB, 3), alike("A", 0, GB, 5)}) == 4


@pytest.mark.parametrize("polls", [0, 1, 5, 30])
def test_a_search_for_memberships_that_is_ended_early_is_sound(polls):
    machine = load_machine("dgx-v100").ideal()
    mesh = read_program(CUBE_MESH, machine=machine)
    open_mesh = dataclasses.replace(mesh, partitions=(Partition("G1", 4), Partition("G2", 4)))
    calls = itertools.count()
    certificate = bound(open_mesh, machine, stop=lambda: next(calls) >= polls)
    assert 0 < certificate.bound_ms <= bound(open_mesh, machine).bound_ms * (1 + 1e-9)


def test_open_partitions_may_take_sites_that_are_targets_already():
    machine = load_machine("dgx-a100").ideal()
    requirements = (Requirement(("A",), ("G", 3)), Requirement(("A",), (4,)))
    program = Program(None, (Partition("G", 2),), (Holding(("A",), (0,)),), requirements, ())
    assert bound(program, machine).bound_ms == pytest.approx(1000 / 300)
    alone = Program(None, (Partition("G", 3),), (Holding(("A",), (0,)),), (Requirement(("A",), ("G",)),), ())
    links = Machine(
        "links", machine.sites[:4], tuple(r for r in load_machine("dgx-v100").ideal().restrict((0, 1, 2, 3)).resources)
    )
    assert bound(alone, links).bound_ms == pytest.approx(1000 / 100)  # two of the targets have to be reached
    assert verify(bound(alone, links), alone, links)
