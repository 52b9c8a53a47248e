"""Emits the machine code of matrix products with some more rows: a matrix, as it lies, times rows packed in a panel.

A panel has the elements of all rows at a position side by side, in up to three vectors. An element of the matrix is
read into all lanes and multiplied by these, so that a vector of sums belongs to a line of the matrix and has a lane for
each row: no sum crosses lanes, and a line needs no packing. Eight lines are multiplied together, so that their streams
stay in the first cache whatever the step between lines is. Lines behind the next eight are fetched meanwhile.

An element's sum goes through positions in their order, and depends on its line and its row alone.
"""

from __future__ import annotations

from typing import NamedTuple

from llvmlite import ir

from einc_runtime.dtypes import ITEMSIZE
from einc_runtime.kernels.llvm import compiler
from einc_runtime.kernels.llvm.arguments import PanelArguments
from einc_runtime.kernels.llvm.compiler import LANES
from einc_runtime.kernels.llvm.emitter import F32, I32, I64, Emitter, Value, vector

LINES_AT_ONCE = 8
"""Lines that are multiplied together."""
POSITIONS = 16
"""Positions of a step: as many as a line of the cache has elements of f32."""


class PanelForm(NamedTuple):
    """What the code is made for: the types of the matrix and of the result, and how many rows there are."""

    matrix: str
    result: str
    rows: int

    @property
    def vectors(self) -> int:
        """The vectors of a panel at each position."""
        return -(-self.rows // LANES)


@compiler.compile_once
def emit_panel_product(form: PanelForm) -> ir.Module:
    """With the arguments `PanelArguments`. The elements of a line are dense, and so are those of a row of the result,
    which has one for every line."""
    return _PanelEmitter(form).emit()


class _PanelEmitter:
    def __init__(self, form: PanelForm) -> None:
        self.form, self.width = form, form.vectors * LANES
        self.e = Emitter()
        self.b = self.e.b
        self.a = PanelArguments[Value](*(self.e.argument() for _ in PanelArguments._fields))
        with self.b.goto_entry_block():
            tile = self.b.alloca(vector(F32), form.vectors * LANES)
        self.tile = self.b.ptrtoint(tile, I64)

    def emit(self) -> ir.Module:
        e, b = self.e, self.b
        scale = e.broadcast(b.bitcast(b.trunc(self.a.scale, I32), F32))
        with e.loop(self.a.matrices) as number:
            matrix, panel, result = e.read_entry(self.a.table, number, 3)
            with e.loop(self.a.lines, LANES) as first:
                left = b.sub(self.a.lines, first)
                block_lines = e.least(left, I64(LANES))
                with e.loop(block_lines, LINES_AT_ONCE) as tile_line:
                    self._multiply(matrix, panel, b.add(first, tile_line), tile_line)
                self._store(result, first, left, scale)
        return e.finish()

    def _multiply(self, matrix: Value, panel: Value, first: Value, tile_line: Value) -> None:
        """Multiplies some lines by the panel, and puts their sums into the tile.

        Lines behind the last one are read as the last one; their sums are not stored.
        """
        e, b, vectors = self.e, self.b, range(self.form.vectors)
        last = b.sub(self.a.lines, I64(1))
        numbers = [e.least(b.add(first, I64(n)), last) for n in range(LINES_AT_ONCE)]
        lines = [b.add(matrix, b.mul(number, self.a.line_step)) for number in numbers]
        sums = [[e.variable(e.number(0.0)) for _ in vectors] for _ in lines]
        ahead = b.mul(self.a.line_step, I64(2 * LINES_AT_ONCE))
        size = I64(ITEMSIZE[self.form.matrix])

        def multiply(position: Value) -> None:
            start = b.mul(position, I64(self.width))
            rows = [e.load(panel, b.add(start, I64(v * LANES)), "f32", None) for v in vectors]
            for line, line_sums in zip(lines, sums, strict=True):
                element = e.load_one(b.add(line, b.mul(position, size)), self.form.matrix)
                for row, total in zip(rows, line_sums, strict=True):
                    b.store(e.fuse_multiply_add(element, row, b.load(total)), total)

        full = b.and_(self.a.depth, I64(-POSITIONS))
        with e.loop(full, POSITIONS) as position:
            for line in lines:
                e.prefetch(b.add(line, ahead), b.mul(position, size))
            for n in range(POSITIONS):
                multiply(b.add(position, I64(n)))
        with e.span(full, self.a.depth) as position:
            multiply(position)
        for n, line_sums in enumerate(sums):
            for v, total in enumerate(line_sums):
                e.store(b.load(total), self._tile(v), b.mul(b.add(tile_line, I64(n)), I64(LANES)), "f32", None)

    def _store(self, result: Value, first: Value, left: Value, scale: Value) -> None:
        """Stores the elements of every row for up to sixteen lines."""
        e, b, form = self.e, self.b, self.form
        mask = e.lanes_below(left)
        for v in range(form.vectors):
            lines = [e.load(self._tile(v), I64(n * LANES), "f32", None) for n in range(LANES)]
            for row, value in enumerate(e.transpose_square(lines)[: form.rows - v * LANES], start=v * LANES):
                address = b.add(result, b.mul(self.a.row_step, I64(row)))
                e.store(b.fmul(value, scale), address, first, form.result, mask)

    def _tile(self, v: int) -> Value:
        return self.b.add(self.tile, I64(v * LANES * LANES * ITEMSIZE["f32"]))
