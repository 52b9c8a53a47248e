"""How model texts are laid out, and the names that weights have in the files of a folder."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from einc.core.tensor import DType
from einc.importers.config import ConfigFields
from einc_runtime.text import did_you_mean

MAX_LINE_WIDTH = 120
"""Characters in a line of a call."""

Rows = Sequence[tuple[str, str, str]]

_TAKEN = frozenset(
    ("model", "param", "dim", "input", "weight", "state", "output", "block", "repeat", "scan", "preset", "return",
     "from", "as", "true", "false", *(dtype.value for dtype in DType))
)  # fmt: skip
"""Words that cannot be names."""


@dataclass(frozen=True, slots=True)
class StoredWeight:
    """A weight's name in the text, its dimensions, and its name in the files, where `{i}` is the layer, and `*`
    the number of each of `count` tensors. Its type is the model's where it has none of its own. A quantized weight has
    what stands behind `as`, and `parts`: what the names of its parts in files end with."""

    name: str
    dims: str
    stored: str
    dtype: str = ""
    count: int = 1
    storage: str = ""
    parts: tuple[str, ...] = ("",)

    def files(self, layer: int) -> list[str]:
        """The names in the files, without the rows that are taken of a tensor."""
        name = self.stored.partition("[")[0].replace("{i}", str(layer))
        return [name.replace("*", str(number)) + part for number in range(self.count) for part in self.parts]


def name_rows(stored: str, counts: Sequence[int]) -> list[str]:
    """The names of tensors that are stacked in one stored tensor, given the number of rows of each."""
    ends = [0, *itertools.accumulate(counts)]
    return [f"{stored}[{lo}:{up}]" for lo, up in itertools.pairwise(ends)]


def declare_numbers(word: str, rows: Rows) -> list[str]:
    """`param name = value  # comment` or `dim ...`, aligned."""
    return _align_columns(f"{word} ", " = ", rows)


def declare_inputs(rows: Rows, indent: str = "") -> list[str]:
    """`input name : type  # comment`, aligned; a row is a name, a type with its dimensions, and a comment."""
    return _align_columns(f"{indent}input ", " : ", rows)


def _align_columns(start: str, between: str, rows: Rows) -> list[str]:
    first = max(len(name) for name, _, _ in rows)
    second = max((len(value) for _, value, comment in rows if comment), default=0)
    return [
        f"{start}{name:<{first}}{between}{value:<{second}}{f'  # {comment}' if comment else ''}".rstrip()
        for name, value, comment in rows
    ]


def declare_weights(table: Sequence[StoredWeight], dtype: str, indent: str = "") -> list[str]:
    """`weight name : dtype[dims] as storage from "stored"`, aligned."""
    names = max(len(weight.name) for weight in table)
    types = [
        f"{weight.dtype or dtype}[{weight.dims}]{f' as {weight.storage}' if weight.storage else ''}" for weight in table
    ]
    longest = max(map(len, types))
    return [
        f'{indent}weight {weight.name:<{names}} : {type_:<{longest}} from "{weight.stored}"'
        for weight, type_ in zip(table, types, strict=True)
    ]


def wrap_lines(lines: Sequence[str]) -> list[str]:
    """The lines, with long calls and lists continued on the next line after their bracket."""
    result = []
    for line in lines:
        bracket = re.search(r"[(\[]", line)
        indent = " " * (bracket.end() if bracket else 0)
        while len(line) > MAX_LINE_WIDTH and (cut := line.rfind(", ", len(indent) + 1, MAX_LINE_WIDTH)) > 0:
            result.append(line[: cut + 1])
            line = indent + line[cut + 2 :]
        result.append(line)
    return result


def comment_lines(*lines: str) -> list[str]:
    return [f"# {line}".rstrip() for line in lines]


def make_name(text: str) -> str:
    """A name of the language that reads like `text`."""
    word = "".join(c if c.isascii() and c.isalnum() else "_" for c in text)[:60].strip("_").lower()
    return f"hf_{word}".rstrip("_") if not word or word[0].isdigit() or word in _TAKEN else word


MAX_MISSING = 10  # missing weights that are named; the others are counted
_COMPARED = 2_000  # names that a missing one is compared with, to suggest a similar one


class StoredNames:
    """The names in the weight files, or None where a folder has no weights (yet)."""

    def __init__(self, names: frozenset[str] | None, fields: ConfigFields) -> None:
        self._names = names
        self._fields = fields

    def match_spelling(self, table: Sequence[StoredWeight], *alternatives: Callable[[str], str]) -> list[StoredWeight]:
        """The table with every name spelled as the files spell it: as it is, or as the first alternative they have."""
        spelled = []
        for weight in table:
            names = [weight.stored, *(change(weight.stored) for change in alternatives)]
            known = (name for name in names if name.replace("{i}", "0") in (self._names or ()))
            spelled.append(replace(weight, stored=next(known, weight.stored)))
        return spelled

    def has_quantized(self, weight: StoredWeight, part: str) -> bool:
        """Whether the files have a weight's `part`, a piece of a name that only quantized weights have. Where there are
        no files, projections and experts are quantized."""
        base = weight.files(0)[0].removesuffix(".weight")
        if self._names is None:
            return (base.endswith("_proj") or weight.count > 1) and ".weight" in weight.stored
        return f"{base}{part}" in self._names

    def check(self, tables: Sequence[tuple[Sequence[StoredWeight], Sequence[int]]]) -> None:
        """Notes a problem for every weight that the files lack; each table comes with the numbers of its layers."""
        if self._names is None:
            self._fields.note("there are no weights beside it; their names are those that transformers gives")
            return
        expected = dict.fromkeys(
            name for table, layers in tables for layer in layers for weight in table for name in weight.files(layer)
        )
        missing = [name for name in expected if name not in self._names]
        known = sorted(self._names)[:_COMPARED]
        for name in missing[:MAX_MISSING]:
            self._fields.fail(f"the weight files beside it have no '{name}'", did_you_mean(name, known))
        if len(missing) > MAX_MISSING:
            self._fields.fail(f"the weight files miss {len(missing) - MAX_MISSING} more weights")
