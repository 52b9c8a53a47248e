"""`topk` under the definition oracle, with ties, infinities and NaN, and its calls."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import numpy as np
import pytest

from einc.core.spec import FunctionSpec
from einc.core.tensor import DType, TensorDesc
from einc.errors import OperatorError
from einc.ops import registry
from einc.ops.base import Operator
from einc.ops.selection import TopK
from tests.support.block_slices import slices
from tests.support.definition_oracle import (
    CONCRETE,
    FEW,
    REST,
    Array,
    corruptions,
    fault,
    one_number,
    random_array,
    requests,
)
from tests.support.kernel_pieces import run_kernel
from tests.support.operator_cases import desc

LAST = np.iinfo(np.int64).max
NUMBERS = (DType.F32, DType.F16, DType.BF16, DType.F64, DType.I32, DType.I64)


def on_blocks(operator: Operator, function: FunctionSpec, blocks: Sequence[Array]) -> Sequence[Array]:
    """Row by row in plain Python."""
    assert isinstance(operator, TopK)
    rows = np.moveaxis(blocks[0], operator.axis, -1)
    first = function.inputs[0].lower[operator.axis]
    count = operator.count
    values = np.empty((*rows.shape[:-1], count), rows.dtype)
    indices = np.empty(values.shape, np.int64)
    for at in np.ndindex(rows.shape[:-1]):
        row = [int(x) if rows.dtype.kind == "i" else float(x) for x in rows[at]]
        ranked = sorted(range(len(row)), key=lambda n: (row[n] == row[n], -row[n] if row[n] == row[n] else 0, n))
        for k in range(count):
            values[at][k] = row[ranked[k]] if k < len(row) else least(rows)
            indices[at][k] = first + ranked[k] if k < len(row) else LAST
    return values, indices


def least(array: Array) -> float | int:
    return int(np.iinfo(array.dtype).min) if array.dtype.kind == "i" else -np.inf


CONCRETE["topk"] = on_blocks


def cases(dtype: DType) -> dict[str, Operator]:
    y = desc("h s d", dtype)
    return {
        "topk": registry.call("topk", [y, 5, "d"], {}),
        "topk_middle": registry.call("topk", [y, 3, "s"], {"into": "choice"}),
        "topk_vector": registry.call("topk", [desc("u", dtype), 11], {}),
        "topk_one": registry.call("topk", [desc("t d", dtype), 1, "t"], {}),
    }


CASES = {f"{dtype}-{name}": operator for dtype in NUMBERS for name, operator in cases(dtype).items()}


def data(name: str, ties: bool) -> list[Array]:
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    (tensor,) = CASES[name].inputs
    if not ties:
        return [random_array(tensor, rng)]
    values = rng.integers(-2, 3, tensor.shape).astype(tensor.dtype.numpy())
    if tensor.dtype.is_float:
        for special in (-np.inf, np.inf, np.nan, -0.0):
            values[rng.random(tensor.shape) < 0.1] = special
        values[..., 0] = -np.inf
    else:
        values[rng.random(tensor.shape) < 0.3] = least(values)
    return [values]


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", CASES)
def test_every_factorization_implements_the_operator(name: str) -> None:
    check(name, FEW if name.startswith("f32") else one_number(name))


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_other_numbers_of_sites_too(name: str) -> None:
    check(name, (*FEW, *REST))


def check(name: str, numbers: Sequence[int]) -> None:
    operator = CASES[name]
    for ties in (False, True):
        arrays = data(name, ties)
        expected = operator.reference(*arrays)
        for sites in numbers:
            for intervals in requests(operator, sites):
                spec = operator.build_spec(intervals)
                assert fault(operator, spec, arrays, expected, run_kernel) is None, intervals
                assert fault(operator, spec, arrays, expected) is None, intervals


@pytest.mark.parametrize("name", [name for name in CASES if name.startswith("f32")])
def test_one_bound_moved_by_one_is_noticed(name: str) -> None:
    operator = CASES[name]
    arrays = data(name, ties=False)
    intervals = max(requests(operator, 6), key=lambda chosen: sum(len(parts) > 1 for parts in chosen))
    spec = operator.build_spec(intervals)
    for at in {0, len(spec.functions) - 1}:
        for wrong, k, slab in corruptions(operator, spec, at):
            changed = [array.copy() for array in arrays]
            if k is not None:
                changed[k][slices(slab)] = 50
            assert fault(operator, wrong, changed, operator.reference(*changed), run_kernel) is not None, wrong


def test_order_and_ties() -> None:
    x = np.array([3, np.nan, 7, -np.inf, 7, np.inf, np.nan, -0.0, 0.0], np.float32)
    tensor = TensorDesc(("n",), x.shape, DType.F32)
    values, indices = registry.call("topk", [tensor, 9], {}).reference(x)
    assert indices.tolist() == [1, 6, 5, 2, 4, 0, 7, 8, 3]
    np.testing.assert_array_equal(values, x[indices])
    numbers = np.array([5, -(2**63), 2**63 - 1], np.int64)
    _, order = registry.call("topk", [TensorDesc(("n",), (3,), DType.I64), 3], {}).reference(numbers)
    assert order.tolist() == [2, 0, 1]


@pytest.mark.parametrize("name", CASES)
def test_a_bundle_brings_the_operator_back(name: str) -> None:
    operator = CASES[name]
    assert registry.restore(operator.family, operator.inputs, operator.attributes) == operator


def test_results_are_named_and_typed() -> None:
    logits = TensorDesc(("tokens", "vocab"), (4, 100), DType.BF16)
    values, indices = registry.call("topk", [logits, 5, "vocab"], {}).outputs
    assert (str(values), str(indices)) == ("bf16[tokens=4, k=5]", "i64[tokens=4, k=5]")
    (first, _) = registry.call("topk", [logits, 2], {"over": "tokens", "into": "best"}).outputs
    assert str(first) == "bf16[vocab=100, best=2]"
    (clash, _) = registry.call("topk", [logits, 2, "vocab"], {"into": "tokens"}).outputs
    assert clash.dims == ("tokens", "tokens_2")


BAD = {
    "no tensor": ("topk", [5, 3], {}, "takes a tensor and how many"),
    "no count": ("topk", [desc("t d")], {}, "takes a tensor and how many"),
    "a name for a count": ("topk", [desc("t d"), "d"], {}, "must be an integer"),
    "true": ("topk", [desc("t d"), True, "d"], {}, "must be an integer"),
    "too many": ("topk", [desc("t d"), 10, "d"], {}, "'d' has 9 elements, not the 10 asked for"),
    "none": ("topk", [desc("t d"), 0, "d"], {}, "not the 0 asked for"),
    "huge": ("topk", [desc("t d"), 10**5000, "d"], {}, "a value of many digits"),
    "two dimensions": ("topk", [desc("t d"), 1, "d", "t"], {}, "goes over one dimension"),
    "an unknown dimension": ("topk", [desc("t d"), 1, "x"], {}, "no dimension 'x'"),
    "an unknown keyword": ("topk", [desc("t d"), 1], {"k": 3}, "has no argument 'k'"),
    "into a number": ("topk", [desc("t d"), 1], {"into": 3}, "'into' must be a name"),
    "bool": ("topk", [desc("t d", DType.BOOL), 1], {}, "does not take bool"),
}


@pytest.mark.parametrize("fault", BAD)
def test_bad_calls_are_refused(fault: str) -> None:
    name, arguments, keywords, message = BAD[fault]
    with pytest.raises(OperatorError) as caught:
        registry.call(name, arguments, keywords)
    assert message in caught.value.message


@pytest.mark.parametrize(
    ("family", "attributes"),
    [
        ("topk", {"axis": 1, "count": 3}),
        ("topk", {"axis": 1, "count": 10, "into": "k"}),
        ("topk", {"axis": -1, "count": 3, "into": "k"}),
    ],
)
def test_bad_attributes_are_refused(family: str, attributes: dict[str, int | str]) -> None:
    with pytest.raises(OperatorError):
        registry.restore(family, (desc("t d"),), attributes)
