"""The kernel `contract` of reproducible plans on GPUs: pair by pair from the left, each element one chain over k.

The chain goes through k in steps of one length, in the order in which the equation names what is summed. The size of a
tile follows from the types and from the extent of k alone, and k is never cut. So each element is computed by the same
instructions in the same order, wherever it lies in its block, however many rows and columns there are, and however
operands lie in memory. cuBLAS chooses by the shape of a block, and promises none of that.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from einc_runtime.dtypes import Array, storage_dtype
from einc_runtime.kernels.base import Invocation
from einc_runtime.kernels.calls.contract import ContractCall, choose_smallest_pair, group_indices, write_product_program
from einc_runtime.kernels.indices import NamedArray
from einc_runtime.kernels.triton.contract import merge_dimensions
from einc_runtime.kernels.triton.launches import KernelLaunch, LaunchSequence, LaunchStep, WorkspaceAllocator
from einc_runtime.kernels.triton.map import build_map, build_reduce
from einc_runtime.kernels.triton.ordered_sums import build_ordered_reduce
from einc_runtime.kernels.triton.product import ROWS_TOGETHER
from einc_runtime.kernels.triton.source import (
    LANGUAGE,
    LaunchOptions,
    PointerOperand,
    assemble,
    index_cast,
    mask_arguments,
    power_of_two,
)
from einc_runtime.plan.index_equations import Names


@dataclass(frozen=True, slots=True)
class OrderedTile:
    """Rows and columns of a program's tile, positions of k in a step, warps, and stages of the pipeline of loads."""

    rows: int
    columns: int
    depth: int
    warps: int
    stages: int

    @staticmethod
    def choose(kind: str, extent: int) -> OrderedTile:
        """By the type of the operands and the extent of k, which no cut changes. 64 rows are the fewest for which all
        tensor cores have instructions of one kind."""
        if kind in ("f16", "bf16"):
            return OrderedTile(64, 64, min(64, max(16, power_of_two(extent))), 4, 4)
        return OrderedTile(64, 64, 16, 4, 2) if kind == "f32" else OrderedTile(32, 32, 16, 4, 2)


def build_ordered_contract(invocation: Invocation[Array]) -> LaunchSequence:
    call = ContractCall.parse(invocation)
    if not call.sums:
        return build_map(call.as_map_or_reduce).without_fusion()
    if call.kind not in ("f32", "f64"):
        return build_reduce(call.as_map_or_reduce)  # integers have no order
    if len(call.operands) == 1:
        return build_ordered_reduce(call.as_map_or_reduce)
    lowering = _ChainLowering(call)
    lowering.lower()
    return LaunchSequence(tuple(lowering.steps), lowering.scratch.size)


class _ChainLowering:
    """Collects the steps of one contraction."""

    def __init__(self, call: ContractCall) -> None:
        self.call = call
        self.scratch = WorkspaceAllocator()
        self.steps: list[LaunchStep] = []

    def lower(self) -> None:
        left, output = list(self.call.operands), self.call.result
        unit_extents = dict.fromkeys(self.call.extents, 1)  # then no pair is smaller than the first one
        while len(left) > 2:
            first, second, names = choose_smallest_pair([x.names for x in left], output.names, unit_extents)
            shape = [self.call.extents[name] for name in names]
            target = NamedArray(names, self.scratch.take(shape, storage_dtype(self.call.kind)))
            self._multiply(left[first], left[second], target, 1.0)
            left = [target, *(x for k, x in enumerate(left) if k not in (first, second))]
        self._multiply(left[0], left[1], output, self.call.scale)

    def _multiply(self, a: NamedArray, b: NamedArray, c: NamedArray, scale: float) -> None:
        summed = tuple(name for name in dict.fromkeys((*a.names, *b.names)) if name not in c.names)
        _, rows, columns, _ = group_indices(a.names, b.names, c.names)
        if summed and rows and columns:
            self.steps.append(_ProductSource(self.call, (a, b, c), summed).call(scale))
            return
        equation = f"{' '.join(a.names)}, {' '.join(b.names)} -> {' '.join(c.names)}"
        attributes = {"program": write_product_program(2, scale), "indices": equation}
        operands = [a.array, b.array], [c.array]
        if not summed:
            self.steps += build_map(Invocation("map", attributes, *operands)).without_fusion().steps
            return
        reduce = Invocation("reduce", {**attributes, "aggregation": "sum"}, *operands)  # of vectors: no matrix
        self.steps += build_ordered_reduce(reduce, self.scratch).steps


Dimensions = Sequence[tuple[int, int, int, int]]
"""Extents, and strides in elements in the two operands and the result."""


class _ProductSource:
    """Writes the source of one product of two operands into a third array; `summed` are the indices of k in order."""

    def __init__(self, call: ContractCall, arrays: tuple[NamedArray, NamedArray, NamedArray], summed: Names) -> None:
        self.extents, self.arrays = call.extents, arrays
        a, b, c = arrays
        self.kind = a.kind if a.kind == b.kind else call.kind
        self.items = [PointerOperand.of(name, x.array) for name, x in zip("abc", arrays, strict=True)]
        batch, rows, columns, _ = group_indices(a.names, b.names, c.names)
        self.batch, self.rows, self.columns, self.depth = map(self._find, (batch, rows, columns, summed))
        self.tile = OrderedTile.choose(self.kind, _count(self.depth))

    def _find(self, names: Names) -> Dimensions:
        a, b, c = (
            dict(zip(x.names, item.strides, strict=True)) for x, item in zip(self.arrays, self.items, strict=True)
        )
        return merge_dimensions([(self.extents[n], a.get(n, 0), b.get(n, 0), c.get(n, 0)) for n in names])

    def call(self, scale: float) -> KernelLaunch:
        tile, kind = self.tile, self.kind
        count, rows, columns, depth = map(_count, (self.batch, self.rows, self.columns, self.depth))
        casts = (index_cast([item], x.array.shape) for item, x in zip(self.items, self.arrays, strict=True))
        cast = next(filter(None, casts), "")
        wide = LANGUAGE["f64" if kind == "f64" else "f32"]
        in_rows = f"(m < {rows})[:, None]" if rows % tile.rows else ""
        in_columns = f"(n < {columns})[None, :]" if columns % tile.columns else ""
        in_depth = f"(k < {depth})" if depth % tile.depth else ""
        masks = (
            mask_arguments(in_rows, in_depth and f"{in_depth}[None, :]", fallback="0"),
            mask_arguments(in_columns, in_depth and f"{in_depth}[:, None]", fallback="0"),
        )
        same = [item.dtype == kind for item in self.items[:2]]
        widened = ["" if is_same else f".to({LANGUAGE[kind]})" for is_same in same]
        precision = "" if kind in ("f16", "bf16") else ', input_precision="ieee"'
        precision += ", out_dtype=tl.float64" if kind == "f64" else ""
        tiles = -(-rows // tile.rows), -(-columns // tile.columns)
        stored = LANGUAGE[self.items[2].dtype]
        lines = [
            *_write_tile(count, *tiles, cast),
            f"m = i * {tile.rows} + tl.arange(0, {tile.rows}){cast}",
            f"n = j * {tile.columns} + tl.arange(0, {tile.columns}){cast}",
            f"a_rows = a + {_write_offset('item', self.batch, 0)} + ({_write_offset('m', self.rows, 0)})[:, None]",
            f"b_cols = b + {_write_offset('item', self.batch, 1)} + ({_write_offset('n', self.columns, 1)})[None, :]",
            f"sums = tl.zeros([{tile.rows}, {tile.columns}], {wide})",
            f"for start in range(0, {depth}, {tile.depth}):",
            f"    k = start + tl.arange(0, {tile.depth}){cast}",
            f"    x = tl.load(a_rows + ({_write_offset('k', self.depth, 0)})[None, :]{masks[0]}){widened[0]}",
            f"    y = tl.load(b_cols + ({_write_offset('k', self.depth, 1)})[:, None]{masks[1]}){widened[1]}",
            f"    sums = tl.dot(x, y, sums{precision})",
            f"place = c + {_write_offset('item', self.batch, 2)} + ({_write_offset('m', self.rows, 2)})[:, None]",
            f"place += ({_write_offset('n', self.columns, 2)})[None, :]",
            f"tl.store(place, {'sums' if scale == 1 else f'(sums * {scale!r})'}.to({stored})"
            f"{mask_arguments(in_rows, in_columns)})",
        ]
        title = f"{f'{count} products' if count > 1 else 'product'} of {rows} x {depth} and {depth} x {columns}"
        options = LaunchOptions(warps=tile.warps, stages=tile.stages)
        return assemble(
            "product", title, self.items, (count, rows, columns, depth), lines, count * math.prod(tiles), options
        )


def _count(dimensions: Dimensions) -> int:
    return math.prod(extent for extent, *_ in dimensions)


def _write_tile(count: int, rows: int, columns: int, cast: str) -> list[str]:
    """Lines that set item, i and j: the product of a batch, and the row and the column of a program's tile."""
    lines = [f"tile = tl.program_id(0){cast}", f"item = tile // {rows * columns}", f"tile = tile % {rows * columns}"]
    if count == 1:
        lines[1:] = ["item = 0"]
    if rows == 1 or columns == 1:
        return [*lines, f"i = {'0' if rows == 1 else 'tile'}", f"j = {'0' if columns == 1 else 'tile'}"]
    return [
        *lines,
        f"first = tile // {ROWS_TOGETHER * columns} * {ROWS_TOGETHER}",
        f"height = tl.minimum({rows} - first, {ROWS_TOGETHER})",
        f"i = first + tile % {ROWS_TOGETHER * columns} % height",
        f"j = tile % {ROWS_TOGETHER * columns} // height",
    ]


def _write_offset(position: str, dimensions: Dimensions, array: int) -> str:
    """The expression for where a position is in an array: dimensions are numbered together, the last one fastest."""
    terms, inner = [], 1
    for dimension, (extent, *strides) in reversed([*enumerate(dimensions)]):
        subscript = position if inner == 1 else f"{position} // {inner}"
        subscript = subscript if dimension == 0 else f"({subscript}) % {extent}"
        if strides[array]:
            terms.append(subscript if strides[array] == 1 else f"({subscript}) * {strides[array]}")
        inner *= extent
    return " + ".join(terms) or f"{position} * 0"
