"""The naive body: every required aggregate is gathered part by part at each of its targets and combined there.

It exists whenever a preamble can be satisfied at all (paper, Section 5.4). Optimized bodies are compared with it.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter

from einc.errors import ProgramError
from einc.exchange.language.checker import explain_not_formed
from einc.exchange.language.closure import State
from einc.exchange.language.exact_cover import CoverBudget, find_cheapest_partition
from einc.exchange.language.printer import format_aggregate
from einc.exchange.language.program import Action, Aggregate, Program, list_targets
from einc.exchange.network import Routing
from einc.machines.model import Machine


def build_naive_body(program: Program, machine: Machine) -> Program:
    """The program with its actions replaced by the naive ones.

    Each missing part of a requirement comes straight from one holder: the one with the widest path (the least
    bandwidth of the resources on it), then the fewest bytes to send so far, then the lowest number. Parts are the
    atoms; where IN holds aggregates, those that leave the fewest parts to send, then the fewest to combine. Raises
    ProgramError where a requirement cannot be met from IN directly.
    """
    holders: dict[Aggregate, list[int]] = {}
    sizes: dict[Aggregate, int] = {}
    for holding in program.holdings:
        holders.setdefault(holding.aggregate, []).extend(holding.sites)
        sizes.setdefault(holding.aggregate, holding.size)
    by_atom: dict[str, list[Aggregate]] = {}
    for aggregate in holders:
        for atom in aggregate:
            by_atom.setdefault(atom, []).append(aggregate)
    present = {(aggregate, site) for aggregate, sites in holders.items() for site in sites}
    ways = Routing(machine, range(len(machine.sites)) if program.gpus is None else program.gpus)
    budget = CoverBudget()
    sends: dict[tuple[Aggregate, int], list[int]] = {}  # aggregate and its holder, or a relay -> destinations
    sent: Counter[int] = Counter()  # bytes by sender
    forms: dict[tuple[Aggregate, int], None] = {}
    required = {
        (requirement.aggregate, site): None
        for requirement in program.requirements
        for site in list_targets(program, requirement)
    }
    for aggregate, site in required:
        if (aggregate, site) in present:
            continue
        for part in _choose_parts(program, aggregate, site, holders, by_atom, ways, budget):
            if (part, site) not in present:
                source = min(
                    (holder for holder in holders[part] if ways.reaches(holder, site)),
                    key=lambda holder: (*ways.rank(holder, site), sent[holder], holder),
                )
                way = ways.find_way(source, site)
                last = max(k for k, at in enumerate(way) if (part, at) in present)
                for sender, receiver in itertools.pairwise(way[last:]):
                    sends.setdefault((part, sender), []).append(receiver)
                    sent[sender] += sizes[part]
                    present.add((part, receiver))
            if part != aggregate:
                forms[aggregate, site] = None
    actions = [Action(part, source, tuple(sorted(sites))) for (part, source), sites in sends.items()]
    actions += [Action(aggregate, site) for aggregate, site in forms]
    return dataclasses.replace(program, actions=tuple(actions))


def _choose_parts(
    program: Program,
    aggregate: Aggregate,
    site: int,
    holders: dict[Aggregate, list[int]],
    by_atom: dict[str, list[Aggregate]],
    ways: Routing,
    budget: CoverBudget,
) -> tuple[Aggregate, ...]:
    """What to combine into `aggregate` at `site`: parts that IN holds there, or somewhere with a way to there."""
    atoms = frozenset(aggregate)
    candidates: dict[Aggregate, int] = {}
    for atom in aggregate:
        for part in by_atom.get(atom, ()):
            if part not in candidates and atoms.issuperset(part):
                if site in holders[part]:
                    candidates[part] = 1
                elif any(ways.reaches(holder, site) for holder in holders[part]):
                    candidates[part] = 1 + len(aggregate)  # sending one more part outweighs combining any number
    parts = find_cheapest_partition(aggregate, list(candidates.items()), budget)
    if parts is None:
        state = State(())
        for part in candidates:
            state.add(part, site)
        name, reason = format_aggregate(aggregate), explain_not_formed(program, state, aggregate, site)
        raise ProgramError(f"{name} cannot be gathered at site {site}: were everything sent there, {reason}")
    return parts
