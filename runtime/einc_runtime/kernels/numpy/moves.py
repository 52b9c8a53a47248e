"""The kernels `concat` {axis, extents} and `regroup` {} in numpy: elements that move as they are."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from einc_runtime.dtypes import Array
from einc_runtime.kernels.base import Invocation, Kernel, Run, ScratchPlan, plain, store
from einc_runtime.kernels.calls.moves import concat_parts, regrouped
from einc_runtime.kernels.numpy.pieces import Resolved, runner


def build_concat(invocation: Invocation[Array]) -> Kernel:
    """Every input's part of the output, by the bounds of the blocks."""
    sources, goals = concat_parts(invocation)
    moves: list[Resolved] = [
        (np.copyto, [plain(goal), plain(source)]) for source, goal in zip(sources, goals, strict=True)
    ]
    return Kernel(lambda _: runner(moves), nanoseconds=0.5 * invocation.output.size)


def build_regroup(invocation: Invocation[Array]) -> Kernel:
    """The same elements in the same row-major order, in another shape."""
    source, target = regrouped(invocation)
    seen = _reshaped(source, target.shape)
    if seen is not None:
        return Kernel(lambda _: runner([(store, [seen, target])]), nanoseconds=0.5 * source.size)
    written = _reshaped(target, source.shape)
    if written is not None:
        return Kernel(lambda _: runner([(store, [source, written])]), nanoseconds=0.5 * source.size)
    scratch = ScratchPlan()
    dense = scratch.take(source.shape, source.dtype)

    def bind(memory: Array) -> Run:
        copy = dense.of(memory)
        return runner([(store, [source, copy]), (store, [copy.reshape(target.shape), target])])

    return Kernel(bind, scratch.size, 1.0 * source.size)


def _reshaped(view: Array, shape: Sequence[int]) -> Array | None:
    """The view in another shape, or None where that takes a copy."""
    reshaped = view.reshape(shape)
    return reshaped if np.may_share_memory(reshaped, view) else None
