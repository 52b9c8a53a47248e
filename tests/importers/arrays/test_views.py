"""Chains of reshapes, transposes and slices are written as few statements that read the same elements."""

from __future__ import annotations

import random

import numpy as np
import pytest

from einc.frontend import build
from einc.importers.arrays.element_types import ElementType
from einc.importers.arrays.elementwise import apply
from einc.importers.arrays.moving import reshape, slice_axis, transpose
from einc.importers.arrays.program import ArrayProgram
from tests.support.graph_interpreter import interpret

SHAPES = ([6, 10, 4], [1, 12, 1, 30], [5, 7], [2, 3, 4, 9])


def draw_shape(rng: random.Random, size: int) -> list[int]:
    """Extents, some of them 1, whose product is `size`."""
    shape = []
    while size > 1 and len(shape) < 4:
        extent = rng.choice([n for n in range(2, size + 1) if size % n == 0])
        shape += [extent, *[1] * (rng.random() < 0.2)]
        size //= extent
    return [*shape, size] if size > 1 or not shape else shape


def change(rng: random.Random, program: ArrayProgram, array, elements):
    """One of the three operations, on an array and on its elements."""
    match rng.choice(["reshape", "transpose", "slice"]):
        case "reshape":
            shape = draw_shape(rng, elements.size)
            return reshape(program, array, shape), elements.reshape(shape)
        case "transpose":
            order = rng.sample(range(elements.ndim), elements.ndim)
            return transpose(program, array, order), elements.transpose(order)
    axis = rng.randrange(elements.ndim)
    extent = elements.shape[axis]
    start = rng.randrange(extent)
    stop = rng.randint(start + 1, extent)
    if rng.random() < 0.7:  # a half or a third, as models have it
        parts = rng.choice([n for n in (1, 2, 3) if extent % n == 0])
        start, stop = extent - extent // parts, extent
    return slice_axis(program, array, axis, start, stop), elements.take(range(start, stop), axis)


@pytest.mark.parametrize("seed", range(40))
def test_random_chains_keep_their_elements(seed: int) -> None:
    rng = random.Random(seed)
    shape = rng.choice(SHAPES)
    program = ArrayProgram("chains")
    x = program.input("x", shape, ElementType.F32)
    elements = np.random.default_rng(seed).standard_normal(shape).astype("f4")
    arrays = [(x, elements)]
    expected = {}
    for step in range(rng.randint(2, 9)):
        array, values = change(rng, program, *rng.choice(arrays[-2:]))
        if values.ndim == 0 or array.name == x.name:
            continue
        arrays.append((array, values))
        if rng.random() < 0.3:
            expected[program.output(f"y{step}", array)] = values
    expected[program.output("last", apply(program, "neg", arrays[-1][0]))] = -arrays[-1][1]
    before = len(program.statements)
    results = interpret(build(program.text(), "chains.ein"), {"x": elements})
    assert len(program.statements) <= before
    assert results.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_array_equal(results[name], values)


def test_heads_of_one_projection_are_read_in_four_statements_each() -> None:
    """As PyTorch's MultiheadAttention writes them: three parts, and heads that are joined with the batch."""
    program = ArrayProgram("heads")
    x = program.input("x", [5, 4, 36], ElementType.F32)  # tokens, batch, three times 2 heads of 6
    elements = np.random.default_rng(0).standard_normal((5, 4, 36)).astype("f4")
    parts = reshape(program, transpose(program, reshape(program, x, [1, 5, 4, 3, 12]), [3, 1, 2, 0, 4]), [3, 5, 4, 12])
    for part in range(3):
        chosen = reshape(program, slice_axis(program, parts, 0, part, part + 1), [5, 8, 6])
        heads = reshape(program, transpose(program, chosen, [1, 0, 2]), [4, 2, 5, 6])
        packed = reshape(program, transpose(program, heads, [1, 0, 2, 3]), [2, 20, 6])
        program.output(f"y{part}", apply(program, "neg", packed))
    text = program.text()
    results = interpret(build(text, "heads.ein"), {"x": elements})
    for part in range(3):
        meant = elements[:, :, 12 * part : 12 * part + 12].reshape(5, 4, 2, 6).transpose(2, 1, 0, 3).reshape(2, 20, 6)
        np.testing.assert_array_equal(results[f"y{part}"], -meant)
    assert [text.count(word) for word in ("slice(", "reshape(", "transpose(")] == [3, 6, 3]


def test_extents_of_params_are_kept_whole() -> None:
    program = ArrayProgram("flexible")
    batch = program.param("batch", 4)
    x = program.input("x", [batch, 6, 10], ElementType.F32)
    split = transpose(program, reshape(program, x, [batch, 6, 2, 5]), [2, 0, 1, 3])
    y = reshape(program, transpose(program, split, [1, 2, 0, 3]), [batch, 6, 10])
    program.output("y", apply(program, "neg", y))
    for count in (4, 3):
        elements = np.random.default_rng(count).standard_normal((count, 6, 10)).astype("f4")
        (result,) = interpret(build(program.text(), "flexible.ein", [("batch", str(count))]), {"x": elements}).values()
        np.testing.assert_array_equal(result, -elements)
