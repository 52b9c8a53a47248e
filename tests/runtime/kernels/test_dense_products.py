"""Products by each library: all layouts, stacks, and the products that numpy computes."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from einc_runtime.kernels.numpy import libraries, onednn
from einc_runtime.kernels.numpy.libraries import prepare_product
from einc_runtime.kernels.numpy.products import DenseProduct

SIZES = (70, 67, 61)  # enough multiplications to be worth a call


AVAILABLE = {
    "openblas": lambda: True,
    "onednn": onednn.is_available,
}


@pytest.fixture(params=AVAILABLE)
def library(request, monkeypatch):
    """Each library that is installed, as if it were the fastest one for everything."""
    if not AVAILABLE[request.param]():
        pytest.skip(f"{request.param} is not installed")
    monkeypatch.setattr(libraries, "choose_library", lambda product, side: request.param)
    return request.param


def matrices(shape, layout, rng, dtype):
    *stack, rows, columns = shape
    if layout == "turned":
        return rng.standard_normal((*stack, columns, rows)).astype(dtype).swapaxes(-1, -2)
    if layout == "part":
        return rng.standard_normal((*stack, rows + 3, columns + 5)).astype(dtype)[..., 2:-1, 1:-4]
    return rng.standard_normal(shape).astype(dtype)


LAYOUTS = ("plain", "turned", "part")


@pytest.mark.sampled(4)
@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("layouts", list(itertools.product(LAYOUTS, repeat=3)))
@pytest.mark.parametrize("stack", [(), (3,), (2, 2)])
def test_products_of_any_layout_are_right_and_change_nothing_else(layouts, stack, dtype, library):
    rng = np.random.default_rng(len(stack))
    m, k, n = SIZES
    shapes = ((*stack, m, k), (*stack[1:], k, n), (*stack, m, n))
    left, right, target = (matrices(s, layout, rng, dtype) for s, layout in zip(shapes, layouts, strict=True))
    before, expected = target.copy(), left.astype("f8") @ right.astype("f8")
    around = target.base.copy() if target.base is not None else None
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
