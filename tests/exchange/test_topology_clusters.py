"""Machines of several nodes: their levels, routes with many ends, and collectives near their bounds."""

import itertools
import random

import numpy as np
import pytest

from einc.exchange.bounds import verify
from einc.exchange.language.checker import check
from einc.exchange.network import build_network
from einc.exchange.synthesis import SynthesisOptions, synthesize
from einc.exchange.synthesis.allocation import grow_routes
from einc.exchange.synthesis.demands import DemandShape
from einc.exchange.synthesis.routes import compute_load
from einc.exchange.synthesis.trees import PathPrices, find_cheapest_routes
from einc.exchange.topology_clusters import compute_offsets, find_levels
from einc.machines.load import load_machine
from tests.support.bound_cases import preamble

SITES = tuple(range(16))
MB = 10**6
COLLECTIVES = {
    "allgather": preamble([(f"A{s}", (s,), MB) for s in SITES], [(f"A{s}", SITES) for s in SITES]),
    "all-to-all": preamble(
        [(f"A{s}_{d}", (s,), MB) for s, d in itertools.permutations(SITES, 2)],
        [(f"A{s}_{d}", (d,)) for s, d in itertools.permutations(SITES, 2)],
    ),
    "reduce-scatter": preamble(
        [(f"A{s}_{d}", (s,), MB) for s in SITES for d in SITES],
        [("+".join(f"A{s}_{d}" for s in SITES), (d,)) for d in SITES],
    ),
    "all-reduce": preamble([(f"A{s}", (s,), 16 * MB) for s in SITES], [("+".join(f"A{s}" for s in SITES), SITES)]),
}


def test_levels_join_what_is_joined_at_each_bandwidth():
    widths = {}
    for a, b in itertools.permutations(range(1, 9), 2):
        rate = 9.0 if (a - 1) // 2 == (b - 1) // 2 else 5.0 if (a - 1) // 4 == (b - 1) // 4 else 1.0
        widths[a, b] = rate
    levels = find_levels(widths, range(1, 9))
    assert levels == (
        tuple((site,) for site in range(1, 9)),
        ((1, 2), (3, 4), (5, 6), (7, 8)),
        ((1, 2, 3, 4), (5, 6, 7, 8)),
        (tuple(range(1, 9)),),
    )
    # A chain of wide links joins more than a narrow link does, and what cannot talk stays apart.
    chain = {(0, 1): 3.0, (1, 0): 3.0, (1, 2): 3.0, (2, 1): 3.0, (0, 2): 1.0, (2, 0): 1.0, (3, 4): 2.0, (4, 3): 2.0}
    assert find_levels(chain, range(5))[1:] == (((0, 1, 2), (3,), (4,)), ((0, 1, 2), (3, 4)))


def test_offsets_are_rotations_around_nodes_and_least_on_rails():
    machine = load_machine("dgx-h100x4")
    offsets = build_network(machine, None).offsets
    for a, b in itertools.product(range(32), repeat=2):
        assert offsets[a, b] == (b % 8 - a % 8) % 8 * 4 + (b // 8 - a // 8) % 4
    for offset in range(32):  # every site has one other at each distance: all of them can send at once
        assert sorted(np.argwhere(offsets == offset)[:, 1]) == list(range(32))
    assert (compute_offsets(find_levels({}, (3, 5)), (3, 5)) == 0).all()


def random_shape(noise, parts, targets):
    holders = tuple(tuple(sorted(noise.sample(SITES, noise.randint(1, 2)))) for _ in range(parts))
    return DemandShape(holders, tuple(sorted(noise.sample(SITES, targets))))


def test_grown_routes_meet_their_demands_and_cost_little_more_than_the_cheapest():
    network = build_network(load_machine("dgx-h100x2").ideal(), None)
    noise = random.Random(5)
    ratios = []
    for _ in range(25):
        shape = random_shape(noise, noise.randint(1, 5), noise.randint(1, 5))
        price = np.array([noise.uniform(0.2, 1.0) / rate for rate in network.rates])
        prices = PathPrices(network, price)
        routes = grow_routes(shape, prices, 4)
        assert routes
        for route in routes:
            held = {(1 << part, site) for part, sites in enumerate(shape.holders) for site in sites}
            for step in route:
                needed = [(part, step.source) for part in step.of or (step.parts,)]
                assert held.issuperset(needed)
                assert not step.of or sum(step.of) == step.parts  # disjoint parts
                assert (step.source == step.destination) == bool(step.of)
                held.add((step.parts, step.destination))
            assert held.issuperset(((1 << len(shape.holders)) - 1, target) for target in shape.targets)
        best, _ = find_cheapest_routes(shape, prices)
        cheapest = min(prices.compute_cost(compute_load(route, network)) for route in routes)
        assert best <= prices.compute_cost(compute_load(routes[0], network)) * 1.02  # prices of hops are left out
        ratios.append(cheapest / best if best else 1.0)
    assert max(ratios) < 2
    assert sum(ratios) / len(ratios) < 1.25


def test_a_grown_multicast_enters_every_node_once():
    network = build_network(load_machine("dgx-h100x4").ideal(), None)
    prices = PathPrices(network, 1 / np.array(network.rates))
    for root in (0, 13, 31):
        shape = DemandShape(((root,),), tuple(site for site in range(32) if site != root))
        cheapest = min(grow_routes(shape, prices, 1), key=lambda route: len({step.source // 8 for step in route}))
        crossing = [
            [step for step in route if step.source // 8 != step.destination // 8]
            for route in grow_routes(shape, prices, 1)
        ]
        assert len(cheapest) == 31
        assert min(map(len, crossing)) == 3
        rails = [steps for steps in crossing if len(steps) == 3]
        assert any(all(step.source % 8 == step.destination % 8 == root % 8 for step in steps) for steps in rails)


@pytest.mark.parametrize(("name", "most"), [("allgather", 1.08), ("all-to-all", 1.001)])
def test_collectives_of_two_nodes_come_near_their_bounds(name, most):
    machine = load_machine("dgx-h100x2").ideal()
    result = synthesize(COLLECTIVES[name], machine, SynthesisOptions(iterations=0, max_actions=500))
    assert check(result.program, machine).valid
    assert verify(result.bound, COLLECTIVES[name], machine)
    assert result.completion_ms <= result.bound.bound_ms * most


@pytest.mark.slow
@pytest.mark.parametrize("name", COLLECTIVES)
def test_collectives_of_two_nodes_come_nearer_with_more_actions(name):
    machine = load_machine("dgx-h100x2").ideal()
    result = synthesize(COLLECTIVES[name], machine)
    assert check(result.program, machine).valid
    assert result.completion_ms <= result.bound.bound_ms * 1.08
