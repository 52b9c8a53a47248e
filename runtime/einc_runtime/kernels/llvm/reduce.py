"""The kernel `reduce` as machine code where it finds the largest magnitudes of dense rows; else it is numpy's.

The largest magnitude is one of the elements, whatever the order is in which they are compared: so this is the kernel
of reproducible plans, too.
"""

from __future__ import annotations

import math
from typing import Any

from einc_runtime.dtypes import Array, find_dtype_name
from einc_runtime.kernels.base import Invocation, Kernel, address
from einc_runtime.kernels.calls.map import ReduceCall
from einc_runtime.kernels.llvm import compiler
from einc_runtime.kernels.numpy import map as in_numpy
from einc_runtime.kernels.views import merge_axes

PROGRAM = "t0 = abs x0"
CALLS = 8
"""As many calls of numpy as one of this code."""


def build_reduce(invocation: Invocation[Array]) -> Kernel:
    return find_largest(invocation) or in_numpy.build_reduce(invocation)


def find_largest(invocation: Invocation[Array]) -> Kernel | None:
    """The compiled kernel; None where something else is reduced, or where it is not worthwhile."""
    if (invocation.attributes.get("program"), invocation.attributes.get("aggregation")) != (PROGRAM, "max"):
        return None
    call = ReduceCall.parse(invocation)
    kind = find_dtype_name(call.output.dtype)
    if kind not in compiler.FLOATS or not compiler.is_worthwhile(CALLS * call.views[0].size):
        return None
    (source, target), reduced = merge_axes([*call.views, call.output], call.reduced)
    *outer, inner = reduced
    if not inner or source.strides[-1] != source.itemsize:
        return None
    kept, gone = ([axis for axis, is_gone in enumerate(outer) if is_gone is own] for own in (False, True))
    arguments = [address(source), address(target), source.shape[-1]]
    arguments += [source.shape[axis] for axis in (*kept, *gone)]
    arguments += [source.strides[axis] for axis in (*kept, *gone)] + [target.strides[axis] for axis in kept]
    run = compiler.CompiledCall(_emit_largest(kind, len(kept), len(gone)), arguments, source, target)
    return Kernel(lambda _: run, nanoseconds=0.2 * math.prod(source.shape))


@compiler.compile_once
def _emit_largest(kind: str, kept: int, gone: int) -> Any:
    """Arguments: addresses of the array and of the result, the elements in a row, extents of axes that are kept and
    that are reduced, their strides, and the strides of the result."""
    from einc_runtime.kernels.llvm.emitter import Emitter, RowOperand, Value

    e = Emitter()
    source, target, count = (e.argument() for _ in range(3))
    extents, strides = ([e.argument() for _ in range(kept + gone)] for _ in range(2))
    results = [e.argument() for _ in range(kept)]
    nothing = e.number(0.0)
    found = e.variable(nothing)
    operands = [RowOperand(source, strides[:kept]), RowOperand(target, results)]
    with e.rows(extents[:kept], operands) as (first, place):
        e.b.store(nothing, found)
        with e.rows(extents[kept:], [RowOperand(first, strides[kept:])]) as (row,):

            def read(position: Value, mask: Value | None, row: Value = row) -> Value:
                return e.magnitude(e.load(row, position, kind, mask))

            e.b.store(e.larger(e.b.load(found), e.fold(count, nothing, e.larger, read)), found)
        e.store_one(e.b.load(found), place, kind)
    return e.finish()
