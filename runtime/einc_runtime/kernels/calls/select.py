"""Invocations of the kernels `argmax` and `topk`: attributes, arrays and blocks held against each other."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from einc_runtime.dtypes import Array
from einc_runtime.errors import PlanFault
from einc_runtime.kernels.base import Invocation, dtype_name
from einc_runtime.kernels.ranking import INDEX


@dataclass(frozen=True, slots=True)
class Selection:
    """`source` is searched along its last axis, whose first element has index `first` in the whole tensor.

    `values` and `indices` have the other axes of `source`, for `topk` and then one more.
    """

    source: Array
    first: int
    values: Array
    indices: Array


def argmax(invocation: Invocation[Array]) -> Selection:
    source, first = _searched(invocation)
    outputs = invocation.outputs
    if len(outputs) != 2 or any(output.shape != source.shape[:-1] for output in outputs):
        raise PlanFault("argmax has two outputs with the dimensions of its input but the one it searches")
    return _typed(Selection(source, first, values=outputs[1], indices=outputs[0]))


def topk(invocation: Invocation[Array]) -> Selection:
    source, first = _searched(invocation)
    outputs = invocation.outputs
    if len(outputs) != 2 or outputs[0].shape != outputs[1].shape or outputs[0].shape[:-1] != source.shape[:-1]:
        raise PlanFault("topk has two outputs of one shape, with lists in place of the dimension that it searches")
    return _typed(Selection(source, first, values=outputs[0], indices=outputs[1]))


def _searched(invocation: Invocation[Array]) -> tuple[Array, int]:
    """The input with the axis that is searched moved to the end, and where the block begins along it."""
    invocation.allow("axis")
    source, axis, blocks = invocation.input, invocation.attribute("axis", int), invocation.input_blocks
    if not 0 <= axis < source.ndim or len(blocks) != 1 or len(blocks[0].lower) != source.ndim:
        raise PlanFault(f"{invocation.name} over axis {axis} of a tensor of {source.ndim} dimensions")
    return np.moveaxis(source, axis, -1), blocks[0].lower[axis]


def _typed(found: Selection) -> Selection:
    source, values = found.source, found.values
    if dtype_name(found.indices) != INDEX or values.dtype != source.dtype or dtype_name(source) == "bool":
        raise PlanFault(f"numbers are ranked with indices of type {INDEX}")
    return found
