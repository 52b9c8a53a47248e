"""Blocks of GGUF files, read by the package that defines them, are the weights that einc's integers and scales are."""

import ml_dtypes
import numpy as np
import pytest

gguf = pytest.importorskip("gguf")

from tests.bench import gguf_llama  # noqa: E402

ROWS, GROUPS = 5, 3


def draw_scales(rng):
    return (rng.standard_normal((ROWS, GROUPS)) + 3).astype(ml_dtypes.bfloat16)  # exact in f16


def test_integers_of_8_bits_stay_what_they_are():
    rng = np.random.default_rng(1)
    values, scales = rng.integers(-128, 128, (ROWS, 32 * GROUPS), np.int8), draw_scales(rng)
    found = gguf.quants.dequantize(gguf_llama.pack_8(values, scales), gguf.GGMLQuantizationType.Q8_0)
    assert np.array_equal(found, values * scales.astype(np.float32).repeat(32, axis=1))


def test_integers_of_4_bits_take_their_places():
    rng = np.random.default_rng(2)
    integers, scales = rng.integers(-8, 8, (ROWS, 32 * GROUPS), np.int8), draw_scales(rng)
    pairs = ((integers[:, 1::2] + 8) << 4 | (integers[:, ::2] + 8)).astype(np.uint8)  # the first is in the low half
    found = gguf.quants.dequantize(gguf_llama.pack_4(pairs, scales), gguf.GGMLQuantizationType.Q4_0)
    assert np.array_equal(found, integers * scales.astype(np.float32).repeat(32, axis=1))


def test_rows_of_queries_change_places_in_each_head():
    weight = np.arange(2 * 6 * 4, dtype=np.float32).reshape(2, 6, 4)
    found = gguf_llama.lay_out_rows("w_q", weight).reshape(2, 6, 4)
    assert np.array_equal(found, weight[:, [0, 3, 1, 4, 2, 5]])


def test_a_scale_of_a_row_is_that_of_all_its_groups():
    rng = np.random.default_rng(3)
    values, scales = rng.integers(-128, 128, (ROWS, 2, 32 * GROUPS), np.int8), draw_scales(rng)[:, 0]
    blocks = gguf_llama.pack_8(
        gguf_llama.lay_out_rows("w_o", values),
        gguf_llama.lay_out_rows("w_o", gguf_llama.repeat_scales(scales, values.shape)),
    )
    found = gguf.quants.dequantize(blocks, gguf.GGMLQuantizationType.Q8_0)
    assert np.array_equal(found, values.reshape(ROWS, -1) * scales.astype(np.float32)[:, None])
