"""Complex numbers, as rotary positions have them: pairs of arrays, which the language computes with.

Views and moves do the same to both parts; `_COMPLEX` has what else is known.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from einc.importers.arrays import moving
from einc.importers.arrays.elementwise import apply
from einc.importers.arrays.values import Array, UnsupportedError
from einc.importers.pytorch.aten.table import Call, aten

_OF_BOTH_PARTS = frozenset(
    ("alias", "cat", "clone", "contiguous", "copy", "detach", "expand", "expand_as", "expand_copy", "flatten", "flip",
     "index", "index_select", "lift_fresh", "lift_fresh_copy", "narrow", "neg", "permute", "permute_copy", "repeat",
     "reshape", "roll", "select", "select_copy", "slice", "slice_copy", "squeeze", "stack", "sum", "t", "to",
     "_to_copy", "transpose", "unflatten", "unsqueeze", "_unsafe_view", "view", "view_copy")
)  # fmt: skip
"""Operators that do the same to real and imaginary parts."""


@dataclass(frozen=True, slots=True)
class ComplexArray:
    """An array of complex numbers as its real and its imaginary parts, of one type and shape."""

    real: Array
    imaginary: Array


def find_parts(value: Any) -> list[ComplexArray]:
    """The complex arrays in an argument."""
    items = value if isinstance(value, list | tuple) else [value]
    return [item for item in items if isinstance(item, ComplexArray)]


def call_complex(
    name: str, call: Call, function: Callable[[Call, Mapping[str, Any]], Any] | None, inputs: Mapping[str, Any]
) -> Any:
    """The result of an operator that gets complex numbers. `function` computes it for real ones.

    Raises UnsupportedError for operators that are not known for complex numbers.
    """
    known = _COMPLEX.get(name)
    if known is not None:
        return known(call, *inputs.values())
    if name not in _OF_BOTH_PARTS or function is None:
        raise UnsupportedError("complex numbers", "einc has them where rotary positions do: products, views and parts")
    parts = [
        function(call, {key: _take_part(value, imaginary) for key, value in inputs.items()})
        for imaginary in (False, True)
    ]
    return ComplexArray(*parts)


def _take_part(value: Any, imaginary: bool) -> Any:
    if isinstance(value, list | tuple):
        return [_take_part(item, imaginary) for item in value]
    if not isinstance(value, ComplexArray):
        return value
    return value.imaginary if imaginary else value.real


@aten("polar")
def convert_polar(call: Call, abs: Array, angle: Array) -> ComplexArray:
    program = call.program
    parts = (
        apply(program, "mul", abs, apply(program, name, angle, hint=call.hint), hint=call.hint)
        for name in ("cos", "sin")
    )
    return ComplexArray(*parts)


@aten("complex")
def convert_complex(call: Call, real: Array, imag: Array) -> ComplexArray:
    return ComplexArray(real, imag)


@aten("view_as_complex", "view_as_complex_copy")
def convert_view_as_complex(call: Call, self_: Array) -> ComplexArray:
    """Pairs that lie beside each other in the last dimension."""
    parts = []
    for parity in range(2):
        part = moving.slice_axis(call.program, self_, -1, parity, parity + 1, 1, call.hint)
        parts.append(moving.squeeze(call.program, part, [-1], call.hint))
    return ComplexArray(*parts)


@aten("real")
def convert_real(call: Call, self_: Array) -> Array:
    return self_


def _view_as_real(call: Call, array: ComplexArray) -> Array:
    parts = [moving.unsqueeze(call.program, part, [-1], call.hint) for part in (array.real, array.imaginary)]
    return moving.concat(call.program, parts, -1, call.hint)


def _multiply(call: Call, first: Any, second: Any) -> ComplexArray:
    def times(a: Array | float, b: Array | float) -> Array:
        return apply(call.program, "mul", a, b, hint=call.hint)

    if not isinstance(first, ComplexArray):
        first, second = second, first
    if not isinstance(second, ComplexArray):
        return ComplexArray(times(first.real, second), times(first.imaginary, second))
    real = apply(call.program, "sub", times(first.real, second.real), times(first.imaginary, second.imaginary))
    imaginary = apply(call.program, "add", times(first.real, second.imaginary), times(first.imaginary, second.real))
    return ComplexArray(real, imaginary)


def _make_sum(name: str) -> Callable[..., ComplexArray]:
    def add(call: Call, first: Any, second: Any) -> ComplexArray:
        if not isinstance(first, ComplexArray) or not isinstance(second, ComplexArray):
            raise UnsupportedError("a sum of complex and real numbers")
        pairs = ((first.real, second.real), (first.imaginary, second.imaginary))
        return ComplexArray(*(apply(call.program, name, *pair, hint=call.hint) for pair in pairs))

    return add


def _conjugate(call: Call, array: ComplexArray) -> ComplexArray:
    return ComplexArray(array.real, apply(call.program, "neg", array.imaginary, hint=call.hint))


_COMPLEX: Mapping[str, Callable[..., Any]] = {
    "mul": _multiply, "add": _make_sum("add"), "sub": _make_sum("sub"), "view_as_real": _view_as_real,
    "view_as_real_copy": _view_as_real, "real": lambda call, array: array.real,
    "imag": lambda call, array: array.imaginary, "_conj": _conjugate, "_conj_physical": _conjugate, "conj": _conjugate,
    "conj_physical": _conjugate, "resolve_conj": lambda call, array: array,
}  # fmt: skip
