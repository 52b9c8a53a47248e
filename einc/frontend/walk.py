"""Walking syntax without recursion: what stands in it, and how deeply it nests.

The parser bounds that depth, so that the stages after it may recurse.
"""

from __future__ import annotations

from collections.abc import Iterator

from einc.frontend import ast


def parts(expression: ast.Expression) -> Iterator[ast.Expression]:
    """The expression and all within it, in the order of the text."""
    waiting = [expression]
    while waiting:
        current = waiting.pop()
        yield current
        waiting += reversed(_operands(current))


def chain(last: ast.Binary) -> list[ast.Binary]:
    """The operators of `a + b - c ...`, the first one first: each but that has the one before as its left operand.

    Long sums lean to the left like this, and the depth of a statement counts all of them as one level.
    """
    links = [last]
    while isinstance(links[-1].left, ast.Binary):
        links.append(links[-1].left)
    return links[::-1]


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


def statement_depth(statement: ast.Statement) -> int:
    """The deepest nesting of operands in the statement's own expressions; bodies are left out, chains are one level."""
    deepest = 0
    waiting = [(expression, 1) for expression in own_expressions(statement)]
    while waiting:
        expression, depth = waiting.pop()
        deepest = max(deepest, depth)
        if isinstance(expression, ast.Binary):
            inner = depth if isinstance(expression.left, ast.Binary) else depth + 1
            waiting += [(expression.left, inner), (expression.right, depth + 1)]
        else:
            waiting += [(operand, depth + 1) for operand in _operands(expression)]
    return deepest


def _operands(expression: ast.Expression) -> tuple[ast.Expression, ...]:
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
