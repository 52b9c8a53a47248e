"""Operators of transformers under the definition oracle: plain pieces, the runtime's kernels, and corrupted specs."""

from __future__ import annotations

import zlib

import pytest

from einc.core.spec import FunctionSpec
from einc.core.tensor import TensorType
from einc.ops.base import Operator
from einc.ops.index_operator import find_parts
from tests.support.definition_oracle import FEW, REST, corruptions, fault, one_number, requests
from tests.support.kernel_pieces import run_kernel
from tests.support.transformer_cases import Case, all_transformer_cases, concrete

CASES = all_transformer_cases()


def seed(name: str) -> int:
    return zlib.crc32(name.encode())


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", CASES)
def test_every_factorization_implements_the_operator(name: str) -> None:
    case = CASES[name]
    arrays = case.arrays(seed(name))
    expected = case.operator.reference(*arrays)
    for sites in FEW if name.startswith("f32") else one_number(name):
        for intervals in requests(case.operator, sites):
            spec = case.operator.build_spec(intervals)
            assert fault(case.operator, spec, arrays, expected, run_kernel) is None, intervals
            assert fault(case.operator, spec, arrays, expected, concrete) is None, intervals


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in CASES if name.startswith("f32")])
def test_many_sites_too(name: str) -> None:
    case = CASES[name]
    arrays = case.arrays(seed(name))
    expected = case.operator.reference(*arrays)
    for sites in (*REST, 9, 12, 16, 24, 31, 72):
        for intervals in requests(case.operator, sites):
            assert fault(case.operator, case.operator.build_spec(intervals), arrays, expected, run_kernel) is None


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", [name for name in CASES if name.startswith("f32")])
def test_one_bound_moved_by_one_is_noticed(name: str) -> None:
    case = CASES[name]
    operator = case.operator
    intervals = max(requests(operator, 6), key=lambda chosen: sum(len(parts) > 1 for parts in chosen))
    spec = operator.build_spec(intervals)
    for at in {0, len(spec.functions) - 1}:
        for wrong, k, _ in corruptions(operator, spec, at):
            if k is not None and not is_used(operator, spec.functions[at], k):
                continue
            assert noticed(case, wrong), (intervals, wrong.functions[at])


def noticed(case: Case, wrong: object) -> bool:
    """By the kernels, on some data: a lost row of a table matters only where an id asks for it."""
    for s in range(40):
        arrays = case.arrays(s)
        if fault(case.operator, wrong, arrays, case.operator.reference(*arrays), run_kernel) is not None:
            return True
    return False


def is_used(operator: Operator, function: FunctionSpec, k: int) -> bool:
    """A part that is not in the interval is read for form's sake."""
    concatenation = find_parts(operator)
    if concatenation is None:
        return True
    axis, (_, start, _) = concatenation.axis, concatenation.parts[k]
    low, up = function.inputs[k].lower[axis] + start, function.inputs[k].upper[axis] + start
    block: TensorType = function.outputs[0]
    return low < block.upper[axis] and up > block.lower[axis]


def test_blocks_of_a_plan_are_never_empty() -> None:
    for name, case in CASES.items():
        for sites in (1, 6, 8):
            for intervals in requests(case.operator, sites):
                for function in case.operator.build_spec(intervals).functions:
                    assert all(block.size for block in (*function.inputs, *function.outputs)), name
