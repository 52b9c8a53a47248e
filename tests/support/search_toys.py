"""Graphs for the tests of the search: those of `logical_toys` at sizes at which time matters, and all their plans."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace

from einc.core.spec import FunctionSpec
from einc.core.tensor import TensorDesc
from einc.graph.graph import Graph
from einc.logical.problem import Problem, build_problem
from einc.machines.model import Machine
from einc.physical.budget import SearchBudget
from einc.search.evaluation import EvaluatedPlan, Evaluator
from einc.search.space import SearchSpace
from einc_runtime.plan.schema import InputPlacement
from tests.support.logical_toys import Toy, random_graph
from tests.support.plan_bounds import PlanBounds


@dataclass(frozen=True)
class Busy(Toy):
    """A toy with `effort` operations for every combination of its indices."""

    effort: int = 0

    def flops(self, function: FunctionSpec) -> int:
        sides = zip(self._sides()[0], function.inputs, strict=True)
        extents = {
            name: upper - lower
            for term, block in sides
            for name, lower, upper in zip(term, block.lower, block.upper, strict=True)
        }
        return self.effort * math.prod(extents.values())


def scale_graph(graph: Graph, factor: int, effort: int = 0) -> Graph:
    """The graph with extents that many times as large, and with operations to do."""
    nodes = []
    for node in graph.nodes:
        toy = node.operator
        assert isinstance(toy, Toy)
        extents = tuple(
            (name, size * factor, cuts and tuple(cut * factor for cut in cuts)) for name, size, cuts in toy.extents
        )
        nodes.append(replace(node, operator=Busy(toy.equation, extents, effort)))
    tensors = tuple(
        replace(
            tensor,
            desc=TensorDesc(tensor.desc.dims, tuple(size * factor for size in tensor.desc.shape), tensor.desc.dtype),
        )
        for tensor in graph.tensors
    )
    return replace(graph, nodes=tuple(nodes), tensors=tensors)


def draw_graph(seed: int, most: int = 6) -> Graph:
    """One to `most` operators, of sizes at which latencies, bytes or operations count most."""
    rng = random.Random(seed)
    factor, effort = rng.choice(((8, 0), (64, 0), (300, 0), (64, 2000), (300, 300), (100, 20)))
    return scale_graph(random_graph(seed, rng.randint(1, most), tree=rng.random() < 0.5), factor, effort)


def list_plans(problem: Problem, most: int, seed: int = 0) -> Iterator[tuple[int, ...]]:
    """All combinations of candidates, or `most` of them drawn at random if there are more."""
    sizes = [len(options) for options in problem.candidates]
    if math.prod(sizes) <= most:
        yield from itertools.product(*map(range, sizes))
        return
    rng = random.Random(seed)
    for _ in range(most):
        yield tuple(rng.randrange(size) for size in sizes)


def space_of(graph: Graph, machine: Machine, sites: int, input_placement: InputPlacement = "replicated") -> SearchSpace:
    """The plans of the flexible problem."""
    return SearchSpace(graph, build_problem(graph, sites, flexible=True), machine, sites, input_placement)


def evaluator_of(
    graph: Graph, machine: Machine, sites: int, input_placement: InputPlacement = "replicated"
) -> Evaluator:
    """An evaluator of the plans of the flexible problem, without limits."""
    space = space_of(graph, machine, sites, input_placement)
    return Evaluator(space, SearchBudget(), math.inf, lambda assignment: (0.0, 0))


def find_faster_plan(evaluator: Evaluator, bounds: PlanBounds, limit: float, most: int) -> EvaluatedPlan | None:
    """A plan in the graph's order that fits and takes less than `limit` ms: of all plans, or of `most` of them.

    They are built and predicted one by one, except those that take longer by their bound.
    """
    problem = evaluator.space.problem
    for assignment in list_plans(problem, most):
        candidates = [options[c] for options, c in zip(problem.candidates, assignment, strict=True)]
        if bounds.bound(candidates, limit) <= limit:
            evaluated = evaluator.evaluate(assignment)
            if evaluated is not None and not evaluated.excess and evaluated.predicted_ms < limit:
                return evaluated
    return None
