"""Fusion changes no meaning, reads every tensor once, and goes exactly as far as it may."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from einc.core.tensor import DType, TensorDesc
from einc.graph.builder import GraphBuilder
from einc.graph.fuse import fuse
from einc.graph.graph import Graph, dump_graph, verify_graph
from einc.ops import registry
from einc.ops.equation import MAX_FUSED_STEPS, Equation, build_equation
from einc.ops.scalar import make_step
from einc_runtime.plan.scalar_programs import ScalarInput
from tests.support.graph_interpreter import interpret
from tests.support.paced import within
from tests.support.property_examples import examples

SHAPE = {"t": 5, "d": 7}


def desc(dims: str, dtype: DType = DType.F32) -> TensorDesc:
    return TensorDesc(tuple(dims.split()), tuple(SHAPE[d] for d in dims.split()), dtype)


class Maker:
    """Applies operators by name to tensors by name; numbers stand for themselves."""

    def __init__(self, dtype: DType = DType.F32, **inputs: str) -> None:
        self.builder = GraphBuilder("g")
        for name, dims in inputs.items():
            self.builder.input(name, desc(dims, dtype))

    def __call__(self, result: str, function: str, *operands: str | float, **attributes: str) -> str:
        arguments = [self.builder.desc(x) if isinstance(x, str) else x for x in operands]
        operator = registry.call(function, arguments, attributes)
        return self.builder.apply(operator, [x for x in operands if isinstance(x, str)], [result])[0]

    def graph(self, *outputs: str) -> Graph:
        for name in outputs:
            self.builder.save(name)
        graph = self.builder.build()
        verify_graph(graph)
        return graph


def fused(graph: Graph, *names: str) -> list[Equation]:
    """The nodes of the fused graph, which must have these names."""
    result = fuse(graph)
    verify_graph(result)
    assert [node.name for node in result.nodes] == list(names), dump_graph(result)
    assert dump_graph(fuse(result)) == dump_graph(result)
    check_meaning(graph, result)
    return [node.operator for node in result.nodes if isinstance(node.operator, Equation)]


def check_meaning(before: Graph, after: Graph) -> None:
    rng = np.random.default_rng(3)
    arrays = {
        t.name: rng.normal(size=t.desc.shape).astype(t.desc.dtype.numpy())
        for t in before.tensors
        if t.kind.value != "value"
    }
    expected, results = interpret(before, arrays), interpret(after, arrays)
    assert expected.keys() == results.keys()
    for name, array in expected.items():
        assert array.dtype == results[name].dtype
        np.testing.assert_array_equal(array, results[name])


def test_a_chain_becomes_one_operator() -> None:
    g = Maker(gate="t d", up="t d")
    g("a", "silu", "gate")
    g("y", "mul", "a", "up")
    (operator,) = fused(g.graph("y"), "y")
    assert operator.title == "silu+mul"
    assert operator.program.text == "t0 = silu x0; t1 = mul t0 x1"
    assert fuse(g.graph("y")).nodes[0].inputs == ("gate", "up")
    assert [t.name for t in fuse(g.graph("y")).tensors] == ["gate", "up", "y"]


def test_diamonds_share_their_steps() -> None:
    g = Maker(x="t d")
    g("a", "relu", "x")
    g("b", "neg", "a")
    g("c", "tanh", "a")
    g("y", "add", "b", "c")
    (operator,) = fused(g.graph("y"), "y")
    assert operator.program.text == "t0 = relu x0; t1 = neg t0; t2 = tanh t0; t3 = add t1 t2"
    assert len(operator.inputs) == 1


def test_a_tensor_read_twice_is_one_input_of_an_elementwise_operator() -> None:
    g = Maker(x="t d")
    g("y", "mul", "x", "x")
    (operator,) = fused(g.graph("y"), "y")
    assert (len(operator.inputs), operator.program.text) == (1, "t0 = mul x0 x0")


def test_a_contraction_keeps_its_operands() -> None:
    g = Maker(x="t d")
    x = desc("t d")
    gram = build_equation(
        [(x, ("i", "j")), (x, ("k", "j"))],
        [("i", "t"), ("k", "u")],
        make_step("mul", ScalarInput(0), ScalarInput(1)),
        "sum",
    )
    norm = build_equation(
        [(x, ("i", "j")), (x, ("i", "j"))], [("i", "t")], make_step("mul", ScalarInput(0), ScalarInput(1)), "sum"
    )
    g.builder.apply(gram, ["x", "x"], ["gram"])
    g.builder.apply(norm, ["x", "x"], ["norm"])
    assert [len(op.inputs) for op in fused(g.graph("gram", "norm"), "gram", "norm")] == [2, 2]


def test_saved_results_and_other_readers_end_a_group() -> None:
    g = Maker(x="t d", w="d t")
    g("a", "exp", "x")  # saved
    g("b", "neg", "a")
    g("c", "tanh", "b")  # read by a matmul too
    g("m", "matmul", "c", "w")
    g("y", "abs", "c")
    fused(g.graph("a", "m", "y"), "a", "c", "m", "y")


def test_a_dead_reader_is_no_reader() -> None:
    g = Maker(x="t d")
    g("a", "exp", "x")
    g("dead", "sum", "a", over="t")
    g("y", "neg", "a")
    fused(g.graph("y"), "y")


def test_what_is_broadcast_is_not_computed_again() -> None:
    g = Maker(x="t d", bias="d")
    g("b", "exp", "bias")
    g("c", "add", "x", 1.0)
    g("y", "add", "c", "b")
    assert [op.title for op in fused(g.graph("y"), "b", "y")] == ["exp", "add+add"]
    assert fuse(g.graph("y")).nodes[1].operator.inputs[1].dims == ("d",)


def test_a_broadcasting_producer_fuses_with_its_operands_as_they_are() -> None:
    g = Maker(x="t d", bias="d")
    g("a", "add", "bias", "x")
    g("y", "relu", "a")
    (operator,) = fused(g.graph("y"), "y")
    assert operator.labels == (("d",), ("t", "d"))
    assert [index.name for index in operator.indices] == ["t", "d"]


def test_transposes_fuse_by_index() -> None:
    g = Maker(x="t d", z="d t")
    g("a", "exp", "x")
    g("turned", "transpose", "a")
    g("y", "sub", "turned", "z")
    (operator,) = fused(g.graph("y"), "y")
    assert operator.labels == (("t", "d"), ("d", "t"))
    assert operator.result == ("d", "t")
    assert operator.title == "exp+sub"


def test_diagonals_and_reductions_end_a_group() -> None:
    g = Maker()
    square = TensorDesc(("a", "b"), (5, 5), DType.F32)
    g.builder.input("x", square)
    g("e", "exp", "x")
    diagonal = build_equation([(square, ("i", "i"))], [("i", "a")], make_step("neg", ScalarInput(0)), None)
    g.builder.apply(diagonal, ["e"], ["diag"])
    g("s", "tanh", "diag")
    g("m", "max", "s", over="a")
    fused(g.graph("m"), "e", "s", "m")


def test_the_same_producer_indexed_in_two_ways_stays() -> None:
    square = TensorDesc(("a", "b"), (5, 5), DType.F32)
    g = Maker()
    g.builder.input("x", square)
    g("e", "exp", "x")
    both = build_equation(
        [(square, ("i", "j")), (square, ("j", "i"))],
        [("i", "a"), ("j", "b")],
        make_step("add", ScalarInput(0), ScalarInput(1)),
        None,
    )
    g.builder.apply(both, ["e", "e"], ["y"])
    assert len(fused(g.graph("y"), "e", "y")[1].inputs) == 2


def test_comparisons_see_sixteen_bit_values_as_they_were_rounded() -> None:
    g = Maker(DType.F16, x="t d", z="t d")
    g("a", "mul", "x", "z")
    g("b", "add", "a", 1.0)
    g("y", "gt", "b", 1.5)
    (operator,) = fused(g.graph("y"), "y")
    assert operator.program.text == (
        "t0 = mul x0 x1; t1 = cast:f16 t0; t2 = add t1 1.0; t3 = cast:f16 t2; t4 = gt t3 1.5"
    )


def test_smooth_sixteen_bit_chains_round_once() -> None:
    g = Maker(DType.BF16, x="t d", z="t d")
    g("a", "mul", "x", "z")
    g("y", "tanh", "a")
    graph = fuse(g.graph("y"))
    assert [node.operator.attributes["program"] for node in graph.nodes] == ["t0 = mul x0 x1; t1 = tanh t0"]


def test_very_long_chains_stay_bounded() -> None:
    g = Maker(x="t d")
    last = "x"
    for _ in range(1500):
        last = g("v", "tanh", last)
    graph = g.graph(last)
    with within(15):
        result = fuse(graph)
    verify_graph(result)
    assert 1500 // MAX_FUSED_STEPS <= len(result.nodes) <= 1500 // MAX_FUSED_STEPS + 1


FUNCTIONS = ["neg", "abs", "tanh", "relu", "add", "sub", "mul", "max", "min"]


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """Random elementwise graphs with broadcasting, transposes, reductions and several outputs."""
    g = Maker(x="t d", z="d t", bias="d")
    names = ["x", "z", "bias"]
    for _ in range(draw(st.integers(1, 9))):
        function = draw(st.sampled_from([*FUNCTIONS, "transpose", "softmax", "sum"]))
        first = draw(st.sampled_from(names))
        if function in ("neg", "abs", "tanh", "relu", "softmax"):
            names.append(g("v", function, first))
        elif function in ("transpose", "sum"):
            if len(g.builder.desc(first).dims) == 2:
                names.append(g("v", function, first, **({"over": "t"} if function == "sum" else {})))
        else:
            second = draw(st.sampled_from(names) | st.sampled_from([0.5, -2.0]))
            names.append(g("v", function, first, second))
    computed = names[3:] or [g("v", "neg", "x")]
    return g.graph(*draw(st.lists(st.sampled_from(computed), min_size=1, max_size=3, unique=True)))


@examples(150)
@given(graphs())
def test_random_graphs_keep_their_meaning(graph: Graph) -> None:
    result = fuse(graph)
    verify_graph(result)
    check_meaning(graph, result)
    assert dump_graph(fuse(result)) == dump_graph(result)
    consumers = result.consumers()
    for node in result.nodes:
        readers = consumers[node.outputs[0]]
        if len(readers) == 1 and node.name not in result.outputs:
            reader, k = readers[0]
            assert reader.operator.fuse(k, node.operator) is None, "a pair was left unfused"


@pytest.mark.parametrize("outputs", [("y",), ("y", "a")])
def test_costs_are_counted_on_fewer_inputs(outputs: tuple[str, ...]) -> None:
    g = Maker(x="t d")
    g("a", "exp", "x")
    g("y", "mul", "a", "x")
    result = fuse(g.graph(*outputs))
    assert [len(node.inputs) for node in result.nodes] == ([1] if outputs == ("y",) else [1, 2])
