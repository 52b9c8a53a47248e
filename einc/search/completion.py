"""Plans with synthesized exchanges, and their improvement where links differ.

Where some pairs of sites have wider links than others, naive exchanges say little of synthesized ones, so a descent
over plans with naive exchanges leads astray. There, plans are completed one by one: those first that the time tables
and their overlap find fastest (`einc.search.overlap`), and then those that differ a little from the best so far.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, suppress

from threadpoolctl import threadpool_limits

from einc.errors import CapacityError
from einc.graph.layers import Folded
from einc.machines.site_counts import MANY_SITES
from einc.physical.build import build_fast
from einc.physical.program import DeviceProgram
from einc.physical.synthesis import SynthesizingScheduler
from einc.search.evaluation import EvaluatedPlan, Evaluator
from einc.search.exchange_times import has_equal_links
from einc.search.folding import time_left_out
from einc.search.orders import Order, list_all_orders
from einc.search.pool import Pool
from einc.search.space import Assignment, SearchSpace
from einc.search.tables import TimeProblem

MAX_SEARCHES, MAX_SEARCHES_OF_PAIRS = 60, 2560
"""Searches for exchanges after which no further plan is completed if there is no time limit, as they take most of the
time: so many, and so many divided by the square of the number of operators. A plan of many takes more searches, and
what overlaps matters less there."""

MAX_COMPLETED_PLANS = 40
"""Plans that are completed at most if there is no time limit, beside contenders and other orders of operators."""

MAX_DESCENT_STARTS = 4
"""Plans from which the tables and their overlap are descended."""

PROMISING = 1.03
"""A plan is completed if its estimate is at most this part of the best time so far."""


MAX_COMPLETED, MAX_COMPLETED_UNEVEN = 3, 6
"""Plans that are completed with synthesized exchanges: more where some pairs of sites have wider links than others, as
promises are less exact there, and all of them of a graph that is built as a whole there; but not on more than
MANY_SITES sites."""

WORTH_COMPLETING, WORTH_COMPLETING_FOLDED, WORTH_COMPLETING_UNEVEN = 1.02, 0.995, 1.25
"""A further plan is completed if it promises at most this part of the time of the best so far, as promises are not
exact: of a graph that is built as a whole, of a folded one, where it takes longer, and where some pairs of sites have
wider links than others, since promises are less exact there."""


USUAL_GAIN, USUAL_GAIN_EVEN = 1.09, 1.05
"""On more than MANY_SITES sites, a plan is completed only if it would be the fastest with this gain, or with the most
that synthesized exchanges have gained so far: among blocks, cross attention and experts on 16 to 72 sites they gained
8% at most, and nothing where all links are equally wide."""

MAX_PASSED_OVER = 2
"""Plans in turn that are not worth completing, after which the improvement of completed plans ends: to predict one
takes seconds on 64 sites."""


def limit_completed(sites: int, *, even: bool, folded: bool) -> tuple[float, float]:
    """How many contenders are completed at most, and what part of the best time a further one may promise; `even` says
    whether all links are equally wide."""
    if even:
        return MAX_COMPLETED, WORTH_COMPLETING_FOLDED if folded else WORTH_COMPLETING
    if sites > MANY_SITES:
        return MAX_COMPLETED, WORTH_COMPLETING_UNEVEN
    return MAX_COMPLETED_UNEVEN if folded else math.inf, WORTH_COMPLETING_UNEVEN


def limit_threads() -> AbstractContextManager[object]:
    """One thread for matrix products: theirs are many and small, and threads that wait for each other only take time
    from other programs."""
    limits: AbstractContextManager[object] = threadpool_limits(1, user_api="blas")
    return limits


class Completer:
    """Completes plans with synthesized exchanges, each once; `times` are in ms, of those that fit into memory.

    Of a folded graph, the layers that are left out are counted, too.
    """

    def __init__(self, evaluator: Evaluator, scheduler: SynthesizingScheduler, folded: Folded | None) -> None:
        self.evaluator = evaluator
        self.scheduler = scheduler
        self.programs: dict[EvaluatedPlan, DeviceProgram] = {}
        self.times: dict[EvaluatedPlan, float] = {}
        self._folded = folded
        even = has_equal_links(evaluator.space.machine, evaluator.space.sites)
        self._usual_gain = USUAL_GAIN_EVEN if even else USUAL_GAIN
        self._seconds = 0.0
        self._tried: set[EvaluatedPlan] = set()

    def complete(self, evaluated: EvaluatedPlan) -> float | None:
        """The predicted time of a plan; None if it does not fit."""
        if evaluated not in self._tried:
            self._tried.add(evaluated)
            started = time.monotonic()
            with suppress(CapacityError):
                plan = self.evaluator.make_plan(evaluated)
                machine = self.evaluator.space.machine
                program = build_fast(plan, machine, self.scheduler, self.evaluator.built_ms(evaluated))
                more = 0.0 if self._folded is None else time_left_out(self._folded, program, machine)
                self.programs[evaluated] = program.forget_times()
                self.times[evaluated] = program.predicted_ms + more
            self._seconds = max(self._seconds, time.monotonic() - started)
        return self.times.get(evaluated)

    def may_be_faster(self, evaluated: EvaluatedPlan, best_ms: float) -> bool:
        """Whether a plan is worth completing, where the best one takes `best_ms`; always on few sites."""
        gains = [self._usual_gain, *(completed.predicted_ms / ms for completed, ms in self.times.items())]
        return self.evaluator.space.sites <= MANY_SITES or evaluated.predicted_ms <= max(gains) * best_ms

    @property
    def hurried(self) -> bool:
        """Whether the time limit leaves no time for a further plan like the slowest so far."""
        return self.scheduler.budget.left <= self._seconds


def count_affordable_searches(space: SearchSpace) -> int:
    """How many searches for exchanges the improvement of completed plans may take."""
    searches = min(MAX_SEARCHES, MAX_SEARCHES_OF_PAIRS // len(space.graph.nodes) ** 2)
    return searches * MANY_SITES**2 // max(MANY_SITES, space.sites) ** 2


def improve_completed(completer: Completer, tables: TimeProblem, report: Callable[[float], None]) -> EvaluatedPlan:
    """The fastest plan that is found from those that are completed; there is one at least.

    `report` is called with a better predicted time in ms. The nodes of the graph are the variables of the tables.
    """
    evaluator, scheduler = completer.evaluator, completer.scheduler
    times = completer.times
    ranked = sorted(times, key=lambda evaluated: (times[evaluated], evaluated.assignment))
    best = ranked[0]
    limit = PROMISING * times[best]
    pool = Pool(evaluator.space.graph, tables, limit, is_hurried=lambda: completer.hurried)
    for start in dict.fromkeys([evaluated.assignment for evaluated in ranked][:MAX_DESCENT_STARTS]):
        pool.descend(start)
    pool.surround(best, times[best])
    tried = {evaluated.assignment for evaluated in times}
    affordable = count_affordable_searches(evaluator.space)
    last_search = scheduler.searches + affordable
    most = affordable if evaluator.space.sites > MANY_SITES else MAX_COMPLETED_PLANS  # there, plans may need no search
    passed_over = 0
    for count, (estimate, assignment, order) in enumerate(pool.take(tried)):
        over = count >= most or scheduler.searches >= last_search
        if completer.hurried or (over and not scheduler.budget.limited) or estimate > PROMISING * times[best]:
            break
        evaluated = evaluator.evaluate(assignment, order)
        if evaluated is not None and not completer.may_be_faster(evaluated, times[best]):
            passed_over += 1
            if passed_over == MAX_PASSED_OVER:
                break
            continue
        passed_over = 0
        improved = _complete_alike(completer, assignment, order, times[best])
        if improved is not None:
            best = improved
            report(times[best])
            pool.surround(best, times[best])
    return best


def _complete_alike(completer: Completer, assignment: Assignment, order: Order, limit: float) -> EvaluatedPlan | None:
    """The fastest plan with these cuts, if it is faster than `limit` ms: then other orders are tried, too, and idle
    sites are left."""
    evaluator = completer.evaluator
    best: EvaluatedPlan | None = None
    for variant_order, spread in _list_variants(evaluator, assignment, order):
        evaluated = evaluator.evaluate(assignment, variant_order, spread=spread)
        ms = None if evaluated is None else completer.complete(evaluated)
        if ms is not None and ms < limit:
            best, limit = evaluated, ms
        if best is None or completer.hurried:
            break
    return best


def _list_variants(evaluator: Evaluator, assignment: Assignment, order: Order) -> Iterator[tuple[Order, bool]]:
    """The order, the others, and idle sites that are left."""
    yield order, True
    yield from ((other_order, True) for other_order in list_all_orders(evaluator.space.graph) if other_order != order)
    if evaluator.space.leaves_idle(assignment):
        yield order, False
