"""Windows that move over an array [batch, channels, places...]: convolutions and pooling, of any number of axes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from einc.importers.arrays.elementwise import MAX_FOLDED, apply, map_channels
from einc.importers.arrays.extents import Extent, make_extent
from einc.importers.arrays.moving import reshape, write_number
from einc.importers.arrays.naming import name_dimensions
from einc.importers.arrays.program import ArrayProgram
from einc.importers.arrays.values import Array, UnsupportedError, show_shape


@dataclass(frozen=True, slots=True)
class MovingWindows:
    """For each moving axis: the size of a window, its stride, the distance of its elements, and the padding on both
    sides. With `ceil`, a last window that starts inside may reach beyond the padding."""

    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pads: tuple[tuple[int, int], ...]
    ceil: bool = False

    @staticmethod
    def of(
        sizes: Sequence[int], strides: Sequence[int] | None = None, dilations: Sequence[int] | None = None,
        pads: Sequence[tuple[int, int]] | None = None, ceil: bool = False,
    ) -> MovingWindows:  # fmt: skip
        axes = len(sizes)
        windows = MovingWindows(
            tuple(sizes),
            tuple(strides or [1] * axes),
            tuple(dilations or [1] * axes),
            tuple(pads or [(0, 0)] * axes),
            ceil,
        )
        if not len(windows.strides) == len(windows.dilations) == len(windows.pads) == axes:
            raise UnsupportedError(f"windows of {axes} axes with another number of strides, dilations or pads")
        if min((*sizes, *windows.strides, *windows.dilations), default=1) < 1:
            raise UnsupportedError("sizes, strides and dilations of windows are at least 1")
        return windows

    def count(self, axis: int, extent: Extent) -> Extent:
        """The number of windows along an axis with this extent."""
        before, after = self.pads[axis]
        reach = self.dilations[axis] * (self.sizes[axis] - 1) + 1
        free, stride = extent + before + after - reach, self.strides[axis]
        if not self.ceil:
            return free // stride + 1
        windows = (free + stride - 1) // stride + 1
        beyond = (windows.value - 1) * stride >= extent.value + before
        return windows - 1 if beyond else windows

    def position(self, axis: int) -> str:
        """Where element `r` of window `i` along an axis stands."""
        number = axis + 2
        terms = [_scale(self.strides[axis], f"i{number}")]
        if self.sizes[axis] > 1:
            terms.append(_scale(self.dilations[axis], f"r{number}"))
        before = self.pads[axis][0]
        return " + ".join(terms) + (f" - {before}" if before > 0 else f" + {-before}" if before else "")

    def loops(self) -> list[str]:
        """The indices inside of a window, with their extents."""
        return [f"r{axis + 2} = {size}" for axis, size in enumerate(self.sizes) if size > 1]

    def reaches_outside(self, extents: Sequence[Extent]) -> bool:
        """Whether some window has elements before the first or behind the last one."""
        for axis, extent in enumerate(extents):
            last = (self.count(axis, extent).value - 1) * self.strides[axis] - self.pads[axis][0]
            last += self.dilations[axis] * (self.sizes[axis] - 1)
            if self.pads[axis][0] > 0 or self.pads[axis][1] > 0 or last >= extent.value:
                return True
        return False


def _scale(factor: int, index: str) -> str:
    return index if factor == 1 else f"{factor} * {index}"


def convolve(
    program: ArrayProgram, x: Array, kernel: Array, bias: Array | None, windows: MovingWindows, groups: int = 1,
    hint: str = "conv",
) -> Array:  # fmt: skip
    """x [n, c, places...] with a kernel [o, c / groups, sizes...], plus a bias [o]."""
    axes = len(windows.sizes)
    if x.rank != axes + 2 or kernel.rank != axes + 2 or x.shape[1] != kernel.shape[1] * groups:
        shown = f"{show_shape(x.shape)} and {show_shape(kernel.shape)}"
        raise UnsupportedError(f"a convolution of {shown} in {groups} groups of channels")
    places = tuple(windows.count(axis, extent) for axis, extent in enumerate(x.shape[2:]))
    _require_windows(places, x)
    shape = (x.shape[0], kernel.shape[0], *places)
    outside = ", outside = 0" if windows.reaches_outside(x.shape[2:]) else ""
    batch, channels = name_dimensions(shape)[:2]
    moving = [windows.position(axis) for axis in range(axes)]
    inner = [f"r{axis + 2}" if size > 1 else "0" for axis, size in enumerate(windows.sizes)]
    loops = windows.loops()
    targets = [f"i{axis + 2}=" for axis in range(axes)]
    placed, weight = program.place(x), program.place(kernel)
    depthwise = groups > 1 and kernel.shape[1] == make_extent(1) and kernel.shape[0].value == groups
    if groups == 1:
        text = _sum(
            ["r1", *loops], f"{{0}}[{_join(batch, 'r1', *moving)}{outside}] * {{1}}[{_join(channels, 'r1', *inner)}]"
        )
        result = program.equation(hint, [batch, channels, *targets], text, [placed, weight], shape, x.type)
    elif depthwise:
        text = f"{{0}}[{_join(batch, channels, *moving)}{outside}] * {{1}}[{_join(channels, '0', *inner)}]"
        result = program.equation(hint, [batch, channels, *targets], _sum(loops, text), [placed, weight], shape, x.type)
    else:
        each = kernel.shape[0] // groups
        split = (x.shape[0], make_extent(groups), each, *places)
        inside = [("r1", kernel.shape[1].text)] if kernel.shape[1] != make_extent(1) else []
        channel = f"{kernel.shape[1].text} * i1 + r1" if inside else "i1"
        bracket = [f"{name} = {extent}" for name, extent in inside] + loops
        text = (
            f"{{0}}[{_join(batch, channel, *moving)}{outside}] * "
            f"{{1}}[{_join(f'{each.text} * i1 + i0', 'r1' if inside else '0', *inner)}]"
        )
        targets = [batch, "i1=", "i0=", *targets]
        parts = program.equation(hint, targets, _sum(bracket, text), [placed, weight], split, x.type)
        result = reshape(program, parts, shape, hint)
    return result if bias is None else map_channels(program, result, [bias], hint)


def _sum(loops: Sequence[str], text: str) -> str:
    return f"sum[{', '.join(loops)}]({text})" if loops else text


def _join(*parts: str) -> str:
    return ", ".join(parts)


def _require_windows(places: Sequence[Extent], x: Array) -> None:
    if any(extent.value < 1 for extent in places):
        raise UnsupportedError(f"windows that do not fit into {show_shape(x.shape)}")


def convolve_transposed(
    program: ArrayProgram, x: Array, kernel: Array, bias: Array | None, windows: MovingWindows, groups: int = 1,
    additions: Sequence[int] | None = None, hint: str = "conv_transpose",
) -> Array:  # fmt: skip
    """What x [n, c, places...] adds up to where each element adds its multiple of a kernel [c, o / groups, sizes...].

    `pads` are taken away on both sides of the result; `additions` are more places at the end of each axis.
    """
    axes = len(windows.sizes)
    if x.rank != axes + 2 or kernel.rank != axes + 2 or x.shape[1] != kernel.shape[0]:
        shown = f"{show_shape(x.shape)} and {show_shape(kernel.shape)}"
        raise UnsupportedError(f"a transposed convolution of {shown}")
    places = []
    for axis, extent in enumerate(x.shape[2:]):
        reach = windows.dilations[axis] * (windows.sizes[axis] - 1) + 1
        more = additions[axis] if additions else 0
        places.append((extent - 1) * windows.strides[axis] + reach + more - sum(windows.pads[axis]))
    _require_windows(places, x)
    each = kernel.shape[1]
    channels = x.shape[1] // groups
    batch = name_dimensions(x.shape)[0]
    reads, conditions = [], []
    for axis in range(axes):
        number, stride = axis + 2, windows.strides[axis]
        index = f"r{number}" if windows.sizes[axis] > 1 else "0"
        shift = f" + {windows.pads[axis][0]}" if windows.pads[axis][0] else ""
        position = f"i{number}{shift}" + (f" - {_scale(windows.dilations[axis], index)}" if index != "0" else "")
        reads.append(f"({position}) // {stride}" if stride > 1 else position)
        conditions += [f"({position}) % {stride} == 0"] if stride > 1 else []
    inner = [f"r{axis + 2}" if size > 1 else "0" for axis, size in enumerate(windows.sizes)]
    channel = f"{channels.text} * i1 + r1" if groups > 1 else "r1"
    group = ["i1="] if groups > 1 else []
    product = f"{{0}}[{_join(batch, channel, *reads)}, outside = 0] * {{1}}[{_join(channel, 'i0', *inner)}]"
    for condition in conditions:
        product = f"where({condition}, {product}, 0{'.0' if x.type.is_float else ''})"
    text = _sum([f"r1 = {channels.text}", *windows.loops()], product)
    targets = [batch, *group, "i0=", *(f"i{axis + 2}=" for axis in range(axes))]
    split = (x.shape[0], *([make_extent(groups)] if groups > 1 else []), each, *places)
    operands = [program.place(x), program.place(kernel)]
    parts = program.equation(hint, targets, text, operands, split, x.type)
    result = reshape(program, parts, [x.shape[0], each * groups, *places], hint)
    return result if bias is None else map_channels(program, result, [bias], hint)


def max_pool(program: ArrayProgram, x: Array, windows: MovingWindows, hint: str = "max_pool") -> Array:
    """The largest element of each window; what lies outside does not count."""
    text = f"max[{', '.join(windows.loops())}]" if windows.loops() else ""
    lowest = -float("inf") if x.type.is_float else 0 if x.type.is_unsigned else -(2 ** (x.type.bits - 1))
    outside = f", outside = {write_number(lowest, x.type)}" if windows.reaches_outside(x.shape[2:]) else ""
    return _pool(program, x, windows, text, outside, "", hint)


def average_pool(
    program: ArrayProgram, x: Array, windows: MovingWindows, count_outside: bool = False, hint: str = "average_pool",
    *, fixed_divisor: int | None = None,
) -> Array:  # fmt: skip
    """The mean of each window. What lies outside counts as 0, or does not count; beyond the padding it never counts.

    With a `fixed_divisor`, sums are divided by that.
    """
    outside = windows.reaches_outside(x.shape[2:])
    loops = windows.loops()
    sums = f"sum[{', '.join(loops)}]" if loops else ""
    if fixed_divisor or not outside:
        zeros = ", outside = 0" if outside else ""
        return _pool(program, x, windows, sums, zeros, f" / {fixed_divisor or math.prod(windows.sizes)}", hint)
    divisors = [_count_windows(program, x, windows, axis, count_outside) for axis in range(len(windows.sizes))]
    total = _pool(program, x, windows, sums, ", outside = 0", "", f"{hint}_sum")
    for axis, divisor in enumerate(divisors):
        shape = [1] * (axis + 2) + [divisor.shape[0]] + [1] * (len(divisors) - axis - 1)
        total = apply(program, "div", total, reshape(program, divisor, shape), hint=hint)
    return total


def _count_windows(program: ArrayProgram, x: Array, windows: MovingWindows, axis: int, count_outside: bool) -> Array:
    """How many elements of each window along an axis count."""
    extent = x.shape[axis + 2]
    if not extent.is_number:
        raise UnsupportedError("a mean of windows over a dimension that depends on params", "give the params numbers")
    if windows.count(axis, extent).value * windows.sizes[axis] > MAX_FOLDED:
        raise UnsupportedError(f"means of windows of {windows.sizes[axis]:,} elements")
    before, after = windows.pads[axis] if count_outside else (0, 0)
    starts = windows.strides[axis] * np.arange(windows.count(axis, extent).value) - windows.pads[axis][0]
    places = starts[:, None] + windows.dilations[axis] * np.arange(windows.sizes[axis])
    inside = (places >= -before) & (places < extent.value + after)
    return program.constant(inside.sum(1).astype(x.type.numpy), x.type, "count")


def _pool(
    program: ArrayProgram, x: Array, windows: MovingWindows, aggregate: str, outside: str, behind: str, hint: str
) -> Array:
    axes = len(windows.sizes)
    if x.rank != axes + 2:
        raise UnsupportedError(f"windows of {axes} axes in {show_shape(x.shape)}")
    places = tuple(windows.count(axis, extent) for axis, extent in enumerate(x.shape[2:]))
    _require_windows(places, x)
    shape = (*x.shape[:2], *places)
    batch, channels = name_dimensions(shape)[:2]
    moving = [windows.position(axis) for axis in range(axes)]
    element = f"{{0}}[{_join(batch, channels, *moving)}{outside}]"
    text = f"{aggregate}({element}{behind})" if aggregate else f"{element}{behind}"
    targets = [batch, channels, *(f"i{axis + 2}=" for axis in range(axes))]
    return program.equation(hint, targets, text, [program.place(x)], shape, x.type)
