"""The kernels `softmax` {axis} and `regroup` {} in numpy."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from runtime.dtypes import Array, storage
from runtime.kernels.base import Invocation, Kernel, Run, ScratchPlan, store
from runtime.kernels.numpy.pieces import Piece, Resolved, as_rows, runner, walk_runner
from runtime.kernels.signatures.moves import regrouped
from runtime.kernels.signatures.rows import Softmax


def build_softmax(invocation: Invocation[Array]) -> Kernel:
    return softmaxed(Softmax.parse(invocation))


def softmaxed(call: Softmax) -> Kernel:
    """exp(x - max) / sum of them along one axis, in f32 or wider; it cannot overflow."""
    source, axis, dtype = call.source, call.axis, storage(call.kind)
    extent = source.shape[axis]
    full, walk = as_rows([np.moveaxis(view, axis, -1) for view in (source, call.target)])
    scratch = ScratchPlan()
    work = scratch.take((walk.size * extent,), dtype)
    edge = scratch.take((walk.size,), dtype)

    def bind(memory: Array) -> Run:
        exps_of, edges = work.of(memory), edge.of(memory)

        def calls(piece: Piece) -> list[Resolved]:
            x, y = (piece.of(view) for view in full)
            exps = exps_of[: x.size].reshape(x.shape)
            line = edges[: x.size // extent].reshape((*x.shape[:-1], 1))
            last = exps if y.dtype != dtype else y
            return [
                (store, [x, exps]),
                (np.maximum.reduce, [exps, -1, None, line, True]),
                (np.subtract, [exps, line, exps]),
                (np.exp, [exps, exps]),
                (np.add.reduce, [exps, -1, None, line, True]),
                (np.divide, [exps, line, last]),
                *([] if last is y else [(store, [exps, y])]),
            ]

        return walk_runner(walk, calls)

    return Kernel(bind, scratch.size, 4.0 * source.size)


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
