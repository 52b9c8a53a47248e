"""Tables of cosines and sines, from which the rates of a rotation are found again."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from einc.frontend import build
from einc.importers.arrays.element_types import ElementType
from einc.importers.arrays.elementwise import apply, cast
from einc.importers.arrays.extents import make_extent
from einc.importers.arrays.moving import concat, slice_axis
from einc.importers.arrays.program import ArrayProgram
from einc.importers.arrays.values import Array
from einc.importers.lifting import lift
from einc.importers.rotary_lifting import describe_rotation
from tests.support.graph_interpreter import interpret

TOKENS, HALF = 150, 8
STORED = {ElementType.F32: np.float32, ElementType.F16: np.float16, ElementType.BF16: ml_dtypes.bfloat16}


def make_tables(theta: float, type_: ElementType, *, stretched: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    rates = (theta ** (-np.arange(HALF) / HALF) / np.linspace(1, stretched, HALF)).astype("f4")
    angles = np.tile(np.arange(TOKENS, dtype="f4")[:, None] * rates, 2)
    return np.cos(angles).astype(STORED[type_]), np.sin(angles).astype(STORED[type_])


def describe(theta: float, type_: ElementType, **options: float) -> str | None:
    shape = tuple(map(make_extent, (3, TOKENS, 2 * HALF)))
    found = describe_rotation(*make_tables(theta, type_, **options), Array(shape, type_, "x"))
    return None if found is None else found[0]


@pytest.mark.parametrize("type_", STORED)
@pytest.mark.parametrize("theta", [1e4, 1e6, 5e5, 25000.0])
def test_rates_of_rounded_tables(theta: float, type_: ElementType) -> None:
    assert describe(theta, type_) == f"theta={theta!r}"


def test_rates_that_no_theta_has_stay_a_table_where_it_is_rounded() -> None:
    assert "longrope" in str(describe(1e4, ElementType.F32, stretched=3.0))
    assert describe(1e4, ElementType.BF16, stretched=3.0) is None
    assert describe(10130.0, ElementType.BF16) != "theta=10000.0"


@pytest.mark.parametrize("type_", [ElementType.F32, ElementType.BF16])
def test_heads_that_are_rotated_in_f32(type_: ElementType) -> None:
    """As OLMo 2 does: both summands are widened, and the sum is rounded."""
    tables = make_tables(1e4, ElementType.F32)
    program = ArrayProgram("rotated")
    program.lift = lift
    x = program.input("x", (1, 3, TOKENS, 2 * HALF), type_)
    turned = concat(program, [apply(program, "neg", slice_axis(program, x, 3, HALF, 2 * HALF)),
                              slice_axis(program, x, 3, 0, HALF)], 3)  # fmt: skip
    wide = (cast(program, part, ElementType.F32) for part in (x, turned))
    parts = [apply(program, "mul", p, program.constant(t[None, None])) for p, t in zip(wide, tables, strict=True)]
    program.output("y", cast(program, apply(program, "add", *parts), type_))
    assert "rope(x, theta=10000.0)" in program.text()
    drawn = np.random.default_rng(3).standard_normal((1, 3, TOKENS, 2 * HALF)).astype(STORED[type_])
    rows = drawn.astype("f8")
    expected = rows * tables[0] + np.concatenate([-rows[..., HALF:], rows[..., :HALF]], -1) * tables[1]
    computed = interpret(build(program.text(), "rotated.ein"), {"x": drawn})["y"]
    np.testing.assert_allclose(computed.astype("f8"), expected, rtol=0, atol=1e-4 if type_ is ElementType.F32 else 0.03)
