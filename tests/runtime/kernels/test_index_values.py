"""Programs that read the values of indices: the reference and every kind of code, against plain numpy."""

from __future__ import annotations

import numpy as np
import pytest

from einc.core.tensor import DType
from einc.ops.evaluate import evaluate
from einc_runtime.kernels.base import ScratchAllocator
from einc_runtime.kernels.llvm import compiler
from einc_runtime.kernels.numpy.lowering import lower
from einc_runtime.kernels.numpy.pieces import PieceEvaluator, Walk, breadth_of, make_walk_runner
from einc_runtime.kernels.scalar_program import read_steps
from einc_runtime.kernels.triton.scalar import ScalarSource
from einc_runtime.plan.scalar_programs import ScalarProgram, TypedStep
from tests.support.kernel_runs import BF16

ROWS, COLUMNS = 9, 37
PROGRAM = (
    "t0 = ge i0 i1; t1 = sub i0 i1; t2 = floordiv t1 -5; t3 = mod t1 -5; t4 = mul t2 t3; t5 = max t4 -11; "
    "t6 = neg t5; t7 = cast:i32 t6; t8 = min t7 20; t9 = abs t8; t10 = cast:f32 t9; t11 = add x0 t10; "
    "t12 = cast:i64 t0; t13 = mul t12 3; t14 = relu t13; t15 = eq t14 3; t16 = and t0 t15; t17 = cast:f32 t16; "
    "t18 = sub t11 t17; t19 = cast:bool i1; t20 = where t19 t18 -7.0"
)
X = np.random.default_rng(3).standard_normal((ROWS, COLUMNS)).astype("f4")


def expected() -> np.ndarray:
    rows, columns = np.indices((ROWS, COLUMNS))
    apart, causal = rows - columns, rows >= columns
    product = np.array([[(d // -5) * (d % -5) for d in row] for row in apart.tolist()])
    size = abs(np.minimum(-np.maximum(product, -11), 20))
    return np.where(columns != 0, (X + size.astype("f4")) - causal.astype("f4"), np.float32(-7))


def index_arrays() -> list[np.ndarray]:
    return [np.arange(ROWS)[:, None], np.arange(COLUMNS)[None, :]]


def steps(program: str, output: str) -> tuple[TypedStep, ...]:
    return read_steps(program, ["f32"], output, indices=2)


def test_the_reference() -> None:
    found = evaluate(ScalarProgram.parse(PROGRAM, 1, 2), [X], [DType.F32], index_arrays())
    np.testing.assert_array_equal(found, expected())


@pytest.mark.parametrize(("output", "dtype"), [("f32", "f4"), ("bf16", BF16)])
def test_numpy(output: str, dtype: np.dtype) -> None:
    sources, target = [X, *index_arrays()], np.empty(X.shape, dtype)
    kinds, breadths = ["f32", "i64", "i64"], [breadth_of(view) for view in sources]
    code = lower(steps(PROGRAM, output), kinds, breadths, target.dtype, indices=2)
    scratch, walk = ScratchAllocator(), Walk.over([target], 50)
    evaluator = PieceEvaluator.allocate(code, walk, scratch)
    resolve = evaluator.bind(np.zeros(scratch.size + 64, np.uint8), sources, target)
    make_walk_runner(walk, lambda piece: resolve(piece)[0])()
    np.testing.assert_array_equal(target, expected().astype(dtype))


@compiler.compile_once
def emit(typed: tuple[TypedStep, ...]) -> object:
    from llvmlite import ir

    from einc_runtime.kernels.llvm.emitter import I64, LANES, Emitter, vector
    from einc_runtime.kernels.llvm.vectors import evaluate as emit_steps

    e = Emitter()
    rows, count = e.argument(), e.argument()
    source, target = e.operand(1), e.operand(1)
    lanes = ir.Constant(vector(I64), list(range(LANES)))
    with e.loop(rows) as row:
        read, write = (e.b.add(x.address, e.b.mul(row, x.strides[0])) for x in (source, target))

        def body(position: object, mask: object) -> None:
            indices = [e.broadcast(row), e.b.add(e.broadcast(position), lanes)]
            values = [e.load(read, position, "f32", mask)]
            e.store(emit_steps(e, typed, values, indices), write, position, "f32", mask)

        e.sweep(count, body)
    return e.finish()


@pytest.mark.skipif(not compiler.is_available(), reason="llvmlite is not installed, or not for this processor")
def test_llvm() -> None:
    from einc_runtime.kernels.llvm.vectors import is_supported

    typed, target = steps(PROGRAM, "f32"), np.empty_like(X)
    assert is_supported(typed)
    arguments = [ROWS, COLUMNS, *compiler.operand_arguments(X), *compiler.operand_arguments(target)]
    compiler.CompiledCall(emit(typed), arguments, X, target)()
    np.testing.assert_array_equal(target, expected())


@pytest.mark.skipif(not compiler.is_available(), reason="llvmlite is not installed, or not for this processor")
@pytest.mark.parametrize("step", ["cast:f16 i0", "cast:i64 x0", "cast:bool x0", "cast:f64 i0"])
def test_llvm_has_no_conversion_that_could_differ_from_that_of_numpy(step: str) -> None:
    """Integers become f16 by way of f32 here, and floats out of range are no integers."""
    from einc_runtime.kernels.llvm.vectors import is_supported

    result = step.split()[0].removeprefix("cast:")
    assert not is_supported(steps(f"t0 = {step}", result))


def test_triton() -> None:
    source = ScalarSource(steps("t0 = sub i1 i0; t1 = cast:f32 t0; t2 = mul t1 x0", "f32"), ["v0"], ["row", "column"])
    assert source.lines == ["t0 = column - row", "t1 = t0.to(tl.float32)", "t2 = t1 * v0"]
