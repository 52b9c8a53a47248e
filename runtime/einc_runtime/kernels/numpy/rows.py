"""Kernels over rows in numpy: `softmax` {axis}, `rmsnorm` and `layernorm` {eps, offset}, computed in f32 or wider."""

from __future__ import annotations

import numpy as np

from einc_runtime.dtypes import Array, storage
from einc_runtime.kernels.base import Invocation, Kernel, Run, ScratchPlan, store
from einc_runtime.kernels.calls.rows import Norm, Softmax
from einc_runtime.kernels.numpy.pieces import Piece, Resolved, as_rows, runner, walk_runner


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


def build_norm(invocation: Invocation[Array]) -> Kernel:
    return normed(Norm.parse(invocation))


def normed(call: Norm) -> Kernel:
    """x / sqrt(mean(x * x) + eps) * (gain + offset); for layernorm x - mean(x) in place of x, and bias added."""
    source, target, dtype = call.source, call.target, storage(call.kind)
    extent = source.shape[-1]
    (read, written), walk = as_rows([source, target])
    native = target.dtype == dtype
    scratch = ScratchPlan()
    squares, wide = (scratch.take((walk.size * extent,), dtype) for _ in range(2))  # wide: x converted, or centered
    edge = scratch.take((walk.size,), dtype)
    as_stored = native and not call.offset
    vectors = [] if as_stored else [(vector, scratch.take(vector.shape, dtype)) for vector in call.vectors]
    share, summand, offset = dtype.type(1 / extent), dtype.type(call.eps), dtype.type(call.offset)

    def bind(memory: Array) -> Run:
        works, wides, lines = (place.of(memory) for place in (squares, wide, edge))
        before: list[Resolved] = [(store, [vector, place.of(memory)]) for vector, place in vectors]
        factor, *summands = [place.of(memory) for _, place in vectors] or call.vectors
        if call.offset:
            before.append((np.add, [factor, offset, factor]))

        def calls(piece: Piece) -> list[Resolved]:
            x, y = piece.of(read), piece.of(written)
            work, other = (buffer[: x.size].reshape(x.shape) for buffer in (works, wides))
            line = lines[: x.size // extent].reshape((*x.shape[:-1], 1))
            result = y if native else work
            steps: list[Resolved] = []
            if not native:
                steps.append((store, [x, other]))
                x = other
            if summands:
                steps += [
                    (np.add.reduce, [x, -1, None, line, True]),
                    (np.multiply, [line, share, line]),
                    (np.subtract, [x, line, other]),
                ]
                x = other
            steps += [
                (np.multiply, [x, x, work]),
                (np.add.reduce, [work, -1, None, line, True]),
                (np.multiply, [line, share, line]),
                (np.add, [line, summand, line]),
                (np.sqrt, [line, line]),
                (np.divide, [x, line, result]),
                (np.multiply, [result, factor, result]),
                *((np.add, [result, vector, result]) for vector in summands),
            ]
            return steps if native else [*steps, (store, [work, y])]

        return runner([*before, (walk_runner(walk, calls), [])])

    return Kernel(bind, scratch.size, (2.0 + len(call.vectors)) * source.size)
