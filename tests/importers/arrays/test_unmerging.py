"""Dimensions that are merged for a product and divided behind it stay apart, and the results stay the same."""

from __future__ import annotations

import math

import numpy as np
import pytest

from einc.frontend import build
from einc.importers.arrays.element_types import ElementType
from einc.importers.arrays.elementwise import apply
from einc.importers.arrays.moving import reshape
from einc.importers.arrays.products import matmul, multiply_rows
from einc.importers.arrays.program import ArrayProgram
from einc.importers.arrays.unmerging import keep_apart
from tests.support.graph_interpreter import interpret

WIDTH = 8
DRAW = np.random.default_rng(7)
W, BIAS = (DRAW.standard_normal(shape).astype("f4") for shape in ((6, WIDTH), (6,)))


def write_layer(shape: list[int], leading: int, by_rows: bool, reads_merged: bool = False) -> ArrayProgram:
    """silu(x w^T + b), where x is viewed as rows of 8, and the result with its `leading` first dimensions again."""
    program = ArrayProgram("merged")
    x = program.input("x", shape, ElementType.F32)
    w = program.weight("w", W.shape if by_rows else W.T.shape, ElementType.F32, "w")
    rows = reshape(program, x, [-1, WIDTH])
    product = multiply_rows(program, rows, w) if by_rows else matmul(program, rows, w)
    bias = program.weight("bias", BIAS.shape, ElementType.F32, "bias")
    h = apply(program, "silu", apply(program, "add", product, bias))
    program.output("y", reshape(program, h, [*shape[:leading], 6]))
    if reads_merged:
        program.output("h", h)
    keep_apart(program)
    return program


@pytest.mark.parametrize("by_rows", [True, False])
@pytest.mark.parametrize(("shape", "leading"), [([3, 5, 8], 2), ([3, 5, 2, 4], 2), ([2, 3, 5, 8], 3), ([3, 3, 8], 2)])
def test_rows_keep_their_dimensions(shape: list[int], leading: int, by_rows: bool) -> None:
    program = write_layer(shape, leading, by_rows)
    text = program.text()
    merged = math.prod(shape) // WIDTH
    assert f"={merged}" not in text
    assert text.count("reshape(") == (1 if shape[-1] != WIDTH else 0)
    x = np.random.default_rng(3).standard_normal(shape).astype("f4")
    (y,) = interpret(build(text, "merged.ein"), {"x": x, "w": W if by_rows else W.T, "bias": BIAS}).values()
    product = x.reshape(-1, WIDTH) @ W.T + BIAS
    expected = (product / (1 + np.exp(-product))).reshape(*shape[:leading], 6)
    assert np.allclose(y, expected, atol=1e-5)


def test_what_reads_the_merged_rows_keeps_them() -> None:
    text = write_layer([3, 5, 8], 2, True, reads_merged=True).text()
    assert text.count("reshape(") == 2
