"""The kernel `append` as machine code: a step of decoding has thousands of appends of one short row.

numpy computes what this code cannot, as in `map.py`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from einc_runtime.dtypes import Array
from einc_runtime.kernels.base import Invocation, Kernel, address, view_as_integers
from einc_runtime.kernels.calls.moves import AppendCall
from einc_runtime.kernels.llvm import compiler
from einc_runtime.kernels.numpy.moves import make_append
from einc_runtime.kernels.numpy.pieces import make_runner


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
