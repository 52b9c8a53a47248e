"""Kernels that read quantized weights, against sums in f64 written down here; and values that are special."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import ml_dtypes
import numpy as np
import pytest

from einc_runtime.dtypes import Array, storage_dtype
from einc_runtime.kernels.base import Invocation
from tests.support.kernel_runs import run_compiled

pytestmark = pytest.mark.usefixtures("provider")
TYPES = {"f32": np.dtype("f4"), "f16": np.dtype("f2"), "bf16": np.dtype(ml_dtypes.bfloat16), "f64": np.dtype("f8")}
TOLERANCE = {"f32": 1e-5, "f16": 2e-3, "bf16": 1.6e-2, "f64": 1e-13}


@dataclass
class Weight:
    """Operands, and the weight that they stand for in f64, element by element."""

    operands: list[Array]
    wide: Array


def make_weight(
    rng: np.random.Generator, shape: tuple[int, ...], bits: int, group: int, zeros: bool, kind: str
) -> Weight:
    *rows, k = shape
    low = 1 << bits - 1
    numbers = rng.integers(-low, low, shape)
    each = (*rows, k // group) if group else tuple(rows)
    scales = (rng.standard_normal(each) * 0.02).astype(TYPES[kind])
    points = rng.integers(-8, 9, each) if zeros else np.zeros(each, int)
    wide = np.empty(shape)
    for place in np.ndindex(*shape):
        own = (*place[:-1], place[-1] // group) if group else place[:-1]
        wide[place] = (int(numbers[place]) - int(points[own])) * float(scales[own])
    if bits == 8:
        values = numbers.astype(np.int8)
    else:
        values = ((numbers[..., 0::2] + 8) | (numbers[..., 1::2] + 8) << 4).astype(np.uint8)
    return Weight([values, scales, *([points.astype(np.int8)] if zeros else [])], wide)


# bits, group, zero points, rows, rows of the weight, summed, type: each value of each in several company
CASES = [
    (4, 32, False, 1, 37, 96, "f32"), (4, 32, True, 3, 7, 64, "bf16"), (4, 64, True, 1, 9, 128, "f16"),
    (4, 128, False, 6, 5, 256, "bf16"), (4, 0, True, 2, 6, 70, "f32"), (4, 0, False, 1, 19, 34, "f16"),
    (8, 0, False, 1, 11, 45, "bf16"), (8, 0, True, 5, 12, 77, "f32"), (8, 32, False, 4, 8, 96, "f16"),
    (8, 288, True, 1, 3, 288, "f32"), (4, 32, True, 33, 6, 96, "f32"), (8, 0, False, 40, 9, 50, "bf16"),
    (4, 32, True, 2, 5, 64, "f64"), (8, 0, False, 1, 4, 6, "f64"),
    (4, 32, False, 1, 37, 96, "bf16"), (4, 32, False, 9, 6, 416, "bf16"), (4, 64, False, 16, 5, 320, "bf16"),
    (4, 0, True, 7, 21, 1030, "f32"), (8, 0, False, 13, 53, 1037, "bf16"), (8, 128, True, 16, 9, 1152, "f16"),
    (4, 32, True, 8, 50, 544, "f32"),
    (4, 128, True, 4, 33, 128, "bf16"), (4, 64, False, 5, 18, 1600, "f16"), (4, 0, True, 8, 17, 4104, "f32"),
    (4, 32, False, 2, 35, 2080, "bf16"), (4, 32, False, 7, 16, 768, "bf16"),
    (4, 256, False, 3, 7, 768, "bf16"), (4, 32, False, 4, 3, 128, "bf16"), (4, 96, False, 2, 3, 288, "bf16"),
]  # fmt: skip


@pytest.mark.sampled(2)
@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case)))
def test_products_are_sums_of_products_with_the_weight(case: tuple[int, int, bool, int, int, int, str]) -> None:
    bits, group, zeros, rows, columns, depth, kind = case
    rng = np.random.default_rng(len(str(case)) + rows)
    weight = make_weight(rng, (columns, depth), bits, group, zeros, kind)
    x = rng.standard_normal((rows, depth)).astype(TYPES[kind])
    out = np.full((rows, columns), 7, TYPES[kind])
    attributes = {"equation": "m k, n k -> m n", "group": group, "scale": 0.5}
    run_compiled(Invocation("quantized_contract", attributes, [x, *weight.operands], [out]))
    expected = 0.5 * x.astype("f8") @ weight.wide.T
    assert np.abs(out.astype("f8") - expected).max() <= TOLERANCE[kind] * np.abs(expected).max()


@pytest.mark.parametrize(("bits", "group", "zeros"), [(4, 32, True), (4, 0, False), (8, 0, True), (8, 64, False)])
@pytest.mark.parametrize("kind", TYPES)
def test_weights_are_widened_exactly(bits: int, group: int, zeros: bool, kind: str) -> None:
    weight = make_weight(np.random.default_rng(bits + group), (3, 4, 64 if group else 22), bits, group, zeros, kind)
    out = np.full(weight.wide.shape, 7, TYPES[kind])
    run_compiled(Invocation("dequantize", {"group": group}, weight.operands, [out]))
    wide = weight.wide if kind == "f64" else weight.wide.astype("f4")  # f32 holds a product of so few bits exactly
    np.testing.assert_array_equal(out, wide.astype(TYPES[kind]))


def test_rows_columns_and_batches_lie_in_any_order() -> None:
    rng = np.random.default_rng(5)
    weight = make_weight(rng, (3, 5, 64), 4, 32, True, "f32")
    x = rng.standard_normal((64, 3, 4)).astype("f4").transpose(2, 1, 0)
    out = np.full((5, 4, 3), 7, "f4").transpose(2, 0, 1)
    attributes = {"equation": "t e k, e f k -> e f t", "group": 32}
    run_compiled(Invocation("quantized_contract", attributes, [x, *weight.operands], [out]))
    np.testing.assert_allclose(out, np.einsum("tek,efk->eft", x, weight.wide), rtol=0, atol=2e-5)
    summed = make_weight(rng, (5, 3, 32), 8, 0, False, "f32")
    y, two = rng.standard_normal((3, 2, 32)).astype("f4"), np.full((2, 5), 7, "f4")
    attributes = {"equation": "h t d, j h d -> t j", "group": 0}
    run_compiled(Invocation("quantized_contract", attributes, [y, *summed.operands], [two]))
    np.testing.assert_allclose(two, np.einsum("htd,jhd->tj", y, summed.wide), rtol=0, atol=2e-4)
    operands = [summed.operands[0], summed.operands[1][:, 0].copy()]  # a channel is all that is summed
    run_compiled(Invocation("quantized_contract", attributes, [y, *operands], [two]))
    channels = summed.wide * (operands[1][:, None] / summed.operands[1])[..., None]
    np.testing.assert_allclose(two, np.einsum("htd,jhd->tj", y, channels), rtol=0, atol=2e-4)
    out = np.full((5, 3, 32), 7, "f4")
    run_compiled(Invocation("dequantize", {"group": 0}, operands, [out]))
    np.testing.assert_allclose(out, channels, rtol=1e-6)


@pytest.mark.parametrize(("bits", "group", "rows"), [*product((4, 8), (0, 32), (1, 20))])
def test_hostile_scales_give_what_the_formula_gives(bits: int, group: int, rows: int) -> None:
    rng = np.random.default_rng(7)
    weight = make_weight(rng, (6, 64), bits, group, True, "f32")
    scales = weight.operands[1].reshape(6, -1)
    scales[0], scales[1], scales[2], scales[3] = 0, np.inf, np.nan, -np.inf
    x = rng.standard_normal((rows, 64)).astype("f4")
    x[0, :3] = 0
    out = np.full((rows, 6), 7, "f4")
    run_compiled(
        Invocation("quantized_contract", {"equation": "m k, n k -> m n", "group": group}, [x, *weight.operands], [out])
    )
    numbers = np.full((6, 64), 7, "f4")
    with np.errstate(all="ignore"):
        run_compiled(Invocation("dequantize", {"group": group}, weight.operands, [numbers]))
        expected = x @ numbers.T
    assert np.isnan(expected[:, 1:4]).all()
    assert (expected[:, 0] == 0).all()
    np.testing.assert_allclose(out, expected, atol=1e-5)


@pytest.mark.parametrize("stored", ["float8_e4m3fn", "float8_e5m2"])
@pytest.mark.parametrize("kind", ["f32", "bf16"])
def test_every_float_of_8_bits_is_widened_as_ml_dtypes_does_it(stored: str, kind: str) -> None:
    values = np.arange(256, dtype=np.uint8).view(getattr(ml_dtypes, stored)).reshape(4, 64)
    scales = np.array([0.5, -3.0, 0.7, 1e-3], "f4")
    out = np.empty((4, 64), TYPES[kind])
    run_compiled(Invocation("dequantize", {"group": 0}, [values, scales], [out]))
    with np.errstate(all="ignore"):
        expected = (values.astype("f4") * scales[:, None]).astype(TYPES[kind])
    np.testing.assert_array_equal(out.astype("f4"), expected.astype("f4"))


@pytest.mark.parametrize(
    ("stored", "group", "rows", "columns", "depth", "kind"),
    [
        ("float8_e4m3fn", 0, 1, 37, 77, "bf16"),
        ("float8_e4m3fn", 128, 3, 9, 256, "f16"),
        ("float8_e5m2", 32, 40, 6, 96, "f32"),
        ("float8_e5m2", 0, 5, 8, 45, "f32"),
    ],
)
def test_products_with_floats_of_8_bits(
    stored: str, group: int, rows: int, columns: int, depth: int, kind: str
) -> None:
    rng = np.random.default_rng(rows)
    values = rng.standard_normal((columns, depth)).astype(getattr(ml_dtypes, stored))
    scales = rng.standard_normal((columns, depth // group) if group else columns).astype("f4")
    x, out = rng.standard_normal((rows, depth)).astype(TYPES[kind]), np.empty((rows, columns), TYPES[kind])
    attributes = {"equation": "t k, n k -> t n", "group": group, "scale": 0.5}
    run_compiled(Invocation("quantized_contract", attributes, [x, values, scales], [out]))
    spread = np.repeat(scales, group, axis=1) if group else scales[:, None]
    wide = values.astype("f8") * spread.astype("f8")
    expected = 0.5 * x.astype("f8") @ wide.T
    assert np.abs(out.astype("f8") - expected).max() <= TOLERANCE[kind] * np.abs(expected).max()


@pytest.mark.parametrize(("form", "group", "scales_kind"), [("mxfp4", 32, "f8e8m0"), ("nvfp4", 16, "f8e4m3")])
@pytest.mark.parametrize(("rows", "columns", "depth"), [(1, 37, 288), (3, 16, 64), (8, 19, 2144), (9, 5, 96)])
def test_products_with_floats_of_4_bits(
    form: str, group: int, scales_kind: str, rows: int, columns: int, depth: int
) -> None:
    """Those of OCP's microscaling, whose values are listed here, and of NVIDIA, which have a factor, too."""
    numbers = [0, 0.5, 1, 1.5, 2, 3, 4, 6]
    rng = np.random.default_rng(rows)
    codes = rng.integers(0, 16, (columns, depth)).astype(np.uint8)
    values = (codes[:, 0::2] | codes[:, 1::2] << 4).view(storage_dtype("f4x2"))
    scales = (2.0 ** rng.integers(-3, 4, (columns, depth // group))).astype(storage_dtype(scales_kind))
    factor = [np.array(0.37, "f4")] if form == "nvfp4" else []
    wide = np.array([*numbers, *(-number for number in numbers)])[codes]
    wide *= np.repeat(scales.astype("f8"), group, axis=1) * (float(factor[0]) if factor else 1)
    x, out = rng.standard_normal((rows, depth)).astype(TYPES["bf16"]), np.empty((rows, columns), TYPES["bf16"])
    attributes = {"equation": "t k, n k -> t n", "group": group}
    run_compiled(Invocation("quantized_contract", attributes, [x, values, scales, *factor], [out]))
    expected = x.astype("f8") @ wide.T
    assert np.abs(out.astype("f8") - expected).max() <= TOLERANCE["bf16"] * np.abs(expected).max()
