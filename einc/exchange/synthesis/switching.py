"""Bodies in which the switches of a machine copy and add, for machines that have such switches.

What a site holds whole goes to all targets by one multicast. What is held in parts is added by the switch for one of
the targets, which multicasts the sum to the others. Pieces take the targets in turn, so that all ports are equally
busy, and each target reads one piece after another, so that the sums of earlier pieces are on their way meanwhile.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from itertools import count

from einc.exchange.language.exact_cover import CoverBudget, find_cheapest_partition
from einc.exchange.language.program import Action, Aggregate, Program, Requirement, list_targets
from einc.exchange.synthesis.splitting import can_split, find_atom_families, split_atoms
from einc.machines.model import AddingSwitch, Machine, find_adding_switches

_PIECES_OF_A_TARGET = (1, 4, 16)
"""How many pieces each target adds up: sums of earlier ones move while later ones are added."""
MAX_SIMULATED_ACTIONS = 4000
"""Larger bodies are tried neither with switches that add nor without an order: simulating one takes seconds."""


def build_switched_bodies(preamble: Program, machine: Machine) -> Iterator[tuple[Program, dict[str, int]]]:
    """Programs, each with the pieces of the atoms that it cuts; none where no switch joins all sites of a demand."""
    atoms = find_atom_families(preamble)
    widest = max((len(list_targets(preamble, entry)) for entry in preamble.requirements), default=0)
    smallest = min((holding.size for holding in preamble.holdings), default=1)
    pieces = [1, *(rounds * widest for rounds in _PIECES_OF_A_TARGET)] if can_split(preamble) else [1]
    for number in dict.fromkeys(pieces):
        if number > smallest:
            continue
        splits = dict.fromkeys(atoms, number) if number > 1 else {}
        bare = split_atoms(preamble, splits)
        for through_switch in (True, False):
            actions = _build_body(bare, machine, through_switch)
            if actions is not None and len(actions) <= MAX_SIMULATED_ACTIONS:
                yield dataclasses.replace(bare, actions=actions), splits


def _build_body(program: Program, machine: Machine, through_switch: bool) -> tuple[Action, ...] | None:
    """The actions of a body; the reader's own part comes through the switch, or is added in its memory."""
    holders: dict[Aggregate, list[int]] = {}
    for holding in program.holdings:
        holders.setdefault(holding.aggregate, []).extend(holding.sites)
    turns = count()
    last_read: dict[int, Action] = {}
    actions: dict[Action, None] = {}
    for requirement in program.requirements:
        if (steps := _serve(program, machine, requirement, holders, next(turns), through_switch)) is None:
            return None
        for step in steps:
            if step.reads:  # one after another at each site
                before = last_read.get(step.source)
                last_read[step.source] = step
                step = step if before is None else dataclasses.replace(step, after=(before,))
            actions[step] = None
    return tuple(actions)


def _serve(
    program: Program,
    machine: Machine,
    requirement: Requirement,
    holders: dict[Aggregate, list[int]],
    turn: int,
    through_switch: bool,
) -> list[Action] | None:
    """The actions for one requirement; None where no switch joins its sites, or a site would send two parts."""
    aggregate = requirement.aggregate
    complete = holders.get(aggregate, [])
    targets = tuple(sorted(set(list_targets(program, requirement)) - set(complete)))
    if not targets:
        return []
    parts = [(aggregate, complete[turn % len(complete)])] if complete else _choose_parts(aggregate, holders)
    switch = _find_switch(machine, {*targets, *(site for _, site in parts)})
    if switch is None or not parts or len({site for _, site in parts}) < len(parts):
        return None
    if complete:
        return [Action(aggregate, parts[0][1], targets, multicast=True)]
    reader = targets[turn % len(targets)]
    further = tuple(site for site in targets if site != reader)
    away = tuple((part, site) for part, site in parts if site != reader)
    read = tuple(parts) if through_switch or len(away) == len(parts) else away
    steps = [Action(read[0][0], read[0][1], (reader,))] if len(read) == 1 else []
    if not steps:
        total = tuple(sorted(atom for part, _ in read for atom in part))
        steps.append(Action(total, reader, reads=read))
    if further:
        steps.append(Action(aggregate, reader, further, multicast=True))
    elif len(read) < len(parts):
        steps.append(Action(aggregate, reader))
    return steps


def _choose_parts(aggregate: Aggregate, holders: dict[Aggregate, list[int]]) -> list[tuple[Aggregate, int]]:
    """Copies that make up the aggregate, in ascending order of sites, of different sites as far as a first try finds
    such."""
    atoms = set(aggregate)
    candidates = [(part, 1) for part in holders if atoms.issuperset(part)]
    chosen: list[tuple[Aggregate, int]] = []
    used: set[int] = set()
    for part in find_cheapest_partition(aggregate, candidates, CoverBudget()) or ():
        site = next((site for site in holders[part] if site not in used), holders[part][0])
        used.add(site)
        chosen.append((part, site))
    return sorted(chosen, key=lambda copy: copy[1])


def _find_switch(machine: Machine, sites: set[int]) -> AddingSwitch | None:
    return next((switch for switch in find_adding_switches(machine) if switch.joins(sites)), None)
