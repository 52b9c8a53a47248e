"""Random inputs and weights depend only on seed, name and shape, and never change."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from einc_runtime.execution.data.random_arrays import make_random_array
from tests.support.array_cases import tensor

# Random tensors


def test_random_arrays_depend_on_seed_name_and_shape_only():
    x = tensor(shape=(200, 300))
    a = make_random_array(x, 0)
    assert a.dtype == np.float32
    np.testing.assert_array_equal(a, make_random_array(x, 0))
    assert abs(a.std() - 1) < 0.02
    assert abs(a.mean()) < 0.02
    assert not np.array_equal(a, make_random_array(x, 1))
    assert not np.array_equal(a, make_random_array(tensor(shape=(200, 300), name="y"), 0))
    np.testing.assert_array_equal(a[0, :2], np.array(a[0, :2].tolist(), "f4"))
    weight = make_random_array(tensor(shape=(200, 300), name="x", kind="weight", fan_in=100), 0)
    np.testing.assert_allclose(weight, a / 10, rtol=1e-6)
    np.testing.assert_array_equal(make_random_array(tensor("bf16", (200, 300)), 0), a.astype(ml_dtypes.bfloat16))
    np.testing.assert_array_equal(make_random_array(tensor("f16", (200, 300)), 0), a.astype("f2"))
    assert make_random_array(tensor("f64"), 0).dtype == np.float64
    whole = make_random_array(tensor("i32", (1000,)), 0)
    assert (whole.dtype, whole.min(), whole.max()) == (np.dtype("i4"), 0, 7)
    assert 0 < make_random_array(tensor("bool", (1000,)), 0).mean() < 1


def test_random_arrays_do_not_change_from_release_to_release():
    assert make_random_array(tensor(shape=(3,)), 7).tolist() == pytest.approx(FIRST_DRAW, abs=1e-6)


FIRST_DRAW = [0.4847431, 0.5072526, -2.1305635]
