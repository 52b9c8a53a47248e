"""Aggregations that models define: what they mean, in numpy written anew; every way to cut them; kernels on pieces."""

from __future__ import annotations

import zlib

import numpy as np
import pytest

from einc.core.tensor import DType
from einc.ops.base import Operator
from einc.ops.wrapping import ReproducibleOperator
from einc_runtime.kernels import index
from einc_runtime.kernels.base import ANY_NUMBER, JointInvocation, Kernel
from einc_runtime.kernels.calls.fold import FoldCall
from einc_runtime.kernels.llvm import compiler
from einc_runtime.kernels.llvm.fold import compile_fold
from einc_runtime.kernels.numpy.fold import make_fold
from einc_runtime.kernels.registry import prepare_joint_aggregation
from tests.support.aggregate_cases import CASES
from tests.support.block_slices import slices
from tests.support.by_definition import require_cuts, uncut
from tests.support.definition_oracle import TOLERANCE, Array, difference, one_number, requests
from tests.support.index_cases import concrete
from tests.support.kernel_pieces import run_kernel

NAMES = [f"{dtype}-{name}" for name, case in CASES.items() for dtype in case.dtypes]
SITES = (1, 2, 3, 5, 8)


def find(name: str) -> tuple[Operator, list[Array], list[Array]]:
    """The operator, its data, and what numpy makes of them."""
    dtype, _, word = name.partition("-")
    operator = CASES[word].operator(dtype)
    arrays = CASES[word].arrays(operator, zlib.crc32(name.encode()))
    wide = [array.astype(np.float64) if operator.inputs[k].dtype.is_float else array for k, array in enumerate(arrays)]
    expected = CASES[word].meaning(*wide)
    results = expected if isinstance(expected, tuple) else (expected,)
    return (
        operator,
        arrays,
        [np.asarray(x).astype(o.dtype.numpy()) for x, o in zip(results, operator.outputs, strict=True)],
    )


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", NAMES)
def test_results_are_what_numpy_says(name: str) -> None:
    operator, arrays, expected = find(name)
    (function,) = operator.build_spec(uncut(operator)).functions
    for results in (operator.reference(*arrays), run_kernel(operator, function, arrays)):
        for result, values, desc in zip(results, expected, operator.outputs, strict=True):
            assert difference(result, values, desc.dtype) is None


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", NAMES)
def test_machine_code_computes_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    operator, arrays, expected = find(name)
    kernels: list[Kernel | None] = []

    def build(call: FoldCall, _: int, **options: bool) -> Kernel:
        kernels.append(compile_fold(call, ANY_NUMBER))
        return kernels[-1] or make_fold(call)

    monkeypatch.setattr(index, "build_fold", build)
    (function,) = operator.build_spec(uncut(operator)).functions
    results = run_kernel(operator, function, arrays)
    assert kernels
    text = f"{operator.attributes['program']} {operator.attributes['aggregation']}"
    with_exponentials = any(f"= {word} " in text for word in ("exp", "log", "log1p"))
    assert (None not in kernels) is (compiler.is_available() and not (name.startswith("f64") and with_exponentials))
    for result, values, desc in zip(results, expected, operator.outputs, strict=True):
        assert difference(result, values, desc.dtype) is None


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", NAMES)
def test_every_cut_computes_the_whole(name: str) -> None:
    operator, arrays, _ = find(name)
    require_cuts(operator, arrays, SITES if name.startswith("f32") else one_number(name), (run_kernel, concrete))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith(("f32", "f16", "i32"))])
def test_reproducible_pieces_have_the_bits_of_the_whole(name: str) -> None:
    plain, arrays, _ = find(name)
    operator = ReproducibleOperator(plain)
    (function,) = operator.build_spec(uncut(operator)).functions
    expected = run_kernel(operator, function, arrays)
    for intervals in requests(operator, 3):
        for function in operator.build_spec(intervals).functions:
            inputs = [array[slices(block)] for array, block in zip(arrays, function.inputs, strict=True)]
            results = run_kernel(operator, function, inputs)
            if len({block for spec in operator.build_spec(intervals).functions for block in spec.outputs}) > 1:
                for result, full, block in zip(results, expected, function.outputs, strict=True):
                    part = np.ascontiguousarray(full[slices(block)])
                    assert plain.aggregations[0] == "defined_exact" or result.tobytes() == part.tobytes(), intervals


def test_what_may_be_cut_follows_from_what_is_declared() -> None:
    def cut(name: str, *, reproducible: bool = False) -> list[str]:
        operator = CASES[name].operator("f32")
        chosen = ReproducibleOperator(operator) if reproducible else operator
        return [index.name for index in chosen.indices if index.max_intervals > 1]

    assert cut("logaddexp") == ["rows", "d"]
    assert cut("logaddexp", reproducible=True) == ["rows"], "sums of exponentials have other bits in other orders"
    assert cut("smallest", reproducible=True) == ["rows", "j"], "what is exact has not"
    assert cut("then") == ["d"], "its order is that of i, which is whole"


@pytest.mark.parametrize("size", [1, 5, 40, 3000])
@pytest.mark.parametrize("name", ["f32-logaddexp", "bf16-logaddexp", "f64-welford", "f32-welford", "i32-smallest"])
def test_copies_are_combined_in_place(name: str, size: int) -> None:
    """The first copy lies where the result is written; machine code and numpy say what the definition says."""
    operator, rng = find(name)[0], np.random.default_rng(size)
    text = str(operator.attributes["aggregation"])
    types = [desc.dtype for desc in operator.outputs]

    def draw(dtype: DType) -> Array:
        return rng.integers(1, 50, (3, size)).astype(dtype.numpy())

    copies = [[draw(dtype) for dtype in types] for _ in range(3)]
    parts = [np.stack([copy[k].astype(np.float64) for copy in copies], -1) for k in range(len(types))]
    expected = {
        "logaddexp": lambda x: [np.logaddexp.reduce(x, -1)],
        "smallest": lambda x, p: [x.min(-1), np.where(x == x.min(-1, keepdims=True), p, 99).min(-1)],
        "welford": _pool,
    }[name.partition("-")[2]](*parts)
    target = copies[0]
    reads = [array for copy in copies for array in copy]
    dims = [(0, 1)] * len(types)
    kernel = prepare_joint_aggregation(JointInvocation(operator.aggregations[0], reads, target, dims, text))
    kernel.bind(np.empty(kernel.scratch, np.uint8))()
    for result, values, dtype in zip(target, expected, types, strict=True):
        scale = np.abs(values).max()
        assert np.abs(result.astype(np.float64) - values).max() <= TOLERANCE.get(dtype, 0) * scale


def _pool(n: Array, m: Array, s: Array) -> list[Array]:
    """The count, the mean and the squared distance of several groups of which these are known."""
    count = n.sum(-1)
    mean = (n * m).sum(-1) / count
    return [count, mean, s.sum(-1) + (n * (m - mean[..., None]) ** 2).sum(-1)]
