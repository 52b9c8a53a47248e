"""What models mean: graphs evaluated node by node against numpy written out by hand, and the names in them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose

from einc.errors import ModelError
from einc.frontend import build
from einc.graph.graph import TensorKind, verify_graph

Array = np.ndarray[Any, np.dtype[Any]]
MATRICES = """
dim m = 3
dim n = 4
dim k = 5
input a : f64[m, n]
input b : f64[n, k]
input c : f64[m]
input d : f64[m, n]
input e : f64[m, n]
"""


def evaluate(text: str, **options: Any) -> tuple[dict[str, Array], dict[str, Array]]:
    """The arrays that went into a model and all that it computes, by name. Inputs are drawn at random."""
    graph = build(text, "m.ein", **options)
    verify_graph(graph)
    random = np.random.default_rng(7)
    values: dict[str, Array] = {}
    for tensor in graph.tensors:
        if tensor.kind is not TensorKind.VALUE:
            values[tensor.name] = random.uniform(0.5, 2.0, tensor.desc.shape).astype(tensor.desc.dtype.numpy())
    operands = dict(values)
    for node in graph.nodes:
        results = node.operator.reference(*(values[name] for name in node.inputs))
        values.update(zip(node.outputs, results, strict=True))
    return operands, values


def result(text: str, **options: Any) -> Array:
    """The value of `y`, the one output."""
    graph = build(text, "m.ein", **options)
    assert graph.outputs == ("y",)
    return evaluate(text, **options)[1]["y"]


def inputs() -> dict[str, Array]:
    return evaluate(MATRICES + "output y = a + a")[0]


EQUATIONS = {
    "y[i, j] = clip(a[i, j], c[i], 1.5)": lambda a, b, c, d, e: np.clip(a, c[:, None], 1.5),
    "y[i] = sum[j](clip(a[i, j] - d[i, j], -0.5, clip(c[i], 0, 1)))": lambda a, b, c, d, e: np.clip(
        a - d, -0.5, np.clip(c, 0, 1)[:, None]
    ).sum(1),
    "y[i, j] = atan2(a[i, j], c[i]) + where(isnan(d[i, j]), 1.0, floor(d[i, j]))": lambda a, b, c, d, e: (
        np.arctan2(a, c[:, None]) + np.floor(d)
    ),
    "y[i, l] = a[i, j] * b[j, l]": lambda a, b, c, d, e: a @ b,
    "y[l, i] = a[i, j] * b[j, l]": lambda a, b, c, d, e: (a @ b).T,
    "y[m, k] = a[m, n] * b[n, k]": lambda a, b, c, d, e: a @ b,
    "y[i] = a[i, j]": lambda a, b, c, d, e: a.sum(1),
    "y[] = a[i, j]": lambda a, b, c, d, e: a.sum(),
    "y[j, i] = a[i, j]": lambda a, b, c, d, e: a.T,
    "y[i] = 2 * a[i, j] * c[i] * d[i, j]": lambda a, b, c, d, e: 2 * (a * c[:, None] * d).sum(1),
    "y[i] = max[j](a[i, j])": lambda a, b, c, d, e: a.max(1),
    "y[] = min[j, i](a[i, j])": lambda a, b, c, d, e: a.min(),
    "y[j] = prod[i](a[i, j])": lambda a, b, c, d, e: a.prod(0),
    "y[i, l] = min[j](a[i, j] + b[j, l])": lambda a, b, c, d, e: (a[:, :, None] + b[None]).min(1),
    "y[i] = sum[j](a[i, j] * d[i, j]) + c[i]": lambda a, b, c, d, e: (a * d).sum(1) + c,
    "y[i, j] = a[i, j] / sum[j](a[i, j])": lambda a, b, c, d, e: a / a.sum(1, keepdims=True),
    "y[j, i] = exp(a[i, j] - max[j](a[i, j]))": lambda a, b, c, d, e: np.exp(a - a.max(1, keepdims=True)).T,
    "y[] = max[i](sum[j](a[i, j]) * c[i])": lambda a, b, c, d, e: (a.sum(1) * c).max(),
    "y[i] = sum[j](max[l](b[j, l]) * a[i, j])": lambda a, b, c, d, e: a @ b.max(1),
    "y[i, j] = where(a[i, j] > c[i], a[i, j], -d[i, j])": lambda a, b, c, d, e: np.where(a > c[:, None], a, -d),
    "y[i, j] = max(a[i, j], d[i, j], )": lambda a, b, c, d, e: np.maximum(a, d),
    "y[i, j] = -a[i, j] ** 2.0 // 0.7 % 0.9": lambda a, b, c, d, e: -(a**2) // 0.7 % 0.9,
    "y[i, j] = a[i, j] - d[i, j] - e[i, j]": lambda a, b, c, d, e: a - d - e,
    "y[i, j] = a[i, j] / (d[i, j] / e[i, j])": lambda a, b, c, d, e: a / (d / e),
    "y[i, l] = matmul(a, b)[i, l] + c[i]": lambda a, b, c, d, e: a @ b + c[:, None],
    "y[j] = (a + d)[i, j]": lambda a, b, c, d, e: (a + d).sum(0),
    "y[i, p] = a[i, j] * d[p, j]": lambda a, b, c, d, e: a @ d.T,
    "y[i] = sum[j](a[i, j] * (m + 1))": lambda a, b, c, d, e: a.sum(1) * 4,
    "y = a + d * e": lambda a, b, c, d, e: a + d * e,
    "y = (a + d) * e": lambda a, b, c, d, e: (a + d) * e,
    "y = a - d - e": lambda a, b, c, d, e: a - d - e,
    "y = a * c + 1": lambda a, b, c, d, e: a * c[:, None] + 1,
    "y = c / a": lambda a, b, c, d, e: c[:, None] / a,
    "y = 2 ** a": lambda a, b, c, d, e: 2**a,
    "y = -a ** 2": lambda a, b, c, d, e: -(a**2),
    "y = a ** d ** e": lambda a, b, c, d, e: a ** (d**e),
    "y = 1 / n / a": lambda a, b, c, d, e: 0.25 / a,
    "y = a < d": lambda a, b, c, d, e: a < d,
    "y = relu(a - d)": lambda a, b, c, d, e: np.maximum(a - d, 0),
    "y = matmul(a, b) * sum([1, 2])": lambda a, b, c, d, e: (a @ b) * 3,
    "y = max(a, d)": lambda a, b, c, d, e: np.maximum(a, d),
    "y = sum(a, \"n\")": lambda a, b, c, d, e: a.sum(1),
}  # fmt: skip


@pytest.mark.parametrize("statement", EQUATIONS)
def test_statements_mean_what_numpy_says(statement: str) -> None:
    operands = inputs()
    expected = EQUATIONS[statement](*(operands[name] for name in "abcde"))
    assert_allclose(result(f"{MATRICES}{statement.replace(', )', ')')}\noutput y"), expected, rtol=1e-12)


def test_a_diagonal_and_its_sum() -> None:
    text = "dim n = 4\ninput a : f64[n, n]\n"
    operands, values = evaluate(text + "trace[] = a[i, i]\nd[i] = a[i, i]\noutput trace, d")
    assert_allclose(values["trace"], np.trace(operands["a"]))
    assert_allclose(values["d"], np.diag(operands["a"]))


def test_indices_bind_by_position_and_the_left_side_names_dimensions() -> None:
    graph = build(MATRICES + "output y[rows, m] = a[m, q] * d[rows, q]", "m.ein")
    desc = graph.tensor_table()["y"].desc
    assert (desc.dims, desc.shape) == (("rows", "m"), (3, 3))


def test_repeats_carry_names_and_blocks_have_weights_of_their_own() -> None:
    text = """
    dim n = 4
    input x : f64[n]
    block layer(x, i, more) {
        weight w : f64[n] from "layers.{i}.w"
        weight v : f64[n]
        h = x * w + more
        return h - v
    }
    repeat 3 as i { x = layer(x, i, more=i * 10) }
    output y = x
    """
    graph = build(text, "m.ein")
    weights = [(t.name, t.stored) for t in graph.tensors if t.kind is TensorKind.WEIGHT]
    assert weights == [
        ("layer.0.w", "layers.0.w"), ("layer.0.v", None), ("layer.1.w", "layers.1.w"), ("layer.1.v", None),
        ("layer.2.w", "layers.2.w"), ("layer.2.v", None),
    ]  # fmt: skip
    operands, values = evaluate(text)
    x = operands["x"]
    for i in range(3):
        x = x * operands[f"layer.{i}.w"] + i * 10 - operands[f"layer.{i}.v"]
    assert_allclose(values["y"], x)
    assert [node.name for node in graph.nodes] == [
        "layer.0.h.1", "layer.0.h", "x.0", "layer.1.h.1", "layer.1.h", "x.1", "layer.2.h.1", "layer.2.h", "y",
    ]  # fmt: skip


def test_applications_of_a_block_in_one_statement_are_numbered() -> None:
    text = "dim n = 2\ninput x : f64[n]\nblock f(a) { weight w : f64[n]; return a * w }\noutput y = f(f(f(x)))"
    weights = [t.name for t in build(text, "m.ein").tensors if t.kind is TensorKind.WEIGHT]
    assert weights == ["f.w", "f_2.w", "f_3.w"]


def test_equal_repeated_blocks_have_equal_operators() -> None:
    text = "dim n = 4\ninput x : f64[n]\nblock f(x) { return relu(x) * 2 }\nrepeat 3 { x = f(x) }\noutput y = x"
    operators = [node.operator for node in build(text, "m.ein").nodes]
    assert operators[:2] == operators[2:4] == operators[4:]


@pytest.mark.parametrize(
    ("body", "names", "outputs"),
    [
        ("y = relu(x)\nrepeat 2 { y = relu(y) }\noutput y", ["y.before", "y.0", "y"], ("y",)),
        ("output y\ny = relu(x)", ["y"], ("y",)),
        ("y = relu(x)\nz = y\noutput y, z", ["y", "z"], ("y", "z")),
        ("output y = x", ["y"], ("y",)),
        ("output w2 = w", ["w2"], ("w2",)),
        ("a = relu(x)\nb = neg(x)\nrepeat 1 { t = a; a = b; b = t }\noutput a, b", ["b", "a"], ("a", "b")),
        ("y = relu(neg(relu(x) + 1))\noutput y", ["y.1", "y.2", "y.3", "y"], ("y",)),
        ("block f(x) { return x, neg(x) }\ny, z = f(x)\noutput z", ["z"], ("z",)),
        ("block f(x) { a = neg(x); return a }\ny = f(f(x))\noutput y", ["f.a", "y"], ("y",)),
        ("repeat 2 as i { repeat 2 as j { z = x + i * 10 + j } }\noutput y = x",
         ["z.0.0.1", "z.0.0", "z.0.1.1", "z.0.1", "z.1.0.1", "z.1.0", "z.1.1.1", "z.1.1", "y"], ("y",)),
        ("repeat 0 { x = neg(x) }\noutput y = x", ["y"], ("y",)),
    ],
)  # fmt: skip
def test_names_of_nodes(body: str, names: list[str], outputs: tuple[str, ...]) -> None:
    graph = build(f"dim n = 4\ninput x : f32[n]\nweight w : f32[n]\n{body}", "m.ein")
    verify_graph(graph)
    assert [node.name for node in graph.nodes] == names
    assert graph.outputs == outputs


def test_outputs_that_trade_names_keep_their_values() -> None:
    text = "dim n = 4\ninput x : f64[n]\na = relu(x)\nb = neg(x)\nrepeat 1 { t = a; a = b; b = t }\noutput a, b, c = a"
    with pytest.raises(ModelError):
        build(text, "m.ein")
    operands, values = evaluate(text.replace(", c = a", "\noutput c = a"))
    assert_allclose(values["a"], -operands["x"])
    assert_allclose(values["b"], operands["x"])
    assert_allclose(values["c"], -operands["x"])


def test_spans_point_at_statements_and_parts() -> None:
    graph = build("dim n = 4\ninput x : f32[n]\n\ny = relu(\n  neg(x))\noutput y", "dir/m.ein")
    places = {node.name: str(node.span) for node in graph.nodes}
    assert places == {"y.1": "dir/m.ein:5:3", "y": "dir/m.ein:4:5"}
    assert all(tensor.span is not None for tensor in graph.tensors)


CHAINS = {"a": (9, 8), "b": (5, 4), "c": (3, 2), "d": (9, 8), "e": (13, 12)}


@pytest.mark.parametrize("chain", CHAINS)
def test_the_chains_multiply_all_matrices_with_about_8192_cubed_products_each(chain: str) -> None:
    text = Path(f"models/chain_{chain}.ein").read_text(encoding="utf-8")
    for scale in (1, 8):
        graph = build(text, f"chain_{chain}.ein", [("scale", str(scale))])
        matrices, products = CHAINS[chain]
        assert len(graph.tensors) - len(graph.nodes) == matrices
        assert len(graph.nodes) == products
        table = graph.tensor_table()
        work = sum(
            table[node.inputs[0]].desc.shape[0] * np.prod(table[node.inputs[1]].desc.shape, dtype=float)
            for node in graph.nodes
        )
        assert 0.95 < work * scale**3 / products / 8192**3 < 1.05
    small, values = evaluate(text, definitions=[("scale", "512")], dtype="f64")
    product = np.linalg.multi_dot([small[f"m{i + 1}"] for i in range(matrices)])
    assert_allclose(values["y"], product, rtol=1e-9)


def test_the_first_model_is_the_papers() -> None:
    text = Path("models/ffn.ein").read_text(encoding="utf-8")
    operands, values = evaluate(text, preset="tiny", dtype="f64")
    assert_allclose(values["y"], np.maximum(operands["x"] @ operands["w1"], 0) @ operands["w2"])


def test_a_model_with_one_of_everything() -> None:
    text = (Path(__file__).parent / "good.ein").read_text(encoding="utf-8")
    _, values = evaluate(text, preset="long", dtype="f64")
    assert values["y"].shape == (1000, 16)
    assert_allclose(values["worst"], np.abs(values["y"]).max())


def test_the_same_text_gives_the_same_graph() -> None:
    text = (Path(__file__).parent / "good.ein").read_text(encoding="utf-8")
    assert build(text, "m.ein") == build(text, "m.ein")


def test_inputs_and_outputs_of_a_repeat_are_new_with_each_iteration() -> None:
    text = """
    dim n = 4
    input x : f64[n]
    repeat 3 as i {
        input more : f64[n]
        x = x + more * (i + 1)
        half = x / 2
        output x, half
    }
    output end = x
    """
    operands, values = evaluate(text)
    graph = build(text, "m.ein")
    assert [t.name for t in graph.tensors if t.kind is TensorKind.INPUT] == ["x", "more.0", "more.1", "more.2"]
    assert graph.outputs == ("x.0", "half.0", "x.1", "half.1", "x.2", "half.2", "end")
    x = operands["x"]
    for i in range(3):
        x = x + operands[f"more.{i}"] * (i + 1)
        assert_allclose(values[f"x.{i}"], x)
        assert_allclose(values[f"half.{i}"], x / 2)
    assert_allclose(values["end"], x)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("repeat 2 { z = x; output z }\nrepeat 2 { z = x + 1; output z }", "'z.0' is saved already"),
        ("repeat 2 { input z : f64[n]; output z }\noutput y = x", "'z.0' names an input"),
        ("repeat 2 { output n }\noutput y = x", "expected a tensor, found the integer 4"),
        ("repeat 2 { dim m = 3 }\noutput y = x", "'dim' is not allowed in a block or repeat"),
    ],
)
def test_what_cannot_be_saved_in_a_repeat(text: str, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        build(f"dim n = 4\ninput x : f64[n]\n{text}", "m.ein")


def test_equal_factors_of_a_summed_product_are_operands_of_a_contraction() -> None:
    for statement in ("y[i, k] = d[i, j] * d[i, j] * b[j, k]", "y[i, k] = sum[j](d[i, j] * d[i, j] * b[j, k])"):
        graph = build(f"{MATRICES}{statement}\noutput y", "m.ein")
        assert graph.nodes[0].inputs == ("d", "d", "b")
        assert graph.nodes[0].operator.kernel.name == "contract"
        operands, values = evaluate(f"{MATRICES}{statement}\noutput y")
        assert_allclose(values["y"], operands["d"] ** 2 @ operands["b"])
    for statement, scale in (
        ("y[i, k] = 0.5 * d[i, j] * b[j, k]", 0.5),
        ("y[i, k] = sum[j](d[i, j] * (b[j, k] * 0.25) * 2)", 0.5),
        ("y[i, k] = d[i, j] * b[j, k] * -3", -3),
        ("y[i, k] = -0.5 * d[i, j] * (b[j, k] * -3)", 1.5),
    ):
        graph = build(f"{MATRICES}{statement}\noutput y", "m.ein")
        assert graph.nodes[0].operator.kernel.name == "contract"
        assert dict(graph.nodes[0].operator.kernel.attributes)["scale"] == scale
        operands, values = evaluate(f"{MATRICES}{statement}\noutput y")
        assert_allclose(values["y"], operands["d"] @ operands["b"] * scale)
    graph = build(f"{MATRICES}y[i] = max[j](d[i, j] * d[i, j])\noutput y", "m.ein")
    assert graph.nodes[0].inputs == ("d",)


ATTENTION = """
dim heads = 2
dim tokens = 5
dim d = 4
input q : f64[heads, tokens, d]
input k : f64[heads, tokens, d]
input v : f64[heads, tokens, d]
input m : bool[tokens]
input p : i64[tokens]
"""


def test_tensors_may_be_named_arguments_in_any_order() -> None:
    texts = ("mask=m, positions=p, causal=true", "positions=p, causal=true, mask=m")
    for text, inputs in zip(texts, (("m", "p"), ("p", "m")), strict=True):
        graph = build(f"{ATTENTION}output y = attention(q, k, v, {text}, seq_lens=[2, 3])", "m.ein")
        assert graph.nodes[0].inputs == ("q", "k", "v", *inputs)
    with pytest.raises(ModelError, match="'scale' cannot be a tensor"):
        build(f"{ATTENTION}output y = attention(q, k, v, scale=p)", "m.ein")
    with pytest.raises(ModelError, match="'over' cannot be a tensor"):
        build(f"{ATTENTION}output y = softmax(q, over=p)", "m.ein")


def test_one_name_takes_the_first_of_several_results() -> None:
    call = "attention(q, k, v)"
    block = "block both(q, k, v) { return attention(q, k, v) }\n"
    for statement, names in {
        f"y = {call}\noutput y": ("y", "y.1"),
        f"y, lse = {call}\noutput y, lse": ("y", "lse"),
        f"output y, lse = {call}": ("y", "lse"),
        f"y = {call} + 1\noutput y": ("y.1", "y.2"),
        f"y[h, t] = {call}[h, t, i] * v[h, t, i]\noutput y": ("y.1", "y.2"),
        f"y = both(q, k, v)\noutput y\n{block}": ("y", "both.return.1"),
        f"y, z = both(q, k, v)\noutput y\n{block}": ("y", "z"),
    }.items():
        graph = build(ATTENTION + statement, "m.ein")
        assert graph.nodes[0].outputs == names, statement
        verify_graph(graph)
    with pytest.raises(ModelError, match="expected 3 values, found 2"):
        build(f"{ATTENTION}a, b, c = {call}\noutput a", "m.ein")
