"""The memory of a plan's sites on the host: one aligned arena per site, with every buffer a view of its site's."""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import EllipsisType

import numpy as np

from einc_runtime.dtypes import Array, storage_dtype
from einc_runtime.errors import MissingFault, PlanFault
from einc_runtime.execution.cpu.host import require_memory
from einc_runtime.kernels.views import strides_of
from einc_runtime.plan import boxes
from einc_runtime.plan.schema import Block, Bundle, Region

ALIGNMENT = 64
LOADED = ("input", "weight")
POISON = 0xFF
"""Every byte of it makes a not-a-number of any floating type, and -1 of an integer."""


def aligned_bytes(size: int) -> Array:
    """Memory whose pages are taken when they are first written."""
    try:
        raw = np.empty(size + ALIGNMENT, np.uint8)
    except (MemoryError, ValueError) as error:
        raise MissingFault(f"{size:,} bytes of memory cannot be had") from error
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : start + size]


class Arenas:
    """Allocates all arenas; raises MissingFault where memory is short, and PlanFault for a buffer outside its arena.

    With `shared`, sites that are loaded with one block have it in one place, that of the first of them. Views of
    weights are read-only: nothing but loading changes them.
    """

    def __init__(self, bundle: Bundle, *, shared: bool = False) -> None:
        require_memory(sum(bundle.memory), f"running {bundle.model} on {len(bundle.memory)} sites")
        self.bundle = bundle
        self.arenas = [aligned_bytes(size) for size in bundle.memory]
        self.buffers: list[Array] = []
        loaded: dict[tuple[int, Block], Array] = {}
        for number, buffer in enumerate(bundle.buffers):
            shape = boxes.shape(buffer.block)
            tensor, arena = bundle.tensors[buffer.tensor], self.arenas[buffer.site]
            dtype = storage_dtype(tensor.dtype)
            if min(shape, default=0) < 0 or not 0 <= buffer.offset <= arena.size - math.prod(shape) * dtype.itemsize:
                raise PlanFault("the buffer is outside its arena", where=f"buffers[{number}]")
            strides = strides_of(shape, dtype.itemsize, tensor.order)
            array = np.ndarray(shape, dtype, arena.data, buffer.offset, strides)
            if shared and buffer.role in LOADED:
                array = loaded.setdefault((buffer.tensor, buffer.block), array)
            self.buffers.append(array)

    def view(self, region: Region) -> Array:
        """A region of a buffer, as a view."""
        block, inner = self.bundle.buffers[region.buffer].block, region.block
        bounds = list(zip(inner.lower, inner.upper, block.lower, block.upper, strict=True))
        if not all(first <= lo < up <= last for lo, up, first, last in bounds):
            raise PlanFault("the region is outside its buffer", where=f"buffers[{region.buffer}]")
        key: tuple[slice | EllipsisType, ...] = (*(slice(lo - first, up - first) for lo, up, first, _ in bounds), ...)
        view = self.buffers[region.buffer][key]
        view.flags.writeable = self.bundle.buffers[region.buffer].role != "weight"
        return view

    def views(self, regions: Sequence[Region]) -> list[Array]:
        return [self.view(region) for region in regions]

    def poison(self) -> None:
        """Overwrites everything that a run must write before it reads it."""
        for buffer, array in zip(self.bundle.buffers, self.buffers, strict=True):
            if buffer.role in ("scratch", "result"):
                self.arenas[buffer.site][buffer.offset : buffer.offset + array.nbytes].fill(POISON)
