"""Index programs: what they mean, in numpy written anew; every way to cut them; and kernels on the pieces."""

from __future__ import annotations

import zlib

import numpy as np
import pytest

from einc.ops.base import Operator
from einc_runtime.errors import ValueFault
from tests.support.by_definition import list_moved_bounds, require_bits, require_cuts, uncut
from tests.support.definition_oracle import FEW, Array, difference, fault, one_number
from tests.support.index_cases import CASES, concrete
from tests.support.kernel_pieces import run_kernel

NAMES = [f"{dtype}-{name}" for name, case in CASES.items() for dtype in case.dtypes]


def find(name: str) -> tuple[Operator, list[Array], Array]:
    """The operator, its data, and what numpy makes of them."""
    dtype, _, word = name.partition("-")
    case = CASES[word]
    operator = case.operator(dtype)
    arrays = case.arrays(operator, zlib.crc32(name.encode()))
    wide = [array.astype(np.float64) if operator.inputs[k].dtype.is_float else array for k, array in enumerate(arrays)]
    return operator, arrays, np.asarray(case.meaning(*wide))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", NAMES)
def test_the_reference_is_what_numpy_says(name: str) -> None:
    operator, arrays, expected = find(name)
    (result,) = operator.reference(*arrays)
    assert result.shape == expected.shape == operator.outputs[0].shape
    assert difference(result, expected.astype(result.dtype), operator.outputs[0].dtype) is None


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", NAMES)
def test_every_factorization_implements_the_operator(name: str) -> None:
    operator, arrays, _ = find(name)
    require_cuts(operator, arrays, FEW if name.startswith("f32") else one_number(name), (run_kernel, concrete))


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith(("f32", "bf16"))])
def test_reproducible_pieces_have_the_bits_of_the_whole(name: str) -> None:
    operator, arrays, _ = find(name)
    require_bits(operator, arrays)


UNUSED_BOUNDS = {"f32-gather", "f32-cumsum_before", "f32-shifted_cumsum", "f32-lookup_by_sum", "f32-lookup_by_prod"}
"""What reads an element that its condition never counts, or a row that no id asks for."""


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith("f32") and name not in UNUSED_BOUNDS])
def test_one_bound_moved_by_one_is_noticed(name: str) -> None:
    operator, arrays, _ = find(name)
    expected = operator.reference(*arrays)
    for wrong, *_ in list_moved_bounds(operator, (-1,)):
        assert fault(operator, wrong, arrays, expected, run_kernel) is not None, wrong.functions[-1]


def test_costs_are_those_of_what_is_read() -> None:
    """A gather of 6 rows of 5 elements reads no more of its table, and a convolution multiplies at each window."""
    gather = CASES["gather"].operator("f32")
    (function,) = gather.build_spec(uncut(gather)).functions
    assert gather.traffic(function) == 6 * 5 * 4 * 2 + 6 * 8
    convolution = CASES["conv2d"].operator("f32")
    (function,) = convolution.build_spec(uncut(convolution)).functions
    assert convolution.flops(function) == 2 * (2 * 4 * 7 * 5) * (3 * 3 * 3)
    work = convolution.work(function)
    assert (work.batch, work.rows, work.columns, work.depth) == (1, 2 * 7 * 5, 4, 27)  # type: ignore[union-attr]


def test_costs_are_those_of_the_values_that_count() -> None:
    """A running sum and a scatter visit each value once, and a lookup each element of its result."""

    def count(name: str) -> tuple[int, int]:
        operator = CASES[name].operator("f32")
        (function,) = operator.build_spec(uncut(operator)).functions
        return operator.flops(function), operator.traffic(function)

    assert count("cumsum") == (9 * 5, 4 * 9 * 5 * 2)
    assert count("cumprod_of_sums") == (2 * 9 * 5, 4 * (9 * 5 * 2 + 5))
    assert count("scatter") == (6 * 5, 4 * (6 * 5 + 9 * 5) + 8 * 6)
    assert count("lookup_by_sum")[1] == 4 * (6 * 5 * 2) + 8 * 6


def test_windows_overlap_by_their_halos() -> None:
    operator = CASES["conv2d"].operator("f32")
    names = [index.name for index in operator.indices]
    cut = tuple(index.intervals(2 if index.name == "h" else 1) for index in operator.indices)
    first, second = operator.build_spec(cut).functions
    assert names == ["n", "o", "h", "w", "c", "r", "s"]
    rows = [(function.inputs[0].lower[2], function.inputs[0].upper[2]) for function in (first, second)]
    assert rows == [(0, 4), (2, 7)]
    assert [function.outputs[0].shape[2] for function in (first, second)] == [3, 4]


def test_an_id_outside_of_a_tensor_ends_the_run() -> None:
    operator = CASES["gather"].operator("f32")
    (function,) = operator.build_spec(uncut(operator)).functions
    arrays = [np.zeros((9, 5), np.float32), np.array([0, 1, 9, 2, 3, 4])]
    with pytest.raises(ValueFault, match="a position is 9; positions along this dimension are 0 to 8"):
        run_kernel(operator, function, arrays)
