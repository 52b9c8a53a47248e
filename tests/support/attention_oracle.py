"""Attention once more, in f64 and for any blocks: one matrix of who sees whom over all packed tokens."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from einc.core.spec import FunctionSpec
from einc.core.tensor import DType, TensorDesc
from einc.ops import registry
from einc.ops.base import Attribute, Operator
from tests.support.block_slices import slices
from tests.support.definition_oracle import CONCRETE, Array


def attention(
    heads: tuple[int, int],
    q_lens: Sequence[int],
    k_lens: Sequence[int] | None = None,
    *,
    width: tuple[int, int] = (5, 3),
    dtype: DType = DType.F32,
    extras: Sequence[str] = (),
    blocks: tuple[int, int] = (0, 0),
    **attributes: Attribute,
) -> Operator:
    """`heads` are those of queries and of keys, `width` those of keys and of values, `blocks` those that there are, and
    those of a sequence."""
    key_lengths = k_lens or q_lens
    tokens_q, tokens_k = sum(q_lens), sum(key_lengths)
    if "blocks" in extras:
        tokens_k = blocks[0] * (key_lengths[0] // blocks[1])
    q = TensorDesc(("heads_q", "tokens", "d_head"), (heads[0], tokens_q, width[0]), dtype)
    k = TensorDesc(("heads_kv", "cache", "d_head"), (heads[1], tokens_k, width[0]), dtype)
    v = TensorDesc(("heads_kv", "cache", "d_value"), (heads[1], tokens_k, width[1]), dtype)
    known = {
        "mask": TensorDesc(("cache",), (tokens_k,), DType.BOOL),
        "positions": TensorDesc(("tokens",), (tokens_q,), DType.I64),
        "blocks": TensorDesc(("sequences", "each"), (len(key_lengths), blocks[1]), DType.I64),
        "spans": TensorDesc(("tokens", "ends"), (tokens_q, 2), DType.I64),
    }
    keywords = {
        **attributes,
        "q_lens": tuple(q_lens),
        "k_lens": tuple(key_lengths),
        **{name: known[name] for name in extras},
    }
    return registry.call("attention", (q, k, v), keywords)


def seen(
    operator: Operator,
    mask: Array | None = None,
    positions: Array | None = None,
    spans: Array | None = None,
    **_: Array,
) -> Array:
    """Which query (row) sees which key (column), of all packed tokens."""
    a = operator.attributes
    q_lens, k_lens = np.array(a["q_lens"]), np.array(a["k_lens"])
    number_q, number_k = (np.repeat(np.arange(len(lens)), lens) for lens in (q_lens, k_lens))
    place_q, place_k = (np.concatenate([np.arange(n) for n in lens]) for lens in (q_lens, k_lens))
    place_q = (place_q + (k_lens - q_lens)[number_q]) if positions is None else positions
    result = number_q[:, None] == number_k
    if a["causal"]:
        result &= place_k <= place_q[:, None]
    if a["window"]:
        result &= place_k > place_q[:, None] - a["window"]
    if spans is not None:
        result &= (place_k >= spans[:, :1]) & (place_k < spans[:, 1:])
    return result if mask is None else result & mask


def unpack(operator: Operator, k: Array, v: Array, blocks: Array | None) -> list[Array]:
    """Keys and values of all sequences, one after another."""
    if blocks is None:
        return [k, v]
    size = operator.attributes["k_lens"][0] // blocks.shape[1]
    last = k.shape[1] // size - 1
    places = [min(max(int(n), 0), last) * size + i for row in blocks for n in row for i in range(size)]
    return [k[:, places], v[:, places]]


def attend(q: Array, k: Array, v: Array, allowed: Array, scale: float, cap: float) -> tuple[Array, Array]:
    """In f64, over repeated key heads; rows of `allowed` without any key give 0 and -inf."""
    group = len(q) // len(k)
    k, v = (np.repeat(x.astype(np.float64), group, axis=0) for x in (k, v))
    scores = np.einsum("htd,hsd->hts", q.astype(np.float64), k, optimize=True) * scale
    if cap:
        scores = np.tanh(scores / cap) * cap
    scores = np.where(allowed, scores, -np.inf)
    with np.errstate(all="ignore"):
        lse = np.logaddexp.reduce(scores, axis=2)
        weights = np.where(allowed, np.exp(scores - lse[..., None]), 0)
    return np.einsum("hts,hsv->htv", weights, np.where(allowed.any(0)[:, None], v, 0), optimize=True), lse


def whole(operator: Operator, arrays: Sequence[Array]) -> tuple[Array, Array]:
    """The operator on whole arrays, in f64."""
    extras = dict(zip(operator.attributes["extras"], arrays[3:], strict=True))
    allowed = seen(operator, **extras)
    keys = unpack(operator, *arrays[1:3], extras.get("blocks"))
    return attend(arrays[0], *keys, allowed, operator.attributes["scale"], operator.attributes.get("softcap", 0.0))


def on_blocks(operator: Operator, function: FunctionSpec, blocks: Sequence[Array]) -> Sequence[Array]:
    """The concrete operator: it refuses blocks that do not belong together."""
    q, k, v = function.inputs[:3]
    rows, columns = (slice(block.lower[1], block.upper[1]) for block in (q, k))
    extras = {}
    for name, block, array in zip(operator.attributes["extras"], function.inputs[3:], blocks[3:], strict=True):
        if name == "blocks":
            first, last = np.searchsorted(
                np.cumsum(operator.attributes["q_lens"]), [rows.start, rows.stop - 1], "right"
            )
            assert (block.lower[0], block.upper[0]) == (first, last + 1)
            assert columns == slice(0, operator.inputs[1].shape[1])
            length = operator.attributes["k_lens"][0]
            columns = slice(first * length, (last + 1) * length)
            extras[name] = array
            continue
        of_queries = name in ("positions", "spans")
        token_slice = rows if of_queries else columns
        assert (block.lower[0], block.upper[0]) == (token_slice.start, token_slice.stop)
        full = np.zeros((operator.inputs[0 if of_queries else 1].shape[1], *array.shape[1:]), array.dtype)
        full[token_slice] = array
        extras[name] = full
    group = operator.inputs[0].shape[0] // operator.inputs[1].shape[0]
    assert (k.lower[0] * group, k.upper[0] * group) == (q.lower[0], q.upper[0])
    assert slices(k)[:2] == slices(v)[:2]
    assert q.shape[2] == k.shape[2] == operator.inputs[0].shape[2]
    assert [slices(block)[:2] for block in function.outputs] == [slices(q)[:2]] * 2
    assert slices(function.outputs[0])[2] == slices(v)[2]
    allowed = seen(operator, **extras)[rows, columns]
    keys = unpack(operator, *blocks[1:3], extras.get("blocks"))
    results = attend(blocks[0], *keys, allowed, operator.attributes["scale"], operator.attributes.get("softcap", 0.0))
    return [array.astype(desc.dtype.numpy()) for array, desc in zip(results, operator.outputs, strict=True)]


CONCRETE["attention"] = on_blocks


HEADS = ((12, 4), (6, 3), (5, 5), (8, 1))
ALIKE = (4, 1, 6)
IN_BLOCKS = ("positions", "blocks")
MORE_KEYS, FEWER_KEYS = (9, 3, 6), (2, 1, 6)


def variants(heads: tuple[int, int], dtype: DType = DType.F32) -> dict[str, Operator]:
    """One operator per way in which queries may be kept from keys."""
    common = {"heads": heads, "dtype": dtype}
    return {
        "full": attention(q_lens=ALIKE, **common),
        "one": attention(q_lens=(11,), **common),
        "causal": attention(q_lens=ALIKE, causal=True, **common),
        "one_causal": attention(q_lens=(11,), causal=True, scale=0.9, **common),
        "more_keys": attention(q_lens=ALIKE, k_lens=MORE_KEYS, causal=True, **common),
        "fewer_keys": attention(q_lens=ALIKE, k_lens=FEWER_KEYS, causal=True, **common),
        "decode": attention(q_lens=(1, 1), k_lens=(7, 5), causal=True, extras=("positions",), **common),
        "window": attention(q_lens=ALIKE, window=2, **common),
        "causal_window": attention(q_lens=(9,), k_lens=(12,), causal=True, window=3, **common),
        "softcap": attention(q_lens=(9,), k_lens=(12,), causal=True, softcap=0.5, **common),
        "mask": attention(q_lens=ALIKE, k_lens=MORE_KEYS, extras=("mask",), **common),
        "cache": attention(q_lens=ALIKE, k_lens=MORE_KEYS, extras=("positions", "mask"), causal=True, **common),
        "spans": attention(q_lens=ALIKE, k_lens=MORE_KEYS, extras=("spans",), **common),
        "packed": attention(q_lens=(11,), causal=True, softcap=0.5, extras=("spans",), **common),
        "placed_spans": attention(q_lens=(5, 3), k_lens=(9, 4), extras=("spans", "positions"), window=6, **common),
        "placed_window": attention(q_lens=(5, 3), k_lens=MORE_KEYS[:2], extras=("positions",), window=4, **common),
        "blocks": attention(q_lens=(1, 1, 1), k_lens=(15,) * 3, extras=IN_BLOCKS, blocks=(7, 5), causal=True, **common),
        "blocks_window": attention(
            q_lens=(4, 2), k_lens=(12, 12), extras=IN_BLOCKS, blocks=(5, 3), causal=True, window=6, **common
        ),
    }


def data(operator: Operator, seed: int) -> list[Array]:
    """Positions are places in the queries' own sequences, the last ones of a cache unused."""
    rng = np.random.default_rng(seed)
    arrays = []
    for desc in operator.inputs:
        if desc.dtype is DType.BOOL:
            arrays.append(rng.random(desc.shape) < 0.6)
        elif desc.dtype.is_integer and desc.rank == 2:  # blocks may be shared, and numbers be those of none
            arrays.append(rng.integers(-1, 9, desc.shape).astype(desc.dtype.numpy()))
        elif desc.dtype.is_integer:
            a = operator.attributes
            parts = [rng.integers(0, max(1, k - 1), q) for q, k in zip(a["q_lens"], a["k_lens"], strict=True)]
            arrays.append(np.concatenate(parts).astype(desc.dtype.numpy()))
        else:
            arrays.append(rng.normal(0.2, 1.3, desc.shape).astype(desc.dtype.numpy()))
    return arrays


def pairs(operator: Operator) -> int:
    """How many pairs see each other, counted."""
    return int(seen(operator, None, None).sum())
