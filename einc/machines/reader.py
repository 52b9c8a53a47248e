"""Typed, bounded access to the untrusted JSON of a machine file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from einc.errors import MachineError
from einc.machines.model import Pair

_SHOWN = 40


class Reader:
    """Typed access to untrusted JSON; every error names the place in the file."""

    __slots__ = ("where",)

    def __init__(self, where: str) -> None:
        self.where = where

    def error(self, message: str, at: str) -> MachineError:
        return MachineError(f"{at}: {message}", where=self.where)

    def fields(
        self, value: object, at: str, required: Sequence[str], optional: Sequence[str] = ()
    ) -> Mapping[str, Any]:
        """An object with these fields and no others."""
        if not isinstance(value, Mapping):
            raise self.error(f"expected an object, found {show(value)}", at)
        for key in value:
            if key not in required and key not in optional:
                known = ", ".join((*required, *optional))
                raise self.error(f"unknown field {key[:_SHOWN]!r} (known: {known})", at)
        for key in required:
            if key not in value:
                raise self.error(f"the field {key!r} is missing", at)
        return value

    def items(self, value: object, at: str, most: int) -> list[object]:
        if not isinstance(value, list):
            raise self.error(f"expected a list, found {show(value)}", at)
        if len(value) > most:
            raise self.error(f"expected at most {most} entries, found {len(value)}", at)
        return value

    def name(self, value: object, at: str) -> str:
        if not isinstance(value, str) or not 1 <= len(value) <= 100 or not value.isprintable():
            raise self.error(f"expected a name of 1 to 100 printable characters, found {show(value)}", at)
        return value

    def integer(self, value: object, at: str, least: int, most: int) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            raise self.error(f"expected a whole number from {least} to {most}, found {show(value)}", at)
        return value

    def number(self, value: object, at: str, least: float, most: float) -> float:
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise self.error(f"expected a number, found {show(value)}", at)
        if not least <= value <= most:
            raise self.error(f"expected a number from {least:g} to {most:g}, found {show(value)}", at)
        return float(value)

    def rate(self, value: object, at: str) -> float:
        """A bandwidth in GB/s: above zero, and of a size that no arithmetic on it overflows."""
        return self.number(value, at, 1e-9, 1e15)


def show(value: object) -> str:
    if isinstance(value, Mapping):
        return "an object"
    if isinstance(value, list):
        return "a list"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    text = repr(value)
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "..."


def read_pairs(reader: Reader, value: object, at: str, sites: int) -> tuple[Pair, ...]:
    """A non-empty list of distinct ordered pairs of distinct sites."""
    pairs = []
    entries = reader.items(value, at, sites * sites)
    if not entries:
        raise reader.error("expected at least one pair of sites", at)
    known = range(sites)
    for k, entry in enumerate(entries):  # up to a million
        pair = tuple(entry) if isinstance(entry, list) else ()
        if not (len(pair) == 2 and type(pair[0]) is type(pair[1]) is int and pair[0] in known and pair[1] in known):
            raise _pair_fault(reader, entry, f"{at}[{k}]", sites)
        if pair[0] == pair[1]:
            raise reader.error(f"a pair of site {pair[0]} with itself", f"{at}[{k}]")
        pairs.append(pair)
    if len(set(pairs)) != len(pairs):
        twice = Counter(pairs).most_common(1)[0][0]
        raise reader.error(f"the pair {list(twice)} is listed twice", at)
    return tuple(pairs)


def _pair_fault(reader: Reader, entry: object, at: str, sites: int) -> MachineError:
    """Why an entry is no pair of sites."""
    try:
        for end in reader.items(entry, at, 2):
            reader.integer(end, at, 0, sites - 1)
    except MachineError as error:
        return error
    return reader.error("expected a pair of sites", at)
