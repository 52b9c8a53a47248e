"""Extents that are expressions of the symbols of a graph, read without evaluating them.

A graph has them as sympy writes them, `Add(Symbol('s3', integer=True), Integer(1))`, or as formulas, `(s3 + 1)//2`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping, Sequence

from einc.importers.arrays.extents import Extent, choose_larger, choose_smaller, make_extent, multiply_extents
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
    "Add": _fold(lambda a, b: a + b), "Mul": _fold(lambda a, b: a * b),
    "Max": _fold(choose_larger), "Min": _fold(choose_smaller), "Mod": _fold(lambda a, b: a % b),
    "PythonMod": _fold(lambda a, b: a % b), "FloorDiv": _fold(lambda a, b: a // b),
    "CleanDiv": _fold(lambda a, b: a // b), "CeilToInt": lambda arguments: arguments[0],
}  # fmt: skip


def find_symbol(expression: str) -> str | None:
    """The symbol that an expression is, if it is nothing else."""
    match = re.fullmatch(r"(?:Symbol\('(\w{1,100})'[\w\s,=]*\))|([A-Za-z_]\w{0,100})", expression)
    return (match[1] or match[2]) if match else None


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
                return multiply_extents([read(left)] * power)
            case ast.Call(func=ast.Name(id="Symbol"), args=[ast.Constant(value=str(name))]) if name in symbols:
                return symbols[name]
            case ast.Call(func=ast.Name(id="Integer"), args=[number]):
                return read(number)
            case ast.Call(func=ast.Name(id="Pow"), args=[base, ast.Call(args=[ast.Constant(value=int(power))])]):
                return read(ast.BinOp(base, ast.Pow(), ast.Constant(power)))
            case ast.Call(func=ast.Name(id=name), args=[_, *_] as arguments, keywords=[]) if name in _CALLS:
                return _CALLS[name]([read(argument) for argument in arguments])
        raise problem

    try:
        return read(ast.parse(expression, mode="eval").body)
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError, MemoryError):
        raise problem from None
