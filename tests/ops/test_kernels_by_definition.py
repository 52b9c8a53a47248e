"""The runtime's kernels under the definition oracle, and on the values where functions are special."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import numpy as np
import pytest

from einc.core.spec import FunctionSpec
from einc.core.tensor import COMPUTED_TYPES, DType, TensorDesc
from einc.ops.equation import build_equation
from einc.ops.scalar import make_step
from einc_runtime.plan.scalar_functions import SCALAR_FUNCTIONS
from einc_runtime.plan.scalar_programs import ScalarInput
from tests.support.block_slices import slices
from tests.support.definition_oracle import FEW, REST, Array, corruptions, fault, one_number, random_array, requests
from tests.support.kernel_pieces import run_kernel
from tests.support.operator_cases import POSITIVE, all_cases, unary_and_binary

CASES = all_cases()


def data(name: str) -> list[Array]:
    rng = np.random.default_rng(zlib.crc32(name.encode()) + 1)
    return [random_array(desc, rng, name.partition("-")[2] in POSITIVE) for desc in CASES[name].inputs]


def check(name: str, sites: Sequence[int]) -> None:
    operator = CASES[name]
    arrays = data(name)
    expected = operator.reference(*arrays)
    for p in sites:
        for intervals in requests(operator, p):
            assert fault(operator, operator.build_spec(intervals), arrays, expected, run_kernel) is None, intervals


SCALAR = {f"{dtype}-{name}" for dtype in COMPUTED_TYPES for name in unary_and_binary(dtype)}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", CASES)
def test_kernels_implement_every_operator(name: str) -> None:
    """How an operator is cut depends neither on the type of its elements nor on its scalar function."""
    check(name, FEW if name.startswith("f32") and name not in SCALAR else one_number(name))


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_kernels_implement_every_operator_on_many_sites(name: str) -> None:
    check(name, (*FEW, *REST, 9, 12, 16, 24))


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


@pytest.mark.parametrize("name", [name for name in CASES if name.startswith("f32")])
def test_kernels_notice_a_bound_moved_by_one(name: str) -> None:
    operator = CASES[name]
    arrays = data(name)
    intervals = max(requests(operator, 4), key=lambda chosen: sum(len(parts) > 1 for parts in chosen))
    spec = operator.build_spec(intervals)
    for wrong, k, slab in corruptions(operator, spec, 0):
        changed = [array.copy() for array in arrays]
        faults = []
        for extreme in (50, -50):
            if k is not None:
                changed[k][slices(slab)] = np.asarray(extreme).astype(changed[k].dtype)
            faults.append(fault(operator, wrong, changed, operator.reference(*changed), run_kernel))
        assert any(faults), wrong.functions[0]
