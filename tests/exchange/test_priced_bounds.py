"""The flow bound on many sites: never above the exact linear program, near it, and proved by plain sums."""

import random

import pytest

from einc.exchange.bounds import bound, verify
from einc.exchange.bounds.cut import find_best_cut
from einc.exchange.bounds.demands import collect_demands
from einc.exchange.bounds.flow import is_satisfied, solve_flow
from einc.exchange.bounds.priced import solve_priced_flow
from einc.exchange.network import build_network
from einc.machines.load import load_machine
from einc.machines.model import Machine, Resource, Site
from tests.support.bound_cases import COLLECTIVES, GB, preamble


def nodes(count, size, inside=450.0, card=50.0):
    """Nodes with a switch each, and a card for every site."""
    sites = range(count * size)
    pairs = [(a, b) for a in sites for b in sites if a != b]
    resources = []
    for site in sites:
        for way, end in (("out", 0), ("in", 1)):
            near = tuple(p for p in pairs if p[end] == site and p[0] // size == p[1] // size)
            far = tuple(p for p in pairs if p[end] == site and p[0] // size != p[1] // size)
            resources += [Resource(f"nv {way} {site}", inside, near), Resource(f"net {way} {site}", card, far)]
    return Machine("nodes", (Site(1e4, 1 << 40),) * len(sites), tuple(resources))


def proved(program, machine):
    demands, network = collect_demands(program), build_network(machine, None)
    priced, exact = solve_priced_flow(demands, network), solve_flow(demands, network)
    assert priced is not None
    assert all(is_satisfied(row, demands.family[row.demand]) for row in priced.rows)
    return priced.proved_ms(demands, network), exact.proved_ms(demands, network)


@pytest.mark.parametrize("name", ["allgather", "all-to-all", "broadcast", "gather"])
@pytest.mark.parametrize(("machine", "least"), [("dgx-v100", 0.65), ("dgx-h100", 0.99)])
def test_collectives_are_bounded_nearly_as_well_as_by_the_linear_program(name, machine, least):
    priced, exact = proved(COLLECTIVES[name], load_machine(machine).ideal())
    assert exact * least <= priced <= exact * (1 + 1e-6)


def test_random_exchanges_on_two_nodes():
    noise = random.Random(2)
    machine = nodes(2, 3)
    ratios = []
    for _ in range(12):
        held = [(f"A{k}", tuple(noise.sample(range(6), noise.choice((1, 1, 2)))), noise.choice((1, 3)) * GB)
                for k in range(6)]  # fmt: skip
        needed = [(f"A{k}", tuple(sorted(noise.sample(range(6), noise.randint(1, 3))))) for k in range(6)]
        priced, exact = proved(preamble(held, needed), machine)
        assert priced <= exact * (1 + 1e-6)
        ratios.append(priced / exact if exact else 1.0)
    assert sum(ratios) / len(ratios) > 0.8  # resources that look alike have one price


@pytest.mark.parametrize("reduced", [False, True])
def test_bytes_that_take_a_detour_over_other_nodes_count_twice(reduced):
    """A ring of single transfers within nodes of 4: a card helps with half its rate, as a relay's card is used too."""
    machine = nodes(3, 4)
    ring = [(s, s - 3 if s % 4 == 3 else s + 1) for s in range(12)]
    if reduced:  # the same transfers, of parts that are combined where another part lies
        held = [(f"{part}{a}", (at,), GB) for a, b in ring for part, at in (("A", a), ("B", b))]
        program = preamble(held, [(f"A{a}+B{a}", (b,)) for a, b in ring])
    else:
        program = preamble([(f"A{a}", (a,), GB) for a, _ in ring], [(f"A{a}", (b,)) for a, b in ring])
    demands, network = collect_demands(program), build_network(machine, None)
    cut = find_best_cut(demands, network).proved_ms(demands, network)
    assert cut == pytest.approx(1000 / 500)
    certificate = bound(program, machine)
    assert certificate.bound_ms == pytest.approx(1000 / 475, rel=1e-3)
    assert certificate.bound_by.startswith("flow")
    assert verify(certificate, program, machine)
