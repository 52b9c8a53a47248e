"""The arguments of attention: what says the same, and what is refused, hostile attributes included."""

from __future__ import annotations

import math

import pytest

from einc.core.tensor import DType, TensorDesc
from einc.errors import OperatorError
from einc.ops import registry
from einc.ops.base import Operator
from tests.support.attention_oracle import attention


def desc(*shape: int, dtype: DType = DType.F32) -> TensorDesc:
    return TensorDesc(("heads", "tokens", "d")[: len(shape)], shape, dtype)


def test_the_same_lengths_either_way() -> None:
    q, k = desc(4, 6, 2), desc(2, 6, 2)
    both = registry.call("attention", (q, k, k), {"seq_lens": (2, 4)})
    assert both == registry.call("attention", (q, k, k), {"q_lens": (2, 4), "k_lens": (2, 4)})
    assert registry.call("attention", (q, k, k), {}).attributes["q_lens"] == (6,)


Q, K = desc(4, 6, 2), desc(2, 6, 2)
IN_BLOCKS = {
    "causal": True,
    "q_lens": (3, 3),
    "k_lens": (4, 4),
    "positions": desc(6, dtype=DType.I64),
    "blocks": desc(2, 2, dtype=DType.I64),
}
"""Two sequences of two blocks of two tokens each, of three that there are."""
REFUSED = {
    "rank": ([Q, desc(6, 2), K], {}, 1, "three dimensions"),
    "integers": ([desc(4, 6, 2, dtype=DType.I32), K, K], {}, 0, "does not take i32"),
    "types": ([Q, K, desc(2, 6, 2, dtype=DType.F16)], {}, 2, "f16 where the queries are f32"),
    "width": ([Q, desc(2, 6, 3), desc(2, 6, 3)], {}, 1, "'d' (width) of the keys has 3 positions, expected 2"),
    "heads": ([Q, K, desc(1, 6, 2)], {}, 2, "'heads' (heads) of the values has 1 positions, expected 2"),
    "tokens": ([Q, K, desc(2, 5, 2)], {}, 2, "'tokens' (tokens) of the values has 5 positions, expected 6"),
    "groups": ([desc(5, 6, 2), K, K], {}, 0, "multiple of 2 query heads"),
    "two": ([Q, K], {}, None, "3 tensors, not 2"),
    "four": ([Q, K, K, K], {}, 3, "3 tensors, not 4"),
    "literal": ([Q, K, 1.0], {}, 2, "must be a tensor"),
    "unknown": ([Q, K, K], {"casual": True}, "casual", "no argument 'casual'"),
    "causal": ([Q, K, K], {"causal": 1}, "causal", "true or false, not 1"),
    "window": ([Q, K, K], {"window": -1}, "window", "not -1"),
    "softcap": ([Q, K, K], {"softcap": 0}, "softcap", "above 0, not 0"),
    "scale": ([Q, K, K], {"scale": math.inf}, "scale", "not inf"),
    "sum": ([Q, K, K], {"seq_lens": (2, 3)}, "seq_lens", "adds up to 5, expected 6"),
    "zero": ([Q, K, K], {"seq_lens": (0, 6)}, "seq_lens", "positive integers, not 0"),
    "alone": ([Q, K, K], {"q_lens": (6,)}, "q_lens", "without 'k_lens'"),
    "twice": ([Q, K, K], {"q_lens": (6,), "seq_lens": (6,)}, "q_lens", "both given"),
    "counts": ([Q, K, K], {"q_lens": (6,), "k_lens": (3, 3)}, "k_lens", "2 sequences, expected 1"),
    "mask_type": ([Q, K, K], {"mask": desc(6)}, "mask", "must be bool, found f32"),
    "mask_extent": ([Q, K, K], {"mask": desc(5, dtype=DType.BOOL)}, "mask", "one dimension of 6 positions"),
    "mask_literal": ([Q, K, K], {"mask": True}, "mask", "must be a tensor"),
    "positions_type": ([Q, K, K], {"positions": desc(6), "causal": True}, "positions", "i64 or i32"),
    "positions_extent": (
        [Q, K, K],
        {"positions": desc(2, 6, dtype=DType.I64), "causal": True},
        "positions",
        "one dimension",
    ),
    "positions": ([Q, K, K], {"positions": desc(6, dtype=DType.I64)}, "positions", "mean nothing"),
    "blocks": ([Q, K, K], {**IN_BLOCKS, "blocks": desc(3, 2)}, "blocks", "must be i64[2 sequences, blocks of each]"),
    "blocks_rows": ([Q, K, K], {**IN_BLOCKS, "blocks": desc(3, 2, dtype=DType.I64)}, "blocks", "must be i64[2 seq"),
    "blocks_alone": ([Q, K, K], {**IN_BLOCKS, "positions": None}, "blocks", "need 'positions'"),
    "blocks_masked": ([Q, K, K], {**IN_BLOCKS, "mask": desc(6, dtype=DType.BOOL)}, "blocks", "take no 'mask'"),
    "blocks_unequal": ([Q, K, K], {**IN_BLOCKS, "k_lens": (4, 6)}, "k_lens", "equal lengths [4, 6], in 6 places"),
    "blocks_apart": ([Q, K, K], {**IN_BLOCKS, "k_lens": (5, 5)}, "k_lens", "2 blocks of each sequence do not have"),
    "blocks_broken": ([Q, K, K], {**IN_BLOCKS, "k_lens": (8, 8)}, "k_lens", "equal lengths [8, 8], in 6 places"),
    "blocks_counts": ([Q, K, K], {**IN_BLOCKS, "k_lens": (4,)}, "k_lens", "1 sequences, expected 2"),
    "tensor": ([Q, K, K], {"scale": desc()}, "scale", "cannot be a tensor"),
    "extras": ([Q, K, K], {"extras": ("mask",)}, "extras", "no argument 'extras'"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals_name_the_argument(name: str) -> None:
    arguments, keywords, argument, words = REFUSED[name]
    with pytest.raises(OperatorError) as error:
        registry.call("attention", arguments, {key: value for key, value in keywords.items() if value is not None})
    assert words in error.value.message
    assert error.value.argument == argument


@pytest.mark.parametrize(
    "change",
    [
        {"extras": ("mask", "mask")}, {"extras": ("other",)}, {"extras": ()}, {"extras": 3}, {"causal": 0},
        {"scale": "1"},
        {"q_lens": (11, 0)}, {"q_lens": 11}, {"k_lens": ()}, {"window": 1.5}, {"scale": math.nan}, {"more": 1},
    ],
)  # fmt: skip
def test_hostile_attributes_are_refused(change: dict) -> None:
    operator: Operator = attention((2, 2), (11,), extras=("mask",))
    with pytest.raises(OperatorError):
        registry.restore("attention", operator.inputs, {**operator.attributes, **change})
    with pytest.raises(OperatorError):
        registry.restore("attention", operator.inputs[:2], operator.attributes)
