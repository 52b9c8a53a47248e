"""The errors of scalar functions on CPUs are those that the documents state, on special values and large ones, too."""

from __future__ import annotations

import numpy as np
import pytest

from einc.core.tensor import DType
from einc.ops.evaluate import evaluate
from einc.ops.scalar import make_step
from einc_runtime.kernels.base import Invocation
from einc_runtime.kernels.llvm import compiler
from einc_runtime.kernels.registry import prepare
from einc_runtime.plan.scalar_programs import ScalarInput
from tests.support.function_oracles import BITS, EXACT, SPECIAL, ULPS, WHOLE, count_ulps, draw
from tests.support.kernel_runs import BF16, apply

pytestmark = pytest.mark.usefixtures("provider")

TYPES = {"f2": DType.F16, "f4": DType.F32, "f8": DType.F64, BF16: DType.BF16, "i4": DType.I32, "i8": DType.I64}


def program(function: str, operands: int) -> str:
    return f"t0 = {function} {' '.join(f'x{k}' for k in range(operands))}"


def reference(function: str, arrays: list[np.ndarray], dtype: str | np.dtype) -> np.ndarray:
    step = make_step(function, *map(ScalarInput, range(len(arrays))))
    return evaluate(step, arrays, [TYPES[dtype]] * len(arrays))


def exact_values(function: str, arrays: list[np.ndarray]) -> np.ndarray:
    """In f64 for f32. For f64 in a longer float, where the machine and numpy have one."""
    longer = np.longdouble if arrays[0].dtype == np.float64 else np.float64
    with np.errstate(all="ignore"):
        return EXACT[function](*(array.astype(longer) for array in arrays))


@pytest.mark.sampled(4)
@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("function", EXACT)
def test_errors_are_within_the_stated_bounds(function, dtype):
    arrays = draw(function, dtype)
    exact = exact_values(function, arrays)
    assert count_ulps(apply(program(function, len(arrays)), *arrays), exact) <= ULPS[dtype]
    assert count_ulps(reference(function, arrays, dtype), exact) <= ULPS[dtype]


@pytest.mark.parametrize("dtype", ["f2", BF16], ids=str)
@pytest.mark.parametrize("function", EXACT)
def test_16_bit_floats_are_rounded_once(function, dtype):
    with np.errstate(over="ignore"):
        arrays = [array.astype(dtype) for array in draw(function, "f4", 3000)]
    exact = exact_values(function, [array.astype("f4") for array in arrays])
    found = apply(program(function, len(arrays)), *arrays).astype("f8")
    with np.errstate(all="ignore"):
        expected = exact.astype(dtype)
    fine = np.isfinite(expected.astype("f8"))
    unit = np.spacing(np.abs(expected[fine]).astype("f4")) * 2.0 ** (
        23 - {"float16": 10, "bfloat16": 7}[expected.dtype.name]
    )
    unit = np.maximum(unit, 2.0**-24 if expected.dtype == np.float16 else 2.0**-133)
    assert (np.abs(found[fine] - exact[fine]) / unit).max() <= 0.51
    np.testing.assert_array_equal(found[~fine], expected[~fine].astype("f8"))


@pytest.mark.parametrize("dtype", ["f2", BF16, "f4", "f8"], ids=str)
@pytest.mark.parametrize("function", WHOLE)
def test_whole_numbers_are_exact(function, dtype):
    halves = np.arange(-41, 42) / 2
    big = [2.0**11 + 1, 2.0**22 + 0.5, 2.0**23 - 0.5, 2.0**23 + 1, 2.0**52 - 0.5, 1e30]
    x = np.concatenate([halves, halves + 0.25, np.nextafter(halves, 9), [*SPECIAL, *big], np.negative(big)])
    with np.errstate(all="ignore"):
        x = x.astype(dtype)
    expected = np.array([WHOLE[function](v) if np.isfinite(v) or function == "sign" else v for v in x.tolist()])
    found = apply(program(function, 1), x).astype("f8")
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(reference(function, [x], dtype).astype("f8"), expected)
    kept = np.zeros(found.shape, bool) if function == "sign" else found == 0
    assert (np.signbit(found) == np.signbit(x.astype("f8")))[kept].all()
    if function == "sign":
        assert not np.signbit(found[found == 0]).any()


@pytest.mark.parametrize("dtype", ["f2", BF16, "f4", "f8"], ids=str)
def test_what_a_float_is(dtype):
    x = np.array([*SPECIAL, np.finfo("f2").max, -1e-7], dtype).repeat(3)
    for function, expected in [("isnan", np.isnan(x)), ("isinf", np.isinf(x)), ("isfinite", np.isfinite(x))]:
        np.testing.assert_array_equal(apply(program(function, 1), x, out=(x.shape, "?")), expected)
        np.testing.assert_array_equal(reference(function, [x], dtype), expected)


@pytest.mark.parametrize("dtype", ["i4", "i8"])
def test_bits_of_integers(dtype):
    width = 8 * np.dtype(dtype).itemsize
    values = [
        0,
        1,
        -1,
        6,
        -7,
        2 ** (width - 1) - 1,
        -(2 ** (width - 1)),
        0x55555555,
        width - 1,
        width,
        width + 1,
        -width,
    ]
    x, y = (np.array(column, dtype) for column in zip(*[(a, b) for a in values for b in values], strict=True))

    for function, meaning in BITS.items():
        wanted = [meaning(a, b, width) for a, b in zip(x.tolist(), y.tolist(), strict=True)]
        assert apply(program(function, 2), x, y).tolist() == wanted, function
        assert reference(function, [x, y], dtype).tolist() == wanted, function
    assert apply("t0 = sign x0", x).tolist() == [(a > 0) - (a < 0) for a in x.tolist()]


def test_functions_without_an_error_and_erf_have_machine_code(provider):
    x = np.linspace(-3, 3, 1000, dtype="f4")
    steps = "t0 = erf x0; t1 = exp2 t0; t2 = floor t1; t3 = ceil t2; t4 = round t3; t5 = trunc t4; t6 = sign t5"
    attributes = {"program": steps, "indices": "i -> i"}
    kernel = prepare(Invocation("map", attributes, [x], [np.empty_like(x)]))
    run = kernel.bind(np.zeros(kernel.scratch + 64, np.uint8))
    assert isinstance(run, compiler.CompiledCall) == (provider == "llvm")


@pytest.mark.parametrize("function", [*EXACT, *WHOLE])
def test_no_stride_makes_a_difference(function):
    """numpy has loops of its own for some strides; they are for the same values."""
    for dtype in ("f4", "f8"):
        arrays = (
            [array[:99] for array in draw(function, dtype, 33)]
            if function in EXACT
            else [np.linspace(-9, 9, 99, dtype=dtype)]
        )
        dense = apply(program(function, len(arrays)), *arrays)
        for step in (2, 3, 4, 8):
            spread = [np.repeat(array, step).reshape(99, step)[:, 0] for array in arrays]
            np.testing.assert_array_almost_equal_nulp(apply(program(function, len(arrays)), *spread), dense, 8)
