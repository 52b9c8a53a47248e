"""Arrays in a source of weights, known by name before their data is read."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from einc_runtime.dtypes import Array
from einc_runtime.plan.schema import Tensor


@dataclass(frozen=True, slots=True)
class StoredArray:
    """A stored array's type, its shape, and how to read it for a weight.

    `read_into` reads it into dense memory of its type and size; None where it can only be read as a whole. `narrow` is
    the same array as it is stored, where that is floats of 8 bits and `read` widens them.
    """

    dtype: str
    shape: tuple[int, ...]
    read: Callable[[Tensor], Array]
    read_into: Callable[[Array], None] | None = None
    narrow: StoredArray | None = None


@dataclass(frozen=True, slots=True)
class StoredArrays:
    """The names of all stored arrays, and a function that finds the array of a name. Unused arrays are not checked."""

    names: Collection[str]
    find: Callable[[str], StoredArray]
