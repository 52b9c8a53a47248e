"""Arithmetic on static values, which do not depend on tensors: numbers, booleans, strings and lists of them.

All results stay small: integers below 2**63 in magnitude, finite floats, lists and strings of bounded length.
Errors are OperatorErrors whose `argument` is the position of the operand at fault.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable, Sequence

from einc.errors import OperatorError
from einc.frontend import limits
from einc.ops.base import Attribute

Static = Attribute
"""A value that does not depend on tensors; a tuple is a list of the language."""

_ARITHMETIC: dict[str, Callable[[int | float, int | float], int | float]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv,
    "//": operator.floordiv, "%": operator.mod, "**": operator.pow,
}  # fmt: skip
_COMPARISON_OPERATORS: dict[str, Callable[[int | float, int | float], bool]] = {
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip
_BUILTIN_FUNCTIONS: dict[str, Callable[[Sequence[int | float]], int | float]] = {"sum": sum, "max": max, "min": min}

LIST_FUNCTIONS = ("sum", "prod", "max", "min", "len", "starts")
"""The functions of lists of numbers. `starts(lens, n)` is where parts of these lengths begin, which add up to n."""


def describe_value(value: Static) -> str:
    """`the integer 3`, `a list of 4 items`: a value in words, for errors."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return f"a list of {len(value):,} items"
    if isinstance(value, str):
        return f'the string "{value if len(value) <= 40 else value[:37] + "..."}"'
    return f"the {'integer' if isinstance(value, int) else 'number'} {value}"


def negate(value: Static) -> Static:
    """`-value`; that of `inf` is the only number besides that is not finite"""
    if value == math.inf:
        return -math.inf
    return _check_bounds(-_require_number("-", value, 0))


def apply_infix(symbol: str, left: Static, right: Static) -> Static:
    """`left symbol right`, with Python's meaning."""
    if symbol in ("==", "!="):
        return (left == right) == (symbol == "==")
    if symbol == "+" and isinstance(left, tuple) and isinstance(right, tuple):
        _check_length(len(left) + len(right), limits.LIST_ITEMS, "list", 0)
        return left + right
    if symbol == "+" and isinstance(left, str) and isinstance(right, str):
        _check_length(len(left) + len(right), limits.STRING_CHARACTERS, "string", 0)
        return left + right
    if symbol == "*" and (isinstance(left, tuple | str) or isinstance(right, tuple | str)):
        return _repeat(left, right)
    a, b = _require_number(symbol, left, 0), _require_number(symbol, right, 1)
    if symbol in _COMPARISON_OPERATORS:
        return _COMPARISON_OPERATORS[symbol](a, b)
    if symbol == "**" and isinstance(a, int) and isinstance(b, int) and abs(a) > 1 and b > 64:
        raise _make_overflow_error()  # before it is computed
    try:
        return _check_bounds(_ARITHMETIC[symbol](a, b))
    except ZeroDivisionError:
        raise OperatorError("division by zero", argument=1) from None
    except OverflowError:
        raise _make_overflow_error() from None


def apply_function(name: str, arguments: Sequence[Static]) -> Static:
    """`sum`, `prod`, `max` or `min` of one list of numbers or of several numbers; `len` of one list; `starts` of one
    list and a number."""
    if name == "starts":
        return _find_starts(arguments)
    items: Sequence[Static] = arguments
    if len(arguments) == 1 and isinstance(arguments[0], tuple):
        items = arguments[0]
    elif name == "len" or not arguments:
        raise OperatorError(f"{name} takes one list", argument=0 if arguments else None)
    if name == "len":
        return len(items)
    numbers = [_require_number(name, item, 0 if items is not arguments else k) for k, item in enumerate(items)]
    if not numbers and name in ("max", "min"):
        raise OperatorError(f"an empty list has no {name}", argument=0)
    if name == "prod":  # step by step, so that no huge number is ever made
        total: int | float = 1
        for number in numbers:
            total = _check_bounds(total * number)
        return total
    try:
        return _check_bounds(_BUILTIN_FUNCTIONS[name](numbers))
    except OverflowError:
        raise _make_overflow_error() from None


def _find_starts(arguments: Sequence[Static]) -> Static:
    lens = arguments[0] if arguments else None
    if len(arguments) != 2 or not isinstance(lens, tuple) or type(arguments[1]) is not int:
        raise OperatorError("starts takes a list of lengths and what they add up to", argument=0)
    for length in lens:
        if type(length) is not int or length < 1:
            raise OperatorError(f"lengths are positive integers, not {length!r:.40}", argument=0)
    ends = tuple(itertools.accumulate(int(length) for length in lens if isinstance(length, int)))
    if ends[-1:] != (arguments[1],):
        raise OperatorError(f"the lengths add up to {sum(ends[-1:]):,}, not to {arguments[1]:,}", argument=0)
    return (0, *ends[:-1])


def _require_number(symbol: str, value: Static, position: int) -> int | float:
    if isinstance(value, bool | str | tuple):
        raise OperatorError(f"'{symbol}' expects a number, found {describe_value(value)}", argument=position)
    return value


def _repeat(left: Static, right: Static) -> Static:
    position = 1 if isinstance(left, tuple | str) else 0
    sequence, count = (left, right) if position else (right, left)
    if isinstance(count, bool) or not isinstance(count, int):
        raise OperatorError(f"expected the number of repetitions, found {describe_value(count)}", argument=position)
    limit = limits.LIST_ITEMS if isinstance(sequence, tuple) else limits.STRING_CHARACTERS
    assert isinstance(sequence, tuple | str)
    _check_length(len(sequence) * count, limit, "list" if isinstance(sequence, tuple) else "string", position)
    return sequence * count if sequence else sequence


def _check_length(length: int, limit: int, noun: str, position: int) -> None:
    if length > limit:
        raise OperatorError(
            f"this {noun} would have length {length:,}; at most {limit:,} is allowed", argument=position
        )


def _check_bounds(value: int | float | complex) -> int | float:
    if isinstance(value, complex) or value != value:
        raise OperatorError("the result is not a real number")
    if abs(value) == math.inf or (isinstance(value, int) and abs(value) >= limits.INTEGER_BOUND):
        raise _make_overflow_error()
    return value


def _make_overflow_error() -> OperatorError:
    return OperatorError("the result is too large", hint="integers stay below 2**63 in magnitude, floats finite")
