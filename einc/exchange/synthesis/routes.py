"""Routes: how one piece of a demand travels, as steps over sites, apart from any names or times.

A step forms or sends a *part set*, a bit mask over the parts of the demand's shape.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from einc.exchange.network import Network
from einc.exchange.synthesis.demands import Shape


class Step(NamedTuple):
    """Send `parts` from `source` to `destination`; where they are equal, form it there of the sets in `of`."""

    parts: int
    source: int
    destination: int
    of: tuple[int, ...] = ()


Route = tuple[Step, ...]
"""Steps in an order in which each finds what it needs, each copy arriving once, every copy needed."""


@lru_cache(maxsize=1 << 14)
def tidy(shape: Shape, steps: tuple[Step, ...]) -> Route | None:
    """The steps as a route: reordered, without those that bring what is there or what nobody needs.

    None where they do not meet the shape's targets. Prices that change little lead to the same steps again and again.
    """
    held = {(1 << part, site) for part, sites in enumerate(shape.holders) for site in sites}
    waiting = list(dict.fromkeys(steps))
    fired: list[Step] = []
    while waiting:
        later = []
        before = len(fired)
        for step in waiting:
            if all(copy in held for copy in needs(step)):
                if (step.parts, step.destination) not in held:
                    held.add((step.parts, step.destination))
                    fired.append(step)
            else:
                later.append(step)
        if len(fired) == before and len(later) == len(waiting):
            break
        waiting = later
    full = (1 << len(shape.holders)) - 1
    wanted = {(full, site) for site in shape.targets}
    if not wanted <= held:
        return None
    kept: list[Step] = []
    for step in reversed(fired):
        if (step.parts, step.destination) in wanted:
            kept.append(step)
            wanted.update(needs(step))
    return tuple(reversed(kept))


def needs(step: Step) -> Sequence[tuple[int, int]]:
    """The copies that a step needs, as (part set, site)."""
    return [(part, step.source) for part in step.of or (step.parts,)]


def list_crossed(step: Step, network: Network) -> tuple[int, ...]:
    """The resources that a step occupies."""
    if step.source == step.destination:
        return (network.first_hbm + step.source,)
    return network.paths[step.source, step.destination]


def measure_step(step: Step, network: Network) -> tuple[int, float, float]:
    """How many copies of a step's bytes pass its slowest resource, at which rate, and its latency."""
    if step.source == step.destination:
        return len(step.of) + 1, network.hbm_rate(step.source), network.kernel_latency
    rate = min([network.rates[resource] for resource in network.paths[step.source, step.destination]])
    return 1, rate, network.transfer_latency


def compute_duration(step: Step, size: float, network: Network) -> float:
    """How long a step takes alone, in ms, its latency included."""
    copies, rate, latency = measure_step(step, network)
    return copies * size / rate + latency


def compute_delay(steps: Sequence[Step], network: Network) -> float:
    """How long a byte takes to the last target, in ms per byte, latencies aside."""
    arrival: dict[tuple[int, int], float] = {}
    for step in steps:
        ready = max(arrival.get(copy, 0.0) for copy in needs(step))
        arrival[step.parts, step.destination] = ready + compute_duration(step, 10**9, network) / 1e9
    return max(arrival.values(), default=0.0)


def compute_load(steps: Sequence[Step], network: Network) -> dict[int, float]:
    """Bytes that each resource moves per byte of the aggregate."""
    load: dict[int, float] = {}
    for step in steps:
        traffic = len(step.of) + 1.0 if step.source == step.destination else 1.0
        for resource in list_crossed(step, network):
            load[resource] = load.get(resource, 0.0) + traffic
    return load
