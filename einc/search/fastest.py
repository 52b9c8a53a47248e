"""The selector `fastest`: of the plans that fit into memory, the one that is predicted to end first.

A plan x chooses for every operator v a candidate c_v (how it is cut, and on how many sites), an order of the operators,
and whether operators that leave sites idle run side by side. With C_v the candidates that operators and pins allow:

    minimize    T(x)                                              the predicted time of the whole plan
    subject to  c_v in C_v                for every operator v
                M_s(x) <= memory of s     for every site s        the arena of its device program

T is the simulation of the device program that x makes (`einc.predict`), and M_s its memory plan: what hides behind what
is known only then. Where nothing fits, the search goes on to the plan with the least excess over all sites, max over s
of M_s(x) - memory of s, so that plans are ranked by (excess, T). Before plans are built they are estimated by time
tables, whose exact minimum is found (`einc.logical.minsum`):

    t(x) = sum over v of a_v(c_v)  +  sum over exchanges e of b_e(the candidates that e connects)

a_v is the slowest kernel of a candidate, b_e what an exchange takes alone, naive or synthesized. A price p on memory
adds p times the bytes that c_v keeps to a_v. Of a graph with many equal layers, a few are built (T of these), and the
tables say what the others add.

`PASSES` are the steps of the search; each makes a state with contenders of another one (`einc.search.passes`), and
`einc compile --emit search` shows what became of every state:

    starts              minima of t and of the paper's cost, and well-known plans, are built
    fit memory          p rises until a plan fits, if the fastest of the contenders does not
    improve             descent over T by changes of an operator or two, and of the order
    sample memory       minima of t at three prices, although something fits
    complete            those that promise most are built with synthesized exchanges
    improve completed   where links differ, descent over T with these exchanges

Then the best is built as a whole (`einc.search.finishing`). If the whole does not fit although a few layers said so,
what it needs beyond is set aside for all plans, and the search goes on with `fit memory` and `complete`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from einc.graph.graph import Graph
from einc.logical.pins import Pin
from einc.logical.plan import LogicalPlan
from einc.machines.model import Machine
from einc.physical.budget import SearchBudget
from einc.physical.build import build
from einc.physical.synthesis import Report, SynthesizingScheduler, ignore_report
from einc.search.completion import Completer, limit_threads
from einc.search.evaluation import Evaluator
from einc.search.finishing import finish
from einc.search.initial_plans import KNOWN, add_optima
from einc.search.neighbours import sum_times
from einc.search.passes import (
    KNOWN_EFFORT,
    Pass,
    Progress,
    Search,
    SearchState,
    complete,
    describe_pass,
    fit_memory,
    improve,
    improve_completion,
    predict_starts,
    sample_memory,
    set_aside,
)
from einc.search.problem import pose_problem
from einc.search.result import SelectedPlan
from einc_runtime.plan.schema import InputPlacement

MAX_SEARCH_EFFORT = KNOWN_EFFORT
"""Tasks that the search may build and predict where no time limit was given: about a second's worth."""

MAX_ATTEMPTS = 4
"""Plans of many layers that are built as a whole, if the first do not fit although plans of a few layers said so."""

PASSES: Mapping[str, Pass] = {
    "starts": predict_starts,
    "fit memory": fit_memory,
    "improve": improve,
    "sample memory": sample_memory,
    "complete": complete,
    "improve completed": improve_completion,
}

_LOOKING = ("starts", "fit memory", "improve", "sample memory")
_COMPLETING = ("complete", "improve completed")


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
        progress("weighing cuts by their time", 0.0)
        problem = pose_problem(
            graph, machine, sites, naive=naive, pins=pins, input_placement=input_placement, seconds=budget.left
        )
        effort = math.inf if budget.limited else MAX_SEARCH_EFFORT
        evaluator = Evaluator(problem.space, budget, effort, problem.find_omitted_layers_cost(), problem.folded)
        scheduler = SynthesizingScheduler(
            machine, sites, evaluator.scheduler, budget=budget, seed=seed, report=report
        )  # the naive one has planned the exchanges of all plans before
        walk: list[str] = []
        search, state = Search(problem, evaluator, budget, progress), SearchState()
        state = _run(_LOOKING, search, state, walk)
        for _ in range(MAX_ATTEMPTS):
            if not naive:
                search = replace(search, completer=Completer(evaluator, scheduler, problem.folded))
            state = _run(_COMPLETING, search, state, walk)
            result = finish(search, state)
            if result.program is not None or state.best.excess or problem.folded is None:
                break
            state = set_aside(search, state, _measure_lack(search, state, result))
            state = _run(["fit memory"], search, state, walk)
            if state.best.excess:
                break
        budget.end()
        return replace(result, walk=tuple(walk))


def promise_plans(
    graph: Graph, machine: Machine, sites: int, *, naive: bool, input_placement: InputPlacement = "replicated"
) -> dict[str, LogicalPlan]:
    """The plan that the time tables promise most of, and well-known ones, by name, those first of which they promise
    most; none is built. For graphs of which building one takes long."""
    with limit_threads():
        problem = pose_problem(
            graph, machine, sites, naive=naive, pins=(), input_placement=input_placement, seconds=math.inf
        )
        starts = add_optima(problem.starts, problem.space, problem.tables, None if naive else problem.promises).plans
        plans = {name: plan for name, plan in starts.items() if plan is not None}
        ranked = sorted(plans, key=lambda name: sum_times(problem.promises, plans[name]))
        kept, order = [name for name in ranked if name == ranked[0] or name in KNOWN], tuple(range(len(graph.nodes)))
        return {name: problem.space.make_plan(plans[name], order, spread=False) for name in kept}


def _run(names: Sequence[str], search: Search, state: SearchState, walk: list[str]) -> SearchState:
    """The state after these passes; `walk` gets the text of each."""
    for name in names:
        after = PASSES[name](search, state)
        walk.append(describe_pass(name, state, after))
        state = after
    return state


def _measure_lack(search: Search, state: SearchState, refused: SelectedPlan) -> int:
    """What a whole plan needs beyond what a few of its layers said, in bytes; one byte at least."""
    name = next(contender.name for contender in refused.plan.contenders if contender.chosen)
    program = build(refused.plan, search.problem.space.machine, check_memory=False)
    return max(1, max(program.memory) - state.contenders[name].memory)
