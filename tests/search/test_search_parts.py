"""Orders, folding, memory over time and the list of contenders: what the search for the fastest plan is made of."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from einc.frontend import build as build_graph
from einc.graph.fuse import fuse
from einc.graph.graph import Graph, verify_graph
from einc.graph.layers import LAYERS, fold
from einc.logical.optimize import optimize
from einc.logical.pins import parse_pin
from einc.machines.load import load_machine
from einc.physical.budget import SearchBudget
from einc.physical.build import build, build_fast
from einc.physical.records import OperationRecorder
from einc.physical.synthesis import SynthesizingScheduler
from einc.search import fastest, folding, initial_plans
from einc.search.baselines import build_baselines
from einc.search.evaluation import EvaluatedPlan
from einc.search.fastest import find_fastest
from einc.search.folding import time_left_out
from einc.search.memory import MAX_POINTS, find_frontier, find_smaller, measure_sizes
from einc.search.orders import list_orders, reorder_graph
from einc.search.space import SearchSpace
from einc.search.tables import build_time_problems
from tests.support.search_toys import draw_graph, evaluator_of, list_plans, space_of

MODELS = Path(__file__).parents[2] / "models"


def read_llama(layers: int) -> Graph:
    file = MODELS / "llama.ein"
    return fuse(build_graph(file.read_text(), "llama.ein", (("n_layers", str(layers)),), "tiny", None))


def chain(layers: int, saved: tuple[int, ...] = (), odd: int | None = None) -> Graph:
    """Equal layers of two operators; the one at `odd` adds its input twice; `saved` are layers that are outputs."""
    lines = ["dim n = 12", "dim m = 30", "input x0 : f32[n, m]"]
    for i in range(layers):
        lines.append(f"weight w{i} : f32[m, m]")
        lines.append(f"h{i} = matmul(x{i}, w{i})")
        lines.append(f"x{i + 1}[n, m] = h{i}[n, m] {'-' if i == odd else '+'} x{i}[n, m]")
    lines.append("output " + ", ".join(f"x{i}" for i in (*saved, layers)))
    return build_graph("\n".join(lines), "m.ein", (), None, None)


@pytest.mark.parametrize("seed", range(20))
def test_orders_are_topological(seed: int) -> None:
    graph = draw_graph(seed, 9)
    orders = list(list_orders(graph))
    assert len(set(orders)) == len(orders)
    assert tuple(range(len(graph.nodes))) not in orders
    for order in orders:
        assert sorted(order) == list(range(len(graph.nodes)))
        assert [node.name for node in reorder_graph(graph, order).nodes] == [graph.nodes[n].name for n in order]
        produced = {tensor.name for tensor in graph.tensors} - set(graph.producers())
        for n in order:
            assert set(graph.nodes[n].inputs) <= produced
            produced.update(graph.nodes[n].outputs)


def test_pins_that_name_each_layer_leave_layers_equal() -> None:
    """As the plans of prompts have them, which cut each layer's weights as the step does."""
    graph = read_llama(6)
    pins = [parse_pin(f"layer.{i}.up=d_ff/4") for i in range(6)]
    assert folding.fold_pinned(graph, pins) is not None
    assert folding.fold_pinned(graph, [*pins[:2], parse_pin("layer.2.up=tokens/4"), *pins[3:]]) is None


@pytest.mark.parametrize("layers", [6, 12])
def test_a_folded_model_stands_for_the_whole(layers: int) -> None:
    """Equal operators stand for each other, each kept one for itself, and those before and after the layers too."""
    graph = read_llama(layers)
    folded = fold(graph)
    assert folded is not None
    verify_graph(folded.graph)
    assert Counter(folded.stands_for) == dict(enumerate(folded.times))
    for n, m in enumerate(folded.stands_for):
        assert graph.nodes[n].operator == folded.graph.nodes[m].operator
    assert [folded.stands_for[n] for n in folded.kept] == list(range(len(folded.kept)))
    assert folded.expand([node.name for node in folded.graph.nodes])[0] == graph.nodes[0].name
    assert len(set(folded.times)) == 2
    assert max(folded.times) == layers - LAYERS + 1


def test_layers_that_differ_are_not_folded_into_one() -> None:
    assert fold(chain(LAYERS)) is None
    folded_chain = fold(chain(9))
    assert folded_chain is not None
    assert len(folded_chain.graph.nodes) == 2 * (1 + LAYERS)  # the output of the last one is saved: it is by itself
    assert folded_chain.times == (1, 1, 6, 6, 1, 1, 1, 1)
    broken = fold(chain(9, odd=4))  # four layers, another one, four layers
    assert broken is not None
    assert len(broken.graph.nodes) == 2 * (1 + 9 - 4 - 1 + LAYERS)
    assert fold(chain(7, odd=3)) is None
    pairs = fold(chain(9, saved=(2, 4, 6, 8)))  # every other layer is saved: two of them repeat
    assert pairs is not None
    assert pairs.times == (*[1] * 4, *[2] * 4, *[1] * 6)
    saved = fold(chain(9, saved=(1, 2, 3, 4, 5, 6, 7, 8)))
    assert saved is not None
    assert len(saved.graph.outputs) == LAYERS


def find(graph: Graph, sites: int, **options: object) -> fastest.SelectedPlan:
    return find_fastest(graph, load_machine("dgx-a100"), sites, naive=True, budget=SearchBudget(), **options)


@pytest.mark.parametrize("layers", [7, pytest.param(12, marks=pytest.mark.slow)])
def test_a_folded_search_tells_what_the_whole_takes(layers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole plan is built at last: it takes about what was promised, and is not slower than one found unfolded."""
    graph = chain(7) if layers == 7 else read_llama(layers)
    monkeypatch.setattr(folding, "MIN_FOLDED", 1)
    selected = find(graph, 2)
    assert selected.program is not None
    chosen = next(contender for contender in selected.plan.contenders if contender.chosen)
    assert chosen.predicted_ms == pytest.approx(selected.program.predicted_ms, rel=0.05)
    if layers == 7:
        return
    monkeypatch.setattr(folding, "MIN_FOLDED", 10_000)
    unfolded = find(graph, 2).program
    assert unfolded is not None
    assert selected.program.predicted_ms <= 1.02 * unfolded.predicted_ms


@pytest.mark.parametrize(("model", "sites"), [("chain", 5), pytest.param("decode", 5, marks=pytest.mark.slow)])
def test_layers_that_were_left_out_take_what_the_whole_takes(model: str, sites: int) -> None:
    """Well-known plans and some by chance, with synthesized exchanges, where some links are wider than others."""
    machine = load_machine("dgx-v100")
    if model == "chain":
        graph = chain(8)
    else:
        file, sizes = MODELS / "llama_decode.ein", (("n_layers", "5"), ("d_model", "1024"), ("batch", "64"))
        graph = fuse(build_graph(file.read_text(), "d.ein", sizes, None, None))
    folded = fold(graph)
    assert folded is not None
    part, undivided = (space_of(model, machine, sites) for model in (folded.graph, graph))
    rng, length = random.Random(3), len(folded.repeated)
    plans = [
        baseline.chosen for baseline in build_baselines(part.graph, part.problem, sites) if baseline.chosen is not None
    ]
    for _ in range(3):
        chosen = [rng.randrange(len(options)) for options in part.problem.candidates]
        for m in folded.repeated:  # the layer before and the one after are like it
            chosen[m - length] = chosen[m + length] = chosen[m]
        plans.append(tuple(chosen))
    scheduler = SynthesizingScheduler(machine, sites)
    for plan in plans:
        built, expected = (
            build_fast(space.make_plan(tuple(assignment), tuple(range(len(assignment))), True), machine, scheduler)
            for space, assignment in ((part, plan), (undivided, folded.expand(plan)))
        )
        estimate = built.predicted_ms + time_left_out(folded, built, machine)
        assert estimate == pytest.approx(expected.predicted_ms, rel=0.01)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("naive", [True, False])
def test_the_whole_has_the_cuts_of_the_folded_graph_where_candidates_were_left_out(
    naive: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on more than sixteen sites; here it is the first third. Each node is cut as the one that stands for it."""

    def keep_last(space: SearchSpace, *_: object) -> list[np.ndarray]:
        return [np.arange(len(options) // 3, len(options)) for options in space.problem.candidates]

    monkeypatch.setattr(folding, "MIN_FOLDED", 1)
    monkeypatch.setattr(initial_plans, "find_worthwhile", keep_last)
    fastest = find_fastest(chain(9), load_machine("dgx-a100"), 6, naive=naive, budget=SearchBudget())
    assert fastest.program is not None
    chosen = next(contender for contender in fastest.plan.contenders if contender.chosen)
    assert chosen.predicted_ms == pytest.approx(fastest.program.predicted_ms, rel=0.02)
    assert (
        len({choice.candidate.intervals for choice in fastest.plan.choices if choice.node in ("h2", "h4", "h6")}) == 1
    )


def test_pins_of_one_layer_are_not_folded(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = chain(6)
    monkeypatch.setattr(folding, "MIN_FOLDED", 1)
    names = [node.name for node in graph.nodes]
    pinned_plan = find(graph, 3, pins=(parse_pin("h3=n/3"),)).plan
    every = find(graph, 3, pins=(parse_pin("h*=n/3"),)).plan
    for plan, pinned in ((pinned_plan, {"h3"}), (every, {name for name in names if name.startswith("h")})):
        for choice in plan.choices:
            if choice.node in pinned:
                assert [len(parts) for parts in choice.candidate.intervals] == [3, 1, 1]


def test_the_frontier_falls() -> None:
    rng = random.Random(4)
    drafts = [EvaluatedPlan((n,), (0,), True, rng.randrange(60), rng.randrange(60), 0) for n in range(80)]
    points = find_frontier(drafts)
    best = {draft for draft in drafts if not any(
        rival.memory <= draft.memory and rival.predicted_ms <= draft.predicted_ms
        and (rival.memory, rival.predicted_ms) != (draft.memory, draft.predicted_ms) for rival in drafts
    )}  # fmt: skip
    assert set(points) <= best
    assert 1 < len(points) <= MAX_POINTS
    ends = sorted((draft.memory, draft.predicted_ms) for draft in best)
    assert (points[0].memory, points[0].predicted_ms) == ends[0]
    assert (points[-1].memory, points[-1].predicted_ms) == ends[-1]
    assert [p.predicted_ms for p in points] == sorted({p.predicted_ms for p in points}, reverse=True)


def test_a_smaller_plan_is_found() -> None:
    """Of a product on three sites, where no site has memory for the whole weight."""
    graph = chain(2)
    machine = load_machine("dgx-a100").restrict(range(3)).limit_memory(7000)
    evaluator = evaluator_of(graph, machine, 3)
    tables, _ = build_time_problems(graph, evaluator.space.problem.candidates, machine, 3)
    single = tuple(
        next(i for i, candidate in enumerate(candidates) if len(candidate.functions) == 1)
        for candidates in evaluator.space.problem.candidates
    )
    first = evaluator.evaluate(single)
    assert first is not None
    assert first.excess > 0
    smaller = find_smaller(evaluator, tables, measure_sizes(graph, evaluator.space.problem, None), [first])
    assert smaller is not None
    assert smaller.excess == 0
    assert build(evaluator.make_plan(smaller), machine).predicted_ms == smaller.predicted_ms


def test_records_that_plans_share_are_those_of_each_by_itself() -> None:
    """Two operators that are alike, and plans that differ in cuts, replicas, orders and repartitions."""
    graph = chain(2)
    space = space_of(graph, load_machine("dgx-a100"), 4)
    orders = [tuple(range(len(graph.nodes))), *list_orders(graph)]
    recorder, seen = OperationRecorder(), set()
    for n, assignment in enumerate(list_plans(space.problem, 25)):
        plan = space.make_plan(assignment, orders[n % len(orders)], spread=True)
        shared = recorder.record(plan)
        assert shared == OperationRecorder().record(plan)
        seen.update(
            (candidate.name, candidate.replicas, candidate.cost, len(candidate.functions)) for candidate in shared
        )
    assert len(seen) > 2 * len(graph.nodes)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("naive", [True, False])
def test_the_chosen_contender_is_the_fastest_of_those_completed(naive: bool) -> None:
    graph, machine = draw_graph(305), load_machine("dgx-v100")
    fastest = find_fastest(graph, machine, 4, naive=naive, budget=SearchBudget())
    assert fastest.program is not None
    contenders = fastest.plan.contenders
    assert len({contender.name for contender in contenders}) == len(contenders)
    (chosen,) = (contender for contender in contenders if contender.chosen)
    assert chosen.predicted_ms == pytest.approx(fastest.program.predicted_ms)
    rivals = [
        contender.predicted_ms
        for contender in contenders
        if contender.predicted_ms is not None and contender.synthesized == (not naive)
    ]
    assert chosen.predicted_ms == min(rivals)
    assert all((contender.reason is None) == (contender.predicted_ms is not None) for contender in contenders)
    assert fastest.plan.cut_cost == optimize(graph, 4).cut_cost


def test_a_limit_that_is_over_leaves_one_plan() -> None:
    graph, machine = read_llama(2), load_machine("dgx-a100")
    for naive in (True, False):
        fastest = find_fastest(graph, machine, 4, naive=naive, budget=SearchBudget(1e-9))
        assert fastest.program is not None
        built = [contender for contender in fastest.plan.contenders if contender.predicted_ms is not None]
        assert [contender.chosen for contender in built] == [True]
        assert any(contender.reason == "no time was left to build it" for contender in fastest.plan.contenders)


@pytest.mark.slow
def test_any_process_chooses_the_same_plan() -> None:
    """Hashes of strings differ between processes. `tests/cli/test_compile.py` says so of the command."""
    code = (
        "import msgspec; from einc.compiler import compile_model; from einc.options import CompileOptions\n"
        f"text = open({str(MODELS / 'ffn.ein')!r}).read()\n"
        "options = CompileOptions(machine='dgx-v100', devices=3, schedule='naive')\n"
        "import hashlib; data = msgspec.msgpack.encode(compile_model(text, 'm', options).bundle)\n"
        "print(hashlib.sha256(data).hexdigest())"
    )
    plans = {
        subprocess.run(
            [sys.executable, "-c", code], env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, check=True
        ).stdout
        for seed in ("1", "2")
    }
    assert len(plans) == 1
