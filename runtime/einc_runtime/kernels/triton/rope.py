"""The kernel `rope` in Triton: rotary position embedding, element i with element i + d_head / 2.

Where packed sequences give the positions, cosines and sines are a table, made once: to compute them would take as long
as to move what is rotated. Where positions are an input, frequencies are a table. Angles are f32, as on the CPU.
"""

from __future__ import annotations

import numpy as np

from einc_runtime.dtypes import Array, storage
from einc_runtime.kernels.base import Invocation, dtype_name
from einc_runtime.kernels.calls.rope import Rotation
from einc_runtime.kernels.triton.plan import Argument, Plan, Status, Table
from einc_runtime.kernels.triton.source import LANGUAGE, Operand, assembled, power_of_two, widening
from einc_runtime.kernels.triton.tiles import Tiles

TILE = 2048
"""Pairs of elements in a program's tile."""


def plan_rope(invocation: Invocation[Array]) -> Plan:
    """One launch; a position below 0 is a complaint."""
    rotation = Rotation.parse(invocation)
    half = rotation.source.shape[-1] // 2
    views = [
        view[..., part] for view in (rotation.source, rotation.target) for part in (slice(half), slice(half, None))
    ]
    kind = dtype_name(rotation.target)
    x, x_far, y, y_far = items = [
        Operand.of(name, view) for name, view in zip(("x", "x_far", "y", "y_far"), views, strict=True)
    ]
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
        position = Operand.of("positions", rotation.positions)
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

    lines = [*tiles.locate(widening(items, extents)), f"position = {tiles.load(place)}"]
    if rotation.given:
        lines += ["negative = (position < 0).to(tl.int32)", *tiles.any("negative", place)]
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
    call = assembled("rope", title, items, extents, lines, tiles.count(), tables=tables)
    return Plan((call,), complaint="a position is negative; positions are 0 or more" if rotation.given else None)
