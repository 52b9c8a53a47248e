"""Long bodies of exchange programs, for tests that compare simulators and for the benchmark."""

import dataclasses
import random

from einc.exchange.language.program import Action, Holding, Program, Requirement


def random_body(seed, machine, groups=6, copies=4, pieces=3):
    """All-reduces among random sites along random trees, in pieces, some of which wait for others."""
    draw = random.Random(seed)
    routes = machine.routes
    count = len(machine.sites)
    holdings, requirements, actions = [], [], []
    for group in range(groups):
        members = draw.sample(range(count), copies)
        size = draw.choice([10**6, 3 * 10**6 + 1, 10**7])
        for piece in range(pieces):
            atoms = {site: f"A{group}.{site}.{piece}" for site in members}
            holdings += [Holding((atom,), (site,), size) for site, atom in atoms.items()]
            order = draw.sample(members, len(members))
            gathered = {site: {atoms[site]} for site in members}
            for position, site in enumerate(order[1:], 1):
                above = draw.choice(order[:position])
                gathered[above] = gathered[above] | {atoms[site]}  # what passes through is another's to combine
            flat = order[0]
            for site in order[1:]:
                if (site, flat) in routes:
                    actions.append(Action((atoms[site],), site, (flat,)))
            total = tuple(sorted(atoms.values()))
            targets = tuple(site for site in range(count) if (flat, site) in routes)
            targets = tuple(sorted(draw.sample(targets, min(len(targets), draw.randint(1, 4)))))
            after = (draw.choice(actions),) if actions and draw.random() < 0.5 else ()
            actions.append(Action(total, flat, targets, tuple(Action(*dataclasses.astuple(a)[:3]) for a in after)))
            requirements.append(Requirement(total, targets))
            relay = draw.choice(targets)
            remote_sites = tuple(s for s in range(count) if (relay, s) in routes and s not in (flat, *targets))
            if remote_sites and len(gathered) > 1:
                actions.append(Action(total, relay, remote_sites[: draw.randint(1, 2)]))
    draw.shuffle(actions)
    return Program(None, (), tuple(holdings), tuple(requirements), tuple(dict.fromkeys(actions)))


def long_random_body(machine):
    """More than 500 actions."""
    return random_body(1, machine, groups=34)


def pipelined_rings(machine, pieces=9):
    """An allgather: every site's pieces go round a ring one after the other."""
    count = len(machine.sites)
    holdings, requirements, actions = [], [], []
    for site in range(count):
        for piece in range(pieces):
            atom = (f"A{site}.{piece}",)
            holdings.append(Holding(atom, (site,), 10**9 // pieces))
            requirements.append(Requirement(atom, tuple(range(count))))
            for hop in range(count - 1):
                sender, receiver = (site + hop) % count, (site + hop + 1) % count
                after = (Action((f"A{site}.{piece - 1}",), sender, (receiver,)),) if piece else ()
                actions.append(Action(atom, sender, (receiver,), after))
    return Program(None, (), tuple(holdings), tuple(requirements), tuple(actions))
