"""What the operations of this package take and return."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from einc.errors import Diagnostic, ModelError
from einc.importers.arrays.element_types import ElementType
from einc.importers.arrays.extents import Extent, make_extent

Elements = np.ndarray[Any, np.dtype[Any]]
Shape = tuple[Extent, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Array:
    """A tensor of the text that is being written, or elements that are known.

    `name` is empty while the array is only known. `dims` are the names that the dimensions have in the language.
    `known` has the elements if they are numbers: of numpy's type, or objects where some are Extents (`shape_of`).
    """

    shape: Shape
    type: ElementType
    name: str = ""
    dims: tuple[str, ...] = ()
    known: Elements | None = None

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def numbers(self) -> Elements | None:
        """The elements if all of them are numbers."""
        if self.known is None or self.known.dtype != object:
            return self.known
        if not all(make_extent(element).is_number for element in self.known.ravel()):
            return None
        flat = [make_extent(element).value for element in self.known.ravel()]
        return np.array(flat, self.type.numpy).reshape(self.known.shape)

    @property
    def extents(self) -> tuple[Extent, ...] | None:
        """The elements as extents, in row-major order, if they are whole numbers that are known."""
        if self.known is None or not self.type.is_integer:
            return None
        return tuple(make_extent(e if isinstance(e, Extent) else int(e)) for e in self.known.ravel())

    @property
    def scalar(self) -> int | float | bool | None:
        """The number that all elements are, if they are known and equal."""
        if self.known is None or self.known.dtype == object or self.known.size == 0:
            return None
        first = self.known.ravel()[0]
        return first.item() if self.known.size == 1 or bool((self.known == first).all()) else None


class UnsupportedError(ModelError):
    """Something that cannot be said in the language; an importer adds which node of its file it is."""

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__([Diagnostic(message, hint=hint)])
        self.message = message
        self.hint = hint


def normalize_axis(axis: int, rank: int) -> int:
    """An axis from 0 on; negative ones count from the end. Raises UnsupportedError for one that is not there."""
    if not -rank <= axis < rank:
        raise UnsupportedError(f"axis {axis} of an array of {rank} dimensions")
    return axis % rank


def show_shape(shape: Shape) -> str:
    return f"[{', '.join(extent.text for extent in shape)}]"
