"""Plans that need less memory: what every candidate keeps, a price on it, and time over memory."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from einc.core.tensor import Array
from einc.graph.graph import Graph
from einc.logical.minsum import minimize
from einc.logical.plan import Candidate
from einc.logical.problem import Problem
from einc.ops.base import Operator
from einc.search.evaluation import EvaluatedPlan, Evaluator, OmittedLayersCost
from einc.search.neighbours import sum_times
from einc.search.space import Assignment
from einc.search.tables import UNITS_PER_MS, TimeProblem

MAX_PRICES = 12
"""Prices of memory that are tried."""

SAMPLED_PRICES = (1.0, 5.0, 25.0)
"""Prices at which plans are looked at although the fastest fits, as multiples of the one that a search starts with."""

MAX_SAMPLED_SIZE = 2_000
"""No such plans are built if plans have more tasks than this."""

MAX_CHARGE = 1 << 50
"""Picoseconds that a candidate may be charged for memory: 18 minutes."""

MAX_BISECTIONS = 5
"""Prices that are tried below one at which a plan fits."""

MAX_POINTS = 6
"""Points of time over memory that a plan shows."""


def measure_kept_bytes(graph: Graph, problem: Problem) -> list[Array]:
    """Per node and candidate, the most bytes of inputs, weights and saved outputs that one site keeps for it.

    What several operators read is counted for each of them, and values in between are not counted: this is a price, and
    the memory of a plan is measured on the plan.
    """
    producers, saved = graph.producers(), set(graph.outputs)
    known: dict[tuple[int, tuple[int, ...], tuple[int, ...]], Array] = {}
    kept = []
    for node, options in zip(graph.nodes, problem.candidates, strict=True):
        loaded = tuple(k for k, name in enumerate(node.inputs) if name not in producers)
        stored = tuple(j for j, name in enumerate(node.outputs) if name in saved)
        key = id(options), loaded, stored
        if key not in known:
            known[key] = np.array(
                [_measure(node.operator, candidate, loaded, stored) for candidate in options], dtype=np.int64
            )
        kept.append(known[key])
    return kept


def _measure(operator: Operator, candidate: Candidate, loaded: Sequence[int], stored: Sequence[int]) -> int:
    """The most bytes that a function specification has of these inputs and outputs."""
    return max(
        sum(function.inputs[k].size * operator.inputs[k].dtype.itemsize for k in loaded)
        + sum(function.outputs[j].size * operator.outputs[j].dtype.itemsize for j in stored)
        for function in candidate.spec.functions
    )


def measure_values(graph: Graph, problem: Problem) -> list[Array]:
    """Per node and candidate, the most bytes of computed tensors that one site has in hand for it: what is read and
    what is written. What is kept for good is not counted."""
    producers, saved = graph.producers(), set(graph.outputs)
    known: dict[tuple[int, tuple[int, ...], tuple[int, ...]], Array] = {}
    values = []
    for node, options in zip(graph.nodes, problem.candidates, strict=True):
        read = tuple(k for k, name in enumerate(node.inputs) if name in producers and name not in saved)
        written = tuple(j for j, name in enumerate(node.outputs) if name not in saved)
        key = id(options), read, written
        if key not in known:
            known[key] = np.array(
                [_measure(node.operator, candidate, read, written) for candidate in options], dtype=np.int64
            )
        values.append(known[key])
    return values


@dataclass(frozen=True, slots=True)
class Sizes:
    """What memory is charged for, in bytes per node and candidate: `kept` of a whole model, so that a node that stands
    for many layers has the bytes of all of them, and `values` in between, which other layers use again."""

    kept: tuple[Array, ...]
    values: tuple[Array, ...]

    def weigh_values(self) -> tuple[Array, ...]:
        """What is kept, and values by their squares, as the largest ones make the peak: the largest possible one counts
        in full."""
        most = max((int(sizes.min()) for sizes in self.values), default=0)
        return tuple(
            kept + sizes * (sizes / max(1, most)) for kept, sizes in zip(self.kept, self.values, strict=True)
        )  # fmt: skip


def measure_sizes(graph: Graph, problem: Problem, times: Sequence[int] | None) -> Sizes:
    """The sizes of a graph, of which node n stands for `times[n]` nodes (None: each for itself)."""
    kept = measure_kept_bytes(graph, problem)
    kept_bytes = tuple(size * count for size, count in zip(kept, times or (1,) * len(kept), strict=True))
    return Sizes(kept_bytes, tuple(measure_values(graph, problem)))


def charge_layers(
    full: TimeProblem, part: TimeProblem, kept: Sequence[Array], times: Sequence[int]
) -> OmittedLayersCost:
    """What a plan of all layers takes beyond that of the layers that are built, which has the times `part`.

    Node n stands for `times[n]` nodes, for which `kept[n]` bytes are kept, so many for each of them.
    """

    def omitted_layers_cost(assignment: Assignment) -> tuple[float, int]:
        more = sum_times(full, assignment) - sum_times(part, assignment)
        further = sum(
            int(bytes_kept[c]) // n * (n - 1) for bytes_kept, c, n in zip(kept, assignment, times, strict=True)
        )
        return more / UNITS_PER_MS, further

    return omitted_layers_cost


def find_smaller(
    evaluator: Evaluator, tables: TimeProblem, sizes: Sizes, evaluated_plans: Sequence[EvaluatedPlan]
) -> EvaluatedPlan | None:
    """The best plan that a price on memory finds, where the fastest of `evaluated_plans` does not fit.

    None if it is no better than they are.

    What is kept gets the price. If nothing fits at any price, values in between get one, too. The evaluator's effort is
    left as it is.
    """
    effort = evaluator.effort
    best = min(evaluated_plans, key=lambda evaluated: evaluated.rank)
    for charged in (sizes.kept, sizes.weigh_values()):
        cheaper = _raise_price(evaluator, tables, charged, _start_price(evaluated_plans))
        best = min((best, *cheaper), key=lambda evaluated: evaluated.rank)
        if not best.excess:
            break
    evaluator.effort = effort
    return None if best in evaluated_plans else best


def sample_prices(
    evaluator: Evaluator, tables: TimeProblem, sizes: Sizes, evaluated_plans: Sequence[EvaluatedPlan]
) -> list[EvaluatedPlan]:
    """Plans that need less memory, at a few prices; fewer where these plans are large or where no time is left."""
    sampled: list[EvaluatedPlan] = []
    for factor in SAMPLED_PRICES:
        if evaluator.size > MAX_SAMPLED_SIZE or evaluator.hurried:
            break
        evaluated = _choose_at(evaluator, tables, sizes.kept, factor * _start_price(evaluated_plans))
        sampled += [evaluated] if evaluated is not None else []
    return sampled


def _start_price(evaluated_plans: Sequence[EvaluatedPlan]) -> float:
    """Picoseconds per byte at which the memory of the fastest plan costs a tenth of its time. It does not depend on
    what fits, so that less memory does not lead to other prices."""
    fastest = min(evaluated_plans, key=lambda evaluated: evaluated.predicted_ms)
    return 0.1 * fastest.predicted_ms * UNITS_PER_MS / max(1, fastest.memory)


def _raise_price(
    evaluator: Evaluator, tables: TimeProblem, charged: Sequence[Array], price: float
) -> list[EvaluatedPlan]:
    """The plans at prices that rise until one fits, and then fall again as far as plans still fit."""
    low, high, further = 0.0, math.inf, MAX_BISECTIONS
    most = max((float(size.max()) for size in charged), default=0.0)
    raised: list[EvaluatedPlan] = []
    for _ in range(MAX_PRICES):
        if evaluator.hurried or not further or price * most > MAX_CHARGE:
            break
        evaluated = _choose_at(evaluator, tables, charged, price)
        if evaluated is not None:
            raised.append(evaluated)
        if high < math.inf:
            further -= 1
        if evaluated is not None and not evaluated.excess:
            high = price
        else:
            low = price
        price = price * 4 if high == math.inf else math.sqrt(max(low, high / 16) * high)
    return raised


def _choose_at(
    evaluator: Evaluator, tables: TimeProblem, charged: Sequence[Array], price: float
) -> EvaluatedPlan | None:
    """The optimum where a byte costs `price` picoseconds; None if its tables are too large, or sites cannot talk."""
    costs = [
        times + np.rint(np.minimum(size * price, MAX_CHARGE)).astype(np.int64)
        for times, size in zip(tables.node_times, charged, strict=True)
    ]
    start = minimize(costs, tables.tables)
    return None if start is None else evaluator.evaluate(start)


def find_frontier(evaluated_plans: Iterable[EvaluatedPlan]) -> tuple[EvaluatedPlan, ...]:
    """The plans that no other one beats in both time and memory: least memory first, MAX_POINTS at most, both ends
    among them."""
    frontier: list[EvaluatedPlan] = []
    for evaluated in sorted(evaluated_plans, key=lambda evaluated: (evaluated.memory, evaluated.predicted_ms)):
        if not frontier or evaluated.predicted_ms < frontier[-1].predicted_ms:
            frontier.append(evaluated)
    if len(frontier) <= MAX_POINTS:
        return tuple(frontier)
    last = len(frontier) - 1
    return tuple(frontier[i * last // (MAX_POINTS - 1)] for i in range(MAX_POINTS))
