"""Names in a text that is written: of tensors, of dimensions, and of indices."""

from __future__ import annotations

import re

from einc.core.tensor import DType
from einc.importers.arrays.extents import Extent
from einc.importers.arrays.values import Shape

RESERVED_WORDS = frozenset(
    ("model", "use", "param", "dim", "input", "weight", "state", "output", "block", "repeat", "preset", "return",
     "aggregate", "identity", "scan", "from", "as", "true", "false", "inf", "nearest", "outside",
     *(dtype.value for dtype in DType))
)  # fmt: skip

MAX_NAME_LENGTH = 60
"""Characters of a name, so that a statement of three tensors stays readable; the language takes 100."""

_OF_INDICES = re.compile(r"n\d.*|[ir]\d+|\d.*")
"""What dimensions and indices are called; tensors and params have other names."""


def make_identifier(text: str) -> str:
    """A name of the language for a tensor or a param that reads like `text`."""
    word = re.sub("_+", "_", "".join(c if c.isascii() and c.isalnum() else "_" for c in text)).strip("_").lower()
    if len(word) > MAX_NAME_LENGTH:
        word = word[-MAX_NAME_LENGTH:].partition("_")[2] or word[-MAX_NAME_LENGTH:]
    return f"v_{word}".rstrip("_") if not word or word in RESERVED_WORDS or _OF_INDICES.fullmatch(word) else word


def is_tensor_name(text: str) -> bool:
    """Whether a tensor may have this name in a text as it is."""
    fits = re.fullmatch(rf"[A-Za-z][A-Za-z0-9_]{{0,{MAX_NAME_LENGTH - 1}}}", text) is not None
    return fits and text not in RESERVED_WORDS and not _OF_INDICES.fullmatch(text)


class NameTable:
    """The names that are in use, each with what it was to read like (`bases`)."""

    def __init__(self) -> None:
        self.bases: dict[str, str] = {}
        self._numbers: dict[str, int] = {}

    def take(self, text: str) -> str:
        """A new name that reads like `text`, or like what another name was to read like."""
        base = self.bases.get(text) or make_identifier(text)
        name = base
        while name in self.bases:
            self._numbers[base] = self._numbers.get(base, 1) + 1
            name = f"{base}_{self._numbers[base]}"
        self.bases[name] = base
        return name

    def reserve(self, name: str) -> None:
        """Takes a name as it is."""
        self.bases[name] = name


def name_dimensions(shape: Shape) -> tuple[str, ...]:
    """A name for each dimension, equal for equal extents, and unique in the shape: `batch`, `n768`, `n64`, `n64_2`."""
    names: list[str] = []
    for extent in shape:
        base = _name_extent(extent)
        name, number = base, 1
        while name in names:
            number += 1
            name = f"{base}_{number}"
        names.append(name)
    return tuple(names)


def _name_extent(extent: Extent) -> str:
    if extent.is_number:
        return f"n{extent.value}"
    return extent.text if extent.text.isidentifier() else f"n0_{make_identifier(extent.text)}"
