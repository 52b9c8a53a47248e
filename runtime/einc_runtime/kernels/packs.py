"""Operands that stay as they are from run to run, laid out once for the library that multiplies them.

Weights are such operands: views of them are read-only. A kernel's packs are nothing but a faster way: whoever runs the
kernel makes them when the weights are there, drops them when others are loaded, and need not make them at all.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from weakref import WeakValueDictionary

from einc_runtime.dtypes import Array
from einc_runtime.kernels.base import Run, address


class Pack:
    """A constant operand as a library wants it: `data` once it is made, which takes `size` bytes of memory."""

    __slots__ = ("__weakref__", "_make", "data", "size", "source")

    def __init__(self, source: Array, size: int, make: Callable[[], Array]) -> None:
        self.source, self.size, self._make = source, size, make
        self.data: Array | None = None

    def make(self) -> None:
        self.data = self._make()


class Packed:
    """A product that takes the pack where there is one."""

    __slots__ = ("_data", "_fast", "_pack", "_product", "_without")

    def __init__(self, pack: Pack, product: Callable[[Array], Run], without: Run) -> None:
        self._pack, self._product, self._without = pack, product, without
        self._data: Array | None = None
        self._fast = without

    def __call__(self) -> None:
        data = self._pack.data
        if data is not self._data:
            self._data, self._fast = data, self._without if data is None else self._product(data)
        self._fast()


_known: WeakValueDictionary[Hashable, Pack] = WeakValueDictionary()
"""Packs that kernels hold: those that read one operand in one way share it."""


def constant(array: Array) -> bool:
    return not array.flags.writeable


def pack_of(source: Array, form: Hashable, size: int, make: Callable[[], Array]) -> Pack:
    """The pack of an operand in a form, of which there is one."""
    key = (address(source), source.shape, source.strides, source.dtype, form)
    pack = _known.get(key)
    if pack is None:
        pack = _known[key] = Pack(source, size, make)
    return pack
