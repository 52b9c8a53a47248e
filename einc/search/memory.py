"""Plans that need less memory: what every candidate keeps, a price on it, and time over memory."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from einc.graph.graph import Graph
from einc.logical.minsum import minimize
from einc.logical.plan import Candidate
from einc.logical.problem import Problem
from einc.ops.base import Operator
from einc.search.evaluation import Draft, Evaluator
from einc.search.tables import UNITS_PER_MS, TimeProblem

Array = np.ndarray[Any, np.dtype[Any]]

MAX_PRICES = 12
"""Prices of memory that are tried."""

MAX_CHARGE = 1 << 50
"""Picoseconds that a candidate may be charged for memory: 18 minutes."""

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
            known[key] = np.array([_measure(node.operator, one, loaded, stored) for one in options], dtype=np.int64)
        kept.append(known[key])
    return kept


def _measure(operator: Operator, candidate: Candidate, loaded: Sequence[int], stored: Sequence[int]) -> int:
    """The most bytes that a function specification has of these inputs and outputs."""
    return max(
        sum(function.inputs[k].size * operator.inputs[k].dtype.itemsize for k in loaded)
        + sum(function.outputs[j].size * operator.outputs[j].dtype.itemsize for j in stored)
        for function in candidate.spec.functions
    )


def find_smaller(evaluator: Evaluator, tables: TimeProblem, kept: Sequence[Array], best: Draft) -> Draft | None:
    """A better plan than one that does not fit, or None.

    `kept` are the bytes of every candidate. They get a price, which rises until a plan fits, and then falls again as
    far as plans still fit.
    """
    price = 0.1 * best.predicted_ms * UNITS_PER_MS / max(1, best.memory)  # picoseconds per byte
    low, high = 0.0, math.inf
    found: Draft | None = None
    for _ in range(MAX_PRICES):
        if evaluator.hurried:
            break
        costs = [
            own + np.rint(np.minimum(size * price, MAX_CHARGE)).astype(np.int64)
            for own, size in zip(tables.own, kept, strict=True)
        ]
        start = minimize(costs, tables.tables)
        draft = None if start is None else evaluator.evaluate(start)
        if draft is not None and draft.rank < (found or best).rank:
            found = draft
        if draft is not None and not draft.excess:
            high = price
        else:
            low = price
        price = price * 4 if high == math.inf else math.sqrt(max(low, high / 16) * high)
    return found


def find_frontier(drafts: Iterable[Draft]) -> tuple[Draft, ...]:
    """The drafts that no other one beats in both time and memory: least memory first, MAX_POINTS at most, both ends
    among them."""
    found: list[Draft] = []
    for draft in sorted(drafts, key=lambda draft: (draft.memory, draft.predicted_ms)):
        if not found or draft.predicted_ms < found[-1].predicted_ms:
            found.append(draft)
    if len(found) <= MAX_POINTS:
        return tuple(found)
    last = len(found) - 1
    return tuple(found[i * last // (MAX_POINTS - 1)] for i in range(MAX_POINTS))
