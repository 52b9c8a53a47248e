"""The machine code of `topk` against sorting in plain Python, with ties, infinities and NaN."""

from __future__ import annotations

import math

import numpy as np
import pytest

from einc_runtime.dtypes import Array
from einc_runtime.kernels.base import Invocation
from einc_runtime.plan.schema import Block
from tests.support.kernel_runs import run_compiled


def invoke(x: Array, axis: int, first: int, values: Array, indices: Array) -> Invocation[Array]:
    lower = tuple(first if dim == axis else 0 for dim in range(x.ndim))
    block = Block(lower, tuple(low + extent for low, extent in zip(lower, x.shape, strict=True)))
    return Invocation("topk", {"axis": axis}, [x], [values, indices], [block])


@pytest.mark.parametrize(
    ("shape", "axis", "count"), [((5, 33), 1, 4), ((7, 3, 6), 0, 7), ((3, 19, 2), 1, 1), ((9,), 0, 8)]
)
def test_values_are_ranked(shape: tuple[int, ...], axis: int, count: int) -> None:
    rng = np.random.default_rng(2)
    special = np.array([np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, 1.0, -1.0, 1e-40], "f4")
    wide = np.where(rng.random((*shape, 2)) < 0.5, rng.standard_normal((*shape, 2)), rng.choice(special, (*shape, 2)))
    x = wide.astype("f4")[..., 0]  # with a gap behind each element
    rows = np.moveaxis(x, axis, -1)
    values, indices = np.full((*rows.shape[:-1], count), 7, "f4"), np.zeros((*rows.shape[:-1], count), "i8")
    run_compiled(invoke(x, axis, 11, values, indices))
    for at in np.ndindex(rows.shape[:-1]):
        row = rows[at].tolist()
        expected = sorted(
            range(len(row)), key=lambda n: (not math.isnan(row[n]), 0 if math.isnan(row[n]) else -row[n], n)
        )
        assert (indices[at] - 11).tolist() == expected[:count]
        np.testing.assert_array_equal(values[at], rows[at][expected[:count]])
        assert (np.signbit(values[at]) == np.signbit(rows[at][expected[:count]])).all()
