"""A model text that grows statement by statement, with the weights that belong to it."""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from einc.importers.arrays.element_types import ElementType, find_element_type
from einc.importers.arrays.extents import Extent, make_extent
from einc.importers.arrays.layout import TextParts, write_text
from einc.importers.arrays.naming import NameTable, is_tensor_name, make_identifier, name_dimensions
from einc.importers.arrays.repeats import DeclaredWeight, Statement
from einc.importers.arrays.values import Array, Elements, UnsupportedError, show_shape
from einc.importers.arrays.views import Origin, shorten_views

Operation = TypeVar("Operation", bound=Callable[..., Any])

_STORED_ROWS = re.compile(r"\[\d+:\d+\]$")
"""Which rows of a stored weight are read, behind its name."""

MAX_STATEMENTS = 100_000
"""Statements of a program; the language takes 20,000 operators."""


class ArrayProgram:
    """Collects a model. What no output needs is left out of its text.

    `origins` says which operation made an array, by its name; `lift`, if it is set, gives an array that means the same
    and is better. `hidden` says which number arrays [..., queries, keys] have for all keys behind a query. `statements`
    may be written anew before the text is.
    """

    def __init__(
        self,
        name: str,
        extents: Mapping[int, str] | None = None,
        find_storage: Callable[[str, Sequence[int], int], str] = lambda *_: "",
    ) -> None:
        """Dimensions of some `extents` that are numbers have names in the text. `find_storage` says what stands behind
        the type of a weight: by its name in files, its shape, and how many dimensions its rows have."""
        self.names = NameTable()
        self._named_extents = dict(extents or {})
        self.model = self.names.take(name)
        self._constants: dict[str, Elements] = {}
        self.notes: list[str] = []
        self.origins: dict[str, Origin] = {}
        self.hidden: dict[str, float] = {}
        self.lift: Callable[[ArrayProgram, Array], Array] | None = None
        self._find_storage = find_storage
        self._params: dict[str, int] = {}
        self.largest: dict[str, int | None] = {}
        self._inputs: list[tuple[str, str, str]] = []
        self._weights: dict[str, DeclaredWeight] = {}
        self.statements: list[Statement] = []
        self._outputs: list[tuple[str, str]] = []
        self._placed: dict[tuple[object, ...], Array] = {}

    # -- what a model starts from ----------------------------------------------------------------------------------

    def param(self, name: str, value: int, default: int | None = None, largest: int | None = None) -> Extent:
        """An extent that a user may change, `dim name = default`; of its `value` where there is no other default. It is
        at most the `largest`."""
        fits = is_tensor_name(name) and name not in self.names.bases
        taken = name if fits else self.names.take(re.sub(r"_(\d+)$", r"\1", name))
        self.names.bases.setdefault(taken, taken)
        self._params[taken] = value if default is None else default
        self.largest[taken] = largest
        return Extent.param(taken, value)

    def input(self, name: str, shape: Sequence[Extent | int], type_: ElementType) -> Array:
        """An input; integers that the language does not have are known as those that carry them."""
        array = self._declare("input", name, shape, type_)
        about = f"  # carries {type_.value}" if type_.is_widened or type_ is ElementType.U64 else ""
        self._inputs.append((array.name, _show_type(array), about))
        return array

    def weight(self, name: str, shape: Sequence[Extent | int], type_: ElementType, stored: str) -> Array:
        """A weight that lies in files as `stored`; it is not folded into other constants."""
        return self._declare_stored(name, shape, type_, stored, len(shape) - 1)

    def _declare_stored(
        self, name: str, shape: Sequence[Extent | int], type_: ElementType, stored: str, rows: int
    ) -> Array:
        """A weight of which the first `rows` dimensions are rows in files."""
        array = self._declare("weight", name, shape, type_)
        numbers = all(extent.is_number for extent in array.shape)
        storage = self._find_storage(stored, [extent.value for extent in array.shape], rows) if numbers else ""
        self._weights[array.name] = DeclaredWeight(array.name, _show_type(array) + storage, stored)
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
        """The array with a name in the text: known ones become weights, one for equal ones, stored beside the text."""
        if array.known is None:
            return array
        elements = array.numbers
        if elements is None:
            return self._place_extents(array, hint)
        if elements.size == 0:
            raise UnsupportedError(f"an array {show_shape(array.shape)} without elements")
        carried = np.ascontiguousarray(elements.astype(array.type.carrier.numpy(), copy=False))
        carried = carried.reshape(elements.shape)
        key = (array.type, carried.shape, hashlib.sha256(carried.tobytes()).digest())
        if key not in self._placed:
            name = array.name.removeprefix("?") or hint
            weight = self._declare("weight", name, array.shape, array.type)
            self._weights[weight.name] = DeclaredWeight(weight.name, _show_type(weight), weight.name)
            self._constants[weight.name] = carried
            self._placed[key] = Array(weight.shape, weight.type, weight.name, weight.dims)
        return self._placed[key]

    def is_weight(self, array: Array) -> bool:
        return array.name in self._weights

    def divide_weight(
        self, weight: Array, start: int, count: Extent | None, extents: Sequence[Extent], axis: int
    ) -> Array | None:
        """`count` places of a weight from `start` on, along an axis that is divided into `extents`; None where weights
        in files cannot be read so."""
        size = weight.shape[axis] if count is None else count
        shape = (*weight.shape[:axis], *extents, *weight.shape[axis + 1 :])
        declared = self._weights[weight.name]
        elements = self._constants.get(weight.name)
        if elements is not None:
            part = elements.take(range(start, start + size.value), axis)
            return self.place(self.constant(part.reshape([extent.value for extent in shape]), weight.type, weight.name))
        stored = declared.stored
        if size != weight.shape[axis]:
            if axis or not size.is_number or stored.endswith("]"):
                return None
            stored = f"{stored}[{start}:{start + size.value}]"
        rows = axis if axis == weight.rank - 1 else len(shape) - 1
        undivided, divided = ([extent.value for extent in extents_] for extents_ in (weight.shape, shape))
        is_stored = self._find_storage(declared.stored, undivided, weight.rank - 1) != ""
        if is_stored and not self._find_storage(stored, divided, rows):
            return None
        key = (stored, tuple(extent.text for extent in shape))
        if key not in self._placed:
            self._placed[key] = self._declare_stored(weight.name, shape, weight.type, stored, rows)
        return self._placed[key]

    def rewrite(self, result: Array, compute: Callable[[], Array | None]) -> list[Statement]:
        """The statements of another way to compute an array, under its name; none where there is no such way, or where
        its dimensions would have other names."""
        earlier, self.statements = self.statements, []
        try:
            computed = compute()
            added = self.statements
        finally:
            self.statements = earlier
        if computed is None or computed.dims != result.dims or not added or added[-1].names != (computed.name,):
            return []
        origin = self.origins.get(computed.name)
        if origin is not None:
            self.origins[result.name] = Origin(origin.operation, origin.arguments, result)
        else:
            self.origins.pop(result.name, None)
        return [*added[:-1], replace(added[-1], names=(result.name,), targets=result.name + added[-1].indices)]

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
        self.statements.append(Statement((name,), target, f"{{0}}{index} + {text}", (start.name,)))
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

    def find_origin(self, value: object, operation: str) -> tuple[Any, ...] | None:
        """The arguments of the operation that made an array, if it is this one."""
        origin = self.origins.get(value.name) if isinstance(value, Array) else None
        return origin.arguments if origin is not None and origin.operation == operation else None

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
        is; an index behind which stands `=` gets the result's extent there. `{itself}` in a text is the result.
        """
        name = self.names.take(hint)
        named = tuple(dims or name_dimensions(tuple(shape)))
        items = []
        for index, dim, extent in zip(indices, named, shape, strict=True):
            bare = index.removesuffix("=")
            item = bare if bare == dim else f"{dim}: {bare}"
            items.append(f"{item} = {extent.text}" if index.endswith("=") else item)
        names = self._name_operands(operands)
        if "{itself}" in text:
            text, names = text.replace("{itself}", f"{{{len(names)}}}"), (*names, name)
        self._add(Statement((name,), f"{name}[{', '.join(items)}]", text, names))
        return Array(tuple(shape), type_, name, named)

    def _name_operands(self, operands: Sequence[Array]) -> tuple[str, ...]:
        return tuple(self.place(operand).name for operand in operands)

    def _add(self, statement: Statement) -> None:
        if len(self.statements) >= MAX_STATEMENTS:
            raise UnsupportedError(f"more than {MAX_STATEMENTS:,} statements")
        self.statements.append(statement)

    def prefer_name(self, array: Array, name: str) -> None:
        """What a computed array should be called in the text."""
        declared = array.name in self._weights or array.name in (known for known, _, _ in self._inputs)
        if array.name in self.names.bases and not declared:
            self.names.bases[array.name] = make_identifier(name)

    def output(self, name: str, array: Array) -> str:
        """Saves an array; returns its name in the text: `name` itself where a tensor can have it and nothing that is
        declared or saved has it. Statements get other names where the text is written."""
        placed = self.place(array, name)
        declared = {self.model, *self._params, *(known for known, _, _ in self._inputs), *self._weights}
        saved = name if is_tensor_name(name) else make_identifier(name)
        if saved in declared or saved in (earlier for earlier, _ in self._outputs):
            saved = self.names.take(name)
        self.names.bases.setdefault(saved, saved)
        if make_identifier(self.names.bases[placed.name]) == make_identifier(name) and saved not in declared:
            self.names.bases[placed.name] = saved
        self._outputs.append((saved, placed.name))
        return saved

    def save_instead(self, names: Mapping[str, str]) -> None:
        """Saves other arrays, which have the same elements, under the names of some."""
        self._outputs = [(saved, names.get(name, name)) for saved, name in self._outputs]

    @property
    def output_names(self) -> list[str]:
        """The names of the arrays that are saved."""
        return [name for _, name in self._outputs]

    @property
    def weights(self) -> dict[str, Elements]:
        """The arrays that must be stored beside the text, by their names in files."""
        needed = self._find_needed()
        return {name: elements for name, elements in self._constants.items() if name in needed}

    @property
    def stored(self) -> list[str]:
        """The names in files of the weights that the text reads there and that are not in `weights`."""
        needed = self._find_needed()
        names = [name for name in self._weights if name in needed and name not in self._constants]
        return list(dict.fromkeys(_STORED_ROWS.sub("", self._weights[name].stored) for name in names))

    def _find_needed(self) -> set[str]:
        """The names that the outputs depend on."""
        needed = {name for _, name in self._outputs}
        for statement in reversed(self.statements):
            if not needed.isdisjoint(statement.names):
                needed.update(statement.operands)
        return needed

    def prune(self) -> None:
        """Leaves out the statements that no output needs."""
        needed = self._find_needed()
        self.statements = [part for part in self.statements if not needed.isdisjoint(part.names)]

    def text(self) -> str:
        """The model text, in which chains of views are short."""
        self.prune()
        needed = self._find_needed()
        self.statements = shorten_views(self.statements, set(self.output_names), self.origins, self.names)
        return write_text(
            TextParts(
                model=self.model,
                params=self._params,
                largest=self.largest,
                inputs=self._inputs,
                weights={name: weight for name, weight in self._weights.items() if name in needed},
                statements=self.statements,
                outputs=self._outputs,
                bases=self.names.bases,
                extents=self._named_extents,
            )
        )


def _show_type(array: Array) -> str:
    return f"{array.type.carrier.value}[{', '.join(extent.text for extent in array.shape)}]"


def recorded(function: Operation) -> Operation:
    """The operation, which tells the program what made its result; the program may know a better one (`lift`)."""

    @functools.wraps(function)
    def call(program: ArrayProgram, *arguments: Any, **options: Any) -> Any:
        result: Array = function(program, *arguments, **options)
        known = result.known is not None or result.name in program.origins
        if known or any(getattr(argument, "name", None) == result.name for argument in arguments):
            return result
        operation, operands = function.__name__, arguments
        if operation == "apply":
            operation, *following = arguments
            operands = tuple(following)
        program.origins[result.name] = Origin(
            operation, (*operands, *(value for key, value in options.items() if key != "hint")), result
        )
        return program.lift(program, result) if program.lift is not None else result

    return call  # type: ignore[return-value]
