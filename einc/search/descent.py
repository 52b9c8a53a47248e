"""The improvement of plans over whole plans: changes of one operator or of two, other orders of operators."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence

from einc.search.evaluation import EvaluatedPlan, Evaluator
from einc.search.exhaustive import list_small_plans
from einc.search.neighbours import list_changes, list_pair_changes
from einc.search.orders import Order, list_all_orders, list_orders
from einc.search.overlap import find_overlapped
from einc.search.pool import Pool
from einc.search.tables import UNITS_PER_MS, TimeProblem

MAX_ADDED = 0.3
"""A change is promising if the tables say that it adds at most this part of the predicted time."""

MAX_IMPROVED_PLANS = 2
"""Plans that are improved by promising changes, the fastest first."""

MAX_PROMISED_RATIO = 1.06
"""Where plans are taken by their estimates, those are kept that promise at most this part of the best time: what they
promise is off by 5% at most, among blocks and chains on 8 sites."""

MAX_FURTHER_PLANS = 40
"""Plans that differ by other changes, which are tried at last."""

Report = Callable[[float], None]
"""Called with a better predicted time in ms."""

Neighbours = Callable[[EvaluatedPlan], Iterator[EvaluatedPlan | None]]
"""Plans that differ a little from one."""


def descend(
    evaluator: Evaluator, tables: TimeProblem, starts: Sequence[EvaluatedPlan], *, reorder: bool, report: Report
) -> EvaluatedPlan:
    """The best plan that is found when no change helps any more, or when the evaluator is exhausted.

    The best of `starts` are improved by changes of one operator, those first that the tables find promising; before
    that, idle sites are used or left (`LogicalPlan.spread`), and with `reorder` operators get other orders. At last,
    some changes that the tables find harmful are tried, and changes of two neighbours: on small graphs, the overlap of
    kernels and exchanges, which the tables do not see, may matter more than all that they do.
    """
    further = iter(range(MAX_FURTHER_PLANS))

    def list_promising(best: EvaluatedPlan) -> Iterator[EvaluatedPlan | None]:
        return _iterate_neighbours(evaluator, tables, best, reorder)

    def list_all(best: EvaluatedPlan) -> Iterator[EvaluatedPlan | None]:
        return itertools.chain(list_promising(best), _iterate_changes(evaluator, tables, best, further))

    ranked = sorted(dict.fromkeys(starts), key=lambda evaluated: evaluated.rank)  # several names may stand for one plan
    best = ranked[0]
    for start in ranked[:MAX_IMPROVED_PLANS]:
        improved = _descend(evaluator, start, list_promising, report if start is ranked[0] else ignore_better)
        if improved.rank < best.rank:
            best = improved
            report(best.predicted_ms)
    return _descend(evaluator, best, list_all, report)


def improve_by_estimates(
    evaluator: Evaluator, tables: TimeProblem, starts: Sequence[EvaluatedPlan], report: Report
) -> EvaluatedPlan:
    """The best plan that is found around the best of `starts`, those first that promise most by their estimates.

    Changes of one operator and of two neighbours take turns. Of plans with equal estimates, one is built: they differ
    in what no table tells apart.
    """
    graph, orders = evaluator.space.graph, list_all_orders(evaluator.space.graph)
    ranked = sorted(dict.fromkeys(starts), key=lambda evaluated: evaluated.rank)
    best = ranked[0]
    limit, listers = MAX_PROMISED_RATIO * best.predicted_ms, (list_changes, list_pair_changes)
    pools = [Pool(graph, tables, limit, [lister]) for lister in listers]
    for start in ranked[:MAX_IMPROVED_PLANS]:
        ordered = [evaluator.evaluate(start.assignment, order, spread=start.spread) for order in orders]
        fastest = min((plan for plan in ordered if plan is not None), key=lambda evaluated: evaluated.rank)
        best = min(best, fastest, key=lambda evaluated: evaluated.rank)
        for pool in pools:
            pool.surround(fastest, fastest.predicted_ms)
    tried = {start.assignment for start in ranked}
    taken: set[tuple[float, Order]] = set()
    turns = itertools.zip_longest(*(pool.take(tried, taken) for pool in pools))
    for promising in itertools.chain.from_iterable(turns):
        if promising is None:
            continue
        if evaluator.exhausted:
            break
        _, assignment, order = promising
        evaluated = evaluator.evaluate(assignment, order)
        if evaluated is not None and evaluated.rank < best.rank:
            best = evaluated
            report(best.predicted_ms)
            for pool in pools:
                pool.surround(best, best.predicted_ms)
    return best


def try_small_plans(evaluator: Evaluator, tables: TimeProblem, best: EvaluatedPlan) -> list[EvaluatedPlan]:
    """Of the plans of a small graph, those that could be faster than the best so far.

    They take half of the effort that is left at most, as changes of the best may be worth more.
    """
    tried: list[EvaluatedPlan] = []
    kept = evaluator.effort / 2
    for least, assignment in list_small_plans(evaluator.space, tables):
        if evaluator.exhausted or evaluator.effort < kept:
            break
        if not best.excess and least > best.predicted_ms * UNITS_PER_MS:
            break
        evaluated = evaluator.evaluate(assignment)
        if evaluated is not None:
            tried.append(evaluated)
            best = min(best, evaluated, key=lambda evaluated: evaluated.rank)
    return tried


def try_overlapped_plans(
    evaluator: Evaluator, tables: TimeProblem, starts: Sequence[EvaluatedPlan]
) -> list[EvaluatedPlan]:
    """Plans in which more overlaps than the tables see, from each of the starts."""
    tried: list[EvaluatedPlan] = []
    graph, assignments = evaluator.space.graph, [start.assignment for start in starts]
    for assignment, order in () if evaluator.exhausted else find_overlapped(graph, tables, assignments):
        if evaluator.exhausted:
            break
        evaluated = evaluator.evaluate(assignment, order)
        tried += [] if evaluated is None else [evaluated]
    return tried


def ignore_better(best_ms: float) -> None:
    """Ignores a plan that may not be the best."""


def _descend(evaluator: Evaluator, start: EvaluatedPlan, neighbours: Neighbours, report: Report) -> EvaluatedPlan:
    """Goes to the first neighbour that is better, until none is."""
    best = start
    improved = True
    while improved and not evaluator.exhausted:
        improved = False
        for evaluated in neighbours(best):
            if evaluated is not None and evaluated.rank < best.rank:
                best, improved = evaluated, True
                report(best.predicted_ms)
                break
    return best


def _iterate_neighbours(
    evaluator: Evaluator, tables: TimeProblem, best: EvaluatedPlan, reorder: bool
) -> Iterator[EvaluatedPlan | None]:
    if evaluator.space.leaves_idle(best.assignment):
        yield evaluator.evaluate(best.assignment, best.order, spread=not best.spread)
    for order in list_orders(evaluator.space.graph) if reorder else ():
        if evaluator.exhausted:
            return
        yield evaluator.evaluate(best.assignment, order, spread=best.spread)
    limit = MAX_ADDED * best.predicted_ms * UNITS_PER_MS
    for change in list_changes(tables, best.assignment):
        if evaluator.exhausted or change.added > limit:
            return
        yield evaluator.evaluate(change.apply(best.assignment), best.order, spread=best.spread)


def _iterate_changes(
    evaluator: Evaluator, tables: TimeProblem, best: EvaluatedPlan, further: Iterator[int]
) -> Iterator[EvaluatedPlan | None]:
    """Changes of one operator and of two neighbours, however much they add by the tables; one for each of `further`."""
    changes = [*list_changes(tables, best.assignment), *list_pair_changes(tables, best.assignment)]
    for change in sorted(changes):
        changed = change.apply(best.assignment)
        if evaluator.knows(changed, best.order, spread=best.spread):
            continue
        if evaluator.exhausted or next(further, None) is None:
            return
        yield evaluator.evaluate(changed, best.order, spread=best.spread)
