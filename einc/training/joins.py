"""Writing joins: tensors that are read at positions of loops, a scalar program over them, and an aggregation.

A join becomes an index equation where every dimension is read at one loop, so that products of matrices are found in
it, and an index program otherwise. Loops can be replaced by positions: so the gradient of a read at a position is a
join that reads where that position was computed from.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from einc.core.tensor import TensorDesc
from einc.graph.builder import GraphBuilder
from einc.ops import registry
from einc.ops.base import Operator
from einc.ops.equation import build_equation
from einc.ops.index_operator import build_index_operator
from einc.ops.scalar import ProgramBuilder, make_literal
from einc_runtime.plan.index_programs import IndexProgram, IndexRead, Position, TensorRead
from einc_runtime.plan.scalar_programs import Operand, ScalarInput, ScalarProgram

Loops = Mapping[str, int]
"""The extent of each loop."""


@dataclass(frozen=True, slots=True)
class TensorAccess:
    """An element of a tensor of the graph at positions of loops; `outside` as in index programs."""

    tensor: str
    desc: TensorDesc
    positions: tuple[Position, ...]
    outside: str = ""


Access = TensorAccess | IndexRead


@dataclass
class JoinDraft:
    """What is read at each index vector of some loops, and the steps that are computed of it."""

    loops: dict[str, int]
    reads: list[Access] = field(default_factory=list)
    steps: ProgramBuilder = field(default_factory=lambda: ProgramBuilder(0))

    def read(self, tensor: str, desc: TensorDesc, loops: Sequence[str]) -> ScalarInput:
        """The element of a tensor at a loop for each dimension."""
        return self.add(TensorAccess(tensor, desc, tuple(Position(((name, 1),)) for name in loops)))

    def value(self, loop: str) -> ScalarInput:
        return self.add(IndexRead(loop))

    def add(self, access: Access) -> ScalarInput:
        """What is read so; equal reads are one."""
        if access not in self.reads:
            self.reads.append(access)
        return ScalarInput(self.reads.index(access))

    def program(self, *values: Operand) -> ScalarProgram:
        """The program that ends with these values."""
        self.steps.arity = len(self.reads)
        return self.steps.program(*values)

    def list_used(self, *values: Operand) -> list[int]:
        """The reads on which values depend, those of positions included."""
        needed = _list_inputs(self.program(*values))
        for number in list(needed):
            needed |= _list_elements(self.reads[number])
        return sorted(needed)


def write_join(
    builder: GraphBuilder,
    join: JoinDraft,
    value: Operand,
    result: Sequence[tuple[str, str]],
    aggregation: str = "sum",
    name: str = "",
) -> str:
    """Adds the operator that aggregates a value over all loops but those of `result`, pairs of a loop and the name of
    its dimension. Returns the name of the tensor, `name` if that is free."""
    operator, tensors = make_join_operator(join, [value], result, aggregation)
    (output,) = builder.apply(operator, tensors, [name] if name else [])
    return output


def make_join_operator(
    join: JoinDraft, values: Sequence[Operand], result: Sequence[tuple[str, str]], aggregation: str = "sum"
) -> tuple[Operator, list[str]]:
    """The operator that aggregates values over all loops but those of `result`, and the tensors that it reads.

    Of several values, the aggregation is a definition, whose text it is.
    """
    used = join.list_used(*values)
    number = {old: new for new, old in enumerate(used)}
    reads = [_renumber(join.reads[old], number) for old in used]
    inputs: list[Operand] = [ScalarInput(number.get(old, 0)) for old in range(len(join.reads))]
    steps = ProgramBuilder(len(reads))
    scalar = steps.program(*steps.insert_all(join.program(*values), inputs)[-len(values) :])
    kept = [loop for loop, _ in result]
    names = {*kept, *(loop for read in reads for loop in list_loops(read))}
    gone = [loop for loop in join.loops if loop in names and loop not in kept]
    count = math.prod(extent for loop, extent in join.loops.items() if loop not in names)
    if aggregation == "sum" and count > 1:  # no read tells the values at these loops apart
        scalar = steps.program(steps.add("mul", steps.insert(scalar, list(map(ScalarInput, range(len(reads))))), count))
    loops = tuple((loop, join.loops[loop]) for loop in (*kept, *gone))
    accesses = [read for read in reads if isinstance(read, TensorAccess)]
    if len(accesses) == len(reads) and _is_plain(accesses, dict(loops)):
        operands = [(read.desc, tuple(position.loops[0] for position in read.positions)) for read in accesses]
        operator = build_equation(operands, result, scalar, aggregation if gone else None)
        return operator, [read.tensor for read in accesses]
    tensors = {read.tensor: read.desc for read in accesses}
    places = list(tensors)
    written = [
        TensorRead(places.index(read.tensor), read.positions, read.outside) if isinstance(read, TensorAccess) else read
        for read in reads
    ]
    program = IndexProgram(loops, len(kept), tuple(written), "", aggregation if gone else "")
    return build_index_operator(list(tensors.values()), program, scalar, [dim for _, dim in result]), places


def _is_plain(reads: Sequence[TensorAccess], loops: Loops) -> bool:
    """Whether all that is read is whole tensors, each dimension at a loop, and each loop is read."""
    seen: set[str] = set()
    for read in reads:
        for position, extent in zip(read.positions, read.desc.shape, strict=True):
            loop = position.loop
            if loop is None or position.constant or loops.get(loop) != extent:
                return False
            seen.add(loop)
    return seen == set(loops)


def _renumber(read: Access, number: Mapping[int, int]) -> Access:
    if isinstance(read, IndexRead):
        return read
    return replace(
        read,
        positions=tuple(
            replace(
                position,
                terms=tuple((f"@{number[int(n[1:])]}" if n[0] == "@" else n, factor) for n, factor in position.terms),
            )
            for position in read.positions
        ),
    )


def list_loops(read: Access) -> list[str]:
    if isinstance(read, IndexRead):
        return [read.loop]
    return [name for position in read.positions for name in position.loops]


def _list_inputs(program: ScalarProgram) -> set[int]:
    return {x.position for step in program.steps for x in step.operands if isinstance(x, ScalarInput)}


def _list_elements(read: Access) -> set[int]:
    if isinstance(read, IndexRead):
        return set()
    return {number for position in read.positions for number in position.elements}


def reshape(builder: GraphBuilder, name: str, dims: Sequence[str], shape: Sequence[int]) -> str:
    """The elements of a tensor under other dimensions; itself, if it has these."""
    desc = builder.desc(name)
    if (desc.dims, desc.shape) == (tuple(dims), tuple(shape)):
        return name
    operator = registry.restore("reshape", (desc,), {"dims": tuple(dims), "shape": tuple(shape)})
    return builder.apply(operator, (name,))[0]


# ---- positions in place of loops ----


def add_position(join: JoinDraft, position: Position) -> Operand:
    """The value of a position, of loops and of elements that the join reads, as an i64."""
    total: Operand | None = None
    for name, factor in position.terms:
        term: Operand = join.value(name) if name[0] != "@" else join.steps.add("cast:i64", ScalarInput(int(name[1:])))
        term = term if factor == 1 else join.steps.add("mul", term, factor)
        total = term if total is None else join.steps.add("add", total, term)
    if total is None:
        return make_literal(position.constant)
    total = total if position.constant == 0 else join.steps.add("add", total, position.constant)
    total = total if position.divisor == 1 else join.steps.add("floordiv", total, position.divisor)
    return total if position.modulus == 0 else join.steps.add("mod", total, position.modulus)


def substitute(position: Position, solved: Mapping[str, Position]) -> Position | None:
    """The position with positions in place of loops; None where no position says that."""
    present = [name for name, _ in position.terms if name in solved]
    if not present:
        return position
    if any(solved[name].divisor != 1 for name in present):
        alone = position.terms == ((present[0], 1),) and position.constant == 0
        if not alone or position.divisor != 1 or position.modulus:
            return None
        return solved[present[0]]
    terms: dict[str, int] = {}
    constant = position.constant
    for name, factor in position.terms:
        inner = solved.get(name, Position(((name, 1),)))
        constant += factor * inner.constant
        for loop, inner_factor in inner.terms:
            terms[loop] = terms.get(loop, 0) + factor * inner_factor
    kept = tuple((loop, factor) for loop, factor in terms.items() if factor)
    return Position(kept, constant, position.divisor, position.modulus)


def find_span(position: Position, loops: Loops) -> tuple[int, int] | None:
    """The least and the greatest value of a position; None where it depends on data."""
    span = position.span({name: (0, extent) for name, extent in loops.items()})
    return None if span is None else (span[0], span[1] - 1)


def is_within(position: Position, loops: Loops, extent: int) -> bool:
    """Whether all of its values are positions of a dimension, as far as they are known."""
    span = find_span(position, loops)
    return span is None or (span[0] >= 0 and span[1] < extent)
