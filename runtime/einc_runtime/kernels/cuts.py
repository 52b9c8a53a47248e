"""Where one invocation of a kernel can be cut into several that compute parts of its results, each as it would be."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from einc_runtime.kernels import indices
from einc_runtime.kernels.base import Invocation

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Along:
    """The dimension of an operand that is cut with the others, and how much of it belongs to one position."""

    axis: int
    unit: int = 1


@dataclass(frozen=True, slots=True)
class Cut:
    """`extent` positions that can be dealt out; an operand without a dimension along them is whole in every part."""

    extent: int
    inputs: tuple[Along | None, ...]
    outputs: tuple[Along | None, ...]


def cuts(invocation: Invocation[Shape]) -> list[Cut]:
    """Those of an invocation that fits, by the shapes of its operands, best first; kernels that are cut nowhere have
    none."""
    return list(_CUTS[invocation.name](invocation)) if invocation.name in _CUTS else []


def _joined(text: str, result: Shape) -> Iterator[Cut]:
    """By the indices of the result, of which no operand may have one twice."""
    equation = indices.parse(text)
    for axis, name in enumerate(equation.output):
        if all(names.count(name) < 2 for names in equation.inputs):
            own = tuple(Along(names.index(name)) if name in names else None for names in equation.inputs)
            yield Cut(result[axis], own, (Along(axis),))


def _contract(invocation: Invocation[Shape]) -> Iterator[Cut]:
    found = _joined(invocation.attribute("equation", str), invocation.output)
    yield from sorted(found, key=lambda cut: -cut.extent)


def _map(invocation: Invocation[Shape]) -> Iterator[Cut]:
    yield from _joined(invocation.attribute("indices", str), invocation.output)


def _rows(invocation: Invocation[Shape]) -> Iterator[Cut]:
    """Of rows that are whole: the first operand and the result are cut, vectors of a row's length are not."""
    for axis, extent in enumerate(invocation.output[:-1]):
        yield Cut(extent, (Along(axis), *(None for _ in invocation.inputs[1:])), (Along(axis),))


def _softmax(invocation: Invocation[Shape]) -> Iterator[Cut]:
    if invocation.attributes["axis"] in (-1, len(invocation.output) - 1):
        yield from _rows(invocation)


def _rope(invocation: Invocation[Shape]) -> Iterator[Cut]:
    """Positions, where they are an input, go with the tokens."""
    tokens = len(invocation.output) - 2
    for axis, extent in enumerate(invocation.output[:-1]):
        positions = tuple(Along(0) if axis == tokens else None for _ in invocation.inputs[1:])
        yield Cut(extent, (Along(axis), *positions), (Along(axis),))


def _attention(invocation: Invocation[Shape]) -> Iterator[Cut]:
    """By heads of keys, each with its heads of queries; or by queries, which all see the keys that they saw."""
    queries, keys = invocation.inputs[:2]
    extras = invocation.attribute("extras", list)
    of_query, of_key = Along(0, queries[0] // keys[0]), Along(0)
    yield Cut(keys[0], (of_query, of_key, of_key, *(None for _ in extras)), (of_query, of_query))
    places = tuple(Along(0) if extra == "positions" else None for extra in extras)
    yield Cut(queries[1], (Along(1), None, None, *places), (Along(1), Along(1)))


_CUTS: dict[str, Callable[[Invocation[Shape]], Iterator[Cut]]] = {
    "contract": _contract,
    "map": _map,
    "reduce": _map,
    "rmsnorm": _rows,
    "layernorm": _rows,
    "softmax": _softmax,
    "rope": _rope,
    "attention": _attention,
}
