"""The join of one index equation: what its expression reads, the scalar program over it, and the operator of both."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from einc.core.tensor import TensorDesc
from einc.errors import OperatorError, SourceSpan
from einc.frontend.context import LoweringContext
from einc.frontend.expressions import TensorValue
from einc.ops.base import Attribute, Operator
from einc.ops.equation import build_equation
from einc.ops.index_operator import build_index_operator
from einc.ops.scalar import ProgramBuilder
from einc_runtime.plan.aggregate_definitions import AggregateDefinition
from einc_runtime.plan.index_programs import IndexProgram, IndexRead, Position, Read, TensorRead
from einc_runtime.plan.recurrences import RecurrenceEquation
from einc_runtime.plan.scalar_programs import Operand, ScalarInput, ScalarProgram
from einc_runtime.text import did_you_mean

Element = Operand | bool | int | float | str
"""The value of an expression at one index vector: an operand of the scalar program, or a literal."""

Apply = Callable[[LoweringContext, "Join", Element, SourceSpan], TensorValue]
"""Adds a join to the graph whose result has all its indices."""


@dataclass(frozen=True, slots=True)
class ResultIndex:
    """An index of a result, the name of its dimension, and where it stands."""

    index: str
    dim: str
    span: SourceSpan


@dataclass(frozen=True, slots=True)
class PartialEquation:
    """An equation of a recurrence: its place among them, its loops, and the operands that it reads by name."""

    equation: RecurrenceEquation
    operands: tuple[TensorValue, ...]


@dataclass(frozen=True, slots=True)
class Start:
    """What a value of a recurrence is before its first step: a literal, or an element of a tensor, by the dimensions
    of the value that its own dimensions are."""

    literal: str
    tensor: TensorValue | None = None
    dims: tuple[int, ...] = ()


@dataclass(slots=True)
class RecurrenceParts:
    """What is known of a recurrence along `along` while its equations are evaluated.

    `values` are its values by the names that the text gives them, in the graph's terms `@h`; `steps` says along which
    of its dimensions each value runs, and `numbers` which equation it is, once that is known.
    """

    along: str
    values: dict[str, TensorValue] = field(default_factory=dict)
    steps: dict[str, int] = field(default_factory=dict)
    numbers: dict[str, int] = field(default_factory=dict)
    starts: dict[str, Start] = field(default_factory=dict)
    loops: dict[str, int] = field(default_factory=dict)
    equations: list[PartialEquation] = field(default_factory=list)

    def find(self, name: str) -> TensorValue | None:
        """The value that the text calls so."""
        return self.values.get(name)

    def has(self, tensor: TensorValue | None) -> bool:
        """Whether a tensor is a value of the recurrence."""
        return tensor is not None and tensor.name in self.steps


@dataclass(slots=True)
class EquationScope:
    """What one equation says of its indices: their names, the extents that it gives, the dimensions that `...` stands
    for, and the indices with which others are compared, whose extents they take unless they have one. `list_extents`
    has the indices at which lists are read, with the number of their items, and `lists` those that became tensors.

    `reference` is the first tensor that is read with `...`, `recurrence` what the equation belongs to, if it does.
    """

    indices: frozenset[str]
    extents: dict[str, int] = field(default_factory=dict)
    spread: dict[str, str] = field(default_factory=dict)
    extents_from: dict[str, str] = field(default_factory=dict)
    list_extents: dict[str, int] = field(default_factory=dict)
    lists: dict[tuple[Attribute, ...], TensorValue] = field(default_factory=dict)
    reference: TensorDesc | None = None
    recurrence: RecurrenceParts | None = None

    def spread_over(self, dim: str) -> str:
        """The index that runs along a dimension for which `...` stands; no other index has its name."""
        name = dim
        while name in self.indices:
            name += "_"
        self.spread[name] = dim
        return name


@dataclass(frozen=True, slots=True)
class JoinRead:
    """An element of a tensor, or the value of an index where there is none."""

    tensor: TensorValue | None
    positions: tuple[Position, ...]
    outside: str
    span: SourceSpan

    @property
    def labels(self) -> tuple[str, ...] | None:
        """The indices at which a tensor is read, if it is read at nothing else."""
        names = [p.loop for p in self.positions if p.constant == 0]
        plain = len(names) == len(self.positions) and all(names) and not self.outside and self.tensor is not None
        return tuple(name for name in names if name is not None) if plain else None


@dataclass(slots=True)
class Join:
    """What an expression reads, and the scalar program over it.

    In a `product` every factor is an operand of its own, because the kernels of contractions expect that.
    """

    scope: EquationScope
    product: bool = False
    inputs: dict[tuple[object, ...], int] = field(default_factory=dict)
    reads: list[JoinRead] = field(default_factory=list)
    program: ProgramBuilder = field(default_factory=lambda: ProgramBuilder(0))
    step_count: int = 0
    names: dict[str, Element] = field(default_factory=dict)
    """What names stand for in the body of an aggregation: its operands, and what is computed of them."""

    def read(
        self, tensor: TensorValue, positions: tuple[Position, ...], span: SourceSpan, outside: str = ""
    ) -> ScalarInput:
        """The element of a tensor at these positions. Except in a product, a tensor read twice alike is one input."""
        return self._add((tensor.name, positions, outside), JoinRead(tensor, positions, outside, span))

    def read_index(self, name: str, span: SourceSpan) -> ScalarInput:
        return self._add((name,), JoinRead(None, (Position(((name, 1),)),), "", span))

    def _add(self, key: tuple[object, ...], read: JoinRead) -> ScalarInput:
        if key not in self.inputs or (self.product and read.tensor is not None):
            self.inputs[key] = len(self.reads)
            self.reads.append(read)
        return ScalarInput(self.inputs[key])

    def indices(self) -> tuple[str, ...]:
        """All indices, in the order in which the expression first mentions them."""
        names = (name for read in self.reads for position in read.positions for name in position.loops)
        return tuple(dict.fromkeys(names))

    def first_place(self, index: str, otherwise: SourceSpan) -> SourceSpan:
        """Where the first read with an index stands."""
        places = (read.span for read in self.reads if any(index in p.loops for p in read.positions))
        return next(places, otherwise)

    def locate_argument(self, span: SourceSpan) -> Callable[[int | str | None], SourceSpan]:
        """Where an argument of the operator is read; `span` if an error is about none."""
        return lambda argument: self.reads[argument].span if isinstance(argument, int) else span

    def name_result(self, names: Sequence[str], span: SourceSpan) -> list[ResultIndex]:
        """These indices as those of a result, whose dimensions have their names, or those that `...` stands for."""
        return [ResultIndex(name, self.scope.spread.get(name, name), self.first_place(name, span)) for name in names]


def build_aggregate_operator(
    context: LoweringContext,
    join: Join,
    elements: Sequence[Operand],
    result: Sequence[ResultIndex],
    definition: AggregateDefinition,
    span: SourceSpan,
) -> tuple[Operator, list[TensorValue]]:
    """The operator of a join whose elements are aggregated by a definition, and the tensors that it is applied to."""
    join.program.arity = len(join.reads)
    with context.findings.locate_errors(join.locate_argument(span)):
        _require_known(context, join, result, join.indices())
        return _build_general(context, join, join.program.program(*elements), result, definition.text, span)


def build_join_operator(
    context: LoweringContext,
    join: Join,
    element: Element,
    result: Sequence[ResultIndex],
    aggregation: str | None,
    span: SourceSpan,
) -> tuple[Operator, list[TensorValue]]:
    """The operator of a join, and the tensors that it is applied to. Reports what is wrong with it."""
    join.program.arity = len(join.reads)
    with context.findings.locate_errors(join.locate_argument(span)):
        if isinstance(element, str):
            raise OperatorError(f'expected numbers, found the string "{element[:40]}"')
        last = element if isinstance(element, Operand) else join.program.add("copy", element)
        program = join.program.program(last)
        labels = [read.labels for read in join.reads]
        present = join.indices()
        known = {name for names in labels for name in names or ()}
        plain = all(names is not None for names in labels) and _have_given_extents(join)
        if plain and {index.index for index in result} <= known:
            _require_items(join)
            inputs = [
                (read.tensor.desc, names)
                for read, names in zip(join.reads, labels, strict=True)
                if read.tensor is not None and names is not None
            ]
            operator = build_equation(inputs, [(index.index, index.dim) for index in result], program, aggregation)
            return operator, [read.tensor for read in join.reads if read.tensor is not None]
        _require_known(context, join, result, present)
        return _build_general(context, join, program, result, aggregation, span)


def _have_given_extents(join: Join) -> bool:
    """Whether each index whose extent the equation gives is read along dimensions of that extent alone."""
    return all(
        join.scope.extents.get(name, extent) == extent
        for read in join.reads
        if read.tensor is not None
        for name, extent in zip(read.labels or (), read.tensor.desc.shape, strict=False)
    )


def _require_items(join: Join) -> None:
    """Lists have an item for each position of the indices at which they are read."""
    for number, read in enumerate(join.reads):
        shape = read.tensor.desc.shape if read.tensor is not None else ()
        for name, extent in zip(read.labels or (), shape, strict=False):
            _require_length(join, name, extent, number)


def _require_length(join: Join, index: str, extent: int, argument: int | None = None) -> None:
    items = join.scope.list_extents.get(index, extent)
    if items < extent:
        message = f"index '{index}' is {extent:,}, but a list of {items:,} items is read at it"
        raise OperatorError(message, argument=argument)


def _require_known(context: LoweringContext, join: Join, result: Sequence[ResultIndex], present: Sequence[str]) -> None:
    for index in result:
        if index.index not in {*present, *join.scope.extents, *join.scope.list_extents}:
            message = f"index '{index.index}' of the result is in no tensor on the right of '='"
            hint = did_you_mean(index.index, present) or f"or give its extent: `{index.index} = 8`"
            raise context.findings.fail(message, index.span, hint)


def _build_general(
    context: LoweringContext,
    join: Join,
    scalar: ScalarProgram,
    result: Sequence[ResultIndex],
    aggregation: str | None,
    span: SourceSpan,
) -> tuple[Operator, list[TensorValue]]:
    extents = find_extents(context, join, result, span)
    tensors: dict[str, TensorValue] = {}
    for read in sorted(join.reads, key=lambda read: not any(position.elements for position in read.positions)):
        if read.tensor is not None:
            tensors.setdefault(read.tensor.name, read.tensor)
    operands = list(tensors)
    reads: list[Read] = []
    for read in join.reads:
        if read.tensor is None:
            reads.append(IndexRead(read.positions[0].loops[0]))
        else:
            _check_bounds(context, read, extents)
            reads.append(TensorRead(operands.index(read.tensor.name), read.positions, read.outside))
    aggregated = aggregation if aggregation is not None and len(extents) > len(result) else ""
    program = IndexProgram(tuple(extents.items()), len(result), tuple(reads), "", aggregated)
    descs = [tensor.desc for tensor in tensors.values()]
    return build_index_operator(descs, program, scalar, [index.dim for index in result]), list(tensors.values())


def find_extents(
    context: LoweringContext, join: Join, result: Sequence[ResultIndex], span: SourceSpan
) -> dict[str, int]:
    """The extent of every index, those of the result first: as the equation gives it, or that of a dimension that is
    read at the index alone, or that of the dim with its name."""
    read_at: dict[str, int] = {}
    read_beyond: dict[str, int] = {}  # where indices may be outside, so that other extents are as good
    for number, read in enumerate(join.reads):
        if read.tensor is not None:
            for position, extent in zip(read.positions, read.tensor.desc.shape, strict=True):
                if position.loop is None or position.constant:
                    continue
                if read.outside:
                    read_beyond.setdefault(position.loop, extent)
                else:
                    before = read_at.setdefault(position.loop, extent)
                    if before != extent and position.loop not in join.scope.extents:
                        raise OperatorError(
                            f"index '{position.loop}' is {before:,} elsewhere, but {read.tensor.desc} has {extent:,}",
                            argument=number,
                            hint=f"give its extent where it stands alone in brackets: `{position.loop} = ...`",
                        )
    for name, compared in join.scope.extents_from.items():
        if name not in read_at and compared in read_at:
            read_at[name] = read_at[compared]
    known = {**join.scope.list_extents, **read_beyond, **context.parameters.dims, **read_at, **join.scope.extents}
    extents: dict[str, int] = {}
    for name in dict.fromkeys([*(index.index for index in result), *join.indices()]):
        if name not in known:
            raise context.findings.fail(
                f"the extent of index '{name}' is not known: no tensor is read at it alone",
                join.first_place(name, span),
                f"give it where the index stands alone in brackets: `{name} = 8`",
            )
        extents[name] = known[name]
        _require_length(join, name, extents[name])
    return extents


def _check_bounds(context: LoweringContext, read: JoinRead, extents: Mapping[str, int]) -> None:
    """A tensor is read within its bounds, or it is said what is found outside."""
    assert read.tensor is not None
    desc = read.tensor.desc
    ranges = {name: (0, extent) for name, extent in extents.items()}
    for position, dim, extent in zip(read.positions, desc.dims, desc.shape, strict=True):
        span = position.span(ranges)
        if span is not None and not read.outside and not (span[0] >= 0 and span[1] <= extent):
            raise context.findings.fail(
                f"'{position}' is {span[0]:,} to {span[1] - 1:,}, "
                f"but dimension '{dim}' of {desc} has 0 to {extent - 1:,}",
                read.span,
                "say what is found outside, as the last item in brackets: `outside = 0`, or `outside = nearest`",
            )
