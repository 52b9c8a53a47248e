"""Index equations that read tensors at expressions of indices, at data, and the values of indices themselves.

What such an operator is stands in the text of its program (`einc_runtime.plan.index_programs`): its results, where it
may be cut, what a block reads (halos of windows included) and which kernel runs it are what `plan.meaning` says of
that text, for the compiler and for the proof alike. `equation` has those that read every dimension at one index.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import ClassVar

from einc.core.intervals import Intervals
from einc.core.spec import FunctionSpec, JoinAggSpec
from einc.core.tensor import Array, DType, TensorDesc
from einc.ops.aggregates import require_laws
from einc.ops.base import Attributes, Operator, describe_product, find_product_precision, find_vector_precision
from einc.ops.dequantize import Dequantize
from einc.ops.derived import DerivedOperator, derive, derive_family
from einc.ops.scalar import ProgramBuilder, parse_program, resolve_program
from einc_runtime.plan.aggregate_definitions import AggregateDefinition, count_values, find_definition
from einc_runtime.plan.index_patterns import (
    RUNNING_PIECE,
    RUNNING_PIECE_OF_ROWS,
    Concatenation,
    Lookup,
    Pattern,
    RunningAggregate,
    Scatter,
    find_concatenation,
    find_pattern,
)
from einc_runtime.plan.index_programs import (
    IndexProgram,
    Position,
    Ranges,
    Read,
    RowLookup,
    TensorRead,
    count_index_vectors,
    enumerate_ranges,
    make_position,
    read_index_program,
)
from einc_runtime.plan.meaning.terms import block_of
from einc_runtime.plan.scalar_programs import ScalarInput, ScalarProgram
from einc_runtime.plan.work import ExpertsWork, RecurrenceWork, Work


@dataclass(frozen=True)  # no slots: it remembers what it computes
class IndexOperator(DerivedOperator):
    """The operator of an index program; made by `build_index_operator`, which checks it."""

    family: ClassVar[str] = "index"
    is_program: ClassVar[bool] = True

    operands: tuple[TensorDesc, ...]
    program: IndexProgram
    dims: tuple[str, ...]

    @property
    def title(self) -> str:
        if find_parts(self) is not None:
            return "concat"
        if self.program.is_expert_product:
            return "expert_matmul"
        steps = [step.function for step in self.scalar.steps if step.function != "copy"]
        joined = "+".join(steps[:5]) + (f"+{len(steps) - 5} more" if len(steps) > 5 else "")
        definition = self._definition
        name = definition.name if definition is not None else self.program.aggregation
        return f"{name or 'index'}({joined})" if joined else name or "gather"

    @property
    def inputs(self) -> tuple[TensorDesc, ...]:
        return self.operands

    @cached_property
    def outputs(self) -> tuple[TensorDesc, ...]:
        return super().outputs

    @property
    def attributes(self) -> Attributes:
        program = self.program
        return {
            "loops": program.loops_text,
            "kept": program.kept,
            "reads": program.reads_text,
            "program": program.program,
            "aggregation": program.aggregation,
            "dims": self.dims,
        }

    def build_spec(self, intervals: Intervals) -> JoinAggSpec:
        meaning, functions = derive(self), []
        shapes = [desc.shape for desc in self.operands]
        names = self.program.list_cuts(shapes, self.outputs[0].dtype.value)
        cuts = list(zip(names, intervals, strict=True))
        for ranges in enumerate_ranges(self.program, cuts):
            chosen = [ranges[name] for name, _ in cuts]
            inputs = self.program.read_blocks(shapes, ranges)
            outputs = tuple(
                block_of(axes, result.shape, chosen)
                for axes, result in zip(meaning.outputs, meaning.results, strict=True)
            )
            functions.append(FunctionSpec(inputs, outputs))
        return JoinAggSpec(tuple(functions))

    def reference(self, *arrays: Array) -> tuple[Array, ...]:
        from einc.ops.evaluate import evaluate_index_program

        results = [output.dtype for output in self.outputs]
        return evaluate_index_program(self.program, arrays, self.read_types, self.scalar, results)

    @property
    def costs_by_shape(self) -> bool:
        return True  # loops are as long as blocks, or whole

    def flops(self, function: FunctionSpec) -> int:
        """One operation per step of the program, and those that aggregate, at each index vector that is visited."""
        if find_parts(self) is not None:
            return 0
        ranges, pattern = self.find_ranges(function), self._pattern
        if isinstance(pattern, RunningAggregate | Scatter):
            values = pattern.values
            visited = count_index_vectors({name: ranges[name] for name in values.result})
            return visited * (1 + _count_steps(_parse_scalar(values.program, len(values.reads))))
        if isinstance(pattern, Lookup):
            return function.outputs[0].size * _count_steps(self.scalar)
        definition = self._definition
        combining = bool(self.program.aggregation) if definition is None else _count_steps(definition.program)
        vectors = count_index_vectors({name: ranges[name] for name, _ in self.program.loops})
        have, of = self._count_rows(function)
        return -(-vectors * (_count_steps(self.scalar) + combining) * have // of)

    def _count_rows(self, function: FunctionSpec) -> tuple[int, int]:
        """Of rows that are looked up, how many a function specification has, of how many in all."""
        lookup = self.program.lookup
        if lookup is None:
            return 1, 1
        return function.inputs[lookup.table].shape[lookup.dim], self.operands[lookup.table].shape[lookup.dim]

    def _describe_experts(self, function: FunctionSpec) -> ExpertsWork:
        """Of some of the experts, as large a part of all picks, rounded up."""
        weight, picks = function.inputs[1:]
        have, of = self._count_rows(function)
        sizes = dict(zip(self.program.expert_axes or (), weight.shape[1:], strict=True))
        columns, depth = (sizes[name] for name in (self.program.result[-1], *self.program.reduced))
        return ExpertsWork(have, -(-picks.size * have // of), columns, depth)

    def traffic(self, function: FunctionSpec) -> int:
        """As of any operator; but of a tensor that is read at data, no more elements than are read: of experts, as many
        as there can be picks of these.

        Products of matrices need the windows of a tensor as lines of a matrix, which are written and read once.
        """
        ranges, pattern = self.find_ranges(function), self._pattern
        program = pattern.write(ranges) if isinstance(pattern, Lookup) else self.program
        copies_windows = self.is_contraction
        total = sum(
            block.size * desc.dtype.itemsize for block, desc in zip(function.outputs, self.outputs, strict=True)
        )
        for operand, (block, desc) in enumerate(zip(function.inputs, self.operands, strict=True)):
            elements, copied = 0, 0
            for read in program.operand_reads(operand):
                vectors = count_index_vectors({name: ranges[name] for name in program.loops_of(read)})
                elements += vectors
                if copies_windows and any(len(position.terms) > 1 for position in read.positions):
                    copied += 2 * vectors
            if operand == 1 and program.is_expert_product:
                elements = self._describe_experts(function).picks * (block.size // block.shape[0])
            total += (min(block.size, elements) + copied) * desc.dtype.itemsize
        return total

    def work(self, function: FunctionSpec) -> Work | None:
        """Sizes of a product; or what is aggregated one after the other: in the order of an operation that does not
        commute, and piece after piece of a running aggregate."""
        ranges, definition = self.find_ranges(function), self._definition
        if definition is not None and not definition.is_commutative:
            terms = count_index_vectors({name: ranges[name] for name in self.program.reduced})
            return RecurrenceWork(terms, function.outputs[0].size, definition.program.depth, 0, 0)
        if isinstance(self._pattern, RunningAggregate):
            return _describe_running(self._pattern, ranges)
        if self.program.is_expert_product:
            return self._describe_experts(function)
        if not self.is_contraction:
            return None
        labels = [self.program.loops_of(self.program.reads[number]) for number in self.scalar.without_unread()[1]]
        shapes = [tuple(ranges[name][1] - ranges[name][0] for name in names) for names in labels]
        return describe_product(labels, self.program.result, shapes)

    @property
    def precision(self) -> str:
        if self.is_contraction:
            reads = (self.program.reads[number] for number in self.scalar.without_unread()[1])
            return find_product_precision(*(self.operands[r.operand] for r in reads if isinstance(r, TensorRead)))
        return find_vector_precision(*self.operands, *self.outputs)

    def fan_in(self, k: int) -> int:
        if self.program.aggregation != "sum":
            return 1
        extents, reduced = self.program.extents, set(self.program.reduced)
        return max(
            math.prod(extents[name] for name in reduced.intersection(self.program.loops_of(read)))
            for read in self.program.operand_reads(k)
        )

    def fuse(self, k: int, producer: Operator) -> Operator | None:
        """Quantized experts are read as they are stored."""
        if k != 1 or not self.program.is_expert_product or not isinstance(producer, Dequantize):
            return None
        from einc.ops.quantized_experts import make_quantized_experts

        return make_quantized_experts(self.operands[0], producer, self.operands[2], self.dims)

    @property
    def _definition(self) -> AggregateDefinition | None:
        """The aggregation, where the model defines it."""
        return find_definition(self.program.aggregation)

    @cached_property
    def _pattern(self) -> Pattern | None:
        """What the program is, where not all its index vectors are visited."""
        return find_pattern(self.program, self.outputs[0].dtype.value)

    @cached_property
    def is_contraction(self) -> bool:
        """Whether it is a product of two tensors that is summed, such as a convolution."""
        if self.program.aggregation != "sum":
            return False
        product, read = self.scalar.without_unread()
        return (
            len(read) == 2
            and all(isinstance(self.program.reads[number], TensorRead) for number in read)
            and product.product_factor is not None
        )

    @cached_property
    def scalar(self) -> ScalarProgram:
        """The scalar program, whose inputs are the reads."""
        return _parse_scalar(self.program.program, len(self.program.reads))

    @property
    def read_types(self) -> tuple[DType, ...]:
        """The element types of what is read."""
        return tuple(
            self.operands[read.operand].dtype if isinstance(read, TensorRead) else DType.I64
            for read in self.program.reads
        )

    def find_ranges(self, function: FunctionSpec) -> Ranges:
        """The interval of each loop in one function specification; those of the last one are remembered."""
        if not self._last_ranges or self._last_ranges[0][0] is not function:
            shapes = tuple(desc.shape for desc in self.operands)
            self._last_ranges[:] = [(function, self.program.find_ranges(shapes, function.inputs, function.outputs[0]))]
        return self._last_ranges[0][1]

    @cached_property
    def _last_ranges(self) -> list[tuple[FunctionSpec, Ranges]]:
        return []


def _count_steps(scalar: ScalarProgram) -> int:
    return sum(step.function != "copy" for step in scalar.steps)


def _describe_running(pattern: RunningAggregate, ranges: Ranges) -> RecurrenceWork:
    """A GPU goes along the values in pieces, each of which is a tree."""
    lengths = {name: ranges[name][1] - ranges[name][0] for name in pattern.values.result}
    terms, is_last = lengths.pop(pattern.loop), pattern.values.result[-1] == pattern.loop
    piece = min(terms, RUNNING_PIECE if is_last else RUNNING_PIECE_OF_ROWS)
    return RecurrenceWork(-(-terms // piece), math.prod(lengths.values()), 1, (piece - 1).bit_length(), 0)


@lru_cache(maxsize=4096)
def _parse_scalar(text: str, arity: int) -> ScalarProgram:
    return parse_program(text, arity)


def find_lookup(operator: Operator) -> RowLookup | None:
    """The rows that an operator copies of a table; None for one that does anything else."""
    return operator.program.lookup if isinstance(operator, IndexOperator) else None


def find_parts(operator: Operator) -> Concatenation | None:
    """The operands that an operator has one after the other; None for one that does anything else."""
    if not isinstance(operator, IndexOperator):
        return None
    return find_concatenation(operator.program, tuple(desc.shape for desc in operator.operands))


def build_index_operator(
    operands: Sequence[TensorDesc], program: IndexProgram, scalar: ScalarProgram, dims: Sequence[str]
) -> IndexOperator:
    """The operator of a program, whose scalar program has one input per read.

    Reads and the terms of positions may be in any order. Raises OperatorError, whose `argument` is the number of the
    read at fault, if there is one.
    """
    types = [operands[r.operand].dtype if isinstance(r, TensorRead) else DType.I64 for r in program.reads]
    resolved, _ = resolve_program(scalar, types)
    reads, order = _order_reads(program)
    builder = ProgramBuilder(len(reads))
    results = builder.insert_all(resolved, [ScalarInput(number) for number in order])
    ordered = builder.program(*results[-count_values(program.aggregation) :])
    canonical = IndexProgram(program.loops, program.kept, reads, ordered.text, program.aggregation)
    operator = IndexOperator(tuple(operands), canonical, tuple(dims))
    return restore(operator.operands, operator.attributes)


def _order_reads(program: IndexProgram) -> tuple[tuple[Read, ...], list[int]]:
    """The reads with those first that depend on elements of others, and the new place of each; positions have their
    terms in the order of loops."""
    loops = {name: position for position, (name, _) in enumerate(program.loops)}

    def depends(number: int) -> bool:
        read = program.reads[number]
        return isinstance(read, TensorRead) and any(position.elements for position in read.positions)

    numbers = sorted(range(len(program.reads)), key=lambda number: not depends(number))
    places = [numbers.index(number) for number in range(len(numbers))]

    def renumber(position: Position) -> Position:
        terms = [(f"@{places[int(name[1:])]}" if name[0] == "@" else name, factor) for name, factor in position.terms]
        return replace(position, terms=make_position(terms, 0, loops).terms)

    reads = [program.reads[number] for number in numbers]
    return tuple(
        replace(read, positions=tuple(map(renumber, read.positions))) if isinstance(read, TensorRead) else read
        for read in reads
    ), places


def restore(inputs: tuple[TensorDesc, ...], attributes: Attributes) -> IndexOperator:
    """The operator with these attributes; raises OperatorError if they are not those of an index program."""
    derive_family(IndexOperator.family, inputs, attributes)
    program = read_index_program(lambda name, _: attributes[name], tuple(desc.shape for desc in inputs))
    operator = IndexOperator(inputs, program, attributes["dims"])  # type: ignore[arg-type]
    definition = operator._definition
    if definition is not None:
        require_laws(definition, operator.scalar, operator.read_types, [desc.dtype for desc in operator.outputs])
    return operator


FAMILIES = {IndexOperator.family: restore}
