"""Independent implementations to compare `einc.exchange` with: slow, exact, and written from the definitions."""

from __future__ import annotations

import itertools
from fractions import Fraction
from pathlib import Path

from hypothesis import strategies as st

from einc.exchange.language.program import Action, Holding, Program, Requirement
from einc.machines.model import Machine, Resource, Site

EXCHANGES = Path(__file__).parents[2] / "models" / "exchanges"
SWAP, DOUBLING, CUBE_MESH = (
    (EXCHANGES / f"{name}.exprog").read_text() for name in ("swap", "recursive-doubling", "cube-mesh")
)
PREAMBLE = """
GPUS: 0, 1, 2, 3
PARTITIONS: S1 {size 1} S2 {size 1}
            S3 {size 1} S4 {size 1}
IN:  X1 @ 0; X2 @ 0; Y1 @ 1; Y2 @ 1;
     X3 @ 2; X4 @ 2; Y3 @ 3; Y4 @ 3
OUT: X1+Y1 @ S1; X2+Y2 @ S2;
     X3+Y3 @ S3; X4+Y4 @ S4
"""


def partitions_into(target, parts):
    """All sets of pairwise disjoint parts (frozensets) whose union is the target."""
    if not target:
        yield ()
        return
    first = min(target)
    for part in parts:
        if first in part and part <= target:
            for remaining in partitions_into(target - part, parts):
                yield (part, *remaining)


def fewest(state, aggregate, site):
    """The least number of copies at the site that make up the aggregate; None where none do."""
    held = [held for held, where in state if where == site]
    return min(map(len, partitions_into(frozenset(aggregate), held)), default=None)


def brute_closure(program):
    """Definition 7, fired one action after the other until nothing changes; aggregates as frozensets."""
    state = {(frozenset(holding.aggregate), site) for holding in program.holdings for site in holding.sites}
    while True:
        before = len(state)
        for action in program.actions:
            if fewest(state, action.aggregate, action.source) is not None:
                state |= {(frozenset(action.aggregate), s) for s in (action.source, *action.destinations)}
        if len(state) == before:
            return state


def brute_rates(flows, machine):
    """Max-min fair rates in GB/s of flows given as pairs, exactly: raise all by the largest common step, repeat."""
    rate = dict.fromkeys(flows, Fraction(0))
    rising = set(flows)
    while rising:
        step = None
        for resource in machine.resources:
            crossing = [flow for flow in flows if flow[1:] in resource.pairs]
            moving = [flow for flow in crossing if flow in rising]
            if moving:
                room = (Fraction(resource.gbs) - sum(rate[flow] for flow in crossing)) / len(moving)
                step = room if step is None else min(step, room)
        for flow in rising:
            rate[flow] += step
        for resource in machine.resources:
            crossing = [flow for flow in flows if flow[1:] in resource.pairs]
            if crossing and sum(rate[flow] for flow in crossing) == Fraction(resource.gbs):
                rising -= set(crossing)
    return rate


def brute_simulate(program, machine):
    """(start, number of parts, end) in exact milliseconds of every action, by the rules of the documentation."""
    actions = list(program.actions)
    size = {atom: holding.size for holding in program.holdings for atom in holding.aggregate}
    names = [(a.aggregate, a.source, a.destinations) for a in actions]
    state = {(frozenset(holding.aggregate), site) for holding in program.holdings for site in holding.sites}
    start, parts, end = {}, {}, {}
    traffic, latency, flows = {}, {}, {}  # bytes left per action; ms left per action; bytes left per (action, s, d)
    clock = Fraction(0)
    mega = Fraction(10) ** 6
    hop, launch = (Fraction(us) / 1000 for us in (machine.transfer_latency_us, machine.kernel_latency_us))

    def depart(k):
        del latency[k]
        for site in actions[k].destinations:
            flows[k, actions[k].source, site] = Fraction(size[actions[k].aggregate[0]])

    def formed(k):
        latency[k] = hop
        if not actions[k].destinations:
            del latency[k]
            end[k] = clock
        elif not hop:
            depart(k)

    while True:
        progress = True
        while progress:
            progress = False
            for k, action in enumerate(actions):
                names_awaited = {(w.aggregate, w.source, w.destinations) for w in action.after}
                if k in start or any(j not in end for j, name in enumerate(names) if name in names_awaited):
                    continue
                count = fewest(state, action.aggregate, action.source)
                if count is None:
                    continue
                progress, start[k], parts[k] = True, clock, count
                if count == 1:
                    formed(k)
                else:
                    hbm = Fraction(machine.sites[action.source].sustained_gbs) * mega
                    traffic[k] = (count + 1) * size[action.aggregate[0]] + launch * hbm
        if not (traffic or latency or flows):
            return start, parts, end
        speed = {}
        for k in traffic:
            sharing = sum(actions[j].source == actions[k].source for j in traffic)
            speed[k] = Fraction(machine.sites[actions[k].source].sustained_gbs) * mega / sharing
        rates = {flow: rate * mega for flow, rate in brute_rates(list(flows), machine).items()}
        step = min(
            [traffic[k] / speed[k] for k in traffic] + list(latency.values()) + [flows[f] / rates[f] for f in flows]
        )
        clock += step
        for k in traffic:
            traffic[k] -= speed[k] * step
        for k in latency:
            latency[k] -= step
        for f in flows:
            flows[f] -= rates[f] * step
        over = [k for k in latency if not latency[k]]
        for f in [f for f in flows if not flows[f]]:
            del flows[f]
            state.add((frozenset(actions[f[0]].aggregate), f[2]))
            if not any(running[0] == f[0] for running in flows):
                end[f[0]] = clock
        for k in [k for k in traffic if not traffic[k]]:
            del traffic[k]
            state.add((frozenset(actions[k].aggregate), actions[k].source))
            formed(k)
        for k in over:
            depart(k)


def random_machine(draw, sites):
    """A machine on which every pair can talk: links of several speeds, a shared path for the rest, maybe a switch."""
    pairs = list(itertools.permutations(range(sites), 2))
    resources = []
    if draw(st.booleans()):
        linked = draw(st.sets(st.sampled_from(pairs))) if pairs else set()
        resources += [
            Resource(f"{a}>{b}", draw(st.sampled_from([3.0, 7.0, 11.0])), ((a, b),)) for a, b in sorted(linked)
        ]
        unlinked = tuple(pair for pair in pairs if pair not in linked)
        resources += [Resource("shared", 5.0, unlinked)] if unlinked else []
    else:
        for site in range(sites):
            out, into = (draw(st.sampled_from([4.0, 9.0])) for _ in range(2))
            resources.append(Resource(f"out {site}", out, tuple(pair for pair in pairs if pair[0] == site)))
            resources.append(Resource(f"in {site}", into, tuple(pair for pair in pairs if pair[1] == site)))
    speeds = [draw(st.sampled_from([13.0, 29.0])) for _ in range(sites)]
    latencies = draw(st.sampled_from([(0.0, 0.0), (4.0, 2.0)]))
    return Machine("random", tuple(Site(speed, 2**30) for speed in speeds), tuple(resources), *latencies)


@st.composite
def machines_and_programs(draw, waits=True, most_actions=10):
    """A machine, and a valid program: actions are drawn one after the other so that each is enabled when drawn."""
    sites = draw(st.integers(2, 4))
    machine = random_machine(draw, sites)
    family = {}  # atoms that may be combined have one size
    holdings = []
    for k in range(draw(st.integers(1, 5))):
        atom = f"A{k}"
        family[atom] = draw(st.sampled_from([1000, 7000]))
        where = draw(st.sets(st.integers(0, sites - 1), min_size=1, max_size=2))
        holdings.append(Holding((atom,), tuple(sorted(where)), family[atom]))
    if draw(st.booleans()):
        size = draw(st.sampled_from([1000, 7000]))
        atoms = tuple(atom for atom in sorted(family) if family[atom] == size)[:3]
        if len(atoms) > 1:
            holdings.append(Holding(atoms, (draw(st.integers(0, sites - 1)),), size))
    state = {(frozenset(holding.aggregate), site) for holding in holdings for site in holding.sites}
    actions = []
    for _ in range(draw(st.integers(0, most_actions))):
        site = draw(st.integers(0, sites - 1))
        held = sorted((held for held, where in state if where == site), key=sorted)
        if not held:
            continue
        total = frozenset()
        for part in draw(st.permutations(held)):
            same = not total or family[min(part)] == family[min(total)]
            if total.isdisjoint(part) and same and (not total or draw(st.booleans())):
                total |= part
        remote_sites = [remote for remote in range(sites) if remote != site]
        destinations = tuple(sorted(draw(st.sets(st.sampled_from(remote_sites)))))
        after = ()
        if waits and actions and draw(st.booleans()):
            awaited = draw(st.sampled_from(actions))
            after = (Action(awaited.aggregate, awaited.source, awaited.destinations),)
        name = (tuple(sorted(total)), site, destinations)
        if name not in [(a.aggregate, a.source, a.destinations) for a in actions]:
            actions.append(Action(*name, after))
            state |= {(total, where) for where in (site, *destinations)}
    required = draw(
        st.lists(st.sampled_from(sorted(state, key=lambda c: (sorted(c[0]), c[1]))), min_size=1, unique=True)
    )
    requirements = tuple(Requirement(tuple(sorted(held)), (site,)) for held, site in required)
    order = draw(st.permutations(actions))
    gpus = draw(st.sampled_from([None, tuple(range(sites))]))
    return machine, Program(gpus, (), tuple(holdings), requirements, tuple(order))
