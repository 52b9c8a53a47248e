"""Copies from one memory order to another as machine code: squares of `LANES` elements are transposed in registers."""

from __future__ import annotations

from typing import Any

from einc_runtime.dtypes import Array
from einc_runtime.kernels.llvm import compiler
from einc_runtime.kernels.llvm.compiler import LANES
from einc_runtime.kernels.views import merge_axes


def compile_transpose(source: Array, target: Array, kinds: tuple[str, str]) -> compiler.CompiledCall | None:
    """Copies an array to another of its shape, both of floats. None unless each is dense along a dimension of its own
    that fills vectors. Callers check that kernels can be compiled."""
    order = sorted(range(target.ndim), key=lambda axis: -target.strides[axis])  # as the target lies in memory
    source, target = merge_axes([source.transpose(order), target.transpose(order)], [False] * target.ndim)[0]
    dense = [axis for axis, step in enumerate(source.strides) if step == source.itemsize and source.shape[axis] > 1]
    if len(dense) != 1 or dense == [source.ndim - 1] or target.strides[-1] != target.itemsize:
        return None
    source, target = (view.swapaxes(dense[0], -2) for view in (source, target))
    if min(target.shape[-2:]) < LANES // 2:
        return None
    arguments = list(target.shape)
    for view, steps in ((source, source.strides[-1:]), (target, target.strides[-2:-1])):
        arguments += [compiler.operand_arguments(view)[0], *view.strides[:-2], *steps]
    return compiler.CompiledCall(_emit_transpose(kinds, target.ndim - 2), arguments, source, target)


@compiler.compile_once
def _emit_transpose(kinds: tuple[str, str], leading: int) -> Any:
    """Arguments: the extents, and of the source and the target the address, the strides of `leading` axes and that
    along which they are not dense: the last axis of the source, and the one before it of the target."""
    from einc_runtime.kernels.llvm.emitter import I64, Emitter, RowOperand

    e = Emitter()
    b = e.b
    *heads, height, width = [e.argument() for _ in range(leading + 2)]
    operands = [e.operand(leading + 1) for _ in kinds]
    across, along = (operand.strides[-1] for operand in operands)
    last = b.sub(width, I64(1))
    rows = [RowOperand(operand.address, operand.strides[:-1]) for operand in operands]
    with e.rows(heads, rows) as (read, written), e.loop(height, LANES) as line, e.loop(width, LANES) as column:
        lines, columns = e.lanes_below(b.sub(height, line)), e.lanes_below(b.sub(width, column))
        steps = [b.mul(across, e.least(b.add(column, I64(n)), last)) for n in range(LANES)]
        square = e.transpose_square([e.load(b.add(read, step), line, kinds[0], lines) for step in steps])
        for n, values in enumerate(square):
            number = b.add(line, I64(n))
            with b.if_then(b.icmp_signed("<", number, height)):
                e.store(values, b.add(written, b.mul(along, number)), column, kinds[1], columns)
    return e.finish()
