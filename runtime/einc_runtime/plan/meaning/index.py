"""The family `index`: an index program, which reads its operands at expressions of indices and at data.

Loops of the result may be cut anywhere, and so may those that are aggregated over where a block tells their interval.
What a function reads is the hull of all positions within its intervals: windows overlap by their halos. The rows of a
table that are looked up at data may be cut, too: a function has zeros for those that it lacks, and these are summed.
Products with experts have a kernel of their own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from einc_runtime.plan.aggregate_definitions import count_values, find_definition
from einc_runtime.plan.element_types import DTypeName
from einc_runtime.plan.index_programs import INDEX_TYPE, IndexProgram, IndexRead, TensorRead, read_index_program
from einc_runtime.plan.meaning.terms import (
    FLOATS,
    INTEGERS,
    MAX_INDEX_VECTORS,
    Application,
    IndexForm,
    Interval,
    OperatorMeaning,
    TensorForm,
    direct,
    unique_names,
)
from einc_runtime.plan.scalar_programs import ScalarProgram, infer_steps
from einc_runtime.plan.schema import JointAggregation

AGGREGATIONS = ("sum", "max", "min", "prod")
MAX_FREE_VECTORS = 1 << 24
"""The most index vectors of loops that no dimension bounds, so that a short text cannot ask for endless work."""


@dataclass(frozen=True, slots=True)
class ReadAxis:
    """Dimension `dim` of operand `operand` of a program that is cut along `cut`."""

    program: IndexProgram
    operand: int
    dim: int
    shape: tuple[int, ...]
    cut: tuple[str, ...]

    @property
    def index(self) -> None:
        return None

    def interval(self, chosen: Sequence[Interval], extent: int) -> Interval:
        ranges = {**self.program.whole, **dict(zip(self.cut, chosen, strict=True))}
        return self.program.read_span(self.operand, self.dim, self.shape[self.dim], ranges)


def index(applied: Application) -> OperatorMeaning:
    """`loops`, `kept`, `reads`, `program` and `aggregation` are those of the program; `dims` names the dimensions of
    each result. An aggregation that does not commute is applied in the order of its loops, which are not cut."""
    applied.allow(("loops", "kept", "reads", "program", "aggregation", "dims"))
    dims, shapes = applied.items("dims", str), tuple(tensor.shape for tensor in applied.inputs)
    program = read_index_program(applied.value, shapes)
    applied.require(len(dims) == program.kept, f"{len(dims)} names for {program.kept} dimensions")
    few = math.prod(program.extents.values()) < MAX_INDEX_VECTORS
    free = [program.extents[name] for name in program.reduced if name not in program.find_bound_loops(shapes)]
    few = few and math.prod(free) <= MAX_FREE_VECTORS
    applied.require(few, "it has too many index vectors")
    types: list[DTypeName] = [
        applied.inputs[read.operand].dtype if isinstance(read, TensorRead) else INDEX_TYPE for read in program.reads
    ]
    for read in program.reads:
        for number in (n for position in getattr(read, "positions", ()) for n in position.elements):
            element = program.reads[number]
            is_integer = isinstance(element, IndexRead) or applied.inputs[element.operand].dtype in INTEGERS
            applied.require(is_integer, f"{read} has positions that are no integers")
        if isinstance(read, TensorRead) and read.outside:
            require_outside(applied, read, applied.inputs[read.operand])
    aggregation, definition = program.aggregation, find_definition(program.aggregation)
    steps = infer_steps(ScalarProgram.parse(program.program, len(types)), types)
    results: list[DTypeName] = [step.result_type for step in steps[-count_values(aggregation) :]]  # type: ignore[misc]
    if definition is None:
        fits = aggregation in AGGREGATIONS and results != ["bool"] if program.reduced else aggregation == ""
        applied.require(fits, f"aggregation '{aggregation[:40]}' of {results[0]} over {len(program.reduced)} loops")
    else:
        applied.require(len(results) == definition.count, f"{len(results)} values for {definition.name}")
        definition.infer_steps(results)
    cut = program.list_cuts(shapes, results[0])
    extended, lookup = dict(program.extents), program.lookup
    names = dict(zip(cut, cut, strict=True))
    if lookup is not None:
        table = applied.inputs[lookup.table]
        extended[lookup.name] = table.shape[lookup.dim]
        names[lookup.name] = unique_names((*program.extents, table.dims[lookup.dim]))[-1]
    extents = tuple(extent for _, extent in program.loops[: program.kept])
    kept, number = direct(range(program.kept)), tuple(range(len(results)))
    kept_dims = tuple(range(program.kept))
    kernel, attributes = "index", {name: value for name, value in applied.attributes.items() if name != "dims"}
    attributes["shapes"] = format_shapes(shapes)
    if program.is_expert_product and results[0] in FLOATS:
        kernel, attributes = "expert_matmul", {"experts": shapes[1][0]}
        if program.expert_axes != (program.result[-1], *program.reduced):
            attributes["transposed"] = True
    return OperatorMeaning(
        kernel,
        attributes,
        tuple(TensorForm(dims, extents, result) for result in results),
        tuple(IndexForm(names[name], extended[name]) for name in cut),
        tuple(
            tuple(ReadAxis(program, operand, dim, tensor.shape, cut) for dim in range(tensor.rank))
            for operand, tensor in enumerate(applied.inputs)
        ),
        (kept,) * len(results),
        (definition.kind if definition is not None else aggregation or "sum",) * len(results),
        (JointAggregation(number, (kept_dims,) * len(results)),) if len(results) > 1 else (),
    )


def require_outside(applied: Application, read: TensorRead, tensor: TensorForm) -> None:
    """What is found outside is a value of the tensor's type."""
    if read.outside == "nearest":
        return
    is_bool, is_whole = read.outside in ("true", "false"), read.outside.lstrip("-").isdigit()
    fits = is_bool if tensor.dtype == "bool" else not is_bool and (is_whole or tensor.dtype not in INTEGERS)
    if fits and tensor.dtype in INTEGERS:
        bits = 31 if tensor.dtype == "i32" else 63
        fits = -(1 << bits) <= int(read.outside) < 1 << bits
    applied.require(fits, f"{read} finds '{read.outside[:40]}' outside of a tensor of {tensor.dtype}")


def format_shapes(shapes: Sequence[Sequence[int]]) -> str:
    """The shapes of whole operands, as kernels have them: `8x64x56x56 64x64x3x3`; `-` for one without dimensions."""
    return " ".join("x".join(map(str, shape)) or "-" for shape in shapes)


def parse_shapes(text: str) -> tuple[tuple[int, ...], ...]:
    """The shapes of `format_shapes`; raises ValueError for anything else."""
    words = text.split(" ") if text else []
    return tuple(tuple(map(int, word.split("x"))) if word != "-" else () for word in words)
