"""The kernel `recurrence` as machine code: a vector of positions of one loop, the lanes, goes through all steps.

The lanes are positions of a loop at which values do not depend on each other, where there is one with enough of them: a
vector of them goes through all steps by itself, and its values stay in the first cache. Else they are those of the
values at each step, which are all computed before the next one (`recurrence_code.py`). Operands along whose lanes
elements are not neighbours are copied first. numpy computes what this code cannot, as in `map.py`.

Each element is computed by the same operations, whatever the lanes are, and sums are added up in one order: so this is
the kernel of reproducible plans, too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from einc_runtime.dtypes import Array
from einc_runtime.kernels.base import (
    Invocation,
    Kernel,
    Run,
    ScratchAllocator,
    address,
    dtype_name,
    view_as_integers,
)
from einc_runtime.kernels.calls.recurrence import RecurrenceCall
from einc_runtime.kernels.llvm import compiler
from einc_runtime.kernels.llvm.map import MAP_DTYPES
from einc_runtime.kernels.llvm.recurrence_code import LaneChoice, emit_recurrence
from einc_runtime.kernels.numpy import recurrence as in_numpy
from einc_runtime.kernels.numpy.pieces import Resolved, make_runner
from einc_runtime.plan.recurrences import Recurrence, RecurrenceEquation


def build_recurrence(invocation: Invocation[Array]) -> Kernel:
    call = RecurrenceCall.parse(invocation)
    return compile_recurrence(call, invocation.repetitions) or in_numpy.make_recurrence(call)


def compile_recurrence(call: RecurrenceCall, repetitions: int) -> Kernel | None:
    """The compiled kernel, or None where there is no machine code, or where it is not worthwhile."""
    if not compiler.is_worthwhile(compiler.NUMPY_CALLS_SAVED * call.vectors, repetitions):
        return None
    from einc_runtime.kernels.llvm.vectors import is_supported

    recurrence, arrays = call.recurrence, (*call.inputs, *call.outputs)
    steps = tuple(map(call.type_steps, recurrence.equations))
    kinds = tuple(dtype_name(view) for view in arrays)
    choice = _choose_lanes(call)
    if not set(kinds) <= MAP_DTYPES or not all(map(is_supported, steps)) or choice is None:
        return None
    scratch, count = ScratchAllocator(), len(call.inputs)
    loops = [_find_loops(recurrence, number) for number in range(count)]
    loops += [recurrence.equations[number].loops for number in recurrence.results]
    axes = [names.index(choice.lane) if choice.lane in names else None for names in loops]
    packed = [
        None if axis is None or _is_dense(view, axis) else scratch.take(np.moveaxis(view, axis, -1).shape, view.dtype)
        for view, axis in zip(arrays, axes, strict=True)
    ]
    values = [
        [scratch.take(_shape_value(call, choice, equation), call.value_dtype(equation)) for _ in range(2)]
        for equation in recurrence.equations
    ]
    form = replace(recurrence, loops=tuple((name, 1) for name, _ in recurrence.loops))
    code = emit_recurrence(form, choice, steps, kinds[:count], kinds[count:])

    def bind(memory: Array) -> Run:
        views = [
            view if slot is None or axis is None else np.moveaxis(slot.of(memory), -1, axis)
            for view, axis, slot in zip(arrays, axes, packed, strict=True)
        ]
        arguments = [call.extents[name] for name, _ in recurrence.loops]
        for view in views:
            arguments += [address(view), *view.strides]
        for pair in values:
            even, odd = (slot.of(memory) for slot in pair)
            arguments += [address(even), address(odd), *even.strides[:-1]]
        run = compiler.CompiledCall(code, arguments, *views, memory)
        before, behind = _copy(arrays[:count], views[:count]), _copy(views[count:], arrays[count:])
        return make_runner([*before, (run, []), *behind]) if before or behind else run

    operations = call.steps * sum(
        len(typed) * math.prod(call.extents[name] for name in call.step_loops(equation))
        for typed, equation in zip(steps, recurrence.equations, strict=True)
    )
    return Kernel(bind, scratch.size, 0.15 * operations)


def _is_dense(view: Array, axis: int) -> bool:
    return bool(view.strides[axis] == view.itemsize or view.shape[axis] == 1)


def _shape_value(call: RecurrenceCall, choice: LaneChoice, equation: RecurrenceEquation) -> tuple[int, ...]:
    """The shape of the buffers of a value: its loops, then whole vectors of lanes."""
    extents = [call.extents[name] for name in choice.value_loops(call.recurrence, equation)]
    spread = not choice.outside and choice.lane in equation.loops
    return (*extents, -(-call.extents[choice.lane] // compiler.LANES) * compiler.LANES if spread else compiler.LANES)


def _copy(sources: Sequence[Array], targets: Sequence[Array]) -> list[Resolved]:
    pairs = [(source, target) for source, target in zip(sources, targets, strict=True) if source is not target]
    return [(np.copyto, [view_as_integers(target), view_as_integers(source)]) for source, target in pairs]


def _find_loops(recurrence: Recurrence, operand: int) -> tuple[str, ...]:
    """The loops of an operand where it is first read."""
    return next(read.loops for read in recurrence.operand_reads if read.source == operand)


def _choose_lanes(call: RecurrenceCall) -> LaneChoice | None:
    """The loop of the lanes fills vectors, and lies outside of the steps and dense in results where that is possible.
    None where no loop will do."""
    recurrence, equations = call.recurrence, call.recurrence.equations
    reduced = {name for equation in equations for name in equation.reduced}
    entered = {
        at
        for equation in equations
        for read in equation.value_reads
        for at, kept in zip(read.loops, equations[read.source].loops, strict=True)
        if at != kept
    }
    names = [n for n, _ in recurrence.loops[1:] if n not in reduced and _is_read_alike(recurrence, n)]
    outer = [n for n in recurrence.independent_loops if n in names]

    def rank(name: str) -> tuple[float, int]:
        extent = call.extents[name]
        results = zip(recurrence.results, call.outputs, strict=True)
        dense = [name in equations[k].loops and _is_dense(view, equations[k].loops.index(name)) for k, view in results]
        used = extent / (-(-extent // compiler.LANES) * compiler.LANES)
        return used + 0.2 * (name in outer) + 0.2 * all(dense), extent

    lane = max((name for name in names if name not in entered), key=rank, default=None)
    if lane is None:
        return None
    return LaneChoice(tuple(name for name in outer if name != lane), lane, lane in outer)


def _is_read_alike(recurrence: Recurrence, name: str) -> bool:
    """Whether operands that have this loop somewhere have it at the same dimension in all reads."""
    return all(
        (at == name) == (kept == name)
        for read in recurrence.operand_reads
        for at, kept in zip(read.loops, _find_loops(recurrence, read.source), strict=True)
    )
