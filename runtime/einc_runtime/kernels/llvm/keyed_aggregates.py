"""Running aggregates and scatters as machine code: one pass along an axis, with a lane per element of the last one.

Where the axis is the last one itself, a lane does the work of a row: running aggregates of sixteen rows are computed
together, whose elements are turned on their way to lanes and back.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from einc_runtime.dtypes import Array
from einc_runtime.kernels.base import Kernel, Run, ScratchAllocator, address, dtype_name
from einc_runtime.kernels.calls.keyed_aggregates import RunningCall, ScatterCall
from einc_runtime.kernels.llvm import compiler
from einc_runtime.kernels.llvm.map import MAP_DTYPES
from einc_runtime.kernels.llvm.reduce import Accumulator
from einc_runtime.kernels.numpy.map import choose_accumulator
from einc_runtime.kernels.views import merge_axes

MIN_ROWS_TOGETHER = 4
"""Fewer rows are taken one after the other: squares of sixteen rows are turned twice, however few of them are used."""


def compile_running(call: RunningCall, repetitions: int) -> Kernel | None:
    """The compiled kernel, or None where there is no machine code, or where it is not worthwhile."""
    forms = _find_forms(call.source, call.target, call.axis)
    if forms is None or not compiler.is_worthwhile(call.source.size, repetitions):
        return None
    kinds, is_row, (source, target) = forms
    heads = source.shape[1:-1]
    if is_row and _suits_rows(call, source, target):
        arguments = [*heads, call.steps]
        for view in (source, target):
            arguments += [address(view), *view.strides[1:-1]]
        run = compiler.CompiledCall(
            _emit_running_rows(kinds, call.aggregation, len(heads)), arguments, call.source, call.target
        )
        return Kernel(lambda _: run, nanoseconds=0.3 * call.source.size)
    arguments = [*heads, call.empty, call.lead, call.steps]
    arguments += [call.target.shape[call.axis] - call.empty - call.steps, source.shape[-1]]
    for view in (source, target):
        arguments += [address(view), view.strides[0], *view.strides[1:-1]]
    code = _emit_running(kinds, call.aggregation, len(heads), is_row=is_row)
    run = compiler.CompiledCall(code, arguments, call.source, call.target)
    return Kernel(lambda _: run, nanoseconds=(1.5 if is_row else 0.4) * max(call.source.size, call.target.size))


def _suits_rows(call: RunningCall, source: Array, target: Array) -> bool:
    """Whether each element has one value more than the one before, rows are dense, and there are some."""
    is_plain = call.empty == call.lead == 0 and call.steps == len(source) == len(target)
    is_dense = all(view.strides[0] == view.itemsize for view in (source, target))
    return is_plain and is_dense and source.ndim > 2 and source.shape[-2] >= MIN_ROWS_TOGETHER


def compile_scatter(call: ScatterCall, repetitions: int) -> Kernel | None:
    """The compiled kernel, or None where there is no machine code, or where it is not worthwhile."""
    forms = _find_forms(call.source, call.target, call.axis)
    if forms is None or not compiler.is_worthwhile(call.source.size, repetitions):
        return None
    kinds, is_row, (source, target) = forms
    heads, wide = source.shape[1:-1], choose_accumulator(kinds[1], call.aggregation)
    scratch = ScratchAllocator()
    slot = scratch.take((target.shape[0], -(-source.shape[-1] // compiler.LANES) * compiler.LANES), wide)
    arguments = [
        *heads,
        len(source),
        len(target),
        source.shape[-1],
        call.first,
        address(call.keys),
        call.keys.strides[0],
    ]
    for view in (source, target):
        arguments += [address(view), view.strides[0], *view.strides[1:-1]]
    code = _emit_scatter(kinds, call.aggregation, len(heads), call.keys.itemsize, is_row=is_row)

    def bind(memory: Array) -> Run:
        sums = slot.of(memory)
        all_arguments = [*arguments, address(sums), sums.strides[0]]
        return compiler.CompiledCall(code, all_arguments, call.source, call.keys, call.target, memory)

    return Kernel(bind, scratch.size, (3.0 if is_row else 0.5) * source.size + 0.5 * target.size)


Forms = tuple[tuple[str, str], bool, list[Array]]


def _find_forms(source: Array, target: Array, axis: int) -> Forms | None:
    """The element types; whether the last axis is the one along which values are combined; and views whose first axis
    is that one and whose last one is dense, or has one element. None where there is no machine code."""
    kinds = dtype_name(source), dtype_name(target)
    if not set(kinds) <= MAP_DTYPES or "bool" in kinds:
        return None
    moved = [np.moveaxis(view, axis, 0) for view in (source, target)]
    lines = [view[0, ...] for view in moved]  # also of vectors views, not copies of an element
    if not all(view.size for view in moved):
        return None
    merged = merge_axes(lines, [False] * lines[0].ndim)[0] if lines[0].ndim else [line[None] for line in lines]
    is_row = not all(line.strides[-1] == line.itemsize for line in merged)
    if is_row:
        merged = [line[..., None] for line in merged]
    views = [
        np.lib.stride_tricks.as_strided(line, (view.shape[0], *line.shape), (view.strides[0], *line.strides))
        for line, view in zip(merged, moved, strict=True)
    ]
    return kinds, is_row, views


@compiler.compile_once
def _emit_running(kinds: tuple[str, str], aggregation: str, leading: int, *, is_row: bool) -> Any:
    """Arguments: extents of the leading axes; how many elements have no value, how many values come before the first
    element, how many elements have one more, how many have all; the extent of the last axis; and for both arrays the
    address, the stride along the axis, and those of the leading ones."""
    from einc_runtime.kernels.llvm.emitter import Emitter, RowOperand, Value

    e = Emitter()
    b = e.b
    fold = Accumulator.of(e, kinds[1], aggregation)
    heads = [e.argument() for _ in range(leading)]
    empty, lead, steps, tail, count = (e.argument() for _ in range(5))
    arrays = []
    for _ in kinds:
        start, stride = e.argument(), e.argument()
        arrays.append((RowOperand(start, [e.argument() for _ in range(leading)]), stride))
    (source, inward), (target, outward) = arrays
    total = e.variable(fold.identity)

    with e.rows(heads, [source, target]) as (values, results):

        def write(row: Value, position: Value, mask: Value | None) -> None:
            value = fold.narrow(b.load(total))
            if is_row:
                e.store_one(value, row, kinds[1])
            else:
                e.store(value, row, position, kinds[1], mask)

        def add(row: Value, position: Value, mask: Value | None) -> None:
            value = e.load_one(row, kinds[0]) if is_row else e.load(row, position, kinds[0], mask)
            b.store(fold.combine(b.load(total), fold.widen(value)), total)

        def run(position: Value, mask: Value | None) -> None:
            b.store(fold.identity, total)
            with e.loop(empty) as j:
                write(b.add(results, b.mul(j, outward)), position, mask)
            with e.loop(lead) as k:
                add(b.add(values, b.mul(k, inward)), position, mask)
            first, after = b.add(results, b.mul(empty, outward)), b.add(values, b.mul(lead, inward))
            with e.loop(steps) as j:
                add(b.add(after, b.mul(j, inward)), position, mask)
                write(b.add(first, b.mul(j, outward)), position, mask)
            row_start = b.add(first, b.mul(steps, outward))
            with e.loop(tail) as j:
                write(b.add(row_start, b.mul(j, outward)), position, mask)

        if is_row:
            run(None, None)
        else:
            e.sweep(count, run)
    return e.finish()


@compiler.compile_once
def _emit_running_rows(kinds: tuple[str, str], aggregation: str, leading: int) -> Any:
    """The same for dense rows, of which every element has one value more than the one before. Arguments: extents of
    the leading axes, of which the last one is that of rows that are computed together; how many elements a row has; and
    for both arrays the address and the strides of the leading axes."""
    from einc_runtime.kernels.llvm.emitter import I64, Emitter, Value

    e = Emitter()
    b = e.b
    fold = Accumulator.of(e, kinds[1], aggregation)
    *heads, rows, count = (e.argument() for _ in range(leading + 1))
    source, target = (e.operand(leading) for _ in kinds)
    total = e.variable(fold.identity)
    last = b.sub(rows, I64(1))

    with e.rows(heads, [source, target]) as starts, e.loop(rows, compiler.LANES) as first:
        numbers = [e.least(b.add(first, I64(n)), last) for n in range(compiler.LANES)]  # the last row several times
        inward, outward = (
            [b.add(start, b.mul(number, operand.strides[-1])) for number in numbers]
            for start, operand in zip(starts, (source, target), strict=True)
        )
        b.store(fold.identity, total)

        def run(position: Value, mask: Value | None) -> None:
            values = e.transpose_square([e.load(row, position, kinds[0], mask) for row in inward])
            results = []
            for value in values:
                b.store(fold.combine(b.load(total), fold.widen(value)), total)
                results.append(fold.narrow(b.load(total)))
            for row, result in zip(outward, e.transpose_square(results), strict=True):
                e.store(result, row, position, kinds[1], mask)

        e.sweep(count, run)
    return e.finish()


@compiler.compile_once
def _emit_scatter(kinds: tuple[str, str], aggregation: str, leading: int, size: int, *, is_row: bool) -> Any:
    """Arguments: extents of the leading axes; how many values and rows there are; the extent of the last axis; the key
    of the first row; the address of the keys and their stride; for both arrays the address, the stride along the axis,
    and those of the leading ones; and the address and the stride of the accumulators."""
    from einc_runtime.kernels.llvm.emitter import Emitter, RowOperand, Value

    e = Emitter()
    b = e.b
    fold = Accumulator.of(e, kinds[1], aggregation)
    heads = [e.argument() for _ in range(leading)]
    terms, rows, count, first = (e.argument() for _ in range(4))
    keys = RowOperand(e.argument(), [e.argument()])
    arrays = []
    for _ in kinds:
        start, stride = e.argument(), e.argument()
        arrays.append((RowOperand(start, [e.argument() for _ in range(leading)]), stride))
    (source, inward), (target, outward) = arrays
    sums, width = e.argument(), e.argument()
    wide = fold.identity.type

    def place(row: Value, position: Value | None) -> Value:
        start = b.inttoptr(b.add(sums, b.mul(row, width)), wide.element.as_pointer())
        return b.bitcast(start if position is None else b.gep(start, [position]), wide.as_pointer())

    def sweep(body: Any) -> None:
        if is_row:
            body(None, None)
        else:
            e.sweep(count, body)

    with e.rows(heads, [source, target]) as (values, results):
        with e.loop(rows) as row:
            sweep(lambda position, mask: b.store(fold.identity, place(row, position), align=8))
        with e.loop(terms) as term:
            row = b.sub(e.read_integer(keys, term, size), first)
            with b.if_then(b.icmp_unsigned("<", row, rows)):
                line = b.add(values, b.mul(term, inward))

                def add(position: Value, mask: Value | None) -> None:
                    value = e.load_one(line, kinds[0]) if is_row else e.load(line, position, kinds[0], mask)
                    where = place(row, position)
                    b.store(fold.combine(b.load(where, align=4), fold.widen(value)), where, align=4)

                sweep(add)
        with e.loop(rows) as row:
            line = b.add(results, b.mul(row, outward))

            def write(position: Value, mask: Value | None) -> None:
                value = fold.narrow(b.load(place(row, position), align=4))
                if is_row:
                    e.store_one(value, line, kinds[1])
                else:
                    e.store(value, line, position, kinds[1], mask)

            sweep(write)
    return e.finish()
