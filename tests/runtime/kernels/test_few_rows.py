"""Products of few rows in machine code, against np.einsum in f64: layouts, types, odd sizes, parts of a product."""

from __future__ import annotations

import itertools
import math

import ml_dtypes
import numpy as np
import pytest

from einc_runtime.kernels.base import Invocation
from einc_runtime.kernels.llvm import compiler, few_rows, few_rows_layout
from einc_runtime.kernels.registry import prepare

pytestmark = pytest.mark.skipif(not compiler.is_available(), reason="llvmlite is not installed")

BF16 = np.dtype(ml_dtypes.bfloat16)
KINDS = {"f32": np.dtype("f4"), "f16": np.dtype("f2"), "bf16": BF16}
ERRORS = {"f32": 3e-6, "f16": 1e-3, "bf16": 5e-3}
"""The largest that an element may be off, relative to the largest element."""
LAYOUTS = [
    ("t d, n d -> t n", {"t": 1, "d": 103, "n": 37}),
    ("t d, n d -> t n", {"t": 6, "d": 207, "n": 51}),
    ("n d, t d -> n t", {"t": 2, "d": 99, "n": 33}),
    ("t d, h e d -> h t e", {"t": 3, "d": 77, "h": 5, "e": 24}),
    ("h t e, d h e -> t d", {"t": 3, "d": 77, "h": 5, "e": 24}),
    ("b t d, b n d -> b t n", {"b": 3, "t": 2, "d": 71, "n": 40}),
    ("b t d, n d -> n t b", {"b": 3, "t": 2, "d": 71, "n": 40}),
]


@pytest.fixture(autouse=True)
def always(monkeypatch):
    monkeypatch.setattr(compiler, "MIN_COMPILED_ELEMENTS", 0)


def draw(names, extents, dtype, seed):
    """Asymmetric values in the middle of a larger array, whose other elements are NaNs."""
    shape = [extents[name] for name in names]
    gap = 3 if len(shape) == 2 else 0
    whole = np.full([shape[0] + 2, *shape[1:-1], shape[-1] + gap], np.nan, dtype)
    part = whole[1:-1, ..., gap:]
    part[...] = np.random.default_rng(seed).normal(0.2, 1.0, shape).astype(dtype)
    return part


def einsum(equation, *inputs):
    return np.einsum(equation.replace(" ", ""), *(x.astype("f8") for x in inputs))


def run(kernel):
    memory = np.full(kernel.scratch + 64, 0xFF, np.uint8)
    bound = kernel.bind(memory)
    bound()
    bound()
    assert (memory[kernel.scratch :] == 0xFF).all()


def check(equation, extents, kinds, scale=1.0):
    """Runs a product, and compares it with the sums in f64."""
    left, result = (part.strip() for part in equation.split("->"))
    names = [part.split() for part in left.split(",")]
    inputs = [draw(own, extents, KINDS[kind], seed) for seed, (own, kind) in enumerate(zip(names, kinds, strict=False))]
    output = draw(result.split(), extents, KINDS[kinds[2]], 9)
    kernel = prepare(Invocation("contract", {"equation": equation, "scale": scale}, inputs, [output]))
    run(kernel)
    expected = scale * einsum(equation, *inputs)
    assert np.abs(output.astype("f8") - expected).max() <= ERRORS[kinds[2]] * np.abs(expected).max()
    output[...] = np.nan
    assert np.isnan(output.base.astype("f4")).all()  # nothing else was written


@pytest.mark.parametrize(
    ("equation", "extents"), LAYOUTS, ids=[f"{equation} {n}" for n, (equation, _) in enumerate(LAYOUTS)]
)
def test_every_layout_gives_the_product(equation, extents):
    check(equation, extents, ("f32", "f32", "f32"), scale=0.37)


@pytest.mark.parametrize("kinds", sorted({*itertools.permutations(KINDS), *((k, k, k) for k in KINDS)}), ids="-".join)
def test_types_are_widened_in_registers(kinds):
    check("t d, n d -> t n", {"t": 3, "d": 133, "n": 41}, kinds)


@pytest.mark.parametrize("rows", [1, 4, 5, 8, 16])
@pytest.mark.parametrize("kind", ["f32", "bf16"])
def test_any_number_of_rows_up_to_the_limit(rows, kind):
    check("t d, n d -> t n", {"t": rows, "d": 64 * 3 + 7, "n": 35}, (kind, kind, "f32"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("equation", "extents"), LAYOUTS, ids=[f"{equation} {n}" for n, (equation, _) in enumerate(LAYOUTS)]
)
@pytest.mark.parametrize("kinds", list(itertools.product(KINDS, KINDS, KINDS)), ids="-".join)
def test_every_layout_in_every_type(equation, extents, kinds):
    check(equation, extents, kinds, scale=-1.5)


@pytest.mark.parametrize("kind", ["f32", "bf16"])
def test_parts_of_a_product_have_the_bits_of_the_whole(kind):
    x, w = (draw(names, {"t": 3, "d": 300, "n": 90}, KINDS[kind], 3) for names in ("td", "nd"))
    whole, parts = np.zeros((3, 90), "f4"), np.zeros((3, 90), "f4")
    for start, stop, target in ((0, 90, whole), (0, 33, parts), (33, 61, parts), (61, 90, parts)):
        own = [x, w[start:stop]], [target[:, start:stop]]
        run(prepare(Invocation("contract", {"equation": "t d, n d -> t n"}, *own)))
    np.testing.assert_array_equal(whole, parts)


def test_infinities_stay_where_they_belong():
    x, w = np.ones((2, 67), "f4"), np.ones((40, 67), "f4")
    w[3, 66], w[5, 1], x[1, 64] = np.inf, np.nan, -np.inf
    found = np.zeros((2, 40), "f4")
    run(prepare(Invocation("contract", {"equation": "t d, n d -> t n"}, [x, w], [found])))
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(found, x @ w.T)


@pytest.mark.parametrize(
    ("x", "w"),
    [((49, 80), (60, 80)), ((3, 40), (60, 40)), ((3, 80), (3, 80))],
    ids=["many rows", "short lines", "few lines"],
)
def test_other_products_are_left_to_others(x, w):
    inputs, output = [np.ones(x, "f4"), np.ones(w, "f4")], np.zeros((x[0], w[0]), "f4")
    kernel = prepare(Invocation("contract", {"equation": "t d, n d -> t n"}, inputs, [output]))
    run(kernel)
    np.testing.assert_array_equal(output, x[1])


def test_the_time_is_that_of_reading_or_of_multiplying():
    """Whichever is larger, so that products are split between workers where that pays."""
    w = np.zeros((256, 256), "f4")
    times = [
        prepare(
            Invocation(
                "contract", {"equation": "t d, n d -> t n"}, [np.zeros((t, 256), "f4"), w], [np.zeros((t, 256), "f4")]
            )
        ).nanoseconds
        for t in (1, 2, 8, 48)
    ]
    assert times[0] == times[1] == w.nbytes / few_rows_layout.BYTES_PER_NS
    assert times[3] == 48 * w.size / few_rows.PANEL_PRODUCTS_PER_NS
    if compiler.has_wide_registers():  # else they are packed in a panel, too
        assert times[2] == 8 * w.size / few_rows.PRODUCTS_PER_NS


PANELS = [
    ("t d, n d -> t n", {"t": 9, "d": 103, "n": 37}),
    ("n d, t d -> t n", {"t": 16, "d": 64, "n": 50}),
    ("d t, n d -> t n", {"t": 17, "d": 67, "n": 51}),
    ("t d, h e d -> h t e", {"t": 33, "d": 77, "h": 5, "e": 24}),
    ("h t e, d h e -> t d", {"t": 20, "d": 41, "h": 5, "e": 21}),
    ("h e t, d h e -> t d", {"t": 48, "d": 53, "h": 3, "e": 40}),
    ("b t h e, b d h e -> b t d", {"b": 3, "t": 15, "d": 31, "h": 2, "e": 35}),
    ("b h t e, d h e -> b t d", {"b": 2, "t": 11, "d": 61, "h": 3, "e": 22}),
    ("b t d, n d -> n t b", {"b": 2, "t": 7, "d": 71, "n": 40}),
    ("g t d, g n d -> g n t", {"g": 2, "t": 13, "d": 71, "n": 40}),
]
"""Rows that are dense, or neighbours at each position, or in several dimensions; results that must be copied."""


MANY = [
    ("t d, n d -> t n", {"t": 101, "d": 203, "n": 117}),
    ("n d, t d -> t n", {"t": 64, "d": 65, "n": 260}),
    ("h t e, d h e -> t d", {"t": 53, "d": 77, "h": 5, "e": 24}),
    ("t d, h e d -> h t e", {"t": 61, "d": 77, "h": 3, "e": 70}),
    ("b t d, b n d -> b t n", {"b": 2, "t": 99, "d": 71, "n": 90}),
]
"""Rows of several panels, of which the last one is not full."""


@pytest.mark.parametrize(("equation", "extents"), MANY, ids=[str(number) for number in range(len(MANY))])
def test_rows_in_several_panels_give_the_product(equation, extents):
    check(equation, extents, ("f32", "f32", "f32"), scale=0.3)


@pytest.mark.parametrize("kind", ["f32", "bf16"])
def test_many_rows_that_lie_otherwise_are_left_to_others(kind):
    """Results whose neighbours are rows of the weight, and 16-bit floats."""
    check("t d, n d -> n t" if kind == "f32" else "t d, n d -> t n", {"t": 70, "d": 80, "n": 66}, (kind, kind, kind))


@pytest.mark.sampled(6)
@pytest.mark.parametrize(
    ("equation", "extents"), PANELS, ids=[f"{equation} {n}" for n, (equation, _) in enumerate(PANELS)]
)
@pytest.mark.parametrize("kinds", [("f32", "f32", "f32"), ("bf16", "f32", "f16"), ("f16", "f32", "bf16")], ids="-".join)
def test_rows_in_a_panel_give_the_product(equation, extents, kinds):
    matrix = max(
        (0, 1), key=lambda one: math.prod(extents[name] for name in equation.split("->")[0].split(",")[one].split())
    )
    check(equation, extents, kinds if matrix else (kinds[1], kinds[0], kinds[2]), scale=-0.7)


@pytest.mark.sampled(24)
@pytest.mark.parametrize("rows", range(5, few_rows_layout.MAX_PRODUCT_ROWS + 1))
@pytest.mark.parametrize("kind", ["f32", "f16", "bf16"])
def test_any_number_of_rows_of_a_panel(rows, kind):
    """Also longer lines than those that are widened at a time."""
    check("t d, n d -> t n", {"t": rows, "d": 96 + 13 * rows, "n": 50}, ("f32", kind, "f32"))


def test_parts_of_a_panel_have_the_bits_of_the_whole():
    """Of lines, and of rows: an element's sum depends on its line and its row alone. With registers of 128 bits, more
    rows than one panel has are left to a library, which promises no bits."""
    has_many = compiler.find_registers().lanes in few_rows.MAX_ROWS_OF_MANY
    count = 75 if has_many else few_rows_layout.MAX_PRODUCT_ROWS
    x, w = (draw(names, {"t": count, "d": 300, "n": 90}, KINDS["f32"], 3) for names in ("td", "nd"))
    whole, lines, rows = (np.zeros((count, 90), "f4") for _ in range(3))
    cuts = [(x, w, whole), (x[:11], w, rows[:11]), (x[11:], w, rows[11:])]
    cuts += [(x, w[a:b], lines[:, a:b]) for a, b in ((0, 26), (26, 90))]
    for own, matrix, target in cuts:
        run(prepare(Invocation("contract", {"equation": "t d, n d -> t n"}, [own, matrix], [target])))
    np.testing.assert_array_equal(whole, lines)
    np.testing.assert_array_equal(whole, rows)


def test_infinities_in_a_panel_stay_where_they_belong():
    x, w = np.ones((19, 67), "f4"), np.ones((40, 67), "f4")
    w[3, 66], w[39, 1], x[18, 64] = np.inf, np.nan, -np.inf
    found = np.zeros((19, 40), "f4")
    run(prepare(Invocation("contract", {"equation": "t d, n d -> t n"}, [x, w], [found])))
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(found, x @ w.T)
