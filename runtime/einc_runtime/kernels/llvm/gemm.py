"""Matrix products in machine code in which every element is one chain of fused multiply-adds, in the order of k.

So an element's bits depend on its row and its column alone: not on the sizes of the matrices, on where the element is
in them, on tiles, or on how operands lie in memory. Libraries of BLAS do not promise that. Tiles of the result stay in
registers while k goes on for `PANEL_DEPTH` positions; then they are stored and loaded again, which changes no bit.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from einc_runtime.kernels.llvm import compiler
from einc_runtime.kernels.llvm.arguments import GemmArguments, PackArguments, read_arguments
from einc_runtime.kernels.llvm.compiler import LANES

PANEL_DEPTH = 256
"""Positions of k that a tile goes through at a time: a panel of columns then fits into a core's first cache."""
HEIGHT = 12
"""Panels of rows that are used with one panel of columns: they stay in a core's second cache."""


class TileShape(NamedTuple):
    """A tile in registers: `rows` rows by `vectors` vectors of columns."""

    rows: int
    vectors: int

    @property
    def columns(self) -> int:
        return self.vectors * LANES


@compiler.compile_once
def emit_gemm(shape: TileShape, kind: str = "f32") -> Any:
    """Products of matrices (`GemmArguments`).

    Rows are packed in panels of `shape.rows`, as `emit_pack` does. A panel of columns has a vector of them at each k;
    columns are of type `kind`, and widened in registers.
    """
    from einc_runtime.kernels.llvm.emitter import I32, I64, Emitter, Value, vector

    from llvmlite import ir  # isort: skip

    e = Emitter()
    b = e.b
    arguments = read_arguments(e, GemmArguments[Value])
    products, table, rows, columns, depth, panel_step, k_step, row_step = arguments
    lanes = ir.Constant(vector(I32), list(range(LANES)))
    width, height = range(shape.vectors), range(shape.rows)

    def compute(a: Value, column: Value, count: Value, first: Value, target: Value, left: Value, masked: bool) -> None:
        """A tile: `count` positions of k, onto what the target holds unless `first`. `left` are rows and columns."""
        rows_left, columns_left = left
        masks: list[Any] = [None for _ in width]
        if masked:
            columns_here = e.broadcast(b.trunc(columns_left, I32))
            masks = [b.icmp_signed("<", b.add(lanes, e.number(v * LANES, I32)), columns_here) for v in width]
        sums = [[e.variable(e.number(0.0)) for _ in width] for _ in height]
        lines = [b.add(target, b.mul(row_step, I64(r))) for r in height]
        with b.if_then(b.not_(first)):
            for r in height:
                with b.if_then(b.icmp_signed("<", I64(r), rows_left)):
                    for v in width:
                        b.store(e.load(lines[r], I64(v * LANES), "f32", masks[v]), sums[r][v])
        address, line = e.variable(a), e.variable(column)
        with e.loop(count):
            here_a, here_b = b.load(address), b.load(line)
            vectors = [e.load(here_b, I64(v * LANES), kind, masks[v]) for v in width]
            for r in height:
                factor = e.load_one(b.add(here_a, I64(4 * r)), "f32")
                for v in width:
                    name = f"llvm.fma.v{LANES}f32"
                    total = e.intrinsic(name, vectors[v].type, factor, vectors[v], b.load(sums[r][v]))
                    b.store(total, sums[r][v])
            b.store(b.add(here_a, I64(4 * shape.rows)), address)
            b.store(b.add(here_b, k_step), line)
        for r in height:
            with b.if_then(b.icmp_signed("<", I64(r), rows_left)):
                for v in width:
                    e.store(b.load(sums[r][v]), lines[r], I64(v * LANES), "f32", masks[v])

    a_panel = b.mul(depth, I64(4 * shape.rows))
    row_panels = b.sdiv(b.add(rows, I64(shape.rows - 1)), I64(shape.rows))
    column_panels = b.sdiv(b.add(columns, I64(shape.columns - 1)), I64(shape.columns))
    with e.loop(products) as number:
        left, right, target = e.read_entry(table, number, 3)
        with e.loop(depth, PANEL_DEPTH) as k:
            count, first = e.least(I64(PANEL_DEPTH), b.sub(depth, k)), b.icmp_signed("==", k, I64(0))
            with e.loop(row_panels, HEIGHT) as block:
                panels = e.least(I64(HEIGHT), b.sub(row_panels, block))
                with e.loop(column_panels) as j:
                    column = b.add(right, b.add(b.mul(j, panel_step), b.mul(k, k_step)))
                    columns_left = b.sub(columns, b.mul(j, I64(shape.columns)))
                    full = b.icmp_signed(">=", columns_left, I64(shape.columns))
                    with e.loop(panels) as inner:
                        i = b.add(block, inner)
                        a = b.add(left, b.add(b.mul(i, a_panel), b.mul(k, I64(4 * shape.rows))))
                        rows_left = b.sub(rows, b.mul(i, I64(shape.rows)))
                        panel_start = b.add(
                            target,
                            b.add(b.mul(b.mul(i, I64(shape.rows)), row_step), b.mul(j, I64(4 * shape.columns))),
                        )
                        with b.if_else(full) as (full_tile, edge):
                            with full_tile:
                                compute(a, column, count, first, panel_start, (rows_left, columns_left), False)
                            with edge:
                                compute(a, column, count, first, panel_start, (rows_left, columns_left), True)
    return e.finish()


def count_packed(width: int, lines: int, depth: int) -> int:
    """The elements of packed lines, in whole vectors. Some are behind the last panel: packing writes whole squares."""
    count = -(-lines // width) * width * depth + (LANES - 1) * width + LANES
    return -(-count // LANES) * LANES


@compiler.compile_once
def emit_pack(width: int, along: bool) -> Any:
    """Packs lines of f32 in panels [panel, k, line in the panel] (`PackArguments`). Lines are dense `along` k, or else
    neighbouring lines are neighbours in memory.

    Panels are `width` lines wide. What is in the last panel beyond the lines may be anything, and so may what follows:
    the target has `count_packed` elements.
    """
    from einc_runtime.kernels.llvm.emitter import I64, Emitter, Value

    e = Emitter()
    b = e.b
    matrices, table, lines, depth, step = read_arguments(e, PackArguments[Value])
    panels = b.sdiv(b.add(lines, I64(width - 1)), I64(width))

    def store(value: Value, target: Value, k: Value, first: int) -> None:
        e.store(value, b.add(target, b.mul(k, I64(4 * width))), I64(first), "f32", None)

    with e.loop(matrices) as number:
        source, target = e.read_entry(table, number, 2)
        with e.loop(panels) as panel:
            panel_start = b.add(target, b.mul(panel, b.mul(depth, I64(4 * width))))
            for first in reversed(range(0, width, LANES)):  # what is behind a line may belong to what follows it
                line = b.add(b.mul(panel, I64(width)), I64(first))
                if along:
                    last = b.sub(lines, I64(1))
                    starts = [
                        b.add(source, b.mul(step, e.least(b.add(line, I64(n)), last))) if n < width else None
                        for n in range(LANES)
                    ]

                    def transpose(k: Value, mask: Value | None, starts: list[Any] = starts, first: int = first) -> None:
                        read = [e.number(0.0) if start is None else e.load(start, k, "f32", mask) for start in starts]
                        for n, value in enumerate(e.transpose_square(read)):
                            store(value, panel_start, b.add(k, I64(n)), first)

                    e.sweep(depth, transpose)
                else:
                    mask = e.lanes_below(b.sub(lines, line))
                    with e.loop(depth) as k:
                        value = e.load(b.add(source, b.mul(k, step)), line, "f32", mask)
                        store(value, panel_start, k, first)
    return e.finish()
