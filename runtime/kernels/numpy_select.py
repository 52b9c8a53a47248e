"""The kernels `argmax` {axis} and `topk` {axis} in numpy: indices in the whole tensor, ranked as `ranking` says.

`argmax` writes indices and values without the axis; `topk` writes values and indices with as many of them along the
last axis as its outputs have, filled up where the block has fewer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from runtime.bundle import Attribute, Block
from runtime.dtypes import Array
from runtime.errors import PlanFault
from runtime.kernels.base import Kernel, attribute, dtype_name, single
from runtime.kernels.ranking import INDEX, NOWHERE, keys, least


def build_argmax(
    attributes: Mapping[str, Attribute],
    inputs: Sequence[Array],
    outputs: Sequence[Array],
    input_blocks: Sequence[Block],
    output_blocks: Sequence[Block],
) -> Kernel:
    source, first = _searched("argmax", attributes, inputs, input_blocks)
    if len(outputs) != 2 or any(output.shape != source.shape[:-1] for output in outputs):
        raise PlanFault("argmax has two outputs with the dimensions of its input but the one it searches")
    index, value = outputs
    _require_types(source, index, value)
    # Elements of 16 bits are widened a row at a time: numpy compares them slowly, and not all of them alike.
    half = source.dtype.itemsize == 2 and source.ndim > 1

    def run() -> None:
        for row in np.ndindex(source.shape[:-1]) if half else [()]:
            rows = source[row]
            at = np.argmin(keys(rows), axis=-1) if rows.dtype.itemsize == 2 else np.argmax(rows, axis=-1)
            best = at[..., None]
            value[row] = np.take_along_axis(rows, best, -1)[..., 0]
            index[row] = at + first

    return Kernel(lambda _: run, nanoseconds=1.0 * source.size)


def build_topk(
    attributes: Mapping[str, Attribute],
    inputs: Sequence[Array],
    outputs: Sequence[Array],
    input_blocks: Sequence[Block],
    output_blocks: Sequence[Block],
) -> Kernel:
    source, first = _searched("topk", attributes, inputs, input_blocks)
    if len(outputs) != 2 or outputs[0].shape != outputs[1].shape or outputs[0].shape[:-1] != source.shape[:-1]:
        raise PlanFault("topk has two outputs of one shape, with lists in place of the dimension that it searches")
    values, indices = outputs
    _require_types(source, indices, values)
    count = min(values.shape[-1], source.shape[-1])

    def run() -> None:
        values[..., count:] = least(values.dtype)
        indices[..., count:] = NOWHERE
        for row in np.ndindex(source.shape[:-1]):
            ranked = keys(source[row])
            last = np.partition(ranked, count - 1)[count - 1]
            found = np.flatnonzero(ranked <= last)  # ascending, so that a stable sort leaves ties by index
            found = found[np.argsort(ranked[found], kind="stable")[:count]]
            values[row][:count] = source[row][found]
            indices[row][:count] = found + first

    return Kernel(lambda _: run, nanoseconds=12.0 * source.size)


def _searched(
    name: str, attributes: Mapping[str, Attribute], inputs: Sequence[Array], blocks: Sequence[Block]
) -> tuple[Array, int]:
    """The input with the axis that is searched moved to the end, and where the block begins along it."""
    source, axis = single(inputs), attribute(attributes, ("axis",), "axis", int)
    assert isinstance(axis, int)
    if not 0 <= axis < source.ndim or len(blocks) != 1 or len(blocks[0].lower) != source.ndim:
        raise PlanFault(f"{name} over axis {axis} of a tensor of {source.ndim} dimensions")
    return np.moveaxis(source, axis, -1), blocks[0].lower[axis]


def _require_types(source: Array, index: Array, value: Array) -> None:
    if dtype_name(index) != INDEX or value.dtype != source.dtype or dtype_name(source) == "bool":
        raise PlanFault(f"numbers are ranked with indices of type {INDEX}")
