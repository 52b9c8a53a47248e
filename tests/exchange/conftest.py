"""Whatever these tests simulate is held against the bound: no program takes less than what none can take."""

import pytest

from einc.errors import ProgramError
from einc.exchange.bounds import bound
from einc.exchange.language.program import targets_of
from einc.exchange.simulation import simulator

MOST = 3
"""Programs of one test that are held against their bounds: the first, the middle one and the last."""

MOST_SITES, MOST_ACTIONS, MOST_REQUIREMENTS = 8, 60, 8


@pytest.fixture(autouse=True)
def nothing_is_faster_than_its_bound(monkeypatch):
    seen = []
    run = simulator._Simulation.run

    def watched(simulation):
        run(simulation)
        program = simulation.program
        met = all(
            (requirement.aggregate, site) in simulation.state
            for requirement in program.requirements
            for site in targets_of(program, requirement)
        )
        small = len(program.actions) <= MOST_ACTIONS and len(program.requirements) <= MOST_REQUIREMENTS
        if met and small and len(simulation.hbm) <= MOST_SITES:
            seen.append((program, simulation.machine, simulation.now))

    def begin(simulation, program, machine, begin=simulator._Simulation.__init__):
        begin(simulation, program, machine)
        simulation.machine = machine

    monkeypatch.setattr(simulator._Simulation, "run", watched)
    monkeypatch.setattr(simulator._Simulation, "__init__", begin)
    yield
    for program, machine, took in seen[:: max(1, len(seen) // (MOST - 1))][:MOST]:
        try:
            certificate = bound(program, machine)
        except ProgramError:
            continue
        assert certificate.bound_ms <= took * (1 + 1e-9), certificate.bound_by
