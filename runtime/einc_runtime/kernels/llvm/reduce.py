"""The kernel `reduce` as machine code: one pass over the operands, whose terms are combined in a wider type.

Sums and products are in f64 and rounded once; integers are combined in i64. numpy computes what this code cannot, as in
`map.py`. The largest
magnitude is one of the elements, whatever the order is in which they are compared: so this is the kernel of
reproducible plans, too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from einc_runtime.dtypes import Array, find_dtype_name
from einc_runtime.kernels.base import Invocation, Kernel
from einc_runtime.kernels.calls.map import ReduceCall
from einc_runtime.kernels.llvm import compiler
from einc_runtime.kernels.llvm.map import MAP_DTYPES
from einc_runtime.kernels.numpy import map as in_numpy
from einc_runtime.kernels.views import merge_axes
from einc_runtime.plan.index_patterns import find_identity
from einc_runtime.plan.scalar_programs import TypedStep
from einc_runtime.plan.schema import INTEGERS

if TYPE_CHECKING:
    from einc_runtime.kernels.llvm.emitter import Emitter, Value

LARGEST = ("t0 = abs x0", "max")
"""The program and the aggregation that find largest magnitudes."""


def build_reduce(invocation: Invocation[Array]) -> Kernel:
    return compile_reduce(ReduceCall.parse(invocation), invocation.repetitions) or in_numpy.build_reduce(invocation)


def find_largest(invocation: Invocation[Array]) -> Kernel | None:
    """The compiled kernel; None where something else is reduced, or where it is not worthwhile."""
    form = invocation.attributes.get("program"), invocation.attributes.get("aggregation")
    return compile_reduce(ReduceCall.parse(invocation), invocation.repetitions) if form == LARGEST else None


def compile_reduce(call: ReduceCall, repetitions: int) -> Kernel | None:
    """The compiled kernel, or None where there is no machine code, or where it is not worthwhile."""
    from einc_runtime.kernels.llvm.vectors import is_supported

    size = math.prod(max(column) for column in zip(*(view.shape for view in call.views), strict=True))
    known = set(call.kinds) <= MAP_DTYPES and is_supported(call.steps)
    if not known or not size or not compiler.is_worthwhile(compiler.NUMPY_CALLS_SAVED * size, repetitions):
        return None
    views, reduced = merge_axes([*call.views, call.output], call.reduced)
    *sources, target = views
    kinds = (*call.kinds[:-1], find_dtype_name(target.dtype) or "")
    lone = tuple(view.shape[-1] == 1 for view in sources)
    if not all(view.strides[-1] == view.itemsize or is_lone for view, is_lone in zip(sources, lone, strict=True)):
        return None
    if not reduced[-1] and target.strides[-1] != target.itemsize:
        return None
    extents = [max(column) for column in zip(*(view.shape for view in views), strict=True)]
    kept, gone = (
        [axis for axis in range(len(extents) - 1) if reduced[axis] is is_reduced] for is_reduced in (False, True)
    )
    arguments = [extents[axis] for axis in (*kept, *gone, -1)]
    for view in views:
        start, *strides = compiler.operand_arguments(view)
        arguments += [start, *(strides[axis] for axis in (*kept, *gone))]
    code = _emit_reduce(call.steps, kinds, lone, (len(kept), len(gone)), call.aggregation, inner=reduced[-1])
    run = compiler.CompiledCall(code, arguments, *views)
    each = 0.2 * len(call.kinds) + 0.05 * len(call.steps)
    return Kernel(lambda _: run, nanoseconds=each * size)


@dataclass(frozen=True, slots=True)
class Accumulator:
    """How vectors of terms are combined while code is emitted: widened, combined in one type, and narrowed at the end
    to the type in which the result's element type is computed."""

    identity: Value
    combine: Callable[[Value, Value], Value]
    widen: Callable[[Value], Value]
    narrow: Callable[[Value], Value]

    @staticmethod
    def of(e: Emitter, stored: str, aggregation: str) -> Accumulator:
        from einc_runtime.kernels.llvm.emitter import F32, F64, I32, I64, vector

        b, identity = e.b, find_identity(aggregation, stored)
        if stored in INTEGERS:
            pick = {"max": ">", "min": "<"}.get(aggregation, "")
            combine = {"sum": b.add, "prod": b.mul}.get(
                aggregation, lambda x, y: b.select(b.icmp_signed(pick, x, y), x, y)
            )
            number = e.number(identity, I64)
            if stored == "i64":
                return Accumulator(number, combine, _keep, _keep)
            return Accumulator(number, combine, lambda x: b.sext(x, vector(I64)), lambda x: b.trunc(x, vector(I32)))
        if aggregation in ("sum", "prod"):
            number, combine = e.number(float(identity), F64), b.fadd if aggregation == "sum" else b.fmul
            return Accumulator(number, combine, lambda x: b.fpext(x, vector(F64)), lambda x: b.fptrunc(x, vector(F32)))
        return Accumulator(e.number(identity), e.larger if aggregation == "max" else e.smaller, _keep, _keep)


def _keep(value: Value) -> Value:
    return value


@compiler.compile_once
def _emit_reduce(
    steps: tuple[TypedStep, ...],
    kinds: tuple[str, ...],
    lone: tuple[bool, ...],
    axes: tuple[int, int],
    aggregation: str,
    *,
    inner: bool,
) -> Any:
    """Arguments: extents of the axes that are kept and of those that are reduced, `axes` of each, and of the last one,
    which is reduced if `inner`; and for each operand and the result the address and the strides of all but the last.
    `lone` are operands with one element along the last axis."""
    from einc_runtime.kernels.llvm.emitter import I64, Emitter, RowOperand
    from einc_runtime.kernels.llvm.vectors import evaluate

    e = Emitter()
    b = e.b
    fold = Accumulator.of(e, kinds[-1], aggregation)
    identity, combine = fold.identity, fold.combine
    heads, depths = ([e.argument() for _ in range(number)] for number in axes)
    count = e.argument()
    operands = [e.operand(sum(axes)) for _ in kinds]
    totals = [e.variable(identity) for _ in range(1 if inner else compiler.SUM_CHAINS)]

    def add(total: Value, rows: list[Value], position: Value, mask: Value | None) -> None:
        """Combines the terms of a vector with the total; those behind the end of a reduced row change nothing."""
        inputs = [
            e.load_one(row, kind) if is_lone else e.load(row, position, kind, mask)
            for row, kind, is_lone in zip(rows, kinds[:-1], lone, strict=True)
        ]
        term = fold.widen(evaluate(e, steps, inputs))
        if inner and mask is not None:
            term = b.select(mask, term, identity)
        b.store(combine(b.load(total), term), total)

    outer = [RowOperand(operand.address, operand.strides[: axes[0]]) for operand in operands]
    with e.rows(heads, outer) as starts:
        *sources, target = starts
        within = [
            RowOperand(start, operand.strides[axes[0] :]) for start, operand in zip(sources, operands[:-1], strict=True)
        ]
        if inner:
            (total,) = totals
            b.store(identity, total)
            with e.rows(depths, within) as rows:
                e.sweep(count, lambda position, mask: add(total, rows, position, mask))
            b.store(e.across(b.load(total), combine), total)
            e.store_one(fold.narrow(b.load(total)), target, kinds[-1])
        else:

            def compute(positions: Sequence[Value], mask: Value | None) -> None:
                pairs = list(zip(totals, positions, strict=False))
                for total, _ in pairs:
                    b.store(identity, total)
                with e.rows(depths, within) as rows:
                    for total, position in pairs:
                        add(total, rows, position, mask)
                for total, position in pairs:
                    e.store(fold.narrow(b.load(total)), target, position, kinds[-1], mask)

            full = b.and_(count, I64(-compiler.SUM_CHAINS * compiler.LANES))
            with e.loop(full, compiler.SUM_CHAINS * compiler.LANES) as start:
                compute([b.add(start, I64(k * compiler.LANES)) for k in range(compiler.SUM_CHAINS)], None)
            e.sweep(b.sub(count, full), lambda position, mask: compute([b.add(full, position)], mask))
    return e.finish()
