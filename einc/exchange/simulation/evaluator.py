"""The fast simulator: many bodies for one preamble on one machine (paper, Section 5.4: candidates are costed).

`simulator.py` is the definition; this one gives the same times. What the preamble and the machine fix is worked out
once; aggregates become numbers and bit masks, and an action is translated when it is first seen.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from einc.errors import ProgramError
from einc.exchange.language.checker import check
from einc.exchange.language.program import Action, Aggregate, Program, targets_of
from einc.exchange.language.sizes import atom_sizes
from einc.exchange.simulation.body_run import Numbered, Run, Step
from einc.exchange.simulation.fluid import Fluid, alone, others_of
from einc.exchange.simulation.simulator import Timeline
from einc.machines.model import BYTES_PER_MS, MS_PER_US, Machine


class Evaluator:
    """Times bodies for one preamble; the actions of the program that is given do not matter."""

    def __init__(self, preamble: Program, machine: Machine) -> None:
        """Raises ProgramError where IN contradicts itself or a site does not exist."""
        self._preamble = preamble
        self._machine = machine
        self._width = len(machine.sites)
        self._sites = frozenset(range(self._width) if preamble.gpus is None else preamble.gpus)
        self._sizes = atom_sizes(preamble)
        self._numbers = {atom: number for number, atom in enumerate(self._sizes)}
        self._aggregates: dict[Aggregate, Numbered | None] = {}
        self._steps: dict[Action, Step | None] = {}
        # The first resources and lanes are the HBM of the sites.
        self._capacity = [site.hbm_gbs * BYTES_PER_MS for site in machine.sites]
        self._capacity += [resource.gbs * BYTES_PER_MS for resource in machine.resources]
        routes: dict[tuple[int, ...], int] = {(site,): site for site in range(self._width)}
        self._lanes: dict[tuple[int, int], int] = {}
        for pair, crossed in machine.routes.items():
            route = tuple(self._width + resource for resource in crossed)
            self._lanes[pair] = routes.setdefault(route, len(routes))
        self._routes = tuple(routes)
        self._alone = alone(self._capacity, routes)
        self._others = others_of(len(self._capacity), routes)
        self._transfer_latency = machine.transfer_latency_us * MS_PER_US
        self._kernel_latency = machine.kernel_latency_us * MS_PER_US
        faults = check(_bare(preamble), machine).faults
        if faults:
            raise ProgramError(faults[0].message)
        self._holdings = [
            (self._known(holding.aggregate), site) for holding in preamble.holdings for site in holding.sites
        ]
        wanted = [
            (self._aggregate(requirement.aggregate), site)
            for requirement in preamble.requirements
            for site in targets_of(preamble, requirement)
        ]
        self._possible = all(aggregate is not None for aggregate, _ in wanted)
        self._wanted = {aggregate.base + site for aggregate, site in wanted if aggregate is not None}

    @property
    def preamble(self) -> Program:
        """The program that was given: its actions do not matter."""
        return self._preamble

    def completion(self, actions: Sequence[Action], limit: float = math.inf) -> float:
        """The completion time in ms of a body of distinct actions.

        Infinite where the program is not valid on the machine, and where it takes longer than `limit` (which then is
        found out early).
        """
        run = self._run(actions, limit)
        return run.now if run is not None and run.complete else math.inf

    def timeline(self, actions: Sequence[Action]) -> Timeline:
        """What `simulate` gives for the preamble with this body; raises ProgramError as it does."""
        run = self._run(actions, math.inf)
        if run is None or not run.complete:
            preamble = self._preamble
            program = Program(
                preamble.gpus, preamble.partitions, preamble.holdings, preamble.requirements, tuple(actions)
            )
            faults = check(program, self._machine).faults
            more = f"and {len(faults) - 1} more faults: check lists them" if len(faults) > 1 else None
            raise ProgramError(faults[0].message, hint=more)
        return Timeline(run.now, tuple(run.event(number, action) for number, action in enumerate(actions)), run.copies)

    def _run(self, actions: Iterable[Action], limit: float) -> Run | None:
        """None where an action cannot be of any valid program, or a requirement of no program."""
        if not self._possible:
            return None
        known = self._steps
        steps = []
        for action in actions:
            if action not in known:
                known[action] = self._step(action)
            step = known[action]
            if step is None:
                return None
            steps.append(step)
        run = Run(
            steps,
            Fluid(self._capacity, self._routes, self._alone, self._others),
            self._transfer_latency,
            self._kernel_latency,
        )
        run.hbm = self._capacity
        run.wanted = self._wanted
        for aggregate, site in self._holdings:
            run.place(aggregate, site)
        run.run(limit)
        return run

    def _step(self, action: Action) -> Step | None:
        aggregate = self._aggregate(action.aggregate)
        source, lanes = action.source, self._lanes
        sites = (source, *action.destinations)
        if aggregate is None or not self._sites.issuperset(sites):
            return None
        if any((source, site) not in lanes for site in action.destinations):
            return None
        flows = tuple((lanes[source, site], site) for site in action.destinations)
        waits = tuple(dict.fromkeys((wait.aggregate, wait.source, wait.destinations) for wait in action.after))
        return Step(aggregate, source, flows, (action.aggregate, source, action.destinations), waits)

    def _aggregate(self, name: Aggregate) -> Numbered | None:
        """None where IN does not have its atoms, or gives them different sizes."""
        if name not in self._aggregates:
            found = None
            if len({self._sizes.get(atom) for atom in name}) == 1 and name[0] in self._sizes:
                numbers = [self._numbers[atom] for atom in name]
                mask = sum(1 << number for number in numbers)
                base = len(self._aggregates) * self._width
                found = Numbered(
                    name, mask, base, tuple(number * self._width for number in numbers), self._sizes[name[0]]
                )
            self._aggregates[name] = found
        return self._aggregates[name]

    def _known(self, name: Aggregate) -> Numbered:
        aggregate = self._aggregate(name)
        assert aggregate is not None, "sizes have been checked"
        return aggregate


def _bare(preamble: Program) -> Program:
    """The preamble with nothing required, to check its declarations alone."""
    return Program(preamble.gpus, preamble.partitions, preamble.holdings, (), ())
