"""Bounds: their values on known exchanges, and their soundness against everything that runs."""

import dataclasses
import itertools
from collections import deque

import numpy as np
import pytest
from exprog_oracle import CUBE_MESH, DOUBLING, SWAP, machines_and_programs
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from einc.errors import ProgramError
from einc.exprog.bounds import bound, verify
from einc.exprog.bounds.counting import transfers
from einc.exprog.bounds.cut import Cut, best_cut, needed_in
from einc.exprog.bounds.demand import Demand
from einc.exprog.bounds.fabric import fabric_of
from einc.exprog.bounds.flow import flow
from einc.exprog.bounds.outline import Outline, demands_of
from einc.exprog.bounds.priced import Priced, Row
from einc.exprog.bounds.symmetry import class_of, symmetries
from einc.exprog.evaluator import Evaluator
from einc.exprog.naive import naive_body
from einc.exprog.program import Action, Holding, Partition, Program, Requirement
from einc.exprog.resolve import read_program
from einc.exprog.simulator import simulate
from einc.machines.load import load_machine
from einc.machines.model import Machine, Resource

GB = 10**9
ALL = tuple(range(8))
few = settings(max_examples=60)


def preamble(holdings, requirements, gpus=None):
    return Program(
        gpus,
        (),
        tuple(Holding(tuple(name.split("+")), sites, size) for name, sites, size in holdings),
        tuple(Requirement(tuple(name.split("+")), targets) for name, targets in requirements),
        (),
    )


COLLECTIVES = {
    "allgather": preamble([(f"A{s}", (s,), GB) for s in ALL], [(f"A{s}", ALL) for s in ALL]),
    "all-to-all": preamble(
        [(f"A{s}{d}", (s,), GB) for s in ALL for d in ALL], [(f"A{s}{d}", (d,)) for s in ALL for d in ALL]
    ),
    "broadcast": preamble([("A", (0,), GB)], [("A", ALL)]),
    "gather": preamble([(f"A{s}", (s,), GB) for s in ALL], [(f"A{s}", (0,)) for s in ALL]),
    "reduce-scatter": preamble(
        [(f"A{s}{d}", (s,), GB // 8) for s in ALL for d in ALL],
        [("+".join(f"A{s}{d}" for s in ALL), (d,)) for d in ALL],
    ),
    "all-reduce": preamble([(f"A{s}", (s,), GB) for s in ALL], [("+".join(f"A{s}" for s in ALL), ALL)]),
}


def without_bridge(machine):
    links = tuple(resource for resource in machine.resources if len(resource.pairs) == 1)
    return Machine(machine.name, machine.sites, links)


@pytest.mark.parametrize(
    ("name", "v100", "links", "a100", "h100"),
    [
        ("allgather", 46.06, 46.67, 23.33, 15.56),
        ("all-to-all", 101.35, 106.67, 23.33, 15.56),
        ("broadcast", 6.57, 6.67, 3.33, 2.22),
        ("gather", 42.23, 46.67, 23.33, 15.56),
        ("reduce-scatter", 5.76, 5.83, 2.92, 1.94),
        ("all-reduce", 11.52, 11.67, 5.83, 3.89),
    ],
)
def test_collectives(name, v100, links, a100, h100):
    for machine, expected in [
        (load_machine("dgx-v100").ideal(), v100),
        (without_bridge(load_machine("dgx-v100").ideal()), links),
        (load_machine("dgx-a100").ideal(), a100),
        (load_machine("dgx-h100").ideal(), h100),
    ]:
        certificate = bound(COLLECTIVES[name], machine)
        assert certificate.bound_ms == pytest.approx(expected, abs=0.005)
        assert verify(certificate, COLLECTIVES[name], machine)
        if machine.routes.keys() >= set(itertools.permutations(ALL, 2)):
            naive = naive_body(COLLECTIVES[name], machine)
            assert certificate.bound_ms <= simulate(naive, machine).completion_ms


def test_the_papers_examples():
    h100, v100 = load_machine("dgx-h100").ideal(), load_machine("dgx-v100").ideal()
    swap, doubling = read_program(SWAP), read_program(DOUBLING)
    assert bound(swap, h100).bound_ms == pytest.approx(1000 / 450)
    assert bound(swap, h100).bound_by == "cut {0}: 1 GB must enter through 450 GB/s"
    assert bound(doubling, h100).bound_ms == pytest.approx(6000 / 1800)
    assert bound(doubling, h100).bound_by == "counting: transfers of 6 GB at least, through 1800 GB/s in all"
    # Without splitting, the paper's swap cannot be beaten: a hop and an aggregation.
    assert bound(swap, h100, whole_atoms=True).bound_ms == pytest.approx(simulate(swap, h100.ideal()).completion_ms)
    assert bound(swap, h100, whole_atoms=True).whole_atoms
    mesh = read_program(CUBE_MESH, machine=v100)
    chosen = bound(mesh, v100)
    assert 12 < chosen.bound_ms < 13
    open_mesh = dataclasses.replace(mesh, partitions=(Partition("G1", 4), Partition("G2", 4)))
    free = bound(open_mesh, v100)
    assert verify(free, open_mesh, v100)
    assert [name for name, _ in free.memberships] == ["G1", "G2"]
    assert free.bound_ms == pytest.approx(10.686, abs=0.001)
    assert bound(open_mesh, without_bridge(v100)).bound_ms == pytest.approx(11.034, abs=0.001)
    assert bound(mesh, v100, whole_atoms=True).bound_ms == pytest.approx(63.333, abs=0.001)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # nothing to do
        ("IN: A @ 0, 1\nOUT: A @ 1", 0),
        ("IN: A+B @ 0; A @ 1\nOUT: A+B @ 0", 0),
        # one copy: the nearest holder does not matter, all that enters does
        ("IN: A @ 1, 2\nOUT: A @ 0", 1000 / 300),
        # an aggregate that is there already is no atom less
        ("IN: A+B @ 1; A @ 0; C @ 0\nOUT: A+B+C @ 0", 1000 / 300),
        # three aggregates of three atoms that only differ in pairs: rank 3 over the rationals, 2 over GF(2)
        ("IN: A @ 1; B @ 2; C @ 3\nOUT: A+B @ 0; B+C @ 0; A+C @ 0", 3000 / 300),
        # the third is a combination of what is there: A + B + C = (A + B) + C
        ("IN: A @ 1; B @ 2; C @ 3\nOUT: A+B @ 0; C @ 0; A+B+C @ 0", 2000 / 300),
        # only an aggregation: in HBM, all sites helping
        ("IN: A @ 0; B @ 0\nOUT: A+B @ 0", 1000 / (1555 / 3 + 300)),
        # what shares no atoms is counted beside what does
        ("IN: A @ 1; B @ 1; C @ 1 (size: 2 GB)\nOUT: A @ 1; A+B @ 0; C @ 0", 3000 / 300),
        # sizes count each for its own
        ("IN: A @ 1 (size: 3 GB); B @ 2 (size: 1 KB)\nOUT: A @ 0; B @ 0", 3000.001 / 300),
    ],
)
def test_small_cases(text, expected):
    machine = load_machine("dgx-a100").ideal()
    program = read_program(text + "\n")
    certificate = bound(program, machine)
    assert certificate.bound_ms == pytest.approx(expected)
    assert verify(certificate, program, machine)


def test_the_sites_that_may_relay_are_those_of_gpus():
    v100 = load_machine("dgx-v100").ideal()
    assert bound(preamble([("A", (0,), GB)], [("A", (3,))]), v100).bound_ms < 1000 / 100
    assert bound(preamble([("A", (0,), GB)], [("A", (3,))], (0, 3)), v100).bound_ms == pytest.approx(1000 / 50)


@pytest.mark.parametrize(
    "text", ["IN: A @ 0\nOUT: A+B @ 0\n", "IN: A+B @ 0\nOUT: A @ 0\n", "IN: A+B @ 0; B+C @ 0\nOUT: A+B+C @ 0\n"]
)
def test_what_can_never_be_met_has_no_bound(text):
    with pytest.raises(ProgramError, match="can never be formed"):
        bound(read_program(text), load_machine("dgx-a100").ideal())


# Soundness.


@settings(max_examples=100)
@given(machines_and_programs(), st.booleans())
def test_no_valid_program_is_faster(case, ideal):
    machine, program = case
    machine = machine.ideal() if ideal else machine
    took = simulate(program, machine).completion_ms
    for whole in (False, True):
        certificate = bound(program, machine, whole_atoms=whole)
        assert certificate.bound_ms <= took * (1 + 1e-9)
        assert verify(certificate, program, machine)
        assert not verify(
            dataclasses.replace(certificate, bound_ms=certificate.bound_ms * 1.001 + 0.001), program, machine
        )


def split(program, pieces):
    """Every atom in pieces; those of a chain of hops follow each other by waits, so that they pipeline."""

    def named(aggregate, k):
        return tuple(sorted(f"{atom}.{k}" for atom in aggregate))

    holdings, requirements, actions = [], [], []
    for k in range(pieces):
        for holding in program.holdings:
            share = holding.size // pieces + (k < holding.size % pieces)
            holdings.append(Holding(named(holding.aggregate, k), holding.sites, share))
        requirements += [Requirement(named(r.aggregate, k), r.targets) for r in program.requirements]
        for action in program.actions:
            after = [Action(named(w.aggregate, k), w.source, w.destinations) for w in action.after]
            if k:
                after.append(Action(named(action.aggregate, k - 1), action.source, action.destinations))
            actions.append(Action(named(action.aggregate, k), action.source, action.destinations, tuple(sorted(after))))
    return dataclasses.replace(
        program, holdings=tuple(holdings), requirements=tuple(requirements), actions=tuple(actions)
    )


@few
@given(machines_and_programs(), st.integers(2, 7), st.booleans())
def test_no_program_that_splits_atoms_is_faster(case, pieces, ideal):
    machine, program = case
    machine = machine.ideal() if ideal else machine
    certificate = bound(program, machine)
    parts = split(program, pieces)
    assert bound(parts, machine).bound_ms == pytest.approx(certificate.bound_ms, rel=1e-6, abs=1e-12)
    for body in (
        parts,
        dataclasses.replace(parts, actions=tuple(dataclasses.replace(a, after=()) for a in parts.actions)),
    ):
        assert certificate.bound_ms <= simulate(body, machine).completion_ms * (1 + 1e-9)


def all_actions(program, sites):
    """Single transfers and local aggregations of the subsets of required aggregates."""
    names = set()
    for requirement in program.requirements:
        for count in range(1, len(requirement.aggregate) + 1):
            names.update(itertools.combinations(requirement.aggregate, count))
    actions = [Action(name, site) for name in sorted(names) if len(name) > 1 for site in sites]
    return actions + [
        Action(name, site, (other,)) for name in sorted(names) for site in sites for other in sites if site != other
    ]


@pytest.mark.parametrize(
    ("text", "most"),
    [
        ("IN: A @ 0; B @ 1\nOUT: A+B @ 0, 1", 4),
        ("IN: A @ 0; B @ 1\nOUT: A+B @ 2", 3),
        ("IN: A @ 0\nOUT: A @ 1, 2", 3),
        ("IN: A @ 0; B @ 1\nOUT: A @ 1, 2; B @ 0, 2", 4),
        ("IN: A @ 0, 1; B @ 2\nOUT: A+B @ 1", 3),
        ("IN: A @ 0; B @ 0; A+B @ 1\nOUT: A+B @ 0, 2", 3),
    ],
)
def test_the_best_of_all_small_bodies_is_no_faster(text, most):
    machine = load_machine("dgx-v100").restrict((0, 1, 4)).ideal()
    program = read_program(text + "\n")
    certificate, whole = bound(program, machine), bound(program, machine, whole_atoms=True)
    evaluator = Evaluator(program, machine)
    actions = all_actions(program, range(3))
    best = min(
        evaluator.completion(body) for count in range(most + 1) for body in itertools.combinations(actions, count)
    )
    assert 0 < certificate.bound_ms <= whole.bound_ms <= best * (1 + 1e-9)
    assert best < 4 * whole.bound_ms


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
    demand = Demand((("A",),), 1, holders, targets, complete=complete)
    fewest = fewest_calls(sites, holders, targets)
    assert transfers(demand) <= fewest
    single = len(holders) > 1 and all(holder.bit_count() == 1 for holder in holders)
    if targets and (complete or single):
        assert transfers(demand) == fewest


@few
@given(machines_and_programs())
def test_rank_equals_numpys(case):
    _, program = case
    demands = demands_of(program)
    atoms = sorted({atom for holding in program.holdings for atom in holding.aggregate})

    def rank(names):
        return np.linalg.matrix_rank([[atom in name for atom in atoms] for name in names]) if names else 0

    for sites in range(1, 16):
        needed = 0
        for size in {holding.size for holding in program.holdings}:
            wanted, held = [], []
            for requirement in program.requirements:
                if any(sites >> site & 1 for site in requirement.targets):
                    wanted.append(requirement.aggregate)
            for holding in program.holdings:
                if holding.size == size and any(sites >> site & 1 for site in holding.sites):
                    held.append(holding.aggregate)
            wanted = [
                name
                for name in wanted
                if name[0] in {a for h in program.holdings if h.size == size for a in h.aggregate}
            ]
            needed += size * int(rank(held + wanted) - rank(held))
        # Copies that cannot become parts do not count for us, so that we may see more, never less.
        assert needed_in(demands, sites) >= needed
        if all(len(holding.aggregate) == 1 for holding in program.holdings):
            assert needed_in(demands, sites) == needed


@few
@given(machines_and_programs())
def test_the_best_cut_is_the_best_of_all_sets(case):
    machine, program = case
    demands, fabric = demands_of(program), fabric_of(machine, program.gpus)
    sets = [mask for mask in range(1, fabric.everything) if not mask & ~fabric.everything]
    worth = max((Cut(mask).worth(demands, fabric) for mask in sets if needed_in(demands, mask)), default=0.0)
    found = best_cut(demands, fabric)
    assert (0.0 if found is None else found.worth(demands, fabric)) == pytest.approx(worth)


@few
@given(machines_and_programs(), st.data())
def test_demands_of_a_membership_are_those_of_its_sites(case, data):
    """Sites named through a partition, chosen after the outline was made, count as if they were written out."""
    _, program = case
    members = tuple(sorted(data.draw(st.sets(st.integers(0, 3), min_size=1))))
    chosen = data.draw(st.sets(st.integers(0, len(program.requirements) - 1)))
    requirements = tuple(
        Requirement(one.aggregate, (*one.targets, "P")) if number in chosen else one
        for number, one in enumerate(program.requirements)
    )
    written = tuple(
        Requirement(one.aggregate, tuple(sorted({*one.targets, *members}))) if number in chosen else one
        for number, one in enumerate(program.requirements)
    )
    outline = Outline(dataclasses.replace(program, requirements=requirements))
    found = outline.demands((Partition("P", len(members), members),))
    expected = demands_of(dataclasses.replace(program, requirements=written))
    assert found.signature() == expected.signature()


@settings(max_examples=25)
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
    demands, fabric = demands_of(program), fabric_of(machine, None)
    found = flow(demands, fabric)
    assert found.worth(demands, fabric) == pytest.approx(optimum, rel=1e-5)


def test_a_witness_proves_only_what_holds():
    machine, program = load_machine("dgx-v100").ideal(), COLLECTIVES["all-reduce"]
    demands, fabric = demands_of(program), fabric_of(machine, None)
    good = flow(demands, fabric)
    worth = good.worth(demands, fabric)
    heavier = tuple(dataclasses.replace(row, weight=row.weight * 2) for row in good.rows)
    assert Priced(heavier, good.prices, "").worth(demands, fabric) <= worth * (1 + 1e-9)
    cheaper = tuple((resource, price / 2) for resource, price in good.prices)
    assert Priced(good.rows, cheaper, "").worth(demands, fabric) <= worth * (1 + 1e-9)
    assert Priced((Row(0, "enter", 255, 9.0),), good.prices, "").worth(demands, fabric) == 0
    assert Priced((Row(0, "receive", 3, 9.0),), good.prices, "").worth(demands, fabric) == 0
    assert Priced((*good.rows, Row(0, "leave", 1, -1.0)), good.prices, "").worth(demands, fabric) == 0
    assert Priced(good.rows, (*good.prices, (0, -1.0)), "").worth(demands, fabric) == 0
    assert Cut(0).worth(demands, fabric) == Cut(255).worth(demands, fabric) == 0


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


@settings(max_examples=30)
@given(st.data())
def test_the_search_for_memberships_equals_trying_them_all(data):
    machine = load_machine("dgx-v100").ideal().restrict((0, 1, 4, 6))
    some = st.sets(st.integers(0, 3), min_size=1, max_size=2).map(sorted).map(tuple)
    atoms = [f"A{k}" for k in range(data.draw(st.integers(1, 4)))]
    holdings = tuple(Holding((atom,), data.draw(some), GB) for atom in atoms)
    sizes = data.draw(st.sampled_from([(1,), (1, 1), (2, 1), (1, 1, 1), (1, 1, 1, 1), (2, 2)]))
    names = [f"G{k}" for k in range(len(sizes))]
    target = st.sampled_from([*names, 0, 3])
    wanted = st.tuples(st.sets(st.sampled_from(atoms), min_size=1), st.sets(target, min_size=1, max_size=3))
    requirements = tuple(
        Requirement(tuple(sorted(name)), tuple(sorted(targets, key=str)))
        for name, targets in data.draw(st.lists(wanted, min_size=1, max_size=3))
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
    fabric = fabric_of(load_machine("dgx-v100").ideal(), None)
    links = np.zeros((8, 8))
    for (source, destination), route in fabric.routes.items():
        links[source, destination] = sum(fabric.capacity[resource] for resource in route)
    expected = [p for p in itertools.permutations(range(8)) if (links[np.ix_(p, p)] == links).all()]
    assert [tuple(image[site] for site in range(8)) for image in symmetries(fabric)] == expected
    assert len(expected) == 4


def test_no_symmetry_maps_a_slow_link_or_memory_to_a_fast_one():
    machine = load_machine("dgx-a100").ideal().restrict((0, 1, 2, 3))
    slow = dataclasses.replace(machine.sites[2], hbm_gbs=machine.sites[2].hbm_gbs / 2)
    other = dataclasses.replace(machine, sites=(*machine.sites[:2], slow, machine.sites[3]))
    assert len(symmetries(fabric_of(machine, None))) == 24
    assert all(image[2] == 2 for image in symmetries(fabric_of(other, None)))
    slower = dataclasses.replace(machine.resources[0], gbs=1.0)
    other = dataclasses.replace(machine, resources=(slower, *machine.resources[1:]))
    assert len(symmetries(fabric_of(other, None))) == 6


def test_the_search_for_symmetries_ends_where_only_the_last_site_tells_the_others_apart():
    """Twelve of 13 sites could be exchanged in 12! ways, were it not for the rates of their links to the last one."""
    site = load_machine("dgx-a100").ideal().sites[0]
    links = [
        Resource(f"{a}>{b}", 50.0 + (min(a, b) if max(a, b) == 12 else 0), ((a, b),))
        for a, b in itertools.permutations(range(13), 2)
    ]
    machine = dataclasses.replace(load_machine("dgx-a100").ideal(), sites=(site,) * 13, resources=tuple(links))
    assert symmetries(fabric_of(machine, None)) == ({number: number for number in range(13)},)


@few
@given(machines_and_programs(), st.data())
def test_what_a_symmetry_maps_onto_each_other_is_alike_and_has_the_same_bound(case, data):
    _, program = case
    machine = load_machine("dgx-v100").ideal()
    fabric = fabric_of(machine, None)
    image = data.draw(st.sampled_from(symmetries(fabric)))
    mapped = dataclasses.replace(
        program,
        gpus=None,
        holdings=tuple(
            dataclasses.replace(one, sites=tuple(sorted(image[site] for site in one.sites))) for one in program.holdings
        ),
        requirements=tuple(
            dataclasses.replace(one, targets=tuple(sorted(image[site] for site in one.targets)))
            for one in program.requirements
        ),
    )
    one, other = demands_of(dataclasses.replace(program, gpus=None)), demands_of(mapped)
    assume(not one.tangles)
    assert class_of(one, fabric) == class_of(other, fabric)
    before, after = (bound(dataclasses.replace(p, gpus=None), machine).bound_ms for p in (program, mapped))
    assert before == pytest.approx(after)


def test_demands_of_different_sizes_or_places_are_not_alike():
    fabric = fabric_of(load_machine("dgx-v100").ideal(), None)

    def alike(name, holder, size, target):
        return class_of(demands_of(preamble([(name, (holder,), size)], [(name, (target,))])), fabric)

    assert alike("A", 0, GB, 1) == alike("B", 1, GB, 0)
    assert len({alike("A", 0, GB, 1), alike("A", 0, GB + 1, 1), alike("A", 0, GB, 3), alike("A", 0, GB, 5)}) == 4


@pytest.mark.parametrize("polls", [0, 1, 5, 30])
def test_a_search_for_memberships_that_is_ended_early_is_sound(polls):
    machine = load_machine("dgx-v100").ideal()
    mesh = read_program(CUBE_MESH, machine=machine)
    open_mesh = dataclasses.replace(mesh, partitions=(Partition("G1", 4), Partition("G2", 4)))
    calls = itertools.count()
    found = bound(open_mesh, machine, stop=lambda: next(calls) >= polls)
    assert 0 < found.bound_ms <= bound(open_mesh, machine).bound_ms * (1 + 1e-9)


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


def test_a_large_switch_is_bounded_quickly():
    machine = load_machine("gb200-nvl72").ideal()
    sites = tuple(range(72))
    program = preamble([(f"A{s}", (s,), GB) for s in sites], [("+".join(f"A{s}" for s in sites), sites)])
    certificate = bound(program, machine)
    assert certificate.bound_ms == pytest.approx(2 * 71 * 1000 / (72 * 900))
    assert certificate.bound_by.startswith("counting")


def test_a_latency_passes_before_anything_is_under_way():
    machine = load_machine("dgx-h100")
    program = read_program("IN: A @ 0\nOUT: A @ 1")
    certificate = bound(program, machine)
    assert certificate.bound_ms == pytest.approx(1000 / 450 + machine.transfer_latency_us / 1000)
    assert certificate.bound_by == "cut {1}: 1 GB must enter through 450 GB/s, after 4 us of latency"
    assert certificate.bound_ms == pytest.approx(simulate(naive_body(program, machine), machine).completion_ms)
    assert bound(read_program("IN: A @ 0, 1\nOUT: A @ 1"), machine).bound_ms == 0
