"""Copies of strided blocks in Triton: decompositions, recompositions, `concat` and `regroup`.

One launch copies any number of blocks. What is known of each (addresses, extents, strides) is a row of a table, and a
second table says which block every program works on. Elements move as bits, in units as wide as all blocks allow.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import numpy as np

from einc_runtime.dtypes import Array
from einc_runtime.kernels.base import Invocation, address
from einc_runtime.kernels.calls.moves import concat_parts, regrouped, require_alike
from einc_runtime.kernels.triton.plan import ALIGNMENT, SCRATCH, Call, Plan, Table, Workspace
from einc_runtime.kernels.triton.source import HEADER, UNITS, Operand, assembled, call, masked, power_of_two, widening
from einc_runtime.kernels.triton.tiles import elementwise
from einc_runtime.kernels.views import merged

TILE = 1024
"""Units in a tile of a launch for many blocks."""


def plan_moves(reads: Sequence[Array], writes: Sequence[Array]) -> Plan:
    """Copies views pairwise in one launch."""
    require_alike(reads, writes)
    moves = [_Move.of(source, target) for source, target in zip(reads, writes, strict=True)]
    if len(moves) == 1 or any(max(move.source, move.target) >= SCRATCH for move in moves):
        return Plan(tuple(_single(move) for move in moves))
    return Plan((_many(moves),)) if moves else Plan(())


def plan_concat(invocation: Invocation[Array]) -> Plan:
    """Every input's part of the output, by the bounds of the blocks."""
    return plan_moves(*concat_parts(invocation))


def plan_regroup(invocation: Invocation[Array]) -> Plan:
    """The same elements in the same row-major order, in another shape; through dense workspace where strides clash."""
    source, target = regrouped(invocation)
    pair = _refined(source, target)
    if pair is not None:
        return plan_moves([pair[0]], [pair[1]])
    scratch = Workspace()
    dense = scratch.take((source.size,), source.dtype)
    calls: list[Call] = []
    for one, other in ((source, dense), (dense, target)):
        pair = _refined(one, other)
        assert pair is not None  # dense memory can be cut anywhere
        calls += [_single(_Move.of(*pair))]
    return Plan(tuple(calls), scratch.size)


def _refined(source: Array, target: Array) -> tuple[Array, Array] | None:
    """Both arrays with the axes that row-major order has if it is cut wherever one of them is cut."""
    flats = [merged([view], [False] * view.ndim)[0][0] for view in (source, target)]
    cuts = sorted({cut for flat in flats for cut in accumulate((1, *reversed(flat.shape)), operator.mul)})
    if any(after % before for before, after in pairwise(cuts)):
        return None
    one, other = (_cut(flat, cuts) for flat in flats)
    return one, other


def _cut(flat: Array, cuts: Sequence[int]) -> Array:
    """A view with its axes cut at these numbers of elements, counted from the end, which its own cuts are among."""
    shape, strides = [], []
    own = list(accumulate((1, *reversed(flat.shape)), operator.mul))
    for before, after in pairwise(cuts):
        axis = max(k for k in range(flat.ndim) if own[k] <= before)
        shape.append(after // before)
        strides.append(flat.strides[flat.ndim - 1 - axis] * (before // own[axis]))
    return np.lib.stride_tricks.as_strided(flat, shape[::-1], strides[::-1])


@dataclass(frozen=True, slots=True)
class _Move:
    """A copy in bytes: the last axis is a run of them on both sides."""

    source: int
    target: int
    extents: tuple[int, ...]
    source_strides: tuple[int, ...]
    target_strides: tuple[int, ...]

    @staticmethod
    def of(source: Array, target: Array) -> _Move:
        size = source.itemsize
        views = [
            np.lib.stride_tricks.as_strided(view, (*view.shape, size), (*view.strides, 1)) for view in (source, target)
        ]
        (one, other), _ = merged(views, [False] * views[0].ndim)
        extents, strides = one.shape, (one.strides, other.strides)
        if (strides[0][-1], strides[1][-1]) != (1, 1):  # single bytes far from each other
            extents, strides = (*extents, 1), ((*strides[0], 1), (*strides[1], 1))
        return _Move(address(source), address(target), extents, *strides)

    @property
    def unit(self) -> int:
        """The widest unit that all of it is a multiple of."""
        numbers = [self.source, self.target, self.extents[-1], *self.source_strides[:-1], *self.target_strides[:-1]]
        return math.gcd(8, *numbers)

    @property
    def aligned(self) -> bool:
        """Whether every run begins and ends where the widest access may."""
        marks = [self.source, self.target, self.extents[-1], *self.source_strides[:-1], *self.target_strides[:-1]]
        return all(number % ALIGNMENT == 0 for number in marks)


def _single(move: _Move) -> Call:
    """A launch for one block, of which everything is a constant."""
    unit = move.unit
    inner = move.extents[-1] // unit
    extents = (*move.extents[:-1], inner)
    kept = [axis for axis, extent in enumerate(extents) if extent > 1]

    def operand(name: str, where: int, strides: Sequence[int]) -> Operand:
        units = [*(stride // unit for stride in strides[:-1]), 1]
        return Operand(name, UNITS[unit], tuple(units[axis] for axis in kept), where)

    x = operand("x", move.source, move.source_strides)
    y = operand("y", move.target, move.target_strides)
    extents = tuple(extents[axis] for axis in kept)
    tiles = elementwise(extents, [x], y)
    subscripts = tiles.subscripts(y)
    where = masked(tiles.mask(subscripts))
    lines = [
        *tiles.locate(widening([x, y], extents)),
        f"tl.store({y.at(subscripts)}, tl.load({x.at(subscripts)}{where}){where})",
    ]
    return assembled("move", f"a block in units of {unit} bytes", [x, y], extents, lines, tiles.count())


def _many(moves: Sequence[_Move]) -> Call:
    """One launch for all blocks."""
    unit = math.gcd(*(move.unit for move in moves))
    depth = max(1, max(len(move.extents) for move in moves) - 1)
    width = min(power_of_two(max(move.extents[-1] for move in moves) // unit), TILE)
    height = TILE // width
    rows, owners, first = [], [], 0
    for number, move in enumerate(moves):
        inner, lines = move.extents[-1] // unit, math.prod(move.extents[:-1])
        across = -(-inner // width)
        count = across * -(-lines // height)
        padding = depth - len(move.extents) + 1
        axes = [(1, 0, 0)] * padding + [
            (extent, one // unit, other // unit)
            for extent, one, other in zip(
                move.extents[:-1], move.source_strides[:-1], move.target_strides[:-1], strict=True
            )
        ]
        rows.append([move.source, move.target, first, across, lines, inner, *(x for axis in axes for x in axis)])
        owners.append(np.full(count, number, np.int32))
        first += count
    fields = 6 + 3 * depth
    pointer = f"tl.pointer_type(tl.int{8 * unit})"
    hint = all(move.aligned for move in moves)
    many = ALIGNMENT // unit
    narrow = ".to(tl.int32)" if max(row[4] + height + row[5] + width for row in rows) < 1 << 31 else ""

    def aligned(value: str, multiple: int) -> str:
        return f"tl.multiple_of({value}, {multiple})" if hint else value

    def field(number: int) -> str:
        return f"tl.load(row + {number}){narrow}"

    body = [
        "tile = tl.program_id(0)",
        f"row = table + tl.load(owners + tile) * {fields}",
        f"source = {aligned(f'tl.load(row).to({pointer})', ALIGNMENT)}",
        f"target = {aligned(f'tl.load(row + 1).to({pointer})', ALIGNMENT)}",
        f"tile = tile - {field(2)}",
        f"across = {field(3)}",
        f"r = (tile // across) * {height} + tl.arange(0, {height})[:, None]",
        f"c = (tile % across) * {width} + tl.arange(0, {width})[None, :]",
        f"inside = (r < {field(4)}) & (c < {aligned(field(5), many)})",
    ]
    for axis in reversed(range(depth)):
        at = 6 + 3 * axis
        place = "r"  # along the outermost axis, which only lines that are not moved go beyond
        if axis:
            body.append(f"extent = {field(at)}")
            place = "(r % extent)"
        body += [
            f"source += {place} * {aligned(f'tl.load(row + {at + 1})', many)}",
            f"target += {place} * {aligned(f'tl.load(row + {at + 2})', many)}",
        ]
        body += ["r = r // extent"] if axis else []
    body.append("tl.store(target + c, tl.load(source + c, mask=inside), mask=inside)")
    lines_of_body = "\n    ".join(body)
    text = (
        f'"""blocks of up to {depth + 1} axes in units of {unit} bytes, each a row of the table"""\n\n{HEADER}\n\n'
        f"@triton.jit\ndef moves(table, owners):\n    {lines_of_body}\n"
    )
    tables = [Table.of(np.array(rows, np.int64)), Table.of(np.concatenate(owners))]
    return call("moves", text, [(tables[0], "i64"), (tables[1], "i32")], first)
