"""Kernels in Triton that move elements: copies of strided blocks, `reshape` and `append`.

One launch copies any number of blocks. A table has a row for each block with its addresses, extents and strides, and a
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
from einc_runtime.kernels.base import Invocation, address, dtype_name
from einc_runtime.kernels.calls.moves import AppendCall
from einc_runtime.kernels.triton.launches import (
    POINTER_ALIGNMENT,
    SCRATCH,
    Argument,
    KernelLaunch,
    LaunchSequence,
    StatusPointer,
    Table,
    WorkspaceAllocator,
)
from einc_runtime.kernels.triton.source import (
    LINE_ELEMENTS,
    MOVED_TYPES,
    TRITON_IMPORTS,
    LaunchOptions,
    PointerOperand,
    assemble,
    index_cast,
    make_launch,
    mask_arguments,
    power_of_two,
)
from einc_runtime.kernels.triton.tiles import choose_tiles
from einc_runtime.kernels.views import merge_axes, restride


def build_moves(reads: Sequence[Array], writes: Sequence[Array]) -> LaunchSequence:
    """Copies views pairwise in one launch."""
    moves = [_BlockMove.of(source, target) for source, target in zip(reads, writes, strict=True)]
    if len(moves) == 1 or any(max(move.source, move.target) >= SCRATCH for move in moves):
        return LaunchSequence(tuple(_launch_single(move) for move in moves))
    return LaunchSequence((_launch_many(moves),), has_addresses=True) if moves else LaunchSequence(())


def build_reshape(invocation: Invocation[Array]) -> LaunchSequence:
    """The same elements in the same row-major order, in another shape; through dense workspace where strides need
    it."""
    source, target = invocation.input, invocation.output
    pair = _align_axes(source, target)
    if pair is not None:
        return build_moves([pair[0]], [pair[1]])
    scratch = WorkspaceAllocator()
    dense = scratch.take((source.size,), source.dtype)
    calls: list[KernelLaunch] = []
    for left, right in ((source, dense), (dense, target)):
        pair = _align_axes(left, right)
        assert pair is not None  # dense memory can be cut anywhere
        calls += [_launch_single(_BlockMove.of(*pair))]
    return LaunchSequence(tuple(calls), scratch.size)


def _align_axes(source: Array, target: Array) -> tuple[Array, Array] | None:
    """Both arrays with equal axes: row-major order is cut wherever one of the two arrays is cut. None if cuts clash."""
    flats = [merge_axes([view], [False] * view.ndim)[0][0] for view in (source, target)]
    cuts = sorted({cut for flat in flats for cut in accumulate((1, *reversed(flat.shape)), operator.mul)})
    if any(after % before for before, after in pairwise(cuts)):
        return None
    left, right = (_cut_axes(flat, cuts) for flat in flats)
    return left, right


def _cut_axes(flat: Array, cuts: Sequence[int]) -> Array:
    """A view with its axes cut at these numbers of elements, counted from the end; they include its own cuts."""
    shape, strides = [], []
    own_cuts = list(accumulate((1, *reversed(flat.shape)), operator.mul))
    for before, after in pairwise(cuts):
        axis = max(k for k in range(flat.ndim) if own_cuts[k] <= before)
        shape.append(after // before)
        strides.append(flat.strides[flat.ndim - 1 - axis] * (before // own_cuts[axis]))
    return restride(flat, shape[::-1], strides[::-1])


@dataclass(frozen=True, slots=True)
class _BlockMove:
    """A copy in bytes, whose last axis is a run of bytes on both sides."""

    source: int
    target: int
    extents: tuple[int, ...]
    source_strides: tuple[int, ...]
    target_strides: tuple[int, ...]

    @staticmethod
    def of(source: Array, target: Array) -> _BlockMove:
        size = source.itemsize
        views = [restride(view, (*view.shape, size), (*view.strides, 1)) for view in (source, target)]
        (source_view, target_view), _ = merge_axes(views, [False] * views[0].ndim)
        extents, strides = source_view.shape, (source_view.strides, target_view.strides)
        if (strides[0][-1], strides[1][-1]) != (1, 1):  # single bytes far from each other
            extents, strides = (*extents, 1), ((*strides[0], 1), (*strides[1], 1))
        return _BlockMove(address(source), address(target), extents, *strides)

    @property
    def unit(self) -> int:
        """The widest unit that divides all addresses, strides and runs."""
        numbers = [self.source, self.target, self.extents[-1], *self.source_strides[:-1], *self.target_strides[:-1]]
        return math.gcd(8, *numbers)

    @property
    def aligned(self) -> bool:
        """Whether every run begins and ends at a multiple of POINTER_ALIGNMENT."""
        marks = [self.source, self.target, self.extents[-1], *self.source_strides[:-1], *self.target_strides[:-1]]
        return all(number % POINTER_ALIGNMENT == 0 for number in marks)


def _launch_single(move: _BlockMove) -> KernelLaunch:
    """A launch for one block, whose extents and strides are constants in the source."""
    unit = move.unit
    inner = move.extents[-1] // unit
    extents = (*move.extents[:-1], inner)
    kept = [axis for axis, extent in enumerate(extents) if extent > 1]

    def operand(name: str, where: int, strides: Sequence[int]) -> PointerOperand:
        units = [*(stride // unit for stride in strides[:-1]), 1]
        return PointerOperand(name, MOVED_TYPES[unit], tuple(units[axis] for axis in kept), where)

    x = operand("x", move.source, move.source_strides)
    y = operand("y", move.target, move.target_strides)
    extents = tuple(extents[axis] for axis in kept)
    tiles = choose_tiles(extents, [x], y)
    subscripts = tiles.subscripts(y)
    where = mask_arguments(tiles.mask(subscripts))
    lines = [
        *tiles.locate(index_cast([x, y], extents)),
        f"tl.store({y.at(subscripts)}, tl.load({x.at(subscripts)}{where}){where})",
    ]
    return assemble("move", f"a block in units of {unit} bytes", [x, y], extents, lines, tiles.count())


def _launch_many(moves: Sequence[_BlockMove]) -> KernelLaunch:
    """One launch for all blocks."""
    unit = math.gcd(*(move.unit for move in moves))
    depth = max(1, max(len(move.extents) for move in moves) - 1)
    width = min(power_of_two(max(move.extents[-1] for move in moves) // unit), LINE_ELEMENTS)
    height = LINE_ELEMENTS // width
    rows, owners, first = [], [], 0
    for number, move in enumerate(moves):
        inner, lines = move.extents[-1] // unit, math.prod(move.extents[:-1])
        across = -(-inner // width)
        count = across * -(-lines // height)
        padding = depth - len(move.extents) + 1
        axes = [(1, 0, 0)] * padding + [
            (extent, source_stride // unit, target_stride // unit)
            for extent, source_stride, target_stride in zip(
                move.extents[:-1], move.source_strides[:-1], move.target_strides[:-1], strict=True
            )
        ]
        rows.append([move.source, move.target, first, across, lines, inner, *(x for axis in axes for x in axis)])
        owners.append(np.full(count, number, np.int32))
        first += count
    fields = 6 + 3 * depth
    pointer = f"tl.pointer_type(tl.int{8 * unit})"
    hint = all(move.aligned for move in moves)
    many = POINTER_ALIGNMENT // unit
    narrow = ".to(tl.int32)" if max(row[4] + height + row[5] + width for row in rows) < 1 << 31 else ""

    def aligned(value: str, multiple: int) -> str:
        return f"tl.multiple_of({value}, {multiple})" if hint else value

    def field(number: int) -> str:
        return f"tl.load(row + {number}){narrow}"

    body = [
        "tile = tl.program_id(0)",
        f"row = table + tl.load(owners + tile) * {fields}",
        f"source = {aligned(f'tl.load(row).to({pointer})', POINTER_ALIGNMENT)}",
        f"target = {aligned(f'tl.load(row + 1).to({pointer})', POINTER_ALIGNMENT)}",
        f"tile = tile - {field(2)}",
        f"across = {field(3)}",
        f"r = (tile // across) * {height} + tl.arange(0, {height})[:, None]",
        f"c = (tile % across) * {width} + tl.arange(0, {width})[None, :]",
        f"inside = (r < {field(4)}) & (c < {aligned(field(5), many)})",
    ]
    for axis in reversed(range(depth)):
        at = 6 + 3 * axis
        subscript = "r"  # only lines that are masked go beyond the outermost axis
        if axis:
            body.append(f"extent = {field(at)}")
            subscript = "(r % extent)"
        body += [
            f"source += {subscript} * {aligned(f'tl.load(row + {at + 1})', many)}",
            f"target += {subscript} * {aligned(f'tl.load(row + {at + 2})', many)}",
        ]
        body += ["r = r // extent"] if axis else []
    body.append("tl.store(target + c, tl.load(source + c, mask=inside), mask=inside)")
    lines_of_body = "\n    ".join(body)
    text = (
        f'"""blocks of up to {depth + 1} axes in units of {unit} bytes, each a row of the table"""\n\n'
        f"{TRITON_IMPORTS}\n\n"
        f"@triton.jit\ndef moves(table, owners):\n    {lines_of_body}\n"
    )
    tables = [Table.of(np.array(rows, np.int64)), Table.of(np.concatenate(owners))]
    return make_launch("moves", text, [(tables[0], "i64"), (tables[1], "i32")], first)


def build_append(invocation: Invocation[Array]) -> LaunchSequence:
    """A block of the cache, with new rows written at their positions in this block; the last of equal positions counts.

    Unless it is in place, the block is copied first. One launch computes for every row of the block which new row comes
    last there (a maximum of integers, which does not depend on the order), and the next one writes those.
    """
    call = AppendCall.parse(invocation)
    rows, count = call.cache.shape[1], call.new.shape[1]
    scratch = WorkspaceAllocator()
    latest = PointerOperand.of("latest", scratch.take((rows,), np.dtype(np.int32)))
    clear = assemble(
        "clear", "no row is new yet", [latest], (rows,),
        ["r = tl.program_id(0) * 1024 + tl.arange(0, 1024)", f"tl.store(latest + r, -1, mask=r < {rows})"],
        -(-rows // 1024),
    )  # fmt: skip
    positions = PointerOperand.of("positions", call.positions)
    goal = PointerOperand.of("goal", scratch.take((count,), np.dtype(np.int32)))
    tables: list[tuple[str, Argument, str]] = [
        ("extents", Table.of(call.extents), "i64"),
        ("origins", Table.of(call.origins), "i64"),
        ("status", StatusPointer(), "i32"),
    ]
    nth = f"t{index_cast([positions], (count,))}"
    body = [
        "t = tl.program_id(0) * 256 + tl.arange(0, 256)",
        f"inside = t < {count}",
        f"position = tl.load(positions + {nth} * {positions.strides[0]}, mask=inside, other=0).to(tl.int64)",
        "wrong = (position < 0) | (position >= tl.load(extents + t, mask=inside, other=1))",
        "tl.store(status, 1, mask=tl.max(wrong.to(tl.int32), 0) != 0)",
        "row = position + tl.load(origins + t, mask=inside, other=0)",
        f"here = inside & (wrong == 0) & (row >= 0) & (row < {rows})",
        "tl.atomic_max(latest + tl.where(here, row, 0), t, mask=here)",
        "tl.store(goal + t, tl.where(here, row, -1).to(tl.int32), mask=inside)",
    ]
    mark = assemble(
        "mark", "which row is new", [positions, latest, goal], (count,), body, -(-count // 256),
        LaunchOptions(tables=tables),
    )  # fmt: skip
    copied = () if call.in_place else build_moves([call.cache], [call.target]).steps
    steps = (*copied, clear, mark, _write_new_rows(call, latest, goal))
    return LaunchSequence(steps, scratch.size, call.status_message)


def _write_new_rows(call: AppendCall, latest: PointerOperand, goal: PointerOperand) -> KernelLaunch:
    """Writes row t of `new` to row `goal[t]` of the target, if it is the last one that goes there."""
    new, target = call.new, call.target
    y = PointerOperand.of("y", target[:, :1], MOVED_TYPES[target.dtype.itemsize])
    is_moved = new.dtype == target.dtype
    fresh = PointerOperand.of("new", new, MOVED_TYPES[new.dtype.itemsize] if is_moved else "")
    line = PointerOperand("goal", "i32", (0, 1 if new.shape[1] > 1 else 0, 0), goal.address)
    tiles = choose_tiles(new.shape, [fresh], fresh)
    token = tiles.subscripts(line).get(1, "0")
    inside = tiles.mask(tiles.subscripts(fresh))
    step = target.strides[1] // target.itemsize
    written = tiles.load(fresh) if is_moved else f"narrow_{dtype_name(target)}({tiles.load(fresh)})"
    chosen = mask_arguments("(row >= 0)", f"(last == {token})", inside)
    known = mask_arguments(tiles.mask(tiles.subscripts(line)), fallback="0")
    lines = [
        *tiles.locate(index_cast([fresh, y], target.shape)),
        f"row = {tiles.load(line)}.to(tl.int64)",
        f"last = tl.load(latest + tl.where(row < 0, 0, row){known})",
        f"tl.store({y.at(tiles.subscripts(y))} + row * {step}, {written}{chosen})",
    ]
    operands = [fresh, latest, line, y]
    return assemble("append", f"{new.shape[1]} new rows in place", operands, new.shape, lines, tiles.count())
