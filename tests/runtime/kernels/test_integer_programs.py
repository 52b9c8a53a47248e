"""Programs of integers, conditions and floats together: the reference and every kind of code, against plain numpy."""

from __future__ import annotations

import numpy as np
import pytest

from einc.core.tensor import DType
from einc.ops.evaluate import evaluate
from einc_runtime.kernels.base import ANY_NUMBER, Invocation
from einc_runtime.kernels.llvm import compiler
from einc_runtime.kernels.llvm import map as compiled
from einc_runtime.kernels.llvm import reduce as compiled_reduce
from einc_runtime.kernels.numpy import map as plain
from einc_runtime.kernels.scalar_program import read_steps
from einc_runtime.kernels.triton.scalar import ScalarSource
from einc_runtime.plan.scalar_programs import ScalarProgram, TypedStep
from tests.support.kernel_runs import BF16

ROWS, COLUMNS = 9, 37
PROGRAM = (
    "t0 = ge x1 x2; t1 = sub x1 x2; t2 = floordiv t1 -5; t3 = mod t1 -5; t4 = mul t2 t3; t5 = max t4 -11; "
    "t6 = neg t5; t7 = cast:i32 t6; t8 = min t7 20; t9 = abs t8; t10 = cast:f32 t9; t11 = add x0 t10; "
    "t12 = cast:i64 t0; t13 = mul t12 3; t14 = relu t13; t15 = eq t14 3; t16 = and t0 t15; t17 = cast:f32 t16; "
    "t18 = sub t11 t17; t19 = cast:bool x2; t20 = where t19 t18 -7.0"
)
X = np.random.default_rng(3).standard_normal((ROWS, COLUMNS)).astype("f4")
WHOLE = np.random.default_rng(4).integers(-(1 << 31), 1 << 31, (5, 7, COLUMNS))
needs_llvm = pytest.mark.skipif(
    not compiler.is_available(), reason="llvmlite is not installed, or not for this processor"
)


def expected() -> np.ndarray:
    rows, columns = np.indices((ROWS, COLUMNS))
    apart, causal = rows - columns, rows >= columns
    product = np.array([[(d // -5) * (d % -5) for d in row] for row in apart.tolist()])
    size = abs(np.minimum(-np.maximum(product, -11), 20))
    return np.where(columns != 0, (X + size.astype("f4")) - causal.astype("f4"), np.float32(-7))


def positions() -> list[np.ndarray]:
    return [np.arange(ROWS)[:, None], np.arange(COLUMNS)[None, :]]


def steps(program: str) -> tuple[TypedStep, ...]:
    return read_steps(program, ["f32", "i64", "i64"])


def run_map(target: np.ndarray) -> np.ndarray:
    arrays = [X, *(array.ravel() for array in positions())]
    attributes = {"program": PROGRAM, "indices": "i j, i, j -> i j"}
    kernel = plain.build_map(Invocation("map", attributes, arrays, [target]))
    kernel.bind(np.zeros(kernel.scratch + 64, np.uint8))()
    return target


def test_the_reference() -> None:
    found = evaluate(ScalarProgram.parse(PROGRAM, 3), [X, *positions()], [DType.F32, DType.I64, DType.I64])
    np.testing.assert_array_equal(found, expected())


@pytest.mark.parametrize("dtype", ["f4", BF16])
def test_numpy(dtype: np.dtype) -> None:
    np.testing.assert_array_equal(run_map(np.empty(X.shape, dtype)), expected().astype(dtype))


@needs_llvm
def test_llvm() -> None:
    typed, target = steps(PROGRAM), np.empty_like(X)
    run = compiled.compile_map(typed, ("f32", "i64", "i64", "f32"), [X, *positions(), target])
    assert run is not None
    run()
    np.testing.assert_array_equal(target, expected())


@needs_llvm
@pytest.mark.parametrize(("source", "target"), [("i8", "i4"), ("i4", "i8"), ("i4", "i4"), ("i8", "f4"), ("?", "i4")])
def test_llvm_reads_and_writes_integers(source: str, target: str) -> None:
    array = (WHOLE > 0) if source == "?" else WHOLE.astype(source)
    kinds = [{"i8": "i64", "i4": "i32", "f4": "f32", "?": "bool"}[word] for word in (source, target)]
    result = np.empty(array.shape, target)
    run = compiled.compile_map(read_steps(f"t0 = cast:{kinds[1]} x0", kinds[:1]), tuple(kinds), [array, result])
    assert run is not None
    run()
    np.testing.assert_array_equal(result, array.astype(target))


@pytest.mark.sampled(2)
@needs_llvm
@pytest.mark.parametrize("dtype", ["i4", "i8"])
@pytest.mark.parametrize("kept", ["i j k -> i j", "i j k -> k", "i j k -> i k", "i j k -> "])
@pytest.mark.parametrize("aggregation", ["sum", "prod", "max", "min"])
def test_llvm_combines_integers_in_64_bits(dtype: str, kept: str, aggregation: str) -> None:
    array = (WHOLE // 3).astype(dtype)
    axes = tuple(axis for axis, name in enumerate("ijk") if name not in kept.split(">")[1])
    function = {"sum": np.sum, "prod": np.prod, "max": np.max, "min": np.min}[aggregation]
    with np.errstate(over="ignore"):
        wide = function(array.astype("i8") + 1, axis=axes).astype(dtype)
    result = np.empty(wide.shape, dtype)
    attributes = {"program": "t0 = add x0 1", "indices": kept, "aggregation": aggregation}
    call = compiled_reduce.ReduceCall.parse(Invocation("reduce", attributes, [array], [result]))
    kernel = compiled_reduce.compile_reduce(call, ANY_NUMBER)
    assert kernel is not None
    kernel.bind(np.empty(0, np.uint8))()
    np.testing.assert_array_equal(result, wide)


@needs_llvm
@pytest.mark.parametrize("step", ["cast:f16 x1", "cast:i64 x0", "cast:bool x0"])
def test_llvm_has_no_conversion_that_could_differ_from_that_of_numpy(step: str) -> None:
    """Integers become f16 by way of f32 here, and floats out of range are no integers."""
    from einc_runtime.kernels.llvm.vectors import is_supported

    assert not is_supported(steps(f"t0 = {step}"))


def test_triton() -> None:
    typed = steps("t0 = sub x2 x1; t1 = cast:f32 t0; t2 = mul t1 x0")
    source = ScalarSource(typed, ["v0", "row", "column"])
    assert source.lines == ["t0 = column - row", "t1 = t0.to(tl.float32)", "t2 = t1 * v0"]
