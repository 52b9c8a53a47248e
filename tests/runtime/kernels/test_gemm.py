"""Contractions as products of matrices, on raw memory, against numpy's einsum: groups, strides, batches, copies."""

from __future__ import annotations

import itertools
import string
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from einc_runtime.dtypes import find_dtype_name
from einc_runtime.kernels.base import Invocation
from einc_runtime.kernels.gpu import GpuArray
from einc_runtime.kernels.triton import gemm
from einc_runtime.kernels.triton.contract import build_contract
from einc_runtime.kernels.triton.gemm import Axis, Gemm, Matrix
from einc_runtime.kernels.triton.launches import as_layout
from tests.support.emulated_gemm import multiply
from tests.support.property_examples import examples

BF16 = np.dtype(ml_dtypes.bfloat16)
EXTENTS = {"i": 5, "j": 4, "k": 7, "l": 3, "b": 2, "h": 6, "u": 1}


def device(array):
    return as_layout(GpuArray(array.ctypes.data, array.shape, array.strides, find_dtype_name(array.dtype), 0))


def drawn(names, dtype, seed, order=None):
    """An array whose memory has the indices in another order, and is larger than the array."""
    order = order or names
    rng = np.random.default_rng(seed)
    whole = np.asarray(rng.integers(-4, 5, [EXTENTS[n] + 2 for n in order])).astype(dtype)
    part = whole[(*(slice(1, 1 + EXTENTS[n]) for n in order), ...)]
    return part.transpose([order.index(n) for n in names])


def planned(equation, inputs, output, **more):
    views = [device(x) for x in inputs]
    return build_contract(Invocation("contract", {"equation": equation, **more}, views, [device(output)]))


def einsum(equation, inputs):
    names = sorted(set(equation.replace(",", " ").replace("->", " ").split()))
    letters = dict(zip(names, string.ascii_letters, strict=False))
    left, right = equation.split("->")
    parts = ["".join(letters[n] for n in part.split()) for part in left.split(",")]
    return np.einsum(
        ",".join(parts) + "->" + "".join(letters[n] for n in right.split()), *(x.astype("f8") for x in inputs)
    )


def check(equation, orders=None, dtype="f4", result=None, steps=None):
    """Builds a contraction on regions of buffers, runs it if it is products alone, and compares results."""
    left, right = equation.split("->")
    names = [tuple(part.split()) for part in left.split(",")]
    orders = orders or [None] * (len(names) + 1)
    inputs = [drawn(n, dtype, seed, order) for seed, (n, order) in enumerate(zip(names, orders, strict=False))]
    output = drawn(tuple(right.split()), result or dtype, 9, orders[len(names)])
    plan = planned(equation, inputs, output)
    assert all(isinstance(step, Gemm) for step in plan.steps)
    if steps is not None:
        assert len(plan.steps) == steps
    for step in plan.steps:
        multiply(step)
    expected = einsum(equation, inputs)
    np.testing.assert_allclose(output.astype("f8"), expected, rtol=2e-2 if np.dtype(dtype).itemsize == 2 else 1e-6)
    return plan.steps


ORDERS = list(itertools.product((("i", "k"), ("k", "i")), (("k", "j"), ("j", "k")), (("i", "j"), ("j", "i"))))


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", BF16], ids=str)
@pytest.mark.parametrize("orders", ORDERS, ids=str)
def test_a_product_of_matrices_in_every_order_is_one_launch(orders, dtype):
    check("i k, k j -> i j", orders, dtype, steps=1)


@pytest.mark.parametrize("equation", ["i k, k j -> i j", "i k, k l, l j -> i j", "b i k, b k j -> b i j"])
def test_a_number_is_multiplied_once(equation):
    left, right = equation.split("->")
    inputs = [drawn(tuple(part.split()), "f4", seed) for seed, part in enumerate(left.split(","))]
    output = drawn(tuple(right.split()), "f4", 9)
    plan = planned(equation, inputs, output, scale=-0.75)
    assert [step.scale for step in plan.steps] == [1.0] * (len(inputs) - 2) + [-0.75]
    if len(inputs) == 2:
        for step in plan.steps:
            multiply(step)
        np.testing.assert_allclose(output, -0.75 * einsum(equation, inputs), rtol=1e-6)


def test_batches_and_groups_take_one_launch():
    (step,) = check("b i k, b k j -> b i j", steps=1)
    assert step.batch == 2
    (step,) = check("h i k, h j k -> h i j", steps=1)
    assert step.batch == 6
    (step,) = check("b h k, b k l -> b h l", [None, None, ("h", "b", "l")], steps=1)
    assert (step.batch, step.ldc) == (2, 4 * 5)


def test_rows_of_two_indices_are_one_dimension_where_memory_allows():
    whole = np.arange(2 * 5 * 7, dtype="f4").reshape(2, 5, 7)
    weights = np.arange(7 * 4, dtype="f4").reshape(7, 4)
    output = np.zeros((2, 5, 4), "f4")
    (step,) = planned("b i k, k j -> b i j", [whole, weights], output).steps
    assert (step.batch, {step.m, step.n}) == (1, {4, 10})
    multiply(step)
    np.testing.assert_array_equal(output, whole @ weights)


def test_projections_to_and_from_heads_that_lie_by_tokens_are_one_product_without_a_copy():
    rng = np.random.default_rng(1)
    x, w = (rng.integers(-3, 4, shape).astype("f4") for shape in ((9, 12), (4, 5, 12)))
    heads = np.zeros((9, 4, 5), "f4").transpose(1, 0, 2)
    back = np.zeros((9, 12), "f4")
    for equation, inputs, output in (
        ("t k, h d k -> h t d", [x, w], heads),
        ("h t d, k h d -> t k", [heads, w.transpose(2, 0, 1).copy()], back),
    ):
        (step,) = planned(equation, inputs, output).steps
        assert isinstance(step, Gemm)
        assert step.batch == 1
        multiply(step)
    np.testing.assert_array_equal(heads, np.einsum("tk,hdk->htd", x, w))
    np.testing.assert_array_equal(back, np.einsum("htd,hdk->tk", heads, w))


@pytest.mark.parametrize("order", [("t", "k"), ("k", "t")], ids=str)
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("dtype", ["f2", "f4"])
def test_what_all_matrices_of_a_batch_share_is_read_in_parts_that_a_cache_holds(monkeypatch, order, turned, dtype):
    rng = np.random.default_rng(0)
    x = rng.integers(-3, 4, (700, 24) if order[0] == "t" else (24, 700)).astype(dtype)
    x = x if order[0] == "t" else x.T
    w = rng.integers(-3, 4, (4, 16, 24)).astype(dtype)
    inputs, equation = [x, w], "t k, h d k -> h t d"
    output = np.zeros((4, 700, 16), dtype)
    if turned:  # column by column, and a line apart from head to head
        output = np.zeros((4, 17, 700), dtype)[:, :16].swapaxes(1, 2)
    whole = planned(equation, inputs, output).steps
    assert [step.batch for step in whole] == [4]
    monkeypatch.setattr(gemm, "SLAB", 256 * 24 * x.itemsize)
    parts = planned(equation, inputs, output).steps
    assert [max(step.m, step.n) for step in parts] == [256, 256, 188]
    for step in parts:
        multiply(step)
    np.testing.assert_array_equal(output, einsum(equation, inputs).astype(dtype))
    monkeypatch.setattr(gemm, "SLAB", 24 * x.itemsize)
    assert len(planned(equation, inputs, output).steps) == 3  # never fewer than 256 of them
    monkeypatch.setattr(gemm, "MAX_SLABS", 2)
    assert [max(step.m, step.n) for step in planned(equation, inputs, output).steps] == [512, 188]


def test_large_activations_go_through_the_heads_in_parts():
    def step(tokens):
        return Gemm(True, False, 128, tokens, 4096, 1 << 40, 4096, 128 * 4096, 2 << 40, 4096, 0, 3 << 40, 128,
                    tokens * 128, 32, "f16", "f16")  # fmt: skip

    assert len(gemm.split_for_cache(step(8192))) == 1  # a cache of 50 MB holds most of it
    assert [part.n for part in gemm.split_for_cache(step(32768))] == [4096] * 8
    assert len(gemm.split_for_cache(replace(step(32768), batch=1))) == 1
    assert len(gemm.split_for_cache(replace(step(32768), stride_b=1))) == 1


def test_grouped_queries_share_their_keys():
    """q [g h i d], k [g j d]: all heads of a group are rows of one product."""
    rng = np.random.default_rng(0)
    q, k = rng.normal(size=(3, 2, 5, 8)), rng.normal(size=(3, 7, 8))
    output = np.zeros((3, 2, 5, 7))
    (step,) = planned("g h i d, g j d -> g h i j", [q, k], output).steps
    assert (step.batch, step.n) == (3, 10)
    multiply(step)
    np.testing.assert_allclose(output, np.einsum("ghid,gjd->ghij", q, k))


def test_results_of_16_bit_operands_may_be_f32():
    (step,) = check("i k, k j -> i j", dtype="f2", result="f4", steps=1)
    assert (step.kind, step.result) == ("f16", "f32")
    assert step.variant == "gemm nn f16 to f32 4x5x7"


def test_vectors_and_dots():
    check("i k, k -> i", steps=1)
    check("k, k ->", steps=1)
    check("k, k j -> j", steps=1)
    check("i u, u j -> i j", steps=1)


def test_batches_that_no_stride_walks_are_several_launches():
    rng = np.random.default_rng(0)
    a, b, output = rng.normal(size=(2, 6, 16, 7)), rng.normal(size=(6, 7, 4)), np.zeros((2, 6, 16, 4))
    steps = planned("b h i k, h k j -> b h i j", [a, b], output).steps
    assert [step.batch for step in steps] == [6, 6]  # b is no index of the second operand
    for step in steps:
        multiply(step)
    np.testing.assert_allclose(output, a @ b)


def test_more_than_two_operands_go_through_workspace():
    plan = planned("i k, k j, j l -> i l", [drawn(n, "f4", 1) for n in (("i", "k"), ("k", "j"), ("j", "l"))],
                   drawn(("i", "l"), "f4", 2))  # fmt: skip
    assert [isinstance(step, Gemm) for step in plan.steps] == [True, True]
    assert plan.scratch >= 4 * min(5 * 4, 7 * 3)


def test_contractions_that_are_no_matrix_product_are_reduced():
    ints = [drawn(n, "i4", 1) for n in (("i", "k"), ("k", "j"))]
    assert not any(isinstance(s, Gemm) for s in planned("i k, k j -> i j", ints, drawn(("i", "j"), "i4", 2)).steps)
    lone = [drawn(n, "f4", 1) for n in (("i", "k", "l"), ("k", "j"))]
    assert not any(isinstance(s, Gemm) for s in planned("i k l, k j -> i j", lone, drawn(("i", "j"), "f4", 2)).steps)


def test_operands_without_a_contiguous_axis_are_copied_first():
    a = np.zeros((10, 14), "f4")[::2, ::2]
    plan = planned("i k, k j -> i j", [a, np.zeros((7, 4), "f4")], np.zeros((5, 4), "f4"))
    assert [isinstance(step, Gemm) for step in plan.steps] == [False, True]
    plan = planned(
        "i k, k j -> i j", [np.zeros((5, 7), "f4"), np.zeros((7, 4), "f4")], np.zeros((10, 8), "f4")[::2, ::2]
    )
    assert [isinstance(step, Gemm) for step in plan.steps] == [True, False]
    mixed = [np.zeros((5, 7), "f4"), np.zeros((7, 4), "f2")]
    assert [isinstance(step, Gemm) for step in planned("i k, k j -> i j", mixed, np.zeros((5, 4), "f4")).steps] == [
        False,
        True,
    ]


@examples(150)
@given(st.data())
def test_any_pair_of_dense_operands(data):
    names = data.draw(st.lists(st.sampled_from("ijklbhu"), min_size=2, max_size=6, unique=True))
    kinds = [data.draw(st.sampled_from(["batch", "row", "column", "sum"])) for _ in names]
    if "sum" not in kinds:
        kinds[0] = "sum"
    parts = (("batch", "row", "sum"), ("batch", "column", "sum"), ("batch", "row", "column"))
    operands = [
        data.draw(st.permutations([n for n, k in zip(names, kinds, strict=True) if k in part])) for part in parts
    ]
    equation = f"{' '.join(operands[0])}, {' '.join(operands[1])} -> {' '.join(operands[2])}"
    arrays = [
        np.random.default_rng(s).integers(-3, 4, [EXTENTS[n] for n in o]).astype("f4") for s, o in enumerate(operands)
    ]
    plan = planned(equation, arrays[:2], arrays[2])
    if all(isinstance(step, Gemm) for step in plan.steps):
        for step in plan.steps:
            multiply(step)
        np.testing.assert_array_equal(arrays[2], einsum(equation, arrays[:2]))


def test_matrices_that_overlap_or_have_no_run_are_refused():
    assert Matrix(0, Axis(5, 2), Axis(3, 2)).find_order() is None
    assert Matrix(0, Axis(5, 2), Axis(3, 1)).find_order() is None
    assert Matrix(0, Axis(5, 3), Axis(3, 1)).find_order() == (True, 3)
    assert Matrix(0, Axis(5, 1), Axis(3, 9)).find_order() == (False, 9)
    assert Matrix(0, Axis(5, 1), Axis(3, 1 << 31)).find_order() is None
    assert Matrix(0, Axis(1, 77), Axis(3, 4)).find_order() == (False, 4)
