"""Recurrences: equations that are computed at each step along one index, from values of the step before.

What such an operator is stands in its texts (`einc_runtime.plan.recurrences`): its results, where it may be cut and
what a block reads are what `plan.meaning` says of them, for the compiler and for the proof alike.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from einc.core.spec import FunctionSpec
from einc.core.tensor import Array, DType, TensorDesc
from einc.ops.base import Attribute, Attributes, find_vector_precision
from einc.ops.derived import DerivedMappedOperator, derive_family
from einc.ops.functions import fit_literal
from einc.ops.scalar import resolve_program
from einc_runtime.plan.recurrence_steps import MAX_TILE_ELEMENTS, count_tile, measure_chain
from einc_runtime.plan.recurrences import (
    RECURRENCE_TEXTS,
    OperandRead,
    Recurrence,
    RecurrenceEquation,
    RecurrenceRead,
    ValueRead,
    list_used,
    measure_loops,
    parse_recurrence,
)
from einc_runtime.plan.scalar_programs import ScalarLiteral
from einc_runtime.plan.work import RecurrenceWork


@dataclass(frozen=True, slots=True)
class Carry:
    """A value that goes from each step to the next: its form at one step, the input that it starts from (None for a
    number), and the output that has it at all steps (None where it is not stored)."""

    desc: TensorDesc
    start: int | None
    output: int | None


@dataclass(frozen=True, slots=True)
class RecurrenceOperator(DerivedMappedOperator):
    """The operator of a recurrence; made by `build_recurrence`, which checks it."""

    family: ClassVar[str] = "recurrence"
    is_program: ClassVar[bool] = True

    operands: tuple[TensorDesc, ...]
    program: Recurrence
    dims: tuple[str, ...]

    @property
    def title(self) -> str:
        steps = [step.function for equation in self.program.equations for step in equation.scalar.steps]
        named = [function for function in steps if function != "copy"]
        shown = "+".join(named[:5]) + (f"+{len(named) - 5} more" if len(named) > 5 else "")
        return f"recurrence({shown})" if shown else "recurrence"

    @property
    def inputs(self) -> tuple[TensorDesc, ...]:
        return self.operands

    @property
    def attributes(self) -> Attributes:
        texts: dict[str, Attribute] = {
            key: tuple(value) if isinstance(value, list) else value for key, value in self.program.texts.items()
        }
        return {**texts, "dims": self.dims}

    def reference(self, *arrays: Array) -> tuple[Array, ...]:
        return evaluate_recurrence(self.program, arrays, self.operands)

    def flops(self, function: FunctionSpec) -> int:
        """One operation per step of each program, and one to aggregate, at each index vector of its equation."""
        shapes = ([block.shape for block in blocks] for blocks in (function.inputs, function.outputs))
        extents = measure_loops(self.program, *shapes)
        return sum(
            math.prod(extents[name] for name in equation.all_loops)
            * (sum(step.function != "copy" for step in equation.scalar.steps) + bool(equation.aggregation))
            for equation in self.program.equations
        )

    def work(self, function: FunctionSpec) -> RecurrenceWork:
        """The steps of a block, and what each of them waits for."""
        shapes = ([block.shape for block in blocks] for blocks in (function.inputs, function.outputs))
        program, extents = self.program, measure_loops(self.program, *shapes)
        depth, levels = measure_chain(program, extents)
        fits = count_tile(program, extents) <= MAX_TILE_ELEMENTS
        launches = 0 if fits else len(program.equations) + len(program.results)
        lanes = math.prod(extents[name] for name in program.independent_loops)
        return RecurrenceWork(extents[program.along], lanes, depth, levels, launches)

    @property
    def precision(self) -> str:
        return find_vector_precision(*self.operands, *self.outputs)

    def fan_in(self, k: int) -> int:
        extents = self.program.extents
        counts = [
            math.prod(extents[name] for name in set(equation.reduced).intersection(read.loops))
            for equation in self.program.equations
            if equation.aggregation == "sum"
            for read in equation.operand_reads
            if read.source == k
        ]
        return max(counts, default=1)

    def merge(self, first: int, second: int) -> RecurrenceOperator | None:
        """Both are one operand, which is read in two ways."""

        def renumber(source: int) -> int:
            return first if source == second else source - (source > second)

        operands = self.operands[:second] + self.operands[second + 1 :]
        equations = tuple(renumber_reads(equation, renumber) for equation in self.program.equations)
        return build_recurrence(operands, self.program.loops, equations, self.program.results, self.dims)

    @property
    def carries(self) -> tuple[Carry, ...]:
        """What it carries from step to step. As a model is run step by step, these are its states: a result that is one
        of these equations has the carry of the next run as its last step."""
        program, carries = self.program, []
        for number in program.carried:
            equation = program.equations[number]
            names = tuple(name for name in equation.loops if name != program.along)
            shape = tuple(program.extents[name] for name in names)
            start = equation.initial.source if isinstance(equation.initial, OperandRead) else None
            result = program.results.index(number) if number in program.results else None
            carries.append(Carry(TensorDesc(names, shape, DType(equation.dtype)), start, result))
        return tuple(carries)

    def keep_outputs(self, outputs: Sequence[int]) -> tuple[RecurrenceOperator, tuple[int, ...]] | None:
        """The equations that these outputs need, with the operands that these read."""
        program = self.program
        results = [program.results[j] for j in outputs]
        used = list(list_used(program.equations, results))
        equations = [program.equations[number] for number in used]
        read = sorted({read.source for equation in equations for read in equation.operand_reads})
        ranks = [len(program.equations[number].loops) for number in program.results]
        dims = [self.dims[sum(ranks[:j]) : sum(ranks[: j + 1])] for j in outputs]
        moved = [renumber_reads(equation, read.index, used.index) for equation in equations]
        loops = {name for equation in moved for name in equation.all_loops}
        kept = build_recurrence(
            [self.operands[k] for k in read],
            [loop for loop in program.loops if loop[0] in loops],
            _drop_starts(moved),
            [used.index(number) for number in results],
            [dim for result in dims for dim in result],
        )
        return kept, tuple(read)


def build_recurrence(
    operands: Sequence[TensorDesc],
    loops: Sequence[tuple[str, int]],
    equations: Sequence[RecurrenceEquation],
    results: Sequence[int],
    dims: Sequence[str],
) -> RecurrenceOperator:
    """The operator of these equations, all of which have a use. Raises OperatorError for what is no recurrence."""
    fitted = tuple(_fit_literals(equation, equations, operands) for equation in equations)
    program = Recurrence(tuple(loops), fitted, tuple(results))
    return restore(tuple(operands), RecurrenceOperator(tuple(operands), program, tuple(dims)).attributes)


def restore(inputs: tuple[TensorDesc, ...], attributes: Attributes) -> RecurrenceOperator:
    """The operator with these attributes; raises OperatorError if they are not those of a recurrence."""
    derive_family(RecurrenceOperator.family, inputs, attributes)
    texts = {name: attributes[name] for name in ("loops", *RECURRENCE_TEXTS, "results")}
    return RecurrenceOperator(inputs, parse_recurrence(**texts), attributes["dims"])  # type: ignore[arg-type]


def _fit_literals(
    equation: RecurrenceEquation, equations: Sequence[RecurrenceEquation], operands: Sequence[TensorDesc]
) -> RecurrenceEquation:
    """The equation with the literals of its program, and what it starts from, fitted to their types."""
    types = [
        operands[read.source].dtype if isinstance(read, OperandRead) else DType(equations[read.source].dtype)
        for read in equation.reads
    ]
    program, _ = resolve_program(equation.scalar, types)
    initial = equation.initial
    if isinstance(initial, str) and initial:
        initial = str(ScalarLiteral.of(fit_literal(ScalarLiteral(initial).value, DType(equation.dtype))))
    return replace(equation, program=program.text, initial=initial)


def _drop_starts(equations: Sequence[RecurrenceEquation]) -> list[RecurrenceEquation]:
    """The equations, where those that no other reads at the step before start from nothing."""
    read = {source.source for equation in equations for source in equation.value_reads if source.before}
    return [equation if k in read else replace(equation, initial="") for k, equation in enumerate(equations)]


def renumber_reads(
    equation: RecurrenceEquation, operand: Callable[[int], int], value: Callable[[int], int] = int
) -> RecurrenceEquation:
    """The equation where operands and equations have other numbers."""

    def renumber(read: RecurrenceRead) -> RecurrenceRead:
        return replace(read, source=(operand if isinstance(read, OperandRead) else value)(read.source))

    initial = equation.initial
    if isinstance(initial, OperandRead):
        initial = replace(initial, source=operand(initial.source))
    return replace(equation, reads=tuple(map(renumber, equation.reads)), initial=initial)


def evaluate_recurrence(
    program: Recurrence, arrays: Sequence[Array], operands: Sequence[TensorDesc]
) -> tuple[Array, ...]:
    """Step after step, in plain numpy: values are kept in the type in which they are computed."""
    import numpy as np

    from einc.ops.evaluate import evaluate, find_accumulating_dtype, find_computing_dtype, reduce

    along, extents, equations = program.along, program.extents, program.equations
    dtypes = [DType(equation.dtype) for equation in equations]
    stored = [np.zeros(program.shape_of(k), dtype.numpy()) for k, dtype in enumerate(dtypes)]
    values: dict[int, Array] = {}
    for number in program.carried:
        equation = equations[number]
        names = [name for name in equation.loops if name != along]
        initial = equation.initial
        if isinstance(initial, OperandRead):
            start = _align(arrays[initial.source], initial.loops, names)
        else:
            start = np.asarray(ScalarLiteral(initial).value)
        shape = [extents[name] for name in names]
        values[number] = np.broadcast_to(start, shape).astype(find_computing_dtype(dtypes[number]))
    for t in range(extents[along]):
        before = dict(values)
        for number, equation in enumerate(equations):
            names = [name for name in equation.all_loops if name != along]
            elements, types = [], []
            for read in equation.reads:
                if isinstance(read, ValueRead):
                    array = (before if read.before else values)[read.source]
                    types.append(dtypes[read.source])
                else:
                    array = arrays[read.source]
                    if along in read.loops:
                        array = array.take(t, read.loops.index(along))
                    types.append(operands[read.source].dtype)
                elements.append(_align(array, [name for name in read.loops if name != along], names))
            value = np.broadcast_to(evaluate(equation.scalar, elements, types), [extents[name] for name in names])
            if equation.aggregation:
                gone = tuple(range(len(equation.loops) - 1, len(names)))
                value = reduce(equation.aggregation, value.astype(find_accumulating_dtype(dtypes[number])), gone)
            values[number] = value.astype(find_computing_dtype(dtypes[number]))
            np.moveaxis(stored[number], equation.loops.index(along), 0)[t] = values[number]
    return tuple(stored[number] for number in program.results)


def _align(array: Array, names: Sequence[str], order: Sequence[str]) -> Array:
    """The array with dimensions in this order, of extent 1 where it lacks them."""
    present = [name for name in order if name in names]
    transposed = array.transpose([list(names).index(name) for name in present])
    return transposed[tuple(slice(None) if name in names else None for name in order)]


FAMILIES = {RecurrenceOperator.family: restore}
