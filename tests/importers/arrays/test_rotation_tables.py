"""Tables of cosines and sines, from which the rates of a rotation are found again."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from einc.importers.arrays.element_types import ElementType
from einc.importers.arrays.extents import make_extent
from einc.importers.arrays.values import Array
from einc.importers.rotary_lifting import describe_rotation

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
