"""Many copies of bytes as one call of machine code.

With many sites a buffer is assembled from hundreds of small pieces. numpy needs a call for each of them, and each call
releases the interpreter's lock and waits for it again, which takes longer than copying the piece.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from einc_runtime.dtypes import Array
from einc_runtime.kernels.base import Invocation, Kernel, Run, address, view_as_integers
from einc_runtime.kernels.calls.moves import parse_reshape, require_equal_forms
from einc_runtime.kernels.copies_2d import count_2d_copies, list_2d_copies
from einc_runtime.kernels.llvm import compiler
from einc_runtime.kernels.numpy import moves as in_numpy
from einc_runtime.kernels.numpy.pieces import make_runner

MIN_MOVES = 4
"""With fewer copies in an execution, numpy's calls are as fast."""

MIN_ROW_BYTES = 64
"""For many rows of fewer bytes numpy is faster: it copies elements, where this code copies row by row."""
MAX_CHEAP_ROWS = 64
"""Up to so many rows of any width take no longer than a call of numpy does."""

_MOVE_FIELDS = 6  # source, target, rows, bytes of a row, and the two distances between rows


def build_reshape(invocation: Invocation[Array]) -> Kernel:
    """The same elements in the same row-major order, in another shape; numpy's where this needs two copies."""
    source, target = parse_reshape(invocation)
    seen = in_numpy.try_reshape(source, target.shape)
    if seen is not None:
        return build_moves([seen], [target], invocation.repetitions)
    written = in_numpy.try_reshape(target, source.shape)
    if written is None:
        return in_numpy.build_reshape(invocation)
    return build_moves([source], [written], invocation.repetitions)


def build_moves(sources: Sequence[Array], targets: Sequence[Array], repetitions: int) -> Kernel:
    """Copies arrays pairwise, as one of so many of its kind in an execution."""
    require_equal_forms(sources, targets)
    run = compile_moves(sources, targets, repetitions)
    if run is None:
        run = make_runner(
            [(np.copyto, [view_as_integers(to), view_as_integers(of)]) for to, of in zip(targets, sources, strict=True)]
        )
    return Kernel(lambda _: run, nanoseconds=0.15 * sum(source.nbytes for source in sources))


def compile_moves(sources: Sequence[Array], targets: Sequence[Array], repetitions: int) -> Run | None:
    """Returns a function that copies arrays of equal shapes and types; None where numpy is as fast."""
    pairs = [(target, source) for target, source in zip(targets, sources, strict=True) if target.size]
    size = sum(target.size for target, _ in pairs)
    if len(pairs) * repetitions < MIN_MOVES or not compiler.is_worthwhile(size, repetitions):
        return None
    table: list[int] = []
    for target, source in pairs:
        layout = (target.shape, target.itemsize, target.strides, source.strides)
        if count_2d_copies(*layout) > max(MAX_CHEAP_ROWS, target.nbytes // MIN_ROW_BYTES):
            return None
        to, start = address(target), address(source)
        copies = list_2d_copies(*layout)
        count = sum(rows.height for rows in copies)
        for rows in copies:
            if rows.width < MIN_ROW_BYTES and count > MAX_CHEAP_ROWS:
                return None
            table += [to + rows.target, start + rows.source]
            table += [rows.target_pitch, rows.source_pitch, rows.width, rows.height]
    held = np.array(table, np.int64)
    return compiler.CompiledCall(_emit_moves(), [len(table), address(held)], held, *targets, *sources)


@compiler.compile_once
def _emit_moves() -> Any:
    from einc_runtime.kernels.llvm.emitter import I64, Emitter

    e = Emitter()
    count, table = e.argument(), e.argument()
    with e.loop(count, _MOVE_FIELDS) as first:
        target, source, target_pitch, source_pitch, width, height = (
            e.read(table, e.b.add(first, I64(field)), I64) for field in range(_MOVE_FIELDS)
        )
        with e.loop(height) as row:
            to = e.b.add(target, e.b.mul(row, target_pitch))
            e.copy(to, e.b.add(source, e.b.mul(row, source_pitch)), width)
    return e.finish()
