"""Aggregations of index programs on the CPU: those that a plan defines, and running aggregates and scatters.

Of running aggregates and scatters, values are computed once, and combined in one pass (`plan/index_patterns.py` says
which programs these are). Aggregations that a plan defines are machine code where there is some, else numpy; in
reproducible plans it is numpy on dense operands, whose order depends on the extents of what is aggregated alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from einc_runtime.dtypes import Array
from einc_runtime.kernels.base import Kernel, PrepackedOperand, Run, ScratchAllocator, ScratchArray
from einc_runtime.kernels.calls.fold import CombineCall, FoldCall
from einc_runtime.kernels.calls.index import IndexCall
from einc_runtime.kernels.calls.keyed_aggregates import RunningCall, ScatterCall
from einc_runtime.kernels.llvm.fold import compile_combine, compile_fold
from einc_runtime.kernels.llvm.keyed_aggregates import compile_running, compile_scatter
from einc_runtime.kernels.numpy import keyed_aggregates as in_numpy
from einc_runtime.kernels.numpy.fold import make_combine, make_fold
from einc_runtime.plan.index_patterns import RunningAggregate, Scatter
from einc_runtime.plan.index_programs import IndexProgram

BuildCall = Callable[[IndexCall], Kernel]
"""Builds the kernel of a program."""


def build_aggregate(
    call: IndexCall, pattern: RunningAggregate | Scatter, build: BuildCall, *, compiled: bool
) -> Kernel:
    """The kernel, of which `build` makes the part that computes values and keys; `compiled` says whether machine code
    may be used."""
    scratch = ScratchAllocator()
    programs = [pattern.values, *([pattern.keys] if isinstance(pattern, Scatter) else [])]
    parts = [_ComputedArray.of(call, program, scratch, build) for program in programs]

    def prepare(arrays: Sequence[Array]) -> Kernel:
        aggregation, output = call.program.aggregation, call.output
        if isinstance(pattern, RunningAggregate):
            first = pattern.count_first(call.ranges)
            running = RunningCall.of(arrays[0], output, pattern.axis, first, aggregation, is_behind=pattern.is_behind)
            return (compile_running(running, call.repetitions) if compiled else None) or in_numpy.make_running(running)
        first = call.ranges[pattern.along][0]
        scatter = ScatterCall(arrays[0], arrays[1], output, pattern.axis, first, aggregation)
        return (compile_scatter(scatter, call.repetitions) if compiled else None) or in_numpy.make_scatter(scatter)

    measured = prepare([part.stand_in for part in parts])
    inner = scratch.take((measured.scratch,), np.dtype(np.uint8))

    def bind(memory: Array) -> Run:
        arrays, runs = [], []
        for part in parts:
            array, run = part.bind(memory)
            arrays.append(array)
            runs += [run] if run is not None else []
        runs.append(prepare(arrays).bind(inner.of(memory)))

        def run_all() -> None:
            for run in runs:
                run()

        return run_all if len(runs) > 1 else runs[0]

    nanoseconds = measured.nanoseconds + sum(part.nanoseconds for part in parts)
    return Kernel(bind, scratch.size, nanoseconds, tuple(pack for part in parts for pack in part.prepacked))


@dataclass(frozen=True, slots=True)
class _ComputedArray:
    """What a program without an aggregation computes: a view of a tensor that is there, or an array in scratch memory.

    `stand_in` has its shape, strides and type.
    """

    stand_in: Array
    bind: Callable[[Array], tuple[Array, Run | None]]
    nanoseconds: float = 0.0
    prepacked: tuple[PrepackedOperand, ...] = ()

    @staticmethod
    def of(call: IndexCall, program: IndexProgram, scratch: ScratchAllocator, build: BuildCall) -> _ComputedArray:
        shape = [call.ranges[name][1] - call.ranges[name][0] for name in program.result]
        part = call.part(program, np.empty(shape, call.find_type(program)))
        view = part.find_view()
        if view is not None:
            array = view
            return _ComputedArray(array, lambda memory: (array, None))
        slot: ScratchArray = scratch.take(part.output.shape, part.output.dtype)
        measured = build(part)
        inner = scratch.take((measured.scratch,), np.dtype(np.uint8))

        def bind(memory: Array) -> tuple[Array, Run | None]:
            result = slot.of(memory)
            return result, build(call.part(program, result)).bind(inner.of(memory))

        return _ComputedArray(part.output, bind, measured.nanoseconds, measured.prepacked)


def build_fold(call: FoldCall, repetitions: int, *, compiled: bool, reproducible: bool) -> Kernel:
    """The kernel of an index program's aggregation; `compiled` says whether machine code may be used, and `repetitions`
    how many of its kind an execution has."""
    kernel = compile_fold(call, repetitions) if compiled and not reproducible else None
    return kernel or make_fold(call, dense=reproducible)


def build_combine(call: CombineCall, repetitions: int, *, compiled: bool) -> Kernel:
    """The kernel that combines copies of partial results, as `build_fold`."""
    return (compile_combine(call, repetitions) if compiled else None) or make_combine(call)
