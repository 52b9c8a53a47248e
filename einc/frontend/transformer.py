"""Builds the syntax tree from the parser's reductions: one method per rule or alias of `grammars/ein.lark`.

The parser calls the methods as it reduces. No parse tree is built, and nothing here recurses. Every method takes the
list of its rule's parts: tokens, and results of other methods.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from einc.errors import SourceSpan
from einc.frontend import ast
from einc.frontend.tokens import SpannedToken

Children = list[Any]


@dataclass(frozen=True, slots=True)
class _Bracketed:
    """What stands in square brackets, and where the bracket closes."""

    items: tuple[ast.IndexItem, ...]
    end: SourceSpan


def join_spans(first: SourceSpan, last: SourceSpan) -> SourceSpan:
    """From the start of one span to the end of another, or to the end of the first line."""
    end = last.end_column if last.line == first.line else len(first.text) + 1
    return SourceSpan(first.file, first.line, first.column, end, first.text)


def _make_names(tokens: Children) -> tuple[ast.Name, ...]:
    return tuple(ast.Name(str(token), span=token.span) for token in tokens)


def _make_name(token: SpannedToken) -> ast.Name:
    return ast.Name(str(token), span=token.span)


class AstBuilder:
    """The parser's callbacks."""

    # -- lists --

    def start(self, children: Children) -> ast.ModelSyntax:
        return ast.ModelSyntax(tuple(children[0]))

    def no_statements(self, children: Children) -> Children:
        return []

    def first(self, children: Children) -> Children:
        return children

    def append(self, children: Children) -> Children:
        """Adds to the list in place: nothing else refers to it."""
        items: Children = children[0]
        items.append(children[1])
        return items

    def same(self, children: Children) -> Any:
        return children[0]

    def bracketed(self, children: Children) -> _Bracketed:
        return _Bracketed(tuple(children[1]) if len(children) == 3 else (), children[-1].span)

    def plain_item(self, children: Children) -> ast.IndexItem:
        return ast.IndexItem(children[0], span=children[0].span)

    def item_with_extent(self, children: Children) -> ast.IndexItem:
        name, extent = children
        return ast.IndexItem(_make_name(name), None, extent, span=join_spans(name.span, extent.span))

    def item_of_dimension(self, children: Children) -> ast.IndexItem:
        dimension, value = children[:2]
        extent = children[2] if len(children) == 3 else None
        if extent is not None:
            value = _make_name(value)
        end = (value if extent is None else extent).span
        return ast.IndexItem(value, _make_name(dimension), extent, span=join_spans(dimension.span, end))

    def other_items(self, children: Children) -> ast.IndexItem:
        return ast.IndexItem(None, span=children[0].span)

    # -- statements --

    def model_name(self, children: Children) -> ast.ModelDecl:
        word, name = children
        return ast.ModelDecl(_make_name(name), span=join_spans(word.span, name.span))

    def param(self, children: Children) -> ast.ParamDecl:
        word, name, value = children
        return ast.ParamDecl(_make_name(name), value, span=join_spans(word.span, value.span))

    def dim(self, children: Children) -> ast.DimDecl:
        word, name, value = children
        return ast.DimDecl(_make_name(name), value, span=join_spans(word.span, value.span))

    def input_tensor(self, children: Children) -> ast.InputDecl:
        word, name, dtype, dims = children
        return ast.InputDecl(_make_name(name), _make_name(dtype), dims.items, span=join_spans(word.span, dims.end))

    def state(self, children: Children) -> ast.StateDecl:
        word, name, dtype, dims = children
        return ast.StateDecl(_make_name(name), _make_name(dtype), dims.items, span=join_spans(word.span, dims.end))

    def weight(self, children: Children) -> ast.WeightDecl:
        word, name, dtype, dims = children[:4]
        stored: ast.LiteralExpr | None = children[4] if len(children) > 4 else None
        end = dims.end if stored is None else stored.span
        return ast.WeightDecl(_make_name(name), _make_name(dtype), dims.items, stored, span=join_spans(word.span, end))

    def quantized_weight(self, children: Children) -> ast.WeightDecl:
        word, name, dtype, dims, storage = children[:5]
        stored: ast.LiteralExpr | None = children[5] if len(children) > 5 else None
        span = join_spans(word.span, (stored or storage).span)
        return ast.WeightDecl(_make_name(name), _make_name(dtype), dims.items, stored, storage, span=span)

    def output_names(self, children: Children) -> ast.OutputStmt:
        word, names = children
        return ast.OutputStmt(_make_names(names), span=join_spans(word.span, names[-1].span))

    def output_assign(self, children: Children) -> ast.OutputStmt:
        word, names, value = children
        definition = self.assign([names, value])
        return ast.OutputStmt(definition.targets, definition, span=join_spans(word.span, value.span))

    def output_equation(self, children: Children) -> ast.OutputStmt:
        definition = self.equation(children[1:])
        return ast.OutputStmt(definition.names, definition, span=join_spans(children[0].span, definition.span))

    def assign(self, children: Children) -> ast.AssignStmt:
        targets, value = children
        return ast.AssignStmt(_make_names(targets), value, span=join_spans(targets[0].span, value.span))

    def equation(self, children: Children) -> ast.EquationStmt:
        (first, *further), value = children
        span = join_spans(first.span, value.span)
        return ast.EquationStmt(first.base, first.indices, value, tuple(further), span=span)

    def first_indexed(self, children: Children) -> Children:
        name, indices = children
        return [ast.IndexedExpr(_make_name(name), indices.items, span=join_spans(name.span, indices.end))]

    def append_indexed(self, children: Children) -> Children:
        return self.append([children[0], *self.first_indexed(children[1:])])

    def return_values(self, children: Children) -> ast.ReturnStmt:
        word, values = children
        return ast.ReturnStmt(tuple(values), span=join_spans(word.span, values[-1].span))

    def block(self, children: Children) -> ast.BlockDecl:
        word, name = children[:2]
        parameters = tuple(children[3]) if len(children) == 6 else ()
        return ast.BlockDecl(_make_name(name), parameters, tuple(children[-1]), span=join_spans(word.span, name.span))

    def parameter(self, children: Children) -> ast.Parameter:
        name, default = children[0], children[1] if len(children) == 2 else None
        end = name.span if default is None else default.span
        return ast.Parameter(_make_name(name), default, span=join_spans(name.span, end))

    def tuple_operand(self, children: Children) -> tuple[ast.Name, ...]:
        return _make_names(children[1])

    def aggregate_definition(self, children: Children) -> ast.AggregateDecl:
        word, name, _, listed, _, body = children
        properties = tuple(x for x in listed if isinstance(x, ast.Parameter) and x.default is not None)
        operands = tuple(
            (x.name,) if isinstance(x, ast.Parameter) else x
            for x in listed
            if not any(x is kept for kept in properties)
        )
        return ast.AggregateDecl(
            _make_name(name), operands, properties, tuple(body), span=join_spans(word.span, name.span)
        )

    def identity(self, children: Children) -> ast.IdentityStmt:
        word, values = children
        return ast.IdentityStmt(tuple(values), span=join_spans(word.span, values[-1].span))

    def use(self, children: Children) -> ast.UseStmt:
        word, file = children
        return ast.UseStmt(file, span=join_spans(word.span, file.span))

    def repeat(self, children: Children) -> ast.RepeatStmt:
        word, count = children[:2]
        variable = _make_name(children[2]) if len(children) == 4 else None
        return ast.RepeatStmt(count, variable, tuple(children[-1]), span=join_spans(word.span, count.span))

    def scan(self, children: Children) -> ast.ScanStmt:
        word, along, body = children
        return ast.ScanStmt(_make_name(along), tuple(body), span=join_spans(word.span, along.span))

    def preset(self, children: Children) -> ast.PresetDecl:
        word, name, body = children
        return ast.PresetDecl(_make_name(name), tuple(body), span=join_spans(word.span, name.span))

    # -- expressions --

    def name(self, children: Children) -> ast.Name:
        return _make_name(children[0])

    def integer(self, children: Children) -> ast.LiteralExpr:
        return ast.LiteralExpr(int(children[0]), span=children[0].span)

    def floating(self, children: Children) -> ast.LiteralExpr:
        return ast.LiteralExpr(float(children[0]), span=children[0].span)

    def string(self, children: Children) -> ast.LiteralExpr:
        return ast.LiteralExpr(str(children[0])[1:-1], span=children[0].span)

    def true(self, children: Children) -> ast.LiteralExpr:
        return ast.LiteralExpr(True, span=children[0].span)

    def false(self, children: Children) -> ast.LiteralExpr:
        return ast.LiteralExpr(False, span=children[0].span)

    def list(self, children: Children) -> ast.ListExpr:
        items = tuple(children[1]) if len(children) == 3 else ()
        return ast.ListExpr(items, span=join_spans(children[0].span, children[-1].span))

    def binary(self, children: Children) -> ast.BinaryExpr:
        left, operator, right = children
        return ast.BinaryExpr(str(operator), left, right, span=join_spans(left.span, right.span))

    def negative(self, children: Children) -> ast.NegativeExpr:
        minus, operand = children
        return ast.NegativeExpr(operand, span=join_spans(minus.span, operand.span))

    def group(self, children: Children) -> ast.Expression:
        inner: ast.Expression = children[1]
        return inner

    def keyword(self, children: Children) -> ast.KeywordArgument:
        name, value = children
        return ast.KeywordArgument(_make_name(name), value, span=join_spans(name.span, value.span))

    def call(self, children: Children) -> ast.CallExpr:
        function, listed = children[0], children[2] if len(children) == 4 else []
        return ast.CallExpr(
            _make_name(function),
            tuple(argument for argument in listed if not isinstance(argument, ast.KeywordArgument)),
            tuple(argument for argument in listed if isinstance(argument, ast.KeywordArgument)),
            span=join_spans(function.span, children[-1].span),
        )

    def indexed_name(self, children: Children) -> ast.IndexedExpr:
        return self.indexed([_make_name(children[0]), children[1]])

    def indexed(self, children: Children) -> ast.IndexedExpr:
        base, indices = children
        return ast.IndexedExpr(base, indices.items, span=join_spans(base.span, indices.end))

    def aggregate(self, children: Children) -> ast.AggregateExpr:
        operation, indices, _, (body, *further), end = children
        return ast.AggregateExpr(
            _make_name(operation), indices.items, body, tuple(further), span=join_spans(operation.span, end.span)
        )
