"""Aggregations that a plan defines, as machine code: one pass over the operands, with a tuple of vectors in registers.

Lanes are results where operands lie together along a dimension that is kept. Where they do along one that is
aggregated over, and the operation commutes, each lane aggregates every 16th value, in some tuples that do not wait for
each other, and lanes are combined at the end. numpy computes all other calls.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from einc_runtime.dtypes import Array, compute_type
from einc_runtime.kernels.base import Kernel
from einc_runtime.kernels.calls.fold import CombineCall, FoldCall
from einc_runtime.kernels.llvm import compiler
from einc_runtime.kernels.llvm.map import MAP_DTYPES
from einc_runtime.kernels.views import merge_axes
from einc_runtime.plan.scalar_programs import ScalarLiteral, TypedStep

if TYPE_CHECKING:
    from einc_runtime.kernels.llvm.emitter import Emitter, Value

FOLD_DTYPES = MAP_DTYPES | {"f64"}
MAX_FOLD_VECTORS = 8
"""The most vectors that all chains hold: more would not stay in registers."""


def compile_fold(call: FoldCall, repetitions: int) -> Kernel | None:
    """The compiled kernel, or None where there is no machine code, or where it is not worthwhile."""
    size = math.prod(call.extents)
    steps = len(call.values) + len(call.combining)
    if not _is_known((*call.kinds, *call.stored), (*call.values, *call.combining)):
        return None
    if not compiler.is_worthwhile(size * steps, repetitions):
        return None
    counted = [np.broadcast_to(np.int8(0), call.extents)]  # so that no axis of a loop that only counts is lost
    outputs = [output[(..., *[None] * (len(call.extents) - call.kept))] for output in call.outputs]
    gone = [axis >= call.kept for axis in range(len(call.extents))]
    (first, *views), gone = merge_axes([*counted, *call.views, *outputs], gone)
    sources, targets = views[: len(call.views)], views[len(call.views) :]
    extents = first.shape
    inner = _choose_inner(extents, gone, sources, targets, commutes=call.definition.is_commutative)
    if inner is None:
        return None
    heads, depths = ([a for a in range(len(extents)) if a != inner and gone[a] is is_gone] for is_gone in (False, True))
    arguments = [extents[axis] for axis in (*heads, *depths, inner)]
    for view in views:
        start, *_ = compiler.operand_arguments(view)
        steps_of = [0 if view.shape[axis] == 1 else view.strides[axis] for axis in (*heads, *depths)]
        arguments += [start, *steps_of]
    code = _emit_fold(
        _FoldShape(
            call.values,
            call.combining,
            call.definition.identity,
            call.kinds,
            call.stored,
            tuple(view.shape[inner] == 1 for view in sources),
            len(heads),
            len(depths),
            is_across=gone[inner],
        )
    )
    run = compiler.CompiledCall(code, arguments, *call.views, *call.outputs)
    return Kernel(lambda _: run, nanoseconds=(0.2 * len(call.kinds) + 0.05 * steps) * size)


def compile_combine(call: CombineCall, repetitions: int) -> Kernel | None:
    """The program over all copies, for each element; None as for `compile_fold`."""
    size = call.target[0].size
    if not _is_known(call.kinds, call.steps) or not compiler.is_worthwhile(size, repetitions):
        return None
    strides = call.target[0].strides
    order = sorted(range(len(strides)), key=lambda axis: -strides[axis])
    views = [view.transpose(order) for view in (*call.copies, *call.target)]
    views = merge_axes(views, [False] * len(order))[0] if order else [view[None] for view in views]
    if any(view.strides[-1] != view.itemsize for view in views):
        return None
    arguments = list(views[0].shape)
    for view in views:
        arguments += compiler.operand_arguments(view)
    code = _emit_combine(call.steps, call.kinds, call.stored, views[0].ndim - 1)
    run = compiler.CompiledCall(code, arguments, *call.copies, *call.target)
    return Kernel(lambda _: run, nanoseconds=0.1 * size * len(call.copies))


def _is_known(kinds: Sequence[str], steps: Sequence[TypedStep]) -> bool:
    if not set(kinds) <= FOLD_DTYPES or not compiler.is_available():
        return False
    from einc_runtime.kernels.llvm.vectors import is_supported

    return is_supported(steps)


def _choose_inner(
    extents: Sequence[int], gone: Sequence[bool], sources: Sequence[Array], targets: Sequence[Array], *, commutes: bool
) -> int | None:
    """The axis whose elements are lanes: the longest along which all that varies is dense; None where there is none."""

    def fits(axis: int) -> bool:
        read = all(view.shape[axis] == 1 or view.strides[axis] == view.itemsize for view in sources)
        written = gone[axis] or all(view.strides[axis] == view.itemsize for view in targets)
        return read and written and (commutes or not gone[axis])

    return max(filter(fits, range(len(extents))), key=lambda axis: (extents[axis], axis), default=None)


@dataclass(frozen=True, slots=True)
class _FoldShape:
    """What the code depends on: programs, types, operands with one element along the last axis, and how many axes are
    kept and aggregated over before the last one, over which is aggregated if `is_across`."""

    values: tuple[TypedStep, ...]
    combining: tuple[TypedStep, ...]
    identity: tuple[ScalarLiteral, ...]
    kinds: tuple[str, ...]
    stored: tuple[str, ...]
    lone: tuple[bool, ...]
    heads: int
    depths: int
    is_across: bool


@compiler.compile_once
def _emit_fold(shape: _FoldShape) -> Any:
    """Arguments: extents of the axes that are kept, of those that are aggregated over, and of the last one; for each
    operand and result the address and the strides of all but the last axis."""
    from einc_runtime.kernels.llvm.emitter import Emitter, RowOperand
    from einc_runtime.kernels.llvm.vectors import evaluate_all

    e = Emitter()
    count, heads = len(shape.identity), [e.argument() for _ in range(shape.heads)]
    depths = [e.argument() for _ in range(shape.depths)]
    length = e.argument()
    operands = [e.operand(shape.heads + shape.depths) for _ in (*shape.kinds, *shape.stored)]
    identity = [_constant(e, x, kind) for x, kind in zip(shape.identity, shape.stored, strict=True)]
    chains = max(1, min(compiler.SUM_CHAINS, MAX_FOLD_VECTORS // count)) if shape.is_across else 1
    tuples = [[e.variable(value) for value in identity] for _ in range(chains)]

    def combine(left: Sequence[Value], right: Sequence[Value]) -> list[Value]:
        return evaluate_all(e, shape.combining, [*left, *right])[-count:]

    def load(number: int) -> list[Value]:
        return [e.b.load(variable) for variable in tuples[number]]

    def add(number: int, rows: list[Value], position: Value, mask: Value | None) -> None:
        inputs = [
            e.load_one(row, kind) if is_lone else e.load(row, position, kind, mask)
            for row, kind, is_lone in zip(rows, shape.kinds, shape.lone, strict=True)
        ]
        before = load(number)
        after = combine(before, evaluate_all(e, shape.values, inputs)[-count:])
        for variable, old, new in zip(tuples[number], before, after, strict=True):
            e.b.store(new if mask is None else e.b.select(mask, new, old), variable)

    outer = [RowOperand(operand.address, operand.strides[: shape.heads]) for operand in operands]
    inputs = len(shape.kinds)
    with e.rows(heads, outer) as starts:
        targets = starts[inputs:]
        within = [
            RowOperand(start, operand.strides[shape.heads :])
            for start, operand in zip(starts[:inputs], operands[:inputs], strict=True)
        ]

        def restart() -> None:
            for places in tuples:
                for variable, value in zip(places, identity, strict=True):
                    e.b.store(value, variable)

        if shape.is_across:
            restart()
            with e.rows(depths, within) as rows:
                e.sweep_chains(length, chains, lambda n, position, mask: add(n, rows, position, mask))
            total = load(0)
            for number in range(1, chains):
                total = combine(total, load(number))
            for value, target, kind in zip(_combine_lanes(e, total, combine), targets, shape.stored, strict=True):
                e.store_one(value, target, kind)
        else:

            def compute(position: Value, mask: Value | None) -> None:
                restart()
                with e.rows(depths, within) as rows:
                    add(0, rows, position, mask)
                for value, target, kind in zip(load(0), targets, shape.stored, strict=True):
                    e.store(value, target, position, kind, mask)

            e.sweep(length, compute)
    return e.finish()


@compiler.compile_once
def _emit_combine(steps: tuple[TypedStep, ...], kinds: tuple[str, ...], stored: tuple[str, ...], leading: int) -> Any:
    """Arguments: extents, and for each copy and target the address and the strides of all but the last axis."""
    from einc_runtime.kernels.llvm.emitter import Emitter
    from einc_runtime.kernels.llvm.vectors import evaluate_all

    e = Emitter()
    *heads, length = [e.argument() for _ in range(leading + 1)]
    operands = [e.operand(leading) for _ in (*kinds, *stored)]
    with e.rows(heads, operands) as rows:

        def body(position: Value, mask: Value | None) -> None:
            inputs = [e.load(row, position, kind, mask) for row, kind in zip(rows, kinds, strict=False)]
            values = evaluate_all(e, steps, inputs)[-len(stored) :]
            for value, row, kind in zip(values, rows[len(kinds) :], stored, strict=True):
                e.store(value, row, position, kind, mask)

        e.sweep(length, body)
    return e.finish()


def _combine_lanes(e: Emitter, values: Sequence[Value], combine: Any) -> list[Value]:
    """All lanes combined, halves first; the result is in every lane."""
    from llvmlite import ir

    from einc_runtime.kernels.llvm.emitter import I32, vector

    width, lanes = compiler.LANES // 2, list(values)
    while width:
        order = ir.Constant(vector(I32), [(lane + width) % compiler.LANES for lane in range(compiler.LANES)])
        lanes = combine(lanes, [e.b.shuffle_vector(value, value, order) for value in lanes])
        width //= 2
    return lanes


def _constant(e: Emitter, literal: ScalarLiteral, kind: str) -> Value:
    """A literal in every lane, in the type in which elements of this type are computed."""
    from einc_runtime.kernels.llvm.vectors import make_constant

    return make_constant(e, literal.value, compute_type(kind))
