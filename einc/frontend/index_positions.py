"""What stands in the brackets of a read: positions in a tensor as sums of indices, at data, or of whole dimensions.

A position that is no sum of indices, elements and numbers becomes a tensor of its own first, which has it at each
index vector.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from einc.core.tensor import TensorDesc
from einc.errors import SourceSpan
from einc.frontend import ast, constants
from einc.frontend.ast import iterate_parts
from einc.frontend.context import LoweringContext
from einc.frontend.expressions import TensorValue, evaluate_integer, evaluate_value
from einc.frontend.joins import Apply, Element, EquationScope, Join, RecurrenceParts, Start
from einc.frontend.list_reads import find_list, read_list_position
from einc_runtime.plan.index_programs import NEAREST_ELEMENT, Position
from einc_runtime.plan.scalar_programs import ScalarInput
from einc_runtime.text import did_you_mean, format_count

Evaluate = Callable[[LoweringContext, Join, ast.Expression], Element]
"""Evaluates an expression at one index vector."""

OUTSIDE = "outside"
"""The key of what a read finds outside of its tensor."""

ELEMENT = "element"
"""What a read finds outside where that is an element of another tensor (`RecurrenceParts.starts`)."""

CONDITIONS = ("<", "<=", ">", ">=", "==", "!=")
"""The comparisons that may follow an index that is aggregated over."""

_SIGNED = {"+": 1, "-": -1}


@dataclass(frozen=True, slots=True)
class ReadContext:
    """The equation that a read stands in, with how its parts are evaluated and added to the graph."""

    context: LoweringContext
    join: Join
    evaluate: Evaluate
    apply: Apply

    @property
    def scope(self) -> EquationScope:
        return self.join.scope


def find_index_names(*syntaxes: ast.Expression) -> frozenset[str]:
    """The names that stand alone in brackets anywhere in these expressions."""
    names: set[str] = set()
    for syntax in syntaxes:
        for part in iterate_parts(syntax):
            if isinstance(part, ast.IndexedExpr | ast.AggregateExpr):
                names.update(name_items(part.indices))
    return frozenset(names)


def name_items(items: Sequence[ast.IndexItem]) -> list[str]:
    """The indices that items name: alone, with an extent, along a dimension, or with a condition."""
    names = []
    for item in items:
        if item.name is not None:
            names += [item.name.text] if item.extent is None or item.name.text != OUTSIDE else []
        elif isinstance(item.value, ast.BinaryExpr) and item.value.operator in CONDITIONS:
            names += [item.value.left.text] if isinstance(item.value.left, ast.Name) else []
    return names


def read_element(reading: ReadContext, tensor: TensorValue, syntax: ast.IndexedExpr) -> ScalarInput:
    """The element of a tensor at the positions that stand in brackets."""
    recurrence = reading.scope.recurrence
    is_value = recurrence is not None and recurrence.has(tensor)
    starts = [item for item in syntax.indices if is_value and _is_start(reading, item)]
    items, outside = _split_outside(reading.context, [item for item in syntax.indices if item not in starts])
    placed = place_items(reading, tensor.desc, items, syntax)
    positions = tuple(_read_position(reading, item, tensor.desc, dim) for dim, item in enumerate(placed))
    if starts:
        _note_start(reading, tensor, positions, starts[0])
        outside = ELEMENT
    return reading.join.read(tensor, positions, syntax.span, outside)


def _is_start(reading: ReadContext, item: ast.IndexItem) -> bool:
    """Whether it is `outside = h0`, a tensor, or `outside = h0[d]`: what a value of a recurrence is before its first
    step."""
    start = item.extent if item.name is not None and item.name.text == OUTSIDE else None
    if isinstance(start, ast.Name):
        return start.text != NEAREST_ELEMENT and isinstance(evaluate_value(reading.context, start), TensorValue)
    return start is not None and any(isinstance(part, ast.IndexedExpr) for part in iterate_parts(start))


def _note_start(reading: ReadContext, value: TensorValue, positions: Sequence[Position], item: ast.IndexItem) -> None:
    """Keeps the element that a value of a recurrence is before its first step. A tensor without indices is read at
    those of the value but for the one along which it runs."""
    recurrence, syntax = reading.scope.recurrence, item.extent
    assert recurrence is not None
    assert syntax is not None
    loops = [position.loop for position in positions]
    if isinstance(syntax, ast.Name):
        tensor = evaluate_value(reading.context, syntax)
        dims = tuple(dim for dim in range(value.desc.rank) if dim != recurrence.steps[value.name])
        shape = tuple(value.desc.shape[dim] for dim in dims)
        assert isinstance(tensor, TensorValue)
        if tensor.desc.shape != shape:
            message = f"expected a tensor of the shape {list(shape)} before the first step, found {tensor.desc}"
            raise reading.context.findings.fail(message, syntax.span, "or read it at indices: `outside = h0[d]`")
        note_start(reading.context, recurrence, value, Start("", tensor, dims), item.span)
        return
    join = Join(replace(reading.scope, recurrence=None))
    element = reading.evaluate(reading.context, join, syntax)
    names = join.reads[0].labels if len(join.reads) == 1 and element == ScalarInput(0) else None
    start = join.reads[0].tensor
    if names is None or start is None:
        names, start = join.indices(), reading.apply(reading.context, join, element, syntax.span)
    if not set(names) <= set(loops):
        message = "what is found before the first step has an index at which the value is not read"
        raise reading.context.findings.fail(message, syntax.span)
    note_start(reading.context, recurrence, value, Start("", start, tuple(map(loops.index, names))), item.span)


def note_start(
    context: LoweringContext, recurrence: RecurrenceParts, value: TensorValue, start: Start, span: SourceSpan
) -> None:
    """Keeps what a value is before the first step, which all reads of it must say alike."""
    if recurrence.starts.setdefault(value.name, start) != start:
        message = f"'{value.name[1:]}' is read with two values before its first step"
        raise context.findings.fail(
            message, span, "say the same `outside = ...` wherever it is read at the step before"
        )


def name_dimension(context: LoweringContext, key: ast.Name) -> str:
    """The name of the dimension that a key stands for: the string that is its value, or else the key itself."""
    value = context.scope.owner(key.text).values.get(key.text, context.parameters.values.get(key.text))
    return value if isinstance(value, str) else key.text


def find_dimension(context: LoweringContext, key: ast.Name, dims: Sequence[str]) -> int:
    """The position of the dimension that a key names."""
    name = name_dimension(context, key)
    if name not in dims:
        message = f"there is no dimension '{name}' among {', '.join(dims) or 'none'}"
        raise context.findings.fail(message, key.span, did_you_mean(name, dims))
    return dims.index(name)


def _split_outside(context: LoweringContext, items: Sequence[ast.IndexItem]) -> tuple[list[ast.IndexItem], str]:
    """The items that are positions, and what is found outside."""
    outside = ""
    positions = []
    for item in items:
        if item.extent is None:
            positions.append(item)
            continue
        if item.name is None or item.name.text != OUTSIDE:
            message = "extents are given on the left side, or where is aggregated"
            raise context.findings.fail(message, item.span)
        if isinstance(item.extent, ast.Name) and item.extent.text == NEAREST_ELEMENT:
            outside = NEAREST_ELEMENT
            continue
        value = evaluate_value(context, item.extent)
        if isinstance(value, TensorValue | tuple | str):
            described = "a tensor" if isinstance(value, TensorValue) else constants.describe_value(value)
            raise context.findings.fail(f"expected a number or `nearest`, found {described}", item.span)
        outside = repr(value).lower()
    return positions, outside


def place_items(
    reading: ReadContext, desc: TensorDesc, items: Sequence[ast.IndexItem], syntax: ast.IndexedExpr
) -> list[ast.IndexItem]:
    """One item for each dimension: those with a key at theirs, the others in order, `...` for those that are left."""
    context, dims = reading.context, desc.dims
    placed: dict[int, ast.IndexItem] = {}
    for item in items:
        if item.dimension is not None:
            dim = find_dimension(context, item.dimension, dims)
            if dim in placed:
                raise context.findings.fail(f"dimension '{dims[dim]}' is read at two positions", item.span)
            placed[dim] = item
    in_order = [item for item in items if item.dimension is None]
    left = [dim for dim in range(desc.rank) if dim not in placed]
    ellipses = [position for position, item in enumerate(in_order) if item.value is None]
    if len(ellipses) > 1:
        raise context.findings.fail("`...` stands twice here", in_order[ellipses[1]].span)
    if len(in_order) - len(ellipses) > len(left) or (not ellipses and len(in_order) < len(left)):
        expected = format_count(desc.rank, "index", "indices")
        message = f"expected {expected} for {desc}, found {len(items)}"
        raise context.findings.fail(message, syntax.span, "write one index per dimension")
    if ellipses:
        if reading.scope.reference is None:
            reading.scope.reference = desc
        at = ellipses[0]
        count = len(left) - len(in_order) + 1
        in_order[at : at + 1] = [in_order[at]] * count
    placed.update(zip(left, in_order, strict=True))
    return [placed[dim] for dim in range(desc.rank)]


def _read_position(reading: ReadContext, item: ast.IndexItem, desc: TensorDesc, dim: int) -> Position:
    if item.value is None:
        return Position(((reading.scope.spread_over(desc.dims[dim]), 1),))
    if isinstance(item.value, ast.Name) and item.value.text in reading.scope.indices:
        _require_declared_extent(reading, item.value, desc, dim)
    if not _is_linear(reading, item.value):
        return _read_computed(reading, item.value)
    return _evaluate_linear(reading, item.value)


def _require_declared_extent(reading: ReadContext, index: ast.Name, desc: TensorDesc, dim: int) -> None:
    """An index with the name of a declared dim has its extent, unless the equation gives it another one."""
    declared, extent = reading.context.parameters.dims.get(index.text), desc.shape[dim]
    if declared is not None and declared != extent and index.text not in reading.scope.extents:
        raise reading.context.findings.fail(
            f"index '{index.text}' has extent {declared:,}, but dimension {dim + 1} of {desc} has {extent:,}",
            index.span,
            f"use '{desc.dims[dim]}' here, or an index that is not declared" if index.text != desc.dims[dim] else None,
        )


def _is_linear(reading: ReadContext, syntax: ast.Expression) -> bool:
    """Whether it is a sum of indices, elements and numbers with factors, perhaps divided by a number at the end."""
    if isinstance(syntax, ast.BinaryExpr) and syntax.operator in ("//", "%"):
        return _is_sum(reading, syntax.left) and _is_static(reading, syntax.right)
    return _is_sum(reading, syntax)


def _is_sum(reading: ReadContext, syntax: ast.Expression) -> bool:
    match syntax:
        case ast.NegativeExpr():
            return _is_sum(reading, syntax.operand)
        case ast.BinaryExpr(operator="+" | "-"):
            return _is_sum(reading, syntax.left) and _is_sum(reading, syntax.right)
        case ast.BinaryExpr(operator="*"):
            sides = (syntax.left, syntax.right)
            return any(_is_static(reading, side) for side in sides) and all(_is_sum(reading, side) for side in sides)
        case ast.IndexedExpr():
            return find_list(reading.context, syntax) is not None or _is_plain_read(syntax)
        case ast.Name():
            return syntax.text in reading.scope.indices or _is_static(reading, syntax)
        case _:
            return _is_static(reading, syntax)


def _is_plain_read(syntax: ast.IndexedExpr) -> bool:
    """Whether a tensor is read at sums of indices, within its bounds: other elements are not read for a position."""
    parts = list(iterate_parts(syntax))
    inner = [part for part in parts if isinstance(part, ast.IndexedExpr | ast.AggregateExpr)]
    divides = any(isinstance(part, ast.BinaryExpr) and part.operator in ("//", "%") for part in parts)
    within = all(item.extent is None for item in syntax.indices)
    return len(inner) == 1 and isinstance(syntax.base, ast.Name) and within and not divides


def _is_static(reading: ReadContext, syntax: ast.Expression) -> bool:
    """Whether it has neither indices nor elements."""
    return not any(
        isinstance(part, ast.IndexedExpr | ast.AggregateExpr)
        or (isinstance(part, ast.Name) and part.text in reading.scope.indices)
        for part in iterate_parts(syntax)
    )


def _evaluate_linear(reading: ReadContext, syntax: ast.Expression) -> Position:
    context = reading.context
    if _is_static(reading, syntax):
        return Position((), evaluate_integer(context, syntax, "a position"))
    match syntax:
        case ast.Name():
            return Position(((syntax.text, 1),))
        case ast.NegativeExpr():
            return _scale(_evaluate_linear(reading, syntax.operand), -1)
        case ast.BinaryExpr(operator="//" | "%"):
            inner = _evaluate_linear(reading, syntax.left)
            number = evaluate_integer(context, syntax.right, "a divisor")
            if number < 1:
                raise context.findings.fail(f"a position is divided by {number}", syntax.right.span)
            divides = syntax.operator == "//"
            if number == 1:
                return inner if divides else Position((), 0)
            return Position(inner.terms, inner.constant, number if divides else 1, 0 if divides else number)
        case ast.BinaryExpr(operator="*"):
            factor, position = syntax.left, syntax.right
            if not _is_static(reading, factor):
                factor, position = position, factor
            return _scale(_evaluate_linear(reading, position), evaluate_integer(context, factor, "a factor"))
        case ast.BinaryExpr():
            left, right = (_evaluate_linear(reading, side) for side in (syntax.left, syntax.right))
            return _add(left, _scale(right, _SIGNED[syntax.operator]))
        case _:
            assert isinstance(syntax, ast.IndexedExpr)
            item = read_list_position(context, reading.scope, syntax)
            if item is not None:
                return item
            element = reading.evaluate(context, reading.join, syntax)
            assert isinstance(element, ScalarInput)
            return _read_number(reading, element, syntax.span)


def _read_computed(reading: ReadContext, syntax: ast.Expression) -> Position:
    """A position that is computed at each index vector by an equation of its own, and read from its result."""
    join = Join(reading.scope)
    element = reading.evaluate(reading.context, join, syntax)
    value = reading.apply(reading.context, join, element, syntax.span)
    positions = tuple(Position(((name, 1),)) for name in join.indices())
    return _read_number(reading, reading.join.read(value, positions, syntax.span), syntax.span)


def _read_number(reading: ReadContext, element: ScalarInput, span: SourceSpan) -> Position:
    read = reading.join.reads[element.position]
    assert read.tensor is not None
    if not read.tensor.desc.dtype.is_integer:
        message = f"a position is an integer, found an element of {read.tensor.desc}"
        raise reading.context.findings.fail(message, span, 'convert it: cast(x, "i64")')
    return Position(((f"@{element.position}", 1),))


def _scale(position: Position, factor: int) -> Position:
    terms = tuple((name, factor * number) for name, number in position.terms) if factor else ()
    return Position(terms, factor * position.constant)


def _add(left: Position, right: Position) -> Position:
    terms = dict(left.terms)
    for name, number in right.terms:
        terms[name] = terms.get(name, 0) + number
    return Position(tuple((name, number) for name, number in terms.items() if number), left.constant + right.constant)
