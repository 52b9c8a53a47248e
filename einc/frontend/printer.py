"""The canonical text of a syntax tree: parsing it gives an equal tree. Names are kept as written; comments are not."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from einc.frontend import ast
from einc.frontend.ast import unfold_chain

_COMPARISON, _SUM, _PRODUCT, _UNARY, _POWER, _ATOM = range(6)
_BINDING = {
    "+": _SUM, "-": _SUM, "*": _PRODUCT, "/": _PRODUCT, "//": _PRODUCT, "%": _PRODUCT, "**": _POWER,
}  # fmt: skip


def print_model(model: ast.ModelSyntax) -> str:
    """The text of a model, one statement per line."""
    return "".join(f"{line}\n" for line in _format_body(model.statements, ""))


def print_expression(expression: ast.Expression) -> str:
    """The text of an expression, with no more parentheses than it needs."""
    return _format_expression(expression, _COMPARISON)


def _format_body(statements: Sequence[ast.Statement], indent: str) -> Iterable[str]:
    for statement in statements:
        match statement:
            case ast.BlockDecl():
                head = f"block {statement.name.text}({', '.join(map(_format_parameter, statement.parameters))})"
            case ast.AggregateDecl():
                arguments = [
                    names[0].text if len(names) == 1 else f"({_format_names(names)})" for names in statement.operands
                ]
                arguments += map(_format_parameter, statement.properties)
                head = f"aggregate {statement.name.text}({', '.join(arguments)})"
            case ast.RepeatStmt():
                variable = "" if statement.variable is None else f" as {statement.variable.text}"
                head = f"repeat {print_expression(statement.count)}{variable}"
            case ast.ScanStmt():
                head = f"scan {statement.along.text}"
            case ast.PresetDecl():
                head = f"preset {statement.name.text}"
            case _:
                yield indent + _format_statement(statement)
                continue
        yield f"{indent}{head} {{"
        yield from _format_body(statement.body, indent + "    ")
        yield f"{indent}}}"


def _format_statement(statement: ast.Statement) -> str:
    match statement:
        case ast.ModelDecl():
            return f"model {statement.name.text}"
        case ast.ParamDecl():
            return f"param {statement.name.text} = {print_expression(statement.value)}"
        case ast.DimDecl():
            return f"dim {statement.name.text} = {print_expression(statement.value)}"
        case ast.InputDecl():
            return f"input {statement.name.text} : {statement.dtype.text}[{_format_items(statement.dims)}]"
        case ast.StateDecl():
            return f"state {statement.name.text} : {statement.dtype.text}[{_format_items(statement.dims)}]"
        case ast.WeightDecl():
            stored = "" if statement.stored is None else f" from {print_expression(statement.stored)}"
            storage = "" if statement.storage is None else f" as {print_expression(statement.storage)}"
            declared = f"{statement.dtype.text}[{_format_items(statement.dims)}]"
            return f"weight {statement.name.text} : {declared}{storage}{stored}"
        case ast.AssignStmt():
            return f"{_format_names(statement.targets)} = {print_expression(statement.value)}"
        case ast.EquationStmt():
            targets = [ast.IndexedExpr(statement.target, statement.indices), *statement.further_targets]
            return f"{', '.join(map(print_expression, targets))} = {print_expression(statement.value)}"
        case ast.OutputStmt():
            saved = statement.definition
            return f"output {_format_names(statement.names) if saved is None else _format_statement(saved)}"
        case ast.UseStmt():
            return f"use {print_expression(statement.file)}"
        case ast.IdentityStmt():
            return f"identity {', '.join(map(print_expression, statement.values))}"
        case ast.ReturnStmt():
            return f"return {', '.join(map(print_expression, statement.values))}"
        case _:
            raise AssertionError(f"{type(statement).__name__} has a body")


def _format_names(names: Iterable[ast.Name]) -> str:
    return ", ".join(name.text for name in names)


def _format_parameter(parameter: ast.Parameter) -> str:
    default = "" if parameter.default is None else f" = {print_expression(parameter.default)}"
    return f"{parameter.name.text}{default}"


def _format_items(items: Iterable[ast.IndexItem]) -> str:
    return ", ".join(map(_format_item, items))


def _format_item(item: ast.IndexItem) -> str:
    if item.value is None:
        return "..."
    dimension = "" if item.dimension is None else f"{item.dimension.text}: "
    extent = "" if item.extent is None else f" = {print_expression(item.extent)}"
    return f"{dimension}{print_expression(item.value)}{extent}"


def _format_expression(expression: ast.Expression, binding: int) -> str:
    """The text, in parentheses where the expression binds less tightly than `binding` asks."""
    match expression:
        case ast.Name():
            return expression.text
        case ast.LiteralExpr():
            return _format_literal(expression.value)
        case ast.ListExpr():
            return f"[{', '.join(map(print_expression, expression.items))}]"
        case ast.NegativeExpr():
            text, text_binding = f"-{_format_expression(expression.operand, _UNARY)}", _UNARY
        case ast.BinaryExpr():
            text, text_binding = _format_binary(expression)
        case ast.CallExpr():
            arguments = [print_expression(argument) for argument in expression.arguments]
            arguments += [f"{keyword.name.text}={print_expression(keyword.value)}" for keyword in expression.keywords]
            return f"{expression.function.text}({', '.join(arguments)})"
        case ast.IndexedExpr():
            base = print_expression(expression.base)
            plain = isinstance(expression.base, ast.Name | ast.CallExpr)
            return f"{base if plain else f'({base})'}[{_format_items(expression.indices)}]"
        case ast.AggregateExpr():
            values = ", ".join(map(print_expression, expression.values))
            return f"{expression.operation.text}[{_format_items(expression.indices)}]({values})"
    return f"({text})" if text_binding < binding else text


def _format_binary(expression: ast.BinaryExpr) -> tuple[str, int]:
    """The text of a chain of operators, and how tightly it binds."""
    links = unfold_chain(expression)
    binding = _ATOM
    opened, pieces = 0, [_format_expression(links[0].left, _get_operand_bindings(links[0].operator)[0])]
    for link in links:
        left, right = _get_operand_bindings(link.operator)
        if binding < left:
            opened += 1
            pieces.append(")")
        binding = _get_binding(link.operator)
        pieces.append(f" {link.operator} {_format_expression(link.right, right)}")
    return "(" * opened + "".join(pieces), binding


def _get_binding(operator: str) -> int:
    return _BINDING.get(operator, _COMPARISON)


def _get_operand_bindings(operator: str) -> tuple[int, int]:
    """How tightly the left and the right operand of an operator must bind."""
    binding = _get_binding(operator)
    if binding == _POWER:  # to the right, and a minus may stand on its right
        return _ATOM, _UNARY
    if binding == _COMPARISON:
        return _SUM, _SUM
    return binding, binding + 1


def _format_literal(value: bool | int | float | str) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return f'"{value}"' if isinstance(value, str) else repr(value)
