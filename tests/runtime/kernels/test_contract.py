"""The contract kernel against np.einsum in f64: groups with and without a common stride, diagonals, all types."""

from __future__ import annotations

import itertools

import ml_dtypes
import numpy as np
import pytest

from einc_runtime.kernels.base import Invocation
from einc_runtime.kernels.registry import prepare
from tests.support.kernel_runs import run

pytestmark = pytest.mark.usefixtures("provider")

EXTENTS = dict(zip("abcdefgh", (3, 5, 2, 7, 4, 6, 1, 17), strict=True))
EQUATIONS = [
    "a b, b d -> a d",
    "b a, d b -> a d",
    "a b, b d -> d a",
    "h d, d f -> h f",
    "a b d, d h -> a b h",
    "b d, a f d -> a b f",  # leading columns become a batch
    "a b f, d a f -> b d",  # summed indices merge in one operand only
    "a b f, f d a -> b d",
    "a b d, a d e -> a b e",
    "a b d, a d e -> b a e",
    "a b d, a d e -> b e a",
    "a b, b -> a",
    "a b, a -> b",
    "b, b -> ",
    "a b, a b -> ",
    "a b, a b -> a",
    "a, b -> a b",
    "a, b -> ",
    "a b, b d, d e -> a e",
    "a b, b d, d e, e f -> f a",
    "a b, a b, a b -> b",
    "a a, a b -> b",
    "a a b, b -> a",
    "a b d -> b",
    "a b -> b a",
    "a a -> a",
    "a a -> ",
    "a g, g b -> a b",
    "g a, a g -> g",
    "a, a, b -> a b",
    "a b c d, d c e -> a e b",
    "a h, h b -> a b",
]


def draw(rng, shape, dtype):
    if np.dtype(dtype).kind in "i":
        return rng.integers(-9, 9, shape).astype(dtype)
    return rng.standard_normal(shape).astype(dtype)


def strided(array):
    """The same values as the interior of a larger array."""
    base = np.full([n + 2 for n in array.shape], 99).astype(array.dtype)
    view = base[(*(slice(1, -1) for _ in array.shape), ...)]
    view[...] = array
    return view


def reference(equation, arrays):
    names = sorted(set(equation.replace("->", " ").replace(",", " ").split()))
    left, right = equation.split("->")
    number = {name: k for k, name in enumerate(names)}
    arguments = []
    for part, array in zip(left.split(","), arrays, strict=True):
        wide = np.int64 if np.dtype(array.dtype).kind == "i" else np.float64
        arguments += [array.astype(wide), [number[n] for n in part.split()]]
    return np.einsum(*arguments, [number[n] for n in right.split()])


@pytest.mark.sampled(8)
@pytest.mark.parametrize("equation", EQUATIONS)
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", ml_dtypes.bfloat16, "int32", "int64"], ids=str)
@pytest.mark.parametrize("layout", ["dense", "strided"])
def test_contract_equals_einsum(equation, dtype, layout):
    rng = np.random.default_rng(7)
    left, right = equation.split("->")
    shapes = [[EXTENTS[n] for n in part.split()] for part in left.split(",")]
    arrays = [draw(rng, shape, dtype) for shape in shapes]
    output = np.full([EXTENTS[n] for n in right.split()], 77).astype(dtype)
    if layout == "strided":
        arrays, output = [strided(a) for a in arrays], strided(output)
    expected = reference(equation, arrays)
    before = [a.copy() for a in arrays]
    run("contract", {"equation": equation}, arrays, output)
    tolerance = {"float16": 2e-3, "bfloat16": 1e-2, "float32": 1e-5, "float64": 1e-12}.get(np.dtype(dtype).name, 0)
    np.testing.assert_allclose(
        output.astype(expected.dtype), expected, rtol=tolerance, atol=tolerance * np.abs(expected).max()
    )
    for array, old in zip(arrays, before, strict=True):
        np.testing.assert_array_equal(array, old)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("equation", EQUATIONS)
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", ml_dtypes.bfloat16], ids=str)
def test_contractions_times_a_number(equation, dtype):
    rng = np.random.default_rng(8)
    left, right = equation.split("->")
    arrays = [draw(rng, [EXTENTS[n] for n in part.split()], dtype) for part in left.split(",")]
    output = strided(np.full([EXTENTS[n] for n in right.split()], 77).astype(dtype))
    expected = -0.375 * reference(equation, arrays)
    run("contract", {"equation": equation, "scale": -0.375}, arrays, output)
    tolerance = {"float16": 2e-3, "bfloat16": 1e-2, "float32": 1e-5, "float64": 1e-12}[np.dtype(dtype).name]
    np.testing.assert_allclose(output.astype(expected.dtype), expected, atol=tolerance * np.abs(expected).max())


def test_a_number_is_multiplied_before_the_result_is_rounded():
    a, out = np.full((1, 4000), 100, "f2"), np.empty((1, 1), "f2")
    run("contract", {"equation": "i j, j k -> i k", "scale": 1e-4}, [a, a.T], out)
    assert out[0, 0] == 4000  # without it the sum is beyond f16


def test_all_memory_orders_of_a_batched_product():
    rng = np.random.default_rng(3)
    extents = {"b": 3, "i": 18, "j": 20, "k": 33}
    for a_order, b_order, c_order in itertools.product(*(itertools.permutations(x) for x in ("bik", "bkj", "bij"))):
        a, b = (rng.standard_normal([extents[n] for n in o]).astype("f4") for o in (a_order, b_order))
        c = np.empty([extents[n] for n in c_order], "f4")
        equation = f"{' '.join(a_order)}, {' '.join(b_order)} -> {' '.join(c_order)}"
        expected = reference(equation, [a, b])
        run("contract", {"equation": equation}, [a, b], c)
        np.testing.assert_allclose(c, expected, atol=1e-4)


def test_large_matrices_need_no_scratch():
    """The forms that models use go to BLAS without a copy: rows, transposed weights, heads as batches."""
    sizes = {"t": 64, "m": 48, "h": 4, "d": 32}
    cases = ["t m, m d -> t d", "t m, d m -> t d", "t m, h d m -> h t d", "h t d, h m d -> h t m", "t m, m -> t"]
    for equation in cases:
        left, right = equation.split("->")
        arrays = [np.ones([sizes[n] for n in part.split()], "f4") for part in left.split(",")]
        output = np.empty([sizes[n] for n in right.split()], "f4")
        kernel = prepare(Invocation("contract", {"equation": equation}, arrays, [output]))
        assert kernel.scratch == 0, equation


@pytest.mark.sampled(4)
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", ml_dtypes.bfloat16, "int32"], ids=str)
@pytest.mark.parametrize(
    "equation", ["t m, h d m -> h t d", "h d m, m t -> h t d", "b t m, h d m -> h b t d", "t m, d h m -> t h d"]
)
def test_results_in_parts_are_copied_from_one_product(equation, dtype):
    """Sums of many products whose result is no single matrix: heads first, with odd extents."""
    rng = np.random.default_rng(11)
    sizes = {"t": 37, "m": 211, "h": 3, "d": 43, "b": 2}
    left, _ = equation.split("->")
    arrays = [draw(rng, [sizes[n] for n in part.split()], dtype) for part in left.split(",")]
    expected = reference(equation, arrays)
    output = np.full(expected.shape, 77).astype(dtype)
    run("contract", {"equation": equation}, arrays, output)
    tolerance = {"float16": 2e-3, "bfloat16": 1e-2, "float32": 1e-5, "float64": 1e-12}.get(np.dtype(dtype).name, 0)
    np.testing.assert_allclose(output.astype(expected.dtype), expected, atol=tolerance * np.abs(expected).max())


def test_products_accumulate_wider_than_they_are_stored():
    a = np.full((1, 5000), 1, "f2")
    out = np.empty((1, 1), "f2")
    run("contract", {"equation": "i j, j k -> i k"}, [a, a.T], out)
    assert out[0, 0] == 5000  # in f16 the sum would stick at 2048
    a, out = np.full((1, 3), 2**20, "i4"), np.empty((1, 1), "i4")
    b = np.array([[2**12], [-(2**12)], [1]], "i4")
    run("contract", {"equation": "i j, j k -> i k"}, [a, b], out)
    assert out[0, 0] == 2**20


F = np.ones((2, 3), "f4")
