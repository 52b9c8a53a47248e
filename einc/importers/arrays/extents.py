"""Extents of arrays: numbers, and sums of products of params, which are written as expressions of the language."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

Terms = tuple[tuple[tuple[str, ...], int], ...]

MAX_TERMS = 100
"""Products in a sum, and params in a product: what people write has a few."""
MAX_EXTENT_TEXT = 2_000
"""Characters of an extent that is no sum of products; repeated operations double it."""
MAX_EXTENT_VALUE = 2**70
"""The magnitude of values with the defaults of the params: more than that of i64, whose ends stand for no bound."""


@dataclass(frozen=True, slots=True)
class Extent:
    """A sum of products of params with whole factors; `value` is what it is with the defaults of the params.

    What is no such sum (`(tokens + 1) // 2`) takes the place of a param. Two extents are equal if they are for every
    value of the params, as far as sums of products show it; `<` compares the values with the defaults.
    """

    terms: Terms
    value: int

    def __post_init__(self) -> None:
        """Raises ArithmeticError for what is larger than any that is meant."""
        texts = sum(len(param) for params, _ in self.terms for param in params)
        longest = max((len(params) for params, _ in self.terms), default=0)
        if max(len(self.terms), longest) > MAX_TERMS or texts > MAX_EXTENT_TEXT or abs(self.value) > MAX_EXTENT_VALUE:
            raise ArithmeticError("an extent is too large, or too long as an expression")

    @staticmethod
    def number(value: int) -> Extent:
        return Extent((((), int(value)),) if value else (), int(value))

    @staticmethod
    def param(name: str, value: int) -> Extent:
        return Extent((((name,), 1),), value)

    @property
    def is_number(self) -> bool:
        return all(not params for params, _ in self.terms)

    @property
    def text(self) -> str:
        """The extent as an expression of the language."""
        parts = []
        for params, factor in self.terms:
            factors = ([str(abs(factor))] if abs(factor) != 1 or not params else []) + list(params)
            sign = "-" if factor < 0 else "+"
            parts.append(f"{sign} {' * '.join(factors)}")
        return " ".join(parts).removeprefix("+ ").replace("- ", "-", 1 if parts and parts[0][0] == "-" else 0) or "0"

    def __add__(self, other: Extent | int) -> Extent:
        added = make_extent(other)
        return _collect([*self.terms, *added.terms], self.value + added.value)

    def __neg__(self) -> Extent:
        return Extent(tuple((params, -factor) for params, factor in self.terms), -self.value)

    def __sub__(self, other: Extent | int) -> Extent:
        return self + -make_extent(other)

    def __mul__(self, other: Extent | int) -> Extent:
        factor = make_extent(other)
        products = [(tuple(sorted(a + b)), m * n) for a, m in self.terms for b, n in factor.terms]
        return _collect(products, self.value * factor.value)

    def __floordiv__(self, other: Extent | int) -> Extent:
        """Rounds down. An exact quotient stays a sum of products."""
        divisor = make_extent(other)
        if divisor.value == 0:
            raise ZeroDivisionError(f"{self.text} // {divisor.text}")
        if self.is_number and divisor.is_number:
            return Extent.number(self.value // divisor.value)
        if len(divisor.terms) == 1:
            (params, factor), quotients = divisor.terms[0], []
            for product, number in self.terms:
                left = list(product)
                if number % factor or any(product.count(param) < params.count(param) for param in params):
                    break
                for param in params:
                    left.remove(param)
                quotients.append((tuple(left), number // factor))
            else:
                return _collect(quotients, self.value // divisor.value)
        if self == divisor:
            return Extent.number(1)
        return Extent.param(f"(({self.text}) // {_bracket(divisor)})", self.value // divisor.value)

    def __mod__(self, other: Extent | int) -> Extent:
        return self - (self // other) * other

    def __radd__(self, other: int) -> Extent:
        return self + other

    def __rsub__(self, other: int) -> Extent:
        return make_extent(other) - self

    def __rmul__(self, other: int) -> Extent:
        return self * other

    def __rfloordiv__(self, other: int) -> Extent:
        return make_extent(other) // self

    def __rmod__(self, other: int) -> Extent:
        return make_extent(other) % self

    def __lt__(self, other: Extent | int) -> bool:
        return self.value < make_extent(other).value

    def __gt__(self, other: Extent | int) -> bool:
        return self.value > make_extent(other).value

    def __le__(self, other: Extent | int) -> bool:
        return self.value <= make_extent(other).value

    def __ge__(self, other: Extent | int) -> bool:
        return self.value >= make_extent(other).value


def make_extent(extent: Extent | int) -> Extent:
    return extent if isinstance(extent, Extent) else Extent.number(extent)


def multiply_extents(extents: Iterable[Extent]) -> Extent:
    return math.prod(extents, start=Extent.number(1))


def divide_extent(extent: Extent, divisor: Extent) -> Extent | None:
    """The quotient, where there is no rest whatever the params are; None otherwise."""
    if divisor.value == 0:
        return None
    quotient = extent // divisor
    return quotient if quotient * divisor == extent else None


def choose_smaller(first: Extent, second: Extent) -> Extent:
    """The smaller of two for every value of the params."""
    return _choose(first, second, "min", min)


def choose_larger(first: Extent, second: Extent) -> Extent:
    return _choose(first, second, "max", max)


def _choose(first: Extent, second: Extent, function: str, choose: Callable[[int, int], int]) -> Extent:
    if (first - second).is_number:
        return first if choose(first.value, second.value) == first.value else second
    return Extent.param(f"{function}([{first.text}, {second.text}])", choose(first.value, second.value))


def _collect(terms: Iterable[tuple[tuple[str, ...], int]], value: int) -> Extent:
    factors: dict[tuple[str, ...], int] = {}
    for params, factor in terms:
        factors[params] = factors.get(params, 0) + factor
    kept = {params: factor for params, factor in factors.items() if factor}
    order = sorted(kept, key=lambda params: (not params, params))
    return Extent(tuple((params, kept[params]) for params in order), value)


def _bracket(extent: Extent) -> str:
    simple = (extent.is_number and extent.value >= 0) or extent.text.isidentifier()
    return extent.text if simple else f"({extent.text})"
