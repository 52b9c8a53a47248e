"""The end of a search: the plan of the best contender for the whole graph, and its device program."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from einc.errors import CapacityError
from einc.logical.plan import LogicalPlan
from einc.physical.build import build, build_fast
from einc.physical.program import DeviceProgram
from einc.plan_report import Contender, MemoryPoint
from einc.search.completion import MAX_COMPLETED, Completer
from einc.search.initial_plans import KNOWN
from einc.search.memory import find_frontier
from einc.search.passes import Search, SearchState, rank_by_promise
from einc.search.result import SelectedPlan
from einc_runtime.text import shorten

MAX_REASON = 300
"""Characters of the reason why there is no such plan."""

MAX_CLOSE_RATIO = 1.01
"""Of a folded graph, contenders that take this much longer than the best are also built as a whole: what the tables say
of layers that are left out is not exact."""


def finish(search: Search, state: SearchState) -> SelectedPlan:
    """The fastest contender with the exchanges that were asked for; without a program if none fits after all."""
    return _finish_naive(search, state) if search.completer is None else _finish(search, state, search.completer)


def _finish_naive(search: Search, state: SearchState) -> SelectedPlan:
    if state.best.excess:
        return SelectedPlan(_describe(search, state, state.best_name), None)
    search.progress("placing blocks and moving data", state.best.predicted_ms)
    fitting = {name: evaluated.predicted_ms for name, evaluated in state.contenders.items() if not evaluated.excess}
    plans = [_describe(search, state, name) for name in _list_close(search, state, fitting)]
    return _select(plans, lambda plan: build(plan, search.problem.space.machine))


def _finish(search: Search, state: SearchState, completer: Completer) -> SelectedPlan:
    problem, machine = search.problem, search.problem.space.machine
    if not state.times:
        return SelectedPlan(_describe(search, state, rank_by_promise(search, state)[0]), None)
    completed = {name: plan for name, plan in state.contenders.items() if plan in completer.times}
    times = {name: completer.times[plan] for name, plan in completed.items()}
    names = _list_close(search, state, state.times)
    if problem.folded is None:
        memory = {name: max(completer.programs[plan].memory) for name, plan in completed.items()}
        plan = _describe(search, state, names[0], times, memory)
        return SelectedPlan(plan, replace(completer.programs[state.contenders[names[0]]], plan=plan))
    plans = [_describe(search, state, name, times) for name in names]
    return _select(plans, lambda plan: build_fast(plan, machine, completer.scheduler))


def _select(plans: Sequence[LogicalPlan], build_program: Callable[[LogicalPlan], DeviceProgram]) -> SelectedPlan:
    """The fastest of the plans with its program, or the first one without a program if none fits after all."""
    result = SelectedPlan(plans[0], None)
    for plan in plans:
        with suppress(CapacityError):
            program = build_program(plan).forget_times()
            if result.program is None or program.predicted_ms < result.program.predicted_ms:
                result = SelectedPlan(plan, program)
    return result


def _list_close(search: Search, state: SearchState, times: Mapping[str, float]) -> list[str]:
    """The fastest contender, and of a folded graph all that may be faster as a whole."""
    ranked = sorted(times, key=lambda name: times[name])
    several = search.problem.folded is not None and not search.budget.limited
    distinct = {state.contenders[name]: name for name in reversed(ranked)}
    close = [name for name in ranked if times[name] <= MAX_CLOSE_RATIO * times[ranked[0]] and name in distinct.values()]
    few = close[:MAX_COMPLETED]
    return [name for name in close if name in few or name in KNOWN] if several else close[:1]


def _describe(
    search: Search,
    state: SearchState,
    chosen: str,
    times: Mapping[str, float] | None = None,
    memory: Mapping[str, int] | None = None,
) -> LogicalPlan:
    """The plan of a contender for the whole graph, with what became of all contenders.

    `times` are those of contenders that were completed with synthesized exchanges, `memory` what they take if they
    were completed as a whole.
    """
    problem, times, memory = search.problem, times or {}, memory or {}
    plans = dict(zip(state.contenders, problem.make_whole_plans(list(state.contenders.values())), strict=True))
    contenders = [
        Contender(
            name,
            name == chosen,
            times.get(name, evaluated.predicted_ms),
            memory.get(name, evaluated.memory),
            plans[name].total_cost,
            synthesized=name in times,
            promised_ms=None if problem.naive or name in times else problem.promise(evaluated),
        )
        for name, evaluated in state.contenders.items()
    ]
    contenders += [Contender(name, reason=shorten(reason, MAX_REASON)) for name, reason in state.reasons.items()]
    points = find_frontier(search.evaluator.list_evaluated())
    return replace(
        plans[chosen],
        cut_cost=problem.find_cut_cost(),
        contenders=tuple(contenders),
        memory_points=tuple(MemoryPoint(evaluated.memory, evaluated.predicted_ms) for evaluated in points),
    )
