"""The names that weights have in the files of a folder, where publishers differ in them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from einc.importers.fields import Fields
from einc.importers.writing import Weight
from einc_runtime.text import did_you_mean

MOST_MISSING = 10
_COMPARED = 2_000  # names among which a missing one's likeness is looked for


class Stored:
    """The names in the weight files, or None where a folder has no weights (yet)."""

    def __init__(self, names: frozenset[str] | None, fields: Fields) -> None:
        self._names = names
        self._fields = fields

    def spelling(self, table: Sequence[Weight], *alternatives: Callable[[str], str]) -> list[Weight]:
        """The table with every name spelled as the files spell it: as it is, or as the first alternative they have."""
        spelled = []
        for weight in table:
            names = [weight.stored, *(change(weight.stored) for change in alternatives)]
            found = (name for name in names if name.replace("{i}", "0") in (self._names or ()))
            spelled.append(replace(weight, stored=next(found, weight.stored)))
        return spelled

    def check(self, tables: Sequence[tuple[Sequence[Weight], int]]) -> None:
        """Whether the files have all weights of these tables, each of which comes with its number of layers."""
        if self._names is None:
            self._fields.note("there are no weights beside it; their names are those that transformers gives")
            return
        wanted = dict.fromkeys(
            name
            for table, layers in tables
            for layer in range(layers)
            for weight in table
            for name in weight.files(layer)
        )
        missing = [name for name in wanted if name not in self._names]
        known = sorted(self._names)[:_COMPARED]
        for name in missing[:MOST_MISSING]:
            self._fields.fail(f"the weight files beside it have no '{name}'", did_you_mean(name, known))
        if len(missing) > MOST_MISSING:
            self._fields.fail(f"the weight files miss {len(missing) - MOST_MISSING} more weights")
