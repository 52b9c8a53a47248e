"""The aggregation `logsumexp` as machine code: all copies of a row in one pass.

numpy computes what this code cannot, as in `map.py`: also f64 and weights that differ along the last dimension.
"""

from __future__ import annotations

import math
from contextlib import ExitStack
from typing import Any

import numpy as np

from einc_runtime.dtypes import Array
from einc_runtime.kernels.base import Kernel, Run, ScratchAllocator, address, dtype_name
from einc_runtime.kernels.calls.joint_aggregation import JointAggregationCall
from einc_runtime.kernels.llvm import compiler
from einc_runtime.kernels.numpy import joint_aggregation as numpy_merges
from einc_runtime.kernels.views import merge_axes


def build_logsumexp(call: JointAggregationCall) -> Kernel:
    kind, copies, rank = dtype_name(call.target[0]), len(call.copies), call.target[0].ndim
    size = copies * call.target[0].size
    suits = kind in compiler.COMPILED_FLOATS and rank > 0
    if not suits or not compiler.is_worthwhile(size, call.repetitions):
        return numpy_merges.build_logsumexp(call)
    views, _ = merge_axes([*call.member(0), *call.member(1)], [False] * rank)
    averages, logs = views[: copies + 1], views[copies + 1 :]
    *heads, width = averages[-1].shape
    if any(view.strides[-1] != view.itemsize for view in averages) or (width > 1 and logs[-1].shape[-1] > 1):
        return numpy_merges.build_logsumexp(call)
    table: list[int] = []
    for view in (x for pair in zip(averages, logs, strict=True) for x in pair):
        table += compiler.operand_arguments(view)
    held, scratch = np.array(table, np.int64), ScratchAllocator()
    rows, shares = scratch.take((copies,), held.dtype), scratch.take((copies,), np.dtype(np.float32))
    function = _emit_logsumexp(kind, len(heads))

    def bind(memory: Array) -> Run:
        buffers = [slot.of(memory) for slot in (rows, shares)]
        arguments = [width, copies, *(address(array) for array in (held, *buffers)), *heads]
        return compiler.CompiledCall(function, arguments, held, *buffers, *averages, *logs)

    return Kernel(bind, scratch.size, 0.3 * size + 20.0 * copies * math.prod(heads))


@compiler.compile_once
def _emit_logsumexp(kind: str, leading: int) -> Any:
    """The table describes both members of every copy and then of the target: an address, and the strides of all axes
    but the last."""
    from einc_runtime.kernels.llvm.emitter import F32, I32, I64, Emitter, Value
    from einc_runtime.kernels.llvm.vectors import exp

    e = Emitter()
    b = e.b
    width, copies, table, rows, shares, *heads = [e.argument() for _ in range(5 + leading)]
    with ExitStack() as loops:
        indices = [loops.enter_context(e.loop(extent)) for extent in heads]

        def row(copy: Value, member: int) -> Value:
            first = b.add(b.mul(copy, I64(2 * (1 + leading))), I64(member * (1 + leading)))
            where = e.read(table, first, I64)
            for axis, index in enumerate(indices):
                where = b.add(where, b.mul(index, e.read(table, b.add(first, I64(1 + axis)), I64)))
            return where

        maximum, weights_sum = e.variable(e.number(-math.inf)), e.variable(e.number(0.0))
        with e.loop(copies) as copy:
            b.store(e.larger(b.load(maximum), e.load_one(row(copy, 1), "f32")), maximum)
            e.put(rows, copy, row(copy, 0))
        nothing = b.fcmp_ordered("==", b.load(maximum), e.number(-math.inf))  # -inf minus itself would be NaN
        largest = b.select(nothing, e.number(0.0), b.load(maximum))
        with e.loop(copies) as copy:
            share = exp(e, b.fsub(e.load_one(row(copy, 1), "f32"), largest))
            b.store(b.fadd(b.load(weights_sum), share), weights_sum)
            e.put(shares, copy, b.extract_element(share, I32(0)))
        total = b.load(weights_sum)
        scale = b.fdiv(e.number(1.0), b.select(nothing, e.number(1.0), total))
        sums = e.variable(e.number(0.0))

        def average(position: Value, mask: Value | None) -> None:
            b.store(e.number(0.0), sums)
            with e.loop(copies) as copy:
                share = e.load_one(b.add(shares, b.mul(copy, I64(4))), "f32")
                part = e.load(e.read(rows, copy, I64), position, kind, mask)
                b.store(e.multiply_add(part, share, b.load(sums)), sums)
            e.store(b.fmul(b.load(sums), scale), row(copies, 0), position, kind, mask)

        e.sweep(width, average)
        logarithm = e.intrinsic("llvm.log.f32", F32, b.extract_element(total, I32(0)))
        e.put(row(copies, 1), I64(0), b.fadd(b.extract_element(largest, I32(0)), logarithm))
    return e.finish()
