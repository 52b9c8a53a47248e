"""Scalar functions in Triton's interpreter: their errors, special values and the bits of integers.

The interpreter computes with numpy what a GPU computes by instructions and by CUDA's libdevice, whose functions are
accurate everywhere. So this is about our own code, and the names that it calls. `tests/gpu` is about GPUs.
"""

from __future__ import annotations

import numpy as np
import pytest

from einc_runtime.kernels.base import Invocation
from einc_runtime.kernels.triton.launches import as_layout
from einc_runtime.kernels.triton.map import build_map
from tests.support.function_oracles import BITS, EXACT, SPECIAL, ULPS, WHOLE, count_ulps, draw
from tests.support.triton_interpreter import device, run

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


def apply(function: str, *arrays: np.ndarray, dtype: object = None) -> np.ndarray:
    output = np.empty(arrays[0].shape, dtype or arrays[0].dtype)
    operands = " ".join(f"x{k}" for k in range(len(arrays)))
    indices = ", ".join(["i"] * len(arrays)) + " -> i"
    attributes = {"program": f"t0 = {function} {operands}", "indices": indices}
    operands, results = [device(array) for array in arrays], [device(output)]
    plan = build_map(Invocation("map", attributes, [as_layout(x) for x in operands], [as_layout(x) for x in results]))
    run(plan.steps, plan.scratch)
    return output


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("function", EXACT)
def test_errors_are_within_the_stated_bounds(function, dtype):
    arrays = draw(function, dtype, 2000)
    exact = EXACT[function](*(array.astype("f8" if dtype == "f4" else np.longdouble) for array in arrays))
    assert count_ulps(apply(function, *arrays), exact) <= ULPS[dtype]


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("function", WHOLE)
def test_whole_numbers_are_exact(function, dtype):
    halves = np.arange(-41, 42) / 2
    x = np.concatenate([halves, halves + 0.25, [*SPECIAL, 2.0**23 - 0.5, 2.0**23 + 1, 1e30]]).astype(dtype)
    expected = [WHOLE[function](v) if np.isfinite(v) or function == "sign" else v for v in x.tolist()]
    found = apply(function, x)
    np.testing.assert_array_equal(found, expected)
    assert not (function == "sign" and np.signbit(found[found == 0]).any())


@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_what_a_float_is(dtype):
    x = np.array([*SPECIAL, 1e30], dtype)
    for function in ("isnan", "isinf", "isfinite"):
        np.testing.assert_array_equal(apply(function, x, dtype="?"), getattr(np, function)(x))


@pytest.mark.parametrize("dtype", ["i4", "i8"])
def test_bits_of_integers(dtype):
    width = 8 * np.dtype(dtype).itemsize
    values = [0, 1, -1, 6, -7, 2 ** (width - 1) - 1, -(2 ** (width - 1)), width - 1, width, width + 1, -width]
    x, y = (np.array(column, dtype) for column in zip(*[(a, b) for a in values for b in values], strict=True))
    for function, meaning in BITS.items():
        wanted = [meaning(a, b, width) for a, b in zip(x.tolist(), y.tolist(), strict=True)]
        assert apply(function, x, y).tolist() == wanted, function
    assert apply("sign", x).tolist() == [(a > 0) - (a < 0) for a in x.tolist()]
