"""The kernels `rmsnorm` {eps} and `layernorm` {eps} in numpy: rows of the last axis, computed in f32 or wider."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from runtime.bundle import Attribute, Block
from runtime.dtypes import Array, compute, storage
from runtime.errors import PlanFault
from runtime.kernels.base import Kernel, Run, ScratchPlan, attribute, dtype_name, single
from runtime.kernels.pieces import Piece, Resolved, walk_runner
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
    source, gain, *bias = inputs
    if source.shape != target.shape or source.ndim == 0 or any(v.shape != source.shape[-1:] for v in inputs[1:]):
        raise PlanFault(f"{name} of {source.shape} into {target.shape}, with {[v.shape for v in inputs[1:]]}")
    if not 0 < eps < math.inf:
        raise PlanFault(f"{name} with eps {eps}")
    dtype = storage(compute(kind))
    extent = source.shape[-1]
    (read, written), walk = as_rows([source, target])
    scratch = ScratchPlan()
    places = [scratch.take((walk.size * extent,), dtype) for _ in range(operands - 1)]
    edge = scratch.take((walk.size,), dtype)
    share, summand = dtype.type(1 / extent), dtype.type(eps)

    def bind(memory: Array) -> Run:
        wides, lines = [place.of(memory) for place in places], edge.of(memory)

        def calls(piece: Piece) -> list[Resolved]:
            x, y = piece.of(read), piece.of(written)
            work, *centered = (wide[: x.size].reshape(x.shape) for wide in wides)
            line = lines[: x.size // extent].reshape((*x.shape[:-1], 1))
            result = y if y.dtype == dtype else work
            steps: list[Resolved] = []
            if centered:
                (center,) = centered
                if x.dtype != dtype:
                    steps.append((_store, [x, center]))
                    x = center
                steps += [
                    (np.add.reduce, [x, -1, None, line, True]),
                    (np.multiply, [line, share, line]),
                    (np.subtract, [x, line, center]),
                ]
                x = center
            # A product of two halves would be rounded to one: the first operand is widened before.
            steps += [(np.multiply, [x, x, work])] if x.dtype == dtype else [(_store, [x, work]), (_square, [work])]
            steps += [
                (np.add.reduce, [work, -1, None, line, True]),
                (np.multiply, [line, share, line]),
                (np.add, [line, summand, line]),
                (np.sqrt, [line, line]),
                (np.divide, [x, line, result]),
                (np.multiply, [result, gain, result]),
            ]
            steps += [(np.add, [result, vector, result]) for vector in bias]
            if result is not y:
                steps.append((_store, [result, y]))
            return steps

        return walk_runner(walk, calls)

    return Kernel(bind, scratch.size, (1.0 + operands) * source.size)


def _square(values: Array) -> None:
    np.multiply(values, values, out=values)


def _store(source: Array, target: Array) -> None:
    np.copyto(target, source, casting="unsafe")
