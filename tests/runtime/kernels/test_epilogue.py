"""Contractions together with the map after them: which maps fit, and that results are those of two kernels."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from einc_runtime.kernels.base import Invocation
from einc_runtime.kernels.gpu import GpuArray
from einc_runtime.kernels.registry import prepare
from einc_runtime.kernels.triton.epilogue import Epilogue, build_with_epilogue, parse_epilogue
from einc_runtime.kernels.triton.gemm import Gemm
from einc_runtime.kernels.triton.launches import SCRATCH, relocate_step
from einc_runtime.plan.schema import Block
from tests.support.emulated_gemm import multiply

NAMES = {"float16": "f16", "float32": "f32", "float64": "f64", "bfloat16": "bf16"}


@pytest.mark.parametrize(
    ("program", "arity", "place", "expected"),
    [
        ("t0 = relu x0", 1, 0, Epilogue(0, (), "relu")),
        ("t0 = gelu_tanh x0", 1, 0, Epilogue(0, (), "gelu_tanh")),
        ("t0 = add x0 x1", 2, 0, Epilogue(0, (1,), "")),
        ("t0 = add x0 x1", 2, 1, Epilogue(1, (0,), "")),
        ("t0 = add x1 x0; t1 = relu t0", 2, 0, Epilogue(0, (1,), "relu")),
        ("t0 = add x0 x1; t1 = add t0 x2", 3, 1, Epilogue(1, (0, 2), "")),
        ("t0 = add x0 x1; t1 = add x2 t0; t2 = relu t1", 3, 0, Epilogue(0, (1, 2), "relu")),
        ("t0 = add x0 x1; t1 = add t0 x1", 2, 0, None),
        ("t0 = add x0 x1; t1 = add t0 t0", 2, 0, None),
        ("t0 = add x1 x2; t1 = add t0 x0", 3, 0, None),
        ("t0 = gelu x0", 1, 0, None),
        ("t0 = relu x0; t1 = relu t0", 1, 0, None),
        ("t0 = relu x1; t1 = add x0 t0", 2, 0, None),
        ("t0 = relu x0; t1 = add t0 x1", 2, 0, None),
        ("t0 = add x0 x1; t1 = relu x0", 2, 0, None),
        ("t0 = add x0 x0", 1, 0, None),
        ("t0 = add x0 1.5", 1, 0, None),
        ("t0 = sub x0 x1", 2, 0, None),
        ("t0 = copy x0", 1, 0, None),
        ("t0 = add x0 x1", 3, 0, None),
        ("t0 = add x1 x2", 3, 0, None),
        ("t0 = relu x1", 2, 0, None),
        ("t0 = add x0 x1; t1 = cast:f16 t0", 2, 0, None),
    ],
)
def test_programs_that_are_epilogues(program, arity, place, expected):
    assert parse_epilogue(program, arity, place) == expected


def gpu(array):
    return GpuArray(array.ctypes.data, array.shape, array.strides, NAMES[array.dtype.name], 0)


def blocks(arrays):
    return [Block((0,) * x.ndim, x.shape) for x in arrays]


def invoked(name, attributes, inputs, outputs):
    return Invocation(
        name, attributes, [gpu(x) for x in inputs], [gpu(x) for x in outputs], blocks(inputs), blocks(outputs)
    )


def drawn(rng, shape, dtype):
    return rng.integers(-4, 5, shape).astype(dtype)


def both(equation, shapes, result, program, indices, others, *, place=0, dtype="f4", scale=1.0, order=None):
    """The launches of a contraction and a map, their result, and that of the CPU's kernels one after the other."""
    rng = np.random.default_rng(3)
    inputs = [drawn(rng, shape, dtype) for shape in shapes]
    middle, output = np.zeros(result, dtype), np.zeros(result, dtype)
    if order is not None:  # a view of a larger array
        output = np.zeros((*result[:-1], result[-1] + 3), dtype)[..., : result[-1]]
    operands = [drawn(rng, shape, dtype) for shape in others]
    operands.insert(place, middle)
    contract, then = {"equation": equation, "scale": scale}, {"program": program, "indices": indices}
    plan = build_with_epilogue(
        invoked("contract", contract, inputs, [middle]), invoked("map", then, operands, [output]), place
    )
    expected = np.zeros(result, dtype)
    for name, attributes, reads, write in (
        ("contract", contract, inputs, middle),
        ("map", then, operands, expected),
    ):
        kernel = prepare(Invocation(name, attributes, reads, [write], blocks(reads), blocks([write])))
        kernel.bind(np.empty(kernel.scratch, np.uint8))()
    middle[...] = 77  # nobody reads it, and nobody writes it
    return plan, output, expected, middle, (inputs, operands)


RESIDUAL = "t0 = add x0 x1"
CASES = {
    "residual": ("t k, f k -> t f", [(5, 7), (6, 7)], (5, 6), RESIDUAL, "t f, t f -> t f", [(5, 6)]),
    "residual, relu": (
        "t k, k f -> t f", [(5, 7), (7, 6)], (5, 6), "t0 = add x1 x0; t1 = relu t0", "t f, t f -> t f", [(5, 6)],
    ),
    "relu": ("t k, k f -> t f", [(5, 7), (7, 6)], (5, 6), "t0 = relu x0", "t f -> t f", []),
    "bias": ("t k, k f -> t f", [(5, 7), (7, 6)], (5, 6), RESIDUAL, "t f, f -> t f", [(6,)]),
    "bias of square": ("t k, k f -> t f", [(6, 7), (7, 6)], (6, 6), RESIDUAL, "t f, f -> t f", [(6,)]),
    "bias, relu": (
        "t k, k f -> t f", [(5, 7), (7, 6)], (5, 6), "t0 = add x0 x1; t1 = relu t0", "t f, f -> t f", [(6,)],
    ),
    "bias of several": (
        "t k, k h f -> t h f", [(5, 7), (7, 2, 6)], (5, 2, 6), RESIDUAL, "t h f, h f -> t h f", [(2, 6)],
    ),
    "residual and bias": (
        "t k, f k -> t f", [(5, 7), (6, 7)], (5, 6), "t0 = add x0 x1; t1 = add t0 x2; t2 = relu t1",
        "t f, t f, f -> t f", [(5, 6), (6,)],
    ),
    "bias and residual": (
        "t k, f k -> t f", [(5, 7), (6, 7)], (5, 6), "t0 = add x0 x1; t1 = add x2 t0", "t f, f, t f -> t f",
        [(6,), (5, 6)],
    ),
    "batches": (
        "b t k, b k f -> b t f", [(3, 5, 7), (3, 7, 6)], (3, 5, 6), RESIDUAL, "b t f, b t f -> b t f", [(3, 5, 6)],
    ),
    "several products": (
        "a b t k, b a k f -> a b t f", [(2, 3, 5, 7), (3, 2, 7, 6)], (2, 3, 5, 6), RESIDUAL,
        "a b t f, a b t f -> a b t f", [(2, 3, 5, 6)],
    ),
    "after a copy": (
        "h t d, f h d -> t f", [(2, 5, 4), (6, 2, 4)], (5, 6), RESIDUAL, "t f, t f -> t f", [(5, 6)],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("dtype", ["f4", "f2"])
@pytest.mark.parametrize("scale", [1.0, -0.5])
def test_a_product_with_epilogue_computes_what_two_kernels_do(name, dtype, scale):
    plan, output, expected, middle, _kept = both(*CASES[name], dtype=dtype, scale=scale)
    assert plan is not None
    products = [step for step in plan.steps if isinstance(step, Gemm)]
    assert all(product.epilogue for product in products)
    assert (len(products) > 1) == (name == "several products")
    scratch = np.zeros(plan.scratch + 256, np.uint8)
    base = scratch.ctypes.data
    if name == "after a copy":  # what the kernel before it does: tokens first
        heads = _kept[0][0]
        np.frombuffer(scratch, heads.dtype, heads.size).reshape(5, 2, 4)[...] = heads.transpose(1, 0, 2)
    for product in products:
        multiply(product, base)
    np.testing.assert_array_equal(output, expected)
    assert (middle == 77).all()


def test_the_map_may_have_the_product_at_the_other_place():
    equation, shapes, result, program, indices, others = CASES["residual"]
    plan, output, expected, *_kept = both(equation, shapes, result, program, indices, others, place=1)
    multiply(plan.steps[-1])
    np.testing.assert_array_equal(output, expected)


def test_gelu_is_the_one_by_tanh_and_in_16_bits():
    arguments = ("t k, k f -> t f", [(5, 7), (7, 6)], (5, 6), "t0 = gelu_tanh x0", "t f -> t f", [])
    assert both(*arguments)[0] is None
    for dtype in ("f2", ml_dtypes.bfloat16):
        plan, output, expected, *_kept = both(*arguments, dtype=dtype, scale=0.05)
        multiply(plan.steps[-1])
        np.testing.assert_allclose(output.astype("f4"), expected.astype("f4"), atol=2e-2)


REFUSED = {
    "another order": ("t k, k f -> t f", [(6, 7), (7, 6)], (6, 6), RESIDUAL, "t f, f t -> t f", [(6, 6)]),
    "the product turned": ("t k, k f -> t f", [(6, 7), (7, 6)], (6, 6), RESIDUAL, "f t, t f -> t f", [(6, 6)]),
    "bias along rows": ("t k, k f -> t f", [(6, 7), (7, 6)], (6, 6), RESIDUAL, "t f, t -> t f", [(6,)]),
    "bias of batches": (
        "b t k, b k f -> b t f", [(3, 5, 7), (3, 7, 6)], (3, 5, 6), RESIDUAL, "b t f, f -> b t f", [(6,)],
    ),
    "two residuals": (
        "t k, k f -> t f", [(5, 7), (7, 6)], (5, 6), "t0 = add x0 x1; t1 = add t0 x2", "t f, t f, t f -> t f",
        [(5, 6), (5, 6)],
    ),
    "two biases": (
        "t k, k f -> t f", [(5, 7), (7, 6)], (5, 6), "t0 = add x0 x1; t1 = add t0 x2", "t f, f, f -> t f",
        [(6,), (6,)],
    ),
    "a number": ("t k, k f -> t f", [(5, 7), (7, 6)], (5, 6), "t0 = mul x0 x1", "t f, t f -> t f", [(5, 6)]),
    "a sum": ("t k -> t", [(5, 7)], (5,), RESIDUAL, "t, t -> t", [(5,)]),
    "nothing summed": ("t k, t k -> t k", [(5, 7), (5, 7)], (5, 7), RESIDUAL, "t k, t k -> t k", [(5, 7)]),
    "bias with rows": (
        "t k, k h f -> t h f", [(5, 7), (7, 2, 6)], (5, 2, 6), RESIDUAL, "t h f, f -> t h f", [(6,)],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_maps_that_no_epilogue_computes(name):
    assert both(*REFUSED[name])[0] is None


def by_tokens(heads, tokens, width):
    return np.zeros((tokens, heads, width), "f4").transpose(1, 0, 2)


@pytest.mark.parametrize("residual", ["by tokens", "by heads", None])
def test_results_whose_heads_lie_by_tokens(residual):
    """The bias of all heads is one row of the product; a residual must have the strides of the result."""
    rng = np.random.default_rng(4)
    x, w, bias = (drawn(rng, shape, "f4") for shape in ((5, 7), (2, 6, 7), (2, 6)))
    middle, output, added = by_tokens(2, 5, 6), by_tokens(2, 5, 6), by_tokens(2, 5, 6)
    added[...] = drawn(rng, added.shape, "f4")
    if residual == "by heads":
        added = np.ascontiguousarray(added)
    program = "t0 = add x0 x1; t1 = add t0 x2" if residual else RESIDUAL
    indices = "h t d, h d, h t d -> h t d" if residual else "h t d, h d -> h t d"
    operands = [middle, bias, added] if residual else [middle, bias]
    plan = build_with_epilogue(
        invoked("contract", {"equation": "t k, h d k -> h t d", "scale": 1.0}, [x, w], [middle]),
        invoked("map", {"program": program, "indices": indices}, operands, [output]),
        0,
    )
    if residual == "by heads":
        assert plan is None
        return
    (product,) = plan.steps
    assert product.batch == 1
    assert product.epilogue
    multiply(product)
    expected = np.einsum("tk,hdk->htd", x, w) + bias[:, None] + (added if residual else 0)
    np.testing.assert_array_equal(output, expected)


def test_only_dense_arrays_are_taken_into_epilogues():
    assert both(*CASES["residual"], order="wide")[0] is None
    assert both(*CASES["residual"], dtype="f8")[0] is None


def aliased(alias):
    """A contraction and a residual whose result lies where `alias` (a, b, heads, addend, shifted) is."""
    rng = np.random.default_rng(0)
    heads = alias == "heads"
    a, b = drawn(rng, (2, 8, 4) if heads else (8, 8), "f4"), drawn(rng, (8, 8), "f4")
    added, middle = drawn(rng, (8, 8), "f4"), np.zeros((8, 8), "f4")
    room = np.zeros(96, "f4")
    output = {"a": a, "b": b, "heads": a.reshape(8, 8), "addend": added, "shifted": room[:64].reshape(8, 8)}[alias]
    if alias == "shifted":
        added = room[8:72].reshape(8, 8)
    equation = "h t k, f h k -> t f" if heads else "t k, f k -> t f"
    inputs = [a, b.reshape(8, 2, 4) if heads else b]
    return build_with_epilogue(
        invoked("contract", {"equation": equation, "scale": 1.0}, inputs, [middle]),
        invoked("map", {"program": RESIDUAL, "indices": "t f, t f -> t f"}, [middle, added], [output]),
        0,
    )


def test_no_epilogue_overwrites_what_products_read():
    assert aliased("a") is None
    assert aliased("b") is None
    assert aliased("shifted") is None
    assert aliased("addend") is not None  # every element is read where it is written, and by whom
    plan = aliased("heads")  # copied before any product begins
    assert plan is not None
    assert len(plan.steps) == 2


def test_addresses_are_moved_with_the_operands():
    product = Gemm(False, False, 2, 2, 2, 1, 2, 0, 2, 2, 0, SCRATCH, 2, 0, 1, "f16", "f16", addend=4)
    moved = relocate_step(product, lambda address: address + 100)
    assert (moved.a, moved.b, moved.c, moved.addend, moved.bias) == (101, 102, SCRATCH + 100, 104, 0)
    assert moved.variant == "gemm nn f16 2x2x2 add"
