"""Kernels in Triton that move rows to where data says: `embedding` {vocabulary}, `append` {cache_lens, new_lens}."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from runtime.bundle import Attribute, Block
from runtime.dtypes import Array
from runtime.errors import PlanFault
from runtime.kernels.base import attribute, dtype_name, integers, single
from runtime.kernels.triton_source import Argument, Operand, Plan, ScratchPlan, Status, Table, assembled, operands, wide
from runtime.kernels.triton_tiles import Tiles, elementwise

_MOVED = {1: "i8", 2: "i16", 4: "i32", 8: "i64"}


def plan_embedding(
    attributes: Mapping[str, Attribute],
    inputs: Sequence[Array],
    outputs: Sequence[Array],
    input_blocks: Sequence[Block],
    output_blocks: Sequence[Block],
) -> Plan:
    """Rows of the table by id; zeros for the ids of rows that the block of the table lacks."""
    if len(inputs) != 2:
        raise PlanFault(f"embedding has two inputs, found {len(inputs)}")
    (ids, table), target = inputs, single(outputs)
    vocabulary = attribute(attributes, ("vocabulary",), "vocabulary", int)
    assert isinstance(vocabulary, int)
    if ids.dtype.kind != "i" or table.ndim != 2 or table.dtype != target.dtype or table.dtype == np.bool_:
        raise PlanFault(f"embedding of {ids.dtype}{ids.shape} in {table.dtype}{table.shape} as {target.dtype}")
    if target.shape != (*ids.shape, table.shape[1]):
        raise PlanFault(f"embedding of shape {ids.shape} in {table.shape} into {target.shape}")
    lower, upper = input_blocks[1].lower[0], input_blocks[1].upper[0]
    if upper - lower != len(table) or upper > vocabulary:
        raise PlanFault(f"embedding with {len(table)} rows, {lower} to {upper} of {vocabulary}")
    bits = _MOVED[table.dtype.itemsize]
    rank = target.ndim
    views = [ids[..., None], table[(None,) * (rank - 1) + (0,)], target]
    number, row, y = operands(views, [dtype_name(ids), bits, bits], ["ids", "table", "y"])
    tiles = elementwise(target.shape, [row], y)
    stride = table.strides[0] // table.itemsize if len(table) > 1 else 0
    place, at = tiles.subscripts(number), tiles.subscripts(y)
    inside = tiles.mask(at)
    masked = f" & {inside}" if inside else ""
    lines = [
        *tiles.locate(wide([y], target.shape)),
        f"number = tl.load({number.at(place)}{_masked(tiles.mask(place))}).to(tl.int64)",
        f"wrong = ((number < 0) | (number >= {vocabulary})).to(tl.int32)",
        *_any("wrong", tiles, number),
        "tl.store(status, 1, mask=wrong != 0)",
        f"number -= {lower}",
        f"found = (number >= 0) & (number < {len(table)})",
        f"value = tl.load({row.at(tiles.subscripts(row))} + number * {stride}, mask=found{masked}, other=0)",
        f"tl.store({y.at(at)}, value{f', mask={inside}' if inside else ''})",
    ]
    title = f"rows {lower} to {upper} of a vocabulary of {vocabulary}"
    status = [("status", Status(), "i32")]
    call = assembled("embedding", title, [number, row, y], target.shape, lines, tiles.count(), tables=status)
    return Plan((call,), complaint=f"an id is outside of the vocabulary: ids are 0 to {vocabulary - 1}")


def plan_append(
    attributes: Mapping[str, Attribute],
    inputs: Sequence[Array],
    outputs: Sequence[Array],
    input_blocks: Sequence[Block],
    output_blocks: Sequence[Block],
) -> Plan:
    """A block of the cache with those new rows written into it whose position is there; the latest of equal positions.

    Every row of the block first learns which new row comes last there, if any (a maximum of integers, which is the same
    in whatever order it is taken), and then all rows are written once.
    """
    if len(inputs) != 3:
        raise PlanFault(f"append has three inputs, found {len(inputs)}")
    (cache, new, positions), target = inputs, single(outputs)
    if cache.shape != target.shape or cache.dtype != target.dtype or new.dtype != target.dtype or cache.ndim != 3:
        raise PlanFault(f"append to {cache.dtype}{cache.shape} as {target.dtype}{target.shape}")
    if new.ndim != 3 or new.shape[::2] != cache.shape[::2] or positions.shape != new.shape[1:2]:
        raise PlanFault(f"append of {new.shape} at {positions.shape} positions to {cache.shape}")
    if positions.dtype.kind != "i":
        raise PlanFault("append takes integer positions")
    extents, origins = _sequences(attributes, cache, new, input_blocks, output_blocks)
    rows, count = cache.shape[1], new.shape[1]
    scratch = ScratchPlan()
    (latest,) = operands([scratch.take((rows,), np.dtype(np.int32))], ["i32"], ["latest"])
    clear = assembled(
        "clear", "no row is new yet", [latest], (rows,),
        ["r = tl.program_id(0) * 1024 + tl.arange(0, 1024)", f"tl.store(latest + r, -1, mask=r < {rows})"],
        -(-rows // 1024),
    )  # fmt: skip
    (place,) = operands([positions], [dtype_name(positions)], ["positions"])
    tables: list[tuple[str, Argument, str]] = [
        ("extents", Table.of(extents), "i64"),
        ("origins", Table.of(origins), "i64"),
        ("status", Status(), "i32"),
    ]
    body = [
        "t = tl.program_id(0) * 256 + tl.arange(0, 256)",
        f"inside = t < {count}",
        f"position = tl.load(positions + t * {place.strides[0]}, mask=inside, other=0).to(tl.int64)",
        "wrong = (position < 0) | (position >= tl.load(extents + t, mask=inside, other=1))",
        "tl.store(status, 1, mask=tl.max(wrong.to(tl.int32), 0) != 0)",
        "row = position + tl.load(origins + t, mask=inside, other=0)",
        f"here = inside & (wrong == 0) & (row >= 0) & (row < {rows})",
        "tl.atomic_max(latest + tl.where(here, row, 0), t, mask=here)",
    ]
    mark = assembled("mark", "which row is new", [place, latest], (count,), body, -(-count // 256), tables=tables)

    bits = _MOVED[cache.dtype.itemsize]
    views = [cache, new[:, :1], target]
    old, fresh, y = operands(views, [bits] * 3, ["cache", "new", "y"])
    tiles = elementwise(target.shape, [old], y)
    step = new.strides[1] // new.itemsize if count > 1 else 0
    line = Operand("latest", "i32", (0, 1 if rows > 1 else 0, 0), latest.address)
    at, own = tiles.subscripts(y), tiles.subscripts(line)
    inside = tiles.mask(at)
    also = f" & {inside}" if inside else ""
    lines = [
        *tiles.locate(wide([old, y], target.shape)),
        f"row = tl.load({line.at(own)}{_masked(tiles.mask(own))}).to(tl.int64)",
        f"kept = tl.load({old.at(tiles.subscripts(old))}, mask=(row < 0){also}, other=0)",
        f"written = tl.load({fresh.at(tiles.subscripts(fresh))} + row * {step}, mask=(row >= 0){also}, other=0)",
        f"tl.store({y.at(at)}, tl.where(row < 0, kept, written){f', mask={inside}' if inside else ''})",
    ]
    write = assembled("append", f"{count} new rows", [old, fresh, line, y], target.shape, lines, tiles.count())
    return Plan((clear, mark, write), scratch.size, "a position is outside of its sequence of the cache")


def _sequences(
    attributes: Mapping[str, Attribute],
    cache: Array,
    new: Array,
    input_blocks: Sequence[Block],
    output_blocks: Sequence[Block],
) -> tuple[Array, Array]:
    """For every new row the extent of its sequence of the cache, and where that begins in the block."""
    allowed = ("cache_lens", "new_lens")
    cache_lens, new_lens = (np.array(integers(attributes, allowed, name), np.int64) for name in allowed)
    if len(cache_lens) != len(new_lens):
        raise PlanFault("append has as many sequences of new rows as of the cache")
    low, up = output_blocks[0].lower[1], output_blocks[0].upper[1]
    first, last = input_blocks[1].lower[1], input_blocks[1].upper[1]
    cache_ends, new_ends = np.cumsum(cache_lens), np.cumsum(new_lens)
    if up - low != cache.shape[1] or last - first != new.shape[1] or up > cache_ends[-1] or last > new_ends[-1]:
        raise PlanFault(f"append of new rows {first} to {last} to rows {low} to {up}, which are not there")
    begun, ended = np.searchsorted(cache_ends, low, side="right"), np.searchsorted(cache_ends, up)
    if first > new_ends[begun] - new_lens[begun] or last < new_ends[ended]:
        raise PlanFault(f"append to rows {low} to {up} lacks new rows: it has {first} to {last}")
    sequence = np.searchsorted(new_ends, np.arange(first, last), side="right")
    extents = cache_lens[sequence]
    return extents, cache_ends[sequence] - extents - low


def _masked(mask: str) -> str:
    return f", mask={mask}, other=0" if mask else ""


def _any(name: str, tiles: Tiles, item: Operand) -> list[str]:
    """Lines that make one flag of a tile of flags, loaded by these subscripts."""
    shaped = [axis for axis in (tiles.rows, tiles.columns) if axis is not None and item.strides[axis]]
    if not shaped:
        return []
    return [f"{name} = tl.max({name}, 0)"] * (1 if tiles.rows is None else 2)
