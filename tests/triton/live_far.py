"""Kernels on views beyond 32-bit offsets: one axis spans more than 2^31 elements.

Memory is a mapping whose pages exist only once they are touched. Offsets of 32 bits would wrap around in Triton's
interpreter as they do on a GPU.
"""

from __future__ import annotations

import math
import mmap

import numpy as np
import pytest

from einc_runtime.kernels import registry
from einc_runtime.kernels.base import Invocation, JointInvocation
from einc_runtime.kernels.triton import builders
from tests.support.kernel_runs import concatenation, lookup
from tests.support.triton_against_cpu import F16, F32, I64, agree, blocks, normal, views
from tests.support.triton_interpreter import run

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

NO_RESERVE = 0x4000
"""MAP_NORESERVE of Linux: no memory is set aside for pages that are not touched."""

STEPS = {"more than 31 bits": (1 << 31) + 16, "more than 32 bits": (1 << 32) + 16}


def far(array, axis, step):
    """A copy whose elements along one axis are `step` elements apart, and which is dense otherwise."""
    shape = [n for k, n in enumerate(array.shape) if k != axis]
    inner = np.cumprod([1, *reversed(shape)])[::-1][1:].tolist()
    strides = [*inner[:axis], step, *inner[axis:]]
    size = (sum(s * (n - 1) for s, n in zip(strides, array.shape, strict=True)) + 1) * array.itemsize
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NO_RESERVE
    raw = np.frombuffer(mmap.mmap(-1, size, flags=flags), array.dtype)
    view = np.lib.stride_tricks.as_strided(raw, array.shape, [s * array.itemsize for s in strides])
    view[...] = array
    return view


SEEN = {"causal": True, "scale": 0.3, "q_lens": [4, 3], "k_lens": [4, 3], "window": 0, "extras": []}

CASES = {
    "map": ("map", {"program": "t0 = mul x0 x1", "indices": "i j k, i j k -> i j k"}, [(3, 4, 5)] * 2, [(3, 4, 5)]),
    "map that transposes": ("map", {"program": "t0 = neg x0", "indices": "i j -> j i"}, [(3, 40)], [(40, 3)]),
    "reduce": ("reduce", {"program": "t0 = copy x0", "indices": "i j k -> j", "aggregation": "sum"}, [(3, 4, 5)],
               [(4,)]),
    "reduce to rows": ("reduce", {"program": "t0 = copy x0", "indices": "i j -> i", "aggregation": "max"}, [(4, 7)],
                       [(4,)]),
    "softmax": ("softmax", {"axis": 1}, [(3, 6, 2)], [(3, 6, 2)]),
    "rmsnorm": ("rmsnorm", {"eps": 1e-5}, [(3, 9), (9,)], [(3, 9)]),
    "layernorm": ("layernorm", {"eps": 1e-5}, [(3, 2, 9), (9,), (9,)], [(3, 2, 9)]),
    "reshape": ("reshape", {}, [(3, 4, 6)], [(3, 24)]),
    "concat": (*concatenation(1, (3, 2), (3, 3)), [(3, 2), (3, 3)], [(3, 5)]),
    "attention": ("attention", SEEN, [(4, 7, 3), (2, 7, 3), (2, 7, 3)], [(4, 7, 3), (4, 7)]),
    "topk": ("topk", {"axis": 1}, [(3, 6)], [(3, 2), (3, 2)]),
}  # fmt: skip


def compare(name, attributes, inputs, outputs, step, axes):
    """With the axis of every array in turn far apart, if it has more than one position there."""
    ins, outs = blocks(inputs), blocks(outputs)
    expected = [np.empty_like(output) for output in outputs]
    kernel = registry.prepare(Invocation(name, attributes, inputs, expected, ins, outs))
    kernel.bind(np.empty(kernel.scratch, np.uint8))()
    arrays = [*inputs, *outputs]
    for axis in axes:
        moved = [far(x, axis, step) if x.ndim > axis and x.shape[axis] > 1 else x.copy() for x in arrays]
        sources, found = moved[: len(inputs)], moved[len(inputs) :]
        for array in found:
            array[...] = 7
        plan = builders.build_kernel(Invocation(name, attributes, views(sources), views(found), ins, outs))
        status = np.zeros(1, np.int32)
        run(plan.steps, plan.scratch, status)
        assert status[0] == 0
        agree(found, expected, 2e-3 if expected[0].dtype == F16 else 2e-6)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("step", STEPS.values(), ids=STEPS)
@pytest.mark.parametrize("case", CASES)
def test_kernels_on_views_beyond_32_bit_offsets(case, step):
    name, attributes, shapes, results = CASES[case]
    inputs = [normal(*shape, dtype=F16, seed=n) for n, shape in enumerate(shapes)]
    kinds = {"topk": [F16, I64], "attention": [F16, F32]}.get(name, [F16])
    outputs = [np.empty(shape, kind) for shape, kind in zip(results, kinds, strict=True)]
    compare(name, attributes, inputs, outputs, step, range(max(len(shape) for shape in shapes)))


@pytest.mark.parametrize("step", STEPS.values(), ids=STEPS)
def test_rows_by_number_far_apart(step):
    rng = np.random.default_rng(1)
    ids, table = rng.integers(0, 5, 7), normal(5, 6, dtype=F16)
    compare(*lookup(ids, 5, 6), [ids, table], [np.empty((7, 6), F16)], step, (0, 1))
    weight = normal(3, 5, 6, dtype=F16, seed=3)
    for tokens in (7, 40):  # few, and sorted
        x, picks = normal(tokens, 2, 6, dtype=F16), rng.integers(0, 3, (tokens, 2))
        out = [np.empty((tokens, 2, 5), F16)]
        compare("expert_matmul", {"experts": 3}, [x, weight, picks], out, step, (0, 1, 2))
    cache, new = normal(3, 9, 4, dtype=F16), normal(3, 3, 4, dtype=F16, seed=2)
    attributes = {"cache_lens": [5, 4], "new_lens": [1, 2]}
    compare("append", attributes, [cache, new, np.array([2, 0, 3])], [np.empty_like(cache)], step, (0, 1, 2))


@pytest.mark.parametrize("step", STEPS.values(), ids=STEPS)
def test_rope_far_apart(step):
    x = normal(2, 7, 6, dtype=F16)
    compare("rope", {"theta": 1e4, "scaling": "none"}, [x, np.arange(7)], [np.empty_like(x)], step, (0, 1, 2))


@pytest.mark.parametrize("step", STEPS.values(), ids=STEPS)
def test_joint_aggregation_of_copies_beyond_32_bit_offsets(step):
    copies = [(normal(3, 4, 5, dtype=F16, seed=n), normal(3, 4, seed=n + 9)) for n in range(3)]
    dims = ((0, 1, 2), (0, 1))
    expected = [np.empty((3, 4, 5), F16), np.empty((3, 4), F32)]
    flat = [x for copy in copies for x in copy]
    kernel = registry.prepare_joint_aggregation(JointInvocation("logsumexp", flat, expected, dims))
    kernel.bind(np.empty(kernel.scratch, np.uint8))()
    for axis in range(3):
        moved = [far(x, axis, step) if x.ndim > axis else x for x in (*flat, *map(np.zeros_like, expected))]
        plan = builders.build_joint_aggregation(
            JointInvocation("logsumexp", views(moved[:-2]), views(moved[-2:]), dims)
        )
        run(plan.steps, plan.scratch)
        agree(moved[-2:], expected, 2e-3)


def test_the_mapping_reaches_so_far():
    array = far(np.arange(6.0).reshape(2, 3), 0, 1 << 32)
    assert array.strides == (8 << 32, 8)
    assert math.isclose(array[1, 2], 5)
