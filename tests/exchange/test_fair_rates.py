"""Max-min fair rates against an independent progressive filling, the certificate of fairness, and an LP."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import linprog

from einc.exchange.simulation.fluid import Fluid, find_private_capacities
from tests.support.exchange_oracle import brute_rates, random_machine
from tests.support.plain_simulator import FairNetwork
from tests.support.property_examples import examples


@st.composite
def loads(draw):
    sites = draw(st.integers(2, 5))
    machine = random_machine(draw, sites)
    pairs = list(itertools.permutations(range(sites), 2))
    return machine, draw(st.lists(st.sampled_from(pairs), min_size=1, max_size=14))


def solve(machine, pairs):
    routes = machine.routes
    network = FairNetwork([resource.gbs for resource in machine.resources])
    for pair in pairs:
        network.add(routes[pair], 2)  # adding and removing leaves no trace
    for pair in pairs:
        network.add(routes[pair], -1)
    plain = network.rates()
    rates = fluid_rates([resource.gbs for resource in machine.resources], [routes[pair] for pair in pairs])
    assert rates == pytest.approx(plain, rel=1e-12)
    return [rates[routes[pair]] for pair in pairs]


def fluid_rates(capacity, flows):
    """The rate of each path, as the simulator of the product shares capacities among flows that begin together."""
    paths = tuple(dict.fromkeys(flows))
    fluid = Fluid(capacity, paths, find_private_capacities(capacity, paths))
    for number, path in enumerate(flows):
        fluid.join(paths.index(path), 1.0, (number, 0), 0.0)
    fluid.balance(0.0)
    return dict(zip(paths, fluid._rate, strict=True))


@examples(150)
@given(loads())
def test_rates_equal_an_exact_progressive_filling(load):
    machine, pairs = load
    exact = brute_rates([(k, *pair) for k, pair in enumerate(pairs)], machine)
    assert solve(machine, pairs) == pytest.approx([float(rate) for rate in exact.values()], rel=1e-12)


@examples(150)
@given(loads())
def test_every_flow_has_a_bottleneck(load):
    """A feasible allocation is max-min fair iff each flow crosses a full resource on which no flow is faster."""
    machine, pairs = load
    rates = solve(machine, pairs)
    sharp = set()
    for resource in machine.resources:
        users = [k for k, pair in enumerate(pairs) if pair in resource.pairs]
        used = sum(rates[k] for k in users)
        assert used <= resource.gbs * (1 + 1e-12)
        if used >= resource.gbs * (1 - 1e-12):
            fastest = max(rates[k] for k in users)
            sharp |= {k for k in users if rates[k] >= fastest * (1 - 1e-12)}
    assert sharp == set(range(len(pairs)))


@examples(40)
@given(loads())
def test_the_least_rate_is_the_greatest_possible(load):
    machine, pairs = load
    crossing = np.array([[pair in resource.pairs for pair in pairs] for resource in machine.resources], float)
    rows = np.hstack([crossing, np.zeros((len(crossing), 1))])
    least = np.hstack([-np.eye(len(pairs)), np.ones((len(pairs), 1))])
    solution = linprog(
        [0.0] * len(pairs) + [-1.0],
        A_ub=np.vstack([rows, least]),
        b_ub=[resource.gbs for resource in machine.resources] + [0.0] * len(pairs),
    )
    assert min(solve(machine, pairs)) == pytest.approx(-solution.fun, rel=1e-7)


def test_a_case_by_hand():
    # a: r0; b: r0, r1; c: r1 with capacities 10 and 4: b and c share r1 at 2 each, a takes the 8 that b leaves.
    assert fluid_rates([10.0, 4.0], [(0,), (0, 1), (1,)]) == {(0,): 8.0, (0, 1): 2.0, (1,): 2.0}
    network = FairNetwork([10.0, 4.0])
    for route in ((0,), (0, 1), (1,)):
        network.add(route, 1)
    assert network.rates() == {(0,): 8.0, (0, 1): 2.0, (1,): 2.0}
    network.add((1,), -1)
    assert network.rates() == {(0,): 6.0, (0, 1): 4.0}
    network.add((0,), -1)
    network.add((0, 1), -1)
    assert network.rates() == {}
