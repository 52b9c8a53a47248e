"""What all records of a plan file have in common."""

from __future__ import annotations

import msgspec


class Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, gc=False):
    """Base of all parts of a bundle. They cannot form cycles, so the garbage collector need not track them.

    Fields that have their default are left out of a plan file. Records of more than 15 fields have all of them there:
    msgspec would write the shorter map with the longer mark of theirs.
    """
