"""Attention that is spelled out becomes einc's operator, whatever the type of what is added to its scores."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from einc.importers.arrays.element_types import ElementType
from einc.importers.arrays.elementwise import apply
from einc.importers.arrays.moving import transpose
from einc.importers.arrays.products import matmul
from einc.importers.arrays.program import ArrayProgram
from einc.importers.arrays.reducing import rms_norm, softmax
from einc.importers.lifting import lift


@pytest.mark.parametrize("type_", [ElementType.F32, ElementType.F16, ElementType.BF16], ids=lambda t: t.value)
def test_masks_that_are_added(type_: ElementType) -> None:
    program = ArrayProgram("masked")
    program.lift = lift
    q, k, v = (program.input(name, (1, 2, 5, 4), type_) for name in "qkv")
    least = float(ml_dtypes.finfo(type_.numpy).min)
    mask = program.constant(np.where(np.tri(5) > 0, 0.0, least).reshape(1, 1, 5, 5).astype(type_.numpy), type_)
    scores = matmul(program, q, transpose(program, k, [0, 1, 3, 2]))
    capped = apply(program, "mul", apply(program, "tanh", apply(program, "div", scores, 50.0)), 50.0)
    program.output("y", matmul(program, softmax(program, apply(program, "add", capped, mask), -1), v))
    assert "causal=true, softcap=50.0" in program.text()


def test_gains_less_1() -> None:
    program = ArrayProgram("norms")
    program.lift = lift
    x = program.input("x", (1, 3, 4), ElementType.F32)
    gain = program.weight("gain", (4,), ElementType.F32, "gain")
    normed = apply(program, "mul", rms_norm(program, x, None, 1e-6), apply(program, "add", gain, 1.0))
    program.output("y", normed)
    assert "= rmsnorm(x, gain, eps=1e-06, offset=1.0)" in program.text()
