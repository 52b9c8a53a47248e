"""The kernel `rope` in Triton: rotary position embedding, element i with element i + d_head / 2.

Where packed sequences give the positions, cosines and sines are tables: computing them would take as long as moving the
operands. Where positions are an input, frequencies are a table. Angles are f32, as on the CPU.
"""

from __future__ import annotations

import numpy as np

from einc_runtime.dtypes import Array, storage_dtype
from einc_runtime.kernels.base import Invocation, dtype_name
from einc_runtime.kernels.calls.rope import RopeCall
from einc_runtime.kernels.triton.launches import Argument, LaunchSequence, StatusPointer, Table
from einc_runtime.kernels.triton.source import (
    LANGUAGE,
    LaunchOptions,
    PointerOperand,
    assemble,
    index_cast,
    power_of_two,
)
from einc_runtime.kernels.triton.tiles import TILE_ELEMENTS, TileGrid


def build_rope(invocation: Invocation[Array]) -> LaunchSequence:
    """One launch; a negative position sets the status word."""
    rotation = RopeCall.parse(invocation)
    half = rotation.source.shape[-1] // 2
    views = [
        view[..., part] for view in (rotation.source, rotation.target) for part in (slice(half), slice(half, None))
    ]
    kind = dtype_name(rotation.target)
    x, x_far, y, y_far = items = [
        PointerOperand.of(name, view) for name, view in zip(("x", "x_far", "y", "y_far"), views, strict=True)
    ]
    extents = views[0].shape
    tokens, last = len(extents) - 2, len(extents) - 1
    # Rows are heads where there are several: they share angles, whose sines take longer than the rest.
    rows = max(range(last), key=lambda axis: (axis != tokens and extents[axis] > 1, extents[axis]))
    width = min(power_of_two(half), TILE_ELEMENTS)
    tiles = TileGrid(extents, rows, last, min(power_of_two(extents[rows]), TILE_ELEMENTS // width), width)
    wave = "f64" if kind == "f64" else "f32"

    def vector(name: str, dtype: str, axis: int, stride: int) -> PointerOperand:
        return PointerOperand(
            name, dtype, tuple(stride if axis == a and extents[a] > 1 else 0 for a in range(last + 1)), 0
        )

    if rotation.positions_are_input:
        position = PointerOperand.of("positions", rotation.positions)
        positions = vector("positions", position.dtype, tokens, position.strides[0])
        tables: list[tuple[str, Argument, str]] = [
            ("frequencies", Table.of(rotation.frequencies.astype(np.float32)), "f32"),
            ("positions", position.address, position.dtype),
            ("status", StatusPointer(), "i32"),
        ]
    else:
        distinct, numbers = np.unique(rotation.positions, return_inverse=True)
        with np.errstate(all="ignore"):  # extreme parameters give infinities and NaNs
            angles = np.multiply(distinct[:, None], rotation.frequencies, dtype=np.float64).astype(np.float32)
            waves = [function(angles, dtype=storage_dtype(wave)) for function in (np.cos, np.sin)]
        positions = vector("positions", "i32", tokens, 1)
        tables = [
            ("positions", Table.of(numbers.astype(np.int32)), "i32"),
            ("cosines", Table.of(waves[0]), wave),
            ("sines", Table.of(waves[1]), wave),
        ]

    lines = [*tiles.locate(index_cast(items, extents)), f"position = {tiles.load(positions)}"]
    if rotation.positions_are_input:
        lines += ["negative = (position < 0).to(tl.int32)", *tiles.any("negative", positions)]
        lines.append("tl.store(status, 1, mask=negative != 0)")
        angle = f"(position.to(tl.float32) * {tiles.load(vector('frequencies', 'f32', last, 1))}).to({LANGUAGE[wave]})"
        lines += [f"angle = {angle}", "cos = tl.cos(angle)", "sin = tl.sin(angle)"]
    else:
        for name, table in (("cos", "cosines"), ("sin", "sines")):
            lines.append(f"{name} = {tiles.load(vector(table, wave, last, 1), f' + position * {half}')}")
    lines += [
        f"a = {tiles.load(x)}",
        f"b = {tiles.load(x_far)}",
        tiles.store(y, "(a * cos - b * sin)"),
        tiles.store(y_far, "(b * cos + a * sin)"),
    ]
    title = f"rope of {extents[tokens]} tokens, pairs {half} apart"
    call = assemble("rope", title, items, extents, lines, tiles.count(), LaunchOptions(tables=tables))
    return LaunchSequence((call,), status_message=rotation.status_message)
