"""Rotations, and new rows of caches, by one kernel: what a decode step does to queries, keys and values.

New rows are few. A program has one of them, and looks at the places of all others: of equal places the last row counts.
Rows that are rotated first are rotated in registers, on their way to the cache.
"""

from __future__ import annotations

from collections.abc import Sequence

from einc_runtime.dtypes import Array, storage_dtype
from einc_runtime.kernels.base import Invocation, dtype_name
from einc_runtime.kernels.calls.moves import AppendCall
from einc_runtime.kernels.calls.rows import RopeCall
from einc_runtime.kernels.triton.launches import Argument, KernelLaunch, LaunchSequence, StatusPointer, Table
from einc_runtime.kernels.triton.rows import build_rope
from einc_runtime.kernels.triton.side_by_side import place_side_by_side
from einc_runtime.kernels.triton.source import (
    LANGUAGE,
    LaunchOptions,
    PointerOperand,
    assemble,
    index_cast,
    mask_arguments,
    power_of_two,
)
from einc_runtime.kernels.triton.tiles import TILE_ELEMENTS, TileGrid


def build_places(parts: Sequence[Invocation[Array]], kept: Sequence[bool]) -> LaunchSequence | None:
    """One launch of rotations and of appends in place, some of which append what a rotation makes. Rotations that are
    not `kept` are only made on the way. None where positions of a rotation follow from its block, which an append that
    reads it does not know."""
    rotations = {_find_address(part.output): RopeCall.parse(part) for part in parts if part.name == "rope"}
    calls: list[KernelLaunch] = []
    message: str | None = None
    for part, is_kept in zip(parts, kept, strict=True):
        if part.name == "append":
            call = AppendCall.parse(part)
            rotation = rotations.get(_find_address(part.inputs[1]))
            if not call.in_place or (rotation is not None and not rotation.positions_are_input):
                return None
            calls.append(_append(call, rotation))
            message = call.status_message
        elif is_kept:
            sequence = build_rope(part)
            calls += [step for step in sequence.steps if isinstance(step, KernelLaunch)]
            message = message or sequence.status_message
    return LaunchSequence((place_side_by_side("places", calls),), status_message=message)


def _find_address(view: Array) -> int:
    return int(view.__array_interface__["data"][0])


def _append(call: AppendCall, rotation: RopeCall | None) -> KernelLaunch:
    """Writes each new row to its place in the cache, if the cache has it and no later row goes there."""
    source = call.new if rotation is None else rotation.source
    width = source.shape[-1]
    half = width // 2 if rotation is not None else width
    spans = [slice(half)] if rotation is None else [slice(half), slice(half, None)]
    fresh = [PointerOperand.of(f"x{n}", source[..., span]) for n, span in enumerate(spans)]
    cached = [PointerOperand.of(f"y{n}", call.target[:, :1, span]) for n, span in enumerate(spans)]
    heads, count, rows = source.shape[0], source.shape[1], call.cache.shape[1]
    extents = (heads, count, half)
    columns = min(power_of_two(half), TILE_ELEMENTS)
    tiles = TileGrid(extents, 0, 2, min(power_of_two(heads), TILE_ELEMENTS // columns), columns)
    positions = PointerOperand.of("positions", call.positions)
    token, stride = ("i1", positions.strides[0]) if count > 1 else ("0", 0)
    step = call.target.strides[1] // call.target.itemsize
    every = power_of_two(count)
    tables: list[tuple[str, Argument, str]] = [
        ("extents", Table.of(call.extents), "i64"),
        ("origins", Table.of(call.origins), "i64"),
        ("status", StatusPointer(), "i32"),
    ]
    known = mask_arguments(f"(t < {count})" if count < every else "", fallback="0")
    lines = [
        *tiles.locate(index_cast([*fresh, *cached], (heads, rows, half))),
        f"position = tl.load(positions + {token} * {stride}).to(tl.int64)",
        f"wrong = (position < 0) | (position >= tl.load(extents + {token}))",
        "tl.store(status, 1, mask=wrong)",
        f"row = position + tl.load(origins + {token})",
        f"t = tl.arange(0, {every})",
        f"others = tl.load(positions + t * {stride}{known}).to(tl.int64) + tl.load(origins + t{known})",
        f"later = tl.max(((others == row) & (t > {token}) & (t < {count})).to(tl.int32), 0)",
        f"here = (wrong == 0) & (row >= 0) & (row < {rows}) & (later == 0)",
    ]
    loads = [f"v{n} = {tiles.load(item)}" for n, item in enumerate(fresh)]
    values = [f"v{n}" for n in range(len(fresh))]
    operands = [*fresh, positions]
    if rotation is not None:
        turned = "position"
        if _find_address(rotation.positions) != _find_address(call.positions):  # where rows lie in blocks
            turns = PointerOperand.of("turns", rotation.positions)
            operands.append(turns)
            turned = "turn"
            loads.append(f"turn = tl.load(turns + {token} * {turns.strides[0] if count > 1 else 0})")
        wave = "f64" if dtype_name(call.target) == "f64" else "f32"
        tables.append(("frequencies", Table.of(rotation.frequencies.astype(storage_dtype(wave))), wave))
        vector = PointerOperand("frequencies", wave, (0, 0, 1), 0)
        loads += [
            f"angle = {turned}.to({LANGUAGE[wave]}) * {tiles.load(vector)}",
            "cos = tl.cos(angle)",
            "sin = tl.sin(angle)",
        ]
        values = ["(v0 * cos - v1 * sin)", "(v1 * cos + v0 * sin)"]
    inside = tiles.mask((0, 2))
    stores = [
        item.store(tiles.subscripts(item), value, " & ".join(filter(None, ("here", inside))), offset=f" + row * {step}")
        for item, value in zip(cached, values, strict=True)
    ]
    title = f"{count} new rows of {heads} heads in place{', rotated' if rotation is not None else ''}"
    items = [*operands, *cached]
    return assemble(
        "append", title, items, extents, [*lines, *loads, *stores], tiles.count(), LaunchOptions(tables=tables)
    )
