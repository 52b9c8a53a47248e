"""Operators of transformers: their meaning by separate formulas, and their errors."""

from __future__ import annotations

import cmath
import math
from typing import Any

import numpy as np
import pytest

from einc.core.tensor import DType, TensorDesc
from einc.errors import OperatorError
from einc.ops import registry
from einc.ops.base import Attributes

F64, F16, I64, BOOL = DType.F64, DType.F16, DType.I64, DType.BOOL


def desc(dims: str, *shape: int, dtype: DType = F64) -> TensorDesc:
    return TensorDesc(tuple(dims.split()), shape, dtype)


def llama3_frequency(plain: float, factor: float, low: float, high: float, original: float) -> float:
    """One frequency, by its wavelength, as the published models do it."""
    wavelength = 2 * math.pi / plain
    if wavelength < original / high:
        return plain
    if wavelength > original / low:
        return plain / factor
    smooth = (original / wavelength - low) / (high - low)
    return (1 - smooth) * plain / factor + smooth * plain


@pytest.mark.parametrize("scaling", ["none", "linear", "llama3", "longrope"])
def test_rope_multiplies_complex_numbers(scaling: str) -> None:
    """Pair i of a token is the complex number x[i] + x[i + half] * 1j, turned by its angle."""
    numbers = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_length": 128}
    keywords: dict[str, Any] = {
        "none": {},
        "linear": {"factor": 8.0},
        "llama3": numbers,
        "longrope": {"factors": tuple(1.0 + 0.5 * i for i in range(8))},
    }[scaling]
    rng = np.random.default_rng(3)
    x, positions = rng.normal(size=(2, 5, 16)), np.array([0, 3, 100, 7, 131071])
    operator = registry.call(
        "rope",
        [desc("h t d", 2, 5, 16)],
        {"theta": 1000.0, "scaling": scaling, "positions": desc("t", 5, dtype=I64), **keywords},
    )
    (result,) = operator.reference(x, positions)
    seen = set()
    for i in range(8):
        plain = 1000.0 ** (-2 * i / 16)
        turned = {
            "none": plain,
            "linear": plain / 8,
            "llama3": llama3_frequency(plain, 8.0, 1.0, 4.0, 128),
            "longrope": plain / (1.0 + 0.5 * i),
        }[scaling]
        kind = "same" if turned == plain else "slow" if turned == plain / 8 else "between"
        seen.add(kind)
        for h in range(2):
            for t, position in enumerate(positions):
                z = complex(x[h, t, i], x[h, t, i + 8]) * cmath.exp(1j * position * turned)
                assert abs(complex(result[h, t, i], result[h, t, i + 8]) - z) < 1e-9
    assert scaling != "llama3" or seen == {"same", "slow", "between"}


def test_rope_starts_anew_at_each_sequence() -> None:
    rng = np.random.default_rng(4)
    x = rng.normal(size=(3, 9, 6))
    rotation = registry.call("rope", [desc("h t d", 3, 9, 6)], {"seq_lens": (4, 1, 4)})
    part = registry.call("rope", [desc("h t d", 3, 4, 6)], {})
    (rotated,) = rotation.reference(x)
    np.testing.assert_array_equal(rotated[:, :4], part.reference(x[:, :4])[0])
    np.testing.assert_array_equal(rotated[:, 4], x[:, 4])
    np.testing.assert_array_equal(rotated[:, 5:], part.reference(x[:, 5:])[0])


def test_positions_prevail_over_lengths() -> None:
    positions = desc("t", 9, dtype=I64)
    x = desc("h t d", 3, 9, 6)
    with_both = registry.call("rope", [x], {"seq_lens": (4, 5), "positions": positions})
    assert with_both == registry.call("rope", [x], {"positions": positions})


def test_norms_by_their_formulas() -> None:
    rng = np.random.default_rng(5)
    x, g, b = rng.normal(2.0, 3.0, size=(4, 6)), rng.normal(size=6), rng.normal(size=6)
    (rms,) = registry.call("rmsnorm", [desc("t d", 4, 6), desc("d", 6)], {"eps": 0.5}).reference(x, g)
    (layer,) = registry.call("layernorm", [desc("t d", 4, 6), desc("d", 6), desc("d", 6)], {}).reference(x, g, b)
    (more,) = registry.call("rmsnorm", [desc("t d", 4, 6), desc("d", 6)], {"eps": 0.5, "offset": -2}).reference(x, g)
    np.testing.assert_allclose(more, rms / g * (g - 2), rtol=1e-12)
    for row in range(4):
        scale = math.sqrt(math.fsum(v * v for v in x[row]) / 6 + 0.5)
        center = math.fsum(x[row]) / 6
        spread = math.sqrt(math.fsum((v - center) ** 2 for v in x[row]) / 6 + 1e-5)
        for k in range(6):
            assert rms[row, k] == pytest.approx(x[row, k] / scale * g[k], rel=1e-12)
            assert layer[row, k] == pytest.approx((x[row, k] - center) / spread * g[k] + b[k], rel=1e-12)


def test_moving_operators_by_hand() -> None:
    a, b = np.arange(6).reshape(2, 3), np.arange(8).reshape(2, 4) + 10
    operator = registry.call("concat", [desc("t a", 2, 3), desc("t b", 2, 4)], {"over": "a", "into": "all"})
    assert operator.outputs == (desc("t all", 2, 7),)
    assert operator.reference(a, b)[0].tolist() == [[0, 1, 2, 10, 11, 12, 13], [3, 4, 5, 14, 15, 16, 17]]
    operator = registry.call("slice", [desc("t b", 2, 4)], {"b": (1, 3)})
    assert operator.outputs == (desc("t b", 2, 2),)
    assert operator.reference(b)[0].tolist() == [[11, 12], [15, 16]]
    cache, new = np.zeros((1, 5, 1)), np.array([[[1.0], [2.0], [3.0]]])
    operator = registry.call(
        "append",
        [desc("h r d", 1, 5, 1), desc("h t d", 1, 3, 1), desc("t", 3, dtype=I64)],
        {"cache_lens": (2, 3), "new_lens": (1, 2)},
    )
    assert operator.reference(cache, new, np.array([1, 0, 2]))[0].ravel().tolist() == [0, 1, 2, 0, 3]


def test_pieces_of_a_cache_read_what_they_need() -> None:
    """Of the new rows, those of the sequences in the block, whole."""
    operator = registry.call(
        "append",
        [desc("h r d", 2, 12, 3), desc("h t d", 2, 6, 3), desc("t", 6, dtype=I64)],
        {"cache_lens": (4, 5, 3), "new_lens": (3, 1, 2)},
    )
    rows = ((0, 4), (4, 6), (6, 8), (8, 10), (10, 12))
    spec = operator.build_spec((((0, 2),), rows, ((0, 3),)))
    read = [(f.inputs[1].lower[1], f.inputs[1].upper[1]) for f in spec.functions]
    assert read == [(0, 3), (3, 4), (3, 4), (3, 6), (4, 6)]
    assert [(f.inputs[2].lower[0], f.inputs[2].upper[0]) for f in spec.functions] == read


X, G = desc("t d", 6, 8), desc("d", 8)
Q, P = desc("h t d", 2, 6, 8), desc("t", 6, dtype=I64)
EXPERTS, PICKS = desc("e n d", 3, 5, 8), desc("t s", 6, 2, dtype=I64)
IDS, TABLE = desc("t", 6, dtype=I64), desc("v d", 20, 8)
CACHE, NEW = desc("h r d", 2, 10, 8), desc("h t d", 2, 6, 8)
MASK = desc("t", 6, dtype=BOOL)
LLAMA3: dict[str, Any] = {"scaling": "llama3", "factor": 8.0, "high_freq_factor": 4.0, "original_length": 64}

NO_NAMES = ("", "a b", "a,b", "->", "1", "\x1b[31m", "n" * 101)
FAULTS: list[tuple[str, list[Any], dict[str, Any], int | str | None, str]] = [
    *(("rmsnorm", [X, G], {"eps": eps}, "eps", "above 0") for eps in (-1e-5, 0, math.nan, math.inf, True, "x", (1,))),
    *(("rmsnorm", [X, G], {"offset": k}, "offset", "a number") for k in (math.nan, math.inf, True, "x")),
    ("rmsnorm", [], {}, None, "takes 1 tensor, not 0"),
    ("rmsnorm", [X, G, G], {}, 2, "takes 2 tensors, not 3"),
    ("layernorm", [X, G, G, G], {}, 3, "takes 3 tensors, not 4"),
    ("layernorm", [X], {"offset": 1.0}, "offset", "is added to a gain, and there is none"),
    ("rmsnorm", [X, desc("d", 6)], {}, 1, "expected one dimension of 8 as 'd'"),
    ("layernorm", [X, G, desc("d", 8, dtype=F16)], {}, 2, "the bias is f16, expected f64"),
    ("layernorm", [X, desc("one d", 1, 8), G], {}, 1, "the gain is f64[one=1, d=8]"),
    ("rmsnorm", [desc("t", 6, dtype=I64), P], {}, 0, "does not take i64"),
    ("rmsnorm", [desc(""), desc("")], {}, 0, "no dimension"),
    ("rmsnorm", [X, G], {"epsilon": 1e-6}, "epsilon", "no argument"),
    ("rope", [desc("t d", 6, 7)], {}, 0, "even d_head"),
    ("rope", [desc("d", 8)], {}, 0, "even d_head"),
    ("rope", [desc("t d", 6, 8, dtype=I64)], {}, 0, "does not take i64"),
    *(("rope", [Q], {"theta": theta}, "theta", "above 0") for theta in (0, -1.0, math.nan, math.inf, "big", 10**400)),
    ("rope", [Q], {"scaling": "yarn"}, "scaling", "one of 'none', 'linear', 'llama3', 'longrope', not 'yarn'"),
    ("rope", [Q], {"scaling": "longrope"}, "factors", "a list of 4, one a pair; found None"),
    ("rope", [Q], {"scaling": "longrope", "factors": (1.0,) * 3}, "factors", "found 3 of them"),
    ("rope", [Q], {"scaling": "longrope", "factors": (1.0, 2.0, 0.0, 1.0)}, "factors", "above 0, not 0.0"),
    ("rope", [Q], {"factors": (1.0,) * 4}, "factors", 'goes with scaling="longrope"'),
    ("rope", [Q], {"scaling": 3}, "scaling", "not 3"),
    ("rope", [Q], {"scaling": "linear"}, None, "needs the argument 'factor'"),
    ("rope", [Q], {"scaling": "linear", "factor": 0.0}, "factor", "above 0"),
    ("rope", [Q], {"factor": 2.0}, "factor", 'goes with scaling="linear" or scaling="llama3", not with \'none\''),
    ("rope", [Q], LLAMA3, None, "needs the argument 'low_freq_factor'"),
    ("rope", [Q], LLAMA3 | {"low_freq_factor": 4.0}, "low_freq_factor", "less than 'high_freq_factor', 4"),
    ("rope", [Q], {"seq_lens": (3, 4)}, "seq_lens", "adds up to 7, expected 6, the extent of dimension 't'"),
    ("rope", [Q], {"seq_lens": (7, -1)}, "seq_lens", "positive integers, not -1"),
    ("rope", [Q], {"seq_lens": (5, True)}, "seq_lens", "positive integers, not True"),
    ("rope", [Q], {"seq_lens": ()}, "seq_lens", "a list of lengths"),
    ("rope", [Q], {"seq_lens": 6}, "seq_lens", "a list of lengths, not 6"),
    ("rope", [Q], {"positions": 3}, "positions", "must be a tensor"),
    ("rope", [Q], {"positions": desc("t", 5, dtype=I64)}, "positions", "one for each token"),
    ("rope", [Q], {"positions": desc("t", 6)}, "positions", "expected i64[t=6]"),
    ("rope", [Q, P], {}, 1, "takes 1 tensor, not 2"),
    ("rope", [Q], {"seq_lens": P}, "seq_lens", "cannot be a tensor"),
    ("embedding", [TABLE, IDS], {}, 0, "ids are integers, not f64"),
    ("embedding", [IDS, G], {}, 1, "two dimensions"),
    ("embedding", [IDS, desc("v d", 20, 8, dtype=BOOL)], {}, 1, "expected numbers"),
    ("embedding", [IDS, TABLE], {"scale": 2.0}, "scale", "no argument"),
    ("expert_matmul", [X, EXPERTS, X], {}, 2, "the picks are f64[t=6, d=8], expected integers"),
    ("expert_matmul", [X, EXPERTS, P], {}, 2, "two dimensions: tokens, slots"),
    ("expert_matmul", [X, G, PICKS], {}, 1, "expected floats in three dimensions"),
    ("expert_matmul", [X, desc("e n d", 3, 5, 8, dtype=I64), PICKS], {}, 1, "the weight is i64"),
    ("expert_matmul", [G, EXPERTS, PICKS], {}, 0, "expected f64[t=6, d=8], with or without 's'"),
    ("expert_matmul", [desc("t d", 6, 8, dtype=F16), EXPERTS, PICKS], {}, 0, "the tensor is f16"),
    ("expert_matmul", [X, EXPERTS, PICKS], {"slots": 2}, "slots", "no argument"),
    ("append", [X, NEW, P], {}, 0, "expected heads, rows and columns"),
    ("append", [CACHE, desc("h t d", 3, 6, 8), P], {}, 1, "heads and columns of f64[h=2, r=10, d=8]"),
    ("append", [CACHE, desc("h t d", 2, 6, 8, dtype=F16), P], {}, 1, "expected f64"),
    ("append", [CACHE, NEW, desc("t", 5, dtype=I64)], {}, 2, "one for each new row"),
    ("append", [CACHE, NEW, desc("t", 6)], {}, 2, "the positions are f64[t=6]"),
    ("append", [CACHE, NEW, P], {"cache_lens": (5, 6)}, "cache_lens", "adds up to 11, expected 10"),
    ("append", [CACHE, NEW, P], {"cache_lens": (5, 5)}, "cache_lens", "1 sequences of new rows for 2"),
    ("append", [CACHE, NEW, P], {"cache_lens": (8, 2), "new_lens": (3, 3)}, "new_lens", "sequence 1 gets 3 new rows"),
    ("append", [CACHE, NEW], {}, None, "takes 3 tensors, not 2"),
    ("concat", [], {"over": "t"}, None, "takes one or more tensors, not 0"),
    ("concat", [X, X], {}, "over", "needs the dimension"),
    ("concat", [X, X], {"over": "u"}, "over", "no dimension 'u'"),
    ("concat", [X, 2.0], {"over": "t"}, 1, "must be a tensor"),
    ("concat", [X, desc("t d", 6, 9)], {"over": "t"}, 1, "all dimensions but 't'"),
    ("concat", [X, G], {"over": "t"}, 1, "operand 2 is f64[d=8]"),
    ("concat", [X, desc("t d", 6, 8, dtype=F16)], {"over": "t"}, 1, "operand 2 is f16"),
    ("concat", [X, X], {"over": "t", "into": "d"}, "into", "another dimension 'd'"),
    ("concat", [X, X], {"over": "t", "into": 5}, "into", "a name in quotes"),
    *(("concat", [X, X], {"over": "t", "into": into}, "into", "a name in quotes") for into in NO_NAMES),
    *(("topk", [X, 2, "d"], {"into": into}, "into", "a name in quotes") for into in NO_NAMES),
    ("concat", [desc("n n", 3, 3)], {"over": "n"}, "over", "more than one"),
    *(
        ("slice", [X], {"t": bounds}, "t", "[start, stop] within 0 and 6")
        for bounds in ((0, 7), (-1, 3), (3, 3), (4, 2), (0, 1, 2), (0.0, 1.0), (False, True), 3, "all", ())
    ),
    ("slice", [X], {"u": (0, 1)}, "u", "no dimension 'u'"),
    ("slice", [X, X], {}, 1, "takes 1 tensor"),
]


@pytest.mark.parametrize(("name", "arguments", "keywords", "argument", "words"), FAULTS)
def test_faulty_calls_say_what_and_where(
    name: str, arguments: list[Any], keywords: dict[str, Any], argument: int | str | None, words: str
) -> None:
    with pytest.raises(OperatorError) as caught:
        registry.call(name, arguments, keywords)
    assert words in caught.value.message
    assert caught.value.argument == argument


UNTRUE: list[tuple[str, tuple[TensorDesc, ...], Attributes]] = [
    ("rows", (X, G), {}),
    ("norm", (X, G, G, G), {"kind": "layernorm", "eps": 1e-5}),
    ("rows", (X, G), {"kind": 3, "axis": 1, "eps": 1e-5}),
    ("rows", (X, G), {"kind": "rmsnorm", "axis": 1, "eps": "small"}),
    ("rope", (Q, P), {"theta": 1e4, "scaling": "none"}),
    ("rope", (Q,), {"theta": 1e4, "scaling": "none", "extras": ("positions",)}),
    ("rope", (Q, P), {"theta": 1e4, "scaling": "none", "extras": ("positions", "positions")}),
    ("rope", (Q, P), {"theta": 1e4, "scaling": "none", "extras": 1}),
    ("rope", (), {}),
    ("embedding", (IDS,), {}),
    ("append", (CACHE, NEW), {}),
    ("append", (CACHE, NEW, P), {"cache_lens": 10}),
]


@pytest.mark.parametrize(("family", "inputs", "attributes"), UNTRUE)
def test_untrue_bundles_restore_nothing(family: str, inputs: tuple[TensorDesc, ...], attributes: Attributes) -> None:
    with pytest.raises(OperatorError):
        registry.restore(family, inputs, attributes)
