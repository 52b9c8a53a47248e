"""The kernels `rmsnorm` {eps} and `layernorm` {eps} in numpy: rows of the last axis, computed in f32 or wider."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from runtime.bundle import Attribute, Block
from runtime.dtypes import Array, compute, storage
from runtime.errors import PlanFault
from runtime.kernels.base import Kernel, Run, ScratchPlan, attribute, dtype_name, single, store
from runtime.kernels.pieces import Piece, Resolved, runner, walk_runner
from runtime.kernels.rows import as_rows


def build_rmsnorm(
    attributes: Mapping[str, Attribute],
    inputs: Sequence[Array],
    outputs: Sequence[Array],
    input_blocks: Sequence[Block],
    output_blocks: Sequence[Block],
) -> Kernel:
    """x / sqrt(mean(x * x) + eps) * gain."""
    return _norm("rmsnorm", 2, attributes, inputs, outputs)


def build_layernorm(
    attributes: Mapping[str, Attribute],
    inputs: Sequence[Array],
    outputs: Sequence[Array],
    input_blocks: Sequence[Block],
    output_blocks: Sequence[Block],
) -> Kernel:
    """x - mean(x) in place of x, then as rmsnorm, plus bias."""
    return _norm("layernorm", 3, attributes, inputs, outputs)


def _norm(
    name: str, operands: int, attributes: Mapping[str, Attribute], inputs: Sequence[Array], outputs: Sequence[Array]
) -> Kernel:
    target = single(outputs)
    eps = attribute(attributes, ("eps",), "eps", float)
    assert isinstance(eps, float)
    kind = dtype_name(target)
    if len(inputs) != operands or compute(kind) not in ("f32", "f64") or any(x.dtype != target.dtype for x in inputs):
        raise PlanFault(f"{name} has {operands} floating inputs of one type, and an output of that type")
    source, _, *bias = inputs
    if source.shape != target.shape or source.ndim == 0 or any(v.shape != source.shape[-1:] for v in inputs[1:]):
        raise PlanFault(f"{name} of {source.shape} into {target.shape}, with {[v.shape for v in inputs[1:]]}")
    if not 0 < eps < math.inf:
        raise PlanFault(f"{name} with eps {eps}")
    dtype = storage(compute(kind))
    extent = source.shape[-1]
    (read, written), walk = as_rows([source, target])
    native = target.dtype == dtype
    scratch = ScratchPlan()
    squares, wide = (scratch.take((walk.size * extent,), dtype) for _ in range(2))  # wide: x converted, or centered
    edge = scratch.take((walk.size,), dtype)
    vectors = [] if native else [(vector, scratch.take(vector.shape, dtype)) for vector in inputs[1:]]
    share, summand = dtype.type(1 / extent), dtype.type(eps)

    def bind(memory: Array) -> Run:
        works, wides, lines = (place.of(memory) for place in (squares, wide, edge))
        before: list[Resolved] = [(store, [vector, place.of(memory)]) for vector, place in vectors]
        factor, *summands = [place.of(memory) for _, place in vectors] or inputs[1:]

        def calls(piece: Piece) -> list[Resolved]:
            x, y = piece.of(read), piece.of(written)
            work, other = (buffer[: x.size].reshape(x.shape) for buffer in (works, wides))
            line = lines[: x.size // extent].reshape((*x.shape[:-1], 1))
            result = y if native else work
            steps: list[Resolved] = []
            if not native:
                steps.append((store, [x, other]))
                x = other
            if bias:
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

    return Kernel(bind, scratch.size, (1.0 + operands) * source.size)
