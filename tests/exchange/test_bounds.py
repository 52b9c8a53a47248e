"""Bounds: their values on known exchanges, and their soundness against simulated programs."""

import dataclasses
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from einc.errors import ProgramError
from einc.exchange.bounds import bound, verify
from einc.exchange.language.program import Action, Holding, Partition, Requirement
from einc.exchange.language.resolve import read_program
from einc.exchange.naive import build_naive_body
from einc.exchange.simulation.simulator import BodyEvaluator, simulate
from einc.machines.load import load_machine
from tests.support.bound_cases import ALL, COLLECTIVES, GB, preamble, without_bridge
from tests.support.exchange_oracle import CUBE_MESH, DOUBLING, SWAP, machines_and_programs
from tests.support.peak_machines import load_at_peak
from tests.support.property_examples import examples


@pytest.mark.sampled(2)
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
            naive = build_naive_body(COLLECTIVES[name], machine)
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


@examples(100)
@given(machines_and_programs(), st.booleans())
def test_no_valid_program_is_faster(case, ideal):
    machine, program = case
    machine = machine.ideal() if ideal else machine
    took = simulate(program, machine).completion_ms
    for whole_atoms in (False, True):
        certificate = bound(program, machine, whole_atoms=whole_atoms)
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


@examples(60)
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
        Action(name, site, (target,)) for name in sorted(names) for site in sites for target in sites if site != target
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
    certificate, atomic = bound(program, machine), bound(program, machine, whole_atoms=True)
    evaluator = BodyEvaluator(program, machine)
    actions = all_actions(program, range(3))
    best = min(
        evaluator.completion(body) for count in range(most + 1) for body in itertools.combinations(actions, count)
    )
    assert 0 < certificate.bound_ms <= atomic.bound_ms <= best * (1 + 1e-9)
    assert best < 4 * atomic.bound_ms


def test_a_large_switch_is_bounded_quickly():
    machine = load_machine("gb200-nvl72").ideal()
    sites = tuple(range(72))
    program = preamble([(f"A{s}", (s,), GB) for s in sites], [("+".join(f"A{s}" for s in sites), sites)])
    certificate = bound(program, machine)
    assert certificate.bound_ms == pytest.approx(2 * 71 * 1000 / (72 * 900))
    assert certificate.bound_by.startswith("counting")


def test_a_latency_passes_before_anything_is_under_way():
    machine = load_at_peak("dgx-h100")
    program = read_program("IN: A @ 0\nOUT: A @ 1")
    certificate = bound(program, machine)
    assert certificate.bound_ms == pytest.approx(1000 / 450 + machine.transfer_latency_us / 1000)
    assert certificate.bound_by == "cut {1}: 1 GB must enter through 450 GB/s, after 4 us of latency"
    assert certificate.bound_ms == pytest.approx(simulate(build_naive_body(program, machine), machine).completion_ms)
    assert bound(read_program("IN: A @ 0, 1\nOUT: A @ 1"), machine).bound_ms == 0
