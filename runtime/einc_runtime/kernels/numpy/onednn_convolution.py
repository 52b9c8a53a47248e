"""Convolutions by oneDNN, with functions of their elements: it chooses the layouts of images and kernels.

Images that lie in another layout are brought into it, a few at a time: so an image, its result and what lies between
stay in a core's second cache. Constant kernels are brought into their layout once.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from contextlib import suppress
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
    OnednnObject,
)
from einc_runtime.kernels.numpy.pieces import CallSequence
from einc_runtime.kernels.numpy.post_operations import ADD_TARGET, PostOperation, make_post_operations, number_operand
from einc_runtime.kernels.numpy.prepacking import PrepackedProduct, is_constant, share_prepacked

_INFERENCE, _DIRECT = 96, 1
_OF_SOURCE, _OF_TARGET = 129, 133  # what a descriptor is asked for, as in `onednn.py`

IMAGES_AT_ONCE = 1 << 20
"""Bytes of images and results that are brought into their layouts at a time, or as many as the kernels have, which are
read each time."""
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
    """All that decides how some images are convolved, but for where they lie. `then` are the functions that elements
    become results by, each with the layout of its operand if it has one."""

    dtype: str
    source: Layout
    weights: Layout
    target: Layout
    windows: WindowSteps
    then: tuple[tuple[str, Layout | None], ...] = ()


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
        then = [(name, None if layout is None else library.describe("f32", layout)) for name, layout in shape.then]
        attributes = library.make_attributes(make_post_operations(then) if then else None)
        descriptor = self._describe(free, attributes)
        way = library.name_implementation(descriptor)
        if way.startswith("ref"):
            raise OnednnError("oneDNN computes this element by element")
        self.plain = [description.value for description in plain]
        with suppress(OnednnError):  # it may write where the result lies as fast
            direct = self._describe([*free[:2], plain[2]], attributes)
            descriptor = direct if library.name_implementation(direct) == way else descriptor
        self._kept = (plain, free, then, descriptor)
        self.primitive = library.make("primitive", descriptor)
        self.operands = [None if operand is None else operand.value for _, operand in then]
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

    def _describe(self, layouts: Sequence[OnednnObject], attributes: OnednnObject) -> OnednnObject:
        """The descriptor of the primitive for images, kernels and results in these layouts. Raises OnednnError."""
        library, windows = onednn.require_library(), self.shape.windows
        source, weights, target = layouts
        dilations = [dilation - 1 for dilation in windows.dilations]
        lists = [
            (ctypes.c_int64 * len(values))(*values)
            for values in (windows.steps, dilations, windows.before, windows.behind)
        ]
        return library.make(
            "convolution_forward_primitive_desc", library.engine, _INFERENCE, _DIRECT,
            source, weights, None, target, *lists, attributes,
        )  # fmt: skip

    def _make_copy(self, from_layout: int, to_layout: int) -> onednn.OnednnObject:
        library = onednn.require_library()
        pair = ctypes.c_void_p(from_layout), library.engine, ctypes.c_void_p(to_layout), library.engine
        descriptor = library.make("reorder_primitive_desc", *pair, None)
        return library.make("primitive", descriptor)

    def copy(self, from_layout: int, source: Array, to_layout: int, target: Array) -> OnednnCall:
        places = [(SOURCE, from_layout, address(source)), (TARGET, to_layout, address(target))]
        return OnednnCall(self._copies[from_layout, to_layout], onednn.hold_memory(places), (self, source, target))

    def convolve(
        self, source: Array, weights: Array, target: Array, operands: Sequence[Array | None], scratch: Array
    ) -> OnednnCall:
        """The call; `operands` are those of the functions that follow."""
        arrays = (
            (SOURCE, self.used[0], source),
            (WEIGHTS, self.used[1], weights),
            (TARGET, self.used[2], target),
        )
        places = [(kind, descriptor, address(array)) for kind, descriptor, array in arrays]
        if self.scratch:
            places.append((SCRATCHPAD, self.pad, address(scratch)))
        for number, (descriptor, array) in enumerate(zip(self.operands, operands, strict=True)):
            if descriptor is not None and array is not None:
                places.append((number_operand(number), descriptor, address(array)))
        kept = (self, source, weights, target, operands, scratch)
        return OnednnCall(self.primitive, onednn.hold_memory(places), kept)


@lru_cache(onednn.MAX_PRIMITIVES)
def _share(shape: ConvolutionShape) -> ConvolutionPrimitive:
    with onednn.one_thread():
        return ConvolutionPrimitive(shape)


@dataclass(frozen=True, slots=True)
class _Images:
    """Some images, their results, and the operands of the functions that follow."""

    source: Array
    target: Array
    operands: tuple[Array | None, ...]


def make_convolution(
    source: Array,
    weights: Array,
    target: Array,
    windows: WindowSteps,
    then: Sequence[PostOperation] = (),
    *,
    in_place: bool = False,
) -> Kernel | None:
    """The convolution of [batch, channels, dims...] by [groups, filters, channels, dims...], with functions of its
    elements, whose operands have the dimensions of the result or an extent of 1.

    None where oneDNN is missing or has no fast way, and where images or results would be copied but must be `in_place`.
    """
    if not onednn.is_available():
        return None
    kernel = weights if len(weights) > 1 else weights[0]
    operands = [operation.operand for operation in then]

    def divide(count: int) -> tuple[ConvolutionPrimitive, list[_Images]]:
        parts = [
            _Images(
                source[at : at + count],
                target[at : at + count],
                tuple(x if x is None or len(x) == 1 else x[at : at + count] for x in operands),
            )
            for at in range(0, len(source), count)
        ]
        layouts = [_find_layout(array) for array in (parts[0].source, kernel, parts[0].target)]
        functions = tuple(
            (operation.function, None if operand is None else _find_layout(operand))
            for operation, operand in zip(then, parts[0].operands, strict=True)
        )
        shape = ConvolutionShape(dtype_name(target), layouts[0], layouts[1], layouts[2], windows, functions)
        return _share(shape), parts

    try:
        primitive, parts = divide(len(source))
        if primitive.moves[0] or primitive.moves[2]:
            if in_place:
                return None
            each, most = source[0].nbytes + target[0].nbytes, max(IMAGES_AT_ONCE, kernel.nbytes)
            counts = (n for n in range(len(source), 0, -1) if len(source) % n == 0)
            primitive, parts = divide(next(n for n in counts if n == 1 or n * each <= most))
    except (OnednnError, ValueError):
        return None
    if primitive.moves[2] and any(operation.function == ADD_TARGET for operation in then):
        return None  # the sum is not where it is added
    return _build(primitive, parts, kernel)


def _find_layout(array: Array) -> Layout:
    """Extents and strides. Raises ValueError where oneDNN has no such strides."""
    end = max((n * step for n, step in zip(array.shape, array.strides, strict=True) if n > 1), default=array.itemsize)
    steps = [end if n == 1 else step for n, step in zip(array.shape, array.strides, strict=True)]  # as if it were dense
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


def _build(primitive: ConvolutionPrimitive, parts: Sequence[_Images], kernel: Array) -> Kernel:
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
            for part in parts:
                source, computed = images if moves[0] else part.source, results if moves[2] else part.target
                calls += [primitive.copy(plain[0], part.source, used[0], source)] if moves[0] else []
                calls.append(primitive.convolve(source, packed, computed, part.operands, pad))
                calls += [primitive.copy(used[2], computed, plain[2], part.target)] if moves[2] else []
            return calls

        unpacked = _run_all([primitive.copy(plain[1], kernel, used[1], weights), *prepare(weights)])
        return unpacked if pack is None else PrepackedProduct(pack, lambda data: _run_all(prepare(data)), unpacked)

    products = sum(part.target.size for part in parts) * math.prod(
        kernel.shape[-len(primitive.shape.windows.steps) - 1 :]
    )
    return Kernel(bind, scratch.size, products / CONVOLVED_PER_NS, () if pack is None else (pack,))
