"""The logical plan: one join-agg spec for every abstract operator, what it costs, and its canonical text."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from einc.core.intervals import Interval, Intervals, ShardableIndex
from einc.core.spec import FunctionSpec, JoinAggSpec, Tiling
from einc.graph.graph import Graph, Node
from einc.logical.division import Division
from einc.plan_report import ConsideredShape, Contender, MemoryPoint
from einc_runtime.plan.schema import InputPlacement
from einc_runtime.text import format_count


@dataclass(frozen=True, slots=True)
class Tiles:
    """How what a site computes of an operator is cut further: along the index at position `index`, into `count`."""

    index: int
    count: int


@dataclass(frozen=True, slots=True)
class Candidate:
    """One join-agg spec that an operator offers, with the sub-costs (in elements) that depend on it alone.

    Each function specification of the spec is computed on `replicas` sites. If these are two or more, no block is put
    out in partial copies. `join` counts what every replica reads. With `tiles`, each site computes as many functions,
    one after the other, in place of one (`einc.logical.division`).
    """

    intervals: Intervals
    spec: JoinAggSpec
    join: int
    aggregation: int
    input_tilings: tuple[Tiling, ...]
    output_tilings: tuple[Tiling, ...]
    replicas: int = 1
    tiles: Tiles | None = None

    @property
    def functions(self) -> tuple[FunctionSpec, ...]:
        """What runs: all function specifications of the spec, replica after replica. But for tiles, each has a site of
        its own."""
        return self.spec.functions * self.replicas

    def find_tile(self, function: int) -> int:
        """The tile that a function belongs to, of those that a site computes one after the other; 0 without tiles."""
        if self.tiles is None:
            return 0
        inner = prod(map(len, self.intervals[self.tiles.index + 1 :]))
        return function // inner % self.tiles.count

    def list_tile(self, tile: int) -> list[int]:
        """The functions of a tile, in the order of the sites that compute them."""
        return [f for f in range(len(self.functions)) if self.find_tile(f) == tile]


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

    `exact` says that no plan over the same candidates costs less; `cut_cost` is the cost of the cut heuristic's plan.
    With `spread`, operators that leave sites idle may run on other ones than those before them. The last `idle` of the
    sites have nothing to do.
    `input_placement` says where inputs and weights lie before the clock starts (`einc.options.INPUT_PLACEMENTS`).
    With a `division`, the batch is computed in parts, and operators have stages; `shapes` were considered.
    `contenders` are the plans that the selector `fastest` considered, and `memory_points` time over memory.
    """

    graph: Graph
    sites: int
    selector: str
    choices: tuple[Choice, ...]
    exact: bool
    cut_cost: int
    spread: bool = True
    idle: int = 0
    contenders: tuple[Contender, ...] = ()
    memory_points: tuple[MemoryPoint, ...] = ()
    input_placement: InputPlacement = "replicated"
    division: Division | None = None
    shapes: tuple[ConsideredShape, ...] = ()

    @property
    def total_cost(self) -> int:
        return sum(choice.cost for choice in self.choices)

    @property
    def used_sites(self) -> int:
        """The number of sites that operators are placed on."""
        return self.sites - self.idle


def dump_plan(plan: LogicalPlan) -> str:
    """One paragraph per operator: the bounds of the intervals of each index, and the three sub-costs in elements."""
    how = plan.selector + (", exact" if plan.exact else "")
    lines = [
        f"logical plan {plan.graph.name}: {len(plan.choices)} operators over {plan.sites} sites ({how})",
        f"cost {plan.total_cost} elements; cut heuristic {plan.cut_cost}",
    ]
    for node, choice in zip(plan.graph.nodes, plan.choices, strict=True):
        lines += ["", *_format_choice(node, choice, plan.sites)]
    return "\n".join(lines) + "\n"


def _format_choice(node: Node, choice: Choice, sites: int) -> Iterator[str]:
    candidate = choice.candidate
    yield f"{', '.join(node.outputs)} = {node.operator.title}({', '.join(node.inputs)})"
    for index, intervals in zip(node.operator.indices, candidate.intervals, strict=True):
        yield f"  {_format_cut(index, intervals)}"
    used = len(candidate.functions)
    if candidate.replicas > 1:
        yield f"  computed on {format_count(candidate.replicas, 'site')} each"
    if candidate.tiles is not None:
        index, used = node.operator.indices[candidate.tiles.index], used // candidate.tiles.count
        yield f"  in {candidate.tiles.count} tiles along {index.name} at each site"
    if used < sites:
        yield f"  {format_count(sites - used, 'site')} idle"
    yield (
        f"  cost {choice.cost} = repartition {choice.repartition} + join {candidate.join}"
        f" + aggregation {candidate.aggregation}"
    )


def _format_cut(index: ShardableIndex, intervals: tuple[Interval, ...]) -> str:
    bounds = " ".join(str(bound) for bound in (intervals[0][0], *(up for _, up in intervals)))
    return f"{index.name} in {len(intervals)}: {bounds}"
