"""Lower bounds on the completion time of exchange programs, with witnesses that can be checked (paper, Section 5.4).

A bound depends on the preamble alone and holds for every valid body, atoms split or not: `cut.py`, `counting.py`,
`flow.py` and `combining.py` each prove one, `radius.py` one for bodies that split nothing, and `placement.py` searches
open memberships.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from einc.exchange.bounds.certificate import Certificate, Nothing, Witness
from einc.exchange.bounds.combining import best_combining
from einc.exchange.bounds.counting import Counting
from einc.exchange.bounds.cut import best_cut
from einc.exchange.bounds.demand import Demands
from einc.exchange.bounds.flow import flow
from einc.exchange.bounds.outline import demands_of
from einc.exchange.bounds.placement import least
from einc.exchange.bounds.radius import Radius
from einc.exchange.language.program import Partition, Program
from einc.exchange.network import Network, build_network
from einc.machines.model import Machine

__all__ = ["Certificate", "bound", "verify"]


def bound(
    program: Program,
    machine: Machine,
    whole_atoms: bool = False,
    thorough: bool = True,
    stop: Callable[[], bool] = lambda: False,
) -> Certificate:
    """The best lower bound that is known for the program's preamble; its actions do not matter.

    Partitions without members are open: the bound is the least over all memberships. With `whole_atoms` it holds only
    for bodies that split no atom. Without `thorough` the linear program is left out. The search of memberships
    ends with what it has proved where `stop` says so. Raises ProgramError where a requirement cannot be met.
    """
    if any(partition.members is None for partition in program.partitions):
        network = build_network(machine, program.gpus)

        def bounded(demands: Demands, pains: bool) -> Certificate:
            return _best(demands, network, whole_atoms, thorough and pains)

        return least(program, network, bounded, stop)
    bare = Program(program.gpus, program.partitions, program.holdings, program.requirements, ())
    return _best(demands_of(bare), build_network(machine, program.gpus), whole_atoms, thorough)


def verify(certificate: Certificate, program: Program, machine: Machine) -> bool:
    """Whether the witness proves the bound, by plain sums; for open partitions, under the memberships that it names."""
    chosen = dict(certificate.memberships)
    partitions = tuple(Partition(one.name, one.size, chosen.get(one.name, one.members)) for one in program.partitions)
    program = Program(program.gpus, partitions, program.holdings, program.requirements, ())
    proved = certificate.witness.worth(demands_of(program), build_network(machine, program.gpus))
    return proved >= certificate.bound_ms * (1 - 1e-9)


@lru_cache(maxsize=32)
def _best(demands: Demands, network: Network, whole_atoms: bool, thorough: bool) -> Certificate:
    """The bound where all is known; compilers and searches ask for it in turns."""
    witnesses: list[Witness | None] = [best_cut(demands, network), Counting(), best_combining(demands, network)]
    if thorough:
        witnesses.append(flow(demands, network))
    if whole_atoms:
        witnesses.append(Radius())
    best: Witness = Nothing()
    worth = 0.0
    for witness in witnesses:  # the simplest argument first: a later one has to prove more
        proved = 0.0 if witness is None else witness.worth(demands, network)
        if witness is not None and proved > worth * (1 + 1e-9):
            best, worth = witness, proved
    return Certificate(worth, best.words(demands, network), best, isinstance(best, Radius))
