"""Recurrences: what they mean, in numpy written anew; every way to cut them; and kernels on the pieces."""

from __future__ import annotations

import zlib

import numpy as np
import pytest

from einc.ops import registry
from einc.ops.base import Operator
from einc_runtime.errors import PlanFault
from einc_runtime.kernels.base import Invocation
from einc_runtime.kernels.registry import PROVIDERS, prepare
from tests.support.definition_oracle import FEW, Array, corruptions, difference, fault, one_number, requests
from tests.support.kernel_pieces import run_kernel
from tests.support.recurrence_cases import CASES

NAMES = [f"{dtype}-{name}" for name, case in CASES.items() for dtype in case.dtypes]


def find(name: str) -> tuple[Operator, list[Array], list[Array]]:
    """The operator, its data, and what numpy makes of them."""
    dtype, _, word = name.partition("-")
    case = CASES[word]
    operator = case.operator(dtype)
    arrays = case.arrays(operator, zlib.crc32(name.encode()))
    wide = [array.astype(np.float64) if operator.inputs[k].dtype.is_float else array for k, array in enumerate(arrays)]
    expected = case.meaning(*wide)
    return operator, arrays, list(expected) if isinstance(expected, tuple) else [np.asarray(expected)]


@pytest.mark.parametrize("name", NAMES)
def test_the_reference_is_what_numpy_says(name: str) -> None:
    operator, arrays, expected = find(name)
    results = operator.reference(*arrays)
    for result, known, desc in zip(results, expected, operator.outputs, strict=True):
        assert result.shape == known.shape == desc.shape
        assert difference(result, known.astype(result.dtype), desc.dtype) is None


@pytest.mark.parametrize("name", NAMES)
def test_every_factorization_implements_the_operator(name: str) -> None:
    operator, arrays, _ = find(name)
    assert [index.name for index in operator.indices] == CASES[name.partition("-")[2]].cut.split()
    expected = operator.reference(*arrays)
    for sites in FEW if name.startswith("f32") else one_number(name):
        for intervals in requests(operator, sites):
            spec = operator.build_spec(intervals)
            assert fault(operator, spec, arrays, expected, run_kernel) is None, intervals


@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith("f32")])
def test_one_bound_moved_by_one_is_noticed(name: str) -> None:
    operator, arrays, _ = find(name)
    expected = operator.reference(*arrays)
    intervals = max(requests(operator, 6), key=lambda chosen: sum(len(parts) > 1 for parts in chosen))
    spec = operator.build_spec(intervals)
    for wrong, _, _ in corruptions(operator, spec, len(spec.functions) - 1):
        try:
            found = fault(operator, wrong, arrays, expected, run_kernel)
        except PlanFault:
            continue
        assert found is not None, wrong.functions[-1]


@pytest.mark.parametrize("name", NAMES)
def test_restored_operators_equal_the_originals(name: str) -> None:
    operator = find(name)[0]
    restored = registry.restore(operator.family, operator.inputs, dict(operator.attributes))
    assert restored == operator
    assert hash(restored) == hash(operator)
    assert restored.kernel == operator.kernel


def test_costs_are_those_of_the_equations() -> None:
    """Three products, an exponential and a sum for each state, and a product and a sum for each result of it."""
    operator = CASES["selective"].operator("f32")
    (function,) = operator.build_spec(tuple(index.intervals(1) for index in operator.indices)).functions
    assert operator.flops(function) == 6 * 5 * 3 * (6 + 2)
    assert operator.traffic(function) == 4 * (3 * 6 * 5 + 5 * 3 + 2 * 6 * 3)
    half = operator.build_spec((((0, 2), (2, 5)), ((0, 3),))).functions[0]
    assert operator.flops(half) == 6 * 2 * 3 * (6 + 2)


@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_call_that_does_not_fit_is_refused(provider: str) -> None:
    operator = CASES["started"].operator("f32")
    attributes = {k: list(v) if isinstance(v, tuple) else v for k, v in operator.kernel.attributes}
    arrays = [np.zeros((6, 5), "f4"), np.zeros((6, 5), "f4"), np.zeros(5, "f4")]
    result = np.zeros((6, 5), "f4")

    def build(inputs: list[Array], output: Array, **changed: object) -> None:
        prepare(Invocation("recurrence", {**attributes, **changed}, inputs, [output]), provider)  # type: ignore[dict-item]

    build(arrays, result)
    for inputs, output, changed in (
        (arrays[:2], result, {}),
        ([*arrays[:2], arrays[2][:4]], result, {}),
        ([arrays[0][:5], *arrays[1:]], result, {}),
        (arrays, result.astype("f8"), {}),
        (arrays, result, {"results": [1]}),
        (arrays, result, {"results": [True]}),
        (arrays, result, {"reads": [7]}),
        (arrays, result, {"loops": "t=6 d=5 e=2"}),
        (arrays, result, {"loops": "t=6 d=4"}),
    ):
        with pytest.raises(PlanFault):
            build(inputs, output, **changed)
