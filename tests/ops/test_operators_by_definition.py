"""Every operator on many sites: joining, aggregating and recomposing its blocks equals the reference, by its own
meaning on blocks and by the runtime's kernels; a bound moved by one is noticed; values where functions are special."""

from __future__ import annotations

import zlib
from collections.abc import Iterator

import numpy as np
import pytest

from einc.core.spec import FunctionSpec
from einc.core.tensor import DType, TensorDesc, TensorType
from einc.ops.base import Operator
from einc.ops.equation import build_equation
from einc.ops.index_operator import find_parts
from einc.ops.scalar import make_step
from einc_runtime.plan.scalar_functions import SCALAR_FUNCTIONS
from einc_runtime.plan.scalar_programs import ScalarInput
from tests.support.block_slices import slices
from tests.support.by_definition import list_moved_bounds, require_cuts
from tests.support.definition_oracle import FEW, REST, Array, fault, instantiate, one_number, requests
from tests.support.kernel_pieces import run_kernel
from tests.support.operator_cases import COMPUTED_TYPES, POSITIVE, all_cases, unary_and_binary
from tests.support.transformer_cases import Case, all_transformer_cases, concrete

PLAIN = {name: Case(operator, positive=name.partition("-")[2] in POSITIVE) for name, operator in all_cases().items()}
CASES = {**PLAIN, **all_transformer_cases()}
assert len(CASES) == len(PLAIN) + len(all_transformer_cases())
SCALAR = {f"{dtype}-{name}" for dtype in COMPUTED_TYPES for name in unary_and_binary(dtype)}


def check(name: str, sites: tuple[int, ...]) -> None:
    arrays = CASES[name].arrays(zlib.crc32(name.encode()))
    require_cuts(CASES[name].operator, arrays, sites, (instantiate if name in PLAIN else concrete, run_kernel))


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", CASES)
def test_every_factorization_implements_the_operator(name: str) -> None:
    """How an operator is cut depends neither on the type of its elements nor on its scalar function."""
    check(name, FEW if name.startswith("f32") and name not in SCALAR else one_number(name))


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_many_sites_too(name: str) -> None:
    check(name, (*FEW, *REST, *((9, 12, 16, 24, 31, 36, 72) if name.startswith("f32") else ())))


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", [name for name in CASES if name.startswith(("f32", "bool"))])
def test_one_bound_moved_by_one_is_noticed(name: str) -> None:
    case = CASES[name]
    for wrong, k, slab, function in list_moved_bounds(case.operator):
        if k is not None and not is_used(case.operator, function, k):
            continue
        for compute in (instantiate, run_kernel) if name in PLAIN else (run_kernel,):
            known = (
                fault(case.operator, wrong, arrays, case.operator.reference(*arrays), compute)
                for arrays in draw_all(case, k, slab)
            )
            assert any(known), wrong


def draw_all(case: Case, k: int | None, slab: TensorType) -> Iterator[list[Array]]:
    """Data on which a lost slab of an operand may matter: a row of a table does only where an id asks for it, and under
    max and min a part does only if it is extreme."""
    for seed in range(40 if case.draws else 1):
        yield case.arrays(seed)
    for extreme in (50, -50) if k is not None and not case.draws else ():
        changed = case.arrays(0)
        changed[k][slices(slab)] = np.asarray(extreme).astype(changed[k].dtype)
        yield changed


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
        for sites in (1, 6, 8) if name not in PLAIN else ():
            for intervals in requests(case.operator, sites):
                for function in case.operator.build_spec(intervals).functions:
                    assert all(block.size for block in (*function.inputs, *function.outputs)), name


def test_function_specifications_stand_in_lexicographic_order() -> None:
    spec = CASES["f32-matmul"].operator.build_spec((((0, 3), (3, 7)), ((0, 9),), ((0, 2), (2, 5))))
    corners = [(function.outputs[0].lower, function.outputs[0].upper) for function in spec.functions]
    assert corners == [((0, 0), (3, 2)), ((0, 2), (3, 5)), ((3, 0), (7, 2)), ((3, 2), (7, 5))]


SPECIAL = {
    **{
        dtype: [np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0, 1e-7, -1e-7, 0.5, 3.0, -2.5, 30.0, -30.0, 200.0, -200.0]
        for dtype in (DType.F16, DType.BF16, DType.F32, DType.F64)
    },
    DType.I32: [0, 1, -1, 7, -7, 3, -3, 2**31 - 1, -(2**31)],
    DType.I64: [0, 1, -1, 7, -7, 3, -3, 2**63 - 1, -(2**63)],
    DType.BOOL: [True, False],
}


@pytest.mark.parametrize("dtype", SPECIAL, ids=str)
def test_kernels_and_references_agree_on_special_values(dtype: DType) -> None:
    values = np.array(SPECIAL[dtype]).astype(dtype.numpy())
    rows, columns = TensorDesc(("i",), values.shape, dtype), TensorDesc(("j",), values.shape, dtype)
    for name, signature in SCALAR_FUNCTIONS.items():
        if dtype.value not in signature.accepts or name == "where" or name.startswith("cast:"):
            continue
        labels: list[tuple[TensorDesc, tuple[str, ...]]] = [(rows, ("i",)), (columns, ("j",))][: signature.arity]
        operator = build_equation(
            labels,
            [("i", "i"), ("j", "j")][: signature.arity],
            make_step(name, *map(ScalarInput, range(signature.arity))),
            None,
        )
        arrays = [values] * signature.arity
        undivided = FunctionSpec(tuple(d.type for d in operator.inputs), tuple(d.type for d in operator.outputs))
        with np.errstate(all="ignore"):  # as executors run kernels
            (result,), (expected,) = run_kernel(operator, undivided, arrays), operator.reference(*arrays)
        if name == "gelu":  # at -inf the formula gives nan, its limit is 0: either will do
            result, expected = result[values > -np.inf], expected[values > -np.inf]
        close = np.isclose(result.astype(float), expected.astype(float), rtol=1e-2, atol=1e-6, equal_nan=True)
        assert close.all(), (name, [(v[~close], np.broadcast_to(v, close.shape)[~close]) for v in (result, expected)])
