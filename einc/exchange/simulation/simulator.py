"""The simulator: when every action of a program starts and ends on a machine (paper, Section 5.2, "Cost").

The rules are stated in `docs/exchange-programs.md`. What depends only on the preamble and the machine is
computed once per evaluator. Aggregates become numbers and bit masks, and an action is translated when it is first seen.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache

from einc.errors import ProgramError
from einc.exchange.language.checker import check, find_static_faults
from einc.exchange.language.program import Action, Aggregate, Program, collect_atom_sizes, list_targets
from einc.exchange.simulation.body_run import (
    ActionName,
    BodyRun,
    NumberedAction,
    NumberedAggregate,
    Timeline,
    name_action,
)
from einc.exchange.simulation.fluid import Fluid, find_private_capacities, index_crossings
from einc.machines.model import BYTES_PER_MS, MS_PER_US, Machine, Pair, find_adding_switches


class _MachineLanes:
    """The resources of a machine, and the lanes of jobs that cross some of them. The first of both are the HBM of the
    sites; `of_pairs` has the lane of each pair."""

    def __init__(
        self, capacity: list[float], paths: dict[tuple[int, ...], int], of_pairs: Mapping[Pair, int], width: int
    ) -> None:
        self.capacity, self.paths, self.of_pairs = capacity, paths, of_pairs
        self._routes = tuple(paths)
        self._private = find_private_capacities(capacity, self._routes)
        self._reproducible = [*self._private[:width], *[0.0] * (len(paths) - width)]
        self._crossings = index_crossings(len(capacity), self._routes)

    def make_fluid(self, *, reproducible: bool = False) -> Fluid:
        private = self._reproducible if reproducible else self._private
        return Fluid(self.capacity, self._routes, private, self._crossings, update_all=reproducible)


@lru_cache(maxsize=4)
def _find_lanes(machine: Machine) -> _MachineLanes:
    """The lanes of all pairs of sites. They are kept, as many programs are simulated on one machine."""
    width = len(machine.sites)
    capacity = [site.sustained_gbs * BYTES_PER_MS for site in machine.sites]
    capacity += [resource.gbs * BYTES_PER_MS for resource in machine.resources]
    paths: dict[tuple[int, ...], int] = {(site,): site for site in range(width)}
    of_pairs: dict[Pair, int] = {}
    for pair, crossed in machine.routes.items():
        path = tuple(width + resource for resource in crossed)
        of_pairs[pair] = paths.setdefault(path, len(paths))
    return _MachineLanes(capacity, paths, of_pairs, width)


def simulate(program: Program, machine: Machine) -> Timeline:
    """Run a ground program; `machine.ideal()` leaves the latencies out.

    Raises ProgramError, with the reason in words, for a program that is not valid on the machine.
    """
    for fault in find_static_faults(program, machine):
        raise ProgramError(fault.message)
    return BodyEvaluator(program, machine).compute_timeline(program.actions)


class BodyEvaluator:
    """Times many bodies for one preamble on one machine; the actions of the program that is given do not matter."""

    def __init__(self, preamble: Program, machine: Machine) -> None:
        """Raises ProgramError where IN contradicts itself or a site does not exist."""
        bare = dataclasses.replace(preamble, requirements=(), actions=())
        for fault in find_static_faults(bare, machine):
            raise ProgramError(fault.message)
        self._preamble = preamble
        self._machine = machine
        self._width = len(machine.sites)
        self._sites = frozenset(range(self._width) if preamble.gpus is None else preamble.gpus)
        self._sizes = collect_atom_sizes(preamble)
        self._numbers = {atom: number for number, atom in enumerate(self._sizes)}
        self._aggregates: dict[Aggregate, NumberedAggregate | None] = {}
        self._actions: dict[Action, NumberedAction | None] = {}
        self._lanes = _find_lanes(machine)
        self._paths = self._lanes.paths.copy()  # with those of switches that copy or add, once an action takes them
        self._transfer_latency = machine.transfer_latency_us * MS_PER_US
        self._kernel_latency = machine.kernel_latency_us * MS_PER_US
        self._initial = [(self._number(entry.aggregate), site) for entry in preamble.holdings for site in entry.sites]
        required = [
            (self._number(requirement.aggregate), site)
            for requirement in preamble.requirements
            for site in list_targets(preamble, requirement)
        ]
        self._possible = all(aggregate is not None for aggregate, _ in required)
        self._required = {aggregate.base + site for aggregate, site in required if aggregate is not None}

    @property
    def preamble(self) -> Program:
        """The program that was given: its actions do not matter."""
        return self._preamble

    def completion(self, actions: Sequence[Action], limit: float = math.inf) -> float:
        """The completion time in ms of a body of distinct actions.

        Infinite where the program is not valid on the machine, and where it takes longer than `limit`: then the run
        ends early. The time may differ from that of `compute_timeline` in its last bits.
        """
        run = self._run(actions, limit, self._fluid)
        return run.now if run is not None and run.complete else math.inf

    def compute_timeline(self, actions: Sequence[Action]) -> Timeline:
        """The timeline of a body; raises ProgramError, with the reason in words, where it is not valid."""
        run = self._run(actions, math.inf, self._reproducible_fluid)
        if run is None or not run.complete:
            program = dataclasses.replace(self._preamble, actions=tuple(actions))
            faults = check(program, self._machine).faults
            more = f"and {len(faults) - 1} more faults: check lists them" if len(faults) > 1 else None
            raise ProgramError(faults[0].message, hint=more)
        events = tuple(run.describe_action(number, action) for number, action in enumerate(actions))
        return Timeline(run.now, events, run.copies)

    def _fluid(self) -> Fluid:
        return self._lanes.make_fluid()

    def _reproducible_fluid(self) -> Fluid:
        """A slower model whose times are equal to the last bit to those of the plain simulator in the tests."""
        return self._lanes.make_fluid(reproducible=True)

    def _run(self, actions: Iterable[Action], limit: float, make_fluid: Callable[[], Fluid]) -> BodyRun | None:
        """None where an action cannot be part of any valid program, or a requirement cannot be met by any program."""
        if not self._possible:
            return None
        known = self._actions
        numbered = []
        for action in actions:
            if action not in known:
                known[action] = self._translate(action)
            translated = known[action]
            if translated is None:
                return None
            numbered.append(translated)
        if len(self._lanes.paths) < len(self._paths):
            self._lanes = _MachineLanes(self._lanes.capacity, self._paths.copy(), self._lanes.of_pairs, self._width)
        run = BodyRun(numbered, make_fluid(), self._transfer_latency, self._kernel_latency)
        run.hbm = self._lanes.capacity
        run.required = self._required
        for aggregate, site in self._initial:
            assert aggregate is not None, "the sizes in IN have been checked"
            run.place(aggregate, site)
        run.run(limit)
        return run

    def _translate(self, action: Action) -> NumberedAction | None:
        aggregate = self._number(action.aggregate)
        source, lanes = action.source, self._lanes.of_pairs
        if aggregate is None or not self._sites.issuperset(action.sites):
            return None
        if action.uses_switch:
            return self._translate_switched(action, aggregate)
        if any((source, site) not in lanes for site in action.destinations):
            return None
        flows = tuple((lanes[source, site], site) for site in action.destinations)
        return NumberedAction(aggregate, source, flows, name_action(action), _name_waits(action))

    def _translate_switched(self, action: Action, aggregate: NumberedAggregate) -> NumberedAction | None:
        """The one flow of a switch that copies, or adds."""
        switch = next((each for each in find_adding_switches(self._machine) if each.joins(action.sites)), None)
        parts = [(self._number(part), site) for part, site in action.reads]
        if switch is None or any(part is None for part, _ in parts):
            return None
        reads = tuple(part.base + site for part, site in parts if part is not None)
        sources = [site for _, site in action.reads] or [action.source]
        together = action.destinations or (action.source,)
        path = tuple(self._width + resource for resource in switch.find_path(sources, together))
        lane = self._paths.setdefault(path, len(self._paths))
        flows = ((lane, together[0]),)
        waits = _name_waits(action)
        return NumberedAction(aggregate, action.source, flows, name_action(action), waits, together, reads)

    def _number(self, name: Aggregate) -> NumberedAggregate | None:
        """None where IN does not have the aggregate's atoms, or gives them different sizes."""
        if name not in self._aggregates:
            aggregate = None
            if len({self._sizes.get(atom) for atom in name}) == 1 and name[0] in self._sizes:
                numbers = [self._numbers[atom] for atom in name]
                mask = sum(1 << number for number in numbers)
                base = len(self._aggregates) * self._width
                spots = tuple(number * self._width for number in numbers)
                aggregate = NumberedAggregate(name, mask, base, spots, self._sizes[name[0]])
            self._aggregates[name] = aggregate
        return self._aggregates[name]


def _name_waits(action: Action) -> tuple[ActionName, ...]:
    return tuple(dict.fromkeys(name_action(wait) for wait in action.after))
