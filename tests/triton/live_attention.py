"""Attention in Triton, through the interpreter, against the CPU's kernel: masks, windows, groups, blocks, all types."""

from __future__ import annotations

import numpy as np
import pytest

from einc.core.intervals import enumerate_requests
from tests.support import attention_oracle
from tests.support.block_slices import slices
from tests.support.triton_against_cpu import F16, F32, F64, FLOATS, TOLERANCE, check, normal

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


def attention(q_lens, k_lens=None, **changes):
    base = {"causal": False, "scale": 0.5, "q_lens": list(q_lens), "k_lens": list(k_lens or q_lens), "window": 0}
    return {**base, "extras": [], **changes}


def in_blocks(q_lens, sequences, k_len, **changes):
    return attention(q_lens, (k_len,) * sequences, causal=True, extras=["positions", "blocks"], **changes)


BLOCKS, BLOCKS_OF_EACH = 9, 3
"""Of keys that lie in blocks."""

CASES = {
    "full": (attention((7, 4)), 6, 3),
    "causal": (attention((70, 4), causal=True), 4, 4),
    "more_keys": (attention((4, 3), (90, 3), causal=True), 6, 2),
    "fewer_keys": (attention((6, 3), (2, 3), causal=True), 3, 1),
    "window": (attention((7, 4), window=3), 4, 2),
    "causal_window": (attention((9,), (80,), causal=True, window=70), 4, 2),
    "mask": (attention((7, 4), extras=["mask"]), 4, 2),
    "softcap": (attention((70, 4), causal=True, softcap=0.75), 4, 2),
    "softcap of a mask": (attention((7, 4), extras=["mask"], softcap=0.75, scale=-0.5), 4, 2),
    "positions": (attention((5, 4), (8, 7), causal=True, extras=["positions"]), 4, 2),
    "blocks": (in_blocks((1, 1, 1, 1), 4, 60), 4, 2),
    "blocks of a window": (in_blocks((5, 4), 2, 21, window=9), 4, 2),
    "both": (attention((5, 4), (8, 7), causal=True, window=3, extras=["positions", "mask"]), 4, 2),
}


def operands(a, heads_q, heads_kv, dtype, d=24, dv=20):
    tokens = [sum(a["q_lens"]), sum(a["k_lens"])]
    if "blocks" in a["extras"]:
        tokens[1] = a["k_lens"][0] // BLOCKS_OF_EACH * BLOCKS
    shapes = ((heads_q, tokens[0], d), (heads_kv, tokens[1], d), (heads_kv, tokens[1], dv))
    extras = {"mask": np.random.default_rng(8).random(tokens[1]) < 0.5,
              "positions": np.random.default_rng(9).integers(-2, 10, tokens[0]),
              "blocks": np.random.default_rng(7).integers(-1, 11, (len(a["k_lens"]), BLOCKS_OF_EACH))}  # fmt: skip
    arrays = [normal(*shape, dtype=dtype, seed=n, scale=0.7) for n, shape in enumerate(shapes)]
    return [*arrays, *(extras[name] for name in a["extras"])]


def results(q, v):
    wide = F64 if q.dtype == F64 else F32
    return [np.empty((*q.shape[:2], v.shape[2]), q.dtype), np.empty(q.shape[:2], wide)]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("name", CASES)
def test_attention(name, dtype):
    a, heads_q, heads_kv = CASES[name]
    arrays = operands(a, heads_q, heads_kv, dtype)
    check("attention", a, arrays, results(arrays[0], arrays[2]), tolerance=max(3e-6, 2 * TOLERANCE[dtype]), steps=(1,))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", CASES)
def test_attention_of_blocks(name):
    """Random blocks of heads, queries and keys, which may begin and end inside of sequences."""
    a, heads_q, heads_kv = CASES[name]
    q, k, v, *extras = operands(a, heads_q, heads_kv, F32)
    keys_end = k.shape[1] if "blocks" in a["extras"] else -1  # all blocks are read
    group, last = heads_q // heads_kv, heads_kv - 1
    first_q, first_k = 2, 1 if keys_end < 0 else 0
    named = dict(zip(a["extras"], extras, strict=True))
    part = [q[last * group :, first_q:-1], k[last:, first_k:keys_end], v[last:, first_k:keys_end]]
    low = [(last * group, first_q, 0), (last, first_k, 0), (last, first_k, 0)]
    for extra in a["extras"]:
        if extra == "blocks":
            part.append(named[extra])
            low.append((0, 0))
            continue
        start = first_k if extra == "mask" else first_q
        part.append(named[extra][start:-1])
        low.append((start,))
    check("attention", a, part, results(part[0], part[2]), low, [low[0], low[0][:2]], tolerance=3e-6)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", ["causal", "more_keys", "fewer_keys", "causal_window", "softcap", "positions"])
def test_attention_cut_along_queries_and_keys(name):
    """The blocks that cuts of queries make: queries that end early in a sequence, with the keys that they see."""
    a, *heads = CASES[name]
    arrays = operands(a, *heads, F32)
    operator = attention_oracle.attention(tuple(heads), width=(24, 20), **a)
    assert operator.attributes.items() >= {key: tuple(a[key]) for key in ("q_lens", "k_lens", "extras")}.items()
    for counts in ((1, 1, 3, 1), (1, 1, 2, 2)):
        for intervals in enumerate_requests(operator.indices, counts):
            for function in operator.build_spec(intervals).functions:
                parts = [array[slices(block)] for array, block in zip(arrays, function.inputs, strict=True)]
                lower = [[block.lower for block in blocks] for blocks in (function.inputs, function.outputs)]
                check("attention", a, parts, results(parts[0], parts[2]), *lower, tolerance=3e-6, steps=(1,))


@pytest.mark.parametrize("dtype", [F32, F16], ids=str)
def test_attention_shares_keys_out_where_queries_are_few(dtype):
    a = attention((1, 2), (1500, 1100), causal=True)
    arrays = operands(a, 4, 2, dtype)
    plans = check(
        "attention", a, arrays, results(arrays[0], arrays[2]), tolerance=max(3e-6, 2 * TOLERANCE[dtype]), steps=(1,)
    )
    assert len(plans[0].steps) == 3


@pytest.mark.parametrize("width", [24, 520])
@pytest.mark.parametrize("name", CASES)
def test_rows_that_are_keys_and_values_are_loaded_once(name, width):
    a, heads_q, heads_kv = CASES[name]
    a = {**a, "scale": a["scale"] * 8 / width}
    q, k, _, *extras = operands(a, heads_q, heads_kv, F32, width, width)
    (plan,) = check("attention", a, [q, k, k, *extras], results(q, k), tolerance=3e-6, steps=(2,))
    assert ("tl.trans(keys" in plan.steps[0].source.text) == ("mask" not in a["extras"])


def test_attention_of_a_group_larger_than_a_tile():
    a = attention((3,), (5,))
    arrays = operands(a, 70, 1, F32)
    check("attention", a, arrays, results(arrays[0], arrays[2]), tolerance=3e-6, steps=(1,))


def test_values_behind_a_mask_may_be_anything():
    a = attention((6,), extras=["mask"])
    arrays = operands(a, 2, 1, F32)
    arrays[3][:] = [1, 0, 1, 0, 0, 1]
    arrays[1][:, ~arrays[3]] = arrays[2][:, ~arrays[3]] = np.nan
    check("attention", a, arrays, results(arrays[0], arrays[2]), tolerance=3e-6)
