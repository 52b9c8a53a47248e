"""The abstract syntax of the model language: what a text says, before any name is looked up.

Spans do not take part in comparisons, so that a printed and parsed model equals the original.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from einc.errors import SourceSpan

_NOWHERE = SourceSpan("", 1, 1, 1, "")


@dataclass(frozen=True, slots=True)
class Syntax:
    """Anything that stands somewhere in a text."""

    span: SourceSpan = field(default=_NOWHERE, compare=False, repr=False, kw_only=True)


@dataclass(frozen=True, slots=True)
class Name(Syntax):
    """A name, as an expression or as a part of a statement."""

    text: str


# -- expressions ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Literal(Syntax):
    """A number, `true`, `false` or a string; numbers are not negative."""

    value: bool | int | float | str

    def __eq__(self, other: object) -> bool:
        """Equal in type and value: 1, 1.0 and true are three literals."""
        return isinstance(other, Literal) and type(self.value) is type(other.value) and self.value == other.value

    def __hash__(self) -> int:
        return hash((type(self.value), self.value))


@dataclass(frozen=True, slots=True)
class List(Syntax):
    """`[1, 2, 3]`"""

    items: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class Negative(Syntax):
    """`-x`"""

    operand: Expression


@dataclass(frozen=True, slots=True)
class Binary(Syntax):
    """`left operator right`, where the operator is written as in the text."""

    operator: str
    left: Expression
    right: Expression


@dataclass(frozen=True, slots=True)
class Keyword(Syntax):
    """`name=value` among the arguments of a call."""

    name: Name
    value: Expression


@dataclass(frozen=True, slots=True)
class Call(Syntax):
    """`function(argument, name=value)`: an operator of the library, a block, or a function of lists."""

    function: Name
    arguments: tuple[Expression, ...]
    keywords: tuple[Keyword, ...] = ()


@dataclass(frozen=True, slots=True)
class Indexed(Syntax):
    """`base[i, j]`: an element of a tensor, in an index equation."""

    base: Expression
    indices: tuple[Name, ...]


@dataclass(frozen=True, slots=True)
class Aggregate(Syntax):
    """`operation[i, j](body)`: an aggregation over indices, in an index equation."""

    operation: Name
    indices: tuple[Name, ...]
    body: Expression


Expression = Name | Literal | List | Negative | Binary | Call | Indexed | Aggregate


# -- statements -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ModelName(Syntax):
    """`model name`"""

    name: Name


@dataclass(frozen=True, slots=True)
class Param(Syntax):
    """`param name = value`"""

    name: Name
    value: Expression


@dataclass(frozen=True, slots=True)
class Dim(Syntax):
    """`dim name = value`"""

    name: Name
    value: Expression


@dataclass(frozen=True, slots=True)
class Input(Syntax):
    """`input name : dtype[dims]`"""

    name: Name
    dtype: Name
    dims: tuple[Name, ...]


@dataclass(frozen=True, slots=True)
class Weight(Syntax):
    """`weight name : dtype[dims] from "stored"`"""

    name: Name
    dtype: Name
    dims: tuple[Name, ...]
    stored: Literal | None = None


@dataclass(frozen=True, slots=True)
class Assign(Syntax):
    """`a, b = value`"""

    targets: tuple[Name, ...]
    value: Expression


@dataclass(frozen=True, slots=True)
class Equation(Syntax):
    """`target[i, j] = value`"""

    target: Name
    indices: tuple[Name, ...]
    value: Expression


@dataclass(frozen=True, slots=True)
class Output(Syntax):
    """`output a, b`, or an assignment or equation whose names are saved at once."""

    names: tuple[Name, ...]
    definition: Assign | Equation | None = None


@dataclass(frozen=True, slots=True)
class Return(Syntax):
    """`return a, b` in a block"""

    values: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class Block(Syntax):
    """`block name(parameters) { body }`"""

    name: Name
    parameters: tuple[Name, ...]
    body: tuple[Statement, ...]


@dataclass(frozen=True, slots=True)
class Repeat(Syntax):
    """`repeat count as variable { body }`"""

    count: Expression
    variable: Name | None
    body: tuple[Statement, ...]


@dataclass(frozen=True, slots=True)
class Preset(Syntax):
    """`preset name { param = value }`"""

    name: Name
    body: tuple[Statement, ...]


Statement = ModelName | Param | Dim | Input | Weight | Assign | Equation | Output | Return | Block | Repeat | Preset


@dataclass(frozen=True, slots=True)
class Model:
    """All statements of a text, in its order."""

    statements: tuple[Statement, ...]
