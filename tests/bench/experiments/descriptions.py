"""The experiments: which plans each of them asks for."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

from tests.bench.experiments.configurations import (
    BLOCKS,
    CHAINS,
    OBJECTIVES,
    PLACEMENTS,
    WORKLOADS,
    Configuration,
)

SITES = (1, 4, 8)
DRAWS = 20
KNOWN = ("data", "sequence", "megatron")
"""Well-known plans of the block, as one writes them by hand; the paper's PyTorch is the faster of the first two."""

MACHINES = ("dgx-v100", "dgx-a100")
SCHEDULES = ("naive", "synthesized")


@dataclass(frozen=True, slots=True)
class Experiment:
    """One of the paper's experiments, and every plan that its tables and its plot show."""

    number: int
    title: str
    configurations: tuple[Configuration, ...]

    @property
    def name(self) -> str:
        """Of its files."""
        return f"experiment-{self.number}"


def describe_experiments(draws: int = DRAWS) -> tuple[Experiment, ...]:
    """Experiments 1 to 5 with so many random plans for each workload and placement."""
    drawn = tuple(
        Configuration(workload, placement=placement, selector="random", schedule=schedule, seed=seed)
        for schedule, seed, placement, workload in product(SCHEDULES, range(draws), PLACEMENTS, WORKLOADS)
    )
    selected = tuple(
        Configuration(workload, placement=placement, selector=selector, schedule=schedule)
        for schedule, placement, workload, selector in product(
            SCHEDULES, PLACEMENTS, WORKLOADS, (*OBJECTIVES, "greedy")
        )
    )
    known = tuple(
        Configuration(workload, placement=placement, selector=name)
        for placement, workload, name in product(PLACEMENTS, BLOCKS, KNOWN)
    )
    exchanged = tuple(
        Configuration(workload, machine, 8, placement, selector, schedule)
        for machine, placement, workload, selector, schedule in product(
            MACHINES, PLACEMENTS, WORKLOADS, OBJECTIVES, SCHEDULES
        )
    )
    return (
        Experiment(1, "the transformer block on 1, 4 and 8 sites", (*_on_sites(BLOCKS), *known)),
        Experiment(2, "matrix chains on 1, 4 and 8 sites", _on_sites(CHAINS)),
        Experiment(3, "plans chosen by cost, greedily and at random", (*selected, *drawn)),
        Experiment(4, "synthesized and naive exchanges", exchanged),
        Experiment(5, "cost against time of random plans", drawn),
    )


def _on_sites(workloads: tuple[str, ...]) -> tuple[Configuration, ...]:
    return tuple(
        Configuration(workload, sites=sites, placement=placement, selector=selector)
        for placement, workload, selector, sites in product(PLACEMENTS, workloads, OBJECTIVES, SITES)
    )
