"""The selector `fastest`: of the plans that fit into memory, the one that is predicted to end first.

Plans that are best by a simple measure are the start: the optimum of the time tables, that of the paper's cost, and
well-known plans. They are built with naive exchanges and predicted as a whole, and the best is improved: by changes of
one operator, the most promising by the tables first, and by other orders of operators. Only whole plans show where an
exchange hides behind a kernel. If nothing fits, what a candidate keeps in memory gets a price, which rises until a plan
fits. With synthesized exchanges, the few plans that promise most are completed, and the fastest is taken.

Of a graph with many equal layers, plans of a few layers are built; the tables say what the others add. Only the plan
that is chosen is built as a whole.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from einc.errors import InternalError
from einc.graph.graph import Graph
from einc.logical.optimize import choose_by_cuts, optimize
from einc.logical.pins import Pin
from einc.logical.plan import LogicalPlan
from einc.logical.problem import build_problem, connect
from einc.machines.model import Machine
from einc.physical.budget import SearchBudget
from einc.physical.build import build, build_fast
from einc.physical.synthesis import Report, SynthesizingScheduler, ignore_report
from einc.plan_report import Contender, MemoryPoint
from einc.search.completion import (
    MANY_SITES,
    MAX_COMPLETED,
    Completer,
    improve_completed,
    limit_completed,
    limit_threads,
)
from einc.search.descent import descend, try_overlapped_plans, try_small_plans
from einc.search.evaluation import EvaluatedPlan, Evaluator, OmittedLayersCost
from einc.search.exchange_times import has_equal_links
from einc.search.folding import fold_pinned, select_pins
from einc.search.initial_plans import PAPER, SIDE_BY_SIDE, add_optima, find_slow, keep_worthwhile, list_known_starts
from einc.search.memory import charge_layers, find_frontier, find_smaller, measure_sizes, sample_prices
from einc.search.neighbours import sum_times
from einc.search.result import SelectedPlan, select_plan
from einc.search.space import SearchSpace
from einc.search.tables import UNITS_PER_MS, TimeProblem, build_time_problems
from einc_runtime.plan.schema import InputPlacement
from einc_runtime.text import shorten

SMALLER, IMPROVED = "less memory", "improved"
"""Names of contenders beside those that the search starts from (`einc.search.initial_plans`): the fastest that fits by
a price on memory, and what the improvement made of the best."""

MAX_SEARCH_EFFORT = 15_000
"""Tasks that the search may build and predict where no time limit was given: about a second's worth."""

MAX_ATTEMPTS = 4
"""Plans of many layers that are built as a whole, if the first do not fit although plans of a few layers said so."""

MAX_REASON = 300
"""Characters of the reason why there is no such plan."""

CLOSE, MAX_CLOSE_NODES = 1.01, 256
"""Of a folded graph with at most so many nodes, contenders that take this much longer than the best are also built as
a whole: what the tables say of layers that are left out is not exact."""

Progress = Callable[[str, float], None]
"""Called with what is being done, and the best predicted time so far in ms (0 if unknown)."""


def ignore_progress(step: str, best_ms: float) -> None:
    """Ignores the progress."""


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
) -> SelectedPlan:
    """The fastest plan that fits, with naive or synthesized exchanges; `pins` fix the cuts of some operators.

    `input_placement` says where inputs and weights lie before the clock starts. Raises MachineError where no plan's
    sites can talk, and UsageError for pins that are not possible.
    """
    with limit_threads():
        budget.begin()
        search = _Search(graph, machine, sites, naive, budget, pins, input_placement, progress)
        search.start()
        search.improve()
        scheduler = SynthesizingScheduler(machine, sites, search.scheduler, budget=budget, seed=seed, report=report)
        for _ in range(MAX_ATTEMPTS):
            result = search.finish_naive() if naive else search.finish_synthesized(scheduler)
            if result.program is not None or not search.make_stricter(result.plan):
                break
        budget.end()
        return result


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
        self._full_graph = graph
        self._naive = naive
        self._even = has_equal_links(machine, sites)
        self._budget = budget
        self._pins = pins
        self._progress = progress
        self._folded = fold_pinned(graph, pins)
        part = graph if self._folded is None else self._folded.graph
        own_pins = pins if self._folded is None else select_pins(part, pins)
        problem = build_problem(part, sites, flexible=True, pins=own_pins)
        space = SearchSpace(part, problem, machine, sites, input_placement)
        self._paper = optimize(part, sites, pins=own_pins)
        self._space, self._starts = keep_worthwhile(space, list_known_starts(space, self._paper), budget.left)
        self._tables, promises = self._build_tables()
        self._promises = self._tables if naive else promises
        times = None if self._folded is None else self._folded.times
        self._sizes = measure_sizes(part, self._space.problem, times)
        self._omitted_layers_cost = self._find_omitted_layers_cost()
        effort = math.inf if budget.limited else MAX_SEARCH_EFFORT
        self._evaluator = Evaluator(self._space, budget, effort, self._omitted_layers_cost, self._folded)
        self.scheduler = self._evaluator.scheduler  # has planned the naive exchanges of all plans so far
        self._evaluated_plans: dict[str, EvaluatedPlan] = {}
        self._reasons = dict(self._starts.reasons)

    def _build_tables(self) -> tuple[TimeProblem, TimeProblem]:
        """The time tables of the whole graph, over the nodes of the folded one: naive, and synthesized."""
        space, folded = self._space, self._folded
        if folded is None:
            return space.build_time_problems()
        options = folded.expand(space.problem.candidates)
        numbers = folded.stands_for
        return build_time_problems(
            self._full_graph, options, space.machine, space.sites, once=space.once, variables=numbers, known=space.known
        )

    def _find_omitted_layers_cost(self) -> OmittedLayersCost:
        """What the layers add that are not built."""
        if self._folded is None:
            return lambda assignment: (0.0, 0)
        part, _ = self._space.build_time_problems()
        return charge_layers(self._tables, part, self._sizes.kept, self._folded.times)

    @property
    def _best(self) -> EvaluatedPlan:
        return min(self._evaluated_plans.values(), key=lambda evaluated: evaluated.rank)

    def start(self) -> None:
        """Predicts the plans that are best by a simple measure, and looks for smaller ones if none of them fits."""
        added = add_optima(self._starts, self._space, self._tables, None if self._naive else self._promises)
        starts = added.plans
        estimates = {name: sum_times(self._promises, start) for name, start in starts.items() if start is not None}
        if self._budget.limited:  # the most promising ones go first
            starts = dict(sorted(starts.items(), key=lambda item: estimates.get(item[0], math.inf)))
        slow = find_slow(starts, self._tables, self._promises, even=self._even, many=self._space.sites > MANY_SITES)
        for name, start in starts.items():
            if start is None:
                self._reasons[name] = "its tables would be too large"
            elif name in slow and name != SIDE_BY_SIDE:
                self._reasons[name] = f"about {estimates[name] / UNITS_PER_MS:.4g} ms by the time tables"
            elif self._evaluated_plans and self._evaluator.hurried:
                self._reasons[name] = "no time was left to build it"
            elif (evaluated := self._evaluator.evaluate(start, spread=name not in added.together)) is not None:
                self._evaluated_plans[name] = evaluated
            else:
                self._reasons[name] = "sites that cannot talk would have to exchange data"
        if not self._evaluated_plans:
            build(self._paper, self._space.machine)  # raises the reason
            raise InternalError("the search refused a plan that can be built")
        self._find_smaller()

    def _find_smaller(self) -> None:
        """Looks for a plan that needs less memory if the fastest of the contenders does not fit."""
        evaluated_plans = list(self._evaluated_plans.values())
        if not min(evaluated_plans, key=lambda evaluated: evaluated.predicted_ms).excess:
            return
        self._progress("looking for a plan that needs less memory", self._best.predicted_ms)
        smaller = find_smaller(self._evaluator, self._tables, self._sizes, evaluated_plans)
        if smaller is not None:
            self._evaluated_plans[SMALLER] = smaller

    def improve(self) -> None:
        """Descends from the best contenders over whole plans, and looks at some that need less memory."""
        first = self._best

        def report(best_ms: float) -> None:
            self._progress("improving the fastest plan", best_ms)

        report(first.predicted_ms)
        if self._folded is not None:  # the whole is built twice at last
            self._budget.reserve(
                2 * self._evaluator.seconds * len(self._full_graph.nodes) / len(self._space.graph.nodes)
            )
        starts = list(self._evaluated_plans.values())
        if self._folded is None:
            starts += try_small_plans(self._evaluator, self._tables, self._best)
            starts += try_overlapped_plans(self._evaluator, self._tables, starts)
        best = descend(self._evaluator, self._tables, starts, reorder=self._folded is None, report=report)
        if best is not first:
            self._evaluated_plans[IMPROVED] = best
        if SMALLER not in self._evaluated_plans:
            sampled = sample_prices(self._evaluator, self._tables, self._sizes, list(self._evaluated_plans.values()))
            if sampled and (least := min(sampled, key=lambda evaluated: evaluated.rank)).rank < best.rank:
                self._evaluated_plans[SMALLER] = least

    def make_stricter(self, refused: LogicalPlan) -> bool:
        """After the whole plan of a contender that should fit did not: whether there is another one to try.

        What it needs beyond what plans of a few layers said is set aside for all plans.
        """
        if self._best.excess or self._folded is None:
            return False
        name = next(contender.name for contender in refused.contenders if contender.chosen)
        program = build(refused, self._space.machine, check_memory=False)
        self._evaluator.set_aside(max(1, max(program.memory) - self._evaluated_plans[name].memory))
        self._evaluated_plans = {
            name: self._evaluator.renew(evaluated) for name, evaluated in self._evaluated_plans.items()
        }
        self._find_smaller()
        return not self._best.excess

    def finish_naive(self) -> SelectedPlan:
        """The best contender with naive exchanges."""
        name = min(self._evaluated_plans, key=lambda name: self._evaluated_plans[name].rank)
        if self._evaluated_plans[name].excess:
            return SelectedPlan(self._complete(name, {}), None)
        self._progress("placing blocks and moving data", self._evaluated_plans[name].predicted_ms)
        fitting = {
            name: evaluated.predicted_ms for name, evaluated in self._evaluated_plans.items() if not evaluated.excess
        }
        plans = [self._complete(name, {}) for name in self._list_close(fitting)]
        return select_plan(plans, lambda plan: build(plan, self._space.machine))

    def finish_synthesized(self, scheduler: SynthesizingScheduler) -> SelectedPlan:
        """Completes the contenders that promise most with synthesized exchanges, and takes the fastest.

        Where links differ, it is improved before, unless layers are left out.
        """
        completer = Completer(self._evaluator, scheduler, self._folded)
        times = self._complete_contenders(completer)
        if not times:
            return SelectedPlan(self._complete(self._rank_by_promise()[0], {}), None)
        if not self._even and self._folded is None:
            best = improve_completed(
                completer, self._promises, lambda ms: self._progress("improving the fastest plan", ms)
            )
            if completer.times[best] < min(times.values()):
                self._evaluated_plans[IMPROVED] = best
                times[IMPROVED] = completer.times[best]
        chosen = min(times, key=lambda name: times[name])
        shown = {
            name: completer.times[evaluated]
            for name, evaluated in self._evaluated_plans.items()
            if evaluated in completer.times
        }
        memory = {
            name: max(completer.programs[evaluated].memory)
            for name, evaluated in self._evaluated_plans.items()
            if self._folded is None and evaluated in completer.programs
        }
        plans = [self._complete(name, shown, memory) for name in self._list_close(times)]
        if self._folded is None:
            return SelectedPlan(plans[0], replace(completer.programs[self._evaluated_plans[chosen]], plan=plans[0]))
        promised_ms = CLOSE * times[chosen]  # with naive exchanges, the few layers of each took longer
        machine = self._space.machine
        return select_plan(plans, lambda plan: build_fast(plan, machine, scheduler, promised_ms=promised_ms))

    def _rank_by_promise(self) -> list[str]:
        """The contenders that fit, and then the others; those that promise most first."""
        promised = {name: self._promise(evaluated) for name, evaluated in self._evaluated_plans.items()}
        return sorted(promised, key=lambda name: (self._evaluated_plans[name].excess, promised[name]))

    def _complete_contenders(self, completer: Completer) -> dict[str, float]:
        """Completes the contenders that promise most. The times in ms of those that fit, by their names."""
        names = self._rank_by_promise()
        times: dict[str, float] = {}
        most, worth = limit_completed(self._space.sites, even=self._even, folded=self._folded is not None)
        # Where using idle sites makes no difference to the time, nothing runs beside anything else: that is one plan.
        spread_plans = {replace(self._evaluated_plans[name], spread=True): name for name in reversed(names)}
        waiting = [name for name in names if name in spread_plans.values()]
        if not (few := self._space.sites <= MANY_SITES):
            waiting.sort(key=lambda name: self._evaluated_plans[name].rank)
        if (few and not self._even) or self._space.once:  # so that no simpler selector does better
            paper_plan = spread_plans[replace(self._evaluated_plans.get(PAPER, self._best), spread=True)]
            waiting.sort(key=lambda name: name != paper_plan)
        for name in waiting:
            if len(times) >= most or (times and not self._budget.left):
                break
            evaluated = self._evaluated_plans[name]
            if times and not completer.may_be_faster(evaluated, min(times.values())):
                continue
            if self._folded is not None and evaluated.excess:
                continue  # a few layers of it fit, and the whole does not
            if self._promise(evaluated) <= worth * min(times.values(), default=math.inf):
                completed = completer.complete(evaluated)
                if completed is not None:
                    times[name] = completed
        # Promises err, and no plan may be slower than one that was built with naive exchanges.
        name = min(self._evaluated_plans, key=lambda name: self._evaluated_plans[name].rank)
        if times and not self._best.excess and self._best.predicted_ms < min(times.values()):
            completed = completer.complete(self._best)
            if completed is not None:
                times[name] = completed
        return times

    def _list_close(self, times: Mapping[str, float]) -> list[str]:
        """The fastest contender, and of a folded graph all that may be faster as a whole, if it is not large."""
        ranked = sorted(times, key=lambda name: times[name])
        several = (
            self._folded is not None and len(self._full_graph.nodes) <= MAX_CLOSE_NODES and not self._budget.limited
        )
        distinct = {self._evaluated_plans[name]: name for name in reversed(ranked)}
        close = [name for name in ranked if times[name] <= CLOSE * times[ranked[0]] and name in distinct.values()]
        return close[: MAX_COMPLETED if several else 1]

    def _promise(self, evaluated: EvaluatedPlan) -> float:
        """About what a plan takes with the exchanges that were asked for, in ms."""
        if self._naive:
            return evaluated.predicted_ms
        return min(evaluated.predicted_ms, sum_times(self._promises, evaluated.assignment) / UNITS_PER_MS)

    def _complete(
        self, chosen: str, times: Mapping[str, float], memory: Mapping[str, int] | None = None
    ) -> LogicalPlan:
        """The plan of a contender for the whole graph, with what became of all contenders.

        `times` are those of contenders that were completed with synthesized exchanges, `memory` what they take if they
        were completed as a whole.
        """
        if self._folded is None:
            plans = {name: self._evaluator.make_plan(evaluated) for name, evaluated in self._evaluated_plans.items()}
            cut_cost = self._paper.cut_cost
        else:
            problem = connect(self._full_graph, self._folded.expand(self._space.problem.candidates))
            order = tuple(range(len(self._full_graph.nodes)))
            full_space = replace(self._space, graph=self._full_graph, problem=problem)
            plans = {
                name: full_space.make_plan(self._folded.expand(evaluated.assignment), order, evaluated.spread)
                for name, evaluated in self._evaluated_plans.items()
            }
            strict = build_problem(self._full_graph, self._space.sites, pins=self._pins)
            cut_cost = strict.cost(choose_by_cuts(strict))
        contenders = [
            Contender(
                name,
                name == chosen,
                times.get(name, evaluated.predicted_ms),
                (memory or {}).get(name, evaluated.memory),
                plans[name].total_cost,
                synthesized=name in times,
                promised_ms=None if self._naive or name in times else self._promise(evaluated),
            )
            for name, evaluated in self._evaluated_plans.items()
        ]
        contenders += [Contender(name, reason=shorten(reason, MAX_REASON)) for name, reason in self._reasons.items()]
        points = find_frontier(self._evaluator.list_evaluated())
        return replace(
            plans[chosen],
            cut_cost=cut_cost,
            contenders=tuple(contenders),
            memory_points=tuple(MemoryPoint(evaluated.memory, evaluated.predicted_ms) for evaluated in points),
        )
