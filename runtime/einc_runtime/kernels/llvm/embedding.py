"""The kernel `embedding` as machine code. numpy computes what this code cannot, as in `map.py`."""

from __future__ import annotations

from typing import Any

from einc_runtime.dtypes import Array
from einc_runtime.kernels.base import Invocation, Kernel, address
from einc_runtime.kernels.calls.moves import EmbeddingCall
from einc_runtime.kernels.llvm import compiler
from einc_runtime.kernels.numpy import moves as in_numpy
from einc_runtime.kernels.views import merge_leading_axes


def build_embedding(invocation: Invocation[Array]) -> Kernel:
    call = EmbeddingCall.parse(invocation)
    ids, table, target = call.ids.reshape(-1), call.table, merge_leading_axes([call.target])[0]
    dense = table.strides[-1] == table.itemsize and target.strides[-1] == target.itemsize
    alone = target.ndim == 2 and address(ids) == address(call.ids)
    if not (dense and alone and target.size and compiler.is_worthwhile(target.size)):
        return in_numpy.build_embedding(invocation)
    arguments = [len(ids), address(ids), *ids.strides, call.vocabulary, call.lower, len(table), address(table)]
    arguments += [table.strides[0], address(target), target.strides[0], target.shape[-1] * target.itemsize]
    run = compiler.CompiledCall(_emit_embedding(ids.itemsize), arguments, ids, table, target, fail=call.require_ids)
    return Kernel(lambda _: run, nanoseconds=0.3 * target.size)


@compiler.compile_once
def _emit_embedding(size: int) -> Any:
    """`size` is the number of bytes of an id. Nothing is written if one is outside of the vocabulary."""
    from llvmlite import ir

    from einc_runtime.kernels.llvm.emitter import BIT, I8, I64, Emitter, RowOperand

    e = Emitter()
    b = e.b
    count, ids = e.argument(), e.operand(1)
    vocabulary, lower, rows = (e.argument() for _ in range(3))
    table, target = (RowOperand(e.argument(), [e.argument()]) for _ in range(2))
    width = e.argument()
    with e.loop(count) as number:
        found = e.read_integer(ids, number, size)
        e.stop_if(b.icmp_unsigned(">=", found, vocabulary), I64(1))  # a negative one is a large one
    with e.loop(count) as number:
        row = b.sub(e.read_integer(ids, number, size), lower)
        place = b.add(target.address, b.mul(number, target.strides[0]))
        with b.if_else(b.icmp_unsigned("<", row, rows)) as (here, elsewhere):
            with here:
                e.copy(place, b.add(table.address, b.mul(row, table.strides[0])), width)
            with elsewhere:
                start = b.inttoptr(place, I8.as_pointer())
                e.intrinsic("llvm.memset.p0.i64", ir.VoidType(), start, I8(0), width, BIT(False))
    return e.finish()
