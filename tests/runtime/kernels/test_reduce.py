"""reduce, softmax and reshape against plain numpy: every aggregation, axis and type, pieces."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from einc_runtime.kernels.base import ANY_NUMBER
from tests.support.kernel_runs import BF16, run

pytestmark = pytest.mark.usefixtures("provider", "piece")


AGGREGATIONS = {"sum": np.sum, "max": np.max, "min": np.min, "prod": np.prod}


@pytest.mark.sampled(6)
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", BF16, "int32", "int64"], ids=str)
@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_reductions_over_every_set_of_indices(aggregation, dtype):
    rng = np.random.default_rng(4)
    x = (
        rng.uniform(0.5, 1.5, (5, 3, 11)).astype(dtype)
        if np.dtype(dtype).kind != "i"
        else rng.integers(1, 3, (5, 3, 11)).astype(dtype)
    )
    wide = x.astype("i8" if np.dtype(dtype).kind == "i" else "f8")
    for count in range(4):
        for kept in itertools.permutations("ijk", count):
            axes = tuple(a for a, n in enumerate("ijk") if n not in kept)
            expected = AGGREGATIONS[aggregation](wide, axis=axes)
            expected = expected.transpose([sorted(kept).index(n) for n in kept]) if kept else expected
            found = run(
                "reduce",
                {"program": "t0 = copy x0", "indices": f"i j k -> {' '.join(kept)}", "aggregation": aggregation},
                [x],
                np.empty(expected.shape, dtype),
            )
            tolerance = {"float16": 1e-3, "bfloat16": 8e-3, "float32": 1e-6, "float64": 1e-13}.get(
                np.dtype(dtype).name, 0
            )
            if np.dtype(dtype).kind == "i":
                expected = expected.astype(dtype)
            np.testing.assert_allclose(found.astype(expected.dtype), expected, rtol=tolerance)


def test_join_then_aggregate():
    rng = np.random.default_rng(8)
    a, b = rng.standard_normal((6, 9)).astype("f4"), rng.standard_normal((9, 8)).astype("f4")
    out = np.empty((6, 8), "f4")
    run("reduce", {"program": "t0 = add x0 x1", "indices": "i j, j k -> i k", "aggregation": "min"}, [a, b], out)
    np.testing.assert_array_equal(out, (a[:, :, None] + b[None]).min(axis=1))
    run(
        "reduce",
        {"program": "t0 = sub x0 x1; t1 = mul t0 t0", "indices": "i j, j k -> i k", "aggregation": "sum"},
        [a, b],
        out,
    )
    np.testing.assert_allclose(out, ((a[:, :, None] - b[None]) ** 2).sum(axis=1), rtol=1e-6)
    row = np.empty(6, "f4")  # an index that the program's value does not vary along still counts
    run("reduce", {"program": "t0 = copy x0", "indices": "i j, j k -> i", "aggregation": "sum"}, [a, b], row)
    np.testing.assert_allclose(row, 8 * a.sum(axis=1), rtol=1e-5)
    run(
        "reduce", {"program": "t0 = mul x0 2", "indices": "i, i j -> i", "aggregation": "sum"}, [a[:, 0].copy(), a], row
    )
    np.testing.assert_allclose(row, 18 * a[:, 0], rtol=1e-6)


def test_long_sums_lose_nothing(piece):
    x = np.full((1 << 14, 3), 0.1, "f4")
    out = np.empty(3, "f4")
    run("reduce", {"program": "t0 = copy x0", "indices": "i j -> j", "aggregation": "sum"}, [x], out)
    np.testing.assert_allclose(out, x[0].astype("f8") * (1 << 14), rtol=1e-5)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("dtype", ["float16", BF16, "float32", "float64"], ids=str)
@pytest.mark.parametrize("axis", [0, 1, 2, -1])
@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1), (1, 2, 0)])
def test_softmax(dtype, axis, order):
    rng = np.random.default_rng(6)
    x = (30 * rng.standard_normal((5, 7, 9))).astype(dtype).transpose(order)
    out = np.zeros((*x.shape, 2), dtype)[..., 0]
    run("softmax", {"axis": axis}, [x], out)
    wide = x.astype("f8")
    exps = np.exp(wide - wide.max(axis=axis, keepdims=True))
    tolerance = {"float16": 1e-3, "bfloat16": 8e-3, "float32": 1e-6, "float64": 1e-13}[np.dtype(dtype).name]
    np.testing.assert_allclose(
        out.astype("f8"), exps / exps.sum(axis=axis, keepdims=True), rtol=tolerance, atol=tolerance
    )


def test_softmax_of_a_vector():
    x = np.array([1e4, 1e4, -1e4], "f4")
    np.testing.assert_allclose(run("softmax", {"axis": 0}, [x], np.empty(3, "f4")), [0.5, 0.5, 0])


def test_reshape_is_a_row_major_reshape():
    x = np.arange(4 * 6 * 5).reshape(4, 6, 5)
    for source, shape in [
        (x, (24, 5)),
        (x[:, 1:4], (12, 5)),
        (x[:, 1:4, 2:], (3, 36 // 3)),
        (x.transpose(2, 0, 1), (20, 6)),
    ]:
        for target in (
            np.zeros(shape, x.dtype),
            np.zeros((*(2 * n for n in shape),), x.dtype)[tuple(slice(n) for n in shape)],
        ):
            np.testing.assert_array_equal(run("reshape", {}, [source], target), source.reshape(shape))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", ["float32", "float16", BF16, "float64"], ids=str)
def test_the_largest_magnitudes_are_elements_of_their_rows(dtype):
    rng = np.random.default_rng(7)
    for shape, names, kept in (
        ((5, 70), "t k", "t"),
        ((3, 5, 40), "h t d", "t"),
        ((3, 5, 40), "h t d", "d h"),
        ((4, 33), "t k", ""),
        ((2, 3, 4, 17), "a b c d", "c a"),
        ((1, 16), "t k", "t"),
    ):
        x = rng.standard_normal(shape).astype(dtype)
        x.flat[3] = np.nan
        own, result = names.split(), kept.split()
        expected = np.abs(x.astype("f8")).max(tuple(n for n, name in enumerate(own) if name not in result))
        expected = expected.transpose([sorted(result, key=own.index).index(name) for name in result])
        attributes = {"program": "t0 = abs x0", "indices": f"{names} -> {kept}", "aggregation": "max"}
        for reproducible in ({}, {"reproducible": True}):
            target = np.empty(expected.shape, dtype)
            found = run("reduce", attributes | reproducible, [x], target, repetitions=ANY_NUMBER)
            np.testing.assert_array_equal(found.astype("f8"), expected)
