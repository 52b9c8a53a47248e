"""Plans that are worth a look, by what the time tables and their overlap say of them (`einc.search.overlap`)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

from einc.graph.graph import Graph
from einc.search.evaluation import EvaluatedPlan
from einc.search.neighbours import Change, list_changes, list_pair_changes
from einc.search.orders import Order, list_all_orders
from einc.search.overlap import estimate_overlapped
from einc.search.space import Assignment
from einc.search.tables import UNITS_PER_MS, TimeProblem

MAX_DESCENT_STEPS = 50
"""Steps of the descent over estimates from one plan."""

ESTIMATED_AT_ONCE = 2000
"""Plans between two looks at the clock: of a training step of some hundred operators, about a second."""

Lister = Callable[[TimeProblem, Assignment], list[Change]]
"""Lists changes of a plan."""


class Pool:
    """Plans that are not completed yet, with what they are estimated to take in ms, and in which order of operators.

    Those that are estimated to take more than `limit` ms are not kept: there are hundreds of thousands of them. Once it
    `is_hurried`, no more are estimated than some.
    """

    def __init__(
        self,
        graph: Graph,
        tables: TimeProblem,
        limit: float,
        listers: Sequence[Lister] = (list_changes, list_pair_changes),
        is_hurried: Callable[[], bool] = lambda: False,
    ) -> None:
        self._graph = graph
        self._tables = tables
        self._limit = limit
        self._listers = listers
        self._is_hurried = is_hurried
        self._orders = list_all_orders(graph)
        self._estimates: dict[Assignment, tuple[float, int]] = {}

    def descend(self, start: Assignment) -> None:
        """Adds what differs from a plan by one operator or two neighbours, and goes on from the best of these."""
        current, estimate = start, math.inf
        for _ in range(MAX_DESCENT_STEPS):
            if self._is_hurried():
                return
            least, neighbour = self._add_changes(current, 1.0)
            if least >= estimate:
                return
            current, estimate = neighbour, least

    def surround(self, evaluated: EvaluatedPlan, predicted_ms: float) -> None:
        """Adds what differs a little from a completed plan: its estimate is likely to be as wrong as that one's."""
        (estimate,), _ = estimate_overlapped(self._graph, self._tables, [evaluated.assignment], self._orders)
        self._add_changes(evaluated.assignment, predicted_ms * UNITS_PER_MS / max(1, int(estimate)))

    def take(
        self, tried: set[Assignment], taken: set[tuple[float, Order]] | None = None
    ) -> Iterator[tuple[float, Assignment, Order]]:
        """The most promising plans one by one, except those of `tried`; plans may be added meanwhile.

        Of plans with equal estimates and orders, none is taken that `taken` has; it grows by what is taken.
        """
        known = set(tried)
        while waiting := [
            (*entry, candidate) for candidate, entry in self._estimates.items() if candidate not in known
        ]:
            estimate, number, assignment = min(waiting, key=lambda entry: (entry[0], entry[2]))
            known.add(assignment)
            order = self._orders[number]
            if taken is not None:
                if (estimate, order) in taken:
                    continue
                taken.add((estimate, order))
            yield estimate, assignment, order

    def _add_changes(self, assignment: Assignment, factor: float) -> tuple[float, Assignment]:
        """Adds the changes of a plan; the best of them, with its estimate."""
        changes = [change for list_some in self._listers for change in list_some(self._tables, assignment)]
        plans = [change.apply(assignment) for change in changes] or [assignment]
        least, best = math.inf, assignment
        for start in range(0, len(plans), ESTIMATED_AT_ONCE):
            if start and self._is_hurried():
                break
            part = plans[start : start + ESTIMATED_AT_ONCE]
            estimates, numbers = estimate_overlapped(self._graph, self._tables, part, self._orders)
            for plan, units, number in zip(part, estimates, numbers, strict=True):
                changed = (factor * int(units) / UNITS_PER_MS, int(number))
                if changed[0] <= self._limit:
                    self._estimates[plan] = min(changed, self._estimates.get(plan, changed))
                least, best = min((least, best), (changed[0], plan))
        return least, best
