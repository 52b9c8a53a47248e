"""A machine as the synthesis sees it: sites that may be used, paths, and the rate of each resource."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from einc.exchange.language.program import Program
from einc.exchange.synthesis.routes import Step, needs
from einc.machines.model import BYTES_PER_MS, MS_PER_US, Machine


class Fabric(NamedTuple):
    """Resources are those of the machine's network, then the HBM of every site; rates in bytes per ms.

    `paths` has the resources of every pair of usable sites that can talk. Latencies in ms.
    """

    sites: tuple[int, ...]
    paths: dict[tuple[int, int], tuple[int, ...]]
    rates: tuple[float, ...]
    first_hbm: int
    transfer_latency: float
    kernel_latency: float

    def crossed(self, step: Step) -> tuple[int, ...]:
        """The resources that a step occupies."""
        if step.source == step.destination:
            return (self.first_hbm + step.source,)
        return self.paths[step.source, step.destination]

    def duration(self, step: Step, size: float) -> float:
        """How long a step takes alone, in ms, its latency included."""
        copies, rate, latency = self.work(step)
        return copies * size / rate + latency

    def work(self, step: Step) -> tuple[int, float, float]:
        """How many copies of a step's bytes pass its slowest resource, at which rate, and its latency."""
        if step.source == step.destination:
            return len(step.of) + 1, self.rates[self.first_hbm + step.source], self.kernel_latency
        return 1, min([self.rates[r] for r in self.paths[step.source, step.destination]]), self.transfer_latency

    def delay(self, steps: Sequence[Step]) -> float:
        """How long a byte takes to the last target, in ms per byte, latencies aside."""
        arrival: dict[tuple[int, int], float] = {}
        for step in steps:
            ready = max(arrival.get(copy, 0.0) for copy in needs(step))
            arrival[step.parts, step.destination] = ready + self.duration(step, 10**9) / 1e9
        return max(arrival.values(), default=0.0)

    def load(self, steps: Sequence[Step]) -> dict[int, float]:
        """Bytes that each resource moves per byte of the aggregate."""
        load: dict[int, float] = {}
        for step in steps:
            traffic = len(step.of) + 1.0 if step.source == step.destination else 1.0
            for resource in self.crossed(step):
                load[resource] = load.get(resource, 0.0) + traffic
        return load


def fabric_of(program: Program, machine: Machine) -> Fabric:
    """The fabric of a machine for a program: its GPUS alone may relay."""
    sites = tuple(sorted(set(range(len(machine.sites)) if program.gpus is None else program.gpus)))
    usable = frozenset(sites)
    paths = {pair: path for pair, path in machine.routes.items() if usable.issuperset(pair)}
    rates = [resource.gbs * BYTES_PER_MS for resource in machine.resources]
    first_hbm = len(rates)
    rates += [site.hbm_gbs * BYTES_PER_MS for site in machine.sites]
    return Fabric(
        sites,
        paths,
        tuple(rates),
        first_hbm,
        machine.transfer_latency_us * MS_PER_US,
        machine.kernel_latency_us * MS_PER_US,
    )
