"""What all records of a plan file have in common, and those of a layer that it says once for several."""

from __future__ import annotations

import msgspec


class Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, gc=False):
    """Base of all parts of a bundle. They cannot form cycles, so the garbage collector need not track them.

    Fields that have their default are left out of a plan file. Records of more than 15 fields have all of them there:
    msgspec would write the shorter map with the longer mark of theirs.
    """


class Section(Record, frozen=True, array_like=True):
    """Layers among the records of a sequence: where each begins, in the order of positions, and where the last ends.

    `backwards`, as the gradients of layers are, they stand from the last layer to the first.
    """

    starts: tuple[int, ...]
    backwards: bool

    @property
    def layers(self) -> int:
        return len(self.starts) - 1


class CopyNames(Record, frozen=True):
    """What a layer that is left out has in place of the layer that is copied: names of its tensors and operations, in
    the order of the plan, names of tensors in files, and sources of operations."""

    tensors: tuple[str, ...]
    stored: tuple[str | None, ...]
    operations: tuple[str, ...]
    sources: tuple[str | None, ...]


class Repetition(Record, frozen=True):
    """Layers that a plan says, and the names of those that it leaves out (`plan/repetition.py`).

    Every sequence has its sections, in the order of positions, which all have the same layers: `head` of them come
    before those that are left out.
    """

    head: int
    tensors: tuple[Section, ...]
    operations: tuple[Section, ...]
    buffers: tuple[Section, ...]
    tasks: tuple[Section, ...]
    outputs: tuple[Section, ...]
    copies: tuple[CopyNames, ...]
