"""The passes of a search: each makes a state of another one, and neither is changed.

What passes share beside states is in `Search`: the problem, and what builds plans, which remembers those that it has
built. It decides nothing, so that a pass can be tried alone, from any state.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from einc.errors import InternalError
from einc.machines.site_counts import MANY_SITES
from einc.physical.budget import SearchBudget
from einc.physical.build import build
from einc.search.completion import WORTH_COMPLETING, Completer, improve_completed, limit_completed
from einc.search.descent import descend, ignore_better, improve_by_estimates, try_overlapped_plans, try_small_plans
from einc.search.evaluation import EvaluatedPlan, Evaluator
from einc.search.initial_plans import KNOWN, PAPER, SIDE_BY_SIDE, add_optima, find_slow
from einc.search.memory import find_smaller, sample_prices
from einc.search.neighbours import sum_times
from einc.search.problem import SearchProblem
from einc.search.tables import UNITS_PER_MS
from einc_runtime.text import format_memory

SMALLER, IMPROVED = "less memory", "improved"
"""Names of contenders beside those that the search starts from (`einc.search.initial_plans`): the fastest that fits by
a price on memory, and what the improvement made of the best."""

KNOWN_EFFORT, MAX_KNOWN_SITES = 15_000, 32
"""Tasks that may be built to improve the best well-known plan, too, on more than MANY_SITES and up to so many sites:
few changes of each plan can be tried there, and it may lead further than the optima of the time tables. On more sites
that takes seconds. Half of it may be spent on improving a plan where inputs lie once and links differ."""

Progress = Callable[[str, float], None]
"""Called with what is being done, and the best predicted time so far in ms (0 if unknown)."""


@dataclass(frozen=True, slots=True)
class SearchState:
    """Where a search stands: the contenders by name, and the reasons why others are none.

    `times` are in ms, of the contenders that were completed with synthesized exchanges and fit.
    """

    contenders: Mapping[str, EvaluatedPlan] = field(default_factory=dict)
    reasons: Mapping[str, str] = field(default_factory=dict)
    times: Mapping[str, float] = field(default_factory=dict)

    @property
    def best_name(self) -> str:
        """The fastest contender that fits, with naive exchanges; the smallest one if none does."""
        return min(self.contenders, key=lambda name: self.contenders[name].rank)

    @property
    def best(self) -> EvaluatedPlan:
        return self.contenders[self.best_name]

    def add(self, name: str, evaluated: EvaluatedPlan, ms: float | None = None) -> SearchState:
        """The state with a further contender, which takes `ms` with synthesized exchanges if it was completed."""
        times = self.times if ms is None else {**self.times, name: ms}
        return replace(self, contenders={**self.contenders, name: evaluated}, times=times)


@dataclass(frozen=True, slots=True, eq=False)
class Search:
    """What all passes use. `completer` is None before plans are completed, and where naive exchanges were asked for."""

    problem: SearchProblem
    evaluator: Evaluator
    budget: SearchBudget
    progress: Progress
    completer: Completer | None = None


Pass = Callable[[Search, SearchState], SearchState]


def predict_starts(search: Search, state: SearchState) -> SearchState:
    """Predicts the plans that are best by a simple measure, and well-known ones, as whole plans."""
    problem, evaluator = search.problem, search.evaluator
    added = add_optima(problem.starts, problem.space, problem.tables, None if problem.naive else problem.promises)
    starts = added.plans
    estimates = {name: sum_times(problem.promises, start) for name, start in starts.items() if start is not None}
    if search.budget.limited:  # the most promising ones go first
        starts = dict(sorted(starts.items(), key=lambda item: estimates.get(item[0], math.inf)))
    many = problem.space.sites > MANY_SITES
    slow = find_slow(starts, problem.tables, problem.promises, even=problem.even, many=many)
    contenders, reasons = dict(state.contenders), {**state.reasons, **problem.starts.reasons}
    for name, start in starts.items():
        if start is None:
            reasons[name] = "its tables would be too large"
        elif name in slow and name != SIDE_BY_SIDE:
            reasons[name] = f"about {estimates[name] / UNITS_PER_MS:.4g} ms by the time tables"
        elif contenders and evaluator.hurried:
            reasons[name] = "no time was left to build it"
        elif (evaluated := evaluator.evaluate(start, spread=name not in added.together)) is not None:
            contenders[name] = evaluated
        else:
            reasons[name] = "sites that cannot talk would have to exchange data"
    if not contenders:
        build(problem.paper, problem.space.machine)  # raises the reason
        raise InternalError("the search refused a plan that can be built")
    return replace(state, contenders=contenders, reasons=reasons)


def fit_memory(search: Search, state: SearchState) -> SearchState:
    """Looks for a plan that needs less memory if the fastest of the contenders does not fit."""
    evaluated_plans = list(state.contenders.values())
    if not min(evaluated_plans, key=lambda evaluated: evaluated.predicted_ms).excess:
        return state
    search.progress("looking for a plan that needs less memory", state.best.predicted_ms)
    smaller = find_smaller(search.evaluator, search.problem.tables, search.problem.sizes, evaluated_plans)
    return state if smaller is None else state.add(SMALLER, smaller)


def improve(search: Search, state: SearchState) -> SearchState:
    """Descends from the best contenders over whole plans; of a small graph, also from plans in which much overlaps."""
    problem, evaluator, first = search.problem, search.evaluator, state.best

    def report(ms: float) -> None:
        search.progress("improving the fastest plan", ms)

    report(first.predicted_ms)
    once, built_whole = problem.space.once, problem.folded is None
    starts = list(state.contenders.values())
    if not built_whole:  # it is built twice at last
        times_larger = len(problem.graph.nodes) / len(problem.space.graph.nodes)
        search.budget.reserve(2 * evaluator.seconds * times_larger)
    else:
        starts += try_small_plans(evaluator, problem.tables, first)
        if once and problem.even:
            first = improve_by_estimates(evaluator, problem.tables, starts, report)
        starts += try_overlapped_plans(evaluator, problem.tables, starts)
    descended = descend(evaluator, problem.tables, starts, reorder=built_whole, report=report)
    best = min(first, descended, key=lambda evaluated: evaluated.rank)
    known = [evaluated for name, evaluated in state.contenders.items() if name in KNOWN]
    if known and MANY_SITES < problem.space.sites <= MAX_KNOWN_SITES:
        start = min(known, key=lambda evaluated: evaluated.rank)
        with evaluator.allow(KNOWN_EFFORT):
            descended = descend(evaluator, problem.tables, [start], reorder=built_whole, report=ignore_better)
        best = min(best, descended, key=lambda evaluated: evaluated.rank)
    if once and built_whole and not problem.even:
        with evaluator.allow(KNOWN_EFFORT / 2):
            best = improve_by_estimates(evaluator, problem.tables, [best, *starts], report)
    return state if best is state.best else state.add(IMPROVED, best)


def sample_memory(search: Search, state: SearchState) -> SearchState:
    """Looks at some plans that need less memory, although the fastest fits; one of them may be faster."""
    if SMALLER in state.contenders:
        return state
    problem, evaluated_plans = search.problem, list(state.contenders.values())
    sampled = sample_prices(search.evaluator, problem.tables, problem.sizes, evaluated_plans)
    least = min(sampled, key=lambda evaluated: evaluated.rank, default=state.best)
    return state.add(SMALLER, least) if least.rank < state.best.rank else state


def complete(search: Search, state: SearchState) -> SearchState:
    """Completes the contenders that promise most with synthesized exchanges."""
    problem, completer = search.problem, search.completer
    if completer is None:
        return state
    times: dict[str, float] = {}
    most, worth = limit_completed(problem.space.sites, even=problem.even, folded=problem.folded is not None)
    few = problem.space.sites <= MANY_SITES
    for name in _list_worth_completing(search, state):
        if times and not search.budget.left:
            break
        # A well-known plan that is nearly as fast is completed in any case, so that it is not faster after all.
        is_known = few and name in KNOWN
        if len(times) >= most and not is_known:
            continue
        evaluated = state.contenders[name]
        if times and not completer.may_be_faster(evaluated, min(times.values())):
            continue
        if problem.folded is not None and evaluated.excess:
            continue  # a few layers of it fit, and the whole does not
        limit = max(worth, WORTH_COMPLETING) if is_known else worth
        if problem.promise(evaluated) <= limit * min(times.values(), default=math.inf):
            completed_ms = completer.complete(evaluated)
            if completed_ms is not None:
                times[name] = completed_ms
    # Promises err, and no plan may be slower than one that was built with naive exchanges.
    if times and not state.best.excess and state.best.predicted_ms < min(times.values()):
        completed_ms = completer.complete(state.best)
        if completed_ms is not None:
            times[state.best_name] = completed_ms
    return replace(state, times=times)


def rank_by_promise(search: Search, state: SearchState) -> list[str]:
    """The contenders that fit, and then the others; those that promise most first."""
    promised = {name: search.problem.promise(evaluated) for name, evaluated in state.contenders.items()}
    return sorted(promised, key=lambda name: (state.contenders[name].excess, promised[name]))


def _list_worth_completing(search: Search, state: SearchState) -> list[str]:
    """The contenders in the order in which they are completed, each plan once."""
    problem, contenders, names = search.problem, state.contenders, rank_by_promise(search, state)
    # Where using idle sites makes no difference to the time, nothing runs beside anything else: that is one plan.
    spread_plans = {replace(contenders[name], spread=True): name for name in reversed(names)}
    waiting = [name for name in names if name in spread_plans.values()]
    few = problem.space.sites <= MANY_SITES
    if not few:
        waiting.sort(key=lambda name: contenders[name].rank)
    if (few and not problem.even) or problem.space.once:  # so that no simpler selector does better
        paper_plan = spread_plans[replace(contenders.get(PAPER, state.best), spread=True)]
        waiting.sort(key=lambda name: name != paper_plan)
    return waiting


def improve_completion(search: Search, state: SearchState) -> SearchState:
    """Improves completed plans where links differ, unless layers are left out."""
    problem, completer = search.problem, search.completer
    if completer is None or not state.times or problem.even or problem.folded is not None:
        return state
    best = improve_completed(completer, problem.promises, lambda ms: search.progress("improving the fastest plan", ms))
    faster = completer.times[best] < min(state.times.values())
    return state.add(IMPROVED, best, completer.times[best]) if faster else state


def set_aside(search: Search, state: SearchState, size: int) -> SearchState:
    """The state where every plan needs so many more bytes at every site."""
    search.evaluator.set_aside(size)
    contenders = {name: search.evaluator.renew(evaluated) for name, evaluated in state.contenders.items()}
    return replace(state, contenders=contenders, times={})


def describe_pass(name: str, before: SearchState, after: SearchState) -> str:
    """The contenders that a pass added, changed or completed, best first, and why others are none."""
    lines = [f"# {name}: {len(after.contenders)} contenders, the best of them is {after.best_name}"]
    for title, evaluated in sorted(after.contenders.items(), key=lambda item: item[1].rank):
        if before.contenders.get(title) == evaluated and before.times.get(title) == after.times.get(title):
            continue
        line = f"{title}: {evaluated.predicted_ms:.6g} ms with naive exchanges, {format_memory(evaluated.memory)}"
        line += f", {format_memory(evaluated.excess)} too much" if evaluated.excess else ""
        line += f"; {after.times[title]:.6g} ms with synthesized exchanges" if title in after.times else ""
        lines.append(line)
    lines += [f"{title}: {reason}" for title, reason in after.reasons.items() if title not in before.reasons]
    return "\n".join(lines) + "\n"
