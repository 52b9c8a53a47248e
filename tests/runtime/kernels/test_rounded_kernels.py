"""Products of integers, against integers of numpy and sums in f64 that are written down here; and special values."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from einc_runtime.dtypes import Array
from einc_runtime.kernels.base import Invocation
from einc_runtime.kernels.llvm import compiler
from einc_runtime.kernels.registry import prepare
from tests.support.kernel_runs import run_compiled

pytestmark = pytest.mark.usefixtures("provider")
TYPES = {"f32": np.dtype("f4"), "f16": np.dtype("f2"), "bf16": np.dtype(ml_dtypes.bfloat16), "f64": np.dtype("f8")}
ROUNDING = {"f32": 3e-7, "f16": 1e-3, "bf16": 8e-3, "f64": 1e-15}
ROWS = {"equation": "m k, n k -> m n"}


def list_ways() -> list[str]:
    """What this processor multiplies: the most at once that it has, and all that is less."""
    ways = ["bytes", "pairs", "words"]
    if not compiler.is_available():
        return ways
    best = compiler.find_integer_products()
    return [best, "words"] if best == "signed" else ways[ways.index(best) :]


def find_largest(x: Array) -> Array:
    return np.abs(x.astype("f8")).max(-1).astype(x.dtype)


def multiply_exactly(x: Array, values: Array, scales: Array) -> Array:
    """The rule of published models: a token's scale is its largest magnitude over 127, and integers are the nearest."""
    wide = np.dtype("f8" if x.dtype == np.float64 else "f4")
    numbers = x.astype(wide)
    largest = np.abs(numbers).max(-1, keepdims=True)
    ratio = np.divide(127, largest, out=np.zeros_like(largest), where=largest > 0)
    integers = np.rint(numbers * ratio).astype(np.int64)
    assert np.abs(integers).max() == 127
    found: Array = (integers @ values.astype(np.int64).T) * (largest.astype("f8") / 127) * scales.astype("f8")
    return found


@pytest.mark.sampled(2)
@pytest.mark.parametrize("products", ["bytes", "signed", "pairs", "words"])
@pytest.mark.parametrize(
    ("rows", "columns", "depth", "kind"),
    [
        (1, 37, 96, "bf16"), (1, 4, 64, "f16"), (2, 3, 130, "f32"), (5, 9, 4096, "bf16"), (6, 8, 45, "f32"),
        (7, 65, 77, "f16"), (13, 5, 16, "f32"), (40, 131, 200, "bf16"), (3, 5, 31, "f64"), (33, 2, 6000, "f32"),
    ],
)  # fmt: skip
def test_products_are_exact_sums_of_integers(
    rows: int, columns: int, depth: int, kind: str, products: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if products not in list_ways():
        pytest.skip(f"this processor has no instructions for {products}")
    monkeypatch.setattr(compiler, "find_integer_products", lambda: products)
    rng = np.random.default_rng(rows + depth)
    x = (rng.standard_normal((rows, depth)) * 3).astype(TYPES[kind])
    values = rng.integers(-128, 128, (columns, depth), np.int8)
    scales = (rng.standard_normal(columns) * 0.01).astype(TYPES[kind])
    out = np.full((rows, columns), 7, TYPES[kind])
    run_compiled(Invocation("rounded_contract", {**ROWS, "scale": 0.5}, [x, find_largest(x), values, scales], [out]))
    expected = 0.5 * multiply_exactly(x, values, scales)
    np.testing.assert_allclose(out.astype("f8"), expected, rtol=ROUNDING[kind], atol=0)
    floats = 0.5 * x.astype("f8") @ (values * scales.astype("f8")[:, None]).T
    assert np.abs(out.astype("f8") - floats).max() < 0.02 * np.abs(floats).max() + 0.1 * depth**0.5 * 0.03


def test_the_largest_sums_fit() -> None:
    x = np.full((2, 1 << 17), -3.0, "f4")
    values, scales, out = np.full((1, 1 << 17), -128, np.int8), np.ones(1, "f4"), np.zeros((2, 1), "f4")
    run_compiled(Invocation("rounded_contract", ROWS, [x, find_largest(x), values, scales], [out]))
    np.testing.assert_allclose(out, 3.0 * 128 * (1 << 17), rtol=1e-6)


def test_ties_go_to_even_numbers_and_nothing_is_beyond_the_levels() -> None:
    x = np.array([[0.5, 1.5, 2.5, -0.5, -2.5, 126.5, 127, 300, -300]], "f4")
    units = np.eye(9, dtype=np.int8)
    out = np.zeros((1, 9), "f4")
    run_compiled(Invocation("rounded_contract", ROWS, [x, np.array([127], "f4"), units, np.ones(9, "f4")], [out]))
    assert out[0].tolist() == [0, 2, 2, 0, -2, 126, 127, 127, -127]


@pytest.mark.parametrize("kind", TYPES)
def test_rows_that_are_not_finite_or_zero(kind: str) -> None:
    rng = np.random.default_rng(2)
    x = rng.standard_normal((9, 70)).astype(TYPES[kind])
    tiny = np.finfo("f8").smallest_subnormal if kind == "f64" else TYPES[kind].type(ml_dtypes.finfo(TYPES[kind]).tiny)
    x[1], x[2, 3], x[3, 4], x[4, 5:7], x[5] = 0, np.inf, np.nan, [np.inf, -np.inf], tiny
    values, scales = rng.integers(-128, 128, (5, 70), np.int8), np.ones(5, TYPES[kind])
    largest = np.abs(x.astype("f8")).max(-1).astype(TYPES[kind])
    out = np.full((9, 5), 7, TYPES[kind])
    run_compiled(Invocation("rounded_contract", ROWS, [x, largest, values, scales], [out]))
    found = out.astype("f8")
    assert not np.isfinite(found[2:5]).any()
    assert (found[1] == 0).all()
    assert np.isfinite(found[[0, 1, 5, 6, 7, 8]]).all()
    assert (np.abs(found[5]) <= float(tiny) * 70 * 128).all()


def test_rows_columns_and_batches_lie_in_any_order() -> None:
    rng = np.random.default_rng(5)
    x = rng.standard_normal((64, 3, 8)).astype("f4").transpose(2, 1, 0)
    values, scales = rng.integers(-128, 128, (3, 5, 64), np.int8), rng.random((3, 5)).astype("f4")
    out = np.full((5, 8, 3), 7, "f4").transpose(2, 0, 1)
    largest = np.abs(x).max(-1)
    run_compiled(
        Invocation("rounded_contract", {"equation": "t e k, e f k -> e f t"}, [x, largest, values, scales], [out])
    )
    for e in range(3):
        np.testing.assert_allclose(out[e].T, multiply_exactly(x[:, e], values[e], scales[e]), rtol=3e-7)
    heads, weight = rng.standard_normal((3, 7, 32)).astype("f4"), rng.integers(-128, 128, (5, 3, 32), np.int8)
    two, each = np.full((7, 5), 7, "f4"), rng.random(5).astype("f4")[::-1]
    largest = np.abs(heads).max((0, 2))[::-1].copy()[::-1]
    run_compiled(
        Invocation("rounded_contract", {"equation": "h t d, j h d -> t j"}, [heads, largest, weight, each], [two])
    )
    rows = heads.transpose(1, 0, 2).reshape(7, 96)
    np.testing.assert_allclose(two, multiply_exactly(rows, weight.reshape(5, 96), each), rtol=3e-7)
    shared, one = rng.random(3).astype("f4"), np.full((5, 3), 7, "f4")
    row = rng.standard_normal(64).astype("f4")
    operands = [row, np.abs(row).max(), values, shared]
    run_compiled(
        Invocation("rounded_contract", {"equation": "k, e f k -> f e"}, [np.asarray(x) for x in operands], [one])
    )
    for e in range(3):
        np.testing.assert_allclose(one[:, e], multiply_exactly(row[None], values[e], shared[e])[0], rtol=3e-7)


def test_both_providers_and_all_parts_give_the_same_bits() -> None:
    rng = np.random.default_rng(8)
    x = rng.standard_normal((19, 300)).astype("f4")
    values, scales = rng.integers(-128, 128, (70, 300), np.int8), rng.standard_normal(70).astype("f4")
    operands = [x, find_largest(x), values, scales]
    out, parts = np.zeros((19, 70), "f4"), np.zeros((19, 70), "f4")
    run_compiled(Invocation("rounded_contract", ROWS, operands, [out]))
    for rows, columns in ((slice(0, 3), slice(0, 70)), (slice(3, 19), slice(0, 9)), (slice(3, 19), slice(9, 70))):
        part = [x[rows], operands[1][rows], values[columns], scales[columns]]
        run_compiled(Invocation("rounded_contract", ROWS, part, [parts[rows, columns]]))
    np.testing.assert_array_equal(out, parts)
    kernel = prepare(Invocation("rounded_contract", ROWS, operands, [parts]), "numpy")
    parts[:] = 7
    kernel.bind(np.full(kernel.scratch, 255, np.uint8))()
    np.testing.assert_array_equal(out, parts)
