"""The Python API: the paper's program as printed, and what happens to programs that are wrong."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import einc as es
from einc.errors import EincError, MachineError, ModelError, OperatorError, UsageError
from einc_runtime.errors import ArrayFault


def ffn(tokens: int, d_model: int, d_ff: int, dtype: Any = "f32") -> tuple[es.Graph, list[es.Tensor], es.Tensor]:
    """The paper's Section 2, as printed."""
    graph = es.createGraph()

    x = graph.insertTensor(es.tensorDesc([tokens, d_model], dtype))
    w1 = graph.insertTensor(es.tensorDesc([d_model, d_ff], dtype))
    w2 = graph.insertTensor(es.tensorDesc([d_ff, d_model], dtype))

    act = graph.matmul(x, w1)
    hidden = graph.unary(act, "relu", 0.0)
    y = graph.matmul(hidden, w2)

    graph.save(y)
    return graph, [x, w1, w2], y


def drawn(tensor: es.Tensor, seed: int) -> Any:
    return np.random.default_rng(seed).standard_normal(tensor.shape).astype(np.float32)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "choice",
    [
        {"device": [0, 1, 2, 3], "machine": "dgx-a100"},
        {"device": [6, 3, 1], "machine": "dgx-v100", "schedule_mode": "naive"},
        {"device": 5, "machine": "host"},
        {"device": 1, "machine": "host"},
        {"machine": "dgx-h100", "selector": "random", "seed": 3, "schedule_mode": "ai"},
        {"machine": "dgx-h100", "device": 3, "schedule_mode": "synthesized"},
        {"machine": "dgx-h100", "device": 5, "input_placement": "once"},
    ],
    ids=str,
)
def test_the_papers_program_computes_what_numpy_does(choice: dict[str, Any]) -> None:
    graph, inputs, y = ffn(13, 7, 22)
    plan = es.compileGraph(graph, **choice)
    assert plan.cost == plan.bundle.total_cost
    arrays = [drawn(tensor, seed) for seed, tensor in enumerate(inputs)]
    for tensor, array in zip(inputs, arrays, strict=True):
        graph.load(tensor, array)
    assert graph.execute() > 0
    x, w1, w2 = (array.astype(np.float64) for array in arrays)
    expected = np.maximum(x @ w1, 0) @ w2
    result = graph.offload(y)
    assert result.dtype == np.float32
    np.testing.assert_allclose(result, expected, atol=1e-5 * np.abs(expected).max())

    graph.load(inputs[0], 2 * arrays[0])  # the weights stay
    graph.execute()
    np.testing.assert_allclose(graph.offload(y), 2 * expected, atol=2e-5 * np.abs(expected).max())


def test_without_a_machine_it_runs_here() -> None:
    graph, inputs, y = ffn(8, 4, 6)
    es.compileGraph(graph)
    for seed, tensor in enumerate(inputs):
        graph.load(tensor, drawn(tensor, seed))
    graph.execute()
    assert graph.offload(y).shape == (8, 4)


def test_the_other_operators_agree_with_numpy() -> None:
    rng = np.random.default_rng(5)
    a, b, c = (rng.standard_normal(shape).astype(np.float32) for shape in ((9, 5), (5,), (5, 9)))
    graph = es.createGraph("many")
    x, bias, w = (graph.insertTensor(es.tensorDesc(array.shape, array.dtype)) for array in (a, b, c))
    biased = graph.binary(x, bias, "add")
    flipped = graph.einsum("ij,ji->ji", biased, w)
    results = {
        "biased": (biased, a + b),
        "scaled": (graph.unary(biased, "mul", 0.5), (a + b) * 0.5),
        "threshold": (graph.unary(x, "relu", 0.25), np.maximum(a, 0.25)),
        "greatest": (graph.reduce(x, "max", 1), a.max(axis=1)),
        "total": (graph.reduce(x, "sum", [0, -1]), a.sum()),
        "soft": (graph.softmax(x, 0), np.exp(a) / np.exp(a).sum(axis=0)),
        "product": (graph.matmul(biased, w), (a + b) @ c),
        "flipped": (flipped, (a + b).T * c),
        "gram": (graph.einsum("ik,jk->ij", x, x), a @ a.T),
        "triple": (graph.einsum("ij,jk,j->ik", x, w, bias), np.einsum("ij,jk,j->ik", a, c, b)),
    }
    for tensor, _ in results.values():
        graph.save(tensor)
    es.compileGraph(graph, device=3, machine="host")
    for tensor, array in ((x, a), (bias, b), (w, c)):
        graph.load(tensor, array)
    graph.execute()
    for name, (tensor, expected) in results.items():
        result = graph.offload(tensor)
        assert result.shape == np.shape(expected), name
        np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("dtype", ["f16", "float16", np.float16, np.dtype("float16"), "bf16"])
def test_dtypes_go_by_all_their_names(dtype: Any) -> None:
    assert es.tensorDesc([2, 3], dtype).dtype.value in ("f16", "bf16")


def test_a_plan_is_written_and_verified(tmp_path: Path) -> None:
    from einc_runtime.plan.codec import decode
    from einc_runtime.plan.proof import prove

    graph, _, _ = ffn(13, 7, 22)
    plan = es.compileGraph(graph, machine="dgx-a100")
    plan.write(tmp_path / "p.bin")
    data = (tmp_path / "p.bin").read_bytes()
    assert data == plan.toBytes()
    prove(decode(data))


def misuse(act: Callable[[es.Graph, list[es.Tensor], es.Tensor], object]) -> EincError | ArrayFault:
    graph, inputs, y = ffn(8, 4, 6)
    with pytest.raises((EincError, ArrayFault)) as caught:
        act(graph, inputs, y)
    assert "internal" not in caught.value.code
    return caught.value


def compiled(graph: es.Graph) -> es.Graph:
    es.compileGraph(graph, device=2, machine="host")
    return graph


@pytest.mark.parametrize(
    ("act", "kind", "words"),
    [
        (lambda g, i, y: g.execute(), UsageError, "execute before compileGraph"),
        (lambda g, i, y: g.load(i[0], np.zeros((8, 4), "f4")), UsageError, "load before compileGraph"),
        (lambda g, i, y: g.offload(y), UsageError, "offload before compileGraph"),
        (lambda g, i, y: compiled(g).execute(), UsageError, "nothing was loaded for x, x.2, x.3"),
        (lambda g, i, y: compiled(g).offload(y), UsageError, "offload before execute"),
        (lambda g, i, y: compiled(g).offload(i[0]), UsageError, "was not saved"),
        (lambda g, i, y: compiled(g).matmul(y, y), UsageError, "compiled already"),
        (lambda g, i, y: compiled(g).load(i[0], np.zeros((4, 8), "f4")), ArrayFault, "expected f32[8, 4]"),
        (lambda g, i, y: compiled(g).load(i[0], np.zeros((8, 4), "O")), ArrayFault, ""),
        (lambda g, i, y: compiled(g).load(i[0], "text"), ArrayFault, ""),
        (lambda g, i, y: compiled(g).load(y, np.zeros((8, 4), "f4")), ArrayFault, "input"),
        (lambda g, i, y: compiled(g).load("x", np.zeros((8, 4), "f4")), UsageError, "expected a tensor"),
        (lambda g, i, y: g.matmul(i[0], i[0]), OperatorError, "expected 4"),
        (lambda g, i, y: g.matmul(i[0], ffn(8, 4, 6)[1][1]), UsageError, "another graph"),
        (lambda g, i, y: g.matmul(i[0], 3), UsageError, "expected a tensor"),
        (lambda g, i, y: g.unary(y, "rleu"), OperatorError, "relu"),
        (lambda g, i, y: g.unary(y, "exp", 2.0), UsageError, "takes no value"),
        (lambda g, i, y: g.unary(y, "add", "a"), (OperatorError, UsageError), ""),
        (lambda g, i, y: g.binary(y, i[1], "add"), OperatorError, ""),
        (lambda g, i, y: g.binary(y, y, "plus"), OperatorError, ""),
        (lambda g, i, y: g.reduce(y, "median", 0), OperatorError, "median"),
        (lambda g, i, y: g.reduce(y, "sum", 2), OperatorError, "axis"),
        (lambda g, i, y: g.softmax(y, 5), OperatorError, "axis"),
        (lambda g, i, y: g.einsum("ij", y), UsageError, "ij,jk->ik"),
        (lambda g, i, y: g.einsum("ij,jk->ik", y), UsageError, "1 tensors"),
        (lambda g, i, y: g.save(i[0]), OperatorError, "input"),
        (lambda g, i, y: g.insertTensor([3, 4]), UsageError, "tensorDesc"),
        (lambda g, i, y: g.insertTensor(es.tensorDesc([3]), "x"), OperatorError, "already"),
        (lambda g, i, y: g.reduce(y, "sum", [0, -2]), OperatorError, "named twice"),
        (lambda g, i, y: g.binary(y, [1.0, 2.0], "add"), UsageError, "or a number, not list"),
        (lambda g, i, y: y * np.ones((8, 4)), UsageError, "insertTensor"),
        (lambda g, i, y: y & y, OperatorError, "and"),
        (lambda g, i, y: 1 if y < 0 else 2, UsageError, "graph.where"),
        (lambda g, i, y: y[8], OperatorError, "no position 8 in dimension 0"),
        (lambda g, i, y: y[3:3], OperatorError, "has no elements"),
        (lambda g, i, y: y[::2], OperatorError, "has step 1, not 2"),
        (lambda g, i, y: y[0, 0, 0], OperatorError, "3 positions for the 2 dimensions"),
        (lambda g, i, y: y[y], OperatorError, "integers and slices"),
        (lambda g, i, y: y[1.5:], OperatorError, "integers and slices"),
        (lambda g, i, y: g.call("softmaxx", y), OperatorError, "softmax"),
        (lambda g, i, y: g.call("rope", y, thetta=2.0), OperatorError, "thetta"),
        (lambda g, i, y: g.rmsnorm(y, i[1]), OperatorError, "rmsnorm"),
        (lambda g, i, y: g.reshape(y, [5, 5]), OperatorError, "reshape"),
        (lambda g, i, y: g.transpose(y, [0, 0]), OperatorError, "every axis"),
        (lambda g, i, y: g.concat([]), UsageError, "at least one"),
        (lambda g, i, y: g.cast(y, "f8"), UsageError, "f16"),
        (lambda g, i, y: g.argmax(y, name=["a", "b", "c"]), UsageError, "2 results, and 3 names"),
        (lambda g, i, y: g.matmul(i[0], i[1], name=""), UsageError, "printable characters"),
        (lambda g, i, y: g.equation("y[i] = x[i]", x=y), EincError, "equation:1:"),
        (lambda g, i, y: g.equation("y[i] = z[i]", x=y), EincError, "'z' is not defined"),
        (lambda g, i, y: g.equation("y = x", x=y), EincError, "one index equation"),
        (lambda g, i, y: g.equation("", x=y), EincError, "one index equation"),
        (lambda g, i, y: g.equation("y[i] = rleu(x[i, 0])", x=y), EincError, "equation:1:"),
        (lambda g, i, y: g.equation("y[i, j] = x[i, j]", x="x"), ModelError, "expected a tensor, found the string"),
        (lambda g, i, y: g.save(y, "x"), UsageError, "already a tensor 'x'"),
        (lambda g, i, y: g.insertWeight(es.tensorDesc([3]), stored=""), UsageError, "printable"),
        (lambda g, i, y: g.loadWeights("rand:0"), UsageError, "loadWeights before compileGraph"),
        (lambda g, i, y: es.tensorDesc({"a b": 3}), UsageError, "letters, digits"),
        (lambda g, i, y: es.tensorDesc([("a", 3, 4)]), UsageError, "a name with an extent"),
        (lambda g, i, y: es.tensorDesc([2**40, 2**40]), OperatorError, "too large"),
        (lambda g, i, y: es.compileGraph(g, preset="tiny"), UsageError, "no option 'preset'"),
        (lambda g, i, y: es.compileGraph(g, selektor="best"), UsageError, "selector"),
        (lambda g, i, y: es.compileGraph(g, 2, machine="host", exchanges={"z": ""}), EincError, "IN:"),
        (lambda g, i, y: es.compileGraph(g, proposers=["command:"]), UsageError, "no command"),
        (lambda g, i, y: es.tensorDesc([0]), UsageError, "at least 1"),
        (lambda g, i, y: es.tensorDesc(3), UsageError, "a shape is a list"),  # type: ignore[arg-type]
        (lambda g, i, y: es.tensorDesc([2**63]), UsageError, "63 bits"),
        (lambda g, i, y: es.tensorDesc([2.5]), UsageError, "integer"),
        (lambda g, i, y: es.tensorDesc([2], "f8"), UsageError, "f16"),
        (lambda g, i, y: es.compileGraph(es.createGraph()), UsageError, "saved"),
        (lambda g, i, y: es.compileGraph(g, device=[]), UsageError, "at least one"),
        (lambda g, i, y: es.compileGraph(g, device=[0, 0]), UsageError, "twice"),
        (lambda g, i, y: es.compileGraph(g, device=[-1]), UsageError, "from 0"),
        (lambda g, i, y: es.compileGraph(g, device=10**9, machine="host"), UsageError, "at most"),
        (lambda g, i, y: es.compileGraph(g, device=9, machine="dgx-a100"), MachineError, "has 8"),
        (lambda g, i, y: es.compileGraph(g, device=[8], machine="dgx-a100"), MachineError, "site 8"),
        (lambda g, i, y: es.compileGraph(g, machine="dgx-b100"), EincError, "dgx-"),
        (lambda g, i, y: es.compileGraph(g, schedule_mode="best"), UsageError, "naive"),
        (lambda g, i, y: es.compileGraph(g, input_placement="twice"), UsageError, "'replicated' or 'once'"),
        (lambda g, i, y: es.compileGraph(g, objective="speed"), UsageError, "'latency' or 'throughput'"),
        (lambda g, i, y: es.compileGraph(g, selector="best"), UsageError, "eindecomp"),
    ],
)
def test_misuse_is_explained(act: Any, kind: Any, words: str) -> None:
    error = misuse(act)
    assert isinstance(error, kind)
    assert words in error.render()


def test_importing_einc_imports_nothing_else() -> None:
    code = "import sys, einc; print(sorted(m for m in sys.modules if m in ('numpy', 'click', 'einc.api', 'runtime')))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=True)
    assert done.stdout == "[]\n"
    with pytest.raises(AttributeError, match="nonsense"):
        _ = es.nonsense  # type: ignore[attr-defined]
    assert es.__version__


def test_what_is_loaded_anew_has_to_be_computed_with() -> None:
    graph = es.createGraph()
    x = graph.insertTensor(es.tensorDesc([5, 3]))
    y = graph.unary(x, "relu")
    graph.save(y)
    es.compileGraph(graph, 2, machine="host")
    first, second = drawn(x, 0), drawn(x, 1)
    graph.load(x, first)
    graph.execute()
    np.testing.assert_array_equal(graph.offload(y), np.maximum(first, 0))
    graph.load(x, second)
    with pytest.raises(UsageError, match="offload before execute"):
        graph.offload(y)
    graph.execute()
    np.testing.assert_array_equal(graph.offload(y), np.maximum(second, 0))


def test_a_plan_is_looked_at_as_a_page_and_as_tables(tmp_path):
    graph = es.createGraph("two")
    x, w = (graph.insertTensor(es.tensorDesc([24, 24]), name) for name in "xw")
    graph.save(graph.matmul(x, w), "y")
    plan = es.compileGraph(graph, 3, machine="dgx-v100", selector="random")
    assert plan._repr_html_().startswith("<iframe ")
    plan.writePage(tmp_path / "p.html")
    assert "two on 3 sites of dgx-v100" in (tmp_path / "p.html").read_text()
    document, tables = plan.explain(), plan.tables()
    assert [row["critical_ms"] for row in tables["operators"]] == [
        operation["time"]["critical_ms"] for operation in document["ops"]
    ]
    assert [row["memory_bytes"] for row in tables["sites"]] == document["memory_bytes"]
    assert sum(row["moved_bytes"] for row in tables["operators"]) == sum(
        operation["moves"]["bytes"] for operation in document["ops"]
    )
    for rows in tables.values():
        assert len({tuple(row) for row in rows}) <= 1


@pytest.mark.parametrize(("machine", "rates"), [("dgx-h100", "fitted"), ("dgx-v100", "peak")])
def test_a_plan_says_how_far_its_time_may_be_off(machine: str, rates: str) -> None:
    graph, _, _ = ffn(64, 48, 96, "f16")
    plan = es.compileGraph(graph, 2, machine=machine)
    assert plan.rates == plan.explain()["rates"] == rates
    if rates == "peak":
        assert plan.millisecondsRange is None
        return
    assert plan.millisecondsRange is not None
    assert plan.milliseconds is not None
    low, high = plan.millisecondsRange
    assert low < plan.milliseconds < high
    assert [low, high] == plan.explain()["predicted_range_ms"]


def test_names_of_other_libraries_are_understood() -> None:
    text = "model m\ninput x : f32[4, 4]\noutput y = relu(x)\n"
    for dtype in ("fp16", "float16", np.float16, np.dtype("float16")):
        plan = es.compile(text, "dgx-a100:2", dtype=dtype, memory="1 GiB")
        assert plan.bundle.tensors[0].dtype == "f16"
    with pytest.raises(UsageError, match="'a lot' is not an amount of memory"):
        es.compile(text, "dgx-a100:2", memory="a lot")
    with pytest.raises(UsageError, match=r"(?s)nowhere\.ein: there is no such file"):
        es.compile("nowhere.ein", "dgx-a100:2")
