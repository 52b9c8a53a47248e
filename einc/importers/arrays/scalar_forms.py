"""Functions of elements: how each is written in the language, and what numpy computes for known elements.

A form takes the texts of its operands, each of which is a name, a read, a number or in parentheses.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from einc.importers.arrays.element_types import ElementType
from einc.importers.arrays.extents import Extent, choose_larger, choose_smaller, make_extent

Fold = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class ScalarForm:
    """`write` makes the expression, from the operands' texts and their type; `fold` computes known elements.

    `truth` says that the result is bool, `wraps` that integers may leave the range of their type.
    """

    write: Callable[[Sequence[str], ElementType], str]
    fold: Fold | None = None
    truth: bool = False
    wraps: bool = False


def _function(name: str, fold: Fold | None = None, *, truth: bool = False, wraps: bool = False) -> ScalarForm:
    return ScalarForm(lambda texts, _: f"{name}({', '.join(texts)})", fold, truth, wraps)


def _infix(sign: str, fold: Fold | None = None, *, truth: bool = False, wraps: bool = False) -> ScalarForm:
    return ScalarForm(lambda texts, _: f"{texts[0]} {sign} {texts[1]}", fold, truth, wraps)


def _formula(formula: str, fold: Fold | None = None, *, wraps: bool = False) -> ScalarForm:
    """A formula over `x` and `y`."""

    def write(texts: Sequence[str], type_: ElementType) -> str:
        names = dict(zip("xy", texts, strict=False))
        return "".join(names.get(part, part) for part in _split_formula(formula))

    return ScalarForm(write, fold, False, wraps)


def _split_formula(formula: str) -> list[str]:
    parts, word = [], ""
    for character in formula:
        if character.isalnum() or character in "_.":
            word += character
        else:
            parts += [word, character]
            word = ""
    return [*parts, word]


def _divide(texts: Sequence[str], type_: ElementType) -> str:
    """The quotient of floats; that of integers rounds towards 0."""
    a, b = texts
    if type_.is_float:
        return f"{a} / {b}"
    if type_.is_unsigned:
        return f"{a} // {b}"
    return f"where(and({a} % {b} != 0, ({a} < 0) != ({b} < 0)), {a} // {b} + 1, {a} // {b})"


def _fold_division(a: Any, b: Any) -> Any:
    if np.asarray(a).dtype == object or np.asarray(b).dtype == object:
        return a // b
    if np.asarray(a).dtype.kind == "f":
        return np.divide(a, b)
    return np.where(b == 0, 0, np.fix(np.asarray(a) / np.where(b == 0, 1, b)).astype(np.asarray(a).dtype))


def _divide_remainder(texts: Sequence[str], type_: ElementType) -> str:
    """The remainder with the sign of the dividend."""
    a, b = texts
    if type_.is_unsigned:
        return f"{a} % {b}"
    zero = "0.0" if type_.is_float else "0"
    return f"where({a} < {zero}, -(abs({a}) % abs({b})), abs({a}) % abs({b}))"


def _raise(texts: Sequence[str], type_: ElementType) -> str:
    if type_.is_float:
        return f"pow({texts[0]}, {texts[1]})"
    a, b = (text if _is_literal(text) else f'cast({text}, "f64")' for text in texts)
    return f'cast(pow({a}, {b}), "{type_.carrier.value}")'


def _is_literal(text: str) -> bool:
    return text.strip("()-")[:1].isdigit()


def _and(texts: Sequence[str], type_: ElementType) -> str:
    return f"{'and' if type_.is_bool else 'bitand'}({texts[0]}, {texts[1]})"


def _or(texts: Sequence[str], type_: ElementType) -> str:
    return f"{'or' if type_.is_bool else 'bitor'}({texts[0]}, {texts[1]})"


def _xor(texts: Sequence[str], type_: ElementType) -> str:
    return f"{texts[0]} != {texts[1]}" if type_.is_bool else f"bitxor({texts[0]}, {texts[1]})"


def _invert(texts: Sequence[str], type_: ElementType) -> str:
    return f"not({texts[0]})" if type_.is_bool else type_.wrap(f"-{texts[0]} - 1")


def _multiply(texts: Sequence[str], type_: ElementType) -> str:
    return f"and({texts[0]}, {texts[1]})" if type_.is_bool else f"{texts[0]} * {texts[1]}"


def _fold_choice(choose: Fold, choose_extent: Callable[[Extent, Extent], Extent]) -> Fold:
    """The larger or the smaller of known elements, some of which are extents."""
    of_extents = np.frompyfunc(lambda a, b: choose_extent(make_extent(a), make_extent(b)), 2, 1)
    return lambda a, b: (of_extents if object in (a.dtype, b.dtype) else choose)(a, b)


def _choose(word: str, for_booleans: str) -> Callable[[Sequence[str], ElementType], str]:
    return lambda texts, type_: f"{for_booleans if type_.is_bool else word}({texts[0]}, {texts[1]})"


_OF_ONE: Mapping[str, Fold | None] = {
    "copy": lambda x: x, "abs": np.abs, "exp": np.exp, "log": np.log, "sqrt": np.sqrt, "floor": np.floor,
    "ceil": np.ceil, "round": np.round, "trunc": np.trunc, "sign": np.sign, "tanh": np.tanh, "sin": np.sin,
    "cos": np.cos, "tan": np.tan, "atan": np.arctan, "relu": None, "gelu": None, "gelu_tanh": None, "silu": None,
    "sigmoid": None, "rsqrt": None, "exp2": None, "expm1": None, "log2": None, "log1p": None, "erf": None,
}  # fmt: skip

SCALAR_FORMS: Mapping[str, ScalarForm] = {
    **{name: _function(name, fold) for name, fold in _OF_ONE.items()},
    **{name: _function(name, getattr(np, name), truth=True) for name in ("isnan", "isinf", "isfinite")},
    "neg": ScalarForm(lambda texts, _: f"-{texts[0]}", np.negative, wraps=True),
    "add": _infix("+", np.add, wraps=True),
    "sub": _infix("-", np.subtract, wraps=True),
    "mul": ScalarForm(_multiply, np.multiply, wraps=True),
    "div": ScalarForm(_divide, _fold_division, wraps=True),
    "floordiv": _infix("//", lambda a, b: a // b, wraps=True),
    "mod": _infix("%", lambda a, b: a % b),
    "remainder": ScalarForm(_divide_remainder, np.fmod),
    "pow": ScalarForm(_raise, np.power, wraps=True),
    "max": ScalarForm(_choose("max", "or"), _fold_choice(np.maximum, choose_larger)),
    "min": ScalarForm(_choose("min", "and"), _fold_choice(np.minimum, choose_smaller)),
    "and": ScalarForm(_and, np.bitwise_and),
    "or": ScalarForm(_or, np.bitwise_or),
    "xor": ScalarForm(_xor, np.bitwise_xor),
    "not": ScalarForm(_invert, np.invert),
    "shiftleft": _function("shiftleft", np.left_shift, wraps=True),
    "shiftright": _function("shiftright", np.right_shift),
    "eq": _infix("==", np.equal, truth=True),
    "ne": _infix("!=", np.not_equal, truth=True),
    "lt": _infix("<", np.less, truth=True),
    "le": _infix("<=", np.less_equal, truth=True),
    "gt": _infix(">", np.greater, truth=True),
    "ge": _infix(">=", np.greater_equal, truth=True),
    "atan2": _function("atan2", np.arctan2),
    "reciprocal": _formula("1.0 / x", lambda x: 1 / x),
    "square": _formula("x * x", lambda x: x * x, wraps=True),
    "asin": _formula("atan2(x, sqrt((1.0 - x) * (1.0 + x)))", np.arcsin),
    "acos": _formula("atan2(sqrt((1.0 - x) * (1.0 + x)), x)", np.arccos),
    "sinh": _formula("0.5 * (expm1(x) - expm1(-x))", np.sinh),
    "cosh": _formula("0.5 * (exp(x) + exp(-x))", np.cosh),
    "asinh": _formula("sign(x) * log1p(abs(x) + x * x / (1.0 + sqrt(x * x + 1.0)))", np.arcsinh),
    "acosh": _formula("log(x + sqrt((x - 1.0) * (x + 1.0)))", np.arccosh),
    "atanh": _formula("0.5 * (log1p(x) - log1p(-x))", np.arctanh),
    "softplus": _formula("max(x, 0.0) + log1p(exp(-abs(x)))"),
    "softsign": _formula("x / (1.0 + abs(x))"),
    "mish": _formula("x * tanh(max(x, 0.0) + log1p(exp(-abs(x))))"),
    "hardswish": _formula("x * min(max(x / 6.0 + 0.5, 0.0), 1.0)"),
}
"""`div` rounds towards 0 for integers, `floordiv` and `mod` are Python's, `remainder` has the dividend's sign."""
