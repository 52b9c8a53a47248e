"""Lower bounds on the completion time of exchange programs, with witnesses that can be checked (paper, Section 5.4).

A bound depends on the preamble alone and holds for every valid body, whether it splits atoms or not. `cut.py`,
`closed_form.py`, `flow.py` and `priced.py` prove bounds, and `memberships.py` searches open memberships for the least
one.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

from einc.exchange.bounds.closed_form import CountingWitness, RadiusWitness, find_best_combining
from einc.exchange.bounds.cut import find_best_cut
from einc.exchange.bounds.demands import Certificate, DemandSet, Witness, ZeroWitness, collect_demands
from einc.exchange.bounds.flow import MAX_FLOW_SITES as MAX_FLOW_SITES
from einc.exchange.bounds.flow import solve_flow
from einc.exchange.bounds.memberships import bound_over_memberships
from einc.exchange.bounds.priced import solve_priced_flow
from einc.exchange.language.program import Partition, Program
from einc.exchange.network import Network, build_network
from einc.machines.model import Machine

__all__ = ["Certificate", "bound", "verify"]

BOUND_ROUNDING = 1e-9
"""Bounds that differ by this part are equal: they are sums of doubles."""


def bound(
    program: Program,
    machine: Machine,
    whole_atoms: bool = False,
    thorough: bool = True,
    stop: Callable[[], bool] = lambda: False,
    *,
    switches: bool = False,
    enough_ms: float = math.inf,
) -> Certificate:
    """The best lower bound that is known for the program's preamble; its actions do not matter.

    Partitions without members are open: the bound is the least over all memberships. With `whole_atoms` it holds only
    for bodies that split no atom. Without `thorough` the linear program is left out, and also where a simpler bound
    proves `enough_ms`: what a valid body takes, or what is worth knowing. The search of memberships ends with what it
    has proved where `stop` says so. With `switches` it holds for bodies whose switches copy and
    add, too: then only cuts are proved, and for any membership. Raises ProgramError where a requirement cannot be met.
    """
    if switches:
        bare = Program(program.gpus, program.partitions, program.holdings, program.requirements, ())
        return _prove_cut(collect_demands(bare), build_network(machine, program.gpus))

    network = build_network(machine, program.gpus)

    def prove(demands: DemandSet, solve: bool) -> Certificate:
        solve = solve and thorough
        if solve and enough_ms < math.inf:
            simple = _find_best(demands, network, whole_atoms, False)
            if simple.bound_ms >= enough_ms * (1 - BOUND_ROUNDING):
                return simple
        return _find_best(demands, network, whole_atoms, solve)

    if any(partition.members is None for partition in program.partitions):
        return bound_over_memberships(program, network, prove, stop, enough_ms)
    bare = Program(program.gpus, program.partitions, program.holdings, program.requirements, ())
    return prove(collect_demands(bare), True)


def verify(certificate: Certificate, program: Program, machine: Machine) -> bool:
    """Whether the witness proves the bound, by plain sums; for open partitions, under the memberships that it names."""
    chosen = dict(certificate.memberships)
    partitions = tuple(
        Partition(partition.name, partition.size, chosen.get(partition.name, partition.members))
        for partition in program.partitions
    )
    program = Program(program.gpus, partitions, program.holdings, program.requirements, ())
    proved = certificate.witness.proved_ms(collect_demands(program), build_network(machine, program.gpus))
    return proved >= certificate.bound_ms * (1 - BOUND_ROUNDING)


def _prove_cut(demands: DemandSet, network: Network) -> Certificate:
    """The best cut. It holds where switches copy and add: whatever enters a set of sites, added up or not, crosses all
    that a pair of a site outside and one inside crosses, and raises the rank of what is held inside by one at most. The
    other bounds count transfers, or the traffic of combining, which such switches save."""
    witness = find_best_cut(demands, network) or ZeroWitness()
    return Certificate(witness.proved_ms(demands, network), witness.explain(demands, network), witness)


@lru_cache(maxsize=64)
def _find_best(demands: DemandSet, network: Network, whole_atoms: bool, thorough: bool) -> Certificate:
    """The best bound of demands whose sites are known. Results are kept, as many are asked for again."""
    witnesses: list[Witness | None] = [
        find_best_cut(demands, network),
        CountingWitness(),
        find_best_combining(demands, network),
    ]
    if thorough:
        solve = solve_flow if len(network.sites) <= MAX_FLOW_SITES else solve_priced_flow
        witnesses.append(solve(demands, network))
    if whole_atoms:
        witnesses.append(RadiusWitness())
    best: Witness = ZeroWitness()
    best_ms = 0.0
    for witness in witnesses:  # the simplest argument first: a later one has to prove more
        proved = 0.0 if witness is None else witness.proved_ms(demands, network)
        if witness is not None and proved > best_ms * (1 + BOUND_ROUNDING):
            best, best_ms = witness, proved
    return Certificate(best_ms, best.explain(demands, network), best, isinstance(best, RadiusWitness))
