"""Laying out model texts: declarations in columns, weights under the names that files have for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

Rows = Sequence[tuple[str, str, str]]


_TAKEN = frozenset(
    ("model", "param", "dim", "input", "weight", "output", "block", "repeat", "preset", "return", "from", "as",
     "true", "false", "f16", "bf16", "f32", "f64", "i32", "i64", "bool")
)  # fmt: skip
"""Words that cannot be names."""


@dataclass(frozen=True, slots=True)
class Weight:
    """A weight's name in the text, its dimensions, and its name in the files, where `{i}` is the layer."""

    name: str
    dims: str
    stored: str


def numbers(word: str, rows: Rows, indent: str = "") -> list[str]:
    """`param name = value  # comment` or `dim ...`, aligned."""
    names = max(len(name) for name, _, _ in rows)
    values = max(len(value) for _, value, comment in rows if comment) if any(row[2] for row in rows) else 0
    return [
        f"{indent}{word} {name:<{names}} = {value:<{values}}{f'  # {comment}' if comment else ''}".rstrip()
        for name, value, comment in rows
    ]


def inputs(rows: Rows, indent: str = "") -> list[str]:
    """`input name : type  # comment`, aligned; a row is a name, a type with its dimensions, and a comment."""
    names, types = (max(len(row[k]) for row in rows) for k in (0, 1))
    return [
        f"{indent}input {name:<{names}} : {kind:<{types}}{f'  # {comment}' if comment else ''}".rstrip()
        for name, kind, comment in rows
    ]


def weights(table: Sequence[Weight], dtype: str, indent: str = "") -> list[str]:
    """`weight name : dtype[dims] from "stored"`, aligned."""
    if not table:
        return []
    names = max(len(weight.name) for weight in table)
    types = max(len(weight.dims) for weight in table) + len(dtype) + 2
    return [
        f'{indent}weight {weight.name:<{names}} : {f"{dtype}[{weight.dims}]":<{types}} from "{weight.stored}"'
        for weight in table
    ]


def comment(*lines: str) -> list[str]:
    return [f"# {line}".rstrip() for line in lines]


def name_of(text: str) -> str:
    """A name of the language that reads like `text`."""
    word = "".join(c if c.isascii() and c.isalnum() else "_" for c in text)[:60].strip("_").lower()
    return f"hf_{word}".rstrip("_") if not word or word[0].isdigit() or word in _TAKEN else word
