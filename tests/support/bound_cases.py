"""Exchanges by their preambles alone, and the machine without the connection of its halves."""

from einc.exchange.language.program import Holding, Program, Requirement
from einc.machines.model import Machine

GB = 10**9


ALL = tuple(range(8))


def preamble(holdings, requirements, gpus=None):
    return Program(
        gpus,
        (),
        tuple(Holding(tuple(name.split("+")), sites, size) for name, sites, size in holdings),
        tuple(Requirement(tuple(name.split("+")), targets) for name, targets in requirements),
        (),
    )


COLLECTIVES = {
    "allgather": preamble([(f"A{s}", (s,), GB) for s in ALL], [(f"A{s}", ALL) for s in ALL]),
    "all-to-all": preamble(
        [(f"A{s}{d}", (s,), GB) for s in ALL for d in ALL], [(f"A{s}{d}", (d,)) for s in ALL for d in ALL]
    ),
    "broadcast": preamble([("A", (0,), GB)], [("A", ALL)]),
    "gather": preamble([(f"A{s}", (s,), GB) for s in ALL], [(f"A{s}", (0,)) for s in ALL]),
    "reduce-scatter": preamble(
        [(f"A{s}{d}", (s,), GB // 8) for s in ALL for d in ALL],
        [("+".join(f"A{s}{d}" for s in ALL), (d,)) for d in ALL],
    ),
    "all-reduce": preamble([(f"A{s}", (s,), GB) for s in ALL], [("+".join(f"A{s}" for s in ALL), ALL)]),
}


def without_bridge(machine):
    links = tuple(resource for resource in machine.resources if len(resource.pairs) == 1)
    return Machine(machine.name, machine.sites, links)
