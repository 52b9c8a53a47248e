"""Products by direct calls of BLAS: all layouts, stacks, sums, and the products that numpy computes."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from einc_runtime.kernels.base import Invocation
from einc_runtime.kernels.llvm.contract import build_added_contract
from einc_runtime.kernels.numpy import blas, libraries, onednn
from einc_runtime.kernels.numpy.blas import DenseProduct
from einc_runtime.kernels.numpy.products import prepare_product

SIZES = (70, 67, 61)  # enough multiplications to be worth a call


def added(attributes, inputs, outputs):
    return build_added_contract(Invocation("contract", attributes, inputs, outputs))


AVAILABLE = {
    "openblas": lambda: blas.load_gemm("<f4", "openblas"),
    "mkl": blas.load_mkl,
    "onednn": onednn.is_available,
}


@pytest.fixture(params=AVAILABLE)
def library(request, monkeypatch):
    """Each library that is installed, as if it were the fastest one for everything."""
    if not AVAILABLE[request.param]():
        pytest.skip(f"{request.param} is not installed")
    only = libraries.LibraryChoice(request.param, request.param)
    monkeypatch.setattr(libraries, "choose_library", lambda product, side: only)
    return request.param


def matrices(shape, layout, rng, dtype):
    *stack, rows, columns = shape
    if layout == "turned":
        return rng.standard_normal((*stack, columns, rows)).astype(dtype).swapaxes(-1, -2)
    if layout == "part":
        return rng.standard_normal((*stack, rows + 3, columns + 5)).astype(dtype)[..., 2:-1, 1:-4]
    return rng.standard_normal(shape).astype(dtype)


LAYOUTS = ("plain", "turned", "part")


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("layouts", list(itertools.product(LAYOUTS, repeat=3)))
@pytest.mark.parametrize("stack", [(), (3,), (2, 2)])
def test_products_are_written_and_added(layouts, stack, dtype, library):
    rng = np.random.default_rng(len(stack))
    m, k, n = SIZES
    shapes = ((*stack, m, k), (*stack[1:], k, n), (*stack, m, n))
    left, right, target = (matrices(s, layout, rng, dtype) for s, layout in zip(shapes, layouts, strict=True))
    before, expected = target.copy(), left.astype("f8") @ right.astype("f8")
    around = target.base.copy() if target.base is not None else None
    function, arguments = prepare_product(DenseProduct(left, right, target, add=True), library, np.empty)
    function(*arguments)
    assert np.abs(target - before - expected).max() < (1e-4 if dtype == "f4" else 1e-11)
    target[...] = np.nan
    function, arguments = prepare_product(DenseProduct(left, right, target), library, np.empty)
    function(*arguments)
    assert np.abs(target - expected).max() < (1e-4 if dtype == "f4" else 1e-11)
    if layouts[2] == "part":  # what lies around a matrix is left alone
        target[...] = before
        assert np.array_equal(target.base, around)


def test_small_products_integers_and_odd_strides_are_left_to_numpy():
    small, large = np.ones((3, 3), "f4"), np.ones((90, 180), "f4")
    for left, right, target in (
        (small, small, np.empty_like(small)),
        (np.ones((90, 90), "i8"), np.ones((90, 90), "i8"), np.empty((90, 90), "i8")),
        (large[:, ::2], large[:, ::2], np.empty((90, 90), "f4")),
        (large[:, :90], large[:, :90], np.empty((90, 180), "f4")[:, ::2]),
    ):
        for library in AVAILABLE:
            assert prepare_product(DenseProduct(left, right, target), library, np.empty)[0] is np.matmul
            assert prepare_product(DenseProduct(left, right, target, add=True), library, np.empty) is None


@pytest.mark.usefixtures("library")
def test_contractions_that_are_matrix_products_can_be_added():
    rng = np.random.default_rng(0)
    a, b, c = (rng.standard_normal(shape).astype("f4") for shape in ((70, 5, 61), (61, 5, 67), (70, 67)))
    kernel = added({"equation": "i h k, k h j -> i j"}, [a, b], [before := c.copy()])
    scratch = np.empty(kernel.scratch + 1, np.uint8)
    run = kernel.bind(scratch)
    run()
    assert np.abs(before - c - np.einsum("ihk,khj->ij", a.astype("f8"), b)).max() < 1e-3
    half = np.zeros((70, 67), "f2")
    assert added({"equation": "i h k, k h j -> i j"}, [a.astype("f2"), b.astype("f2")], [half]) is None
    assert added({"equation": "i j, i j -> i j"}, [c, c], [c.copy()]) is None
    assert added({"equation": "i j -> i"}, [c], [np.zeros(70, "f4")]) is None


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("dtype", ["f4", "f8", "i8"])
def test_results_in_parts_are_added_from_one_product(dtype):
    rng = np.random.default_rng(1)
    shapes = ((41, 197), (3, 43, 197), (3, 41, 43))
    a, b, c = ((9 * rng.standard_normal(shape)).astype(dtype) for shape in shapes)
    kernel = added({"equation": "t m, h d m -> h t d"}, [a, b], [after := c.copy()])
    kernel.bind(np.empty(kernel.scratch, np.uint8))()
    exact = c.astype("f8") + np.einsum("tm,hdm->htd", a.astype("f8"), b)
    assert np.abs(after - exact).max() <= {"f4": 2e-2, "f8": 1e-10, "i8": 0}[dtype]
