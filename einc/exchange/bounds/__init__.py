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
from einc.exchange.bounds.fabric import Fabric, fabric_of
from einc.exchange.bounds.flow import flow
from einc.exchange.bounds.outline import demands_of
from einc.exchange.bounds.placement import least
from einc.exchange.bounds.radius import Radius
from einc.exchange.language.program import Partition, Program
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
        fabric = fabric_of(machine, program.gpus)

        def bounded(demands: Demands, pains: bool) -> Certificate:
            return _best(demands, fabric, whole_atoms, thorough and pains)

        return least(program, fabric, bounded, stop)
    bare = Program(program.gpus, program.partitions, program.holdings, program.requirements, ())
    return _best(demands_of(bare), fabric_of(machine, program.gpus), whole_atoms, thorough)


def verify(certificate: Certificate, program: Program, machine: Machine) -> bool:
    """Whether the witness proves the bound, by plain sums; for open partitions, under the memberships that it names."""
    chosen = dict(certificate.memberships)
    partitions = tuple(Partition(one.name, one.size, chosen.get(one.name, one.members)) for one in program.partitions)
    program = Program(program.gpus, partitions, program.holdings, program.requirements, ())
    proved = certificate.witness.worth(demands_of(program), fabric_of(machine, program.gpus))
    return proved >= certificate.bound_ms * (1 - 1e-9)


@lru_cache(maxsize=32)
def _best(demands: Demands, fabric: Fabric, whole_atoms: bool, thorough: bool) -> Certificate:
    """The bound where all is known; compilers and searches ask for it in turns."""
    witnesses: list[Witness | None] = [best_cut(demands, fabric), Counting(), best_combining(demands, fabric)]
    if thorough:
        witnesses.append(flow(demands, fabric))
    if whole_atoms:
        witnesses.append(Radius())
    best: Witness = Nothing()
    worth = 0.0
    for witness in witnesses:  # the simplest argument first: a later one has to prove more
        proved = 0.0 if witness is None else witness.worth(demands, fabric)
        if witness is not None and proved > worth * (1 + 1e-9):
            best, worth = witness, proved
    return Certificate(worth, best.words(demands, fabric), best, isinstance(best, Radius))
