"""Kernels over rows in Triton: `softmax` {axis}, `rmsnorm` {eps}, `layernorm` {eps}, computed in f32 or wider.

A row that fits into a program's registers is read once. Longer ones are gone through several times, tile by tile.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from runtime.bundle import Attribute, Block
from runtime.dtypes import Array, compute
from runtime.errors import PlanFault
from runtime.kernels.base import attribute, dtype_name, single
from runtime.kernels.rows import as_rows
from runtime.kernels.triton_scalar import square_root
from runtime.kernels.triton_source import LANGUAGE, Operand, Plan, assembled, operands, power_of_two, wide
from runtime.kernels.triton_tiles import Tiles

TILE = 2048
"""Elements of a program's tile where rows are shorter than that."""

WHOLE = 16384
"""The longest row of f32 that is held in registers: 32 of them for each of 512 threads."""


def plan_softmax(
    attributes: Mapping[str, Attribute],
    inputs: Sequence[Array],
    outputs: Sequence[Array],
    input_blocks: Sequence[Block],
    output_blocks: Sequence[Block],
) -> Plan:
    """exp(x - max) / sum of them along one axis; it cannot overflow."""
    source, target = single(inputs), single(outputs)
    axis = attribute(attributes, ("axis",), "axis", int)
    assert isinstance(axis, int)
    if source.shape != target.shape or source.dtype != target.dtype or _computed(target) is None:
        raise PlanFault("a softmax has one floating input and an output of its shape and type")
    if not -source.ndim <= axis < source.ndim:
        raise PlanFault(f"softmax over axis {axis} of a tensor of {source.ndim} dimensions")
    x, y = as_rows([np.moveaxis(view, axis, -1) for view in (source, target)])[0]
    rows = _Rows([x, y], ["x_ptr", "y_ptr"])
    if rows.whole:
        lines = [
            rows.load("x", 'float("-inf")'),
            "e = tl.exp(x - tl.max(x, 1)[:, None])",
            rows.store("e / tl.sum(e, 1)[:, None]"),
        ]
    else:
        first = [
            rows.load("x", 'float("-inf")'),
            "new = tl.maximum(most, tl.max(x, 1))",
            "total = total * tl.exp(most - new) + tl.sum(tl.exp(x - new[:, None]), 1)",
            "most = new",
        ]
        lines = [
            f"most = tl.full([{rows.tiles.height}], {rows.least}, {rows.type})",
            f"total = tl.zeros([{rows.tiles.height}], {rows.type})",
            *rows.loop(first),
            *rows.loop([rows.load("x", "0"), rows.store("tl.exp(x - most[:, None]) / total[:, None]")]),
        ]
    return rows.call("softmax", f"softmax of rows of {x.shape[-1]}", lines)


def plan_rmsnorm(
    attributes: Mapping[str, Attribute],
    inputs: Sequence[Array],
    outputs: Sequence[Array],
    input_blocks: Sequence[Block],
    output_blocks: Sequence[Block],
) -> Plan:
    """x / sqrt(mean(x * x) + eps) * gain."""
    return _norm("rmsnorm", attributes, inputs, outputs)


def plan_layernorm(
    attributes: Mapping[str, Attribute],
    inputs: Sequence[Array],
    outputs: Sequence[Array],
    input_blocks: Sequence[Block],
    output_blocks: Sequence[Block],
) -> Plan:
    """x - mean(x) in place of x, then as rmsnorm, plus bias."""
    return _norm("layernorm", attributes, inputs, outputs)


def _norm(name: str, attributes: Mapping[str, Attribute], inputs: Sequence[Array], outputs: Sequence[Array]) -> Plan:
    target = single(outputs)
    eps = attribute(attributes, ("eps",), "eps", float)
    assert isinstance(eps, float)
    count = 2 if name == "rmsnorm" else 3
    if len(inputs) != count or _computed(target) is None or any(x.dtype != target.dtype for x in inputs):
        raise PlanFault(f"{name} has {count} floating inputs of one type, and an output of that type")
    source = inputs[0]
    if source.shape != target.shape or source.ndim == 0 or any(v.shape != source.shape[-1:] for v in inputs[1:]):
        raise PlanFault(f"{name} of {source.shape} into {target.shape}, with {[v.shape for v in inputs[1:]]}")
    if not 0 < eps < math.inf:
        raise PlanFault(f"{name} with eps {eps}")
    x, y = as_rows([source, target])[0]
    vectors = [vector[(None,) * (x.ndim - 1)] for vector in inputs[1:]]
    centered = name == "layernorm"
    rows = _Rows([x, *vectors, y], ["x_ptr", "gain_ptr", *(["bias_ptr"] if centered else []), "y_ptr"])
    extent = x.shape[-1]
    inside = rows.inside
    result = f"x{' - mean' if centered else ''}"
    scaled = f"({result}) / scale * gain" if centered else "x / scale * gain"
    finish = [rows.load(v, "0") for v in (["gain", "bias"] if centered else ["gain"])]
    finish.append(rows.store(scaled + (" + bias" if centered else "")))
    root = f"scale = {square_root(f'squares / {float(extent)!r} + {eps!r}', rows.kind)}"
    square = f"tl.where({inside}, ({result}) * ({result}), 0)" if centered and inside else f"({result}) * ({result})"
    if rows.whole:
        lines = [
            rows.load("x", "0"),
            *([f"mean = tl.sum(x, 1)[:, None] / {float(extent)!r}"] if centered else []),
            f"squares = tl.sum({square}, 1)[:, None]",
            root,
            *finish,
        ]
    else:
        zeros = f"tl.zeros([{rows.tiles.height}, {rows.width}], {rows.type})"
        mean = [
            f"total = {zeros}",
            *rows.loop([rows.load("x", "0"), "total += x"]),
            f"mean = tl.sum(total, 1)[:, None] / {float(extent)!r}",
        ]
        lines = [
            *(mean if centered else []),
            f"total = {zeros}",
            *rows.loop([rows.load("x", "0"), f"total += {square}"]),
            "squares = tl.sum(total, 1)[:, None]",
            root,
            *rows.loop([rows.load("x", "0"), *finish]),
        ]
    return rows.call(name, f"{name} of rows of {extent}, eps {eps}", lines)


def _computed(array: Array) -> str | None:
    kind = compute(dtype_name(array))
    return kind if kind in ("f32", "f64") else None


class _Rows:
    """Tiles of rows. The first operand is read, the last one written; all have the row along their last axis."""

    def __init__(self, views: Sequence[Array], names: Sequence[str]) -> None:
        self.items = operands(views, [dtype_name(view) for view in views], names)
        self.extents = views[0].shape
        self.sixty_four = wide(self.items, self.extents)
        self.kind = compute(self.items[0].dtype)
        self.type = LANGUAGE[self.kind]
        self.least = "-3.4028234663852886e38" if self.kind == "f32" else "-1.7976931348623157e308"
        self.extent = self.extents[-1]
        leading = range(len(self.extents) - 1)
        item = self.items[0]
        unit = next((axis for axis in leading if item.strides[axis] == 1), None)  # rows lie across memory
        across = unit is not None and item.strides[-1] != 1
        rows = unit if across else max(leading, key=lambda axis: (self.extents[axis] > 1, axis), default=None)
        most = WHOLE if self.kind == "f32" else WHOLE // 2
        self.width = power_of_two(self.extent)
        height = min(power_of_two(self.extents[rows]), 32) if rows is not None and across else 1
        self.whole = self.width * height <= most
        if not self.whole:
            self.width = max(1, TILE // height)
        if rows is not None and not across:
            height = min(power_of_two(self.extents[rows]), max(1, TILE // self.width))
        self.tiles = Tiles((*self.extents[:-1], 1), rows, None, height, 1)

    @property
    def span(self) -> str:
        return f"tl.arange(0, {self.width})[None, :]{'.to(tl.int64)' if self.sixty_four else ''}"

    @property
    def inside(self) -> str:
        return f"(k < {self.extent})" if self.extent % self.width else ""

    def loop(self, body: Sequence[str]) -> list[str]:
        return [
            f"for start in range(0, {self.extent}, {self.width}):",
            f"    k = start + {self.span}",
            *("    " + line for line in body),
        ]

    def _at(self, item: Operand) -> tuple[str, str]:
        subscripts = self.tiles.subscripts(item)
        masks = [self.tiles.mask(subscripts)]
        if item.strides[-1]:
            subscripts[len(self.extents) - 1] = "k"
            masks.append(self.inside)
        return item.at(subscripts), " & ".join(filter(None, masks))

    def load(self, name: str, other: str) -> str:
        item = next(item for item in self.items if item.name == f"{name}_ptr")
        at, mask = self._at(item)
        return f"{name} = tl.load({at}{f', mask={mask}, other={other}' if mask else ''}){item.load_suffix}"

    def store(self, value: str) -> str:
        item = self.items[-1]
        at, mask = self._at(item)
        return f"tl.store({at}, ({value}).to({LANGUAGE[item.dtype]}){f', mask={mask}' if mask else ''})"

    def call(self, name: str, title: str, lines: Sequence[str]) -> Plan:
        where = self.tiles.locate(self.sixty_four)
        if self.whole:
            where.append(f"k = {self.span}")
        size = self.width * self.tiles.height
        warps = 4 if size <= 2048 else 8 if size <= 4096 else 16
        call = assembled(name, title, self.items, self.extents, [*where, *lines], self.tiles.count(), warps=warps)
        return Plan((call,))
