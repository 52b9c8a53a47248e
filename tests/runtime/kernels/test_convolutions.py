"""Convolutions that a library computes, whole and on the blocks of every cut, against the definition of programs."""

from __future__ import annotations

import re

import numpy as np
import pytest

from einc.frontend import build
from einc.ops.base import Operator
from einc.ops.index_operator import IndexOperator
from einc_runtime.kernels.numpy import libraries, onednn, onednn_convolution
from einc_runtime.plan.index_convolutions import find_convolution
from tests.support.block_slices import slices
from tests.support.definition_oracle import requests
from tests.support.kernel_pieces import run_kernel

pytestmark = pytest.mark.skipif(not onednn.is_available(), reason="oneDNN is not installed")

CASES = {
    "images": (
        "x : T[n=2, c=24, 17, 13]; k : T[o=20, c, 3, 3]",
        "y[n, o, h = 17, w = 13] = x[n, c, h + r - 1, w + s - 1, outside = 0] * k[o, c, r, s]",
    ),
    "strides": (
        "x : T[n=3, c=24, 17, 14]; k : T[o=20, c, 4, 3]",
        "y[n, o, h = 7, w = 4] = k[o, c, r, s] * x[n, c, 2 * h + r, 3 * w + s]",
    ),
    "dilations": (
        "x : T[n=2, c=16, 17, 13]; k : T[o=9, c, 3, 2]",
        "y[n, o, h = 15, w = 10] = x[n, c, h + 2 * r - 1, w + 3 * s, outside = 0] * k[o, c, r, s]",
    ),
    "asymmetric": (
        "x : T[n=2, c=16, 12, 10]; k : T[o=16, c, 3, 3]",
        "y[n, o, h = 6, w = 11] = x[n, c, 2 * h + r, w + s - 2, outside = 0.0] * k[o, c, r, s]",
    ),
    "channels_last": (
        "x : T[n=2, 14, 13, c=32]; k : T[3, 3, c, o=24]",
        "y[n, h = 14, w = 13, o] = x[n, h + r - 1, w + s - 1, c, outside = 0] * k[r, s, c, o]",
    ),
    "groups": (
        "x : T[n=2, g=3, c=8, 13, 11]; k : T[g, o=16, c, 3, 3]",
        "y[n, g, o, h = 13, w = 11] = x[n, g, c, h + r - 1, w + s - 1, outside = 0] * k[g, o, c, r, s]",
    ),
    "depthwise": (
        "x : T[n=2, g=35, 19, 17]; k : T[g, 3, 3]",
        "y[n, g, h = 19, w = 17] = x[n, g, h + r - 1, w + s - 1, outside = 0] * k[g, r, s]",
    ),
    "sequence": (
        "x : T[37, c=48]; k : T[4, c, o=24]",
        "y[t = 37, o] = x[t + r - 3, c, outside = 0] * k[r, c, o]",
    ),
    "volume": (
        "x : T[c=16, 7, 9, 8]; k : T[o=8, c, 3, 3, 3]",
        "y[o, z = 7, h = 9, w = 8] = x[c, z + q - 1, h + r - 1, w + s - 1, outside = 0] * k[o, c, q, r, s]",
    ),
    "points_apart": (
        "x : T[n=2, c=24, 9, 14]; k : T[o=20, c, 1, 1]",
        "y[n, o, h = 5, w = 5] = x[n, c, 2 * h, 3 * w] * k[o, c, 0, 0]",
    ),
    "batches_behind": (
        "x : T[c=24, 12, 11, n=3]; k : T[o=20, c, 3, 3]",
        "y[o, h = 10, w = 9, n] = x[c, h + r, w + s, n] * k[o, c, r, s]",
    ),
}
NO_CONVOLUTIONS = {
    "a window along two dimensions": ("x : T[c=20, 9, 9]; k : T[c, 3]", "y[i = 7, c] = x[c, i + r, i + r] * k[c, r]"),
    "a kernel for each position": ("x : T[c=20, 9]; k : T[c, 3, i=7]", "y[i, c] = x[c, i + r] * k[c, r, i]"),
    "other values outside": ("x : T[c=20, 9]; k : T[c, 3]", "y[i = 9] = x[c, i + r - 1, outside = nearest] * k[c, r]"),
    "backwards": ("x : T[c=20, 9]; k : T[c, 3]", "y[i = 7] = x[c, i - r + 2] * k[c, r]"),
}


def make(tensors: str, equation: str, dtype: str) -> Operator:
    dims = "".join(f"dim {name} = {extent}\n" for name, extent in re.findall(r"(\w+)=(\d+)", tensors))
    shapes = re.sub(r"=\d+", "", tensors).replace("T[", f"{dtype}[").split("; ")
    inputs = "".join(f"input {text}\n" for text in shapes)
    return build(f"model m\n{dims}{inputs}output {equation}\n", "m.ein").nodes[-1].operator


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("name", CASES)
def test_pieces_are_what_the_definition_says(name: str, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    real = onednn_convolution.make_convolution

    def count(*arguments, **options):
        kernel = real(*arguments, **options)
        made.append(kernel is not None)
        return kernel

    monkeypatch.setattr("einc_runtime.kernels.index_convolutions.make_convolution", count)
    for limit in ("MIN_PACKED_PRODUCTS", "MIN_ROWS"):
        monkeypatch.setattr(f"einc_runtime.kernels.index_convolutions.{limit}", 1)
    operator = make(*CASES[name], dtype)
    rng = np.random.default_rng(len(name))
    arrays = [rng.standard_normal(desc.shape).astype(desc.dtype.numpy()) for desc in operator.inputs]
    (expected,) = operator.reference(*arrays)
    whole = expected.astype(np.float64)
    for sites in (1, 2, 6):
        for intervals in list(requests(operator, sites))[::3]:
            total = np.zeros(expected.shape)
            for function in operator.build_spec(intervals).functions:
                blocks = [array[slices(block)] for array, block in zip(arrays, function.inputs, strict=True)]
                (part,) = run_kernel(operator, function, blocks)
                total[slices(function.outputs[0])] += part.astype(np.float64)
            error = np.abs(total - whole).max() / np.abs(whole).max()
            assert error < {"f32": 2e-6, "bf16": 1.2e-2}[dtype], intervals
    if dtype == "f32" or libraries.is_multiplied(dtype):
        assert made[0]


@pytest.mark.parametrize("name", NO_CONVOLUTIONS)
def test_what_is_no_convolution(name: str) -> None:
    operator = make(*NO_CONVOLUTIONS[name], "f32")
    assert isinstance(operator, IndexOperator)
    assert find_convolution(operator.program) is None
