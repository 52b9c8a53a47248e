"""What the parser builds of each grammar rule of `grammars/exprog.lark`, as it reduces it."""

from __future__ import annotations

from decimal import Decimal
from typing import Any, NamedTuple

from lark import Token, Transformer

from einc.exchange.language.program import GIGABYTE, Aggregate, Holding, Requirement
from einc.exchange.language.syntax import ActionText, HoldingText, PartitionText, Place, RequirementText, Target
from einc.exchange.language.words import UNITS

MAX_SITE = 1_000_000
MAX_ATOMS = 4096
"""Of one aggregate."""
MAX_BYTES = 2**62


class Misuse(Exception):
    """A finding that the grammar cannot express; it knows offsets but not the text."""

    def __init__(self, message: str, place: Place, hint: str | None = None) -> None:
        super().__init__(message)
        self.message, self.place, self.hint = message, place, hint


class Declaration(NamedTuple):
    """GPUS, PARTITIONS, IN or OUT with its entries."""

    header: str
    entries: list[Any]
    place: Place


class _Located(NamedTuple):
    value: Any
    place: Place


def _place(*tokens: Token) -> Place:
    return tokens[0].start_pos or 0, tokens[-1].end_pos or 0


def _site(token: Token) -> int:
    value = int(token) if len(token) <= 7 else MAX_SITE
    if value >= MAX_SITE:
        raise Misuse(f"there is no site {token[:20]}", _place(token), f"sites are numbered from 0 to {MAX_SITE - 1}")
    return value


def _sites(tokens: list[Token]) -> tuple[int, ...]:
    return tuple(dict.fromkeys(map(_site, tokens)))


class ToProgramText(Transformer[Token, Any]):
    """One method per rule; each gets the results of its parts."""

    def start(self, parts: list[Any]) -> tuple[list[Declaration], list[ActionText]]:
        declarations = parts[0] + [part for part in parts[1:] if isinstance(part, Declaration)]
        return declarations, parts[-1] if len(parts) > 1 else []

    def declarations(self, parts: list[Any]) -> list[Declaration]:
        if not parts:
            return []
        before: list[Declaration] = parts[0]
        before.append(parts[1])  # in place: many declarations in a row cost no more than their number
        return before

    def closed(self, parts: list[Any]) -> Declaration:
        return parts[0]  # type: ignore[no-any-return]

    open = closed

    def gpus(self, parts: list[Token]) -> Declaration:
        sites = _sites(parts[1:])
        if len(sites) != len(parts) - 1:
            raise Misuse("GPUS names a site twice", _place(*parts))
        return Declaration("GPUS", list(sites), _place(*parts))

    def partitions(self, parts: list[Any]) -> Declaration:
        return Declaration("PARTITIONS", parts[1:], _place(parts[0]))

    def open_partition(self, parts: list[Token]) -> PartitionText:
        return PartitionText(str(parts[0]), _site(parts[2]), None, _place(*parts))

    def fixed_partition(self, parts: list[Token]) -> PartitionText:
        members = _sites(parts[1:])
        if len(members) != len(parts) - 1:
            raise Misuse(f"partition {parts[0]} names a site twice", _place(*parts))
        return PartitionText(str(parts[0]), len(members), members, _place(*parts))

    def holdings(self, parts: list[Any]) -> Declaration:
        return Declaration("IN", parts[1:], _place(parts[0]))

    def holding(self, parts: list[Any]) -> HoldingText:
        aggregate: _Located = parts[0]
        size = parts.pop() if isinstance(parts[-1], _Located) else _Located(GIGABYTE, aggregate.place)
        last = parts[-1].end_pos
        return HoldingText(Holding(aggregate.value, _sites(parts[1:]), size.value), (aggregate.place[0], last))

    def size(self, parts: list[Token]) -> _Located:
        number, unit = parts[1:]
        place = _place(number, unit)
        if unit not in UNITS:
            raise Misuse(f"{unit} is no unit of size", _place(unit), f"units: {', '.join(UNITS)}")
        if len(number) > 40:
            raise Misuse(f"the size {number[:20]}... has too many digits", place)
        size = Decimal(number) * UNITS[unit]
        if size != int(size) or not 1 <= size < MAX_BYTES:
            raise Misuse(f"{number} {unit} is not a whole number of bytes from 1 to 2^62", place)
        return _Located(int(size), place)

    def requirements(self, parts: list[Any]) -> Declaration:
        return Declaration("OUT", parts[1:], _place(parts[0]))

    def requirement(self, parts: list[_Located]) -> RequirementText:
        aggregate, targets = parts
        return RequirementText(Requirement(aggregate.value, targets.value), (aggregate.place[0], targets.place[1]))

    def body(self, parts: list[ActionText]) -> list[ActionText]:
        return parts

    def statement(self, parts: list[Any]) -> ActionText:
        if len(parts) == 1:
            return parts[0]  # type: ignore[no-any-return]
        action: ActionText = parts[0]
        return ActionText(action.aggregate, action.stops, tuple(parts[1]), action.place)

    def after(self, parts: list[Any]) -> list[ActionText]:
        return parts[1:]

    def action(self, parts: list[_Located]) -> ActionText:
        stops = tuple(part.value for part in parts[1:])
        return ActionText(parts[0].value, stops, (), (parts[0].place[0], parts[-1].place[1]))

    def aggregate(self, parts: list[Token]) -> _Located:
        if len(parts) == 1:
            return _Located((str(parts[0]),), _place(*parts))
        if len(parts) > MAX_ATOMS:
            raise Misuse(f"an aggregate of {len(parts)} atoms; at most {MAX_ATOMS} are allowed", _place(*parts))
        atoms: Aggregate = tuple(sorted(set(map(str, parts))))
        if len(atoms) != len(parts):
            twice = next(atom for k, atom in enumerate(parts) if atom in parts[:k])
            raise Misuse(f"atom {twice} stands twice in one aggregate: it would count twice", _place(*parts))
        return _Located(atoms, _place(*parts))

    def targets(self, parts: list[Token]) -> _Located:
        targets: list[Target] = [_site(part) if part.type == "INT" else str(part) for part in parts]
        return _Located(tuple(dict.fromkeys(targets)), _place(*parts))
