"""Kernels on dense copies of their operands: how an operand lies in memory must not decide which code computes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from einc_runtime.dtypes import Array
from einc_runtime.kernels.base import Kernel, Run, ScratchAllocator, view_as_integers
from einc_runtime.kernels.numpy.pieces import Resolved, make_runner

BuildOn = Callable[[Sequence[Array], Sequence[Array]], Kernel]
"""Prepares a kernel on inputs and outputs."""


def is_contiguous(array: Array) -> bool:
    return bool(array.flags.c_contiguous)


def has_dense_rows(array: Array) -> bool:
    return array.ndim > 0 and bool(array.strides[-1] == array.itemsize)


def build_on_dense(
    inputs: Sequence[Array], outputs: Sequence[Array], build: BuildOn, is_dense: Callable[[Array], bool] = is_contiguous
) -> Kernel:
    """The kernel that `build` prepares, with contiguous copies in place of arrays that are not dense."""
    arrays = (*inputs, *outputs)
    if all(map(is_dense, arrays)):
        return build(inputs, outputs)
    scratch, count = ScratchAllocator(), len(inputs)
    slots = [None if is_dense(array) else scratch.take(array.shape, array.dtype) for array in arrays]
    measured = [
        array if slot is None else np.empty(array.shape, array.dtype) for array, slot in zip(arrays, slots, strict=True)
    ]
    inner = build(measured[:count], measured[count:])

    def bind(memory: Array) -> Run:
        dense = [array if slot is None else slot.of(memory) for array, slot in zip(arrays, slots, strict=True)]
        run = build(dense[:count], dense[count:]).bind(memory[scratch.size :])
        return make_runner([*_copy(arrays[:count], dense), (run, []), *_copy(dense[count:], arrays[count:])])

    moved = sum(array.size for array, slot in zip(arrays, slots, strict=True) if slot is not None)
    return Kernel(bind, scratch.size + inner.scratch, inner.nanoseconds + moved)


def _copy(sources: Sequence[Array], targets: Sequence[Array]) -> list[Resolved]:
    pairs = [(source, target) for source, target in zip(sources, targets, strict=False) if source is not target]
    return [(np.copyto, [view_as_integers(target), view_as_integers(source)]) for source, target in pairs]
