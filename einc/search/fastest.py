"""The selector `fastest`: of the plans that fit into memory, the one that is predicted to end first.

Plans that are best by a simple measure are the start: the optimum of the time tables, that of the paper's cost, and
well-known plans. They are built with naive exchanges and predicted as a whole, and the best is improved: by changes of
one operator, the most promising by the tables first, and by other orders of operators. Only whole plans show where an
exchange hides behind a kernel. If nothing fits, what a candidate keeps in memory gets a price, which rises until a plan
fits. With synthesized exchanges, the few plans that promise most are completed, and the fastest is taken.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from einc.errors import CapacityError, InternalError
from einc.graph.graph import Graph
from einc.logical.minsum import minimize
from einc.logical.optimize import optimize
from einc.logical.pins import Pin
from einc.logical.plan import LogicalPlan
from einc.logical.problem import build_problem
from einc.machines.model import Machine
from einc.physical.budget import SearchBudget
from einc.physical.build import build, build_fast
from einc.physical.program import DeviceProgram
from einc.physical.synthesis import Report, SynthesizingScheduler, ignore_report
from einc.search.baselines import build_baselines
from einc.search.evaluation import Assignment, Draft, Evaluator
from einc.search.memory import find_frontier, measure_kept_bytes
from einc.search.neighbours import list_changes, sum_times
from einc.search.orders import list_orders
from einc.search.tables import UNITS_PER_MS, build_time_problem
from einc_runtime.plan.schema import Contender, InputPlacement, MemoryPoint

TIME, TIME_SYNTHESIZED, PAPER, SMALLER, IMPROVED = "time", "time, synthesized", "paper", "less memory", "improved"
"""Names of contenders: the optimum of the time tables for naive and for synthesized exchanges, that of the paper's
cost, the fastest that fits by a price on memory, and what the improvement made of the best. Others are baselines."""

MAX_EFFORT = 16_000
"""Tasks that the improvement may build and predict where no time limit was given: about a second's worth."""

MAX_COMPLETED = 3
"""Plans that are completed with synthesized exchanges."""

MAX_ADDED = 0.3
"""A change is tried if the tables say that it adds at most this part of the predicted time."""

MAX_PRICES = 12
"""Prices of memory that are tried."""

MAX_CHARGE = 1 << 50
"""Picoseconds that a candidate may be charged for memory: 18 minutes."""

WORTH_COMPLETING = 0.995
"""A further plan is completed if it promises at most this part of the time of the best so far."""

Progress = Callable[[str, float], None]
"""Called with what is being done, and the best predicted time so far in ms (0 if unknown)."""


def ignore_progress(what: str, best_ms: float) -> None:
    """Ignores the progress."""


@dataclass(frozen=True, slots=True)
class Found:
    """The plan, and its device program with the exchanges that were asked for; None if no plan fits into memory."""

    plan: LogicalPlan
    program: DeviceProgram | None


def find_fastest(
    graph: Graph,
    machine: Machine,
    sites: int,
    *,
    naive: bool,
    budget: SearchBudget,
    seed: int = 0,
    pins: Sequence[Pin] = (),
    input_placement: InputPlacement = "replicated",
    progress: Progress = ignore_progress,
    report: Report = ignore_report,
) -> Found:
    """The fastest plan that fits, with naive or synthesized exchanges; `pins` fix the cuts of some operators.

    `input_placement` says where inputs and weights lie before the clock starts.
    Raises MachineError where no plan's sites can talk, and UsageError for pins that are not possible.
    """
    budget.begin()
    search = _Search(graph, machine, sites, naive, budget, pins, input_placement, progress)
    search.start()
    search.save_memory()
    search.improve()
    found = search.finish_naive() if naive else search.finish_synthesized(seed, report)
    budget.end()
    return found


class _Search:
    """The state of a search: the contenders by name, and the reasons why others are none."""

    def __init__(
        self,
        graph: Graph,
        machine: Machine,
        sites: int,
        naive: bool,
        budget: SearchBudget,
        pins: Sequence[Pin],
        input_placement: InputPlacement,
        progress: Progress,
    ) -> None:
        progress("weighing cuts by their time", 0.0)
        self._graph = graph
        self._machine = machine
        self._sites = sites
        self._budget = budget
        self._progress = progress
        self._paper = replace(optimize(graph, sites, pins=pins), input_placement=input_placement)
        self._problem = build_problem(graph, sites, flexible=True, pins=pins)
        once = input_placement == "once"
        self._tables = build_time_problem(graph, self._problem, machine, sites, naive=True, once=once)
        self._promises = (
            self._tables if naive else build_time_problem(graph, self._problem, machine, sites, naive=False, once=once)
        )
        effort = math.inf if budget.limited else MAX_EFFORT
        self._evaluator = Evaluator(graph, self._problem, machine, sites, budget, effort, input_placement)
        self._drafts: dict[str, Draft] = {}
        self._reasons: dict[str, str] = {}

    @property
    def _best(self) -> Draft:
        return min(self._drafts.values(), key=lambda draft: draft.rank)

    def start(self) -> None:
        """Predicts the plans that are best by a simple measure."""
        starts: dict[str, Assignment | None] = {
            TIME: minimize(self._tables.own, self._tables.tables),
            PAPER: self._find_assignment(self._paper),
        }
        if self._promises is not self._tables:
            starts[TIME_SYNTHESIZED] = minimize(self._promises.own, self._promises.tables)
        together: set[str] = set()
        for baseline in build_baselines(self._graph, self._problem, self._sites):
            starts[baseline.name] = baseline.chosen
            if not baseline.spread:
                together.add(baseline.name)
            if baseline.reason is not None:
                self._reasons[baseline.name] = baseline.reason
        for name, start in starts.items():
            if start is None:
                self._reasons.setdefault(name, "its tables would be too large")
            elif (draft := self._evaluator.evaluate(start, spread=name not in together)) is not None:
                self._drafts[name] = draft
            else:
                self._reasons[name] = "sites that cannot talk would have to exchange data"
        if not self._drafts:
            build(self._paper, self._machine)  # raises the reason
            raise InternalError("the search refused a plan that can be built")

    def _find_assignment(self, plan: LogicalPlan) -> Assignment:
        """The numbers that the candidates of a plan have here."""
        pairs = zip(self._problem.candidates, plan.choices, strict=True)
        return tuple(
            next(i for i, one in enumerate(options) if one is choice.candidate or one == choice.candidate)
            for options, choice in pairs
        )

    def save_memory(self) -> None:
        """If nothing fits, raises a price on what candidates keep in memory until a plan does, then lowers it again."""
        import numpy as np

        best = self._best
        if not best.excess:
            return
        kept = measure_kept_bytes(self._graph, self._problem)
        price = 0.1 * best.predicted_ms * UNITS_PER_MS / max(1, best.memory)  # picoseconds per byte
        low, high = 0.0, math.inf
        for _ in range(MAX_PRICES):
            if not self._budget.left:
                break
            self._progress("looking for a plan that needs less memory", best.predicted_ms)
            costs = [
                own + np.rint(np.minimum(size * price, MAX_CHARGE)).astype(np.int64)
                for own, size in zip(self._tables.own, kept, strict=True)
            ]
            start = minimize(costs, self._tables.tables)
            draft = None if start is None else self._evaluator.evaluate(start)
            if draft is not None and draft.rank < best.rank:
                best = self._drafts[SMALLER] = draft
            if draft is not None and not draft.excess:
                high = price
            else:
                low = price
            price = price * 4 if high == math.inf else math.sqrt(max(low, high / 16) * high)

    def improve(self) -> None:
        """Descends from the best contender over whole plans, until nothing helps or the effort is spent."""
        best = first = self._best
        tried = True
        while tried and not self._evaluator.exhausted:
            tried = False
            for draft in self._iterate_neighbours(best):
                if draft is not None and draft.rank < best.rank:
                    best = draft
                    tried = True
                    self._progress("improving the fastest plan", best.predicted_ms)
                    break
        if best is not first:
            self._drafts[IMPROVED] = best

    def _iterate_neighbours(self, best: Draft) -> Iterator[Draft | None]:
        limit = MAX_ADDED * best.predicted_ms * UNITS_PER_MS
        for order in list_orders(self._graph):
            if self._evaluator.exhausted:
                return
            yield self._evaluator.evaluate(best.assignment, order, spread=best.spread)
        for change in list_changes(self._tables, best.assignment):
            if self._evaluator.exhausted or change.added > limit:
                return
            changed = list(best.assignment)
            changed[change.node] = change.candidate
            yield self._evaluator.evaluate(changed, best.order, spread=best.spread)

    def finish_naive(self) -> Found:
        """The best contender with naive exchanges."""
        name = min(self._drafts, key=lambda name: self._drafts[name].rank)
        fits = not self._drafts[name].excess
        return self._tell(name, build(self._make_plan(name), self._machine) if fits else None, {})

    def finish_synthesized(self, seed: int, report: Report) -> Found:
        """Completes the contenders that promise most with synthesized exchanges, and takes the fastest."""
        promised = {
            name: min(draft.predicted_ms, sum_times(self._promises, draft.assignment) / UNITS_PER_MS)
            for name, draft in self._drafts.items()
        }
        names = sorted(promised, key=lambda name: (self._drafts[name].excess, promised[name]))
        distinct = {self._drafts[name]: name for name in reversed(names)}
        scheduler = SynthesizingScheduler(self._machine, self._sites, budget=self._budget, seed=seed, report=report)
        completed: dict[str, DeviceProgram] = {}
        for name in [name for name in names if name in distinct.values()]:
            least = min((program.predicted_ms for program in completed.values()), default=math.inf)
            if len(completed) == MAX_COMPLETED or (completed and not self._budget.left):
                break
            if promised[name] > WORTH_COMPLETING * least:
                continue
            with suppress(CapacityError):
                completed[name] = build_fast(self._make_plan(name), self._machine, scheduler)
        if not completed:
            return self._tell(names[0], None, {})
        chosen = min(completed, key=lambda name: completed[name].predicted_ms)
        return self._tell(chosen, completed[chosen], {name: one.predicted_ms for name, one in completed.items()})

    def _make_plan(self, name: str) -> LogicalPlan:
        draft = self._drafts[name]
        return self._evaluator.make_plan(draft.assignment, draft.order, draft.spread)

    def _tell(self, chosen: str, program: DeviceProgram | None, synthesized: dict[str, float]) -> Found:
        """The chosen plan, with what became of all contenders."""
        contenders = [
            Contender(
                name,
                name == chosen,
                synthesized.get(name, draft.predicted_ms),
                draft.memory,
                self._make_plan(name).total_cost,
            )
            for name, draft in self._drafts.items()
        ]
        contenders += [Contender(name, reason=reason) for name, reason in self._reasons.items()]
        points = find_frontier(self._evaluator.list_drafts())
        plan = replace(
            self._make_plan(chosen),
            cut_cost=self._paper.cut_cost,
            contenders=tuple(contenders),
            memory_points=tuple(MemoryPoint(draft.memory, draft.predicted_ms) for draft in points),
        )
        return Found(plan, None if program is None else replace(program, plan=plan))
