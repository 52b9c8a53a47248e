"""Every simulation of these tests is compared with the lower bound: no program can take less time than it."""

import dataclasses
import math

import pytest

from einc.errors import ProgramError
from einc.exchange.bounds import bound
from einc.exchange.simulation.simulator import BodyEvaluator

CHECKED = 3
"""Programs of one test that are compared with their bounds: the first, the middle one and the last."""

MAX_SITES, MAX_ACTIONS, MAX_REQUIREMENTS = 8, 60, 8


@pytest.fixture(autouse=True)
def nothing_is_faster_than_its_bound(monkeypatch):
    seen = []
    original = BodyEvaluator._run

    def watch(evaluator, actions, limit, fluid):
        run = original(evaluator, actions, limit, fluid)
        preamble, machine = evaluator.preamble, evaluator._machine
        small = len(actions) <= MAX_ACTIONS and len(preamble.requirements) <= MAX_REQUIREMENTS
        small = small and len(machine.sites) <= MAX_SITES
        if run is not None and small and run.required <= run.held and (run.complete or limit == math.inf):
            seen.append((preamble, tuple(actions), machine, run.now))
        return run

    monkeypatch.setattr(BodyEvaluator, "_run", watch)
    yield
    for preamble, actions, machine, took in seen[:: max(1, len(seen) // (CHECKED - 1))][:CHECKED]:
        try:
            certificate = bound(dataclasses.replace(preamble, actions=actions), machine)
        except ProgramError:
            continue
        assert certificate.bound_ms <= took * (1 + 1e-9), certificate.bound_by
