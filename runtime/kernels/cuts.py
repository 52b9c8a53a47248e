"""Where one invocation of a kernel can be cut into several that compute parts of its results, each as it would be."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from runtime.bundle import Attribute
from runtime.kernels import indices

Shape = Sequence[int]
Attributes = Mapping[str, Attribute]


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


def cuts(kernel: str, attributes: Attributes, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> list[Cut]:
    """Those of an invocation that fits, best first; none for kernels that are cut nowhere."""
    return list(_CUTS[kernel](attributes, inputs, outputs)) if kernel in _CUTS else []


def _joined(text: Attribute, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> Iterator[Cut]:
    """By the indices of the result, of which no operand may have one twice."""
    equation = indices.parse(str(text))
    (shape,) = outputs
    for axis, name in enumerate(equation.output):
        if all(names.count(name) < 2 for names in equation.inputs):
            own = tuple(Along(names.index(name)) if name in names else None for names in equation.inputs)
            yield Cut(shape[axis], own, (Along(axis),))


def _contract(attributes: Attributes, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> Iterator[Cut]:
    yield from sorted(_joined(attributes["equation"], inputs, outputs), key=lambda cut: -cut.extent)


def _map(attributes: Attributes, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> Iterator[Cut]:
    yield from _joined(attributes["indices"], inputs, outputs)


def _rows(attributes: Attributes, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> Iterator[Cut]:
    """Of rows that are whole: the first operand and the result are cut, vectors of a row's length are not."""
    for axis, extent in enumerate(outputs[0][:-1]):
        yield Cut(extent, (Along(axis), *(None for _ in inputs[1:])), (Along(axis),))


def _softmax(attributes: Attributes, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> Iterator[Cut]:
    if attributes["axis"] in (-1, len(outputs[0]) - 1):
        yield from _rows(attributes, inputs, outputs)


def _rope(attributes: Attributes, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> Iterator[Cut]:
    """Positions, where they are an input, go with the tokens."""
    tokens = len(outputs[0]) - 2
    for axis, extent in enumerate(outputs[0][:-1]):
        positions = tuple(Along(0) if axis == tokens else None for _ in inputs[1:])
        yield Cut(extent, (Along(axis), *positions), (Along(axis),))


def _attention(attributes: Attributes, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> Iterator[Cut]:
    """By heads of keys, each with its heads of queries; or by queries, which all see the keys that they saw."""
    queries, keys = inputs[0], inputs[1]
    extras = attributes["extras"]
    assert isinstance(extras, list)
    of_query, of_key = Along(0, queries[0] // keys[0]), Along(0)
    yield Cut(keys[0], (of_query, of_key, of_key, *(None for _ in extras)), (of_query, of_query))
    places = tuple(Along(0) if extra == "positions" else None for extra in extras)
    yield Cut(queries[1], (Along(1), None, None, *places), (Along(1), Along(1)))


_CUTS: dict[str, Callable[[Attributes, Sequence[Shape], Sequence[Shape]], Iterator[Cut]]] = {
    "contract": _contract,
    "map": _map,
    "reduce": _map,
    "rmsnorm": _rows,
    "layernorm": _rows,
    "softmax": _softmax,
    "rope": _rope,
    "attention": _attention,
}
