"""Layers of networks: norms, convolutions, pooling, resizing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from einc.importers.arrays import reducing, windows
from einc.importers.arrays.element_types import ElementType
from einc.importers.arrays.elementwise import apply, cast
from einc.importers.arrays.extents import Extent, make_extent, multiply_extents
from einc.importers.arrays.moving import reshape, squeeze, take, unsqueeze
from einc.importers.arrays.products import einsum
from einc.importers.arrays.resampling import interpolate
from einc.importers.arrays.values import Array, UnsupportedError
from einc.importers.arrays.windows import MovingWindows
from einc.importers.pytorch.aten.table import Call, Function, Size, aten

_EPSILONS = {
    ElementType.F16: 2.0**-10, ElementType.BF16: 2.0**-7, ElementType.F32: 2.0**-23, ElementType.F64: 2.0**-52
}  # fmt: skip
"""The distance from 1 to the next number, which torch takes where a norm has no eps."""


def _flatten_last(call: Call, array: Array | None, count: int) -> Array | None:
    """The array with its last dimensions as one."""
    if array is None or count == 1:
        return array
    return reshape(call.program, array, [*array.shape[: array.rank - count], -1], call.hint)


@aten("layer_norm")
def convert_layer_norm(
    call: Call, input: Array, normalized_shape: list[Size], weight: Array | None = None, bias: Array | None = None,
    eps: float = 1e-5,
) -> Array:  # fmt: skip
    count = len(normalized_shape)
    flat, gain, shift = (_flatten_last(call, array, count) for array in (input, weight, bias))
    assert flat is not None
    gain, shift = (cast(call.program, part, input.type) if part else None for part in (gain, shift))
    result = reducing.layer_norm(call.program, flat, gain, shift, eps, call.hint)
    return reshape(call.program, result, input.shape, call.hint)


@aten("native_layer_norm")
def convert_native_layer_norm(
    call: Call, input: Array, normalized_shape: list[Size], weight: Array | None, bias: Array | None, eps: float
) -> Any:
    """Beside the result the statistics of rows, which training uses."""
    count = len(normalized_shape)
    rows = _flatten_last(call, input, count)
    assert rows is not None
    shape: list[Extent | int] = [*input.shape[: input.rank - count], *[1] * count]
    statistics = _measure_rows(call, rows, eps, shape)
    return convert_layer_norm(call, input, normalized_shape, weight, bias, eps), *statistics


def _measure_rows(call: Call, rows: Array, eps: float, shape: Sequence[Extent | int]) -> tuple[Array, Array]:
    """The means of rows, and the factors that make their deviations 1."""
    program, wide = call.program, cast(call.program, rows, call.types[1])
    mean = reducing.reduce(program, wide, "mean", [-1], True, call.hint)
    apart = apply(program, "sub", wide, mean)
    variance = reducing.reduce(program, apply(program, "square", apart), "mean", [-1], True, call.hint)
    factor = apply(program, "rsqrt", apply(program, "add", variance, eps), hint=call.hint)
    return reshape(program, mean, shape, call.hint), reshape(program, factor, shape, call.hint)


@aten("rms_norm")
def convert_rms_norm(
    call: Call, input: Array, normalized_shape: list[Size], weight: Array | None = None, eps: float | None = None
) -> Array:
    count = len(normalized_shape)
    flat, gain = (_flatten_last(call, array, count) for array in (input, weight))
    assert flat is not None
    smallest = _EPSILONS[input.type] if eps is None else eps
    result = reducing.rms_norm(call.program, flat, gain, smallest, hint=call.hint)
    return reshape(call.program, result, input.shape, call.hint)


@aten("group_norm", "native_group_norm")
def convert_group_norm(
    call: Call, input: Array, weight: Array | None = None, bias: Array | None = None, eps: float = 1e-5,
    num_groups: int | None = None, group: int | None = None, N: Any = None, C: Any = None, HxW: Any = None,
) -> Any:  # fmt: skip
    """Beside the result the statistics of groups, which training uses."""
    groups = num_groups or group or 1
    result = reducing.group_norm(call.program, input, groups, weight, bias, eps, call.hint)
    if len(call.types) == 1:
        return result
    rows = reshape(call.program, input, [input.shape[0], groups, multiply_extents(input.shape[1:]) // groups])
    return result, *_measure_rows(call, rows, eps, [input.shape[0], groups])


@aten("instance_norm")
def convert_instance_norm(
    call: Call, input: Array, weight: Array | None = None, bias: Array | None = None,
    running_mean: Array | None = None, running_var: Array | None = None, use_input_stats: bool = True,
    momentum: float = 0.1, eps: float = 1e-5,
) -> Array:  # fmt: skip
    if not use_input_stats:
        result: Array = convert_batch_norm(call, input, weight, bias, running_mean, running_var, eps=eps)
        return result
    return reducing.group_norm(call.program, input, input.shape[1], weight, bias, eps, call.hint)


@aten("batch_norm", "_native_batch_norm_legit_no_training", "_batch_norm_no_update", "native_batch_norm")
def convert_batch_norm(
    call: Call, input: Array, weight: Array | None = None, bias: Array | None = None,
    running_mean: Array | None = None, running_var: Array | None = None, training: bool = False,
    momentum: float = 0.1, eps: float = 1e-5,
) -> Any:  # fmt: skip
    if training:
        raise UnsupportedError("a batch norm that trains", "call eval() on the module before it is exported")
    if running_mean is None or running_var is None:
        raise UnsupportedError("a batch norm without running statistics")
    result = reducing.batch_norm(call.program, input, running_mean, running_var, weight, bias, eps, call.hint)
    return result if len(call.types) == 1 else (result, None, None, None)


def _pairs(values: Sequence[int], axes: int) -> list[int]:
    return list(values) * axes if len(values) == 1 else list(values)


@aten("convolution", "conv1d", "conv2d", "conv3d")
def convert_convolution(
    call: Call, input: Array, weight: Array, bias: Array | None = None, stride: Sequence[int] = (1,),
    padding: Sequence[int] | str = (0,), dilation: Sequence[int] = (1,), transposed: bool = False,
    output_padding: Sequence[int] = (0,), groups: int = 1,
) -> Array:  # fmt: skip
    axes = weight.rank - 2
    strides, dilations = _pairs(stride, axes), _pairs(dilation, axes)
    sizes = [extent.value for extent in weight.shape[2:]]
    if isinstance(padding, str):
        total = [d * (size - 1) if padding == "same" else 0 for size, d in zip(sizes, dilations, strict=True)]
        pads = [(width // 2, width - width // 2) for width in total]
    else:
        pads = [(width, width) for width in _pairs(padding, axes)]
    moving = MovingWindows.of(sizes, strides, dilations, pads)
    batched = input if input.rank == axes + 2 else unsqueeze(call.program, input, [0])
    if transposed:
        more = _pairs(output_padding, axes)
        result = windows.convolve_transposed(call.program, batched, weight, bias, moving, groups, more, hint=call.hint)
    else:
        result = windows.convolve(call.program, batched, weight, bias, moving, groups, call.hint)
    return result if input.rank == axes + 2 else squeeze(call.program, result, [0], call.hint)


@aten("conv_transpose1d", "conv_transpose2d", "conv_transpose3d")
def convert_transposed_convolution(
    call: Call, input: Array, weight: Array, bias: Array | None = None, stride: Sequence[int] = (1,),
    padding: Sequence[int] = (0,), output_padding: Sequence[int] = (0,), groups: int = 1,
    dilation: Sequence[int] = (1,),
) -> Array:  # fmt: skip
    return convert_convolution(call, input, weight, bias, stride, padding, dilation, True, output_padding, groups)


def _make_windows(
    array: Array, axes: int, size: Sequence[int], stride: Sequence[int] | None, padding: Sequence[int],
    dilation: Sequence[int], ceil: bool,
) -> MovingWindows:  # fmt: skip
    sizes = _pairs(size, axes)
    strides = _pairs(stride, axes) if stride else sizes
    pads = [(width, width) for width in _pairs(padding, axes)]
    return MovingWindows.of(sizes, strides, _pairs(dilation, axes), pads, ceil)


def _make_pooling(axes: int) -> tuple[Function, ...]:
    @aten(f"max_pool{axes}d", f"max_pool{axes}d_with_indices")
    def convert_max(
        call: Call, self_: Array, kernel_size: list[int], stride: list[int] | None = None,
        padding: Sequence[int] = (0,), dilation: Sequence[int] = (1,), ceil_mode: bool = False,
    ) -> Any:  # fmt: skip
        """Positions of the largest elements, which training uses, are not computed."""
        moving = _make_windows(self_, axes, kernel_size, stride, padding, dilation, ceil_mode)
        result = _with_batch(call, self_, axes, lambda x: windows.max_pool(call.program, x, moving, call.hint))
        return result if len(call.types) == 1 else (result, None)

    @aten(f"avg_pool{axes}d")
    def convert_average(
        call: Call, self_: Array, kernel_size: list[int], stride: list[int] | None = None,
        padding: Sequence[int] = (0,), ceil_mode: bool = False, count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> Array:  # fmt: skip
        moving = _make_windows(self_, axes, kernel_size, stride, padding, (1,), ceil_mode)
        return _with_batch(
            call, self_, axes,
            lambda x: windows.average_pool(
                call.program, x, moving, count_include_pad, call.hint, fixed_divisor=divisor_override
            ),
        )  # fmt: skip

    @aten(f"adaptive_avg_pool{axes}d", f"_adaptive_avg_pool{axes}d")
    def convert_adaptive_average(call: Call, self_: Array, output_size: Sequence[int | None]) -> Array:
        return _reduce_parts(call, self_, axes, output_size, _average_parts)

    @aten(f"adaptive_max_pool{axes}d")
    def convert_adaptive_max(call: Call, self_: Array, output_size: Sequence[int | None]) -> Any:
        result = _reduce_parts(call, self_, axes, output_size, _find_largest_of_parts)
        return result if len(call.types) == 1 else (result, None)

    return convert_max, convert_average, convert_adaptive_average, convert_adaptive_max


def _reduce_parts(
    call: Call, array: Array, axes: int, output_size: Sequence[int | None], reduce_axis: Callable[..., Array]
) -> Array:
    """The array with its last axes reduced to so many parts; None keeps an axis as it is."""
    sizes = list(output_size) * axes if len(output_size) == 1 else output_size
    for axis, size in zip(range(array.rank - axes, array.rank), sizes, strict=True):
        if size is not None and array.shape[axis] != make_extent(size):
            array = reduce_axis(call, array, axis, size)
    return array


def _with_batch(call: Call, array: Array, axes: int, pool: Any) -> Array:
    if array.rank == axes + 2:
        result: Array = pool(array)
        return result
    return squeeze(call.program, pool(unsqueeze(call.program, array, [0])), [0], call.hint)


def _average_parts(call: Call, array: Array, axis: int, size: int) -> Array:
    """The means of `size` parts of an axis, which overlap where it is not divisible, as torch cuts them."""
    if size == 1:
        return reducing.reduce(call.program, array, "mean", [axis], True, call.hint)
    count = _count(array, axis)
    if count % size == 0:
        split: list[Size] = [*array.shape[:axis], size, count // size, *array.shape[axis + 1 :]]
        return reducing.reduce(call.program, reshape(call.program, array, split), "mean", [axis + 1], False, call.hint)
    weights = np.zeros((size, count))
    for part, (start, stop) in enumerate(_list_parts(count, size)):
        weights[part, start:stop] = 1 / (stop - start)
    return _mix_axis(call, array, axis, weights)


def _find_largest_of_parts(call: Call, array: Array, axis: int, size: int) -> Array:
    """The largest elements of `size` parts of an axis, as torch cuts them."""
    parts = _list_parts(_count(array, axis), size)
    width = max(stop - start for start, stop in parts)
    # A shorter part has its last element several times, which changes no maximum.
    places = np.array([[min(start + k, stop - 1) for k in range(width)] for start, stop in parts], np.int64)
    if not np.array_equal(places.ravel(), np.arange(_count(array, axis))):
        array = take(call.program, array, call.program.constant(places.ravel(), ElementType.I64), axis, call.hint)
    split: list[Size] = [*array.shape[:axis], size, width, *array.shape[axis + 1 :]]
    return reducing.reduce(call.program, reshape(call.program, array, split), "max", [axis + 1], False, call.hint)


def _list_parts(count: int, size: int) -> list[tuple[int, int]]:
    """Where torch cuts `count` positions into `size` parts: from a first position to one that is not in the part."""
    return [(part * count // size, -(-(part + 1) * count // size)) for part in range(size)]


def _mix_axis(call: Call, array: Array, axis: int, weights: np.ndarray[Any, Any]) -> Array:
    """Each new position along an axis is a sum of old ones with these weights [new, old]."""
    letters = "abcdefgh"[: array.rank]
    new = letters.replace(letters[axis], "z")
    matrix = call.program.constant(weights.astype(array.type.numpy), array.type, f"{call.hint}_weights")
    return einsum(call.program, f"{letters},z{letters[axis]}->{new}", [array, matrix], call.hint)


_POOLING = tuple(function for axes in (1, 2, 3) for function in _make_pooling(axes))


def _count(array: Array, axis: int) -> int:
    extent = array.shape[axis]
    if not extent.is_number:
        raise UnsupportedError("parts of a dimension that depends on params", "give the dimension a number")
    return extent.value


def _make_nearest(axes: int, exact: bool) -> Function:
    name = f"upsample_nearest{axes}d"

    @aten(f"_{name.replace('nearest', 'nearest_exact')}" if exact else name)
    def convert(
        call: Call, self_: Array | None = None, output_size: Sequence[int] | None = None, input: Array | None = None,
        scale_factors: Sequence[float] | None = None, scales: float | None = None, scales_h: float | None = None,
        scales_w: float | None = None, scales_d: float | None = None,
    ) -> Array:  # fmt: skip
        array = self_ or input
        assert array is not None
        by_axis = [scales] if axes == 1 else [scales_d, scales_h, scales_w][3 - axes :]
        factors: Sequence[float | None] = scale_factors or by_axis
        for k in range(axes):
            axis = array.rank - axes + k
            old = _count(array, axis)
            factor = factors[k]
            size = output_size[k] if output_size else int(old * (factor or 1.0))
            step = 1 / factor if factor else old / size
            places = np.floor((np.arange(size) + (0.5 if exact else 0)) * step).clip(0, old - 1).astype(np.int64)
            array = take(call.program, array, call.program.constant(places, ElementType.I64), axis, call.hint)
        return array

    return convert


_NEAREST_RESIZING = tuple(_make_nearest(axes, exact) for axes in (1, 2, 3) for exact in (False, True))


@aten("upsample_bilinear2d", "upsample_linear1d")
def convert_bilinear(
    call: Call, self_: Array | None = None, output_size: Sequence[int] | None = None, align_corners: bool = False,
    input: Array | None = None, scale_factors: Sequence[float] | None = None, scales: float | None = None,
    scales_h: float | None = None, scales_w: float | None = None,
) -> Array:  # fmt: skip
    return _interpolate(call, self_ or input, output_size, align_corners, scale_factors or [scales_h, scales_w], 1)


@aten("upsample_bicubic2d")
def convert_bicubic(
    call: Call, self_: Array | None = None, output_size: Sequence[int] | None = None, align_corners: bool = False,
    input: Array | None = None, scale_factors: Sequence[float] | None = None, scales_h: float | None = None,
    scales_w: float | None = None,
) -> Array:  # fmt: skip
    return _interpolate(call, self_ or input, output_size, align_corners, scale_factors or [scales_h, scales_w], 2)


def _interpolate(
    call: Call, array: Array | None, output_size: Sequence[int] | None, align: bool,
    scales: Sequence[float | None], reach: int,
) -> Array:  # fmt: skip
    assert array is not None
    axes = array.rank - 2
    for k in range(axes):
        axis = 2 + k
        old = _count(array, axis)
        scale = scales[k] if k < len(scales) else None
        size = output_size[k] if output_size else int(old * (scale or 1.0))
        step = (old - 1) / max(size - 1, 1) if align else 1 / scale if scale else old / size
        places = np.arange(size) * step if align else (np.arange(size) + 0.5) * step - 0.5
        array = interpolate(call.program, array, axis, places, reach, call.hint)
    return array


@aten("glu")
def convert_glu(call: Call, self_: Array, dim: int = -1) -> Array:
    from einc.importers.pytorch.aten.moving import convert_chunk

    first, second = convert_chunk(call, self_, 2, dim)
    return apply(call.program, "mul", first, apply(call.program, "sigmoid", second), hint=call.hint)
