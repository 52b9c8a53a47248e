"""The kernels `softmax` {axis} and `regroup` {} in numpy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from runtime.bundle import Attribute, Block
from runtime.dtypes import Array, compute, storage
from runtime.errors import PlanFault
from runtime.kernels.base import Kernel, Run, ScratchPlan, attribute, dtype_name, single, store
from runtime.kernels.pieces import Piece, Resolved, runner, walk_runner
from runtime.kernels.rows import as_rows


def build_softmax(
    attributes: Mapping[str, Attribute],
    inputs: Sequence[Array],
    outputs: Sequence[Array],
    input_blocks: Sequence[Block],
    output_blocks: Sequence[Block],
) -> Kernel:
    """exp(x - max) / sum of them along one axis, in f32 or wider; it cannot overflow."""
    source, target = single(inputs), single(outputs)
    axis = attribute(attributes, ("axis",), "axis", int)
    assert isinstance(axis, int)
    kind = dtype_name(target)
    if source.shape != target.shape or source.dtype != target.dtype or compute(kind) not in ("f32", "f64"):
        raise PlanFault("a softmax has one floating input and an output of its shape and type")
    if not -source.ndim <= axis < source.ndim:
        raise PlanFault(f"softmax over axis {axis} of a tensor of {source.ndim} dimensions")
    dtype = storage(compute(kind))
    extent = source.shape[axis]
    full, walk = as_rows([np.moveaxis(view, axis, -1) for view in (source, target)])
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


def build_regroup(
    attributes: Mapping[str, Attribute],
    inputs: Sequence[Array],
    outputs: Sequence[Array],
    input_blocks: Sequence[Block],
    output_blocks: Sequence[Block],
) -> Kernel:
    """The same elements in the same row-major order, in another shape."""
    source, target = single(inputs), single(outputs)
    if attributes:
        raise PlanFault(f"unknown kernel attribute '{min(attributes)}'; expected none")
    if source.dtype != target.dtype or source.size != target.size:
        raise PlanFault(f"regroup of {source.size} elements of {source.dtype} into {target.size} of {target.dtype}")
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
