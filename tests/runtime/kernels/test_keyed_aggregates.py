"""Running aggregates and scatters, in numpy and as machine code, against loops over single values."""

from __future__ import annotations

import functools

import numpy as np
import pytest

from einc_runtime.kernels.base import ANY_NUMBER, Kernel
from einc_runtime.kernels.calls.keyed_aggregates import RunningCall, ScatterCall
from einc_runtime.kernels.llvm import compiler
from einc_runtime.kernels.numpy import keyed_aggregates as in_numpy
from tests.support.kernel_runs import BF16

COMBINE = {"sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum}
IDENTITIES = {"sum": 0, "prod": 1, "max": -np.inf, "min": np.inf}
DTYPES = ["f4", "f2", BF16, "i4", "i8"]
PROVIDERS = ["numpy", pytest.param("llvm", marks=pytest.mark.skipif(not compiler.is_available(), reason="no llvmlite"))]
SHAPES = [(5, 37, 1), (4, 3, 40), (2, 19, 35), (21, 1, 2)]


def draw(shape: tuple[int, ...], dtype: object, seed: int) -> np.ndarray:
    """Numbers whose sums and products are exact, in an array that is not dense but along the last axis."""
    roomy = np.zeros([extent + 1 for extent in shape], dtype)
    view = roomy[tuple(map(slice, shape))]
    view[...] = np.random.default_rng(seed).choice([-2, -1, 1, 3], shape)
    return view


def run(kernel: Kernel | None) -> None:
    assert kernel is not None
    kernel.bind(np.full(kernel.scratch, 255, np.uint8))()


def combine(values: list[np.ndarray], aggregation: str, dtype: np.dtype) -> np.ndarray:
    identity = IDENTITIES[aggregation]
    if np.dtype(dtype).kind == "i" and abs(identity) == np.inf:
        identity = np.iinfo(dtype).min if aggregation == "max" else np.iinfo(dtype).max
    return functools.reduce(
        COMBINE[aggregation], values, np.asarray(identity, np.float64 if identity in (0, 1) else dtype)
    )


@pytest.mark.sampled(6)
@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("aggregation", COMBINE)
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_running(provider: str, dtype: np.dtype, aggregation: str, axis: int) -> None:
    for shape in SHAPES:
        for first, count, is_behind in [
            (1, shape[axis], False),
            (0, 9, True),
            (-3, 30, False),
            (4, 2, True),
            (99, 3, False),
        ]:
            source = draw(shape, dtype, 1)
            if aggregation == "prod":
                source[...] = np.sign(source.astype(float))
            target = draw((*shape[:axis], count, *shape[axis + 1 :]), dtype, 2)
            call = RunningCall.of(source, target, axis, first, aggregation, is_behind=is_behind)
            if provider == "numpy":
                run(in_numpy.make_running(call))
            else:
                from einc_runtime.kernels.llvm.keyed_aggregates import compile_running

                run(compile_running(call, ANY_NUMBER))
            values = [np.asarray(line, np.float64) for line in np.moveaxis(source, axis, 0)]
            values = values[::-1] if is_behind else values
            lines = np.moveaxis(target, axis, 0)
            for j, line in enumerate(lines[::-1] if is_behind else lines):
                expected = combine(values[: max(0, j + first)], aggregation, dtype)
                np.testing.assert_array_equal(
                    line.astype(np.float64), np.broadcast_to(expected, line.shape).astype(float)
                )


@pytest.mark.sampled(4)
@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("aggregation", ["sum", "max", "prod"])
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_scatter(provider: str, dtype: np.dtype, aggregation: str, axis: int) -> None:
    for shape in SHAPES:
        for keys_type, first in (("i8", 0), ("i4", 2)):
            source = draw(shape, dtype, 3)
            target = draw((*shape[:axis], 6, *shape[axis + 1 :]), dtype, 4)
            keys = np.random.default_rng(5).integers(-2, 9, 2 * shape[axis]).astype(keys_type)[::2]
            call = ScatterCall(source, keys, target, axis, first, aggregation)
            if provider == "numpy":
                run(in_numpy.make_scatter(call))
            else:
                from einc_runtime.kernels.llvm.keyed_aggregates import compile_scatter

                run(compile_scatter(call, ANY_NUMBER))
            values = [np.asarray(line, np.float64) for line in np.moveaxis(source, axis, 0)]
            for row, line in enumerate(np.moveaxis(target, axis, 0)):
                chosen = [value for value, key in zip(values, keys, strict=True) if key == row + first]
                expected = combine(chosen, aggregation, dtype)
                np.testing.assert_array_equal(
                    line.astype(np.float64), np.broadcast_to(expected, line.shape).astype(dtype).astype(float)
                )
