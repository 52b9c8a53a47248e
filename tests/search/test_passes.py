"""Each pass of the search by itself: what it adds to a state that is given, and that the state stays as it was."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from einc.graph.graph import Graph
from einc.machines.load import load_machine
from einc.machines.model import Machine
from einc.physical.budget import SearchBudget
from einc.physical.synthesis import SynthesizingScheduler
from einc.search import completion, passes
from einc.search.completion import Completer
from einc.search.evaluation import EvaluatedPlan, Evaluator
from einc.search.fastest import PASSES, find_fastest, ignore_progress
from einc.search.initial_plans import PAPER
from einc.search.neighbours import list_changes
from einc.search.passes import IMPROVED, SMALLER, Search, SearchState
from einc.search.problem import pose_problem
from tests.support.search_toys import draw_graph

A100 = load_machine("dgx-a100")


def prepare(graph: Graph, machine: Machine = A100, sites: int = 4, *, naive: bool = True) -> Search:
    problem = pose_problem(graph, machine, sites, naive=naive, pins=(), input_placement="replicated", seconds=math.inf)
    evaluator = Evaluator(problem.space, SearchBudget(), math.inf, problem.find_omitted_layers_cost())
    return Search(problem, evaluator, SearchBudget(), ignore_progress)


def start_at(search: Search, name: str = PAPER) -> SearchState:
    """The state with one plan, that is best by the paper's cost unless another start is named."""
    assignment = search.problem.starts.plans[name]
    assert assignment is not None
    evaluated = search.evaluator.evaluate(assignment)
    assert evaluated is not None
    return SearchState({name: evaluated})


def test_the_starts_have_the_least_times_of_the_tables_and_well_known_plans() -> None:
    search = prepare(draw_graph(11))
    state = passes.predict_starts(search, SearchState())
    assert {"time", PAPER} <= set(state.contenders)
    assert not set(state.contenders) & set(state.reasons)
    assert set(search.problem.starts.plans) <= set(state.contenders) | set(state.reasons)
    assert all(evaluated in search.evaluator.list_evaluated() for evaluated in state.contenders.values())


@pytest.mark.parametrize("seed", [3, 11])
def test_no_change_of_an_operator_helps_after_the_improvement(seed: int) -> None:
    search = prepare(draw_graph(seed, most=2))
    before = start_at(search)
    after = passes.improve(search, before)
    assert set(before.contenders) == {PAPER}
    best = after.best
    assert best.rank <= before.best.rank
    assert (IMPROVED in after.contenders) == (best != before.best)
    for change in list_changes(search.problem.tables, best.assignment):
        neighbour = search.evaluator.evaluate(change.apply(best.assignment), best.order, spread=best.spread)
        assert neighbour is None or neighbour.rank >= best.rank


def test_memory_matters_only_where_the_fastest_does_not_fit() -> None:
    search = prepare(draw_graph(11))
    state = passes.predict_starts(search, SearchState())
    assert passes.fit_memory(search, state) is state
    fastest = min(state.contenders.values(), key=lambda evaluated: evaluated.predicted_ms)
    tight = prepare(draw_graph(11), A100.limit_memory(fastest.memory - 1))
    crowded = passes.predict_starts(tight, SearchState())
    fitted = passes.fit_memory(tight, crowded)
    assert fitted.best.excess <= crowded.best.excess
    assert set(fitted.contenders) - set(crowded.contenders) <= {SMALLER}
    assert passes.sample_memory(tight, fitted.add(SMALLER, fitted.best)).contenders[SMALLER] is fitted.best


def test_plans_are_completed_only_where_synthesized_exchanges_were_asked_for() -> None:
    machine = load_machine("dgx-v100")
    graph = draw_graph(305)
    naive = prepare(graph, machine)
    state = passes.predict_starts(naive, SearchState())
    assert passes.complete(naive, state) is passes.improve_completion(naive, state) is state
    search = prepare(graph, machine, naive=False)
    scheduler = SynthesizingScheduler(machine, 4, search.evaluator.scheduler, budget=SearchBudget())
    search = replace(search, completer=Completer(search.evaluator, scheduler, None))
    state = passes.predict_starts(search, SearchState())
    completed = passes.complete(search, state)
    assert completed.contenders == state.contenders
    assert min(completed.times.values()) <= state.best.predicted_ms
    improved = passes.improve_completion(search, completed)
    assert min(improved.times.values()) <= min(completed.times.values())


def test_a_well_known_plan_that_is_nearly_as_fast_is_completed_beside_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """On few sites, however many are completed, and although a folded graph asks for more."""
    graph, machine = draw_graph(305), load_machine("dgx-h100")
    search = prepare(graph, machine, naive=False)
    scheduler = SynthesizingScheduler(machine, 4, search.evaluator.scheduler, budget=SearchBudget())
    search = replace(search, completer=Completer(search.evaluator, scheduler, None))
    best = start_at(search).best
    similar = search.evaluator.evaluate(list_changes(search.problem.tables, best.assignment)[0].apply(best.assignment))
    assert similar is not None
    monkeypatch.setattr(passes, "limit_completed", lambda sites, *, even, folded: (1, 0.5))
    monkeypatch.setattr(passes, "WORTH_COMPLETING", math.inf)
    for name, count in (("megatron", 2), (IMPROVED, 1)):
        state = SearchState({PAPER: replace(best, predicted_ms=0.0), name: similar})
        assert len(passes.complete(search, state).times) == count


@pytest.mark.parametrize(("machine", "gain"), [("dgx-h100", 1.05), ("dgx-v100", 1.09)])
def test_on_many_sites_plans_are_completed_that_a_usual_gain_makes_fastest(
    machine: str, gain: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The links of dgx-h100 are equal, where naive exchanges are nearly as fast as others."""
    search = prepare(draw_graph(11), load_machine(machine), naive=False)
    scheduler = SynthesizingScheduler(search.problem.space.machine, 4, budget=SearchBudget())
    completer, plan = Completer(search.evaluator, scheduler, None), start_at(search).best
    assert completer.may_be_faster(replace(plan, predicted_ms=2.0), 1.0)
    monkeypatch.setattr(completion, "MANY_SITES", 3)
    assert completer.may_be_faster(replace(plan, predicted_ms=gain - 0.01), 1.0)
    assert not completer.may_be_faster(replace(plan, predicted_ms=gain + 0.01), 1.0)


def test_the_best_well_known_plan_is_improved_on_many_sites(monkeypatch: pytest.MonkeyPatch) -> None:
    search = prepare(draw_graph(11, most=2))
    poor = max(passes.predict_starts(search, SearchState()).contenders.values(), key=lambda plan: plan.predicted_ms)
    improved: list[list[EvaluatedPlan]] = []

    def keep(evaluator: Evaluator, tables: object, starts: list[EvaluatedPlan], **_: object) -> EvaluatedPlan:
        improved.append(starts)
        return starts[0]

    monkeypatch.setattr(passes, "descend", keep)
    passes.improve(search, SearchState({"data": poor}))
    assert len(improved) == 1
    monkeypatch.setattr(passes, "MANY_SITES", 3)
    passes.improve(search, SearchState({PAPER: poor, "data": poor}))
    assert improved[2:] == [[poor]]


def test_what_is_set_aside_counts_for_every_plan() -> None:
    search = prepare(draw_graph(11))
    before = passes.predict_starts(search, SearchState())
    after = passes.set_aside(search, before, 1000)
    for name, evaluated in before.contenders.items():
        assert after.contenders[name] == replace(evaluated, memory=evaluated.memory + 1000)


def test_a_search_says_what_each_pass_did() -> None:
    selected = find_fastest(draw_graph(11), A100, 4, naive=True, budget=SearchBudget())
    assert [text.partition(":")[0] for text in selected.walk] == [f"# {name}" for name in PASSES]
    chosen = next(contender for contender in selected.plan.contenders if contender.chosen)
    assert f"{chosen.name}: {chosen.predicted_ms:.6g} ms with naive exchanges" in "".join(selected.walk)
    assert selected.walk[-1].endswith(f"the best of them is {chosen.name}\n")
