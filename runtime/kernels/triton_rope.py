"""The kernel `rope` in Triton: rotary position embedding, element i with element i + d_head / 2.

Where packed sequences give the positions, cosines and sines are a table, made once: to compute them would take as long
as to move what is rotated. Where positions are an input, frequencies are a table. Angles are f32, as on the CPU.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from runtime.bundle import Attribute, Block
from runtime.dtypes import Array, storage
from runtime.kernels.base import dtype_name
from runtime.kernels.numpy_rope import parse
from runtime.kernels.triton_source import (
    LANGUAGE,
    Argument,
    Operand,
    Plan,
    Status,
    Table,
    assembled,
    operands,
    power_of_two,
    wide,
)
from runtime.kernels.triton_tiles import Tiles

TILE = 2048
"""Pairs of elements in a program's tile."""


def plan_rope(
    attributes: Mapping[str, Attribute],
    inputs: Sequence[Array],
    outputs: Sequence[Array],
    input_blocks: Sequence[Block],
    output_blocks: Sequence[Block],
) -> Plan:
    """One launch; a position below 0 is a complaint."""
    rotation = parse(attributes, inputs, outputs, output_blocks)
    half = rotation.source.shape[-1] // 2
    views = [
        view[..., part] for view in (rotation.source, rotation.target) for part in (slice(half), slice(half, None))
    ]
    kind = dtype_name(rotation.target)
    items = operands(views, [kind] * 4, ["x", "x_far", "y", "y_far"])
    extents = views[0].shape
    tokens, last = len(extents) - 2, len(extents) - 1
    # Rows are heads where there are any: they share angles, whose sines take longer than all else.
    rows = max(range(last), key=lambda axis: (axis != tokens and extents[axis] > 1, extents[axis]))
    width = min(power_of_two(half), TILE)
    tiles = Tiles(extents, rows, last, min(power_of_two(extents[rows]), TILE // width), width)
    wave = "f64" if kind == "f64" else "f32"

    def vector(name: str, dtype: str, axis: int, stride: int) -> Operand:
        return Operand(name, dtype, tuple(stride if axis == a and extents[a] > 1 else 0 for a in range(last + 1)), 0)

    if rotation.given:
        (position,) = operands([rotation.positions], [dtype_name(rotation.positions)], ["positions"])
        place = vector("positions", position.dtype, tokens, position.strides[0])
        tables: list[tuple[str, Argument, str]] = [
            ("frequencies", Table.of(rotation.frequencies.astype(np.float32)), "f32"),
            ("positions", position.address, position.dtype),
            ("status", Status(), "i32"),
        ]
    else:
        distinct, own = np.unique(rotation.positions, return_inverse=True)
        with np.errstate(all="ignore"):  # absurd parameters give infinities, and those not-a-numbers
            angles = np.multiply(distinct[:, None], rotation.frequencies, dtype=np.float64).astype(np.float32)
            waves = [function(angles, dtype=storage(wave)) for function in (np.cos, np.sin)]
        place = vector("positions", "i32", tokens, 1)
        tables = [
            ("positions", Table.of(own.astype(np.int32)), "i32"),
            ("cosines", Table.of(waves[0]), wave),
            ("sines", Table.of(waves[1]), wave),
        ]

    def load(item: Operand, offset: str = "") -> str:
        subscripts = tiles.subscripts(item)
        mask = tiles.mask(subscripts)
        return f"tl.load({item.at(subscripts)}{offset}{f', mask={mask}, other=0' if mask else ''}){item.load_suffix}"

    def store(item: Operand, value: str) -> str:
        subscripts = tiles.subscripts(item)
        mask = tiles.mask(subscripts)
        return f"tl.store({item.at(subscripts)}, ({value}).to({LANGUAGE[kind]}){f', mask={mask}' if mask else ''})"

    lines = [*tiles.locate(wide(items, extents)), f"position = {load(place)}"]
    if rotation.given:
        lines += ["negative = (position < 0).to(tl.int32)"]
        shaped = [axis for axis in (tiles.rows, tiles.columns) if axis is not None and place.strides[axis]]
        for _ in range(2 if shaped and tiles.rows is not None else 1 if shaped else 0):
            lines.append("negative = tl.max(negative, 0)")
        lines.append("tl.store(status, 1, mask=negative != 0)")
    if rotation.given:
        angle = f"(position.to(tl.float32) * {load(vector('frequencies', 'f32', last, 1))}).to({LANGUAGE[wave]})"
        lines += [f"angle = {angle}", "cos = tl.cos(angle)", "sin = tl.sin(angle)"]
    else:
        for name, table in (("cos", "cosines"), ("sin", "sines")):
            lines.append(f"{name} = {load(vector(table, wave, last, 1), f' + position * {half}')}")
    lines += [
        f"a = {load(items[0])}",
        f"b = {load(items[1])}",
        store(items[2], "a * cos - b * sin"),
        store(items[3], "b * cos + a * sin"),
    ]
    title = f"rope of {extents[tokens]} tokens, pairs {half} apart"
    call = assembled("rope", title, items, extents, lines, tiles.count(), tables=tables)
    return Plan((call,), complaint="a position is negative; positions are 0 or more" if rotation.given else None)
