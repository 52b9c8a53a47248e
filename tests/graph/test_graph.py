"""Building, verifying, printing and pruning graphs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from einc.core.tensor import DType, TensorDesc
from einc.errors import InternalError, OperatorError, SourceSpan
from einc.graph.builder import GraphBuilder
from einc.graph.fuse import prune
from einc.graph.graph import Graph, Node, dump_graph, verify_graph
from einc.ops import registry

X = TensorDesc(("tokens", "d_model"), (7, 9), DType.F32)
W1 = TensorDesc(("d_model", "d_ff"), (9, 11), DType.F32)
W2 = TensorDesc(("d_ff", "d_out"), (11, 9), DType.F32)


def ffn() -> GraphBuilder:
    builder = GraphBuilder("ffn")
    x = builder.input("x", X)
    w1, w2 = builder.weight("w1", W1), builder.weight("w2", W2, "mlp.down")
    (act,) = builder.apply(registry.call("matmul", [X, W1], {}), [x, w1], ["act"])
    (hidden,) = builder.apply(registry.call("relu", [builder.desc(act)], {}), [act], ["hidden"])
    (y,) = builder.apply(registry.call("matmul", [builder.desc(hidden), W2], {}), [hidden, w2], ["y"])
    builder.save(y)
    return builder


def test_the_canonical_text() -> None:
    graph = ffn().build()
    verify_graph(graph)
    assert dump_graph(graph) == (
        "graph ffn\n"
        "input x : f32[tokens=7, d_model=9]\n"
        "weight w1 : f32[d_model=9, d_ff=11]\n"
        'weight w2 : f32[d_ff=11, d_out=9] from "mlp.down"\n'
        'act : f32[tokens=7, d_ff=11] = equation(x, w1) {aggregation="sum", dims=["tokens", "d_ff"], '
        'indices="i j, j k -> i k", program="t0 = mul x0 x1"}\n'
        'hidden : f32[tokens=7, d_ff=11] = equation(act) {aggregation="", dims=["tokens", "d_ff"], '
        'indices="tokens d_ff -> tokens d_ff", program="t0 = relu x0"}\n'
        'y : f32[tokens=7, d_out=9] = equation(hidden, w2) {aggregation="sum", dims=["tokens", "d_out"], '
        'indices="i j, j k -> i k", program="t0 = mul x0 x1"}\n'
        "output y\n"
    )


def test_positions_and_sources_of_nodes() -> None:
    """A node that reads a tensor twice has its source once; inputs and weights have none."""
    builder = GraphBuilder("wired")
    x, w1 = builder.input("x", X), builder.weight("w1", W1)
    (late,) = builder.apply(registry.call("relu", [X], {}), [x], ["late"])
    (act,) = builder.apply(registry.call("matmul", [X, W1], {}), [x, w1], ["act"])
    (best, kind) = builder.apply(registry.call("topk", [builder.desc(act), 3, "d_ff"], {}), [act])
    (twice,) = builder.apply(registry.call("mul", [X, X], {}), [late, late], ["twice"])
    (last,) = builder.apply(registry.call("matmul", [builder.desc(twice), W1], {}), [twice, w1], ["last"])
    (sum_,) = builder.apply(registry.call("add", [builder.desc(last), builder.desc(act)], {}), [last, act], ["sum"])
    for name in (best, kind, sum_):
        builder.save(name)
    graph = builder.build()
    verify_graph(graph)
    assert graph.positions == {"late": 0, "act": 1, best: 2, "twice": 3, "last": 4, "sum": 5}
    assert graph.sources == ((), (), (1,), (0,), (3,), (1, 4))
    swapped = replace(graph, nodes=(graph.nodes[1], graph.nodes[0], *graph.nodes[2:]))
    assert swapped.positions["late"] == 1
    assert swapped.sources == ((), (), (0,), (1,), (3,), (0, 4))


def test_names_that_are_taken_get_numbers() -> None:
    builder = GraphBuilder("names")
    x = builder.input("x", X)
    relu = registry.call("relu", [X], {})
    assert builder.apply(relu, [x], ["x"]) == ("x.2",)
    assert builder.apply(relu, [x], ["x"]) == ("x.3",)
    assert builder.apply(relu, [x]) == ("relu",)
    assert builder.apply(relu, ["relu"]) == ("relu.2",)
    with pytest.raises(OperatorError):
        builder.weight("x", X)
    with pytest.raises(OperatorError) as caught:
        builder.save("x")
    assert "copy(x)" in str(caught.value.hint)
    with pytest.raises(OperatorError):
        builder.save("nothing")
    builder.save("relu.2")
    builder.save("relu.2")
    verify_graph(builder.build())
    assert builder.build().outputs == ("relu.2",)


def test_a_result_can_take_the_name_it_was_wished() -> None:
    builder = GraphBuilder("names")
    builder.input("x", X)
    relu = registry.call("relu", [X], {})
    builder.apply(relu, ["x"], ["h"])
    (last,) = builder.apply(relu, ["h"], ["h"])
    builder.save(last)
    assert builder.rename(last, "h") == "h"
    assert builder.rename("h", "x") == "h"  # inputs keep theirs
    graph = builder.build()
    verify_graph(graph)
    assert graph.outputs == ("h",)
    assert [(node.name, node.inputs) for node in graph.nodes] == [("h.2", ("x",)), ("h", ("h.2",))]


def test_pruning_drops_what_no_output_needs() -> None:
    builder = ffn()
    builder.weight("unused", W1)
    builder.apply(registry.call("neg", [builder.desc("hidden")], {}), ["hidden"], ["dead"])
    builder.apply(registry.call("exp", [builder.desc("dead")], {}), ["dead"], ["deader"])
    graph = builder.build()
    pruned = prune(graph)
    verify_graph(pruned)
    assert [node.name for node in pruned.nodes] == ["act", "hidden", "y"]
    assert {t.name for t in pruned.tensors} == {"x", "w1", "w2", "unused", "act", "hidden", "y"}


def broken() -> dict[str, Graph]:
    graph = ffn().build()
    act, hidden, y = graph.nodes
    result = registry.call("neg", [W1], {})
    return {
        "order": replace(graph, nodes=(hidden, act, y)),
        "producer": replace(graph, nodes=(act, y)),
        "twice": replace(graph, nodes=(act, act, hidden, y)),
        "node name": replace(graph, nodes=(replace(act, name="a"), hidden, y)),
        "type": replace(graph, nodes=(act, replace(hidden, operator=result), y)),
        "arity": replace(graph, nodes=(replace(act, inputs=("x",)), hidden, y)),
        "outputs": replace(graph, nodes=(replace(act, outputs=("act", "b")), hidden, y)),
        "overwritten": replace(graph, nodes=(act, Node("x", hidden.operator, ("act",), ("x",)), y)),
        "no output": replace(graph, outputs=("z",)),
        "input saved": replace(graph, outputs=("x",)),
        "saved twice": replace(graph, outputs=("y", "y")),
        "tensor twice": replace(graph, tensors=(*graph.tensors, graph.tensors[0])),
    }


@pytest.mark.parametrize("name", broken())
def test_broken_graphs_are_found(name: str) -> None:
    with pytest.raises(InternalError):
        verify_graph(broken()[name])


def test_positions_in_the_source_are_no_part_of_the_text() -> None:
    graph = ffn().build()
    span = SourceSpan("ffn.ein", 1, 1, 2, "x")
    moved = replace(graph, nodes=tuple(replace(node, span=span) for node in graph.nodes))
    assert dump_graph(moved) == dump_graph(graph)
