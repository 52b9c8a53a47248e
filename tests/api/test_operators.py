"""All operators of the library in the Python API: as the language has them, and as numpy computes them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import einc as es
from einc.compiler import Compiled, compile_model
from einc.graph.graph import dump_graph
from einc.ops import registry
from einc.options import CompileOptions
from tests.support.layered_model import compile_layers

PAGE = Path(__file__).parents[2] / "docs" / "operators.md"


def run(graph: es.Graph, arrays: dict[es.Tensor, Any], **options: Any) -> None:
    es.compileGraph(graph, **{"device": 3, "machine": "host", "schedule_mode": "naive", **options})
    for tensor, array in arrays.items():
        graph.load(tensor, array)
    graph.execute()


def tour(graph: es.Graph) -> None:
    """The tour of docs/operators.md, with methods where there are any, and `call` elsewhere."""
    x = graph.insertTensor(es.tensorDesc({"tokens": 6, "d_model": 8}), "x")
    w = graph.insertWeight(es.tensorDesc([("d_model", 8)] * 2), "w")
    bias = graph.insertWeight(es.tensorDesc({"d_model": 8}), "bias")
    mask = graph.insertTensor(es.tensorDesc({"tokens": 6, "d_model": 8}, bool), "mask")
    keep = graph.insertTensor(es.tensorDesc({"d_model": 8}, "bool"), "keep")
    h = graph.binary(graph.matmul(x, w, "h.1"), bias, "add", name="h")
    g = graph.binary(graph.unary(h, "gelu"), 0.5, "mul", name="g")
    k = graph.where(mask, g, -1.0, name="k")
    m = graph.reduce(k, "max", 1, name="m")
    s = graph.softmax(graph.call("sub", k, m, name="s.1"), name="s")
    q = graph.reshape(s, {"tokens": 6, "heads": 2, "d_head": 4}, name="q")
    t = graph.transpose(q, [1, 0, 2], name="t")
    z = graph.equation("z[heads, d_head] = sum[i](t[heads, i, d_head] * t[heads, i, d_head])", t=t)
    half = graph.cast(z, np.float16, name="half")
    ids = graph.insertTensor(es.tensorDesc({"tokens": 6}, "i64"), "ids")
    table = graph.insertWeight(es.tensorDesc({"vocabulary": 50, "d_model": 8}), "table")
    gain = graph.insertWeight(es.tensorDesc({"d_model": 8}), "gain")
    e = graph.rmsnorm(graph.embedding(ids, table, name="e.1"), gain, eps=1e-6, name="e")
    r = graph.rope(t, theta=500000.0, seq_lens=[4, 2], name="r")
    both = graph.concat([e, h], axis=-2, into="all", name="both")
    pooled = graph.meanpool(
        graph.cut(both, np.s_[2:10], name="pooled.1"), keep, seq_lens=[4, 4], into="sentences", name="pooled"
    )
    top, _ = graph.topk(e, 3, axis=1, name=["top", "places"])
    for tensor in (half, t, r, pooled, top):
        graph.save(tensor)


def test_the_tour_of_the_library_is_the_same_graph_in_python() -> None:
    match = re.search(r"```ein\n(model tour.*?)```", PAGE.read_text(encoding="utf-8"), re.S)
    assert match is not None
    text = compile_model(match[1], "tour.ein", CompileOptions(machine="host"))
    graph = es.createGraph("tour")
    tour(graph)
    built = Compiled(graph._build(), CompileOptions(machine="host"))

    assert dump_graph(built.graph) == dump_graph(text.graph)


def test_every_name_of_the_library_can_be_called() -> None:
    """Each once, by `call`, with what the case needs; the method of the same name agrees where there is one."""
    graph = es.createGraph()
    f = graph.insertTensor(es.tensorDesc({"a": 4, "b": 6}), "f")
    b = graph.insertTensor(es.tensorDesc({"a": 4, "b": 6}, "bool"), "bools")
    v = graph.insertTensor(es.tensorDesc({"b": 6}), "v")
    q = graph.insertTensor(es.tensorDesc({"h": 2, "t": 4, "d": 6}), "q")
    ids = graph.insertTensor(es.tensorDesc({"t": 4}, "i64"), "ids")
    experts = graph.insertTensor(es.tensorDesc({"e": 3, "n": 5, "b": 6}), "experts")
    picks = graph.insertTensor(es.tensorDesc({"a": 4, "s": 2}, "i64"), "picks")
    operands = {"and": (b, b), "or": (b, b), "not": (b,), "where": (b, f, 0.0), "cast": (f, "f16"), "clip": (f, v, 1.0),
           "reshape": (f,), "matmul": (f, graph.transpose(f)), "attention": (q, q, q), "rope": (q,),
           "embedding": (ids, f), "expert_matmul": (f, experts, picks),
           "append": (q, q, ids), "concat": (f, f), "slice": (f,), "topk": (f, 2, "b"),
           "rmsnorm": (f, v),
           "layernorm": (f, v, v), "softmax": (f, "b"), "transpose": (f,), "mean": (f, "b"), "sum": (f, "b"),
           "prod": (f, "b")}  # fmt: skip
    more: dict[str, dict[str, Any]] = {"reshape": {"c": 24}, "concat": {"over": "a"}, "slice": {"b": [1, 3]}}
    binary = {"add", "sub", "mul", "div", "pow", "max", "min", "floordiv", "mod", "eq", "ne", "lt", "le", "gt", "ge",
              "atan2"}  # fmt: skip
    bits = {"bitand", "bitor", "bitxor", "shiftleft", "shiftright"}
    for name in registry.list_names():
        arguments = operands.get(name, (f, f) if name in binary else (ids, ids) if name in bits else (f,))
        result = graph.call(name, *arguments, **more.get(name, {}))
        assert isinstance(result, es.Tensor | tuple), name
    assert len(graph.call("attention", q, q, q)) == 2
    assert isinstance(graph.attention(q, q, q), es.Tensor)
    assert graph.clip(f, v, 1.0).desc == graph.call("clip", f, v, 1.0).desc
    assert graph.expert_matmul(f, experts, picks).shape == (4, 2, 5)


def test_operators_and_slices_of_tensors_compute_what_numpy_does() -> None:
    rng = np.random.default_rng(11)
    a = (rng.standard_normal((5, 7)) + 3).astype("f4")
    c = (rng.standard_normal(7) + 3).astype("f4")
    n = rng.integers(1, 9, (5, 7)).astype("i4")
    graph = es.createGraph()
    x, y, i = (graph.insertTensor(es.tensorDesc(array.shape, array.dtype)) for array in (a, c, n))
    cases = {
        "+": (x + y, a + c), "r+": (1.5 + x, 1.5 + a), "-": (x - y, a - c), "r-": (2 - x, 2 - a),
        "*": (x * np.float32(3), a * 3), "r*": (np.float64(3) * x, a * 3), "/": (x / y, a / c), "r/": (1 / x, 1 / a),
        "//": (i // 3, n // 3), "r//": (20 // i, 20 // n), "%": (i % 3, n % 3), "r%": (20 % i, 20 % n),
        "**": (abs(x) ** 1.5, abs(a) ** 1.5), "r**": (2.0**x, 2.0**a), "neg": (-x, -a),
        "@": (x @ graph.transpose(x), a @ a.T), "wide": (y + x, c + a),
        "<": (x < y, a < c), "<=": (i <= 4, n <= 4), ">": (x < 3, a < 3), ">=": (i >= i, n >= n),
        "&|~": ((x < y) & ~(x < 2.5) | (x > 4), (a < c) & ~(a < 2.5) | (a > 4)),
        "rows": (x[1:4], a[1:4]), "both": (x[-3:, 2:-1], a[-3:, 2:-1]), "row": (x[2], a[2]),
        "column": (x[..., -1], a[..., -1]), "one": (y[3:4], c[3:4]), "steps": (x[1:][1:, :5][0], a[2, :5]),
        "where": (graph.where(x < y, y, 0.0), np.where(a < c, c, 0)),
        "mean": (graph.reduce(x, "mean", 0), a.mean(axis=0)),
        "cast": (graph.cast(i, "f32") / 2, n / np.float32(2)),
        "shape": (graph.reshape(x, [7, 5]), a.reshape(7, 5)), "order": (graph.transpose(x, [-1, 0]), a.T),
        "stack": (graph.concat([x, x[:2]]), np.concatenate([a, a[:2]])),
        "index": (graph.argmax(x)[0], a.argmax(axis=1)), "best": (graph.topk(x, 2, 0)[0], -np.sort(-a.T)[:, :2]),
    }  # fmt: skip
    saved = {name: graph.save(tensor, name) for name, (tensor, _) in cases.items()}
    assert x[:] is x
    run(graph, {x: a, y: c, i: n}, selector="eindecomp")  # what is computed does not depend on it, and it is fast
    for name, (_, expected) in cases.items():
        result = graph.offload(saved[name])
        assert saved[name].name == name
        assert result.shape == expected.shape, name
        np.testing.assert_allclose(result, expected, rtol=2e-5, atol=1e-5, err_msg=name)


def test_weights_and_names_of_outputs(tmp_path: Path) -> None:
    graph = es.createGraph("named")
    x = graph.insertTensor(es.tensorDesc({"rows": 5, "width": 8}), "x")
    w = graph.insertWeight(es.tensorDesc({"width": 8, "out": 3}), "w", stored="layer.weight")
    y = graph.matmul(x, w)
    assert y.name == "matmul"
    first = graph.save(y, "logits")
    again, copied = graph.save(y, "twice"), graph.save(w, "the_weight")
    assert (first.name, y.name, again.name, copied.name) == ("logits", "logits", "twice", "the_weight")
    plan = es.compileGraph(graph, device=2, machine="host", seed=3)
    assert [plan.bundle.tensors[output.tensor].name for output in plan.bundle.outputs] == [
        "logits",
        "twice",
        "the_weight",
    ]
    assert plan.milliseconds == plan.bundle.predicted_ms
    weight, array = np.random.default_rng(2).standard_normal((2, 8, 8)).astype("f4")
    graph.loadWeights({"layer.weight": weight[:, :3]})
    graph.load(x, array[:5])
    graph.execute()
    np.testing.assert_allclose(graph.offload(y), array[:5] @ weight[:, :3], rtol=1e-5)
    np.testing.assert_array_equal(graph.offload(y), graph.offload(again))
    np.testing.assert_array_equal(graph.offload(copied), weight[:, :3])


def test_exchanges_and_proposers_are_those_of_the_command_line(tmp_path: Path) -> None:
    def layers() -> es.Graph:
        graph = es.createGraph("layers")
        x = graph.insertTensor(es.tensorDesc({"rows": 24, "width": 40}), "x")
        for layer in range(3):
            up = graph.insertWeight(es.tensorDesc({"width": 40, "hidden": 56}), f"up.{layer}")
            down = graph.insertWeight(es.tensorDesc({"hidden": 56, "width": 40}), f"down.{layer}")
            h = graph.unary(graph.matmul(x, up, f"layer.{layer}.h.1"), "relu", name=f"layer.{layer}.h")
            x = graph.softmax(graph.matmul(h, down), name=f"x.{layer}")
        graph.save(x * 2.0, "y")
        return graph

    options = {
        "device": 4,
        "machine": "dgx-v100",
        "ideal": True,
        "schedule_mode": "naive",
        "selector": "eindecomp",
    }
    plain = es.compileGraph(layers(), **options)
    programs = {
        operation.name: operation.exchange for operation in plain.bundle.operations if operation.exchange is not None
    }
    theirs = {
        operation.name: operation.exchange
        for operation in compile_layers().bundle.operations
        if operation.exchange is not None
    }
    assert programs == theirs
    mine = tmp_path / "mine.exprog"
    mine.write_text(programs["x.1"].program)
    calls = []

    class Silent:
        def propose(self, request: Any) -> None:
            calls.append(request.best_ms)

    compiled = es.compileGraph(
        layers(), exchanges={"x.1": mine, "x.2": mine.read_text()}, proposers=[Silent(), "command:cat"], **options
    )
    authors = {
        operation.name: operation.exchange.author
        for operation in compiled.bundle.operations
        if operation.exchange is not None
    }
    assert [name for name, author in authors.items() if author == "user"] == ["x.1", "x.2"]
    assert len(calls) == 2
    assert [line.split(":")[0] for line in compiled.proposals] == ["x.0", "layer.1.h.1"]


@pytest.mark.parametrize("text", ["y[i] = sum[j](a[i, j] * b[j]) * s", "y[r] = max[k](exp(a[r, k]) + relu(a)[r, k])"])
def test_equations_are_those_of_the_language(text: str) -> None:
    graph = es.createGraph("m")
    a, b = graph.insertTensor(es.tensorDesc({"p": 5, "q": 6}), "a"), graph.insertTensor(es.tensorDesc({"q": 6}), "b")
    graph.save(graph.equation(text, a=a, b=b, s=0.5))
    model = f"model m\nparam s = 0.5\ndim p = 5\ndim q = 6\ninput a : f32[p, q]\ninput b : f32[q]\noutput {text}\n"
    theirs = compile_model(model, "m.ein", CompileOptions(machine="host"))
    assert dump_graph(Compiled(graph._build(), CompileOptions(machine="host")).graph) == dump_graph(theirs.graph)
