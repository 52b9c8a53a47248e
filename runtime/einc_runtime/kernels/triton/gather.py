"""Kernels in Triton that move rows to where data says: `embedding` {vocabulary}, `append` {cache_lens, new_lens}."""

from __future__ import annotations

import numpy as np

from einc_runtime.dtypes import Array
from einc_runtime.kernels.base import Invocation
from einc_runtime.kernels.calls.gather import Append, Embedding
from einc_runtime.kernels.triton.plan import Argument, Plan, Status, Table, Workspace
from einc_runtime.kernels.triton.source import UNITS, Operand, assembled, masked, widening
from einc_runtime.kernels.triton.tiles import elementwise


def plan_embedding(invocation: Invocation[Array]) -> Plan:
    """Rows of the table by id; zeros for the ids of rows that the block of the table lacks."""
    call = Embedding.parse(invocation)
    table, target, vocabulary, lower = call.table, call.target, call.vocabulary, call.lower
    bits = UNITS[table.dtype.itemsize]
    number = Operand.of("ids", call.ids[..., None])
    row = Operand.of("table", table[(None,) * (target.ndim - 1) + (0,)], bits)
    y = Operand.of("y", target, bits)
    tiles = elementwise(target.shape, [row], y)
    stride = table.strides[0] // table.itemsize if len(table) > 1 else 0
    at = tiles.subscripts(y)
    inside = tiles.mask(at)
    lines = [
        *tiles.locate(widening([number, y], target.shape)),
        f"number = {tiles.load(number)}.to(tl.int64)",
        f"wrong = ((number < 0) | (number >= {vocabulary})).to(tl.int32)",
        *tiles.any("wrong", number),
        "tl.store(status, 1, mask=wrong != 0)",
        f"number -= {lower}",
        f"found = (number >= 0) & (number < {len(table)})",
        f"value = tl.load({row.at(tiles.subscripts(row))} + number * {stride}{masked('found', inside, other='0')})",
        f"tl.store({y.at(at)}, value{masked(inside)})",
    ]
    title = f"rows {lower} to {lower + len(table)} of a vocabulary of {vocabulary}"
    status = [("status", Status(), "i32")]
    found = assembled("embedding", title, [number, row, y], target.shape, lines, tiles.count(), tables=status)
    return Plan((found,), complaint=f"an id is outside of the vocabulary: ids are 0 to {vocabulary - 1}")


def plan_append(invocation: Invocation[Array]) -> Plan:
    """A block of the cache with those new rows written into it whose position is there; the latest of equal positions.

    Every row of the block first learns which new row comes last there, if any (a maximum of integers, which is the same
    in whatever order it is taken), and then all rows are written once.
    """
    call = Append.parse(invocation)
    cache, new, target = call.cache, call.new, call.target
    rows, count = cache.shape[1], new.shape[1]
    scratch = Workspace()
    latest = Operand.of("latest", scratch.take((rows,), np.dtype(np.int32)))
    clear = assembled(
        "clear", "no row is new yet", [latest], (rows,),
        ["r = tl.program_id(0) * 1024 + tl.arange(0, 1024)", f"tl.store(latest + r, -1, mask=r < {rows})"],
        -(-rows // 1024),
    )  # fmt: skip
    place = Operand.of("positions", call.positions)
    tables: list[tuple[str, Argument, str]] = [
        ("extents", Table.of(call.extents), "i64"),
        ("origins", Table.of(call.origins), "i64"),
        ("status", Status(), "i32"),
    ]
    nth = f"t{widening([place], (count,))}"
    body = [
        "t = tl.program_id(0) * 256 + tl.arange(0, 256)",
        f"inside = t < {count}",
        f"position = tl.load(positions + {nth} * {place.strides[0]}, mask=inside, other=0).to(tl.int64)",
        "wrong = (position < 0) | (position >= tl.load(extents + t, mask=inside, other=1))",
        "tl.store(status, 1, mask=tl.max(wrong.to(tl.int32), 0) != 0)",
        "row = position + tl.load(origins + t, mask=inside, other=0)",
        f"here = inside & (wrong == 0) & (row >= 0) & (row < {rows})",
        "tl.atomic_max(latest + tl.where(here, row, 0), t, mask=here)",
    ]
    mark = assembled("mark", "which row is new", [place, latest], (count,), body, -(-count // 256), tables=tables)

    bits = UNITS[cache.dtype.itemsize]
    views = {"cache": cache, "new": new[:, :1], "y": target}
    old, fresh, y = (Operand.of(name, view, bits) for name, view in views.items())
    tiles = elementwise(target.shape, [old], y)
    step = new.strides[1] // new.itemsize if count > 1 else 0
    line = Operand("latest", "i32", (0, 1 if rows > 1 else 0, 0), latest.address)
    at = tiles.subscripts(y)
    inside = tiles.mask(at)
    left, replaced = (masked(f"(row {sign} 0)", inside, other="0") for sign in ("<", ">="))
    lines = [
        *tiles.locate(widening([old, fresh, y], target.shape)),
        f"row = {tiles.load(line)}.to(tl.int64)",
        f"kept = tl.load({old.at(tiles.subscripts(old))}{left})",
        f"written = tl.load({fresh.at(tiles.subscripts(fresh))} + row * {step}{replaced})",
        f"tl.store({y.at(at)}, tl.where(row < 0, kept, written){masked(inside)})",
    ]
    write = assembled("append", f"{count} new rows", [old, fresh, line, y], target.shape, lines, tiles.count())
    return Plan((clear, mark, write), scratch.size, "a position is outside of its sequence of the cache")
