"""Outputs that aggregate together, from plans to results: whatever is read, cut or saved of a tuple."""

from __future__ import annotations

import random

import numpy as np
import pytest

from einc.exchange.language.checker import check
from einc.graph.graph import verify_graph
from einc.logical.optimize import optimize
from einc.machines.model import Machine
from einc.physical.build import build
from einc.physical.program import DeviceProgram
from einc.physical.records import emit
from einc.physical.schedule import Scheduler
from einc.physical.verify import verify
from einc_runtime.execution.cpu.executor import CpuExecutor
from einc_runtime.execution.session import Session
from einc_runtime.plan.codec import decode, encode
from einc_runtime.plan.proof import prove_data
from einc_runtime.plan.schema import AggregateTask
from tests.support.device_programs import exchanges_of, program_of
from tests.support.joint_aggregation_toys import SIGNATURES, toy_arrays, toy_graph, toy_kernels
from tests.support.physical_interpreter import interpret
from tests.support.physical_toys import Wild, switch
from tests.support.racing import races
from tests.support.sampling import one_in

__all__ = ["toy_kernels"]


def assert_equal(result: object, expected: object, name: str) -> None:
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-5, err_msg=name)  # type: ignore[arg-type]


def case(kind: str, sites: int, seed: int, scheduler: Scheduler | None = None) -> DeviceProgram:
    rng = random.Random(seed)
    graph = toy_graph(kind, rng)
    verify_graph(graph)
    plan = optimize(graph, sites, selector=rng.choice(("random", "random", "random", "eindecomp")), seed=seed)
    program = build(plan, switch(sites), scheduler)
    verify(program)
    assert next(races(program), None) is None
    return program


def run_everywhere(program: DeviceProgram, machine: Machine, seed: int) -> None:
    graph = program.plan.graph
    arrays = toy_arrays(graph, seed)
    for order in range(2):
        results = interpret(program, arrays, order)
        for name in graph.outputs:
            assert_equal(results[name], arrays[name], name)
    bundle = decode(encode(emit(program, machine, tuple(range(program.plan.sites)), "naive")))
    prove_data(bundle)
    session = Session(bundle, executor=CpuExecutor(bundle, 2, poison=True, rewrites=seed % 2 != 0))
    session.load_all({name: arrays[name] for name in ("x", "y")})
    session.execute()
    for name in graph.outputs:
        assert_equal(session.offload(name), arrays[name], name)


@pytest.mark.sampled(2)
@pytest.mark.usefixtures("toy_kernels")
@pytest.mark.parametrize(("kind", "sites"), one_in(2, SIGNATURES, range(1, 9)))
def test_tuples_are_aggregated_whatever_is_read_of_them(kind: str, sites: int) -> None:
    aggregated = 0
    for seed in range(sites * 100, sites * 100 + 5):
        program = case(kind, sites, seed)
        run_everywhere(program, switch(sites), seed)
        for exchange in exchanges_of(program):
            assert check(program_of(exchange), switch(sites)).valid
        aggregated += sum(isinstance(task, AggregateTask) and len(task.writes) == 2 for task in program.tasks)
    assert aggregated > 0 or sites == 1


@pytest.mark.sampled(3)
@pytest.mark.usefixtures("toy_kernels")
@pytest.mark.parametrize("kind", SIGNATURES)
def test_any_valid_exchange_program_moves_tuples(kind: str) -> None:
    """Relays, partial aggregates in random trees, redundant actions, waits, atoms in pieces."""
    cut = False
    for seed in range(12):
        rng = random.Random(seed)
        sites = rng.randint(2, 6)
        program = case(kind, sites, seed, Wild(rng, switch(sites), sites))
        run_everywhere(program, switch(sites), seed)
        cut |= any("." in h.aggregate[0] for e in exchanges_of(program) for h in program_of(e).holdings)
    assert cut
