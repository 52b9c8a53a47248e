"""Calls of the operator library: their operators, restoring these from plans, and errors with hints."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import pytest
import scipy.special

from einc.core.intervals import enumerate_factorizations
from einc.core.tensor import DType, TensorDesc
from einc.errors import OperatorError
from einc.ops import registry
from einc.ops.base import Operator
from einc.ops.reshape import Reshape
from tests.support import aggregate_cases, index_cases, recurrence_cases
from tests.support.definition_oracle import random_array
from tests.support.operator_cases import all_cases
from tests.support.paced import within
from tests.support.transformer_cases import all_transformer_cases, desc

F32, I32, BOOL = DType.F32, DType.I32, DType.BOOL


X = desc("t d", 6, 8)
CASES = all_cases()


def list_operators() -> Iterator[Operator]:
    """All that the tests of meanings use."""
    yield from CASES.values()
    yield from (case.operator for case in all_transformer_cases().values())
    cases = (index_cases.CASES, recurrence_cases.CASES, aggregate_cases.CASES)
    for case in (case for table in cases for case in table.values()):
        yield from (case.operator(dtype) for dtype in case.dtypes)


def test_restored_operators_equal_the_originals() -> None:
    for operator in list_operators():
        restored = registry.restore(operator.family, operator.inputs, dict(operator.attributes))
        assert restored == operator
        assert hash(restored) == hash(operator)
        assert restored.kernel == operator.kernel
        assert operator.title


def test_no_call_or_family_is_in_two_files() -> None:
    for table, known in (("CALLS", registry._CALLS), ("FAMILIES", registry.list_families())):
        assert len(known) == sum(len(getattr(file, table, ())) for file in registry.list_files())


def test_broadcasting_aligns_by_name() -> None:
    rng = np.random.default_rng(1)
    x, bias, turned = rng.normal(size=(6, 8)), rng.normal(size=(6,)), rng.normal(size=(8, 6))
    f64 = DType.F64
    left = registry.call("sub", [desc("t", 6, dtype=f64), desc("t d", 6, 8, dtype=f64)], {})
    assert left.outputs[0].dims == ("t", "d")
    np.testing.assert_array_equal(left.reference(bias, x)[0], bias[:, None] - x)
    both = registry.call("mul", [desc("t d", 6, 8, dtype=f64), desc("d t", 8, 6, dtype=f64)], {})
    np.testing.assert_array_equal(both.reference(x, turned)[0], x * turned.T)
    scalar = registry.call("add", [desc("", dtype=f64), desc("d", 8, dtype=f64)], {})
    np.testing.assert_array_equal(scalar.reference(np.array(2.0), x[0])[0], 2 + x[0])


def test_literals_and_kinds_of_results() -> None:
    assert registry.call("max", [X, 0], {}).kernel.attributes[0] == ("program", "t0 = max x0 0.0")
    assert registry.call("sub", [1, X], {}).kernel.attributes[0] == ("program", "t0 = sub 1.0 x0")
    assert registry.call("ge", [X, 0.5], {}).outputs[0].dtype is BOOL
    assert registry.call("cast", [X, "bf16"], {}).outputs[0].dtype is DType.BF16
    assert registry.call("cast", [X], {"dtype": "i32"}).outputs[0].dtype is I32


def test_clip_is_the_minimum_of_a_maximum() -> None:
    f64 = DType.F64
    operands = [desc("t d", 2, 4, dtype=f64), desc("d", 4, dtype=f64)]
    clip = registry.call("clip", [*operands, 1.0], {})
    assert clip.kernel.attributes[0] == ("program", "t0 = max x0 x1; t1 = min t0 1.0")
    x = np.array([[-5.0, 0.5, 7.0, np.nan], [-1.0, 2.0, 0.0, np.inf]])
    low = np.array([-2.0, 0.0, 3.0, -1.0])  # one is above the upper bound, which then is the result
    np.testing.assert_array_equal(clip.reference(x, low)[0], [[-2, 0.5, 1, np.nan], [-1, 1, 1, 1]])
    numbers = registry.call("clip", [desc("d", 4, dtype=I32), 0, 3], {})
    assert numbers.reference(np.array([-1, 2, 9, 3]))[0].tolist() == [0, 2, 3, 3]


def test_softmax_and_mean_agree_with_scipy_and_numpy() -> None:
    rng = np.random.default_rng(2)
    x = rng.normal(size=(6, 8)) * 300
    tensor = desc("t d", 6, 8, dtype=DType.F64)
    for over, axis in (("t", 0), ("d", 1)):
        (result,) = registry.call("softmax", [tensor], {"over": over}).reference(x)
        np.testing.assert_allclose(result, scipy.special.softmax(x, axis=axis), rtol=1e-12)
        (result,) = registry.call("mean", [tensor, over], {}).reference(x)
        np.testing.assert_allclose(result, x.mean(axis=axis), rtol=1e-12)


def test_titles() -> None:
    assert registry.call("matmul", [X, desc("d f", 8, 3)], {}).title == "matmul"
    assert registry.call("sum", [X, "t"], {}).title == "sum"
    assert registry.call("transpose", [X], {}).title == "transpose"
    assert registry.call("copy", [X], {}).title == "copy"
    assert registry.call("where", [desc("d", 8, dtype=BOOL), X, 0.0], {}).title == "where"


@pytest.mark.parametrize(
    ("old", "new", "indices"),
    [
        ({"t": 8, "hd": 12}, {"t": 8, "h": 3, "d": 4}, [("t", 8), ("h", 3)]),
        ({"t": 8, "h": 3, "d": 4}, {"t": 8, "hd": 12}, [("t", 8), ("h", 3)]),
        ({"a": 6, "b": 4}, {"c": 8, "d": 3}, [("a_c", 2)]),
        ({"a": 2, "b": 6}, {"c": 3, "d": 4}, []),
        ({"a": 4, "one": 1, "b": 5}, {"a": 4, "b": 5}, [("a", 4), ("b", 5)]),
        ({"a": 1}, {}, []),
        ({"a": 9, "b": 10}, {"c": 90}, [("a", 9)]),
        ({"a": 30}, {"b": 30}, [("b", 30)]),
    ],
)
def test_reshape_is_cut_where_both_sides_can_be(
    old: dict[str, int], new: dict[str, int], indices: list[tuple[str, int]]
) -> None:
    operator = registry.call("reshape", [TensorDesc(tuple(old), tuple(old.values()), F32)], new)
    assert [(index.name, index.extent) for index in operator.indices] == indices


A = desc("t d", 6, 8)
CALL_FAULTS = [
    ("matmul", [A], {}, None, "takes 2"),
    ("matmul", [A, A], {}, 1, "'t' of operand 2 is 6, expected 8 as 'd'"),
    ("matmul", [A, desc("d", 8)], {}, 1, "two or more"),
    ("matmul", [desc("h t d", 2, 6, 8), desc("h d f", 3, 8, 5)], {}, 1, "batch"),
    ("matmul", [A, 2.0], {}, 1, "must be a tensor"),
    ("matmul", [A, desc("d f", 8, 5)], {"causal": True}, "causal", "no argument"),
    ("matmul", [desc("t d", 6, 8, dtype=BOOL), desc("d f", 8, 5, dtype=BOOL)], {}, 0, "does not take bool"),
    ("matmul", [A, desc("d f", 8, 5, dtype=DType.F16)], {}, 1, "operand 2 is f16 where operand 1 is f32"),
    ("add", [A, desc("t f", 6, 5)], {}, 1, "'f'"),
    ("add", [A, desc("d", 7)], {}, 1, "'d' of operand 2 is 7, expected 8"),
    ("add", [A, desc("t d", 6, 9)], {}, 1, "expected 8"),
    ("add", [desc("n n", 3, 3), desc("n", 3)], {}, 1, "stands twice"),
    ("add", [1, 2], {}, 0, "must be a tensor"),
    ("add", [A], {}, None, "takes 2 operands, not 1"),
    ("relu", [A, A], {}, 1, "takes 1 operand, not 2"),
    ("add", [2.0, desc("d", 8, dtype=I32)], {}, 0, "float literal 2.0 does not fit i32"),
    ("add", [desc("d", 8, dtype=I32), A], {}, 1, "operand 2 is f32 where operand 1 is i32"),
    ("where", [A, A, A], {}, 0, "condition"),
    ("where", [True, A, A], {}, 0, "condition"),
    ("where", [desc("", dtype=BOOL), desc("m", 3), desc("n", 4)], {}, 2, "has dimension 'n' but not 'm' of"),
    ("and", [A, A], {}, 0, "does not take f32"),
    ("relu", ["t"], {}, 0, "not a tensor"),
    ("clip", [A, 0.0], {}, None, "clip takes 3 operands, not 2"),
    ("clip", [A, 0.0, desc("d", 8, dtype=DType.F16)], {}, 2, "clip: operand 3 is f16 where operand 1 is f32"),
    ("clip", [desc("d", 8, dtype=BOOL), False, True], {}, 0, "clip does not take bool"),
    ("bitand", [A, A], {}, 0, "bitand does not take f32"),
    ("floor", [desc("d", 8, dtype=I32)], {}, 0, "floor does not take i32"),
    ("cast", [A], {}, 1, "element type"),
    ("cast", [A, "f33"], {}, 1, "'f33'"),
    ("cast", [A], {"dtype": 32}, "dtype", "names in quotes"),
    ("sum", [A], {}, None, "not said"),
    ("sum", [A, "h"], {}, 1, "no dimension 'h'"),
    ("sum", [A, "t", "t"], {}, 2, "named twice"),
    ("sum", [A, ("t", "h")], {}, 1, "no dimension 'h'"),
    ("topk", [A, 3, "h"], {}, 2, "no dimension 'h'"),
    ("topk", [A, 3], {"over": "h"}, "over", "no dimension 'h'"),
    ("topk", [A, 3, "t", "d"], {}, 3, "one dimension"),
    ("sum", [A, "t"], {"over": "d"}, "over", "given twice"),
    ("sum", [desc("d", 8, dtype=BOOL), "d"], {}, None, "does not take bool"),
    ("sum", [A], {"over": ("t", "h")}, "over", "no dimension 'h'"),
    ("max", [A, 3], {"over": "t"}, "over", "given twice"),
    ("mean", [desc("d", 8, dtype=I32), "d"], {}, 0, "does not take i32"),
    ("softmax", [A, "t", "d"], {}, 2, "one dimension"),
    ("softmax", [desc("")], {}, 0, "no dimension"),
    ("softmax", [desc("d", 8, dtype=I32)], {}, 0, "does not take i32"),
    ("transpose", [desc("d", 8)], {}, 0, "two dimensions"),
    ("transpose", [A, "t"], {}, 1, "'d'"),
    ("reshape", [A], {"a": 47}, 0, "48 elements"),
    ("reshape", [A], {"a": -48, "b": -1}, "a", "positive"),
    ("reshape", [A], {"a": True, "b": 48}, "a", "positive"),
    ("matmull", [A, A], {}, None, "no operator"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "arguments", "attributes", "argument", "words"), CALL_FAULTS)
def test_faulty_calls_say_what_and_where(
    name: str, arguments: list, attributes: dict, argument: int | str | None, words: str
) -> None:
    with pytest.raises(OperatorError) as caught:
        registry.call(name, arguments, attributes)
    assert words in caught.value.message
    assert caught.value.argument == argument


def test_unknown_names_get_a_suggestion() -> None:
    with pytest.raises(OperatorError) as caught:
        registry.call("matmull", [], {})
    assert caught.value.hint == "did you mean 'matmul'?"


@pytest.mark.parametrize(
    ("family", "attributes"),
    [
        ("nothing", {}),
        ("equation", {}),
        ("equation", {"indices": "i j -> i", "dims": ("t",), "program": "t0 = copy x0", "aggregation": ""}),
        ("equation", {"indices": "i j, j -> i", "dims": ("t",), "program": "t0 = copy x0", "aggregation": "sum"}),
        ("equation", {"indices": "i j i", "dims": ("t",), "program": "t0 = copy x0", "aggregation": "sum"}),
        ("equation", {"indices": "i j -> i j", "dims": 3, "program": "t0 = copy x0", "aggregation": "sum"}),
        ("equation", {"indices": "i j -> i j", "dims": ("t", "d"), "program": "import os", "aggregation": ""}),
        ("rows", {"kind": "softmax", "axis": 2}),
        ("rows", {"kind": "softmax", "axis": True}),
        ("rows", {"kind": "softmax", "axis": -1}),
        (Reshape.family, {"dims": ("a",), "shape": (47,)}),
        (Reshape.family, {"dims": ("a", "b"), "shape": (48,)}),
        (Reshape.family, {"dims": ("a", "b"), "shape": (-6, -8)}),
        (Reshape.family, {"dims": ("a",), "shape": ("48",)}),
    ],
)
def test_untrue_bundles_restore_nothing(family: str, attributes: dict) -> None:
    with pytest.raises(OperatorError):
        registry.restore(family, (A,), attributes)


def test_hash_and_specs_are_fast_enough_to_plan_with() -> None:
    n = 9 * 8 * 16
    operator = registry.call("matmul", [desc("h i j", 8, n, n), desc("h j k", 8, n, n)], {})
    limits = [index.max_intervals for index in operator.indices]
    requests = list(enumerate_factorizations(72, limits))[:100]
    with within(1):
        for counts in requests:
            operator.build_spec(tuple(i.intervals(c) for i, c in zip(operator.indices, counts, strict=True)))
    with within(0.2):
        for _ in range(1000):
            hash(operator)


def test_random_data_is_finite_where_it_must_be() -> None:
    for name, operator in CASES.items():
        arrays = [random_array(d, np.random.default_rng(0), positive=True) for d in operator.inputs]
        if operator.outputs[0].dtype.is_float:
            assert all(math.isfinite(v) for v in operator.reference(*arrays)[0].astype(float).ravel()), name
