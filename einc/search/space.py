"""The plans that a search looks at."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from einc.core.tensor import Array
from einc.graph.graph import Graph
from einc.logical.optimize import build_choices
from einc.logical.plan import Candidate, LogicalPlan
from einc.logical.problem import Problem
from einc.machines.model import Machine
from einc.options import FASTEST
from einc.search.orders import Order, reorder_graph
from einc.search.tables import KnownTimes, TimeProblem, build_time_problems
from einc_runtime.plan.schema import InputPlacement

Assignment = tuple[int, ...]
"""The number of a candidate for every node, in the order of the graph."""


@dataclass(frozen=True, slots=True, eq=False)
class SearchSpace:
    """The plans of `graph` with the candidates of `problem`, on sites 0, 1, ... of `machine`.

    `input_placement` says where inputs and weights lie before the clock starts. `known` has the times that tables of
    its candidates were made of.
    """

    graph: Graph
    problem: Problem
    machine: Machine
    sites: int
    input_placement: InputPlacement
    known: KnownTimes = field(default_factory=KnownTimes, repr=False)

    @property
    def once(self) -> bool:
        """Whether no block of an input or weight lies on several sites before the clock starts."""
        return self.input_placement == "once"

    def build_time_problems(self) -> tuple[TimeProblem, TimeProblem]:
        """The time tables with naive and with synthesized exchanges; every node is a variable."""
        return build_time_problems(
            self.graph, self.problem.candidates, self.machine, self.sites, once=self.once, known=self.known
        )

    def select(self, kept: Sequence[Array]) -> SearchSpace:
        """The space with the candidates at positions `kept` of every node; nodes that shared theirs still do."""
        known: dict[int, tuple[Candidate, ...]] = {}
        for options, positions in zip(self.problem.candidates, kept, strict=True):
            if id(options) not in known:
                known[id(options)] = tuple(options[i] for i in positions)
        candidates = tuple(known[id(options)] for options in self.problem.candidates)
        return replace(self, problem=self.problem.select(candidates, kept))

    def leaves_idle(self, assignment: Sequence[int]) -> bool:
        """Whether an operator has fewer function specifications than there are sites, so that `spread` matters."""
        pairs = zip(self.problem.candidates, assignment, strict=True)
        return any(len(options[c].functions) < self.sites for options, c in pairs)

    def make_plan(self, assignment: Assignment, order: Order, spread: bool) -> LogicalPlan:
        """The logical plan with these candidates, and with the operators in that order."""
        choices = build_choices(self.graph, self.problem, assignment)
        return LogicalPlan(
            reorder_graph(self.graph, order),
            self.sites,
            FASTEST,
            tuple(choices[n] for n in order),
            exact=False,
            cut_cost=0,
            spread=spread,
            input_placement=self.input_placement,
        )

    def find_assignment(self, plan: LogicalPlan) -> Assignment:
        """The numbers that the candidates of a plan have here. Raises StopIteration if one of them is not here."""
        pairs = zip(self.problem.candidates, plan.choices, strict=True)
        return tuple(
            next(
                i
                for i, candidate in enumerate(options)
                if candidate is choice.candidate or candidate == choice.candidate
            )
            for options, choice in pairs
        )
