"""Variable elimination and dominance against brute force on random models, with arbitrary tables."""

from __future__ import annotations

import itertools
import math
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from einc.logical import minsum
from einc.logical.minsum import CostTable, choose_elimination_order, minimize, prune_values
from tests.support.property_examples import examples


def charge_difference(a, b, weight, classes_a, classes_b, dtype=np.int64):
    """The table that charges `weight` where the classes differ (below 8)."""
    table = np.array([[0 if x == y else weight for y in range(8)] for x in range(8)], dtype=dtype)
    return CostTable((a, b), (np.array(classes_a), np.array(classes_b)), table)


def random_model(rng, dtype, scale=1, most=6, domain=4):
    """Costs are small, so that ties abound; several tables may join the same variables, two or three of them."""
    costs = [[rng.randrange(4) * scale for _ in range(rng.randint(1, domain))] for _ in range(rng.randint(1, most))]
    tables = []
    for a, b in itertools.combinations(range(len(costs)), 2):
        for _ in range(rng.choice((0, 0, 1, 1, 2))):
            sides = [[rng.randrange(3) for _ in costs[v]] for v in (a, b)]
            tables.append(charge_difference(a, b, rng.randint(1, 3) * scale, *sides, dtype))
    for scope in itertools.chain(*(itertools.combinations(range(len(costs)), n) for n in (2, 3))):
        if rng.random() < 0.15:
            numbers = [rng.randint(1, 3) for _ in scope]
            classes = [np.array([rng.randrange(n) for _ in costs[v]]) for v, n in zip(scope, numbers, strict=True)]
            entries = [rng.randrange(5) * scale for _ in range(math.prod(numbers))]
            tables.append(CostTable(scope, tuple(classes), np.array(entries, dtype=dtype).reshape(numbers)))
    return [np.array(cost, dtype=dtype) for cost in costs], tables


def value(costs, tables, assignment):
    total = sum(int(cost[v]) for cost, v in zip(costs, assignment, strict=True))
    return total + sum(
        int(
            table.costs[
                tuple(class_of[assignment[v]] for v, class_of in zip(table.variables, table.classes, strict=True))
            ]
        )
        for table in tables
    )


def brute(costs, links):
    """The least value and the first assignment that has it."""
    every = itertools.product(*(range(len(cost)) for cost in costs))
    return min((value(costs, links, assignment), assignment) for assignment in every)


@given(st.integers(0, 2**32))
@examples(150)
def test_first_of_the_best(seed):
    costs, links = random_model(random.Random(seed), np.int64)
    assert minimize(costs, links) == brute(costs, links)[1]


@given(st.integers(0, 2**32))
@examples(40)
def test_numbers_beyond_64_bits(seed):
    costs, links = random_model(random.Random(seed), object, scale=10**30 + 7)
    assert minimize(costs, links) == brute(costs, links)[1]


@given(st.integers(0, 2**32))
@examples(60)
def test_dominance_keeps_the_answer(seed):
    costs, links = random_model(random.Random(seed), np.int64)
    kept = prune_values(costs, links)
    assert all(v in left for v, left in zip(brute(costs, links)[1], kept, strict=True))


def test_dominance_removes_what_nobody_matches():
    classes = np.array([0, 1, 2, 3])
    costs = [np.array([5, 0, 0, 0]), np.array([0, 9])]
    kept = prune_values(costs, [charge_difference(0, 1, 3, classes, [0, 7])])
    assert [left.tolist() for left in kept] == [[1], [0]]  # 1 to 3 are alike; 0 costs more than it can save


def test_nothing_to_decide():
    assert minimize([], []) == ()
    assert minimize([np.array([3, 1, 1])], []) == (1,)


def test_all_alike_takes_the_first():
    for variables in (30, 31):
        costs = [np.zeros(4, dtype=np.int64) for _ in range(variables)]
        same = np.arange(4)
        links = [charge_difference(v, v + 1, 1, same, same) for v in range(variables - 1)]
        assert minimize(costs, links) == (0,) * variables


def test_long_chain_of_ties_equals_a_forward_search():
    rng = random.Random(11)
    for _ in range(10):
        costs = [np.array([rng.randrange(2) for _ in range(3)]) for _ in range(60)]
        classes = [[np.array([rng.randrange(3) for _ in range(3)]) for _ in range(2)] for _ in range(59)]
        links = [charge_difference(v, v + 1, 1, mine, theirs) for v, (mine, theirs) in enumerate(classes)]
        # A chain's lexicographically first optimum: the cost to go, backwards, then the first best value, forwards.
        togo = [[0] * 3 for _ in range(60)]
        for v in reversed(range(60)):
            for x in range(3):
                remaining = 0 if v == 59 else min(_step(links[v], x, y) + togo[v + 1][y] for y in range(3))
                togo[v][x] = int(costs[v][x]) + remaining
        path: list[int] = []
        for v in range(60):
            scores = [togo[v][x] + (_step(links[v - 1], path[-1], x) if path else 0) for x in range(3)]
            path.append(scores.index(min(scores)))
        assert minimize(costs, links) == tuple(path)


def _step(table, x, y):
    return int(table.costs[table.classes[0][x], table.classes[1][y]])


def test_dominance_in_its_general_form():
    """Value 0 costs 2 less, and its table never takes back more than 1: value 1 goes."""
    table = np.array([[[5, 1], [2, 7]], [[4, 3], [2, 9]]])
    kept = prune_values(
        [np.array([0, 2]), np.zeros(2, int), np.zeros(2, int)], [CostTable((0, 1, 2), (np.arange(2),) * 3, table)]
    )
    assert kept[0].tolist() == [0]


@given(st.integers(0, 2**32))
@examples(60)
def test_narrow_order_counts_the_tables(seed):
    rng = random.Random(seed)
    count = rng.randint(1, 9)
    domain = {v: rng.randint(1, 5) for v in range(count)}
    pairs = [pair for pair in itertools.combinations(range(count), 2) if rng.random() < 0.4]
    order, sizes = choose_elimination_order(domain, domain, pairs)
    assert sorted(order) == list(domain)
    edges = {frozenset(pair) for pair in pairs}
    for v, size in zip(order, sizes, strict=True):
        around = sorted(u for edge in edges if v in edge for u in edge - {v})
        assert size == domain[v] * np.prod([domain[u] for u in around], dtype=int)
        edges = {edge for edge in edges if v not in edge} | set(map(frozenset, itertools.combinations(around, 2)))


@pytest.mark.parametrize("most", [0, 1 << 16])
def test_least_differences_in_one_go_and_row_by_row(monkeypatch, most):
    monkeypatch.setattr(minsum, "MAX_COMPARISONS_AT_ONCE", most)
    rows = np.random.default_rng(4).integers(-50, 50, (5, 3))
    expected = [[min(int(a) - int(b) for a, b in zip(first, second, strict=True)) for second in rows] for first in rows]
    first, second = np.divmod(np.arange(25), 5)
    assert minsum._find_least_differences(rows, first, second).reshape(5, 5).tolist() == expected


def test_narrow_order_on_a_chain_and_a_ladder():
    domain = dict.fromkeys(range(400), 10)
    chain = [(v, v + 1) for v in range(399)]
    assert max(choose_elimination_order(domain, domain, chain)[1]) == 100
    ladder = [(v, v + 2) for v in range(398)] + [(v, v + 1) for v in range(0, 400, 2)]
    assert max(choose_elimination_order(domain, domain, ladder)[1]) == 1000


@pytest.mark.parametrize("limit", ["MAX_TABLE_ENTRIES", "MAX_TOTAL_ENTRIES"])
def test_limits(monkeypatch, limit):
    costs = [np.arange(3) for _ in range(4)]
    classes = [np.array(c) for c in ((0, 1, 2), (1, 2, 0), (2, 0, 1), (1, 0, 2))]
    links = [charge_difference(a, b, 2, classes[a], classes[b]) for a, b in itertools.combinations(range(4), 2)]
    expected = brute(costs, links)[1]
    assert minimize(costs, links) == expected
    monkeypatch.setattr(minsum, limit, 10)
    assert minimize(costs, links) is None
    assert minimize(costs, links, bounded=False) == expected
