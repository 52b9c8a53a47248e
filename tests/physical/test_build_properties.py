"""Device programs of random graphs give the whole-array result in every order that their dependencies allow."""

from __future__ import annotations

import random

import numpy as np
import pytest

from einc.exchange.language.checker import check
from einc.graph.graph import Graph
from einc.logical.candidates import enumerate_flexible_candidates
from einc.logical.optimize import optimize
from einc.logical.plan import Choice, LogicalPlan
from einc.physical.build import build
from einc.physical.program import DeviceProgram
from einc.physical.records import emit
from einc.physical.verify import verify
from einc_runtime.plan.proof import prove_data
from tests.support.device_programs import exchanges_of, kind_of, program_of
from tests.support.physical_interpreter import interpret
from tests.support.physical_toys import Wild, random_graph, switch, whole_arrays
from tests.support.racing import races


def assert_computes(program: DeviceProgram, orders: int = 3) -> None:
    arrays = whole_arrays(program.plan.graph)
    for seed in range(orders):
        results = interpret(program, arrays, seed, rounds=2 if seed == 0 else 1)
        for name in program.plan.graph.outputs:
            np.testing.assert_array_equal(results[name], arrays[name], err_msg=name)


def check_case(seed: int, orders: int = 3) -> DeviceProgram:
    rng = random.Random(seed)
    graph, sites = random_graph(rng), rng.randint(1, 8)
    plan = optimize(graph, sites, selector=rng.choice(("random", "random", "eindecomp", "greedy")), seed=seed)
    machine = switch(sites)
    program = build(plan, machine)
    verify(program)
    assert next(races(program), None) is None
    assert_computes(program, orders)
    for exchange in exchanges_of(program):
        assert check(program_of(exchange), machine).valid
    return program


def draw_flexible_plan(graph: Graph, sites: int, rng: random.Random) -> LogicalPlan:
    """Any numbers of function specifications and of sites for each, drawn before the cuts: many cuts share them."""
    choices = []
    for node in graph.nodes:
        offers: dict[tuple[int, int], list[Choice]] = {}
        for candidate in enumerate_flexible_candidates(node.operator, sites):
            key = len(candidate.spec.functions), candidate.replicas
            offers.setdefault(key, []).append(Choice(node.name, candidate, 0))
        choices.append(rng.choice(rng.choice(list(offers.values()))))
    return LogicalPlan(graph, sites, "flexible", tuple(choices), False, 0)


def flexible_case(seed: int) -> DeviceProgram:
    rng = random.Random(seed)
    graph, sites = random_graph(rng), rng.randint(2, 8)
    plan, machine = draw_flexible_plan(graph, sites, rng), switch(sites)
    for scheduler in (None, Wild(rng, machine, sites)):
        program = build(plan, machine, scheduler)
        verify(program)
        prove_data(emit(program, machine, tuple(range(sites)), "naive"))
        assert next(races(program), None) is None
        assert_computes(program, orders=2)
        for exchange in exchanges_of(program):
            assert check(program_of(exchange), machine).valid
    return program


@pytest.mark.sampled(2)
@pytest.mark.parametrize("block", range(3))
def test_blocks_may_be_computed_by_several_sites_and_sites_be_idle(block: int) -> None:
    drawn = [flexible_case(seed) for seed in range(block * 10, block * 10 + 10)]
    operations = [operation for program in drawn for operation in program.operations]
    assert any(1 < operation.replicas < len(operation.functions) for operation in operations)
    assert any(1 == operation.replicas < len(operation.functions) for operation in operations)


@pytest.mark.slow
@pytest.mark.parametrize("block", range(20))
def test_many_plans_with_replicas_compute_their_reference(block: int) -> None:
    for seed in range(500 + block * 25, 525 + block * 25):
        flexible_case(seed)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("block", range(8))
def test_random_graphs_compute_their_reference(block: int) -> None:
    kinds = {kind_of(task) for seed in range(block * 10, block * 10 + 10) for task in check_case(seed).tasks}
    assert kinds >= {"kernel", "transfer", "aggregate", "copy"}


@pytest.mark.slow
@pytest.mark.parametrize("block", range(40))
def test_many_random_graphs_compute_their_reference(block: int) -> None:
    for seed in range(1000 + block * 25, 1025 + block * 25):
        check_case(seed, orders=5)


def wild_case(seed: int) -> DeviceProgram:
    rng = random.Random(seed)
    graph, sites = random_graph(rng), rng.randint(2, 6)
    machine = switch(sites)

    plan = optimize(graph, sites, selector="random", seed=seed)
    program = build(plan, machine, Wild(rng, machine, sites))
    verify(program)
    assert next(races(program), None) is None
    assert_computes(program, orders=2)
    return program


@pytest.mark.sampled(2)
@pytest.mark.parametrize("block", range(4))
def test_any_valid_exchange_program_can_be_lowered(block: int) -> None:
    for seed in range(block * 10, block * 10 + 10):
        wild_case(seed)


@pytest.mark.slow
@pytest.mark.parametrize("block", range(20))
def test_many_valid_exchange_programs_can_be_lowered(block: int) -> None:
    for seed in range(500 + block * 25, 525 + block * 25):
        wild_case(seed)
