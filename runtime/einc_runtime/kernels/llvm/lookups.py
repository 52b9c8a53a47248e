"""Parts of an array that are found at run time, at offsets or by the numbers of rows, copied as machine code: rows of
tables, or elements."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from einc_runtime.dtypes import Array
from einc_runtime.kernels.base import Run, address
from einc_runtime.kernels.llvm import compiler
from einc_runtime.kernels.views import merge_axes

PrepareCopy = Callable[[Array], Run]
"""Prepares the call that copies the parts at these offsets, in bytes: i64, one after the other."""


@dataclass(frozen=True, slots=True)
class RowNumbers:
    """The numbers of the rows of a table of `extent` rows that are copied, integers along one axis. A block has `count`
    rows from `first` on, `step` bytes from one to the next; other rows are 0."""

    ids: Array
    extent: int
    first: int
    count: int
    step: int


@dataclass(frozen=True, slots=True)
class CopyLayout:
    """Copies to each index vector of a target's axes [leading..., loops..., behind...], of parts of `count` bytes;
    `size` is that where an integer has so many, else 0."""

    source: Array
    target: Array
    leading: int
    behind: int
    count: int
    size: int
    number: int
    arguments: tuple[int, ...]
    """The extents of the leading axes, the number of parts, the extents of the axes behind, the bytes of a part, the
    stride between parts of the target; the address and the strides of the source and of the target."""

    @staticmethod
    def of(source: Array, target: Array, before: int, loops: int, repetitions: int) -> CopyLayout | None:
        """The copies to a target's axes [before..., loops..., behind...], of a source that has extent 1 along the
        loops. None where there is no machine code, or where it is not worthwhile."""
        if not target.size or not compiler.is_worthwhile(target.size, repetitions):
            return None
        heads, line, inner_axes = (slice(0, before), slice(before, before + loops), slice(before + loops, None))
        extents, steps = target.shape[line], target.strides[line]
        if any(extents[k] > 1 and steps[k] != steps[k + 1] * extents[k + 1] for k in range(loops - 1)):
            return None
        parts = [
            np.lib.stride_tricks.as_strided(view, target.shape[inner_axes], view.strides[inner_axes])
            for view in (source, target)
        ]
        inner = merge_axes(parts, [False] * parts[0].ndim)[0] if parts[0].ndim else [part[None] for part in parts]
        if inner[0].shape[-1] > 1 and any(part.strides[-1] != part.itemsize for part in inner):
            inner = [part[..., None] for part in inner]
        count, number = inner[0].shape[-1] * target.itemsize, int(np.prod(extents))
        outer, behind = target.shape[heads], inner[0].shape[:-1]
        arguments = [*outer, number, *behind, count, steps[-1] if loops else 0]
        for view, part in zip((source, target), inner, strict=True):
            arguments += [address(view), *view.strides[heads], *part.strides[:-1]]
        size = count if count in (1, 2, 4, 8) else 0
        return CopyLayout(source, target, len(outer), len(behind), count, size, number, tuple(arguments))


def compile_lookup(layout: CopyLayout) -> PrepareCopy:
    """What prepares the call that copies to each index vector of the target the element that lies an offset behind that
    of the source."""
    code = _emit_lookup(layout.leading, layout.behind, layout.size, 0)

    def prepare(offsets: Array) -> Run:
        arguments = [*layout.arguments, address(offsets)]
        return compiler.CompiledCall(code, arguments, layout.source, layout.target, offsets)

    return prepare


def compile_row_lookup(layout: CopyLayout, rows: RowNumbers, fail: Callable[[], None]) -> Run:
    """The same by the numbers of rows, of which the source is the first. Nothing is written if one is outside of the
    table; `fail` raises that."""
    ids = rows.ids
    arguments = [*layout.arguments, address(ids), *ids.strides, rows.extent, rows.first, rows.count, rows.step]
    code = _emit_lookup(layout.leading, layout.behind, layout.size, ids.itemsize)
    return compiler.CompiledCall(code, arguments, layout.source, layout.target, ids, fail=fail)


@compiler.compile_once
def _emit_lookup(leading: int, behind: int, size: int, ids_size: int) -> Any:
    """Arguments: those of the layout, and then the address of offsets; or, of ids with so many bytes, what `RowNumbers`
    has, the address and the stride of the ids first."""
    from llvmlite import ir

    from einc_runtime.kernels.llvm.emitter import BIT, I8, I64, Emitter, RowOperand

    e = Emitter()
    b = e.b
    heads = [e.argument() for _ in range(leading)]
    number = e.argument()
    extents = [e.argument() for _ in range(behind)]
    count, step = e.argument(), e.argument()
    arrays = [e.operand(leading + behind) for _ in range(2)]
    outer = [RowOperand(array.address, array.strides[:leading]) for array in arrays]

    def walk(places: list[Any], write: Callable[[Any, Any], None]) -> None:
        parts = [RowOperand(start, array.strides[leading:]) for start, array in zip(places, arrays, strict=True)]
        with e.rows(extents, parts) as (source, target):
            write(source, target)

    def copy(source: Any, target: Any) -> None:
        if size:
            kind = ir.IntType(8 * size).as_pointer()
            b.store(b.load(b.inttoptr(source, kind), align=1), b.inttoptr(target, kind), align=1)
        else:
            e.copy(target, source, count)

    def clear(_: Any, target: Any) -> None:
        e.intrinsic("llvm.memset.p0.i64", ir.VoidType(), b.inttoptr(target, I8.as_pointer()), I8(0), count, BIT(False))

    if not ids_size:
        offsets = e.argument()
        with e.rows(heads, outer) as (source, target), e.loop(number) as j:
            walk([b.add(source, e.read(offsets, j, I64)), b.add(target, b.mul(j, step))], copy)
        return e.finish()
    ids = e.operand(1)
    extent, first, rows, distance = (e.argument() for _ in range(4))
    with e.loop(number) as j:
        e.stop_if(b.icmp_unsigned(">=", e.read_integer(ids, j, ids_size), extent), I64(1))  # negative ones are large
    with e.rows(heads, outer) as (source, target), e.loop(number) as j:
        row = b.sub(e.read_integer(ids, j, ids_size), first)
        places = [b.add(source, b.mul(row, distance)), b.add(target, b.mul(j, step))]
        with b.if_else(b.icmp_unsigned("<", row, rows)) as (inside, elsewhere):
            with inside:
                walk(places, copy)
            with elsewhere:
                walk(places, clear)
    return e.finish()
