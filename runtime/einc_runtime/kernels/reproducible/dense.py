"""Kernels on dense copies of their operands: how an operand lies in memory must not decide which code computes.

A `map` has one code for every element: machine code for all invocations of a program that it supports, and numpy for
all of another one. `softmax`, `rmsnorm`, `layernorm` and `rope` have one code for every row. A row's sums are taken
over the row alone, in an order that depends on its length (`llvm/rows.py`, `numpy/rows.py`).

For the kernel `recurrence`, machine code computes elements alike in all blocks, and numpy adds up in a fixed order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from einc_runtime.dtypes import Array, find_dtype_name
from einc_runtime.kernels.base import Invocation, Kernel, Run, ScratchAllocator, view_as_integers
from einc_runtime.kernels.calls.map import MapCall
from einc_runtime.kernels.calls.recurrence import RecurrenceCall
from einc_runtime.kernels.calls.rows import SoftmaxCall
from einc_runtime.kernels.llvm import compiler, rows
from einc_runtime.kernels.llvm import map as compiled
from einc_runtime.kernels.llvm.recurrence import compile_recurrence
from einc_runtime.kernels.numpy import map as plain
from einc_runtime.kernels.numpy.pieces import Resolved, make_runner
from einc_runtime.kernels.numpy.recurrence import make_recurrence
from einc_runtime.plan.scalar_functions import CAST
from einc_runtime.plan.scalar_programs import TypedStep

BuildOn = Callable[[Sequence[Array], Sequence[Array]], Kernel]
"""Prepares a kernel on inputs and outputs."""


def is_contiguous(array: Array) -> bool:
    return bool(array.flags.c_contiguous)


def has_dense_rows(array: Array) -> bool:
    return array.ndim > 0 and bool(array.strides[-1] == array.itemsize)


def build_on_dense(
    inputs: Sequence[Array], outputs: Sequence[Array], build: BuildOn, is_dense: Callable[[Array], bool] = is_contiguous
) -> Kernel:
    """The kernel that `build` prepares, with contiguous copies in place of arrays that are not dense."""
    arrays = (*inputs, *outputs)
    if all(map(is_dense, arrays)):
        return build(inputs, outputs)
    scratch, count = ScratchAllocator(), len(inputs)
    slots = [None if is_dense(array) else scratch.take(array.shape, array.dtype) for array in arrays]
    measured = [
        array if slot is None else np.empty(array.shape, array.dtype) for array, slot in zip(arrays, slots, strict=True)
    ]
    inner = build(measured[:count], measured[count:])

    def bind(memory: Array) -> Run:
        dense = [array if slot is None else slot.of(memory) for array, slot in zip(arrays, slots, strict=True)]
        run = build(dense[:count], dense[count:]).bind(memory[scratch.size :])
        return make_runner([*_copy(arrays[:count], dense), (run, []), *_copy(dense[count:], arrays[count:])])

    moved = sum(array.size for array, slot in zip(arrays, slots, strict=True) if slot is not None)
    return Kernel(bind, scratch.size + inner.scratch, inner.nanoseconds + moved)


def _copy(sources: Sequence[Array], targets: Sequence[Array]) -> list[Resolved]:
    pairs = [(source, target) for source, target in zip(sources, targets, strict=False) if source is not target]
    return [(np.copyto, [view_as_integers(target), view_as_integers(source)]) for source, target in pairs]


def build_map(invocation: Invocation[Array]) -> Kernel:
    call = MapCall.parse(invocation)
    if all(step.function == "copy" or step.function.startswith(CAST) for step in call.steps):
        return compiled.build_map(invocation)  # moves and rounds: all code does the same
    return make_map(call.steps, call.kinds, call.views, call.output)


def make_map(steps: tuple[TypedStep, ...], kinds: tuple[str, ...], views: Sequence[Array], output: Array) -> Kernel:
    """The program over views that all have the dimensions of the output, with extent 1 where one is broadcast."""
    machine_code = _has_machine_code(steps, kinds)
    if machine_code:
        run = compiled.compile_map(steps, kinds, [*views, output])
        if run is not None:
            each = 0.1 * len(kinds) + 0.05 * len(steps)
            return Kernel(lambda _: run, nanoseconds=each * output.size)

    def build(inputs: Sequence[Array], outputs: Sequence[Array]) -> Kernel:
        if machine_code:
            return make_map(steps, kinds, inputs, outputs[0])
        return plain.make_map(MapCall(steps, tuple(inputs), outputs[0], kinds, (), ""))

    return build_on_dense(views, [output], build)


def _has_machine_code(steps: Sequence[TypedStep], kinds: Sequence[str]) -> bool:
    if not set(kinds) <= compiled.MAP_DTYPES or not compiler.is_available():
        return False
    from einc_runtime.kernels.llvm.vectors import is_supported

    return is_supported(steps)


def build_recurrence(invocation: Invocation[Array]) -> Kernel:
    call = RecurrenceCall.parse(invocation)
    return compile_recurrence(call, invocation.repetitions) or make_recurrence(call, ordered=True)


def build_norm(invocation: Invocation[Array]) -> Kernel:
    return _build(invocation, rows.build_norm)


def build_rope(invocation: Invocation[Array]) -> Kernel:
    return _build(invocation, rows.build_rope)


def build_softmax(invocation: Invocation[Array]) -> Kernel:
    """Along any axis: the operands are turned so that it is the last one."""
    call = SoftmaxCall.parse(invocation)
    source, target = (np.moveaxis(array, call.axis, -1) for array in (call.source, call.target))
    turned = replace(invocation, attributes={"axis": -1}, inputs=[source], outputs=[target])
    return _build(turned, rows.build_softmax)


def _build(invocation: Invocation[Array], build: Callable[[Invocation[Array]], Kernel]) -> Kernel:
    def build_on(inputs: Sequence[Array], outputs: Sequence[Array]) -> Kernel:
        return build(invocation.on(inputs, outputs))

    compiled = find_dtype_name(invocation.output.dtype) in compiler.COMPILED_FLOATS and compiler.is_available()
    is_dense = has_dense_rows if compiled else is_contiguous
    return build_on_dense(invocation.inputs, invocation.outputs, build_on, is_dense)
