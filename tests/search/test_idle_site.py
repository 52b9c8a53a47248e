"""Another site never makes a plan slower: one may stay idle, and the plan is proved, and runs, like any other."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from einc.compiler import Compiled, compile_model
from einc.logical.problem import build_problem
from einc.machines.load import load_machine
from einc.options import CompileOptions
from einc.search import idle_site
from einc.search.idle_site import IDLE_SITE, find_least_ms
from einc.search.result import SelectedPlan
from einc.verification.figures import verify_figures
from tests.support.compiled_plans import execute
from tests.support.search_toys import draw_graph, evaluator_of, list_plans

MODELS = Path(__file__).resolve().parents[2] / "models"
LAYERS = (("tokens", "1400"), ("d_model", "520"), ("d_ff", "1040"))
"""Large enough that several sites are worth it."""
FIND = idle_site.find_fastest


def compile_layers(sites: int, **more: Any) -> Compiled:
    options = CompileOptions(machine="dgx-h100", devices=sites, definitions=LAYERS, dtype="f32", **more)
    return compile_model((MODELS / "ffn.ein").read_text(encoding="utf-8"), "ffn.ein", options)


def make_five_slow(*arguments: Any, **options: Any) -> SelectedPlan:
    """The search, whose plans for five sites take ten times as long as they do."""
    selected = FIND(*arguments, **options)
    if selected.plan.sites == 5 and selected.program is not None:
        program = replace(selected.program, predicted_ms=10 * selected.program.predicted_ms)
        return SelectedPlan(selected.plan, program)
    return selected


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("schedule", "placement"), [("naive", "once"), ("synthesized", "replicated")])
def test_a_plan_with_an_idle_site_is_one_for_all_sites(
    monkeypatch: pytest.MonkeyPatch, schedule: str, placement: str
) -> None:
    monkeypatch.setattr(idle_site, "find_fastest", make_five_slow)
    four, five = (compile_layers(n, schedule=schedule, input_placement=placement) for n in (4, 5))
    assert [contender.name for contender in five.plan.contenders if contender.chosen] == [IDLE_SITE]
    assert five.program.predicted_ms == four.program.predicted_ms
    assert five.program.memory == (*four.program.memory, 0)
    assert all(four.program.memory)
    verify_figures(five.bundle)
    for with_five, with_four in zip(execute(five.bundle)[1], execute(four.bundle)[1], strict=True):
        assert (with_five == with_four).all()
    again = five._build(replace(five.plan))  # as exchanges of a person and proposals are tried
    assert (again.tasks, again.memory) == (five.program.tasks, five.program.memory)


def test_of_many_sites_a_part_is_planned_first_and_more_as_long_as_that_is_faster(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    searched = []

    def make_many_slow(*arguments: Any, **options: Any) -> SelectedPlan:
        selected = FIND(*arguments, **options)
        searched.append(selected.plan.sites)
        assert selected.program is not None
        slow = 1 + 9 * (selected.plan.sites == 6)
        return replace(selected, program=replace(selected.program, predicted_ms=slow * selected.program.predicted_ms))

    three = compile_layers(3, schedule="naive").program
    monkeypatch.setattr(idle_site, "find_fastest", make_many_slow)
    monkeypatch.setattr(idle_site, "MAX_SWITCHED_SITES", 1)
    six = compile_layers(6, schedule="naive")
    assert six.program.predicted_ms == three.predicted_ms
    assert six.program.memory == (*three.memory, 0, 0, 0)
    assert searched == [1, 3, 6]
    verify_figures(six.bundle)


@pytest.mark.parametrize("seed", range(6))
def test_no_plan_takes_less_than_the_least(seed: int) -> None:
    graph, sites, machine = draw_graph(seed, 4), 2 + seed % 3, load_machine("dgx-a100")
    evaluator = evaluator_of(graph, machine, sites)
    problem = build_problem(graph, sites, flexible=True)
    least = find_least_ms(graph, machine, sites)
    assert least > 0
    for plan in list_plans(problem, 20, seed):
        evaluated = evaluator.evaluate(plan)
        assert evaluated is not None
        assert evaluated.predicted_ms >= least * (1 - 1e-9)


@pytest.mark.slow
def test_seven_sites_are_no_slower_than_six() -> None:
    """Operators of the best plan use two or four sites, whose places differ with a seventh."""
    text = (MODELS / "llama_block.ein").read_text(encoding="utf-8")
    six, seven = (
        compile_model(text, "llama_block.ein", CompileOptions(machine="dgx-h100", devices=n, preset="b1x1k"))
        for n in (6, 7)
    )
    assert seven.program.predicted_ms <= six.program.predicted_ms
    assert seven.plan.idle == 1
