"""Divides an iteration space into tiles, one for each program, and writes the lines that find a program's tile.

A tile has up to two axes, rows and columns; along all other axes a program has one position. Columns are the axis along
which memory is contiguous, so that neighbouring threads access neighbouring bytes.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from einc_runtime.dtypes import Array
from einc_runtime.kernels.triton.launches import KernelLaunch
from einc_runtime.kernels.triton.source import BYTES, LaunchOptions, PointerOperand, assemble, index_cast, power_of_two
from einc_runtime.kernels.views import merge_axes

ACCESSES = 2
"""Accesses of 16 bytes for each thread and operand of the widest type, if the operands are large enough."""

PROGRAM_THREADS = 128
"""Threads in a program of 4 warps."""

MULTIPROCESSORS = 132
"""Those of a large GPU: a thread has a whole access only if there are so many programs."""

MIN_PROGRAMS = 4 * MULTIPROCESSORS
"""A thread has several accesses only if there are so many programs."""

TILE_ELEMENTS = 16 * PROGRAM_THREADS
"""Elements in a tile of rows, of partial aggregates, of results or of pairs."""

MIN_ELEMENTS = 2 * PROGRAM_THREADS
"""The least number of elements in a tile: with fewer, threads would be idle."""


@dataclass(frozen=True, slots=True)
class TileGrid:
    """`rows` and `columns` are axes (None: no such axis), `height` and `width` the tile's extents, powers of two."""

    extents: tuple[int, ...]
    rows: int | None
    columns: int | None
    height: int
    width: int

    @property
    def others(self) -> list[int]:
        return [axis for axis in range(len(self.extents)) if axis not in (self.rows, self.columns)]

    def count(self) -> int:
        steps = {self.rows: self.height, self.columns: self.width}
        return math.prod(-(-extent // steps.get(axis, 1)) for axis, extent in enumerate(self.extents))

    def locate(self, cast: str) -> list[str]:
        """Lines that set r, c and the positions i0, i1, ... along the other axes; `cast` is that of `index_cast`."""
        lines = [f"tile = tl.program_id(0){cast}"]
        left = self.count()  # how many values `tile` still has
        flat = self.rows is None
        parts = [
            (self.columns, "c", self.width, "" if flat else "[None, :]"),
            (self.rows, "r", self.height, "[:, None]"),
        ]
        for axis, name, step, shape in parts:
            if axis is None:
                continue
            steps = -(-self.extents[axis] // step)
            span = f"tl.arange(0, {step}){shape}{cast}"
            left //= steps
            if steps > 1:
                lines.append(f"{name} = {f'(tile % {steps})' if left > 1 else 'tile'} * {step} + {span}")
                lines += [f"tile = tile // {steps}"] if left > 1 else []
            else:
                lines.append(f"{name} = {span}")
        for axis in reversed(self.others):
            if self.extents[axis] == 1:
                continue
            left //= self.extents[axis]
            lines.append(f"i{axis} = tile % {self.extents[axis]}" if left > 1 else f"i{axis} = tile")
            lines += [f"tile = tile // {self.extents[axis]}"] if left > 1 else []
        return lines

    def subscripts(self, item: PointerOperand) -> dict[int, str]:
        """The subscripts of an operand by the axes along which it varies."""
        subscripts = {axis: f"i{axis}" for axis in self.others}
        if self.rows is not None:
            subscripts[self.rows] = "r"
        if self.columns is not None:
            subscripts[self.columns] = "c"
        return {axis: subscripts[axis] for axis in sorted(subscripts) if item.strides[axis]}

    def mask(self, axes: Collection[int]) -> str:
        """The condition for positions inside of these axes; empty where tiles fill them."""
        parts = []
        for axis, name, step in ((self.rows, "r", self.height), (self.columns, "c", self.width)):
            if axis is not None and axis in axes and self.extents[axis] % step:
                parts.append(f"({name} < {self.extents[axis]})")
        return " & ".join(parts)

    def load(self, item: PointerOperand, offset: str = "") -> str:
        """The expression that loads an operand's elements of the tile; `offset` is added to the address."""
        subscripts = self.subscripts(item)
        return item.load(subscripts, self.mask(subscripts), offset=offset)

    def store(self, item: PointerOperand, value: str) -> str:
        """The line that writes an operand's elements of the tile."""
        subscripts = self.subscripts(item)
        return item.store(subscripts, value, self.mask(subscripts))

    def any(self, name: str, item: PointerOperand) -> list[str]:
        """Lines that combine a flag for each element of the operand in the tile into one flag."""
        shaped = any(axis is not None and item.strides[axis] for axis in (self.rows, self.columns))
        return [f"{name} = tl.max({name}, 0)"] * (shaped * (1 if self.rows is None else 2))


class ElementwiseTiles:
    """Tiles over views of one rank (extent 1 where one is broadcast); the last view is written.

    `load` and `store` take names of views; `call` makes a launch of lines.
    """

    def __init__(self, views: Sequence[Array], names: Sequence[str]) -> None:
        layouts, _ = merge_axes(views, [False] * views[0].ndim)
        self._extents = layouts[-1].shape
        self._items = {name: PointerOperand.of(name, view) for name, view in zip(names, layouts, strict=True)}
        *reads, target = self._items.values()
        self._tiles = choose_tiles(self._extents, reads, target)

    def load(self, name: str) -> str:
        return self._tiles.load(self._items[name])

    def store(self, name: str, value: str) -> str:
        return self._tiles.store(self._items[name], value)

    def call(self, name: str, title: str, lines: Sequence[str], helpers: str = "") -> KernelLaunch:
        items = list(self._items.values())
        where = self._tiles.locate(index_cast(items, self._extents))
        return assemble(
            name, title, items, self._extents, [*where, *lines], self._tiles.count(), LaunchOptions(helpers)
        )


def choose_tiles(extents: Sequence[int], reads: Sequence[PointerOperand], target: PointerOperand) -> TileGrid:
    """Tiles with one element of the target for each point. Where an operand is contiguous along another axis than the
    target (a transpose), tiles are about square, so that both are accessed in runs."""
    axes = range(len(extents))
    if not extents:
        return TileGrid((), None, None, 1, 1)
    columns = min(axes, key=lambda axis: (extents[axis] == 1, target.strides[axis], -axis))
    across = [axis for axis in axes if axis != columns and any(item.strides[axis] == 1 for item in reads)]
    remaining = [axis for axis in axes if axis != columns and extents[axis] > 1]
    rows = across[0] if across else max(remaining, key=lambda axis: (axis, extents[axis]), default=None)
    elements = _tile_elements(math.prod(extents), max(BYTES[item.dtype] for item in (*reads, target)))
    widest = 64 if across else elements
    width = min(power_of_two(extents[columns]), widest)
    height = 1 if rows is None else min(power_of_two(extents[rows]), max(1, elements // width))
    if height == 1:
        rows = None
    return TileGrid(tuple(extents), rows, columns, height, width)


def _tile_elements(total: int, size: int) -> int:
    """The number of elements in a tile, of `size` bytes each."""
    vector = 16 * PROGRAM_THREADS // size
    elements = ACCESSES * vector
    while elements > vector and total // elements < MIN_PROGRAMS:
        elements //= 2
    while elements > MIN_ELEMENTS and total // elements < MULTIPROCESSORS:
        elements //= 2
    return max(MIN_ELEMENTS, elements)
