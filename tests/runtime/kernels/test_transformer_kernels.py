"""Kernels of transformers: many pieces, strided views, invalid values of inputs, invalid invocations."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest

from einc_runtime.errors import KernelFault
from einc_runtime.plan.schema import Block
from tests.support import kernel_runs
from tests.support.kernel_runs import lookup

pytestmark = pytest.mark.usefixtures("provider")

BF16 = np.dtype(ml_dtypes.bfloat16)
TOLERANCE = {"float64": 1e-13, "float32": 1e-5, "float16": 1e-3, "bfloat16": 8e-3}


def whole(array, lower=0):
    """The block of an array whose second-last (or only) dimension starts at `lower`."""
    origin = [0] * array.ndim
    origin[max(0, array.ndim - 2)] = lower
    return Block(tuple(origin), tuple(o + n for o, n in zip(origin, array.shape, strict=True)))


def run(name, attributes, inputs, output, input_blocks=None, output_block=None):
    inputs = [np.asarray(x) for x in inputs]
    blocks = input_blocks or [whole(x) for x in inputs], [output_block or whole(output)]
    return kernel_runs.run(name, attributes, inputs, output, *blocks)


def close(found, expected):
    scale = np.abs(expected).max()
    assert np.abs(found.astype("f8") - expected).max() <= TOLERANCE[found.dtype.name] * scale


@pytest.mark.parametrize("dtype", [np.dtype("f8"), np.dtype("f4"), np.dtype("f2"), BF16], ids=str)
@pytest.mark.parametrize("shape", [(40000, 3), (3, 5, 1000), (2, 40000), (7,), (300, 4, 257)])
def test_norms_in_pieces_and_from_strided_views(dtype, shape):
    rng = np.random.default_rng(1)
    wide = rng.normal(1.0, 2.0, (*shape[:-1], shape[-1] + 3)).astype(dtype)
    x = wide[..., 2:-1]
    g, b = rng.normal(size=(2, shape[-1])).astype(dtype)
    exact = x.astype("f8")
    y = run("rmsnorm", {"eps": 1e-3}, [x, g], np.empty(shape, dtype))
    close(y, exact / np.sqrt((exact**2).mean(-1, keepdims=True) + 1e-3) * g.astype("f8"))
    small = g / 64  # as gains are that are stored less 1, which 16 bits would not hold with it
    y = run("rmsnorm", {"eps": 1e-3, "offset": 1.0}, [x, small], np.empty(shape, dtype))
    close(y, exact / np.sqrt((exact**2).mean(-1, keepdims=True) + 1e-3) * (1 + small.astype("f8")))
    y = run("rmsnorm", {"eps": 1e-3}, [x], np.empty(shape, dtype))
    close(y, exact / np.sqrt((exact**2).mean(-1, keepdims=True) + 1e-3))
    exact -= exact.mean(-1, keepdims=True)
    centred = exact / np.sqrt((exact**2).mean(-1, keepdims=True) + 1e-3)
    close(run("layernorm", {"eps": 1e-3}, [x, g, b], np.empty(shape, dtype)), centred * g.astype("f8") + b.astype("f8"))
    close(run("layernorm", {"eps": 1e-3}, [x, g], np.empty(shape, dtype)), centred * g.astype("f8"))
    close(run("layernorm", {"eps": 1e-3}, [x], np.empty(shape, dtype)), centred)


def test_layernorm_of_large_means_in_f32():
    x = np.random.default_rng(2).normal(1000.0, 1.0, (50, 333)).astype("f4")
    y = run("layernorm", {"eps": 1e-5}, [x, np.ones(333, "f4"), np.zeros(333, "f4")], np.empty_like(x))
    exact = x - x.astype("f8").mean(-1, keepdims=True)
    np.testing.assert_allclose(y, exact / np.sqrt((exact**2).mean(-1, keepdims=True) + 1e-5), atol=5e-4)


def test_half_squares_do_not_overflow():
    x = np.full((2, 8), 3e4, "f2")
    assert (run("rmsnorm", {"eps": 1e-5}, [x, np.ones(8, "f2")], np.empty_like(x)) == 1).all()


@pytest.mark.parametrize("dtype", [np.dtype("f8"), np.dtype("f4"), np.dtype("f2"), BF16], ids=str)
def test_rope_in_many_pieces(dtype):
    rng = np.random.default_rng(3)
    heads, tokens, d = 5, 3001, 32
    x = rng.normal(size=(tokens, heads, d)).astype(dtype).transpose(1, 0, 2)
    lens = [1000, 1, 2500, 600]
    lower = 700
    output = np.empty((heads, tokens, d), dtype)
    run("rope", {"theta": 1e4, "scaling": "none", "seq_lens": lens}, [x], output, output_block=whole(output, lower))
    places = np.concatenate([np.arange(n) for n in lens])[lower : lower + tokens]
    precision = np.float64 if dtype == "f8" else np.float32
    frequencies = 1 / precision(1e4 ** (np.arange(0, d, 2) / d))
    turned = np.exp(1j * (places[:, None] * frequencies).astype(precision).astype("f8"))
    z = (x[..., : d // 2].astype("f8") + 1j * x[..., d // 2 :].astype("f8")) * turned
    close(output, np.concatenate([z.real, z.imag], -1))


@pytest.mark.parametrize("dtype", ["f8", "f4"])
def test_rope_at_late_positions(dtype):
    """Angles, sines and cosines have the error of their type."""
    x = np.array([[1.0, 1.0, 0.0, 0.0]], dtype)
    y = run("rope", {"theta": 3.0, "scaling": "none"}, [x, np.array([131071], "i4")], np.empty_like(x))
    slow = 131071 / math.sqrt(3) if dtype == "f8" else float(np.float32(131071) * (1 / np.float32(math.sqrt(3))))
    expected = [math.cos(131071), math.cos(slow), math.sin(131071), math.sin(slow)]
    np.testing.assert_allclose(y[0], expected, atol=1e-6 if dtype == "f4" else 1e-10)


@pytest.mark.parametrize("dtype", ["f4", "f2", BF16, "i8"])
@pytest.mark.parametrize("ids_type", ["i4", "i8"])
def test_rows_of_many_ids_in_a_part_of_the_vocabulary(dtype, ids_type):
    rng = np.random.default_rng(4)
    table = rng.integers(-100, 100, (501, 40)).astype(dtype)
    ids = rng.integers(0, 501, (50, 90)).astype(ids_type)
    for lower, upper in ((0, 501), (0, 100), (77, 402), (500, 501)):
        for columns in (slice(0, 40), slice(3, 20)):
            part = table[lower:upper, columns]
            output = np.full((50, 90, part.shape[1]), 55).astype(dtype)
            blocks = [whole(ids), Block((lower, columns.start), (upper, columns.stop))]
            target = Block((0, 0, columns.start), (50, 90, columns.stop))
            run(*lookup(ids, 501, 40), [ids, part], output, blocks, target)
            inside = (ids >= lower) & (ids < upper)
            expected = np.where(inside[..., None], table[ids][..., columns], np.zeros((), dtype))
            assert (output == expected).all()


@pytest.mark.parametrize("wrong", [-1, 7, 2**31 - 1, -(2**31)])
def test_ids_outside_of_the_vocabulary(wrong):
    table, ids = np.ones((7, 3), "f4"), np.array([0, 6, wrong, 3], "i4")
    with pytest.raises(KernelFault, match=f"a position is {wrong}; positions along this dimension are 0 to 6"):
        run(*lookup(ids, 7, 3), [ids, table], np.empty((4, 3), "f4"))
    part = table[2:5]
    with pytest.raises(KernelFault, match=f"a position is {wrong};"):
        run(*lookup(ids, 7, 3), [ids, part], np.empty((4, 3), "f4"), [whole(ids), Block((2, 0), (5, 3))])


@pytest.mark.parametrize(("at", "wrong", "rows"), [(0, -1, 3), (0, 4, 3), (1, 5, 4), (2, 2**62, 4)])
def test_positions_outside_of_their_sequence(at, wrong, rows):
    positions = np.array([0, 0, 1])
    positions[at] = wrong
    arrays = [np.zeros((2, 9, 4), "f4"), np.ones((2, 3, 4), "f4"), positions]
    with pytest.raises(KernelFault, match=f"a position is {wrong}; .* are 0 to {rows}"):
        run("append", {"cache_lens": [4, 5], "new_lens": [1, 2]}, arrays, np.empty((2, 9, 4), "f4"))


def test_negative_positions_of_rope():
    x = np.ones((2, 4), "f4")
    with pytest.raises(KernelFault, match="a position is -3"):
        run("rope", {"theta": 1e4, "scaling": "none"}, [x, np.array([1, -3])], np.empty_like(x))


def test_the_later_of_equal_positions_counts():
    new = np.arange(400.0).reshape(1, 400, 1)
    positions = np.random.default_rng(5).integers(0, 50, 400)
    expected = np.full(60, -1.0)
    for token, position in enumerate(positions):
        expected[position] = token
    arrays = [np.full((1, 60, 1), -1.0), new, positions]
    attributes = {"cache_lens": [60], "new_lens": [400]}
    assert (run("append", attributes, arrays, np.empty((1, 60, 1))).ravel() == expected).all()
