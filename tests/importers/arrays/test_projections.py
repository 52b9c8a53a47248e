"""Products that are read through views, or read views, keep their results and lose the views."""

from __future__ import annotations

import numpy as np
import pytest

from einc.frontend import build
from einc.importers.arrays.element_types import ElementType
from einc.importers.arrays.elementwise import apply
from einc.importers.arrays.moving import reshape, slice_axis, transpose
from einc.importers.arrays.products import matmul, multiply_rows
from einc.importers.arrays.program import ArrayProgram
from einc.importers.arrays.projections import order_products
from tests.support.graph_interpreter import interpret

BATCH, TOKENS, WIDTH, HEADS, DEPTH = 3, 5, 7, 2, 4
COLUMNS = HEADS * DEPTH
DRAW = np.random.default_rng(5)
X = DRAW.standard_normal((BATCH, TOKENS, WIDTH)).astype("f4")
W = DRAW.standard_normal((3 * COLUMNS, WIDTH)).astype("f4")
B = DRAW.standard_normal(3 * COLUMNS).astype("f4")
A = DRAW.standard_normal((HEADS, BATCH * TOKENS, DEPTH)).astype("f4")
OUT = DRAW.standard_normal((WIDTH, COLUMNS)).astype("f4")
OUT_BIAS = DRAW.standard_normal(WIDTH).astype("f4")


def view_heads(array: np.ndarray) -> np.ndarray:
    """[batch, tokens, columns] as [heads, batch * tokens, depth]."""
    split = array.reshape(BATCH, TOKENS, HEADS, DEPTH)
    return split.transpose(2, 0, 1, 3).reshape(HEADS, BATCH * TOKENS, DEPTH)


def test_parts_of_a_product_are_written_as_heads() -> None:
    """Queries, keys and values of one product with a bias, with tokens before batches, as PyTorch computes them."""
    program = ArrayProgram("heads")
    x = program.input("x", X.shape, ElementType.F32)
    w = program.weight("w", W.shape, ElementType.F32, "w")
    bias = program.weight("b", B.shape, ElementType.F32, "b")
    turned = transpose(program, x, [1, 0, 2])
    product = apply(program, "add", multiply_rows(program, turned, w), bias)
    for part in range(3):
        columns = slice_axis(program, product, 2, part * COLUMNS, (part + 1) * COLUMNS)
        heads = transpose(program, reshape(program, columns, [TOKENS, BATCH, HEADS, DEPTH]), [2, 1, 0, 3])
        packed = reshape(program, heads, [HEADS, BATCH * TOKENS, DEPTH])
        program.output(f"y{part}", apply(program, "neg", packed))
    order_products(program)
    text = program.text()
    assert [text.count(word) for word in ("reshape(", "transpose(", "slice(")] == [1, 0, 0]
    assert program.stored == ["w", "b"]
    graph = build(text, "heads.ein")
    stored = {tensor.name: tensor.stored or tensor.name for tensor in graph.tensors}
    arrays = {"x": X}
    for tensor in graph.tensors:
        source = {"w": W, "b": B}.get(stored[tensor.name].partition("[")[0])
        if tensor.kind.value == "weight" and source is not None:
            start, stop = map(int, stored[tensor.name].partition("[")[2].rstrip("]").split(":"))
            arrays[tensor.name] = source[start:stop].reshape(tensor.desc.type.shape)
    results = interpret(graph, arrays)
    expected = np.split(X @ W.T + B, 3, axis=2)
    for part in range(3):
        np.testing.assert_allclose(results[f"y{part}"], -view_heads(expected[part]), atol=1e-5)


def test_a_product_of_which_a_view_is_sliced_within_heads_is_divided_whole() -> None:
    """As by rotary positions of pairs: no weight is read as a whole and by rows."""
    program = ArrayProgram("pairs")
    x = program.input("x", X.shape, ElementType.F32)
    product = multiply_rows(program, x, program.weight("w", [2 * COLUMNS, WIDTH], ElementType.F32, "w"))
    first, second = (slice_axis(program, product, 2, k * COLUMNS, (k + 1) * COLUMNS) for k in range(2))
    pairs = reshape(program, first, [BATCH, TOKENS, HEADS, DEPTH // 2, 2])
    program.output("y0", apply(program, "neg", slice_axis(program, pairs, 4, 1, 2)))
    program.output("y1", apply(program, "neg", reshape(program, second, [BATCH, TOKENS, HEADS, DEPTH])))
    order_products(program)
    graph = build(program.text(), "pairs.ein")
    weights = {t.stored: t for t in graph.tensors if t.kind.value == "weight"}
    assert sorted(map(str, weights)) == ["w[0:8]", "w[8:16]"]
    rows = {"w[0:8]": W[:COLUMNS], "w[8:16]": W[COLUMNS : 2 * COLUMNS]}
    arrays = {weights[stored].name: part.reshape(weights[stored].desc.type.shape) for stored, part in rows.items()}
    results = interpret(graph, {"x": X, **arrays})
    expected = (X @ W[:COLUMNS].T).reshape(BATCH, TOKENS, HEADS, DEPTH // 2, 2)[..., 1:]
    np.testing.assert_allclose(results["y0"], -expected, atol=1e-5)


@pytest.mark.parametrize("turned", [False, True])
def test_a_product_reads_heads_as_they_lie(turned: bool) -> None:
    """The last product of attention: heads are joined by views, and the bias is added before batches are divided."""
    program = ArrayProgram("joined")
    a = program.input("a", A.shape, ElementType.F32)
    w = program.weight("w", OUT.T.shape if turned else OUT.shape, ElementType.F32, "w")
    bias = program.weight("b", OUT_BIAS.shape, ElementType.F32, "b")
    split = transpose(program, reshape(program, a, [HEADS, BATCH, TOKENS, DEPTH]), [2, 1, 0, 3])
    rows = reshape(program, split, [TOKENS, BATCH, COLUMNS])
    product = matmul(program, rows, w) if turned else multiply_rows(program, rows, w)
    y = transpose(program, apply(program, "add", product, bias), [1, 0, 2])
    program.output("y", apply(program, "neg", y))
    order_products(program)
    text = program.text()
    assert [text.count(word) for word in ("reshape(", "transpose(")] == [1, 0]
    graph = build(text, "joined.ein")
    shapes = {tensor.name: tensor.desc.type.shape for tensor in graph.tensors}
    weights = {"w": (OUT.T if turned else OUT), "b": OUT_BIAS}
    arrays = {name: weights[name[0]].reshape(shapes[name]) for name in shapes if name[0] in weights}
    (result,) = interpret(graph, {"a": A, **arrays}).values()
    joined = A.reshape(HEADS, BATCH, TOKENS, DEPTH).transpose(1, 2, 0, 3).reshape(BATCH, TOKENS, COLUMNS)
    np.testing.assert_allclose(result, -(joined @ OUT.T + OUT_BIAS), atol=1e-5)


def test_a_product_that_is_also_read_as_a_whole_stays() -> None:
    program = ArrayProgram("both")
    x = program.input("x", X.shape, ElementType.F32)
    w = program.weight("w", [COLUMNS, WIDTH], ElementType.F32, "w")
    product = multiply_rows(program, x, w)
    heads = transpose(program, reshape(program, product, [BATCH, TOKENS, HEADS, DEPTH]), [2, 0, 1, 3])
    program.output("y", apply(program, "neg", heads))
    program.output("whole", product)
    order_products(program)
    text = program.text()
    assert "reshape(" in text
    results = interpret(build(text, "both.ein"), {"x": X, "w": W[:COLUMNS]})
    np.testing.assert_allclose(results["whole"], X @ W[:COLUMNS].T, atol=1e-5)
    expected = (X @ W[:COLUMNS].T).reshape(BATCH, TOKENS, HEADS, DEPTH).transpose(2, 0, 1, 3)
    np.testing.assert_allclose(results["y"], -expected, atol=1e-5)
