"""A model text that grows statement by statement, with the weights that belong to it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from einc.importers.arrays.element_types import ElementType, find_element_type
from einc.importers.arrays.extents import Extent, make_extent
from einc.importers.arrays.naming import NameTable, make_identifier, name_dimensions
from einc.importers.arrays.values import Array, Elements, UnsupportedError, show_shape
from einc.importers.writing import wrap_lines

MAX_STATEMENTS = 100_000
"""Statements of a program; the language takes 20,000 operators."""


@dataclass(frozen=True, slots=True)
class Statement:
    """`targets = text`; each `{k}` in the text stands for the name of operand k.

    `targets` have their indices beside their name if the statement is an equation.
    """

    names: tuple[str, ...]
    targets: str
    text: str
    operands: tuple[str, ...]

    def render(self) -> str:
        return f"{self.targets} = {fill_operands(self.text, self.operands)}"


def fill_operands(text: str, names: Sequence[str]) -> str:
    return re.sub(r"\{(\d+)\}", lambda match: names[int(match[1])], text)


class ArrayProgram:
    """Collects a model. What no output needs is left out of its text."""

    def __init__(self, name: str) -> None:
        self.names = NameTable()
        self.model = self.names.take(name)
        self._constants: dict[str, Elements] = {}
        self.notes: list[str] = []
        self._params: dict[str, int] = {}
        self._inputs: list[str] = []
        self._declared_weights: dict[str, str] = {}
        self._statements: list[Statement] = []
        self._outputs: list[str] = []
        self._saved: list[str] = []
        self._placed: dict[tuple[object, ...], Array] = {}

    # -- what a model starts from ----------------------------------------------------------------------------------

    def param(self, name: str, default: int) -> Extent:
        """An extent that a user may change, `dim name = default`."""
        taken = self.names.take(re.sub(r"_(\d+)$", r"\1", name))
        self._params[taken] = default
        return Extent.param(taken, default)

    def input(self, name: str, shape: Sequence[Extent | int], type_: ElementType) -> Array:
        """An input; integers that the language does not have are given as those that carry them."""
        array = self._declare("input", name, shape, type_)
        about = f"  # carries {type_.value}" if type_.is_widened or type_ is ElementType.U64 else ""
        self._inputs.append(f"input {array.name} : {_show_type(array)}{about}")
        return array

    def weight(self, name: str, shape: Sequence[Extent | int], type_: ElementType, stored: str) -> Array:
        """A weight that lies in files as `stored`; it is not folded into other constants."""
        array = self._declare("weight", name, shape, type_)
        self._declared_weights[array.name] = f'weight {array.name} : {_show_type(array)} from "{stored}"'
        return array

    def constant(self, elements: object, type_: ElementType | None = None, hint: str = "") -> Array:
        """An array whose elements are known: numbers where they are used as such, a stored weight elsewhere.

        `elements` are anything that numpy takes; arrays of objects hold Extents. Without `type_`, it is numpy's type.
        """
        known = elements if isinstance(elements, np.ndarray) else np.asarray(elements)
        found_type = type_ or find_element_type(known.dtype)
        if found_type is None:
            raise UnsupportedError(f"constants of type {known.dtype.name} are not supported")
        if known.dtype != object:
            known = known.astype(found_type.numpy, copy=False)
        shape = tuple(make_extent(extent) for extent in known.shape)
        return Array(shape, found_type, hint and f"?{hint}", (), known)

    def place(self, array: Array, hint: str = "constant") -> Array:
        """The array with a name in the text: a known one becomes a weight, which is stored beside the text."""
        if array.known is None:
            return array
        elements = array.numbers
        if elements is None:
            return self._place_extents(array, hint)
        if elements.size == 0:
            raise UnsupportedError(f"an array {show_shape(array.shape)} without elements")
        carried = np.ascontiguousarray(elements.astype(array.type.carrier.numpy(), copy=False))
        carried = carried.reshape(elements.shape)
        key = (array.type, carried.shape, carried.tobytes() if carried.nbytes <= 64 else id(array.known))
        if key not in self._placed:
            name = array.name.removeprefix("?") or hint
            weight = self._declare("weight", name, array.shape, array.type)
            self._declared_weights[weight.name] = f"weight {weight.name} : {_show_type(weight)}"
            self._constants[weight.name] = carried
            self._placed[key] = Array(weight.shape, weight.type, weight.name, weight.dims)
            self._placed[(id(array.known),)] = array  # keeps the elements, so that no array has their id again
        return self._placed[key]

    def is_weight(self, array: Array) -> bool:
        return array.name in self._declared_weights

    def _place_extents(self, array: Array, hint: str) -> Array:
        """A vector of extents that depend on params, as a chain of choices."""
        extents = array.extents or ()
        if array.rank > 1 or not extents:
            raise UnsupportedError("extents of params as an array of several dimensions")
        start = self.place(self.constant(np.zeros(array.rank and len(extents), array.type.numpy)), hint)
        text = extents[-1].text
        for position, extent in list(enumerate(extents[:-1]))[::-1]:
            text = f"where(i0 == {position}, {extent.text}, {text})"
        index = "[i0]" if array.rank else "[]"
        name = self.names.take(hint)
        target = f"{name}[n{len(extents)}: i0]" if array.rank else f"{name}[]"
        self._statements.append(Statement((name,), target, f"{{0}}{index} + {text}", (start.name,)))
        return Array(array.shape, array.type, name, (f"n{len(extents)}",)[: array.rank])

    def _declare(self, kind: str, name: str, shape: Sequence[Extent | int], type_: ElementType) -> Array:
        extents = tuple(map(make_extent, shape))
        for extent in extents:
            if extent.value < 1:
                raise UnsupportedError(f"{kind} {name} {show_shape(extents)} has no elements")
        taken = self.names.take(name)
        return Array(extents, type_, taken, tuple(map(self._declare_extent, extents)))

    def _declare_extent(self, extent: Extent) -> str:
        """The name of the dimension that a declaration with this extent has."""
        if not extent.is_number and not extent.text.isidentifier():
            raise UnsupportedError(f"a declared dimension of extent {extent.text}", "give the params numbers")
        return f"n{extent.value}" if extent.is_number else extent.text

    # -- statements ------------------------------------------------------------------------------------------------

    def call(
        self, hint: str, text: str, operands: Sequence[Array], shape: Sequence[Extent], type_: ElementType,
        dims: Sequence[str],
    ) -> Array:  # fmt: skip
        """`name = text`, where `{k}` is operand k, and `dims` are what the language calls the result's dimensions."""
        return self.calls(hint, text, operands, [(shape, type_, dims)])[0]

    def calls(
        self,
        hint: str,
        text: str,
        operands: Sequence[Array],
        results: Sequence[tuple[Sequence[Extent], ElementType, Sequence[str]]],
    ) -> tuple[Array, ...]:
        """The same for a call with several results."""
        names = tuple(self.names.take(hint) for _ in results)
        self._add(Statement(names, ", ".join(names), text, self._name_operands(operands)))
        return tuple(
            Array(tuple(shape), type_, name, tuple(dims))
            for name, (shape, type_, dims) in zip(names, results, strict=True)
        )

    def equation(
        self, hint: str, indices: Sequence[str], text: str, operands: Sequence[Array], shape: Sequence[Extent],
        type_: ElementType, dims: Sequence[str] | None = None,
    ) -> Array:  # fmt: skip
        """`name[...] = text`. `indices` has the name of an index for each dimension of the result, `dims` its names.

        An index that some operand is read at alone in brackets, over a dimension of the same extent, is written as it
        is; an index behind which stands `=` gets the result's extent there.
        """
        name = self.names.take(hint)
        named = tuple(dims or name_dimensions(tuple(shape)))
        items = []
        for index, dim, extent in zip(indices, named, shape, strict=True):
            bare = index.removesuffix("=")
            item = bare if bare == dim else f"{dim}: {bare}"
            items.append(f"{item} = {extent.text}" if index.endswith("=") else item)
        self._add(Statement((name,), f"{name}[{', '.join(items)}]", text, self._name_operands(operands)))
        return Array(tuple(shape), type_, name, named)

    def _name_operands(self, operands: Sequence[Array]) -> tuple[str, ...]:
        return tuple(self.place(operand).name for operand in operands)

    def _add(self, statement: Statement) -> None:
        if len(self._statements) >= MAX_STATEMENTS:
            raise UnsupportedError(f"more than {MAX_STATEMENTS:,} statements")
        self._statements.append(statement)

    def output(self, name: str, array: Array) -> str:
        """Saves an array; returns its name in the text: `name` itself if it was the hint for the array, or is free."""
        placed = self.place(array, name)
        self._saved.append(placed.name)
        computed = any(placed.name in statement.names for statement in self._statements)
        saved = placed.name
        if computed and saved == make_identifier(name) and f"output {saved}" not in self._outputs:
            self._outputs.append(f"output {saved}")
        else:
            saved = self.names.take(name)
            self._outputs.append(f"output {saved} = {placed.name}")
        return saved

    @property
    def weights(self) -> dict[str, Elements]:
        """The arrays that must be stored beside the text, by their names in files."""
        needed = self._find_needed()
        return {name: elements for name, elements in self._constants.items() if name in needed}

    def _find_needed(self) -> set[str]:
        """The names that the outputs depend on."""
        needed = set(self._saved)
        for statement in reversed(self._statements):
            if not needed.isdisjoint(statement.names):
                needed.update(statement.operands)
        return needed

    def text(self) -> str:
        """The model text."""
        needed = self._find_needed()
        groups = [
            [f"dim {name} = {default}" for name, default in self._params.items()],
            self._inputs,
            [line for name, line in self._declared_weights.items() if name in needed],
            [statement.render() for statement in self._statements if not needed.isdisjoint(statement.names)],
            self._outputs,
        ]
        lines = [f"model {self.model}"]
        for group in groups:
            lines += ["", *group] if group else []
        return "\n".join(wrap_lines(lines)) + "\n"


def _show_type(array: Array) -> str:
    return f"{array.type.carrier.value}[{', '.join(extent.text for extent in array.shape)}]"
