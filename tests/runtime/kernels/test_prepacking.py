"""Prepacked operands: products are the same with and without them, and nothing that may change is prepacked."""

from __future__ import annotations

import itertools

import ml_dtypes
import numpy as np
import pytest

from einc_runtime.kernels.base import Invocation
from einc_runtime.kernels.numpy import libraries, onednn
from einc_runtime.kernels.registry import prepare

BF16 = np.dtype(ml_dtypes.bfloat16)
TOLERANCE = {"float32": 1e-5, "float64": 1e-12, "float16": 2e-3, "bfloat16": 1e-2}
SIZES = {"t": 37, "m": 211, "f": 83, "h": 3, "d": 29}
EQUATIONS = [
    "t m, m f -> t f",
    "t m, f m -> t f",
    "t m, f m -> f t",
    "m t, m f -> t f",
    "t m, h d m -> t h d",
    "t m, h d m -> h t d",
    "h t d, f h d -> t f",
]


AVAILABLE = {"openblas": lambda: True, "onednn": onednn.is_available}
PACKED = {"openblas": (), "onednn": ("float32",)}
"""The types in which a library packs operands; others are only converted."""


@pytest.fixture(params=AVAILABLE)
def library(request, monkeypatch):
    """Each library that is installed, as if it were the fastest one for everything but 16-bit floats."""
    if not AVAILABLE[request.param]():
        pytest.skip(f"{request.param} is not installed")
    monkeypatch.setattr(libraries, "choose_library", lambda product, side: request.param)
    monkeypatch.setattr(libraries, "is_multiplied", lambda kind: False)
    return request.param


def drawn(equation, dtype, rng):
    left, right = equation.split("->")
    shapes = [[SIZES[name] for name in part.split()] for part in (*left.split(","), right)]
    return [rng.standard_normal(shape).astype(dtype) for shape in shapes]


def exact(equation, *arrays):
    letters = dict(zip(SIZES, "abcde", strict=True))
    short = "".join(letters.get(word, word) for word in equation.replace(",", " , ").replace("->", " -> ").split())
    return np.einsum(short, *(array.astype("f8") for array in arrays))


def frozen(array):
    view = array.view()
    view.flags.writeable = False
    return view


def close(found, expected):
    assert np.abs(found.astype("f8") - expected).max() <= TOLERANCE[found.dtype.name] * np.abs(expected).max()


@pytest.mark.sampled(4)
@pytest.mark.parametrize("dtype", ["f4", "f8", "f2", BF16], ids=str)
@pytest.mark.parametrize(("equation", "side"), list(itertools.product(EQUATIONS, (0, 1))))
def test_products_with_prepacked_operands_and_without(equation, side, dtype, library):
    rng = np.random.default_rng(5)
    *inputs, output = drawn(equation, dtype, rng)
    given = [frozen(array) if k == side else array for k, array in enumerate(inputs)]
    kernel = prepare(Invocation("contract", {"equation": equation}, given, [output]))
    packs = len(kernel.prepacked)
    if library == "onednn" and output.dtype == "f4":  # it packs right operands of results that lie by rows
        left = EQUATIONS.index(equation) in (2, 5)
        assert packs == (side != left) or equation == "t m, h d m -> h t d"
    else:
        assert packs == (output.dtype.itemsize == 2 or output.dtype.name in PACKED[library])
    memory = np.full(kernel.scratch + 64, 0xFF, np.uint8)
    run = kernel.bind(memory)
    for made in (False, True, False):
        for array in inputs:
            array[...] = rng.standard_normal(array.shape)
        for pack in kernel.prepacked:
            pack.data = None
            if made:
                pack.make()
                own = inputs[side].size * max(inputs[side].itemsize, 4)
                assert pack.data.nbytes >= pack.size >= own
                assert pack.size == own or library == "onednn"  # which pads columns
        output[...] = np.nan
        run()
        close(output, exact(equation, *inputs))
    assert (memory[kernel.scratch :] == 0xFF).all()


def test_a_prepacked_operand_holds_the_values_of_when_it_was_made(library):
    rng = np.random.default_rng(6)
    a, b, c = drawn("t m, f m -> t f", "f2", rng)
    kernel = prepare(Invocation("contract", {"equation": "t m, f m -> t f"}, [a, frozen(b)], [c]))
    run, before = kernel.bind(np.empty(kernel.scratch + 64, np.uint8)), b.copy()
    kernel.prepacked[0].make()
    b[...] = 0
    run()
    close(c, exact("t m, f m -> t f", a, before))


def test_kernels_that_read_one_operand_share_its_prepacked_form(library):
    rng = np.random.default_rng(8)
    a, b, c = drawn("t m, f m -> t f", BF16, rng)

    def pack(rows):
        (found,) = prepare(
            Invocation("contract", {"equation": "t m, f m -> t f"}, [a[rows], frozen(b)], [c[rows]])
        ).prepacked
        return found

    one, same, other = pack(slice(0, 20)), pack(slice(17, 37)), pack(slice(0, 36))
    assert one is same is other


def test_operands_that_may_change_or_are_small_or_stacked_are_not_prepacked(library):
    rng = np.random.default_rng(9)
    a, b, c = drawn("t m, f m -> t f", "f2", rng)
    assert not prepare(Invocation("contract", {"equation": "t m, f m -> t f"}, [a, b], [c])).prepacked
    assert not prepare(
        Invocation("contract", {"equation": "t m, f m -> t f"}, [a[:1, :40], frozen(b[:, :40])], [c[:1]])
    ).prepacked
    stack = rng.standard_normal((2, *a.shape)).astype("f2"), rng.standard_normal((2, *b.shape)).astype("f2")
    out = np.empty((2, *c.shape), "f2")
    assert not prepare(
        Invocation("contract", {"equation": "b t m, b f m -> b t f"}, [stack[0], frozen(stack[1])], [out])
    ).prepacked
