"""Two contractions as one batch of products, on raw memory, and when they stay two kernels."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from einc_runtime.dtypes import find_dtype_name
from einc_runtime.kernels.base import Invocation
from einc_runtime.kernels.gpu import GpuArray
from einc_runtime.kernels.triton.batched_pair import batch_products, build_batched_pair, idle_factor
from einc_runtime.plan.schema import Block
from tests.support.emulated_gemm import multiply

ROWS = "t k, f k -> t f"
HEADS = "t k, h d k -> h t d"


def region(memory, offset, shape, dtype):
    """An array at a place in elements of `memory`."""
    count = int(np.prod(shape))
    return memory[offset : offset + count].view(dtype).reshape(shape)


def gpu(array):
    return GpuArray(array.ctypes.data, array.shape, array.strides, find_dtype_name(array.dtype), 0)


def invoked(equation, inputs, output, **more):
    blocks = [Block((0,) * x.ndim, x.shape) for x in inputs]
    own = Block((0,) * output.ndim, output.shape)
    return Invocation("contract", {"equation": equation, **more}, [*map(gpu, inputs)], [gpu(output)], blocks, [own])


def aligned(count, dtype, fill=True):
    raw = np.zeros(count * np.dtype(dtype).itemsize + 256, np.uint8)
    start = -raw.ctypes.data % 256
    memory = raw[start : start + count * np.dtype(dtype).itemsize].view(dtype)
    if fill:
        memory[:] = np.random.default_rng(4).integers(-4, 5, count)
    return memory


def pair(equation, shapes, result, places, *, dtype="f4"):
    """Two invocations with weights and results at these elements of two memories, and their expected results."""
    weights, results = aligned(4096, dtype), aligned(4096, dtype, fill=False)
    x = aligned(int(np.prod(shapes[0])), dtype).reshape(shapes[0])
    made = []
    for weight_at, result_at in places:
        w, y = region(weights, weight_at, shapes[1], dtype), region(results, result_at, result, dtype)
        made.append((invoked(equation, [x, w], y), w, y))
    return x, made, results


def expected(equation, x, w):
    letters = equation.replace(" ", "")
    return np.einsum(letters, x.astype("f8"), w.astype("f8"))


@pytest.mark.parametrize("dtype", ["f2", "f4"])
@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
@pytest.mark.parametrize(
    ("equation", "shapes", "result", "places"),
    [
        (ROWS, [(6, 8), (16, 8)], (6, 16), [(0, 8), (512, 1024)]),  # anywhere, in this order
        (HEADS, [(6, 8), (3, 16, 8)], (3, 6, 16), [(0, 64), (3 * 16 * 8, 64 + 3 * 6 * 16)]),  # one behind the other
    ],
)
def test_two_products_become_one_batch(equation, shapes, result, places, order, dtype):
    x, made, results = pair(equation, shapes, result, [places[n] for n in order], dtype=dtype)
    plan = build_batched_pair(made[0][0], made[1][0], 132)
    (product,) = plan.steps
    assert product.batch == (2 if equation == ROWS else 6)
    assert product.stride_c > 0
    multiply(product)
    for _, w, y in made:
        np.testing.assert_array_equal(y.astype("f8"), expected(equation, x, w))
        y[...] = 0
    assert not results.any()  # nothing else was written


def test_products_at_unequal_distances_stay_apart():
    rows = [(6, 8), (16, 8)], (6, 16)
    heads = [(6, 8), (3, 16, 8)], (3, 6, 16)
    for equation, (shapes, result), places in (
        (ROWS, rows, [(0, 1024), (512, 8)]),  # weights ascend, results descend
        (ROWS, rows, [(0, 8), (513, 1024)]),  # not as far apart as is aligned
        (HEADS, heads, [(0, 64), (400, 64 + 288)]),
        (HEADS, heads, [(0, 64), (384, 64 + 304)]),
    ):
        _, made, _ = pair(equation, shapes, result, places)
        assert build_batched_pair(made[0][0], made[1][0], 132) is None


def test_batched_products_have_one_form_and_share_an_operand():
    x, made, _ = pair(ROWS, [(6, 8), (16, 8)], (6, 16), [(0, 8), (512, 1024)])
    one, other = (build_batched_pair(own, own, 132) for own, _, _ in made)
    assert one is other is None  # both write the same
    apart = x.copy()
    second = invoked(ROWS, [apart, made[1][1]], made[1][2])
    assert build_batched_pair(made[0][0], second, 132) is None
    scaled = invoked(ROWS, [x, made[1][1]], made[1][2], scale=0.5)
    assert build_batched_pair(made[0][0], scaled, 132) is None
    narrow = invoked(ROWS, [x, made[1][1][:8]], made[1][2].reshape(-1)[:48].reshape(6, 8))
    assert build_batched_pair(made[0][0], narrow, 132) is None
    crossed = invoked("t k, f k -> f t", [x, made[1][1]], made[1][2].reshape(-1)[:96].reshape(16, 6))
    assert build_batched_pair(made[0][0], crossed, 132) is None


def test_products_are_batched_where_fewer_multiprocessors_are_idle():
    _, made, _ = pair(ROWS, [(6, 8), (16, 8)], (6, 16), [(0, 8), (512, 1024)])
    (small,) = build_batched_pair(made[0][0], made[1][0], 132).steps
    one = replace(small, batch=1, stride_a=0, stride_b=0, stride_c=0)
    other = replace(one, a=one.a + 2048, c=one.c + 4064)
    assert batch_products(one, other) == small
    for m, n, gains in ((14336, 1024, True), (14336, 8192, False), (1024, 1024, True), (4096, 8448, False)):
        wide = replace(one, m=m, n=n)
        assert (idle_factor(wide, 132) > 1.02 * idle_factor(replace(wide, batch=2), 132)) == gains
    assert idle_factor(replace(one, m=128, n=256), 132) == 132
    assert idle_factor(replace(one, m=128 * 132, n=256), 132) == 1
