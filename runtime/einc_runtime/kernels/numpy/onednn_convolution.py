"""Convolutions by oneDNN: it chooses the layouts of images and kernels. A few images at a time are brought into them.

So an image, its result and what lies between stay in a core's second cache. Constant kernels are brought into their
layout once.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from einc_runtime.dtypes import Array
from einc_runtime.kernels.base import Kernel, Run, ScratchAllocator, ScratchArray, address, allocate_aligned, dtype_name
from einc_runtime.kernels.numpy import onednn
from einc_runtime.kernels.numpy.onednn import (
    OF_SCRATCHPAD,
    OF_WEIGHTS,
    SCRATCHPAD,
    SOURCE,
    TARGET,
    WEIGHTS,
    Layout,
    OnednnCall,
    OnednnError,
)
from einc_runtime.kernels.numpy.pieces import CallSequence
from einc_runtime.kernels.numpy.prepacking import PrepackedProduct, is_constant, share_prepacked

_INFERENCE, _DIRECT = 96, 1
_OF_SOURCE, _OF_TARGET = 129, 133  # what a descriptor is asked for, as in `onednn.py`

IMAGES_AT_ONCE = 1 << 20
"""Bytes of images and results that are computed at a time."""
CONVOLVED_PER_NS = 50
"""Products that a core is taken to make in a nanosecond, for the estimate in `Kernel.nanoseconds`."""


@dataclass(frozen=True, slots=True)
class WindowSteps:
    """Steps, dilations (1 is dense) and paddings of windows along each dimension."""

    steps: tuple[int, ...]
    dilations: tuple[int, ...]
    before: tuple[int, ...]
    behind: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ConvolutionShape:
    """All that decides how some images are convolved, but for where they lie."""

    dtype: str
    source: Layout
    weights: Layout
    target: Layout
    windows: WindowSteps


class ConvolutionPrimitive:
    """A convolution that oneDNN has compiled, with the copies between its layouts and those of operands."""

    def __init__(self, shape: ConvolutionShape) -> None:
        library = onednn.require_library()
        self.shape = shape
        plain = [library.describe(shape.dtype, layout) for layout in (shape.source, shape.weights, shape.target)]
        free = [
            library.describe_any(shape.dtype, description[0])
            for description in (shape.source, shape.weights, shape.target)
        ]
        source, weights, target = (ctypes.c_void_p(description.value) for description in free)
        windows = shape.windows
        lists = [
            (ctypes.c_int64 * len(values))(*values)
            for values in (
                windows.steps,
                [dilation - 1 for dilation in windows.dilations],
                windows.before,
                windows.behind,
            )
        ]
        descriptor = library.make(
            "convolution_forward_primitive_desc", library.engine, _INFERENCE, _DIRECT,
            source, weights, None, target, *lists, library.attributes,
        )  # fmt: skip
        if library.name_implementation(descriptor).startswith("ref"):
            raise OnednnError("oneDNN computes this element by element")
        self._kept = (plain, free, descriptor)
        self.primitive = library.make("primitive", ctypes.c_void_p(descriptor.value))
        self.plain = [description.value for description in plain]
        self.used = [library.query(descriptor, wanted_part) for wanted_part in (_OF_SOURCE, OF_WEIGHTS, _OF_TARGET)]
        self.pad = library.query(descriptor, OF_SCRATCHPAD)
        self.sizes = [library.size_of(ctypes.c_void_p(description)) for description in self.used]
        self.scratch: int = library.size_of(ctypes.c_void_p(self.pad)) if self.pad else 0
        self.moves = [
            bool(library.are_equal(*map(ctypes.c_void_p, pair)) == 0)
            for pair in zip(self.plain, self.used, strict=True)
        ]
        self.form = onednn.number_form(self.used[1], descriptor)
        self._copies = {
            pair: self._make_copy(*pair)
            for pair in [(self.plain[0], self.used[0]), (self.plain[1], self.used[1]), (self.used[2], self.plain[2])]
        }

    def _make_copy(self, from_layout: int, to_layout: int) -> onednn.OnednnObject:
        library = onednn.require_library()
        pair = ctypes.c_void_p(from_layout), library.engine, ctypes.c_void_p(to_layout), library.engine
        descriptor = library.make("reorder_primitive_desc", *pair, None)
        return library.make("primitive", ctypes.c_void_p(descriptor.value))

    def copy(self, from_layout: int, source: Array, to_layout: int, target: Array) -> OnednnCall:
        places = [(SOURCE, from_layout, address(source)), (TARGET, to_layout, address(target))]
        return OnednnCall(self._copies[from_layout, to_layout], onednn.hold_memory(places), (self, source, target))

    def convolve(self, source: Array, weights: Array, target: Array, scratch: Array) -> OnednnCall:
        arrays = (
            (SOURCE, self.used[0], source),
            (WEIGHTS, self.used[1], weights),
            (TARGET, self.used[2], target),
        )
        places = [(kind, descriptor, address(array)) for kind, descriptor, array in arrays]
        if self.scratch:
            places.append((SCRATCHPAD, self.pad, address(scratch)))
        return OnednnCall(self.primitive, onednn.hold_memory(places), (self, source, weights, target, scratch))


@lru_cache(onednn.MAX_PRIMITIVES)
def _share(shape: ConvolutionShape) -> ConvolutionPrimitive:
    with onednn.one_thread():
        return ConvolutionPrimitive(shape)


def make_convolution(source: Array, weights: Array, target: Array, windows: WindowSteps) -> Kernel | None:
    """The convolution of [batch, channels, dims...] by [groups, filters, channels, dims...].

    None where oneDNN is missing or has no fast way.
    """
    if not onednn.is_available():
        return None
    each = (source[0].size * source.itemsize) + (target[0].size * target.itemsize)
    count = max(n for n in range(1, len(source) + 1) if len(source) % n == 0 and (n == 1 or n * each <= IMAGES_AT_ONCE))
    parts = [(source[at : at + count], target[at : at + count]) for at in range(0, len(source), count)]
    kernel = weights if len(weights) > 1 else weights[0]
    try:
        layouts = [_find_layout(array) for array in (*parts[0][:1], kernel, parts[0][1])]
        primitive = _share(ConvolutionShape(dtype_name(target), layouts[0], layouts[1], layouts[2], windows))
    except (OnednnError, ValueError):
        return None
    return _build(primitive, parts, kernel)


def _find_layout(array: Array) -> Layout:
    """Extents and strides. Raises ValueError where oneDNN has no such strides."""
    steps = [array.itemsize if n == 1 else step for n, step in zip(array.shape, array.strides, strict=True)]
    if any(step % array.itemsize or step <= 0 for step in steps):
        raise ValueError("strides between elements")
    return array.shape, tuple(step // array.itemsize for step in steps)


class _OneThread(CallSequence):
    """All calls, in one thread: some copies between layouts write beyond their memory in more threads than they were
    made for. Workers of plans, which make the calls themselves, have one thread each."""

    def __call__(self) -> None:
        with onednn.one_thread():
            super().__call__()


def _run_all(calls: Sequence[OnednnCall]) -> Run:
    return _OneThread([(call, []) for call in calls])


def _build(primitive: ConvolutionPrimitive, parts: Sequence[tuple[Array, Array]], kernel: Array) -> Kernel:
    scratch = ScratchAllocator()

    def take(size: int) -> ScratchArray:
        return scratch.take((max(size, 1),), np.dtype(np.uint8))

    places = [take(size) for size in (*primitive.sizes, primitive.scratch)]
    sizes, used, plain, moves = primitive.sizes, primitive.used, primitive.plain, primitive.moves
    pack = None
    if is_constant(kernel):

        def make() -> Array:
            packed = allocate_aligned(sizes[1])
            with onednn.one_thread():
                primitive.copy(plain[1], kernel, used[1], packed)()
            return packed

        pack = share_prepacked(kernel, ("convolution", primitive.form, *primitive.shape.weights), sizes[1], make)

    def bind(memory: Array) -> Run:
        images, weights, results, pad = (slot.of(memory) for slot in places)

        def prepare(packed: Array) -> list[OnednnCall]:
            calls = []
            for source, target in parts:
                used_source, computed = images if moves[0] else source, results if moves[2] else target
                calls += [primitive.copy(plain[0], source, used[0], used_source)] if moves[0] else []
                calls.append(primitive.convolve(used_source, packed, computed, pad))
                calls += [primitive.copy(used[2], computed, plain[2], target)] if moves[2] else []
            return calls

        unpacked = _run_all([primitive.copy(plain[1], kernel, used[1], weights), *prepare(weights)])
        return unpacked if pack is None else PrepackedProduct(pack, lambda data: _run_all(prepare(data)), unpacked)

    products = sum(target.size for _, target in parts) * math.prod(
        kernel.shape[-len(primitive.shape.windows.steps) - 1 :]
    )
    return Kernel(bind, scratch.size, products / CONVOLVED_PER_NS, () if pack is None else (pack,))
