"""Plans that a person makes for many sites: data x tensor x sequence x pipeline, in all shapes that divide.

Of a graph and a number of sites, every shape whose four numbers multiply to it is a plan: in each pipeline stage, the
batch, the tokens, and the axes between pairs of products are cut as often as it says. A pipeline runs as many
micro-batches as it has stages, or twice or once as many, where the batch has them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from einc.errors import CapacityError, MachineError, UsageError
from einc.graph.graph import Graph
from einc.logical.division import DivisionShape
from einc.logical.optimize import build_choices
from einc.logical.plan import Candidate, LogicalPlan
from einc.logical.problem import Problem, build_problem
from einc.machines.model import Machine
from einc.physical.budget import SearchBudget
from einc.physical.build import build
from einc.search.baselines import BaselineBuilder
from einc.stages.batch import cut_batch
from einc.stages.choice import ShapeSearch
from einc.stages.planning import describe_part, divide_plan, make_part_graph


@dataclass(frozen=True, order=True, slots=True)
class Shape:
    """Parts along the batch, the pairs of products and the tokens, in each of so many stages."""

    data: int
    tensor: int
    sequence: int
    stages: int
    microbatches: int = 1

    def __str__(self) -> str:
        pipeline = f" x pipeline {self.stages} of {self.microbatches}" if self.stages > 1 else ""
        return f"data {self.data} x tensor {self.tensor} x sequence {self.sequence}{pipeline}"


def list_shapes(sites: int) -> Iterator[Shape]:
    """All shapes of so many sites."""
    divisors = [count for count in range(1, sites + 1) if sites % count == 0]
    for stages in divisors:
        for data in divisors:
            for tensor in divisors:
                rest, remainder = divmod(sites, stages * data * tensor)
                if remainder == 0 and rest:
                    for microbatches in (1, stages, 2 * stages) if stages > 1 else (1,):
                        yield Shape(data, tensor, rest, stages, microbatches)


def list_undivided(graph: Graph, problem: Problem, sites: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    """The plans without a pipeline, each once: the names of their shapes, and the numbers of candidates."""
    known: set[tuple[int, ...]] = set()
    for shape in list_shapes(sites):
        chosen = cut_as_asked(graph, problem, shape) if shape.stages == 1 else None
        if chosen is not None and chosen not in known:
            known.add(chosen)
            yield str(shape), chosen


def cut_as_asked(graph: Graph, problem: Problem, shape: Shape) -> tuple[int, ...] | None:
    """The number of a candidate for every node, in a stage of a shape; None where the graph has no such axes.

    What an axis does not cut is computed on all sites.
    """
    builder = BaselineBuilder(graph, problem, shape.data * shape.tensor * shape.sequence)
    axes, batch, tokens, pairs = builder.axes, builder.axes.batch, builder.tokens, builder.pairs
    lacks_tokens = shape.sequence > 1 and tokens in (None, batch)
    if (shape.data > 1 and batch is None) or lacks_tokens or (shape.tensor > 1 and not pairs):
        return None
    chosen = []
    for number, options in enumerate(problem.candidates):
        parts: list[tuple[int | None, int]] = [(batch, shape.data), (tokens, shape.sequence)]
        if number in pairs:
            parts.append((pairs[number][0], shape.tensor))
        counts: dict[int, int] = {}  # by the position of an index
        for axis, count in parts:
            indices = [] if axis is None else list(axes.list_indices(number, axis))
            if indices and count > 1:
                index = min(indices, key=lambda index: (not index.parallel, not index.spans, -index.extent))
                counts[index.position] = count
        chosen.append(_pick(options, counts))
    return tuple(chosen)


def _pick(options: Sequence[Candidate], counts: Mapping[int, int]) -> int:
    """The candidate with these numbers of intervals and with no others; where there is none, the one that lacks least,
    and of these the one that most sites compute."""

    def lack(candidate: Candidate) -> tuple[float, int]:
        pairs = [(counts.get(position, 1), len(part)) for position, part in enumerate(candidate.intervals)]
        return sum(max(pair) / min(pair) for pair in pairs), -candidate.replicas

    return min(range(len(options)), key=lambda c: (*lack(options[c]), c))


def time_pipelines(graph: Graph, machine: Machine, sites: int, naive: bool) -> Iterator[tuple[str, float | None]]:
    """The predicted ms of the plans with a pipeline, by the names of their shapes; None where one does not fit."""
    search = ShapeSearch(graph, machine, sites, naive=naive, budget=SearchBudget())
    for shape in list_shapes(sites):
        if shape.stages == 1:
            continue
        try:
            plan = _make_pipeline(graph, machine, sites, shape)
            if plan is not None:
                yield str(shape), search.build(plan).predicted_ms
        except (CapacityError, MachineError):
            yield str(shape), None
        except UsageError:
            continue  # the batch has no such parts


def _make_pipeline(graph: Graph, machine: Machine, sites: int, shape: Shape) -> LogicalPlan | None:
    """The plan of a shape; None where the graph has no such axes, or too few operators. Raises UsageError."""
    cut, size = cut_batch(graph, shape.microbatches), sites // shape.stages
    part_graph = make_part_graph(cut)
    problem = build_problem(part_graph, size, flexible=True)
    chosen = cut_as_asked(part_graph, problem, shape)
    if chosen is None:
        return None
    part_machine = machine.restrict(range(size))
    choices: Any = build_choices(part_graph, problem, chosen)
    part_plan = LogicalPlan(part_graph, size, "random", choices, exact=False, cut_cost=0)
    program = build(part_plan, part_machine, check_memory=False)
    part = describe_part(cut, program, part_machine)
    divided = divide_plan(part, DivisionShape(shape.stages, shape.microbatches, 1), machine, sites)
    return None if divided is None else replace(divided.plan, spread=False)
