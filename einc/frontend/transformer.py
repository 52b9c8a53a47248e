"""From the parser's reductions to the AST: one method per rule or alias of `grammars/ein.lark`.

The parser calls the methods as it reduces; no parse tree is built, and nothing here recurses. Every method takes
the list of what its rule holds: tokens, and results of other methods.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from einc.errors import SourceSpan
from einc.frontend import ast
from einc.frontend.tokens import Lexeme

Children = list[Any]


@dataclass(frozen=True, slots=True)
class _Bracketed:
    """Names in square brackets, and where the bracket closes."""

    names: tuple[ast.Name, ...]
    end: SourceSpan


def joined(first: SourceSpan, last: SourceSpan) -> SourceSpan:
    """From the start of one span to the end of another, or to the end of the first line."""
    end = last.end_column if last.line == first.line else len(first.text) + 1
    return SourceSpan(first.file, first.line, first.column, end, first.text)


def _names(tokens: Children) -> tuple[ast.Name, ...]:
    return tuple(ast.Name(str(token), span=token.span) for token in tokens)


def _name(token: Lexeme) -> ast.Name:
    return ast.Name(str(token), span=token.span)


class ToAst:
    """The callbacks of the parser."""

    # -- lists --

    def start(self, children: Children) -> ast.Model:
        return ast.Model(tuple(children[0]))

    def no_statements(self, children: Children) -> Children:
        return []

    def first(self, children: Children) -> Children:
        return children

    def append(self, children: Children) -> Children:
        """The list so far grows in place: nothing else holds it."""
        items: Children = children[0]
        items.append(children[1])
        return items

    def same(self, children: Children) -> Any:
        return children[0]

    def bracketed(self, children: Children) -> _Bracketed:
        return _Bracketed(_names(children[1]) if len(children) == 3 else (), children[-1].span)

    # -- statements --

    def model_name(self, children: Children) -> ast.ModelName:
        word, name = children
        return ast.ModelName(_name(name), span=joined(word.span, name.span))

    def param(self, children: Children) -> ast.Param:
        word, name, value = children
        return ast.Param(_name(name), value, span=joined(word.span, value.span))

    def dim(self, children: Children) -> ast.Dim:
        word, name, value = children
        return ast.Dim(_name(name), value, span=joined(word.span, value.span))

    def input_tensor(self, children: Children) -> ast.Input:
        word, name, dtype, dims = children
        return ast.Input(_name(name), _name(dtype), dims.names, span=joined(word.span, dims.end))

    def weight(self, children: Children) -> ast.Weight:
        word, name, dtype, dims = children[:4]
        stored: ast.Literal | None = children[4] if len(children) > 4 else None
        end = dims.end if stored is None else stored.span
        return ast.Weight(_name(name), _name(dtype), dims.names, stored, span=joined(word.span, end))

    def output_names(self, children: Children) -> ast.Output:
        word, names = children
        return ast.Output(_names(names), span=joined(word.span, names[-1].span))

    def output_assign(self, children: Children) -> ast.Output:
        word, names, value = children
        definition = self.assign([names, value])
        return ast.Output(definition.targets, definition, span=joined(word.span, value.span))

    def output_equation(self, children: Children) -> ast.Output:
        definition = self.equation(children[1:])
        return ast.Output((definition.target,), definition, span=joined(children[0].span, definition.span))

    def assign(self, children: Children) -> ast.Assign:
        targets, value = children
        return ast.Assign(_names(targets), value, span=joined(targets[0].span, value.span))

    def equation(self, children: Children) -> ast.Equation:
        target, indices, value = children
        return ast.Equation(_name(target), indices.names, value, span=joined(target.span, value.span))

    def return_values(self, children: Children) -> ast.Return:
        word, values = children
        return ast.Return(tuple(values), span=joined(word.span, values[-1].span))

    def block(self, children: Children) -> ast.Block:
        word, name = children[:2]
        parameters = _names(children[3]) if len(children) == 6 else ()
        return ast.Block(_name(name), parameters, tuple(children[-1]), span=joined(word.span, name.span))

    def repeat(self, children: Children) -> ast.Repeat:
        word, count = children[:2]
        variable = _name(children[2]) if len(children) == 4 else None
        return ast.Repeat(count, variable, tuple(children[-1]), span=joined(word.span, count.span))

    def preset(self, children: Children) -> ast.Preset:
        word, name, body = children
        return ast.Preset(_name(name), tuple(body), span=joined(word.span, name.span))

    # -- expressions --

    def name(self, children: Children) -> ast.Name:
        return _name(children[0])

    def integer(self, children: Children) -> ast.Literal:
        return ast.Literal(int(children[0]), span=children[0].span)

    def floating(self, children: Children) -> ast.Literal:
        return ast.Literal(float(children[0]), span=children[0].span)

    def string(self, children: Children) -> ast.Literal:
        return ast.Literal(str(children[0])[1:-1], span=children[0].span)

    def true(self, children: Children) -> ast.Literal:
        return ast.Literal(True, span=children[0].span)

    def false(self, children: Children) -> ast.Literal:
        return ast.Literal(False, span=children[0].span)

    def list(self, children: Children) -> ast.List:
        items = tuple(children[1]) if len(children) == 3 else ()
        return ast.List(items, span=joined(children[0].span, children[-1].span))

    def binary(self, children: Children) -> ast.Binary:
        left, operator, right = children
        return ast.Binary(str(operator), left, right, span=joined(left.span, right.span))

    def negative(self, children: Children) -> ast.Negative:
        minus, operand = children
        return ast.Negative(operand, span=joined(minus.span, operand.span))

    def group(self, children: Children) -> ast.Expression:
        inner: ast.Expression = children[1]
        return inner

    def keyword(self, children: Children) -> ast.Keyword:
        name, value = children
        return ast.Keyword(_name(name), value, span=joined(name.span, value.span))

    def call(self, children: Children) -> ast.Call:
        function, given = children[0], children[2] if len(children) == 4 else []
        return ast.Call(
            _name(function),
            tuple(argument for argument in given if not isinstance(argument, ast.Keyword)),
            tuple(argument for argument in given if isinstance(argument, ast.Keyword)),
            span=joined(function.span, children[-1].span),
        )

    def indexed_name(self, children: Children) -> ast.Indexed:
        return self.indexed([_name(children[0]), children[1]])

    def indexed(self, children: Children) -> ast.Indexed:
        base, indices = children
        return ast.Indexed(base, indices.names, span=joined(base.span, indices.end))

    def aggregate(self, children: Children) -> ast.Aggregate:
        operation, indices, _, body, end = children
        return ast.Aggregate(_name(operation), indices.names, body, span=joined(operation.span, end.span))
