"""The kernels `rmsnorm` {eps} and `layernorm` {eps} in numpy: rows of the last axis, computed in f32 or wider."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from runtime.bundle import Attribute, Block
from runtime.dtypes import Array, compute, storage
from runtime.errors import PlanFault
from runtime.kernels.base import Kernel, Run, ScratchPlan, attribute, dtype_name, single
from runtime.kernels.pieces import Resolved, runner
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
    source, *vectors = inputs
    if source.shape != target.shape or source.ndim == 0 or any(v.shape != source.shape[-1:] for v in vectors):
        raise PlanFault(f"{name} of {source.shape} into {target.shape}, with {[v.shape for v in vectors]}")
    if not 0 < eps < math.inf:
        raise PlanFault(f"{name} with eps {eps}")
    dtype = storage(compute(kind))
    extent = source.shape[-1]
    (read, written), walk = as_rows([source, target])
    scratch = ScratchPlan()
    places = [scratch.take((walk.size * extent,), dtype) for _ in range(operands - 1)]
    edge = scratch.take((walk.size,), dtype)
    mean, wide_eps = dtype.type(1 / extent), dtype.type(eps)

    def bind(memory: Array) -> Run:
        calls: list[Resolved] = []
        for piece in walk:
            x, y = piece.of(read), piece.of(written)
            squares, *centered = (place.of(memory)[: x.size].reshape(x.shape) for place in places)
            line = edge.of(memory)[: x.size // extent].reshape((*x.shape[:-1], 1))
            if x.dtype != dtype:
                wide = centered[0] if centered else squares
                calls.append((_store, [x, wide]))
                x = wide
            if centered:
                calls += [
                    (np.add.reduce, [x, -1, None, line, True]),
                    (np.multiply, [line, mean, line]),
                    (np.subtract, [x, line, centered[0]]),
                ]
                x = centered[0]
            result = y if y.dtype == dtype else squares
            calls += [
                (np.multiply, [x, x, squares]),
                (np.add.reduce, [squares, -1, None, line, True]),
                (np.multiply, [line, mean, line]),
                (np.add, [line, wide_eps, line]),
                (np.sqrt, [line, line]),
                (np.divide, [piece.of(read) if x is squares else x, line, result]),
                (np.multiply, [result, vectors[0], result]),
            ]
            if centered:
                calls.append((np.add, [result, vectors[1], result]))
            if result is not y:
                calls.append((_store, [result, y]))
        return runner(calls)

    return Kernel(bind, scratch.size, (1.0 + operands) * source.size)


def _store(source: Array, target: Array) -> None:
    np.copyto(target, source, casting="unsafe")
