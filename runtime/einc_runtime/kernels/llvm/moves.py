"""Many copies of bytes as one call of machine code, `reshape` and `append`.

With many sites a buffer is assembled from hundreds of small pieces. numpy needs a call for each of them, and each call
releases the interpreter's lock and waits for it again, which takes longer than copying the piece. A step of decoding
has thousands of appends of one short row. numpy computes what this code cannot, as in `map.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from einc_runtime.dtypes import Array
from einc_runtime.kernels.base import Invocation, Kernel, Run, address, view_as_integers
from einc_runtime.kernels.calls.moves import AppendCall
from einc_runtime.kernels.copies_2d import count_2d_copies, list_2d_copies
from einc_runtime.kernels.llvm import compiler
from einc_runtime.kernels.numpy import moves as in_numpy
from einc_runtime.kernels.numpy.moves import make_append
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
    source, target = invocation.input, invocation.output
    seen = in_numpy.try_reshape(source, target.shape)
    if seen is not None:
        return build_moves([seen], [target], invocation.repetitions)
    written = in_numpy.try_reshape(target, source.shape)
    if written is None:
        return in_numpy.build_reshape(invocation)
    return build_moves([source], [written], invocation.repetitions)


def build_moves(sources: Sequence[Array], targets: Sequence[Array], repetitions: int) -> Kernel:
    """Copies arrays pairwise, as one of so many of its kind in an execution."""
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


def build_append(invocation: Invocation[Array]) -> Kernel:
    call = AppendCall.parse(invocation)
    new, target, positions = call.new, call.target, call.positions
    dense = all(view.strides[-1] == view.itemsize for view in (new, target))
    suits = dense and new.dtype == target.dtype
    if not suits or not compiler.is_worthwhile(new.size, invocation.repetitions):
        return make_append(call)
    extents, origins = (np.ascontiguousarray(numbers, np.int64) for numbers in (call.extents, call.origins))
    heads, rows, width = new.shape
    arguments = [rows, heads, target.shape[1], width * new.itemsize, address(positions), *positions.strides]
    arguments += [address(extents), address(origins)]
    for view in (new, target):
        arguments += [address(view), *view.strides[:2]]
    code = _emit_append(positions.itemsize)
    write = compiler.CompiledCall(
        code, arguments, positions, extents, origins, new, target, fail=call.require_positions
    )
    if call.in_place:
        return Kernel(lambda _: write, nanoseconds=0.5 * new.size)
    copied = (np.copyto, [view_as_integers(target), view_as_integers(call.cache)])
    run = make_runner([(call.require_positions, []), copied, (write, [])])
    return Kernel(lambda _: run, nanoseconds=0.5 * (call.cache.size + new.size))


@compiler.compile_once
def _emit_append(size: int) -> Any:
    """`size` is the number of bytes of a position. Nothing is written if one is outside of its sequence."""
    from einc_runtime.kernels.llvm.emitter import I64, Emitter

    e = Emitter()
    b = e.b
    rows, heads, extent, width = (e.argument() for _ in range(4))
    positions, extents, origins = e.operand(1), e.argument(), e.argument()
    new, target = e.operand(2), e.operand(2)
    with e.loop(rows) as row:
        position = e.read_integer(positions, row, size)
        outside = b.icmp_unsigned(">=", position, e.read(extents, row, I64))  # a negative one is a large one
        e.stop_if(outside, I64(1))
    with e.loop(rows) as row:
        goal = b.add(e.read_integer(positions, row, size), e.read(origins, row, I64))
        with b.if_then(b.icmp_unsigned("<", goal, extent)):
            source = b.add(new.address, b.mul(row, new.strides[1]))
            written = b.add(target.address, b.mul(goal, target.strides[1]))
            with e.loop(heads) as head:
                steps = [b.mul(head, x.strides[0]) for x in (target, new)]
                e.copy(b.add(written, steps[0]), b.add(source, steps[1]), width)
    return e.finish()
