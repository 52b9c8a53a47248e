"""Laying out model texts: declarations in columns, weights under the names that files have for them."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass

from einc.core.tensor import DType

WIDEST = 120
"""Characters in a line of a call."""

Rows = Sequence[tuple[str, str, str]]

_TAKEN = frozenset(
    ("model", "param", "dim", "input", "weight", "output", "block", "repeat", "preset", "return", "from", "as",
     "true", "false", *(dtype.value for dtype in DType))
)  # fmt: skip
"""Words that cannot be names."""


@dataclass(frozen=True, slots=True)
class Weight:
    """A weight's name in the text, its dimensions, and its name in the files, where `{i}` is the layer, and `*`
    the number of each of `count` tensors. Its type is the model's where it has none of its own."""

    name: str
    dims: str
    stored: str
    dtype: str = ""
    count: int = 1

    def files(self, layer: int) -> list[str]:
        """The names in the files, without the rows that are taken of a tensor."""
        name = self.stored.partition("[")[0].replace("{i}", str(layer))
        return [name.replace("*", str(number)) for number in range(self.count)]


def rows(stored: str, counts: Sequence[int]) -> list[str]:
    """What tensors that stand under each other in one are called, by how many rows each has."""
    ends = [0, *itertools.accumulate(counts)]
    return [f"{stored}[{lo}:{up}]" for lo, up in itertools.pairwise(ends)]


def numbers(word: str, rows: Rows) -> list[str]:
    """`param name = value  # comment` or `dim ...`, aligned."""
    return _columns(f"{word} ", " = ", rows)


def inputs(rows: Rows, indent: str = "") -> list[str]:
    """`input name : type  # comment`, aligned; a row is a name, a type with its dimensions, and a comment."""
    return _columns(f"{indent}input ", " : ", rows)


def _columns(start: str, between: str, rows: Rows) -> list[str]:
    first = max(len(name) for name, _, _ in rows)
    second = max((len(what) for _, what, comment in rows if comment), default=0)
    return [
        f"{start}{name:<{first}}{between}{what:<{second}}{f'  # {comment}' if comment else ''}".rstrip()
        for name, what, comment in rows
    ]


def weights(table: Sequence[Weight], dtype: str, indent: str = "") -> list[str]:
    """`weight name : dtype[dims] from "stored"`, aligned."""
    names = max(len(weight.name) for weight in table)
    types = [f"{weight.dtype or dtype}[{weight.dims}]" for weight in table]
    longest = max(map(len, types))
    return [
        f'{indent}weight {weight.name:<{names}} : {type_:<{longest}} from "{weight.stored}"'
        for weight, type_ in zip(table, types, strict=True)
    ]


def wrapped(lines: Sequence[str]) -> list[str]:
    """Calls and lists that are too long for a line go on in the next one, after their bracket."""
    result = []
    for line in lines:
        bracket = re.search(r"[(\[]", line)
        indent = " " * (bracket.end() if bracket else 0)
        while len(line) > WIDEST and (cut := line.rfind(", ", len(indent) + 1, WIDEST)) > 0:
            result.append(line[: cut + 1])
            line = indent + line[cut + 2 :]
        result.append(line)
    return result


def comment(*lines: str) -> list[str]:
    return [f"# {line}".rstrip() for line in lines]


def name_of(text: str) -> str:
    """A name of the language that reads like `text`."""
    word = "".join(c if c.isascii() and c.isalnum() else "_" for c in text)[:60].strip("_").lower()
    return f"hf_{word}".rstrip("_") if not word or word[0].isdigit() or word in _TAKEN else word
