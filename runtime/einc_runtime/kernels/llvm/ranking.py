"""The kernel `topk` as machine code, where few of short rows are chosen, as experts of tokens are.

A value and its index become one integer, whose ascending order is the ranking (`calls/ranking.py`). The least one that
is larger than the last one is looked for, once for each rank.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from einc_runtime.dtypes import Array
from einc_runtime.kernels.base import Invocation, Kernel, address
from einc_runtime.kernels.calls.ranking import parse_topk
from einc_runtime.kernels.llvm import compiler
from einc_runtime.kernels.numpy import ranking as in_numpy

MAX_CHOSEN, MAX_RANKED_ROW = 16, 256
"""The most values that are chosen, and the longest rows: looking through these so often takes as long as sorting."""
_INDEX_BITS = (1 << 32) - 1
_NOT_A_NUMBER = 0x7F800001
"""It comes before the infinity, whose bits are one less."""


def build_topk(invocation: Invocation[Array]) -> Kernel:
    call = parse_topk(invocation)
    source, values, indices = call.source, call.values, call.indices
    extent, count = source.shape[-1], values.shape[-1]
    suits = source.dtype == np.float32 and count <= min(MAX_CHOSEN, extent) and extent <= MAX_RANKED_ROW
    work = compiler.NUMPY_CALLS_SAVED * source.size
    if not suits or not compiler.is_worthwhile(work, invocation.repetitions):
        return in_numpy.build_topk(invocation)
    arguments = [extent, count, call.first, *source.shape[:-1]]
    for array in (source, values, indices):
        arguments += [address(array), *array.strides]
    run = compiler.CompiledCall(_emit_topk(source.ndim - 1), arguments, source, values, indices)
    return Kernel(lambda _: run, nanoseconds=1.5 * source.size * count)


@compiler.compile_once
def _emit_topk(leading: int) -> Any:
    """For rows along so many leading axes. Arguments: how long they are, how many values are chosen, the index of the
    first, the extents of the leading axes; the address and the strides of the source, the values and the indices."""
    from einc_runtime.kernels.llvm.emitter import F32, I32, I64, Emitter, RowOperand, Value

    e = Emitter()
    b = e.b
    extent, count, first = (e.argument() for _ in range(3))
    extents = [e.argument() for _ in range(leading)]
    operands = [e.operand(leading + 1) for _ in range(3)]
    steps = [operand.strides[-1] for operand in operands]

    def order(row: Value, index: Value) -> Value:
        """The bits of a value in an order of integers, and its index."""
        value = b.load(e.at(b.add(row, b.mul(index, steps[0])), F32))
        bits = b.bitcast(b.fadd(value, F32(0.0)), I32)  # which turns -0 into 0
        positive = b.icmp_signed(">=", bits, I32(0))
        ordered = b.select(positive, bits, b.xor(bits, I32(0x7FFFFFFF)))
        is_number = b.fcmp_ordered("ord", value, value)
        descending = b.not_(b.select(is_number, ordered, I32(_NOT_A_NUMBER)))
        return b.or_(b.shl(b.sext(descending, I64), I64(32)), index)

    rows = [RowOperand(operand.address, operand.strides[:-1]) for operand in operands]
    with e.rows(extents, rows) as (source, values, indices):
        last = e.variable(I64(-(1 << 63)))
        with e.loop(count) as rank:
            least = e.variable(I64((1 << 63) - 1))
            with e.loop(extent) as index:
                ranked = order(source, index)
                follows = b.icmp_signed(">", ranked, b.load(last))
                b.store(b.select(follows, e.least(ranked, b.load(least)), b.load(least)), least)
            chosen = b.and_(b.load(least), I64(_INDEX_BITS))
            value = b.load(e.at(b.add(source, b.mul(chosen, steps[0])), F32))
            b.store(value, e.at(b.add(values, b.mul(rank, steps[1])), F32))
            b.store(b.add(chosen, first), e.at(b.add(indices, b.mul(rank, steps[2])), I64))
            b.store(b.load(least), last)
    return e.finish()
