"""Recurrences: what they mean, in numpy written anew; every way to cut them; and kernels on the pieces."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import numpy as np
import pytest

from einc.core.spec import FunctionSpec
from einc.ops.base import Operator
from einc_runtime.errors import PlanFault
from einc_runtime.kernels.base import ANY_NUMBER
from tests.support.by_definition import list_moved_bounds, require_bits, require_cuts, uncut
from tests.support.definition_oracle import FEW, Array, difference, fault, one_number
from tests.support.kernel_pieces import run_kernel
from tests.support.recurrence_cases import CASES, RecurrenceCase

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


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", NAMES)
def test_every_factorization_implements_the_operator(name: str) -> None:
    operator, arrays, _ = find(name)
    assert [index.name for index in operator.indices] == CASES[name.partition("-")[2]].cut.split()
    require_cuts(operator, arrays, FEW if name.startswith("f32") else one_number(name), (run_kernel, run_compiled))


def run_compiled(operator: Operator, function: FunctionSpec, blocks: Sequence[Array]) -> Sequence[Array]:
    """Machine code, however small a piece is."""
    return run_kernel(operator, function, blocks, repetitions=ANY_NUMBER)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith(("f32", "bf16", "f64"))])
def test_reproducible_pieces_have_the_bits_of_the_whole(name: str) -> None:
    operator, arrays, _ = find(name)
    require_bits(operator, arrays)


LANES = {
    "batch": ("x : T[r, t, d]; w : T[d, d]", {"r": 19}, "output h[r, t, d] = tanh(x[r, t, d]"
              " + 0.2 * sum[e = 5](h[r, t - 1, e, outside = 0] * w[d, e]))"),
    "hidden": ("x : T[r, t, d]; w : T[d, d]", {"d": 37}, "output h[r, t, d] = tanh(x[r, t, d]"
               " + 0.1 * sum[e = 37](h[r, t - 1, e, outside = 0.5] * w[d, e]))"),
    "turned": ("x : T[d, t]; b : T[t]; w : T[n, d]", {"d": 37}, "h[d, n, t] = h[d, n, t - 1, outside = 1]"
               " * cast(x[d, t] > b[t], \"T\") + w[n, d]\noutput y[t, d] = max[n](h[d, n, t])"),
    "shared": ("x : T[t]; w : T[d, n]", {"d": 21}, "scan t {\ng[t] = x[t] - g[t - 1, outside = 0]\n"
               "h[t, n, d] = w[d, n] * g[t] + h[t - 1, n, d, outside = 0]\n}\noutput h, g"),
}  # fmt: skip
"""Lanes of the batch, of the values at each step, of operands whose lanes lie apart, and values without them."""


@pytest.mark.parametrize("dtype", ["f32", "f16"])
@pytest.mark.parametrize("name", LANES)
def test_machine_code_fills_lanes_from_any_loop(name: str, dtype: str) -> None:
    tensors, sizes, text = LANES[name]
    case = RecurrenceCase(tensors, text, lambda: None, "", sizes=sizes)
    operator = case.operator(dtype, in_order=False)
    arrays = case.arrays(operator, 5)
    expected = operator.reference(*arrays)
    (function,) = operator.build_spec(uncut(operator)).functions
    for result, known, desc in zip(run_compiled(operator, function, arrays), expected, operator.outputs, strict=True):
        assert difference(result, known, desc.dtype) is None


@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith("f32")])
def test_one_bound_moved_by_one_is_noticed(name: str) -> None:
    operator, arrays, _ = find(name)
    expected = operator.reference(*arrays)
    for wrong, *_ in list_moved_bounds(operator, (-1,)):
        try:
            difference = fault(operator, wrong, arrays, expected, run_kernel)
        except PlanFault:
            continue
        assert difference is not None, wrong.functions[-1]


def test_costs_are_those_of_the_equations() -> None:
    """Three products, an exponential and a sum for each state, and a product and a sum for each result of it."""
    operator = CASES["selective"].operator("f32")
    (function,) = operator.build_spec(uncut(operator)).functions
    assert operator.flops(function) == 6 * 5 * 3 * (6 + 2)
    assert operator.traffic(function) == 4 * (3 * 6 * 5 + 5 * 3 + 2 * 6 * 3)
    half = operator.build_spec((((0, 2), (2, 5)), ((0, 3),))).functions[0]
    assert operator.flops(half) == 6 * 2 * 3 * (6 + 2)


def test_what_is_carried_from_step_to_step_is_told() -> None:
    (linear,) = CASES["started"].operator("f32").carries
    assert (str(linear.desc), linear.start, linear.output) == ("f32[d=5]", 2, 0)
    (hidden,) = CASES["selective"].operator("bf16").carries
    assert (str(hidden.desc), hidden.start, hidden.output) == ("bf16[d=5, n=3]", None, None)
    cell, state = CASES["pair"].operator("f32").carries
    assert (cell.output, state.output) == (0, 1)
