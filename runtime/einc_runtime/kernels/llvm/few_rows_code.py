"""Emits the machine code of matrix products with few rows: a matrix, read once, times up to `MAX_PRODUCT_ROWS` vectors.

Such a product takes as long as reading the matrix takes. So the matrix is read where it lies, line after line, in one
stream: several streams at a time are slower. The code asks for the lines that follow early: a processor comes to them
too late by itself. More than `MAX_TILE_VECTORS`
vectors would not stay in the first cache: their parts take turns with sixteen lines, which stay in the second one. Nor
would long ones: sixteen lines are multiplied by a stretch of all vectors after the other.

Sixteen lanes sum every element; lanes of sixteen lines are added up together, after a transposition, so that no sum
crosses lanes. An element's sum depends on its line, its vector and the number of vectors alone: not on where it is, nor
on how lines are split.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from llvmlite import ir

from einc_runtime.dtypes import ITEMSIZE
from einc_runtime.kernels.llvm import compiler
from einc_runtime.kernels.llvm.arguments import FewRowsArguments, read_arguments
from einc_runtime.kernels.llvm.compiler import LANES
from einc_runtime.kernels.llvm.emitter import F32, I32, I64, Emitter, Value, vector

MAX_TILE_VECTORS = 8
"""The most vectors that are multiplied at a time."""
PREFETCH_DISTANCE = 12288
"""Bytes between what is multiplied and what is fetched from memory meanwhile."""
WHOLE_ROWS = 2
"""Up to so many vectors are not divided, however long they are: the second cache has them in time."""
WHOLE_BYTES, STRETCH_BYTES = 28672, 8192
"""Vectors of up to so many bytes stay in the first cache beside the lines; the bytes of a stretch of longer ones."""


class _BFloat(ir.Type):  # type: ignore[misc]
    """The type of bf16 in LLVM, which llvmlite does not name."""

    def __str__(self) -> str:
        return "bfloat"


PAIRS = ir.VectorType(_BFloat(), 2 * LANES)
"""A vector of bf16, of which an instruction multiplies pairs."""


class FewRowsForm(NamedTuple):
    """What the code is made for: the types of the matrix, of the vectors and of the result; how many vectors there are,
    how many lines of the matrix are read together; whether one instruction multiplies pairs of bf16; and how many
    elements of the vectors a stretch has, a multiple of 32, or 0 for all of them."""

    matrix: str
    vectors: str
    result: str
    rows: int
    lines: int
    pairs: bool
    stretch: int = 0


def choose_stretch(rows: int, depth: int, itemsize: int) -> int:
    """The elements of a stretch, for vectors of `depth` elements."""
    if rows <= WHOLE_ROWS or rows * depth * itemsize <= WHOLE_BYTES:
        return 0
    return max(4 * LANES, STRETCH_BYTES // (rows * itemsize) // (4 * LANES) * (4 * LANES))


class _Stretch(NamedTuple):
    """A stretch of all lines and vectors: where it begins and ends, and the bytes from what is multiplied to what is
    fetched meanwhile."""

    start: Value
    stop: Value
    ahead: Value


@compiler.compile_once
def emit_few_rows(form: FewRowsForm) -> ir.Module:
    """With the arguments `FewRowsArguments`. A row of the result belongs to a vector, and has an element for every line
    of the matrix; both are dense."""
    return _FewRowsEmitter(form).emit()


class _FewRowsEmitter:
    def __init__(self, form: FewRowsForm) -> None:
        self.form = form
        self.e = Emitter()
        self.b = self.e.b
        self.a = read_arguments(self.e, FewRowsArguments[Value])
        lines_ahead = self.b.sdiv(I64(PREFETCH_DISTANCE), self.b.mul(self.a.depth, I64(ITEMSIZE[form.matrix])))
        self.lines_ahead = self.b.mul(self.a.line_step, self.b.add(lines_ahead, I64(form.lines)))
        parts = -(-form.rows // MAX_TILE_VECTORS)
        self.count = -(-form.rows // parts)
        self.unroll = max(1, compiler.SUM_CHAINS // (self.count * form.lines))
        with self.b.goto_entry_block():
            tile = self.b.alloca(vector(F32), form.rows * LANES)
        self.tile = self.b.ptrtoint(tile, I64)

    def emit(self) -> ir.Module:
        e, b = self.e, self.b
        scale = e.broadcast(b.bitcast(b.trunc(self.a.scale, I32), F32))
        with e.loop(self.a.matrices) as number:
            matrix, vectors, result = e.read_entry(self.a.table, number, 3)
            with e.loop(self.a.lines, LANES) as first:
                left = b.sub(self.a.lines, first)
                block_lines = e.least(left, I64(LANES))
                if self.form.stretch:
                    self._sum_stretches(matrix, vectors, first, block_lines)
                else:
                    stretch = _Stretch(I64(0), self.a.depth, self.lines_ahead)
                    self._sum_parts(matrix, vectors, first, block_lines, stretch)
                self._store(result, first, left, scale)
        return e.finish()

    def _sum_stretches(self, matrix: Value, vectors: Value, first: Value, block_lines: Value) -> None:
        """Multiplies up to sixteen lines by one stretch of all vectors after the other; sums stay in the tile. The
        sixteen lines that follow are fetched meanwhile."""
        e, b, length = self.e, self.b, I64(self.form.stretch)
        with e.loop(I64(self.form.rows * LANES)) as number:
            e.store(e.number(0.0), self.tile, b.mul(number, I64(LANES)), "f32", None)
        with e.loop(self.a.depth, self.form.stretch) as start:
            following = b.add(start, length)
            is_last = b.icmp_signed(">=", following, self.a.depth)
            stop = b.select(is_last, self.a.depth, following)
            ahead = b.mul(self.a.line_step, I64(LANES))
            self._sum_parts(matrix, vectors, first, block_lines, _Stretch(start, stop, ahead))

    def _sum_parts(self, matrix: Value, vectors: Value, first: Value, block_lines: Value, stretch: _Stretch) -> None:
        for start in range(0, self.form.rows, self.count):
            with self.e.loop(block_lines, self.form.lines) as line:
                part = range(start, min(start + self.count, self.form.rows))
                self._sum_lines(matrix, vectors, part, self.b.add(first, line), line, stretch)

    def _sum_lines(
        self, matrix: Value, vectors: Value, part: range, line: Value, tile_line: Value, stretch: _Stretch
    ) -> None:
        """Multiplies a stretch of some lines by a part of the vectors, and puts each product's lanes into the tile,
        added to those of the stretches before.

        Lines behind the last one are read as the last one; their sums are not stored.
        """
        e, b, form = self.e, self.b, self.form
        last = b.sub(self.a.lines, I64(1))
        numbers = [b.add(line, I64(n)) for n in range(form.lines)]
        numbers = [e.least(number, last) for number in numbers]
        lines = [b.add(matrix, b.mul(number, self.a.line_step)) for number in numbers]
        rows = [b.add(vectors, b.mul(self.a.vector_step, I64(n))) for n in part]
        ahead = stretch.ahead if part.start == 0 else None
        sums = [[[e.variable(e.number(0.0)) for _ in rows] for _ in lines] for _ in range(self.unroll)]
        places = [[b.mul(b.add(tile_line, I64(r)), I64(LANES)) for _ in part] for r in range(form.lines)]
        if form.stretch:
            for r in range(form.lines):
                for v, number in enumerate(part):
                    b.store(e.load(self._tile(I64(number)), places[r][v], "f32", None), sums[0][r][v])
        width = LANES * (2 if form.pairs else 1)
        full_stop = b.add(stretch.start, b.and_(b.sub(stretch.stop, stretch.start), I64(-width * self.unroll)))
        with e.span(stretch.start, full_stop, width * self.unroll) as position:
            for n in range(self.unroll):
                offset = b.add(position, I64(n * width))
                if ahead is not None:
                    for address in lines:
                        e.prefetch(b.add(address, ahead), b.mul(offset, I64(ITEMSIZE[form.matrix])))
                self._multiply(lines, rows, sums[n], offset, None)
        self._multiply_rest(lines, rows, sums, full_stop, stretch.stop)
        for r in range(form.lines):
            for v, number in enumerate(part):
                total = b.load(sums[0][r][v])
                for n in range(1, self.unroll):
                    total = b.fadd(total, b.load(sums[n][r][v]))
                e.store(total, self._tile(I64(number)), places[r][v], "f32", None)

    def _multiply_rest(self, lines: list[Value], rows: list[Value], sums: Any, full_stop: Value, stop: Value) -> None:
        """The elements behind the whole vectors, under a mask."""
        e, b = self.e, self.b
        with e.span(full_stop, stop, LANES) as position:
            mask = e.lanes_below(b.sub(stop, position))
            self._multiply(lines, rows, sums[0], position, mask)

    def _multiply(
        self, lines: list[Value], rows: list[Value], sums: list[list[Value]], position: Value, mask: Value | None
    ) -> None:
        e, b, form = self.e, self.b, self.form
        if form.pairs and mask is None:
            left, right = ([self._load_pairs(address, position) for address in group] for group in (lines, rows))
        else:
            left = [e.load(line, position, form.matrix, mask) for line in lines]
            right = [e.load(row, position, form.vectors, mask) for row in rows]
        for line_part, places in zip(left, sums, strict=True):
            for row_part, total_variable in zip(right, places, strict=True):
                name = "llvm.x86.avx512bf16.dpbf16ps.512"
                if form.pairs and mask is None:
                    total = e.intrinsic(name, vector(F32), b.load(total_variable), line_part, row_part)
                else:
                    total = e.multiply_add(line_part, row_part, b.load(total_variable))
                b.store(total, total_variable)

    def _load_pairs(self, row: Value, position: Value) -> Value:
        address = self.b.add(row, self.b.mul(position, I64(2)))
        return self.b.load(self.e.at(address, PAIRS), align=2)

    def _store(self, result: Value, first: Value, left: Value, scale: Value) -> None:
        """Adds up the lanes of the tile, and stores up to sixteen elements of every row."""
        e, b, form = self.e, self.b, self.form
        mask = e.lanes_below(left)
        with e.loop(I64(form.rows)) as v:
            lines = [e.load(self._tile(v), I64(n * LANES), "f32", None) for n in range(LANES)]
            total = b.fmul(e.sum_lanes(lines), scale)
            row = b.add(result, b.mul(self.a.row_step, v))
            e.store(total, row, first, form.result, mask)

    def _tile(self, v: Value) -> Value:
        return self.b.add(self.tile, self.b.mul(v, I64(LANES * LANES * ITEMSIZE["f32"])))
