"""The plans that the benchmark of optimality makes as a person does."""

from __future__ import annotations

from math import prod

from einc.compiler import compile_model
from einc.logical.problem import build_problem
from einc.machines.load import load_machine
from einc.options import CompileOptions
from tests.bench.hand_made import Shape, cut_as_asked, list_shapes, list_undivided, time_pipelines

FEED_FORWARD = """model pair
dim b = 64
dim d = 96
dim h = 160
input x : f32[b, d]
weight u : f32[d, h]
weight v : f32[h, d]
output y = matmul(relu(matmul(x, u)), v)
"""


def test_every_shape_has_all_sites() -> None:
    shapes = list(list_shapes(12))
    assert len(set(shapes)) == len(shapes)
    assert all(prod((s.data, s.tensor, s.sequence, s.stages)) == 12 for s in shapes)
    numbers = {(s.data, s.tensor, s.sequence, s.stages) for s in shapes}
    divisors = (1, 2, 3, 4, 6, 12)
    assert numbers == {
        (a, b, c, d) for a in divisors for b in divisors for c in divisors for d in divisors if a * b * c * d == 12
    }


def test_a_shape_cuts_batch_and_hidden_dimension() -> None:
    compiled = compile_model(FEED_FORWARD, "pair", CompileOptions(machine="dgx-a100", devices=4, schedule="naive"))
    graph, problem = compiled.graph, build_problem(compiled.graph, 4, flexible=True)
    chosen = cut_as_asked(graph, problem, Shape(2, 2, 1, 1))
    assert chosen is not None
    for node, options, candidate in zip(graph.nodes, problem.candidates, chosen, strict=True):
        counts = {
            index.extent: len(part)
            for index, part in zip(node.operator.indices, options[candidate].intervals, strict=True)
        }
        assert counts == {64: 2, 160: 2} | ({96: 1} if 96 in counts else {})
    assert cut_as_asked(graph, problem, Shape(1, 1, 4, 1)) is None
    assert len(list(list_undivided(graph, problem, 4))) == 3
    times = dict(time_pipelines(graph, load_machine("dgx-a100").restrict(range(4)), 4, naive=True))
    fastest = min(ms for ms in times.values() if ms is not None)
    assert fastest >= compiled.program.predicted_ms
