"""Kernels over rows in Triton: `softmax` {axis}, `rmsnorm` and `layernorm` {eps, offset}, and `rope`.

They compute in f32 or wider. A row that fits into a program's registers is read once; longer rows are read several
times, tile by tile.

In the variants for reproducible plans, which are called ordered, the length of a row alone decides how it is divided
into tiles, and the elements of a tile are added up in one order.

`rope` turns element i with element i + d_head / 2. Where packed sequences give the positions, cosines and sines are
tables: computing them would take as long as moving the operands. Where positions are an input, frequencies are a table.
Angles are f32, or f64 beside f64, as on the CPU.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from einc_runtime.dtypes import Array, compute_type, storage_dtype
from einc_runtime.kernels.base import Invocation, dtype_name
from einc_runtime.kernels.calls.rows import NormCall, RopeCall, SoftmaxCall
from einc_runtime.kernels.triton.launches import Argument, LaunchSequence, StatusPointer, Table
from einc_runtime.kernels.triton.ordered_sums import write_tree
from einc_runtime.kernels.triton.scalar import write_square_root
from einc_runtime.kernels.triton.source import (
    LANGUAGE,
    LaunchOptions,
    PointerOperand,
    assemble,
    index_cast,
    power_of_two,
)
from einc_runtime.kernels.triton.tiles import TILE_ELEMENTS, TileGrid
from einc_runtime.kernels.views import merge_leading_axes
from einc_runtime.plan.launches import MAX_ROW


def build_softmax(invocation: Invocation[Array], ordered: bool = False) -> LaunchSequence:
    """exp(x - max) / sum(exp(x - max)) along one axis, which cannot overflow."""
    call = SoftmaxCall.parse(invocation)
    x, y = merge_leading_axes([np.moveaxis(view, call.axis, -1) for view in (call.source, call.target)])
    rows = RowTiles([x, y], ["x_ptr", "y_ptr"], ordered)
    if rows.fits_at_once:
        lines = [
            rows.load("x", 'float("-inf")'),
            "e = tl.exp(x - tl.max(x, 1)[:, None])",
            rows.store(f"(e / {rows.add_up('e')}[:, None])"),
        ]
    else:
        first = [
            rows.load("x", 'float("-inf")'),
            "new = tl.maximum(most, tl.max(x, 1))",
            f"total = total * tl.exp(most - new) + {rows.add_up('tl.exp(x - new[:, None])')}",
            "most = new",
        ]
        lines = [
            f"most = tl.full([{rows.tiles.height}], {rows.least}, {rows.type})",
            f"total = tl.zeros([{rows.tiles.height}], {rows.type})",
            *rows.loop(first),
            *rows.loop([rows.load("x", "0"), rows.store("(tl.exp(x - most[:, None]) / total[:, None])")]),
        ]
    return rows.call("softmax", f"softmax of rows of {x.shape[-1]}", lines)


def build_ordered_softmax(invocation: Invocation[Array]) -> LaunchSequence:
    return build_softmax(invocation, ordered=True).without_fusion()


def build_norm(invocation: Invocation[Array], ordered: bool = False) -> LaunchSequence:
    """x / sqrt(mean(x * x) + eps) * (gain + offset); layernorm takes x - mean(x) for x, and adds the bias."""
    call = NormCall.parse(invocation)
    x, y = merge_leading_axes([call.source, call.target])
    vectors = [vector[(None,) * (x.ndim - 1)] for vector in call.vectors]
    rows = RowTiles([x, *vectors, y], ["x_ptr", *(f"{name}_ptr" for name in name_vectors(call)), "y_ptr"], ordered)
    extent = x.shape[-1]
    if rows.fits_at_once:
        lines = [rows.load("x", "0"), *write_norm(call, rows)]
    else:
        zeros = f"tl.zeros([{rows.tiles.height}, {rows.width}], {rows.type})"
        square, root, finish = _write_norm_parts(call, rows)
        mean = [
            f"total = {zeros}",
            *rows.loop([rows.load("x", "0"), "total += x"]),
            f"mean = {rows.add_up('total')}[:, None] / {float(extent)!r}",
        ]
        lines = [
            *(mean if call.centered else []),
            f"total = {zeros}",
            *rows.loop([rows.load("x", "0"), f"total += {square}"]),
            f"squares = {rows.add_up('total')}[:, None]",
            root,
            *rows.loop([rows.load("x", "0"), *finish]),
        ]
    return rows.call(invocation.name, f"{invocation.name} of rows of {extent}, eps {call.eps}", lines)


def write_norm(call: NormCall, rows: RowTiles, copies: Sequence[str] = ()) -> list[str]:
    """Lines that normalize whole rows x and store them, also to `copies`, by name.

    The operands after x are those of `name_vectors`.
    """
    square, root, finish = _write_norm_parts(call, rows, copies)
    return [
        *([f"mean = {rows.add_up('x')}[:, None] / {float(rows.extent)!r}"] if call.centered else []),
        f"squares = {rows.add_up(square)}[:, None]",
        root,
        *finish,
    ]


def name_vectors(call: NormCall) -> list[str]:
    return ["gain", "bias"][: len(call.vectors)]


def _write_norm_parts(call: NormCall, rows: RowTiles, copies: Sequence[str] = ()) -> tuple[str, str, list[str]]:
    """What is added up of x, the line that makes the scale of it, and the lines that load what follows and store."""
    names = name_vectors(call)
    result = f"x{' - mean' if call.centered else ''}"
    gain = f"(gain + {call.offset!r})" if call.offset else "gain"
    scaled = f"({result}) / scale" if call.centered else "x / scale"
    finish = [rows.load(name, "0") for name in names]
    of_gain, of_bias = f" * {gain}" if names else "", " + bias" if len(names) > 1 else ""
    finish += [rows.store(f"({scaled}{of_gain}{of_bias})", name) for name in ("", *copies)]
    root = f"scale = {write_square_root(f'squares / {float(rows.extent)!r} + {call.eps!r}', rows.kind)}"
    square = f"({result}) * ({result})"
    return f"tl.where({rows.inside}, {square}, 0)" if call.centered and rows.inside else square, root, finish


def build_ordered_norm(invocation: Invocation[Array]) -> LaunchSequence:
    return build_norm(invocation, ordered=True).without_fusion()


class RowTiles:
    """Tiles of rows. The first operand is read and the last one written; rows lie along the last axis of all. Where
    they are `ordered`, their width follows from the length of rows alone."""

    def __init__(self, views: Sequence[Array], names: Sequence[str], ordered: bool = False) -> None:
        self.ordered = ordered
        self.items = [PointerOperand.of(name, view) for name, view in zip(names, views, strict=True)]
        self.extents = views[0].shape
        self.cast = index_cast(self.items, self.extents)
        self.kind = compute_type(self.items[0].dtype)
        self.type = LANGUAGE[self.kind]
        self.least = "-3.4028234663852886e38" if self.kind == "f32" else "-1.7976931348623157e308"
        self.extent = self.extents[-1]
        leading = range(len(self.extents) - 1)
        item = self.items[0]
        unit = next((axis for axis in leading if item.strides[axis] == 1), None)  # rows lie across memory
        across = unit is not None and item.strides[-1] != 1
        rows = unit if across else max(leading, key=lambda axis: (self.extents[axis] > 1, axis), default=None)
        limit = MAX_ROW if self.kind == "f32" else MAX_ROW // 2
        self.width = power_of_two(self.extent)
        height = min(power_of_two(self.extents[rows]), 32) if rows is not None and across else 1
        if ordered:
            self.fits_at_once = self.width <= limit
            self.width = self.width if self.fits_at_once else TILE_ELEMENTS
            height = min(height, limit // self.width)
        else:
            self.fits_at_once = self.width * height <= limit
            if not self.fits_at_once:
                self.width = max(1, TILE_ELEMENTS // height)
        if rows is not None and not across:
            height = min(power_of_two(self.extents[rows]), max(1, TILE_ELEMENTS // self.width))
        self.tiles = TileGrid((*self.extents[:-1], 1), rows, None, height, 1)

    @property
    def span(self) -> str:
        return f"tl.arange(0, {self.width})[None, :]{self.cast}"

    @property
    def inside(self) -> str:
        return f"(k < {self.extent})" if self.extent % self.width else ""

    def loop(self, body: Sequence[str]) -> list[str]:
        return [
            f"for start in range(0, {self.extent}, {self.width}):",
            f"    k = start + {self.span}",
            *("    " + line for line in body),
        ]

    def _place(self, item: PointerOperand) -> tuple[dict[int, str], str]:
        subscripts = self.tiles.subscripts(item)
        masks = [self.tiles.mask(subscripts)]
        if item.strides[-1]:
            subscripts[len(self.extents) - 1] = "k"
            masks.append(self.inside)
        return subscripts, " & ".join(filter(None, masks))

    def add_up(self, tile: str) -> str:
        """The expression for the sums of a tile's rows."""
        return f"{'add_in_order(' if self.ordered else 'tl.sum('}{tile}{')' if self.ordered else ', 1)'}"

    def load(self, name: str, fallback: str, into: str = "") -> str:
        """The line that loads an operand, into a variable of its name where no other is given."""
        item = next(item for item in self.items if item.name == f"{name}_ptr")
        return f"{into or name} = {item.load(*self._place(item), fallback)}"

    def store(self, value: str, name: str = "") -> str:
        """The line that stores to an operand, the last one where no other is named."""
        item = next((item for item in self.items if item.name == f"{name}_ptr"), self.items[-1])
        subscripts, mask = self._place(item)
        return item.store(subscripts, value, mask)

    def call(self, name: str, title: str, lines: Sequence[str], functions: str = "") -> LaunchSequence:
        """The launch of these lines, which may call `functions`."""
        where = self.tiles.locate(self.cast)
        if self.fits_at_once:
            where.append(f"k = {self.span}")
        size = self.width * self.tiles.height
        warps = 4 if size <= 2048 else 8 if size <= 4096 else 16
        helpers = write_tree("add_in_order", self.tiles.height, self.width) if self.ordered else ""
        options = LaunchOptions(helpers + functions, warps=warps)
        call = assemble(name, title, self.items, self.extents, [*where, *lines], self.tiles.count(), options)
        return LaunchSequence((call,))


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
            ("frequencies", Table.of(rotation.frequencies.astype(storage_dtype(wave))), wave),
            ("positions", position.address, position.dtype),
            ("status", StatusPointer(), "i32"),
        ]
    else:
        distinct, numbers = np.unique(rotation.positions, return_inverse=True)
        with np.errstate(all="ignore"):  # extreme parameters give infinities and NaNs
            angles = np.multiply(distinct[:, None], rotation.frequencies, dtype=np.float64).astype(storage_dtype(wave))
            waves = [function(angles) for function in (np.cos, np.sin)]
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
        angle = f"position.to({LANGUAGE[wave]}) * {tiles.load(vector('frequencies', wave, last, 1))}"
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
