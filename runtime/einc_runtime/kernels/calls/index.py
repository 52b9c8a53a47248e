"""Calls of the kernel `index`: an index program on blocks, as a product, a reduction or a map of views of its operands.

A read whose positions are sums of loops, and all within its tensor, is a view: its strides are those of the tensor,
times the factors. Any other read is gathered first: elements at data, quotients and remainders, and what lies outside
are written into a temporary array, of which the rest is a view again. So there are no other kernels for convolutions,
shifts, diagonals or masks than those for matrices and elementwise functions.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from einc_runtime.dtypes import Array, DType, compute_type, storage_dtype
from einc_runtime.errors import ValueFault
from einc_runtime.kernels.base import ANY_NUMBER, Invocation, dtype_name
from einc_runtime.kernels.indices import NamedArray
from einc_runtime.plan.index_equations import IndexEquation
from einc_runtime.plan.index_patterns import find_concatenation
from einc_runtime.plan.index_programs import (
    COPY_PROGRAM,
    INDEX_TYPE,
    IndexProgram,
    IndexRead,
    Interval,
    Position,
    Ranges,
    TensorRead,
    read_index_program,
)
from einc_runtime.plan.meaning.index import parse_shapes
from einc_runtime.plan.reproducible import ATTRIBUTE
from einc_runtime.plan.scalar_programs import ScalarProgram, infer_steps
from einc_runtime.plan.schema import FLOATS, Attribute, Block


@dataclass(frozen=True, slots=True)
class Gather:
    """What a read needs of its tensor as an array of its own.

    Dimensions in `kept` have a span of coordinates each, and the others are replaced by axes for `loops`, which stand
    where the first of them stood.
    """

    read: TensorRead
    kept: tuple[int, ...]
    spans: tuple[Interval, ...]
    loops: tuple[str, ...]
    ranges: tuple[Interval, ...]

    @property
    def before(self) -> int:
        """How many of the kept dimensions stand before the axes for loops."""
        first = next((dim for dim in range(len(self.read.positions)) if dim not in self.kept), len(self.kept))
        return sum(dim < first for dim in self.kept)

    @property
    def axes(self) -> list[tuple[int | str, Interval]]:
        """The axes in order: a dimension or a loop, with its interval."""
        kept: list[tuple[int | str, Interval]] = list(zip(self.kept, self.spans, strict=True))
        loops: list[tuple[int | str, Interval]] = list(zip(self.loops, self.ranges, strict=True))
        return [*kept[: self.before], *loops, *kept[self.before :]]

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(upper - lower for _, (lower, upper) in self.axes)

    @property
    def origin(self) -> tuple[int, ...]:
        """The coordinates of its first element."""
        return tuple(lower for _, (lower, _) in self.axes)

    @property
    def positions(self) -> tuple[Position, ...]:
        """Where in it the read finds its element."""
        return tuple(
            self.read.positions[axis] if isinstance(axis, int) else Position(((axis, 1),)) for axis, _ in self.axes
        )


@dataclass(frozen=True, slots=True)
class MadeArrays:
    """What is not there before a kernel runs: reads that are gathered, by number, and the values of loops."""

    gathered: Mapping[int, tuple[Gather, Array]]
    indices: Mapping[str, Array]


NOTHING_MADE = MadeArrays({}, {})
"""All that positions at data need: these are read at indices alone."""


@dataclass(frozen=True, slots=True)
class IndexCall:
    """An index program, its operands with their blocks, and the interval of each loop."""

    program: IndexProgram
    shapes: tuple[tuple[int, ...], ...]
    ranges: Ranges
    inputs: tuple[Array, ...]
    blocks: tuple[Block, ...]
    outputs: tuple[Array, ...]
    is_reproducible: bool
    repetitions: int
    """How many invocations of its kind an execution has; any number where the code decides about bits."""

    @staticmethod
    def parse(invocation: Invocation[Array]) -> IndexCall:
        shapes = parse_shapes(invocation.attribute("shapes", str))
        program = read_index_program(invocation.attribute, shapes)
        inputs, blocks, outputs = (*invocation.inputs,), (*invocation.input_blocks,), (*invocation.outputs,)
        ranges = program.find_ranges(shapes, blocks, invocation.output_blocks[0])
        is_reproducible = invocation.is_reproducible
        repetitions = ANY_NUMBER if is_reproducible else invocation.repetitions
        return IndexCall(program, shapes, ranges, inputs, blocks, outputs, is_reproducible, repetitions)

    @property
    def output(self) -> Array:
        """The only output, or the first one of an aggregation of several values."""
        return self.outputs[0]

    def part(self, program: IndexProgram, output: Array) -> IndexCall:
        """A program of the same tensors, within the same ranges."""
        ranges = {name: self.ranges[name] for name, _ in program.loops}
        return replace(self, program=program, ranges=ranges, outputs=(output,))

    def find_type(self, program: IndexProgram) -> DType:
        """The type in which the values of a program of the same tensors are computed."""
        types = [
            dtype_name(self.inputs[read.operand]) if isinstance(read, TensorRead) else INDEX_TYPE
            for read in program.reads
        ]
        steps = infer_steps(ScalarProgram.parse(program.program, len(types)), types, compute_type)
        return storage_dtype(steps[-1].result_type)

    def find_view(self) -> Array | None:
        """The elements of a tensor where these are the values as they are."""
        program = self.program
        if program.program != "t0 = copy x0" or not isinstance(program.reads[0], TensorRead) or self.find_gathers():
            return None
        return np.broadcast_to(self.view(0, NOTHING_MADE).align(program.result), self.output.shape)

    def find_parts(self) -> tuple[list[Array], list[Array]] | None:
        """Parts of operands, and the parts of the result that they are copied to, where it does nothing else."""
        concatenation = find_concatenation(self.program, self.shapes)
        if concatenation is None:
            return None
        sources, targets = [], []
        first, end = self.ranges[self.program.result[concatenation.axis]]
        before = (slice(None),) * concatenation.axis
        for operand, start, stop in concatenation.parts:
            lower, upper = max(start, first), min(stop, end)
            if lower < upper:
                origin = start + self.blocks[operand].lower[concatenation.axis]
                sources.append(self.inputs[operand][(*before, slice(lower - origin, upper - origin))])
                targets.append(self.output[(*before, slice(lower - first, upper - first))])
        return sources, targets

    def find_gathers(self) -> dict[int, Gather]:
        """The reads that are no views, by number."""
        gathers: dict[int, Gather] = {}
        for number, read in enumerate(self.program.reads):
            if isinstance(read, TensorRead):
                gather = self._find_gather(read)
                if gather is not None:
                    gathers[number] = gather
        return gathers

    def _find_gather(self, read: TensorRead) -> Gather | None:
        shape = self.shapes[read.operand]
        spans = [position.span(self.ranges) for position in read.positions]
        joint = [dim for dim, position in enumerate(read.positions) if not position.is_affine]
        if not joint and all(
            span is not None and span[0] >= 0 and span[1] <= extent for span, extent in zip(spans, shape, strict=True)
        ):
            return None
        loops: set[str] = set()
        # A dimension that shares a loop with those that are gathered is gathered with them, not for each pair.
        while True:
            loops = set().union(*(self.program.loops_at(read.positions[dim]) for dim in joint))
            more = [
                dim
                for dim, position in enumerate(read.positions)
                if dim not in joint and loops.intersection(position.loops)
            ]
            if not more:
                break
            joint += more
        kept = tuple(dim for dim in range(len(shape)) if dim not in joint)
        order = tuple(name for name, _ in self.program.loops if name in loops)
        known = tuple(span for dim in kept if (span := spans[dim]) is not None)
        return Gather(read, kept, known, order, tuple(self.ranges[name] for name in order))

    def find_only_gather(self) -> tuple[Gather, Array] | None:
        """The gather of a program that does nothing else, and its result with the axes of the gather."""
        program, gather = self.program, self.find_gathers().get(0)
        if program.program != COPY_PROGRAM or program.aggregation or gather is None:
            return None
        if self.inputs[gather.read.operand].dtype != self.output.dtype:
            return None
        names = [axis if isinstance(axis, str) else gather.read.positions[axis].loop for axis, _ in gather.axes]
        if None in names or sorted(map(str, names)) != sorted(program.result):
            return None
        return gather, self.output.transpose([program.result.index(str(name)) for name in names])

    @property
    def missing_rows(self) -> int | None:
        """The dimension of a table of which it has a part of the rows that are looked up; None where it has all."""
        lookup = self.program.lookup
        return lookup.dim if lookup is not None and lookup.name in self.ranges else None

    def list_indices(self) -> list[str]:
        """The loops whose values are read, and those on which nothing else depends that are aggregated over."""
        read = [read.loop for read in self.program.reads if isinstance(read, IndexRead)]
        known = {name for read in self.program.reads for name in self.program.loops_of(read)}
        return list(dict.fromkeys([*read, *(name for name in self.program.reduced if name not in known)]))

    def view(self, number: int, arrays: MadeArrays) -> NamedArray:
        """The elements that a read finds, by the loops on which it depends."""
        read = self.program.reads[number]
        if isinstance(read, IndexRead):
            return NamedArray((read.loop,), arrays.indices[read.loop])
        if number in arrays.gathered:
            gather, array = arrays.gathered[number]
            return self._view_affine(array, gather.origin, gather.positions)
        return self._view_affine(self.inputs[read.operand], self.blocks[read.operand].lower, read.positions)

    def _view_affine(self, array: Array, origin: Sequence[int], positions: Sequence[Position]) -> NamedArray:
        strides: dict[str, int] = {}
        corner: list[Any] = []
        for position, lower, stride in zip(positions, origin, array.strides, strict=True):
            start = position.constant - lower
            for name, factor in position.terms:
                start += factor * self.ranges[name][0]
                strides[name] = strides.get(name, 0) + factor * stride
            corner.append(slice(start, start + 1))
        names = tuple(name for name, _ in self.program.loops if name in strides)
        shape = [self.ranges[name][1] - self.ranges[name][0] for name in names]
        steps = [strides[name] for name in names]
        first = array[(*corner, Ellipsis)]  # a view, also of an array without dimensions
        return NamedArray(names, np.lib.stride_tricks.as_strided(first, shape, steps))

    def list_views(self, arrays: MadeArrays) -> tuple[ScalarProgram, tuple[int, ...], list[NamedArray]]:
        """The scalar program, the reads that are its inputs, and the views of these and of loops that nothing else has.
        What is read for the sake of positions alone is in the arrays that are gathered."""
        program = self.program
        scalar, read = ScalarProgram.parse(program.program, len(program.reads)).without_unread()
        views = [self.view(number, arrays) for number in read]
        known = {name for view in views for name in view.names}
        views += [NamedArray((name,), arrays.indices[name]) for name in program.reduced if name not in known]
        return scalar, read, views

    def join(self, arrays: MadeArrays) -> Invocation[Array]:
        """The product, the reduction or the map that it is of its views."""
        program = self.program
        scalar, read, views = self.list_views(arrays)
        equation = str(IndexEquation(tuple(view.names for view in views), program.result))
        operands = [view.array for view in views]
        mark: dict[str, Attribute] = {ATTRIBUTE: True} if self.is_reproducible else {}
        factor = scalar.product_factor
        tensors = all(isinstance(program.reads[number], TensorRead) for number in read) and len(views) == len(read)
        # A product has all indices of its result in its operands.
        is_product = tensors and {name for view in views for name in view.names}.issuperset(program.result)
        if program.aggregation == "sum" and len(views) > 1 and is_product and factor is not None:
            if factor == 1:
                return self._invoke("contract", {"equation": equation, **mark}, operands)
            if dtype_name(self.output) in FLOATS:
                return self._invoke("contract", {"equation": equation, "scale": factor, **mark}, operands)
        attributes: dict[str, Attribute] = {"program": scalar.text, "indices": equation, **mark}
        if program.aggregation:
            return self._invoke("reduce", {**attributes, "aggregation": program.aggregation}, operands)
        return self._invoke("map", attributes, operands)

    def _invoke(self, name: str, attributes: Mapping[str, Attribute], operands: Sequence[Array]) -> Invocation[Array]:
        return Invocation(name, attributes, operands, [self.output], repetitions=self.repetitions)

    def require_inside(self, gather: Gather, dim: int, least: int, most: int) -> None:
        """Raises ValueFault where positions at data are outside of a tensor."""
        extent = self.shapes[gather.read.operand][dim]
        if not gather.read.outside and (least < 0 or most >= extent):
            wrong = least if least < 0 else most
            raise ValueFault(f"a position is {wrong}; positions along this dimension are 0 to {extent - 1}")

    @property
    def size(self) -> int:
        """How many index vectors it has."""
        return math.prod(self.ranges[name][1] - self.ranges[name][0] for name, _ in self.program.loops)
