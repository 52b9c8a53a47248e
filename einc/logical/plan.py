"""The logical plan: one join-agg spec for every abstract operator, and what the cost proxy says of it."""

from __future__ import annotations

from dataclasses import dataclass

from einc.core.intervals import Intervals
from einc.core.spec import JoinAggSpec
from einc.core.tiling import Tiling
from einc.graph.graph import Graph


@dataclass(frozen=True, slots=True)
class Candidate:
    """One join-agg spec that an operator offers, with the sub-costs (in elements) that depend on it alone."""

    intervals: Intervals
    spec: JoinAggSpec
    join: int
    aggregation: int
    input_tilings: tuple[Tiling, ...]
    output_tilings: tuple[Tiling, ...]


@dataclass(frozen=True, slots=True)
class Choice:
    """The candidate chosen for a node, and the repartition sub-cost (in elements) that its neighbours cause."""

    node: str
    candidate: Candidate
    repartition: int

    @property
    def cost(self) -> int:
        return self.repartition + self.candidate.join + self.candidate.aggregation


@dataclass(frozen=True, slots=True)
class LogicalPlan:
    """Choices in the graph's order of nodes.

    `exact` says that no plan over the same candidates costs less; `cut_cost` is the paper's cut heuristic's cost.
    """

    graph: Graph
    sites: int
    selector: str
    choices: tuple[Choice, ...]
    exact: bool
    cut_cost: int

    @property
    def total_cost(self) -> int:
        return sum(choice.cost for choice in self.choices)
