"""Copies to another memory order, against numpy's."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from einc_runtime.kernels.llvm.compiler import CompiledCall
from einc_runtime.kernels.llvm.contract import prepare_copy

TYPES = {"f32": np.dtype("f4"), "f16": np.dtype("f2"), "bf16": np.dtype(ml_dtypes.bfloat16)}


@pytest.mark.parametrize(("shape", "order"), [
    ((37, 50), (1, 0)), ((5, 33, 16), (0, 2, 1)), ((16, 3, 41), (2, 1, 0)), ((9, 14, 2, 17), (3, 0, 2, 1)),
    ((8, 300), (1, 0)),
])  # fmt: skip
@pytest.mark.parametrize("kinds", [("f32", "f32"), ("bf16", "f32"), ("f32", "f16"), ("bf16", "bf16")])
def test_copies_to_another_order(shape: tuple[int, ...], order: tuple[int, ...], kinds: tuple[str, str]) -> None:
    source = np.random.default_rng(1).standard_normal(shape).astype(TYPES[kinds[0]])
    room = np.full([n + 3 for n in source.transpose(order).shape], 7, TYPES[kinds[1]])
    target = room[tuple(slice(0, n) for n in source.transpose(order).shape)]
    run, arguments = prepare_copy(source.transpose(order), target, 1 << 20)
    assert isinstance(run, CompiledCall)
    run(*arguments)
    np.testing.assert_array_equal(target, source.transpose(order).astype(TYPES[kinds[1]]))
    target[...] = 7
    assert (room == 7).all()
