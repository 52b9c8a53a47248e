"""The machine file of a testbed by measurement: the rate of every resource, latencies, and how fast numpy adds.

Everything is measured with exchange programs on the executor that is later compared with the simulator. The rate of a
link is that of one large transfer while all other links are busy too.
"""

from __future__ import annotations

import itertools
import statistics

from einc.exchange.language.program import Action, Aggregate, Holding, Program, Requirement
from einc.machines.model import Machine, Pair, Resource, Site

from .executor import Executor

SECONDS = 3.0
"""How long a link is measured."""

_TIMES = 2
"""How often a link is measured. Other work of the computer can only make it look slower, so the faster time counts."""

_ROUNDS = 24
_SMALL = 1000
_LARGE = 16_000_000


def measured_machine(executor: Executor, nominal: Machine, mbits: float) -> Machine:
    """The nominal machine, whose GB/s stand for `mbits` Mbit/s each, with measured rates in real GB/s."""
    links = [position for position, one in enumerate(nominal.resources) if len(one.pairs) == 1]
    groups = [links] + [[position] for position in range(len(nominal.resources)) if position not in links]
    rates: dict[int, float] = {}
    latencies = []
    for group in groups * _TIMES:
        for position, rate in _rates(executor, nominal, group, mbits).items():
            rates[position] = max(rate, rates.get(position, 0.0))
        latencies.append(_transfer_latency(executor, next(iter(nominal.routes))))
    transfer_ms = statistics.median(latencies)
    kernel_ms = _addition(executor, len(nominal.sites), _SMALL)
    hbm = 3 * _LARGE / max(1e-3, _addition(executor, len(nominal.sites), _LARGE) - kernel_ms) / 1e6
    resources = [
        Resource(one.name, _digits(rates[position]), one.pairs) for position, one in enumerate(nominal.resources)
    ]
    sites = (Site(_digits(hbm), 2**30),) * len(nominal.sites)
    return Machine("testbed", sites, tuple(resources), _digits(transfer_ms * 1e3), _digits(kernel_ms * 1e3))


def _rates(executor: Executor, nominal: Machine, positions: list[int], mbits: float) -> dict[int, float]:
    """GB/s of resources that are busy at the same time, each of its pairs with one transfer."""
    pairs = [(position, pair) for position in positions for pair in nominal.resources[position].pairs]
    sizes = {}
    for position in positions:
        one = nominal.resources[position]
        sizes[position] = int(one.gbs * mbits * 1e6 / 8 * SECONDS / len(one.pairs))
    moves = [(pair, sizes[position]) for position, pair in pairs]
    runs = executor.execute(_transfers(moves)).runs
    last: dict[int, float] = {}
    for (position, _), run in zip(pairs, runs, strict=True):
        last[position] = max(last.get(position, 0.0), run.end)
    return {
        position: sizes[position] * len(nominal.resources[position].pairs) / end / 1e6 for position, end in last.items()
    }


def _transfer_latency(executor: Executor, pair: Pair) -> float:
    """Milliseconds from the end of a transfer to that of a tiny one that waits for it."""
    program = _transfers([(pair, _SMALL)] * _ROUNDS)
    chain = [program.actions[0]]
    for action in program.actions[1:]:
        before = chain[-1]
        chain.append(Action(action.aggregate, action.source, action.destinations, (_plain(before),)))
    runs = executor.execute(_with(program, chain)).runs
    return statistics.median(after.end - before.end for before, after in itertools.pairwise(runs))


def _addition(executor: Executor, sites: int, size: int) -> float:
    """Milliseconds that a site takes to add two arrays, the median over sites, one after the other."""
    names = [("A", "B", f"{site:02d}") for site in range(sites)]
    holdings, requirements, actions = [], [], list[Action]()
    for site, (a, b, number) in enumerate(names):
        whole: Aggregate = (a + number, b + number)
        holdings += [Holding((atom,), (site,), size) for atom in whole]
        requirements.append(Requirement(whole, (site,)))
        actions.append(Action(whole, site, (), (_plain(actions[-1]),) if actions else ()))
    runs = executor.execute(Program(None, (), tuple(holdings), tuple(requirements), tuple(actions))).runs
    return statistics.median(run.formed - run.start for run in runs)


def _transfers(moves: list[tuple[Pair, int]]) -> Program:
    """One atom of its own for each move from a site to another."""
    holdings = tuple(Holding((f"A{k:03d}",), (pair[0],), size) for k, (pair, size) in enumerate(moves))
    requirements = tuple(Requirement((f"A{k:03d}",), (pair[1],)) for k, (pair, _) in enumerate(moves))
    actions = tuple(Action((f"A{k:03d}",), pair[0], (pair[1],)) for k, (pair, _) in enumerate(moves))
    return Program(None, (), holdings, requirements, actions)


def _with(program: Program, actions: list[Action]) -> Program:
    return Program(program.gpus, program.partitions, program.holdings, program.requirements, tuple(actions))


def _plain(action: Action) -> Action:
    return Action(action.aggregate, action.source, action.destinations)


def _digits(value: float) -> float:
    """Four significant digits; measurements are not more exact."""
    return float(f"{value:.4g}")
