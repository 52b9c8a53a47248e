"""Kernels over rows in numpy: `softmax` {axis}, `rmsnorm` and `layernorm` {eps, offset}, `meanpool` {seq_lens}.

They compute in f32 or wider.
"""

from __future__ import annotations

import numpy as np

from einc_runtime.dtypes import Array, storage_dtype
from einc_runtime.kernels.base import Invocation, Kernel, Run, ScratchAllocator, store
from einc_runtime.kernels.calls.rows import MeanPoolCall, NormCall, SoftmaxCall
from einc_runtime.kernels.numpy.pieces import ArrayPiece, Resolved, make_runner, make_walk_runner, walk_rows


def build_softmax(invocation: Invocation[Array]) -> Kernel:
    return make_softmax(SoftmaxCall.parse(invocation))


def make_softmax(call: SoftmaxCall) -> Kernel:
    """exp(x - max) / sum(exp(x - max)) along one axis, which cannot overflow."""
    source, axis, dtype = call.source, call.axis, storage_dtype(call.kind)
    extent = source.shape[axis]
    full, walk = walk_rows([np.moveaxis(view, axis, -1) for view in (source, call.target)])
    scratch = ScratchAllocator()
    work = scratch.take((walk.size * extent,), dtype)
    edge = scratch.take((walk.size,), dtype)

    def bind(memory: Array) -> Run:
        exps_of, edges = work.of(memory), edge.of(memory)

        def calls(piece: ArrayPiece) -> list[Resolved]:
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

        return make_walk_runner(walk, calls)

    return Kernel(bind, scratch.size, 4.0 * source.size)


def build_norm(invocation: Invocation[Array]) -> Kernel:
    return make_norm(NormCall.parse(invocation))


def make_norm(call: NormCall) -> Kernel:
    """x / sqrt(mean(x * x) + eps) * (gain + offset); layernorm takes x - mean(x) for x, and adds the bias."""
    source, target, dtype = call.source, call.target, storage_dtype(call.kind)
    extent = source.shape[-1]
    (read, written), walk = walk_rows([source, target])
    native = target.dtype == dtype
    scratch = ScratchAllocator()
    squares, wide = (scratch.take((walk.size * extent,), dtype) for _ in range(2))  # wide: x converted, or centered
    edge = scratch.take((walk.size,), dtype)
    as_stored = native and not call.offset
    vectors = [] if as_stored else [(vector, scratch.take(vector.shape, dtype)) for vector in call.vectors]
    share, summand, offset = dtype.type(1 / extent), dtype.type(call.eps), dtype.type(call.offset)

    def bind(memory: Array) -> Run:
        works, wides, lines = (slot.of(memory) for slot in (squares, wide, edge))
        before: list[Resolved] = [(store, [vector, slot.of(memory)]) for vector, slot in vectors]
        factor, *summands = [slot.of(memory) for _, slot in vectors] or call.vectors
        if call.offset:
            before.append((np.add, [factor, offset, factor]))

        def calls(piece: ArrayPiece) -> list[Resolved]:
            x, y = piece.of(read), piece.of(written)
            work, wide = (buffer[: x.size].reshape(x.shape) for buffer in (works, wides))
            line = lines[: x.size // extent].reshape((*x.shape[:-1], 1))
            result = y if native else work
            steps: list[Resolved] = []
            if not native:
                steps.append((store, [x, wide]))
                x = wide
            if summands:
                steps += [
                    (np.add.reduce, [x, -1, None, line, True]),
                    (np.multiply, [line, share, line]),
                    (np.subtract, [x, line, wide]),
                ]
                x = wide
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

        return make_runner([*before, (make_walk_runner(walk, calls), [])])

    return Kernel(bind, scratch.size, (2.0 + len(call.vectors)) * source.size)


def build_meanpool(invocation: Invocation[Array]) -> Kernel:
    """The mean of the tokens of each sequence where the mask is true, or 0 where it never is; sums are in f64."""
    call = MeanPoolCall.parse(invocation)
    source, mask = call.source, call.mask
    scratch = ScratchAllocator()
    line = scratch.take((source.shape[1],), np.dtype(np.float64))

    def bind(memory: Array) -> Run:
        sums = line.of(memory)
        spans = [slice(start, stop) for start, stop in call.spans.tolist()]
        calls: list[Resolved] = [
            (_average_rows, [source[span], mask[span], sums, row]) for span, row in zip(spans, call.target, strict=True)
        ]
        return make_runner(calls)

    return Kernel(bind, scratch.size, 2.0 * source.size)


def _average_rows(values: Array, mask: Array, sums: Array, target: Array) -> None:
    np.add.reduce(values, axis=0, dtype=sums.dtype, out=sums, where=mask[:, None])
    np.divide(sums, max(1, int(mask.sum())), out=target, casting="unsafe")
