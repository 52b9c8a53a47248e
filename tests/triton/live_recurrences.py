"""Recurrences in Triton's interpreter, against the CPU's: in registers, and as launches for each step."""

from __future__ import annotations

import zlib

import numpy as np
import pytest

from einc.ops.wrapping import ReproducibleOperator
from einc_runtime.kernels.triton import recurrence
from tests.support.recurrence_cases import CASES
from tests.support.triton_against_cpu import check

TOLERANCE = {"f32": 1e-5, "f16": 4e-3, "bf16": 3e-2, "f64": 1e-12, "i32": 0, "i64": 0}
NAMES = [(name, dtype) for name, case in CASES.items() for dtype in case.dtypes]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("tile", [1 << 13, 0], ids=["registers", "steps"])
@pytest.mark.parametrize("ordered", [False, True], ids=["any order", "ordered"])
@pytest.mark.parametrize(("name", "dtype"), NAMES)
def test_a_recurrence(name, dtype, ordered, tile, monkeypatch):
    if not tile and dtype not in ("f32", "bf16", "i64"):
        pytest.skip("the kernels of its steps are tried by themselves")
    monkeypatch.setattr(recurrence, "MAX_TILE_ELEMENTS", tile)
    operator = CASES[name].operator(dtype)
    arrays = CASES[name].arrays(operator, zlib.crc32(name.encode()))
    call = ReproducibleOperator(operator).kernel if ordered else operator.kernel
    attributes = {key: list(value) if isinstance(value, tuple) else value for key, value in call.attributes}
    outputs = [np.empty(desc.shape, desc.dtype.numpy()) for desc in operator.outputs]
    check(call.name, attributes, arrays, outputs, tolerance=TOLERANCE[dtype])
