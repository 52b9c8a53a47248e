"""Emits the machine code of matrix products with some more rows: a matrix, as it lies, times rows packed in a panel.

A panel has the elements of all rows at a position side by side, in a few registers. An element of the matrix is read
into all lanes and multiplied by these, so that a register of sums belongs to a line of the matrix and has a lane for
each row: no sum crosses lanes, and a line needs no packing. Up to eight lines are multiplied together, as many as there
are registers for, so that their streams stay in the first cache whatever the step between lines is. Lines behind the
next ones are fetched meanwhile. Lines of 16-bit floats are widened in memory of the first cache, but where one
instruction multiplies pairs of bf16: an element is such a pair then, of a line and of a row.

An element's sum goes through positions in their order, and depends on its line and its row alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any, NamedTuple

from llvmlite import ir

from einc_runtime.dtypes import ITEMSIZE
from einc_runtime.kernels.llvm import compiler
from einc_runtime.kernels.llvm.arguments import PanelArguments, read_arguments
from einc_runtime.kernels.llvm.compiler import LANES
from einc_runtime.kernels.llvm.emitter import F32, I32, I64, Emitter, Value, vector
from einc_runtime.kernels.llvm.few_rows_code import PAIRS
from einc_runtime.kernels.processor import Registers

LINES_AT_ONCE = (8, 6, 4, 3, 2, 1)
"""Lines that may be multiplied together: parts of a block. Eight registers of sums hide the latency of additions."""
BLOCK_LINES = 3 * LANES
"""Lines whose sums are stored together."""
WIDENED = 512
"""Positions at which lines of 16-bit floats are written in f32 before they are multiplied: they stay in the first
cache."""


class PanelForm(NamedTuple):
    """What the code is made for: the types of the matrix and of the result, how many rows a panel has, the processor's
    registers, whether there may be several panels, of which the last one may have fewer rows, and whether elements are
    pairs of bf16."""

    matrix: str
    result: str
    rows: int
    registers: Registers
    several: bool = False
    pairs: bool = False

    @property
    def is_widened(self) -> bool:
        return self.matrix != "f32" and not self.pairs

    @property
    def width(self) -> int:
        """The elements of a panel at each position, in whole registers."""
        return -(-self.rows // self.registers.lanes) * self.registers.lanes

    @property
    def lines(self) -> int:
        """The lines that are multiplied together: as many as there are registers for, beside those for what is
        multiplied."""
        vectors = self.width // self.registers.lanes
        return next(
            (n for n in LINES_AT_ONCE if n * vectors + min(n, vectors) + 1 <= self.registers.number), LINES_AT_ONCE[-1]
        )


@compiler.compile_once
def emit_panel_product(form: PanelForm) -> ir.Module:
    """With the arguments `PanelArguments`. The elements of a line are dense, and so are those of a row of the result,
    which has one for every line."""
    return PanelEmitter(form).emit()


class PanelEmitter:
    """The code under construction. Others override what an argument is, and how lines are found and widened."""

    def __init__(self, form: PanelForm) -> None:
        self.form, self.lanes = form, form.registers.lanes
        self.tiles = range(-(-form.rows // LANES))
        self.kind = ir.VectorType(F32, self.lanes)
        self.e = Emitter()
        self.b = self.e.b
        self.a = self._take_arguments()
        with self.b.goto_entry_block():
            tile = self.b.alloca(vector(F32), len(self.tiles) * BLOCK_LINES)
            widened = self.b.alloca(F32, form.lines * (WIDENED + LANES)) if form.is_widened else tile
        self.tile, self.widened = self.b.ptrtoint(tile, I64), self.b.ptrtoint(widened, I64)

    def _take_arguments(self) -> PanelArguments[Value]:
        return read_arguments(self.e, PanelArguments[Value])

    def emit(self) -> ir.Module:
        e, b = self.e, self.b
        scale = e.broadcast(b.bitcast(b.trunc(self.a.scale, I32), F32))
        with e.loop(self.a.matrices) as number:
            matrix, panel, result = e.read_entry(self.a.table, number, 3)
            self.multiply_lines(matrix, panel, result, scale)
        return e.finish()

    def multiply_lines(self, matrix: Value, panel: Value, result: Value, scale: Value) -> None:
        """Multiplies all lines of a matrix by all panels, and by a scale, which is in every lane."""
        e, b = self.e, self.b
        with e.loop(self.a.lines, BLOCK_LINES) as first:
            left = b.sub(self.a.lines, first)
            block_lines = e.least(left, I64(BLOCK_LINES))
            with e.loop(self.a.rows, self.form.rows) as row:
                rows_panel = b.add(panel, b.mul(row, b.mul(self.a.depth, I64(ITEMSIZE["f32"]))))
                target = b.add(result, b.mul(self.a.row_step, row))
                rows_left = b.sub(self.a.rows, row)
                for vectors in self._list_vectors(rows_left):
                    with e.loop(block_lines, self.form.lines) as tile_line:
                        self._multiply(matrix, rows_panel, b.add(first, tile_line), tile_line, vectors)
                with e.loop(block_lines, LANES) as tile_line:
                    self._store(target, rows_left, b.add(first, tile_line), tile_line, scale)

    def _list_vectors(self, rows: Value) -> Iterator[int]:
        """How many registers of a panel are multiplied, with the code of each number in a branch of its own: one where
        the last panel has no more rows, else all."""
        vectors, b = self.form.width // self.lanes, self.b
        if not self.form.several or vectors == 1:
            yield vectors
            return
        with b.if_else(b.icmp_signed("<=", rows, I64(self.lanes))) as (few, many):
            with few:
                yield 1
            with many:
                yield vectors

    def _find_line(self, matrix: Value, number: Value) -> Any:
        return self.b.add(matrix, self.b.mul(number, self.a.line_step))

    def _multiply(self, matrix: Value, panel: Value, first: Value, tile_line: Value, vectors: int) -> None:
        """Multiplies some lines by the first registers of the panel, and puts their sums into the tile.

        Lines behind the last one are read as the last one; their sums are not stored.
        """
        e, b, form = self.e, self.b, self.form
        last = b.sub(self.a.lines, I64(1))
        numbers = [e.least(b.add(first, I64(n)), last) for n in range(form.lines)]
        lines = [self._find_line(matrix, number) for number in numbers]
        ahead = b.mul(self.a.line_step, I64(2 * form.lines))
        nothing = ir.Constant(self.kind, [0.0] * self.lanes)
        sums = [[e.variable(nothing) for _ in range(vectors)] for _ in lines]
        if not form.is_widened:
            self._accumulate(lines, panel, self.a.depth, sums, ahead)
        else:
            with e.loop(self.a.depth, WIDENED) as start:
                count = e.least(I64(WIDENED), b.sub(self.a.depth, start))
                skipped = b.mul(start, I64(form.width * ITEMSIZE["f32"]))
                widened = self._widen(lines, start, count, ahead)
                self._accumulate(widened, b.add(panel, skipped), count, sums, None)
        for n, line_sums in enumerate(sums):
            line = b.mul(b.add(tile_line, I64(n)), I64(LANES * ITEMSIZE["f32"]))
            for v, total in enumerate(line_sums):
                tile = b.add(self._tile(v * self.lanes // LANES), line)
                b.store(b.load(total), self._place(tile, v * self.lanes % LANES), align=ITEMSIZE["f32"])

    def _widen(self, lines: list[Any], start: Value, count: Value, ahead: Value) -> list[Value]:
        """Writes a part of some lines in f32, and gives the addresses of these: so elements are widened sixteen at a
        time, and once for all rows."""
        e, b, size, goals = self.e, self.b, I64(ITEMSIZE[self.form.matrix]), self.list_widened()
        sources = [b.add(line, b.mul(start, size)) for line in lines]

        def widen(position: Value, mask: Value | None) -> None:
            for source, goal in zip(sources, goals, strict=True):
                e.prefetch(b.add(source, ahead), b.mul(position, size))
                e.store(e.load(source, position, self.form.matrix, mask), goal, position, "f32", None)

        e.sweep(count, widen)
        return goals

    def list_widened(self) -> list[Value]:
        """The addresses at which the lines are widened; each has room for a vector more."""
        step = (WIDENED + LANES) * ITEMSIZE["f32"]
        return [self.b.add(self.widened, I64(n * step)) for n in range(self.form.lines)]

    def _accumulate(
        self, lines: list[Value], panel: Value, count: Value, sums: list[list[Value]], ahead: Value | None
    ) -> None:
        """Adds the products of `count` elements of f32 in each line and those of a panel."""
        e, b, size = self.e, self.b, ITEMSIZE["f32"]

        def multiply(position: Value) -> None:
            start = b.add(panel, b.mul(position, I64(self.form.width * size)))
            read_rows = (b.load(self._place(start, v * self.lanes), align=size) for v in range(len(sums[0])))
            read_elements = (self._load_element(b.add(line, b.mul(position, I64(size)))) for line in lines)
            if len(lines) < len(sums[0]):  # the fewer ones are read first, and stay in registers
                elements = list(read_elements)
                pairs = ((element, row, n, v) for v, row in enumerate(read_rows) for n, element in enumerate(elements))
            else:
                rows = list(read_rows)
                pairs = ((element, row, n, v) for n, element in enumerate(read_elements) for v, row in enumerate(rows))
            for element, row, n, v in pairs:
                b.store(self._multiply_add(element, row, b.load(sums[n][v])), sums[n][v])

        full = b.and_(count, I64(-LANES))
        with e.loop(full, LANES) as position:
            for line in lines if ahead is not None else ():
                e.prefetch(b.add(line, ahead), b.mul(position, I64(size)))
            for n in range(LANES):
                multiply(b.add(position, I64(n)))
        with e.span(full, count) as position:
            multiply(position)

    def _multiply_add(self, element: Value, row: Value, total: Value) -> Value:
        if not self.form.pairs:
            return self.e.intrinsic(f"llvm.fma.v{self.lanes}f32", self.kind, element, row, total)
        left, right = (self.b.bitcast(value, PAIRS) for value in (element, row))
        return self.e.intrinsic("llvm.x86.avx512bf16.dpbf16ps.512", self.kind, total, left, right)

    def _load_element(self, address: Value) -> Value:
        """An element in every lane of a register."""
        wide = self.e.load_one(address, "f32")
        first = ir.Constant(ir.VectorType(I32, self.lanes), list(range(self.lanes)))
        return wide if self.lanes == LANES else self.b.shuffle_vector(wide, wide, first)

    def _place(self, address: Value, lane: int) -> Value:
        """The pointer to the register from a lane of what begins at an address."""
        return self.e.at(self.b.add(address, I64(lane * ITEMSIZE["f32"])), self.kind)

    def _store(self, result: Value, rows: Value, first: Value, tile_line: Value, scale: Value) -> None:
        """Stores the elements of up to `rows` rows for up to sixteen lines, whose sums begin at a line of the tile."""
        e, b, form = self.e, self.b, self.form
        mask = e.lanes_below(e.least(b.sub(self.a.lines, first), I64(LANES)))
        for v in self.tiles:
            tile = b.add(self._tile(v), b.mul(tile_line, I64(LANES * ITEMSIZE["f32"])))
            lines = [e.load(tile, I64(n * LANES), "f32", None) for n in range(LANES)]
            for row, value in enumerate(e.transpose_square(lines)[: form.rows - v * LANES], start=v * LANES):
                address = b.add(result, b.mul(self.a.row_step, I64(row)))
                with b.if_then(b.icmp_signed("<", I64(row), rows)) if form.several else nullcontext():
                    e.store(b.fmul(value, scale), address, first, form.result, mask)

    def _tile(self, v: int) -> Value:
        return self.b.add(self.tile, I64(v * BLOCK_LINES * LANES * ITEMSIZE["f32"]))
