"""Calls of the kernels `map` and `reduce`: a scalar program over joined indices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from einc_runtime.dtypes import Array
from einc_runtime.kernels import indices
from einc_runtime.kernels.base import Invocation, dtype_name
from einc_runtime.kernels.scalar_program import read_steps
from einc_runtime.plan.index_equations import parse_index_equation
from einc_runtime.plan.scalar_programs import TypedStep

COMBINE_FUNCTIONS = {"sum": "add", "prod": "mul", "max": "max", "min": "min"}
"""Aggregation -> the scalar function that combines two values."""


@dataclass(frozen=True, slots=True)
class MapCall:
    """The steps of a program over views that all have the dimensions `indices`, with extent 1 where one is broadcast.

    `kinds` are the element types of the views and then of the output; `source` is the program's text.
    """

    steps: tuple[TypedStep, ...]
    views: tuple[Array, ...]
    output: Array
    kinds: tuple[str, ...]
    indices: tuple[str, ...]
    source: str

    @staticmethod
    def parse(invocation: Invocation[Array]) -> MapCall:
        joined, names = _join_operands(invocation)
        steps, kinds, source = _parse_program(invocation)
        return MapCall(steps, joined.align(names), invocation.output, kinds, names, source)


@dataclass(frozen=True, slots=True)
class ReduceCall(MapCall):
    """A map whose results are aggregated over the indices that are `reduced`; the output has extent 1 along these.

    The indices are those of the largest input as it lies in memory, then those of the others.
    """

    reduced: tuple[bool, ...]
    aggregation: str

    @staticmethod
    def parse(invocation: Invocation[Array]) -> ReduceCall:
        joined, kept = _join_operands(invocation)
        aggregation = invocation.attribute("aggregation", str)
        steps, kinds, source = _parse_program(invocation)
        largest = max(joined.operands, key=lambda operand: operand.array.size)
        steps_of = zip(largest.array.shape, largest.array.strides, largest.names, strict=True)
        lying = sorted(steps_of, key=lambda axis: -abs(axis[1]) if axis[0] > 1 else 0)
        order = tuple(dict.fromkeys([*(name for *_, name in lying), *joined.extents]))
        reduced = tuple(name not in kept for name in order)
        result = indices.NamedArray(kept, invocation.output).align(order)
        return ReduceCall(steps, joined.align(order), result, kinds, order, source, reduced, aggregation)


def aggregation_as_map(name: str, reads: Sequence[Array], write: Array) -> Invocation[Array]:
    """The map that aggregates views in their order, by a chain of additions (or the like), rounded once at the end."""
    program, equation = write_aggregation(name, len(reads), write.ndim)
    return Invocation("map", {"program": program, "indices": equation}, reads, [write])


def write_aggregation(name: str, count: int, rank: int) -> tuple[str, str]:
    """The program and the indices of the map that aggregates so many views of a rank."""
    chain = [f"t{k} = {COMBINE_FUNCTIONS[name]} {f't{k - 1}' if k else 'x0'} x{k + 1}" for k in range(count - 1)]
    dims = " ".join(f"i{axis}" for axis in range(rank))
    return "; ".join(chain) or "t0 = copy x0", f"{', '.join([dims] * count)} -> {dims}"


def _join_operands(invocation: Invocation[Array]) -> tuple[indices.JoinedOperands, tuple[str, ...]]:
    equation = parse_index_equation(invocation.attribute("indices", str))
    return indices.join(equation, invocation.inputs, invocation.output), equation.output


def _parse_program(invocation: Invocation[Array]) -> tuple[tuple[TypedStep, ...], tuple[str, ...], str]:
    source = invocation.attribute("program", str)
    kinds = tuple(dtype_name(array) for array in (*invocation.inputs, invocation.output))
    return read_steps(source, kinds[:-1]), kinds, source
