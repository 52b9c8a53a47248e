"""Arithmetic without tensors gives what Python gives for the same values, within limits, or an error."""

from __future__ import annotations

import itertools
import math
import operator
from typing import Any

import pytest

from einc.errors import OperatorError
from einc.frontend import constants

NUMBERS = (0, 1, 2, 3, -3, 7, -8, 2.5, -0.25)
MEANING: dict[str, Any] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv, "//": operator.floordiv,
    "%": operator.mod, "**": operator.pow, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
    "==": operator.eq, "!=": operator.ne,
}  # fmt: skip


@pytest.mark.parametrize("symbol", MEANING)
def test_operators_on_numbers_are_pythons(symbol: str) -> None:
    for left, right in itertools.product(NUMBERS, NUMBERS):
        try:
            expected = MEANING[symbol](left, right)
        except ZeroDivisionError:
            expected = math.nan
        if isinstance(expected, complex) or expected != expected:
            with pytest.raises(OperatorError):
                constants.apply_infix(symbol, left, right)
            continue
        result = constants.apply_infix(symbol, left, right)
        assert (type(result), result) == (type(expected), expected), (left, right)


@pytest.mark.parametrize("symbol", ["<", "-"])
def test_what_is_no_number_is_named_with_its_place(symbol: str) -> None:
    for pair, position in (((True, 1), 0), ((1, "a"), 1), ((True, "a"), 0)):
        with pytest.raises(OperatorError) as caught:
            constants.apply_infix(symbol, *pair)
        assert caught.value.argument == position


def test_lists_and_strings_are_joined_and_repeated_up_to_their_limits() -> None:
    assert constants.apply_infix("+", (1, 2), (3,)) == (1, 2, 3)
    assert constants.apply_infix("*", 2, (1, 2)) == constants.apply_infix("*", (1, 2), 2) == (1, 2, 1, 2)
    assert constants.apply_infix("+", "ab", "c") == "abc"
    assert constants.apply_infix("*", "ab", 2) == "abab"
    most = constants.limits.LIST_ITEMS
    assert len(constants.apply_infix("*", (0,), most)) == most
    for left, right in (((0,), most + 1), ((0, 0), most // 2 + 1)):
        with pytest.raises(OperatorError, match=f"at most {most:,} is allowed"):
            constants.apply_infix("*", left, right)
    with pytest.raises(OperatorError, match=f"length {most + 1:,}"):
        constants.apply_infix("+", (0,) * most, (0,))


def test_integers_stay_below_2_to_the_63() -> None:
    assert constants.apply_infix("+", 2**62, 2**62 - 1) == 2**63 - 1
    assert constants.negate(2**63 - 1) == -(2**63 - 1)
    for symbol, left, right in (("+", 2**62, 2**62), ("**", 2, 63), ("**", -2, 65), ("*", 1e200, 1e200)):
        with pytest.raises(OperatorError, match="too large"):
            constants.apply_infix(symbol, left, right)
    assert constants.apply_infix("**", 2, 62) == 2**62
    assert constants.apply_infix("**", 1, 10**6) == 1


def test_functions_of_lists() -> None:
    for numbers in ((3, -1, 2), (0.5,), (2, 2.5)):
        for arguments in ((numbers,), numbers):
            assert constants.apply_function("sum", arguments) == sum(numbers)
            assert constants.apply_function("prod", arguments) == math.prod(numbers)
            assert constants.apply_function("max", arguments) == max(numbers)
            assert constants.apply_function("min", arguments) == min(numbers)
    assert constants.apply_function("len", [(4, 5, 6)]) == 3
    assert (constants.apply_function("sum", [()]), constants.apply_function("prod", [()])) == (0, 1)
    for name in ("max", "min"):
        with pytest.raises(OperatorError, match=f"an empty list has no {name}"):
            constants.apply_function(name, [()])
    with pytest.raises(OperatorError, match="len takes one list"):
        constants.apply_function("len", [1])
