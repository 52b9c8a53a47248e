"""Slices of computed tensors: no meaning changes, and reading a tensor in parts costs no more than computing parts."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from einc.compiler import Compiled, compile_model
from einc.core.tensor import DType, TensorDesc, TensorType
from einc.errors import OperatorError
from einc.graph.builder import GraphBuilder
from einc.graph.fuse import fuse
from einc.graph.graph import Graph, dump_graph, verify_graph
from einc.graph.slices import push_slices
from einc.logical.alternatives import list_alternatives
from einc.logical.problem import build_problem
from einc.ops import registry
from einc.options import CompileOptions
from tests.support.graph_interpreter import interpret
from tests.support.property_examples import examples


def compile_text(text: str, devices: int = 8, schedule: str = "naive") -> Compiled:
    options = CompileOptions(machine="dgx-h100", devices=devices, schedule=schedule, selector="eindecomp")
    return compile_model(f"model m\n{text}", "m.ein", options)


def check_meaning(before: Graph, after: Graph) -> None:
    """Integers, so that the two are equal to the last bit."""
    verify_graph(after)
    rng = np.random.default_rng(7)
    given_tensors = [t for t in before.tensors if t.kind.value != "value"]
    arrays = {t.name: rng.integers(-3, 4, t.desc.shape).astype(t.desc.dtype.numpy()) for t in given_tensors}
    expected, results = interpret(before, arrays), interpret(after, arrays)
    assert list(expected) == list(results) == list(before.outputs)
    for name, array in expected.items():
        np.testing.assert_array_equal(array, results[name])


def describe(graph: Graph) -> list[tuple[str, str, tuple[str, ...]]]:
    return [(node.name, node.operator.title, node.inputs) for node in graph.nodes]


TWO_PRODUCTS = """
dim tokens = 6; dim d = 4; dim ff = 10
input x : i64[tokens, d]
weight wg : i64[d, ff]
weight wu : i64[d, ff]
y = max(matmul(x, wg), 0) * matmul(x, wu)
output y
"""
ONE_PRODUCT = """
dim tokens = 6; dim d = 4; dim ff = 10
input x : i64[tokens, d]
weight w : i64[d, 2 * ff]
both = matmul(x, w)
gate = slice(both, ANY=[0, ff])
y = max(gate, 0) * slice(both, ANY=[ff, 2 * ff])
output y
"""
GATED = "dim two = 20\n" + ONE_PRODUCT.replace("2 * ff]\nboth", "two]\nboth").replace("ANY", "two")
LARGE = {"tokens = 6": "tokens = 1024", "d = 4": "d = 4096", "ff = 10": "ff = 14336", "two = 20": "two = 28672"}


def enlarge(text: str) -> str:
    for small, large in LARGE.items():
        text = text.replace(small, large)
    return text.replace("i64", "f16")


def test_a_product_of_which_only_slices_are_read_becomes_one_per_slice() -> None:
    compiled = compile_text(GATED)
    assert describe(compiled.graph) == [
        ("gate", "matmul", ("x", "w")),
        ("y.2", "matmul", ("x", "w")),
        ("y", "max+mul", ("gate", "y.2")),
    ]
    assert [node.operator.reads[1] for node in compiled.graph.nodes[:2]] == [
        TensorType((0, 0), (4, 10)),
        TensorType((0, 10), (4, 20)),
    ]
    check_meaning(compiled.source, compiled.graph)


def test_gate_and_up_as_one_product_cost_no_more_than_as_two() -> None:
    for schedule in ("naive", "synthesized"):
        gated, two = (compile_text(enlarge(text), schedule=schedule) for text in (GATED, TWO_PRODUCTS))
        assert gated.plan.total_cost == two.plan.total_cost
        assert gated.program.predicted_ms == two.program.predicted_ms


def test_what_is_saved_is_computed_whole_and_read_in_parts() -> None:
    compiled = compile_text(GATED + "output both\n")
    assert describe(compiled.graph) == [("both", "matmul", ("x", "w")), ("y", "max+mul", ("both", "both"))]
    check_meaning(compiled.source, compiled.graph)


def test_many_narrow_slices_do_not_read_the_input_again_and_again() -> None:
    text = """
    dim tokens = 64; dim d = 64; dim out = 64
    input x : i64[tokens, d]
    weight w : i64[d, out]
    y = matmul(x, w)
    """
    few, many = ("".join(f"output s{k} = slice(y, out=[{k * 64 // n}, {(k + 1) * 64 // n}])\n" for k in range(n))
                 for n in (3, 16))  # fmt: skip
    assert [title for _, title, _ in describe(compile_text(text + few).graph)] == ["matmul"] * 3
    assert [title for _, title, _ in describe(compile_text(text + many).graph)] == ["matmul"] + ["slice"] * 16


def test_the_last_tokens_alone_are_computed() -> None:
    compiled = compile_text("""
    dim tokens = 9; dim d = 4; dim vocabulary = 30
    input x : i64[tokens, d]
    weight w : i64[d, d]
    weight head : i64[d, vocabulary]
    hidden = -matmul(x, w)
    output logits = slice(matmul(hidden, head), tokens=[8, 9])
    """)
    check_meaning(compiled.source, compiled.graph)
    assert [node.operator.outputs[0].shape for node in compiled.graph.nodes] == [(1, 4), (1, 4), (1, 30)]


def test_overlapping_slices_are_not_computed_twice() -> None:
    compiled = compile_text("""
    dim t = 9; dim d = 4
    input x : i64[t, d]
    weight w : i64[d, d]
    a = matmul(x, w)
    output y = slice(a, t=[0, 8]) - slice(a, t=[1, 9])
    """)
    assert [title for _, title, _ in describe(compiled.graph)] == ["matmul", "sub"]
    check_meaning(compiled.source, compiled.graph)


FUNCTIONS = ("neg", "abs", "add", "sub", "max")


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """Random slices, slices of slices, products, transposes, reductions and elementwise operators over integers."""
    builder = GraphBuilder("g")
    names = [builder.input("x", TensorDesc(("a", "b"), (5, 6), DType.I64))]
    names.append(builder.weight("w", TensorDesc(("b", "c"), (6, 8), DType.I64)))

    def apply(function: str, *operands: str, **attributes: object) -> None:
        operator = registry.call(function, [builder.desc(name) for name in operands], attributes)
        names.extend(builder.apply(operator, operands, ["v"]))

    for _ in range(draw(st.integers(1, 12))):
        first = draw(st.sampled_from(names[-4:]))
        desc = builder.desc(first)
        function = draw(st.sampled_from(["slice", "slice", "slice", "matmul", "transpose", "sum", *FUNCTIONS]))
        if function == "slice":
            dim, extent = draw(st.sampled_from(list(zip(desc.dims, desc.shape, strict=True))))
            bounds = sorted(draw(st.lists(st.integers(0, extent), min_size=2, max_size=2, unique=True)))
            apply(function, first, **{dim: tuple(bounds)})
            if bounds[1] < extent and draw(st.booleans()):
                apply(function, first, **{dim: (bounds[1], extent)})
        elif function == "matmul":
            partners = [n for n in names if builder.desc(n).rank == 2 and builder.desc(n).shape[0] == desc.shape[-1]]
            if partners and desc.rank == 2:
                apply(function, first, draw(st.sampled_from(partners)))
        elif function in ("neg", "abs"):
            apply(function, first)
        elif function in ("transpose", "sum"):
            if desc.rank == 2:
                apply(function, first, **({"over": desc.dims[0]} if function == "sum" else {}))
        else:
            same = [n for n in names if (builder.desc(n).dims, builder.desc(n).shape) == (desc.dims, desc.shape)]
            apply(function, first, draw(st.sampled_from(same)))
    if len(names) == 2:
        apply("neg", "x")
    for name in draw(st.lists(st.sampled_from(names[2:]), min_size=1, max_size=3, unique=True)):
        builder.save(name)
    return builder.build()


@examples(200)
@given(graphs())
def test_random_graphs_keep_their_meaning(graph: Graph) -> None:
    verify_graph(graph)
    check_meaning(graph, push_slices(graph))
    result = fuse(graph)
    check_meaning(graph, result)
    assert dump_graph(fuse(result)) == dump_graph(result)
    for node in result.nodes:
        operator = node.operator
        assert registry.restore(operator.family, operator.inputs, dict(operator.attributes)) == operator


def test_a_slice_is_charged_what_it_reads() -> None:
    """Every choice of candidates, against the blocks themselves."""
    compiled = compile_text(
        """
        dim t = 8; dim d = 12
        input x : f32[t, d]
        y = softmax(x)
        a = softmax(slice(y, d=[4, 12]))
        output b = exp(slice(y, t=[0, 4]))
        output a
        output y
        """,
        devices=4,
    )
    assert [title for _, title, _ in describe(compiled.graph)] == ["softmax", "slice", "softmax", "exp"]
    problem = build_problem(compiled.graph, 4)
    undivided, parts = problem.candidates[0], {1: TensorType((0, 4), (8, 12)), 3: TensorType((0, 0), (4, 12))}
    for node, part in parts.items():
        for c, candidate in enumerate(undivided):
            left = {common for block in candidate.output_tilings[0] if (common := block.intersect(part)) is not None}
            for n, requested in enumerate(problem.candidates[node]):
                chosen = [c, 0, 0, 0]
                chosen[node] = n
                aligned = left == set(requested.input_tilings[0])
                assert problem.repartitions(chosen)[node] == (0 if aligned else part.size)
    plan = compiled.plan
    assert plan.total_cost == min(map(problem.cost, product(*map(range, map(len, problem.candidates)))))
    for node_name in [node.name for node in compiled.graph.nodes]:
        intervals = next(choice.candidate.intervals for choice in plan.choices if choice.node == node_name)
        costs = {
            alternative.candidate.intervals: alternative.total_cost
            for alternative in list_alternatives(plan, node_name)
        }
        assert costs[intervals] == plan.total_cost == min(costs.values())


WRONG_WINDOWS = ["", "0:5 0:6", "0:5 0:6, 0:6 0:8, -", "0:5 3:3, -", "0:6 0:6, -", "0:5, -", 3, "-,-"]


@pytest.mark.parametrize("windows", WRONG_WINDOWS)
def test_windows_that_do_not_fit_are_refused(windows: object) -> None:
    descs = [TensorDesc(("a", "b"), (5, 6), DType.I64), TensorDesc(("b", "c"), (6, 8), DType.I64)]
    attributes = {**registry.call("matmul", descs, {}).attributes, "windows": windows}
    with pytest.raises(OperatorError, match="window"):
        registry.restore("equation", tuple(descs), attributes)
