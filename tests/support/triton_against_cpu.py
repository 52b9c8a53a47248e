"""Compares a kernel in Triton's interpreter, on regions of larger arrays, with the CPU's kernel."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from einc_runtime.kernels import registry
from einc_runtime.kernels.base import Invocation
from einc_runtime.kernels.triton import builders
from einc_runtime.kernels.triton.launches import as_layout
from einc_runtime.plan.schema import Block
from tests.support.triton_interpreter import device, run

BF16 = np.dtype(ml_dtypes.bfloat16)


F16, F32, F64, I32, I64 = (np.dtype(name) for name in ("f2", "f4", "f8", "i4", "i8"))


FLOATS = (F32, F16, BF16, F64)


TOLERANCE = {F16: 1e-3, BF16: 8e-3, F32: 2e-6, F64: 1e-13, I32: 0, I64: 0, np.dtype(bool): 0}


def embedded(array, step=1):
    """A view into a larger array, as a region of a buffer is; with a step, no axis of it is contiguous."""
    array = np.asarray(array)
    frame = np.full([n * step + 3 for n in array.shape], 1, array.dtype)
    inner = frame[(*(slice(2, 2 + n * step, step) for n in array.shape), ...)]
    inner[...] = array
    return inner


def blocks(arrays, lowers=None):
    lowers = lowers or [(0,) * array.ndim for array in arrays]
    return [Block(tuple(low), tuple(np.add(low, a.shape).tolist())) for low, a in zip(lowers, arrays, strict=True)]


def views(arrays):
    return [as_layout(device(array)) for array in arrays]


def agree(computed, expected, tolerance):
    for computed_array, expected_array in zip(computed, expected, strict=True):
        a, b = (
            computed_array.astype("f8") if computed_array.dtype == BF16 else computed_array,
            expected_array.astype("f8") if expected_array.dtype == BF16 else expected_array,
        )
        if a.dtype.kind != "f":
            assert np.array_equal(a, b)
            continue
        finite = np.isfinite(b)
        assert np.array_equal(a[~finite], b[~finite], equal_nan=True)
        scale = np.abs(b[finite]).max(initial=1e-30)
        assert np.abs(a[finite].astype("f8") - b[finite]).max(initial=0) <= tolerance * scale


def check(name, attributes, inputs, outputs, lowers=None, out_lowers=None, tolerance=None, steps=(1, 2)):
    """The kernel on regions of buffers, and on regions of which no axis is contiguous. Inputs that are one array are
    one region."""
    ins, outs = blocks(inputs, lowers), blocks(outputs, out_lowers)
    expected = [np.empty_like(output) for output in outputs]
    kernel = registry.prepare(Invocation(name, attributes, inputs, expected, ins, outs))
    with np.errstate(all="ignore"):
        kernel.bind(np.empty(kernel.scratch, np.uint8))()
    tolerance = TOLERANCE[expected[0].dtype] if tolerance is None else tolerance
    plans = []
    for step in steps:
        regions = {id(array): embedded(array, step) for array in inputs}
        sources = [regions[id(array)] for array in inputs]
        targets = [embedded(np.full_like(output, 7), step) for output in outputs]
        plan = builders.build_kernel(Invocation(name, attributes, views(sources), views(targets), ins, outs))
        status = np.zeros(1, np.int32)
        run(plan.steps, plan.scratch, status)
        assert status[0] == 0
        agree(targets, expected, tolerance)
        for array in targets:  # nothing beside the region is touched
            assert (np.delete(np.ravel(array.base), _inside(array)) == 1).all()
        plans.append(plan)
    return plans


def _inside(array):
    marks = np.arange(array.base.size).reshape(array.base.shape)
    offset = (array.ctypes.data - array.base.ctypes.data) // array.itemsize
    strides = [s // array.itemsize for s in array.strides]
    places = offset + sum((np.arange(n) * s).reshape((-1,) + (1,) * (array.ndim - 1 - k))
                          for k, (n, s) in enumerate(zip(array.shape, strides, strict=True)))  # fmt: skip
    return marks.ravel()[np.ravel(places)]


def normal(*shape, dtype=F32, seed=0, scale=1.5):
    return np.asarray(np.random.default_rng(seed).normal(0.3, scale, shape)).astype(dtype)
