"""Extents that are expressions of the symbols of a graph, as `2*s77` or `(s3 + 1)//2`, read without evaluating them."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence

from einc.importers.arrays.extents import Extent, choose_larger, choose_smaller, make_extent
from einc.importers.arrays.values import UnsupportedError
from einc_runtime.text import escape_text

MAX_EXPRESSION = 2_000
"""Characters of an expression."""

_Function = Callable[[Sequence[Extent]], Extent]

_BINARY: Mapping[type[ast.operator], Callable[[Extent, Extent], Extent]] = {
    ast.Add: lambda a, b: a + b, ast.Sub: lambda a, b: a - b, ast.Mult: lambda a, b: a * b,
    ast.FloorDiv: lambda a, b: a // b, ast.Mod: lambda a, b: a % b, ast.Div: lambda a, b: a // b,
}  # fmt: skip


def _fold(choose: Callable[[Extent, Extent], Extent]) -> _Function:
    def fold(arguments: Sequence[Extent]) -> Extent:
        result = arguments[0]
        for argument in arguments[1:]:
            result = choose(result, argument)
        return result

    return fold


_CALLS: Mapping[str, _Function] = {
    "Max": _fold(choose_larger), "Min": _fold(choose_smaller), "Mod": _fold(lambda a, b: a % b),
    "PythonMod": _fold(lambda a, b: a % b), "FloorDiv": _fold(lambda a, b: a // b),
    "CleanDiv": _fold(lambda a, b: a // b), "CeilToInt": lambda arguments: arguments[0],
}  # fmt: skip


def read_extent(expression: str, symbols: Mapping[str, Extent]) -> Extent:
    """The extent that an expression means. Raises UnsupportedError for what is no such expression."""
    problem = UnsupportedError(f"an extent '{escape_text(expression, 60)}'", "give the dimension a number")
    if len(expression) > MAX_EXPRESSION:
        raise problem

    def read(node: ast.expr) -> Extent:
        match node:
            case ast.Constant(value=int(value)) if not isinstance(value, bool):
                return make_extent(value)
            case ast.Name(id=name) if name in symbols:
                return symbols[name]
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return -read(operand)
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
                return _BINARY[type(op)](read(left), read(right))
            case ast.BinOp(left=left, op=ast.Pow(), right=ast.Constant(value=int(power))) if 1 <= power <= 8:
                base = result = read(left)
                for _ in range(power - 1):
                    result = result * base
                return result
            case ast.Call(func=ast.Name(id=name), args=[_, *_] as arguments, keywords=[]) if name in _CALLS:
                return _CALLS[name]([read(argument) for argument in arguments])
        raise problem

    try:
        return read(ast.parse(expression, mode="eval").body)
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError, MemoryError):
        raise problem from None
