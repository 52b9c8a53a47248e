"""The improvement of a plan over whole plans: changes of one operator, and other orders of operators."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from einc.search.evaluation import Draft, Evaluator
from einc.search.neighbours import list_changes
from einc.search.orders import list_orders
from einc.search.tables import UNITS_PER_MS, TimeProblem

MAX_ADDED = 0.3
"""A change is tried if the tables say that it adds at most this part of the predicted time."""


def descend(
    evaluator: Evaluator, tables: TimeProblem, start: Draft, *, reorder: bool, report: Callable[[float], None]
) -> Draft:
    """The plan that is left when no change helps any more, or when the evaluator is exhausted.

    The most promising changes by the tables are tried first, and the first that helps is made. With `reorder`, other
    orders of operators are tried before that. `report` is called with each better predicted time in ms.
    """
    best = start
    improved = True
    while improved and not evaluator.exhausted:
        improved = False
        for draft in _iterate_neighbours(evaluator, tables, best, reorder):
            if draft is not None and draft.rank < best.rank:
                best, improved = draft, True
                report(best.predicted_ms)
                break
    return best


def _iterate_neighbours(
    evaluator: Evaluator, tables: TimeProblem, best: Draft, reorder: bool
) -> Iterator[Draft | None]:
    for order in list_orders(evaluator.graph) if reorder else ():
        if evaluator.exhausted:
            return
        yield evaluator.evaluate(best.assignment, order, spread=best.spread)
    limit = MAX_ADDED * best.predicted_ms * UNITS_PER_MS
    for change in list_changes(tables, best.assignment):
        if evaluator.exhausted or change.added > limit:
            return
        changed = list(best.assignment)
        changed[change.node] = change.candidate
        yield evaluator.evaluate(changed, best.order, spread=best.spread)
