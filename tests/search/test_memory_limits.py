"""Memory as a constraint: a plan that fits is found while there is one, and a refusal says the least that was found."""

from __future__ import annotations

import pytest

from einc.compiler import Compiled, compile_model
from einc.errors import CapacityError
from einc.options import CompileOptions
from einc.plan_report import read_report
from einc.search import evaluation, fastest, folding
from einc.search.evaluation import Assignment, Order
from einc_runtime.plan.schema import InputPlacement

MIB = 2**20
LAYERS = """
model layers
dim b = 256
dim d = 512
dim e = 768
input h : f16[b, d]
block layer(x, i) {
    weight u : f16[d, e]
    weight v : f16[e, d]
    return matmul(matmul(x, u), v) + x
}
x = h + h
repeat 7 as i {
    x = layer(x, i)
}
output x
"""

CHAIN = """
model chain
dim b = 512
dim d = 1536
dim e = 2048
input h : f16[b, d]
weight u : f16[d, e]
weight v : f16[e, d]
weight w : f16[d, e]
y = matmul(h, u)
z = matmul(y, v)
output r = matmul(z, w)
"""


@pytest.fixture(autouse=True)
def less_effort(monkeypatch: pytest.MonkeyPatch) -> None:
    """Enough for these graphs."""
    monkeypatch.setattr(fastest, "MAX_SEARCH_EFFORT", 1000)


def compile_within(text: str, memory: int | None, placement: InputPlacement = "replicated") -> Compiled:
    options = CompileOptions(
        machine="dgx-a100",
        devices=4,
        selector="fastest",
        schedule="naive",
        memory=memory,
        input_placement=placement,
    )
    return compile_model(text, "m.ein", options)


def test_less_memory_takes_longer_until_nothing_fits() -> None:
    """From all that the fastest plan needs down: every plan fits, none is faster than one with more memory."""
    free = compile_within(CHAIN, None)
    size, time = max(free.program.memory), free.program.predicted_ms
    points = read_report(free.bundle).memory_points
    assert [point.memory for point in points] == sorted(point.memory for point in points)
    assert len(points) > 1  # time over memory is shown although the fastest plan fits
    least = points[0].memory
    assert least < 0.9 * size
    for limit in (size - 1, (size + least) // 2, least):
        limited = compile_within(CHAIN, limit)
        assert max(limited.program.memory) <= limit
        assert limited.program.predicted_ms >= time
        time = limited.program.predicted_ms
    with pytest.raises(CapacityError, match=r"too little; the smallest plan found needs .* per site"):
        _ = compile_within(CHAIN, least // 3).program


def test_a_refusal_says_what_the_smallest_plan_needs() -> None:
    """The memory that the refusal names suffices."""
    refused = compile_within(CHAIN, MIB)
    with pytest.raises(CapacityError, match="the smallest plan found needs"):
        _ = refused.program
    least = refused.plan.memory_points[0].memory
    assert max(compile_within(CHAIN, least).program.memory) == least
    with pytest.raises(CapacityError, match="the smallest plan found needs"):
        _ = compile_within(CHAIN, MIB, placement="once").program


def test_layers_that_are_not_built_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans of a few layers say exactly what the whole needs; where they said too little, another plan is taken."""
    monkeypatch.setattr(folding, "MIN_FOLDED", 4)
    free = compile_within(LAYERS, None)
    chosen = next(contender for contender in free.plan.contenders if contender.chosen)
    assert chosen.memory == max(free.program.memory)
    needs = chosen.memory
    evaluate = evaluation.Evaluator._evaluate

    def forget(
        self: evaluation.Evaluator, assignment: Assignment, order: Order, spread: bool
    ) -> evaluation.EvaluatedPlan | None:
        """An estimate that is too low by an eighth of what the fastest plan needs."""
        omitted_layers_cost = self._omitted_layers_cost
        self._omitted_layers_cost = lambda assignment: (
            omitted_layers_cost(assignment)[0],
            omitted_layers_cost(assignment)[1] - needs // 8,
        )
        draft = evaluate(self, assignment, order, spread)
        self._omitted_layers_cost = omitted_layers_cost
        return draft

    monkeypatch.setattr(evaluation.Evaluator, "_evaluate", forget)
    limit = needs - 1
    again = compile_within(LAYERS, limit)
    assert max(again.program.memory) <= limit
