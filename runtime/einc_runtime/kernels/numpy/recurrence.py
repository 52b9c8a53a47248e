"""The kernel `recurrence` in numpy, which defines it: step after step, equation after equation.

The values of a step and of the one before are kept in the types in which they are computed. Sums are added up in a
wider type, and each value is rounded where it is stored as a result.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from einc_runtime.dtypes import FLOATS, Array, compute_type
from einc_runtime.errors import PlanFault
from einc_runtime.kernels.base import Invocation, Kernel, Run, ScratchAllocator, store
from einc_runtime.kernels.calls.recurrence import RecurrenceCall
from einc_runtime.kernels.numpy.map import REDUCING_UFUNCS, choose_accumulator
from einc_runtime.kernels.numpy.scalar import prepare_program
from einc_runtime.plan.recurrences import MAX_VALUE_ELEMENTS, OperandRead, RecurrenceEquation, RecurrenceRead
from einc_runtime.plan.scalar_programs import ScalarLiteral

Step = Callable[[int], None]
"""Computes what belongs to one step."""


def build_recurrence(invocation: Invocation[Array]) -> Kernel:
    return make_recurrence(RecurrenceCall.parse(invocation))


def make_recurrence(call: RecurrenceCall, *, ordered: bool = False) -> Kernel:
    """The kernel of a call. Unless it is `ordered`, products of matrices are those of a library."""
    scratch = ScratchAllocator()
    equations = call.recurrence.equations
    buffers = [
        (
            scratch.take(call.value_shape(equation), call.value_dtype(equation)),
            scratch.take(call.value_shape(equation), call.value_dtype(equation)),
        )
        for equation in equations
    ]
    evaluators = [
        _Contraction(call, equation) if not ordered and is_contraction(equation) else _EquationEvaluator(call, equation)
        for equation in equations
    ]

    def bind(memory: Array) -> Run:
        values = [(even.of(memory), odd.of(memory)) for even, odd in buffers]
        parts = [evaluator.bind(values, values[k]) for k, evaluator in enumerate(evaluators)]
        stored = [
            (values[number], np.moveaxis(view, equations[number].loops.index(call.recurrence.along), 0))
            for number, view in zip(call.recurrence.results, call.outputs, strict=True)
        ]
        starts = [(values[number][1], _find_start(call, equations[number])) for number in call.recurrence.carried]

        def run() -> None:
            for before, start in starts:
                store(start, before)
            for t in range(call.steps):
                for part in parts:
                    part(t)
                for pair, view in stored:
                    store(pair[t % 2], view[t])

        return run

    operations = sum(1 + len(equation.scalar.steps) for equation in equations)
    return Kernel(bind, scratch.size, 0.3 * call.vectors * operations + 3000.0 * call.steps * operations)


def _find_start(call: RecurrenceCall, equation: RecurrenceEquation) -> Any:
    """The value of an equation before the first step."""
    initial = equation.initial
    if isinstance(initial, OperandRead):
        return call.align_operand(initial, call.value_loops(equation))[0]
    return call.value_dtype(equation).type(ScalarLiteral(initial).value)


def is_contraction(equation: RecurrenceEquation) -> bool:
    """Whether it is a sum of products of what it reads."""
    floating = compute_type(equation.dtype) in FLOATS
    return floating and equation.aggregation == "sum" and equation.scalar.product_factor == 1


class _ValueReader:
    """What an equation reads at a step, with dimensions in one order."""

    def __init__(self, call: RecurrenceCall, equation: RecurrenceEquation) -> None:
        self.call, self.equation = call, equation
        self.order = call.step_loops(equation)

    def find(self, read: RecurrenceRead, values: Sequence[tuple[Array, Array]]) -> Callable[[int], Array]:
        """What a read finds at a step."""
        if isinstance(read, OperandRead):
            view, moves = self.call.align_operand(read, self.order)
            return view.__getitem__ if moves else lambda t: view
        even, odd = (self.call.align_value(value, read.loops, self.order) for value in values[read.source])
        return lambda t: odd if (t + read.before) % 2 else even


class _Contraction(_ValueReader):
    """A sum of products, by products of matrices."""

    def bind(self, values: Sequence[tuple[Array, Array]], result: tuple[Array, Array]) -> Step:
        finders = [self.find(read, values) for read in self.equation.reads]
        kind, axes = self.call.value_dtype(self.equation), range(len(self.order))
        present = [[axis for axis in axes if self.order[axis] in read.loops] for read in self.equation.reads]

        def step(t: int) -> None:
            operands: list[Any] = []
            for find, names in zip(finders, present, strict=True):
                array = find(t)
                gone = tuple(axis for axis in axes if axis not in names)
                operands += [array.squeeze(gone).astype(kind, copy=False), names]
            store(np.einsum(*operands, list(range(result[0].ndim)), optimize=True), result[t % 2])

        return step


class _EquationEvaluator(_ValueReader):
    """One equation, by its scalar program."""

    def __init__(self, call: RecurrenceCall, equation: RecurrenceEquation) -> None:
        super().__init__(call, equation)
        self.shape = tuple(call.extents[name] for name in self.order)
        self.program = prepare_program(call.type_steps(equation), call.kinds(equation))
        count = math.prod(self.shape)
        if count > MAX_VALUE_ELEMENTS:
            raise PlanFault(f"a step of a recurrence has {count:,} index vectors, too many for numpy")

    def bind(self, values: Sequence[tuple[Array, Array]], result: tuple[Array, Array]) -> Step:
        finders = [self.find(read, values) for read in self.equation.reads]
        put = self._aggregate if self.equation.aggregation else store

        def step(t: int) -> None:
            put(self.program.compute([find(t) for find in finders])[0], result[t % 2])

        return step

    def _aggregate(self, value: Any, target: Array) -> None:
        """Halves of the terms are combined until one is left: an order that no block and no layout changes."""
        wide = choose_accumulator(self.equation.dtype, self.equation.aggregation)
        terms = np.broadcast_to(value, self.shape).astype(wide).reshape(target.size, -1)
        ufunc, count = REDUCING_UFUNCS[self.equation.aggregation], terms.shape[1]
        while count > 1:
            half = count // 2
            ufunc(terms[:, :half], terms[:, count - half : count], out=terms[:, :half])
            count -= half
        store(terms[:, 0].reshape(target.shape), target)
