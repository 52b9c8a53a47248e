"""What all records of a plan file have in common, and those of a layer that it says once for several."""

from __future__ import annotations

import msgspec


class Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, gc=False):
    """Base of all parts of a bundle. They cannot form cycles, so the garbage collector need not track them.

    Fields that have their default are left out of a plan file. Records of more than 15 fields have all of them there:
    msgspec would write the shorter map with the longer mark of theirs.
    """


class Section(Record, frozen=True, array_like=True):
    """`count` records of a sequence, from position `first` on."""

    first: int
    count: int

    @property
    def end(self) -> int:
        return self.first + self.count


class CopyNames(Record, frozen=True):
    """What a copy of a layer has in place of the layer's: names of its tensors and operations, in their order, names of
    tensors in files, and sources of operations."""

    tensors: tuple[str, ...]
    stored: tuple[str | None, ...]
    operations: tuple[str, ...]
    sources: tuple[str | None, ...]


class Repetition(Record, frozen=True):
    """A layer that a plan says once, and the names of the copies of it that follow (`plan/repetition.py`).

    The layer has a section of every sequence, and so has the layer before it, of the same size in front of it. `growth`
    has for every site how many bytes a buffer that is not scratch lies behind that of the layer before.
    """

    tensors: Section
    operations: Section
    buffers: Section
    tasks: Section
    outputs: Section
    growth: tuple[int, ...]
    copies: tuple[CopyNames, ...]
