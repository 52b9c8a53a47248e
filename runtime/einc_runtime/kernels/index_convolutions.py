"""Convolutions that index programs are, on the CPU: their operands as a library of convolutions has them.

Paddings are what windows see of a block's outside: a block at the border of its tensor has them, and one within has its
halo instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from einc_runtime.dtypes import Array
from einc_runtime.kernels.base import Invocation, Kernel, dtype_name
from einc_runtime.kernels.calls.index import IndexCall
from einc_runtime.kernels.calls.map import MapCall
from einc_runtime.kernels.numpy import libraries
from einc_runtime.kernels.numpy.onednn_convolution import WindowSteps, make_convolution
from einc_runtime.kernels.numpy.post_operations import PostOperation, find_post_operations
from einc_runtime.kernels.numpy.prepacking import MIN_PACKED_PRODUCTS
from einc_runtime.plan.index_convolutions import Convolution, find_convolution
from einc_runtime.plan.index_programs import Position, TensorRead

MIN_CHANNELS = 8
"""Without groups, images of fewer channels are multiplied faster as matrices where their results, which are many times
as large, would be copied from the library's layout: where these do not have the channels of a pixel together."""


MIN_ROWS = 512
"""Convolutions of single pixels are products, of which machine code of our own computes those of fewer rows faster
(`llvm/few_rows.py`)."""


def build_convolution(call: IndexCall, then: Sequence[PostOperation] = ()) -> Kernel | None:
    """The kernel by a library, with functions of its result, whose operands have the result's dimensions; None where a
    program is no convolution, or one that no library computes fast. Libraries add up in an order of their own, which no
    reproducible plan does."""
    kinds = {dtype_name(array) for array in (*call.inputs, call.output)}
    if call.is_reproducible or len(kinds) != 1 or call.size < MIN_PACKED_PRODUCTS:
        return None
    (kind,) = kinds
    convolution = find_convolution(call.program) if kind == "f32" or libraries.is_multiplied(kind) else None
    windows = None if convolution is None else _find_windows(call, convolution)
    if convolution is None or windows is None or convolution.factor != 1:
        return None
    image, kernel = (call.program.reads[number] for number in (convolution.image, convolution.kernel))
    assert isinstance(image, TensorRead)
    assert isinstance(kernel, TensorRead)
    named: dict[int, str | None] = {window.dim: window.along for window in convolution.windows}
    of_image = [named.get(dim) or position.loop for dim, position in enumerate(image.positions)]
    along, within = ([getattr(window, name) for window in convolution.windows] for name in ("along", "within"))
    source = _merge(
        _arrange(
            call.inputs[image.operand], of_image, [convolution.batch, convolution.group, convolution.channel, *along]
        )
    )
    weights = _arrange(
        call.inputs[kernel.operand],
        _list_loops(kernel.positions),
        [convolution.group, convolution.filter, convolution.channel, *within],
    )

    def arrange_result(array: Array) -> Array | None:
        order = [convolution.batch, convolution.group, convolution.filter, *along]
        return _merge(_arrange(array, call.program.result, order))

    target = arrange_result(call.output)
    if source is None or target is None:
        return None
    functions = []
    for operation in (operation.onto(call.output) for operation in then):
        operand = None if operation.operand is None else arrange_result(operation.operand)
        if operation.operand is not None and (operand is None or np.may_share_memory(operation.operand, call.output)):
            return None
        functions.append(replace(operation, operand=operand))
    is_copied = target.shape[1] > 1 and target.strides[1] != target.itemsize
    if is_copied and len(weights) == 1 and weights.shape[2] < MIN_CHANNELS:
        return None
    in_place = False
    if convolution.is_pointwise and not any((*windows.before, *windows.behind)):
        if target.size < MIN_ROWS * target.shape[1]:
            return None
        in_place = set(windows.steps) == {1}
        source = source[:, :, *(slice(None, None, step) for step in windows.steps)]
        windows = replace(windows, steps=(1,) * len(along))
    return make_convolution(source, weights, target, windows, functions, in_place=in_place)


def build_with_map(first: Invocation[Array], then: Invocation[Array], operand: int) -> Kernel | None:
    """A convolution and the map in which its result is this operand, by one call of a library for each image; None
    where that is not possible."""
    operations = find_post_operations(MapCall.parse(then), operand) if first.name == "index" else None
    return None if operations is None else build_convolution(IndexCall.parse(first), operations)


def _list_loops(positions: Sequence[Position]) -> list[str | None]:
    return [position.loop for position in positions]


def _arrange(array: Array, names: Sequence[str | None], order: Sequence[str | None]) -> Array:
    """The array with its dimensions in an order, with extent 1 where that has none."""
    named = array[tuple(0 if name is None else slice(None) for name in names)]  # what is read at 0 has extent 1
    left, known = [name for name in names if name is not None], [name for name in order if name is not None]
    moved = named.transpose([left.index(name) for name in known])
    return moved[tuple(np.newaxis if name is None else slice(None) for name in order)]


def _merge(array: Array) -> Array | None:
    """The array with its second and third dimensions as one; None where their strides do not allow it."""
    outer, inner = array.shape[1:3]
    if outer > 1 and inner > 1 and array.strides[1] != inner * array.strides[2]:
        return None
    step = array.strides[2] if inner > 1 else array.strides[1]
    shape = (array.shape[0], outer * inner, *array.shape[3:])
    return np.lib.stride_tricks.as_strided(array, shape, (array.strides[0], step, *array.strides[3:]))


def _find_windows(call: IndexCall, convolution: Convolution) -> WindowSteps | None:
    """None where a block is all outside of the windows, or the other way round."""
    read = call.program.reads[convolution.image]
    assert isinstance(read, TensorRead)
    block, before, behind = call.blocks[read.operand], [], []
    for window in convolution.windows:
        first, last = call.ranges[window.along]
        start, end = (0, 1) if window.within is None else call.ranges[window.within]
        least = window.step * first + window.dilation * start + window.constant
        most = window.step * (last - 1) + window.dilation * (end - 1) + window.constant
        before.append(block.lower[window.dim] - least)
        behind.append(most + 1 - block.upper[window.dim])
    if min(*before, *behind, 0) < 0:
        return None
    steps, dilations = (tuple(getattr(window, name) for window in convolution.windows) for name in ("step", "dilation"))
    return WindowSteps(steps, dilations, tuple(before), tuple(behind))
