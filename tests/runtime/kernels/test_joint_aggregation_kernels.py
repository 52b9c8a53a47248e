"""Aggregations of tuples against their meaning element by element: types, layouts, empty copies, in place."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from einc_runtime.kernels.base import JointInvocation
from einc_runtime.kernels.calls.ranking import rank_keys
from einc_runtime.kernels.registry import prepare_joint_aggregation
from tests.support.joint_aggregation_meaning import combine

pytestmark = pytest.mark.usefixtures("provider")

BF16 = np.dtype(ml_dtypes.bfloat16)
FLOATS = (np.dtype("f4"), np.dtype("f2"), BF16, np.dtype("f8"))
LAYOUTS = [  # the shape of the primary, and the dimensions of it that the companion has
    ((7, 5, 4), (0, 1)),
    ((7, 5, 4), (1, 0)),
    ((3, 4), (0, 1)),
    ((6,), ()),
    ((), ()),
    ((2, 3, 4, 5), (2, 0)),
    ((5, 3, 37), (1, 0)),
]


def run(operation, copies, target, dims):
    kernel = prepare_joint_aggregation(
        JointInvocation(operation, [array for copy in copies for array in copy], target, dims)
    )
    kernel.bind(np.full(kernel.scratch, 255, np.uint8))()


def merged(operation, copies, dims, strided=False):
    def room(array):
        return np.full((*array.shape, 2), 77).astype(array.dtype)[..., 0] if strided else np.full_like(array, 77)

    target = [room(array) for array in copies[0]]
    with np.errstate(all="ignore"):
        run(operation, copies, target, dims)
    return target


def meaning(operation, copies, dims):
    total = copies[0]
    for copy in copies[1:]:
        total = combine(operation, dims, total, copy)
    return total


def assert_members(found, expected, tolerance):
    for a, b in zip(found, expected, strict=True):
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        np.testing.assert_allclose(a.astype("f8"), b.astype("f8"), rtol=tolerance, atol=tolerance)


def averages(shape, has, count, dtype, seed=0):
    rng = np.random.default_rng(seed)
    copies = []
    for _ in range(count):
        logs = rng.normal(scale=30, size=[shape[d] for d in has]).astype("f4")
        logs = np.where(rng.random(logs.shape) < 0.4, np.float32(-np.inf), logs)
        copies.append([np.asarray(rng.normal(size=shape)).astype(dtype), np.asarray(logs)])
    return copies


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("shape", "has"), LAYOUTS)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_logsumexp(shape, has, dtype):
    dims = (tuple(range(len(shape))), has)
    for count in (2, 3, 5):
        copies = averages(shape, has, count, dtype, count)
        expected = meaning("logsumexp", [[c[0].astype("f8"), c[1]] for c in copies], dims)
        expected = [expected[0].astype(dtype), expected[1]]
        tolerance = {"float16": 2e-3, "bfloat16": 2e-2}.get(dtype.name, 3e-6)
        assert_members(merged("logsumexp", copies, dims), expected, tolerance)
        assert_members(merged("logsumexp", copies, dims, strided=True), expected, tolerance)


def test_copies_without_weight_average_to_zero():
    copies = [[np.full((2, 3), 5, "f4"), np.full(2, -np.inf, "f4")] for _ in range(3)]
    average, log = merged("logsumexp", copies, ((0, 1), (0,)))
    assert (average == 0).all()
    assert (log == -np.inf).all()


def test_large_and_small_weights_do_not_overflow():
    copies = [[np.full((2,), v, "f4"), np.full(2, w, "f4")] for v, w in ((1, 1e30), (2, 1e30), (9, -1e30))]
    average, log = merged("logsumexp", copies, ((0,), (0,)))
    np.testing.assert_allclose(average, 1.5)
    np.testing.assert_allclose(log, 1e30)


def test_more_than_one_piece():
    dims = ((0, 1, 2), (1,))
    copies = averages((3, 500, 130), (1,), 3, np.dtype("f4"))
    expected = meaning("logsumexp", [[c[0].astype("f8"), c[1]] for c in copies], dims)
    assert_members(merged("logsumexp", copies, dims), [expected[0].astype("f4"), expected[1]], 3e-6)


def pairs(shape, has, count, dtype, seed):
    """Values with many ties and special values, and every index once."""
    rng = np.random.default_rng(seed)
    indices = rng.permutation(count * int(np.prod(shape, dtype=int))).reshape(count, *shape).astype("i8")
    copies = []
    for number in range(count):
        values = rng.integers(-2, 3, [shape[d] for d in has]).astype(dtype)
        if dtype.kind != "i":
            for special in (np.nan, np.inf, -np.inf, -0.0):
                values = np.where(rng.random(values.shape) < 0.15, np.asarray(special).astype(dtype), values)
        else:
            values = np.where(rng.random(values.shape) < 0.3, np.iinfo(dtype).min, values)
        copies.append([np.asarray(indices[number]), np.asarray(values)])
    return copies


@pytest.mark.parametrize("dtype", [*FLOATS, np.dtype("i4"), np.dtype("i8")], ids=str)
@pytest.mark.parametrize("shape", [(4, 6), (5,), (2, 3, 1)])
def test_topk(shape, dtype):
    dims = (tuple(range(len(shape))),) * 2
    for count in (2, 4):
        copies = [[values, index] for index, values in pairs(shape, dims[0], count, dtype, count)]
        found = merged("topk", copies, dims, strided=True)
        assert_members(found, meaning("topk", copies, dims), 0)
        again = merged("topk", [found, *copies[:1]], dims)
        for row in np.ndindex(shape[:-1]):
            assert (np.diff(rank_keys(np.ascontiguousarray(again[0][row])).astype("O")) >= 0).all()


@pytest.mark.parametrize("operation", ["logsumexp", "topk"])
def test_the_first_copy_may_be_the_target(operation):
    dims = ((0, 1, 2), (0, 2)) if operation == "logsumexp" else ((0, 1), (0, 1))
    if operation == "logsumexp":
        copies = averages((4, 300, 150), (0, 2), 3, np.dtype("f4"))
    else:
        copies = [copy[::-1] for copy in pairs((30, 7), (0, 1), 3, np.dtype("f4"), 1)]
    apart = merged(operation, copies, dims)
    with np.errstate(all="ignore"):
        run(operation, copies, copies[0], dims)
    for a, b in zip(apart, copies[0], strict=True):
        np.testing.assert_array_equal(a, b)  # to the bit
