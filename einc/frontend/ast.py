"""The abstract syntax of the model language, and how to walk it without recursion.

It holds what a text says, before any name is looked up. Comparisons ignore spans, so that a model that is printed and
parsed again equals the original. The parser bounds how deeply syntax nests, so that later stages may recurse.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from einc.errors import SourceSpan

_NO_SPAN = SourceSpan("", 1, 1, 1, "")


@dataclass(frozen=True, slots=True)
class SyntaxNode:
    """A piece of syntax with its place in the text."""

    span: SourceSpan = field(default=_NO_SPAN, compare=False, repr=False, kw_only=True)


@dataclass(frozen=True, slots=True)
class Name(SyntaxNode):
    """A name, as an expression or as a part of a statement."""

    text: str


# -- expressions ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LiteralExpr(SyntaxNode):
    """A number (never negative), `true`, `false` or a string."""

    value: bool | int | float | str

    def __eq__(self, other: object) -> bool:
        """Equal in type and value: 1, 1.0 and true are three literals."""
        return isinstance(other, LiteralExpr) and type(self.value) is type(other.value) and self.value == other.value

    def __hash__(self) -> int:
        return hash((type(self.value), self.value))


@dataclass(frozen=True, slots=True)
class ListExpr(SyntaxNode):
    """`[1, 2, 3]`"""

    items: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class NegativeExpr(SyntaxNode):
    """`-x`"""

    operand: Expression


@dataclass(frozen=True, slots=True)
class BinaryExpr(SyntaxNode):
    """`left operator right`, with the operator as the text writes it."""

    operator: str
    left: Expression
    right: Expression


@dataclass(frozen=True, slots=True)
class KeywordArgument(SyntaxNode):
    """`name=value` among the arguments of a call."""

    name: Name
    value: Expression


@dataclass(frozen=True, slots=True)
class CallExpr(SyntaxNode):
    """`function(argument, name=value)`: a call of an operator, a block, or a function of lists."""

    function: Name
    arguments: tuple[Expression, ...]
    keywords: tuple[KeywordArgument, ...] = ()


@dataclass(frozen=True, slots=True)
class IndexItem(SyntaxNode):
    """What stands between the commas of `[ ]`: `i`, `2 * i + 1`, `i = extent`, `dimension: i`, or `...`.

    `value` is None for `...`.
    """

    value: Expression | None
    dimension: Name | None = None
    extent: Expression | None = None

    @property
    def name(self) -> Name | None:
        """The index, where the value is one, or the dimension of a declared tensor."""
        return self.value if isinstance(self.value, Name) else None


@dataclass(frozen=True, slots=True)
class IndexedExpr(SyntaxNode):
    """`base[i, j]`: an element of a tensor, in an index equation."""

    base: Expression
    indices: tuple[IndexItem, ...]


@dataclass(frozen=True, slots=True)
class AggregateExpr(SyntaxNode):
    """`operation[i, j](body, ...)`: an aggregation over indices, in an index equation; of several values if they are
    aggregated together."""

    operation: Name
    indices: tuple[IndexItem, ...]
    body: Expression
    further_values: tuple[Expression, ...] = ()

    @property
    def values(self) -> tuple[Expression, ...]:
        return (self.body, *self.further_values)


Expression = Name | LiteralExpr | ListExpr | NegativeExpr | BinaryExpr | CallExpr | IndexedExpr | AggregateExpr


# -- statements -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ModelDecl(SyntaxNode):
    """`model name`"""

    name: Name


@dataclass(frozen=True, slots=True)
class ParamDecl(SyntaxNode):
    """`param name = value`"""

    name: Name
    value: Expression


@dataclass(frozen=True, slots=True)
class DimDecl(SyntaxNode):
    """`dim name = value`"""

    name: Name
    value: Expression


@dataclass(frozen=True, slots=True)
class InputDecl(SyntaxNode):
    """`input name : dtype[dims]`"""

    name: Name
    dtype: Name
    dims: tuple[IndexItem, ...]


@dataclass(frozen=True, slots=True)
class StateDecl(SyntaxNode):
    """`state name : dtype[dims]`"""

    name: Name
    dtype: Name
    dims: tuple[IndexItem, ...]


@dataclass(frozen=True, slots=True)
class WeightDecl(SyntaxNode):
    """`weight name : dtype[dims] as storage from "stored"`"""

    name: Name
    dtype: Name
    dims: tuple[IndexItem, ...]
    stored: LiteralExpr | None = None
    storage: Name | CallExpr | None = None


@dataclass(frozen=True, slots=True)
class AssignStmt(SyntaxNode):
    """`a, b = value`"""

    targets: tuple[Name, ...]
    value: Expression


@dataclass(frozen=True, slots=True)
class EquationStmt(SyntaxNode):
    """`target[i, j] = value`, with further targets before `=` if the value is an aggregation of several."""

    target: Name
    indices: tuple[IndexItem, ...]
    value: Expression
    further_targets: tuple[IndexedExpr, ...] = ()

    @property
    def names(self) -> tuple[Name, ...]:
        return (self.target, *(target.base for target in self.further_targets if isinstance(target.base, Name)))


@dataclass(frozen=True, slots=True)
class OutputStmt(SyntaxNode):
    """`output a, b`, or `output` before an assignment or equation, whose names are then saved."""

    names: tuple[Name, ...]
    definition: AssignStmt | EquationStmt | None = None


@dataclass(frozen=True, slots=True)
class ReturnStmt(SyntaxNode):
    """`return a, b` in a block"""

    values: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class Parameter(SyntaxNode):
    """`name` or `name = default` among the parameters of a block."""

    name: Name
    default: Expression | None = None


@dataclass(frozen=True, slots=True)
class BlockDecl(SyntaxNode):
    """`block name(parameters) { body }`"""

    name: Name
    parameters: tuple[Parameter, ...]
    body: tuple[Statement, ...]


@dataclass(frozen=True, slots=True)
class AggregateDecl(SyntaxNode):
    """`aggregate name(left, right, property = value) { body }`; left and right are names, or tuples of names."""

    name: Name
    operands: tuple[tuple[Name, ...], ...]
    properties: tuple[Parameter, ...]
    body: tuple[Statement, ...]


@dataclass(frozen=True, slots=True)
class IdentityStmt(SyntaxNode):
    """`identity a, b` in an aggregate"""

    values: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class RepeatStmt(SyntaxNode):
    """`repeat count as variable { body }`"""

    count: Expression
    variable: Name | None
    body: tuple[Statement, ...]


@dataclass(frozen=True, slots=True)
class ScanStmt(SyntaxNode):
    """`scan index { body }`: equations that are computed together at each position of an index."""

    along: Name
    body: tuple[Statement, ...]


@dataclass(frozen=True, slots=True)
class PresetDecl(SyntaxNode):
    """`preset name { param = value }`"""

    name: Name
    body: tuple[Statement, ...]


@dataclass(frozen=True, slots=True)
class UseStmt(SyntaxNode):
    """`use "file.ein"`: the blocks of another file."""

    file: LiteralExpr


Statement = (
    ModelDecl
    | UseStmt
    | ParamDecl
    | DimDecl
    | InputDecl
    | StateDecl
    | WeightDecl
    | AssignStmt
    | EquationStmt
    | OutputStmt
    | ReturnStmt
    | BlockDecl
    | AggregateDecl
    | IdentityStmt
    | RepeatStmt
    | ScanStmt
    | PresetDecl
)


@dataclass(frozen=True, slots=True)
class ModelSyntax:
    """All statements of a text, in its order."""

    statements: tuple[Statement, ...]


# -- walking ----------------------------------------------------------------------------------------------------------


def iterate_parts(expression: Expression) -> Iterator[Expression]:
    """The expression and all expressions inside it, in the order of the text."""
    waiting = [expression]
    while waiting:
        current = waiting.pop()
        yield current
        waiting += reversed(_list_operands(current))


def unfold_chain(last: BinaryExpr) -> list[BinaryExpr]:
    """The operators of a chain `a + b - c ...` in the order of the text.

    Each operator after the first has the one before it as its left operand. A chain counts as one level of depth,
    so that long sums are allowed.
    """
    links = [last]
    while isinstance(links[-1].left, BinaryExpr):
        links.append(links[-1].left)
    return links[::-1]


def list_own_expressions(statement: Statement) -> tuple[Expression, ...]:
    """The expressions that stand in a statement itself, not in its body."""
    match statement:
        case EquationStmt():
            items = (item for target in statement.further_targets for item in list_item_values(target.indices))
            return (*list_item_values(statement.indices), *items, statement.value)
        case ParamDecl() | DimDecl() | AssignStmt():
            return (statement.value,)
        case OutputStmt():
            return () if statement.definition is None else list_own_expressions(statement.definition)
        case InputDecl() | StateDecl() | WeightDecl():
            return list_item_values(statement.dims)
        case ReturnStmt() | IdentityStmt():
            return statement.values
        case RepeatStmt():
            return (statement.count,)
        case BlockDecl(parameters=parameters) | AggregateDecl(properties=parameters):
            return tuple(parameter.default for parameter in parameters if parameter.default is not None)
        case _:
            return ()


def measure_depth(statement: Statement) -> int:
    """How deeply operands nest in the statement's own expressions; a chain of operators is one level."""
    deepest = 0
    waiting = [(expression, 1) for expression in list_own_expressions(statement)]
    while waiting:
        expression, depth = waiting.pop()
        deepest = max(deepest, depth)
        if isinstance(expression, BinaryExpr):
            inner = depth if isinstance(expression.left, BinaryExpr) else depth + 1
            waiting += [(expression.left, inner), (expression.right, depth + 1)]
        else:
            waiting += [(operand, depth + 1) for operand in _list_operands(expression)]
    return deepest


def _list_operands(expression: Expression) -> tuple[Expression, ...]:
    """The expressions directly inside an expression, in the order of the text."""
    match expression:
        case ListExpr():
            return expression.items
        case NegativeExpr():
            return (expression.operand,)
        case BinaryExpr():
            return (expression.left, expression.right)
        case CallExpr():
            return (*expression.arguments, *(keyword.value for keyword in expression.keywords))
        case IndexedExpr():
            return (expression.base, *list_item_values(expression.indices))
        case AggregateExpr():
            return (*list_item_values(expression.indices), *expression.values)
        case _:
            return ()


def list_item_values(items: tuple[IndexItem, ...]) -> tuple[Expression, ...]:
    """The expressions among the items of `[ ]` that are more than a name."""
    parts = (part for item in items for part in (item.value, item.extent))
    return tuple(part for part in parts if part is not None and not isinstance(part, Name))
