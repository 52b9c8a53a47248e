"""What a search is asked, and all that follows from it before a plan is built."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from einc.graph.graph import Graph
from einc.graph.layers import Folded
from einc.logical.optimize import choose_by_cuts, optimize
from einc.logical.pins import Pin, select_pins
from einc.logical.plan import LogicalPlan
from einc.logical.problem import build_problem, connect
from einc.machines.model import Machine
from einc.machines.site_counts import MANY_SITES
from einc.search.evaluation import EvaluatedPlan, OmittedLayersCost
from einc.search.exchange_times import has_equal_links
from einc.search.folding import fold_pinned
from einc.search.initial_plans import MIN_IMPROVED, Starts, keep_worthwhile, list_known_starts
from einc.search.memory import Sizes, charge_layers, measure_sizes
from einc.search.neighbours import sum_times
from einc.search.space import SearchSpace
from einc.search.tables import UNITS_PER_MS, KnownTimes, TimeProblem, build_time_problems
from einc_runtime.plan.schema import InputPlacement

MESSAGE_MS = 4e-3
"""What tables charge for a message in large graphs on many sites, beside the time that it takes there: about what a
network card takes to begin one. The simulation leaves that out, so that gathering a scalar everywhere, in thousands of
messages, would look as good as sending it to one site and from there to all."""


@dataclass(frozen=True, slots=True, eq=False)
class SearchProblem:
    """The plans of a graph, and estimates of what they take.

    Of a graph with many equal layers, `space` has the plans of a few of them (`folded`), for which whole plans are
    built; `tables`, with naive exchanges, and `promises`, with those that were asked for, are of the whole graph, as
    `sizes` are. `paper` is the plan that is best by the paper's cost, and `starts` has it and the well-known ones.
    `even` says whether all links are equally wide.
    """

    graph: Graph
    pins: Sequence[Pin]
    naive: bool
    even: bool
    folded: Folded | None
    space: SearchSpace
    paper: LogicalPlan
    starts: Starts
    tables: TimeProblem
    promises: TimeProblem
    sizes: Sizes

    def find_omitted_layers_cost(self) -> OmittedLayersCost:
        """What the layers add that are not built."""
        if self.folded is None:
            return lambda assignment: (0.0, 0)
        part, _ = self.space.build_time_problems()
        return charge_layers(self.tables, part, self.sizes.kept, self.folded.times)

    def promise(self, evaluated: EvaluatedPlan) -> float:
        """About what a plan takes with the exchanges that were asked for, in ms."""
        if self.naive:
            return evaluated.predicted_ms
        return min(evaluated.predicted_ms, sum_times(self.promises, evaluated.assignment) / UNITS_PER_MS)

    def find_cut_cost(self) -> int:
        """The paper's cost of the plan that its cut heuristic chooses for the whole graph."""
        if self.folded is None:
            return self.paper.cut_cost
        return measure_cut_cost(self.graph, self.space.sites, self.pins)

    def make_whole_plans(self, evaluated_plans: Sequence[EvaluatedPlan]) -> list[LogicalPlan]:
        folded, space = self.folded, self.space
        if folded is None:
            return [space.make_plan(plan.assignment, plan.order, plan.spread) for plan in evaluated_plans]
        space = replace(space, graph=self.graph, problem=connect(self.graph, folded.expand(space.problem.candidates)))
        order = tuple(range(len(self.graph.nodes)))
        return [space.make_plan(folded.expand(plan.assignment), order, plan.spread) for plan in evaluated_plans]


def measure_cut_cost(graph: Graph, sites: int, pins: Sequence[Pin] = ()) -> int:
    """The paper's cost of the plan that its cut heuristic chooses."""
    strict = build_problem(graph, sites, pins=pins)
    return strict.cost(choose_by_cuts(strict))


def pose_problem(
    graph: Graph,
    machine: Machine,
    sites: int,
    *,
    naive: bool,
    pins: Sequence[Pin],
    input_placement: InputPlacement,
    seconds: float,
) -> SearchProblem:
    """The problem of the fastest plan; candidates are left out that are not worth a table in so many seconds."""
    folded = fold_pinned(graph, pins)
    part = graph if folded is None else folded.graph
    part_pins = pins if folded is None else select_pins(part, pins)
    candidates = build_problem(part, sites, flexible=True, pins=part_pins)
    message_ms = MESSAGE_MS if len(part.nodes) >= MIN_IMPROVED and sites > MANY_SITES else 0.0
    space = SearchSpace(part, candidates, machine, sites, input_placement, KnownTimes(naive, message_ms))
    paper = optimize(part, sites, pins=part_pins)
    space, starts = keep_worthwhile(space, list_known_starts(space, paper), seconds)
    tables, promises = _build_tables(graph, folded, space)
    sizes = measure_sizes(part, space.problem, None if folded is None else folded.times)
    even = has_equal_links(machine, sites)
    promises = tables if naive else promises
    return SearchProblem(graph, pins, naive, even, folded, space, paper, starts, tables, promises, sizes)


def _build_tables(graph: Graph, folded: Folded | None, space: SearchSpace) -> tuple[TimeProblem, TimeProblem]:
    """The time tables of the whole graph, over the nodes of the folded one: naive, and synthesized."""
    if folded is None:
        return space.build_time_problems()
    return build_time_problems(
        graph,
        folded.expand(space.problem.candidates),
        space.machine,
        space.sites,
        once=space.once,
        variables=folded.stands_for,
        known=space.known,
    )
