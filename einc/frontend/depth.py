"""How deeply a statement nests, found without recursion: the stages after the parser may then recurse."""

from __future__ import annotations

from einc.frontend import ast


def statement_depth(statement: ast.Statement) -> int:
    """The deepest nesting of operands in the statement's own expressions; bodies are left out.

    The left operands of operators, as in long sums, count as one level: they are walked in loops everywhere.
    """
    deepest = 0
    waiting = [(expression, 1) for expression in own_expressions(statement)]
    while waiting:
        expression, depth = waiting.pop()
        deepest = max(deepest, depth)
        if isinstance(expression, ast.Binary):
            inner = depth if isinstance(expression.left, ast.Binary) else depth + 1
            waiting += [(expression.left, inner), (expression.right, depth + 1)]
        else:
            waiting += [(operand, depth + 1) for operand in operands(expression)]
    return deepest


def own_expressions(statement: ast.Statement) -> tuple[ast.Expression, ...]:
    """The expressions that stand in a statement itself, not in its body."""
    match statement:
        case ast.Param() | ast.Dim() | ast.Assign() | ast.Equation():
            return (statement.value,)
        case ast.Output():
            return () if statement.definition is None else (statement.definition.value,)
        case ast.Return():
            return statement.values
        case ast.Repeat():
            return (statement.count,)
        case _:
            return ()


def operands(expression: ast.Expression) -> tuple[ast.Expression, ...]:
    """The expressions directly inside an expression, in the order of the text."""
    match expression:
        case ast.List():
            return expression.items
        case ast.Negative():
            return (expression.operand,)
        case ast.Binary():
            return (expression.left, expression.right)
        case ast.Call():
            return (*expression.arguments, *(keyword.value for keyword in expression.keywords))
        case ast.Indexed():
            return (expression.base,)
        case ast.Aggregate():
            return (expression.body,)
        case _:
            return ()
