"""Calls of the kernel `recurrence`: equations, their operands and results, and the extents that loops have in them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from einc_runtime.dtypes import Array, DType, compute_type, storage_dtype
from einc_runtime.kernels.base import Invocation, dtype_name
from einc_runtime.plan.recurrences import (
    RECURRENCE_TEXTS,
    OperandRead,
    Recurrence,
    RecurrenceEquation,
    measure_loops,
    parse_recurrence,
)
from einc_runtime.plan.scalar_programs import TypedStep, infer_steps


@dataclass(frozen=True, slots=True)
class RecurrenceCall:
    """A recurrence on blocks. `extents` are those that its loops have in them."""

    recurrence: Recurrence
    inputs: tuple[Array, ...]
    outputs: tuple[Array, ...]
    extents: Mapping[str, int]

    @staticmethod
    def parse(invocation: Invocation[Array]) -> RecurrenceCall:
        lists = {name: invocation.attribute(name, list) for name in (*RECURRENCE_TEXTS, "results")}
        parsed = parse_recurrence(invocation.attribute("loops", str), **lists)
        inputs, outputs = tuple(invocation.inputs), tuple(invocation.outputs)
        extents = measure_loops(parsed, [view.shape for view in inputs], [view.shape for view in outputs])
        return RecurrenceCall(parsed, inputs, outputs, extents)

    def kinds(self, equation: RecurrenceEquation) -> list[str]:
        """The types of what an equation reads: values are kept in the type in which they are computed."""
        return [
            dtype_name(self.inputs[read.source])
            if isinstance(read, OperandRead)
            else compute_type(self.recurrence.equations[read.source].dtype)
            for read in equation.reads
        ]

    def type_steps(self, equation: RecurrenceEquation) -> tuple[TypedStep, ...]:
        return infer_steps(equation.scalar, self.kinds(equation), compute_type)

    def step_loops(self, equation: RecurrenceEquation) -> tuple[str, ...]:
        """The loops of an equation at one step: those of its value, then those that it aggregates over."""
        return tuple(name for name in equation.all_loops if name != self.recurrence.along)

    def value_loops(self, equation: RecurrenceEquation) -> tuple[str, ...]:
        """The loops of an equation's value at one step."""
        return tuple(name for name in equation.loops if name != self.recurrence.along)

    def value_shape(self, equation: RecurrenceEquation) -> tuple[int, ...]:
        return tuple(self.extents[name] for name in self.value_loops(equation))

    def value_dtype(self, equation: RecurrenceEquation) -> DType:
        """The type in which its value is kept."""
        return storage_dtype(compute_type(equation.dtype))

    @property
    def steps(self) -> int:
        """How many steps it takes."""
        return self.extents[self.recurrence.along]

    @property
    def vectors(self) -> int:
        """The index vectors of all equations at all steps."""
        return self.steps * sum(
            math.prod(self.extents[name] for name in self.step_loops(equation))
            for equation in self.recurrence.equations
        )

    def align_operand(self, read: OperandRead, order: tuple[str, ...]) -> tuple[Array, bool]:
        """An operand with dimensions in this order, of extent 1 where it is not read along a loop; before them stands
        the loop along which it runs, if the second value says so."""
        along = self.recurrence.along
        moves = along in read.loops
        names = [along, *order] if moves else list(order)
        view = self.inputs[read.source]
        present = [name for name in names if name in read.loops]
        transposed = view.transpose([read.loops.index(name) for name in present])
        key = tuple(slice(None) if name in read.loops else np.newaxis for name in names)
        return transposed[key], moves

    def align_value(self, value: Array, loops: tuple[str, ...], order: tuple[str, ...]) -> Array:
        """The value of an equation at one step, read at these loops, with dimensions in this order."""
        names = [name for name in loops if name != self.recurrence.along]
        present = [name for name in order if name in names]
        transposed = value.transpose([names.index(name) for name in present])
        return transposed[tuple(slice(None) if name in names else np.newaxis for name in order)]
