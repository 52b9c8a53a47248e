"""The programs that the testbed runs: the paper's for the cube mesh, and collectives, naive and synthesized."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from einc.exchange.bounds import bound
from einc.exchange.language.program import Holding, Program, Requirement
from einc.exchange.language.resolve import read_program
from einc.exchange.naive import build_naive_body
from einc.exchange.simulation.simulator import simulate
from einc.exchange.synthesis import SynthesisOptions, synthesize
from einc.machines.model import Machine
from tests.support.exchange_oracle import CUBE_MESH

SITES = range(8)
BASE = 1_000_000


@dataclass(frozen=True, slots=True)
class Case:
    """A program with its simulated time; `splits` is the greatest number of pieces of an atom."""

    name: str
    program: Program
    simulated_ms: float
    splits: int


def cases(machine: Machine, seconds: float, search: float) -> Iterator[Case]:
    """Every preamble with its bodies. Atoms have the size at which no body can end before `seconds`.

    A naive body that would take more than four times as long gets smaller atoms. `search` limits each synthesis, in
    seconds.
    """
    mesh = read_program(CUBE_MESH, machine=machine)
    preambles = {
        "cube mesh": dataclasses.replace(mesh, actions=()),
        "allgather": _collective(lambda s: [(f"A{s}", s)], lambda s: [f"A{t}" for t in SITES]),
        "all-to-all": _collective(
            lambda s: [(f"A{s}{t}", s) for t in SITES if t != s], lambda s: [f"A{t}{s}" for t in SITES if t != s]
        ),
        "broadcast": _collective(lambda s: [("A", 0)] if s == 0 else [], lambda s: ["A"]),
        "gather": _collective(lambda s: [(f"A{s}", s)], lambda s: [f"A{t}" for t in SITES] if s == 0 else []),
        "reduce": _collective(lambda s: [(f"A{s}", s)], lambda s: ["+".join(f"A{t}" for t in SITES)] if s == 0 else []),
        "reduce-scatter": _collective(
            lambda s: [(f"A{s}{t}", s) for t in SITES], lambda s: ["+".join(f"A{t}{s}" for t in SITES)]
        ),
        "all-reduce": _collective(lambda s: [(f"A{s}", s)], lambda s: ["+".join(f"A{t}" for t in SITES)]),
    }
    for name, preamble in preambles.items():
        fitting = _sized(preamble, seconds * 1e3 / bound(_sized(preamble, 1.0), machine).bound_ms)
        if name == "cube mesh":
            paper = dataclasses.replace(fitting, actions=mesh.actions)
            yield Case("cube mesh, the paper's", paper, simulate(paper, machine).completion_ms, 1)
        naive = build_naive_body(fitting, machine)
        slow = simulate(naive, machine).completion_ms / (seconds * 4e3)
        if slow > 1:
            naive = _sized(naive, naive.holdings[0].size / BASE / slow)
        yield Case(f"{name}, naive", naive, simulate(naive, machine).completion_ms, 1)
        found = synthesize(fitting, machine, SynthesisOptions(time_limit=search, iterations=50, max_actions=400))
        pieces = max(found.splits.values(), default=1)
        yield Case(f"{name}, synthesized", found.program, found.completion_ms, pieces)


def _collective(held: Callable[[int], list[tuple[str, int]]], wanted: Callable[[int], list[str]]) -> Program:
    holdings = tuple(Holding((atom,), (site,), BASE) for s in SITES for atom, site in held(s))
    requirements = tuple(Requirement(tuple(sorted(name.split("+"))), (s,)) for s in SITES for name in wanted(s))
    return Program(None, (), holdings, requirements, ())


def _sized(program: Program, factor: float) -> Program:
    """All atoms of BASE bytes times a factor."""
    size = max(1, round(BASE * factor))
    return dataclasses.replace(program, holdings=tuple(dataclasses.replace(one, size=size) for one in program.holdings))
