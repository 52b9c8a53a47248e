"""What the parser builds of each grammar rule of `grammars/exprog.lark`, as it reduces it."""

from __future__ import annotations

import dataclasses
from decimal import Decimal
from typing import Any, NamedTuple

from lark import Token, Transformer

from einc.exchange.language.printer import BYTE_UNITS
from einc.exchange.language.program import GIGABYTE, Aggregate, Holding, Requirement, explain_reads
from einc.exchange.language.syntax import ActionNode, HoldingNode, PartitionNode, RequirementNode, Target, TextRange

MAX_SITE = 1_000_000
MAX_ATOMS = 4096
"""Of one aggregate."""
MAX_ATOM_BYTES = 2**62
"""Sums of two sizes are still integers of 64 bits."""


class InvalidEntry(Exception):
    """A fault that the grammar cannot express; it knows offsets but not the text."""

    def __init__(self, message: str, text_range: TextRange, hint: str | None = None) -> None:
        super().__init__(message)
        self.message, self.text_range, self.hint = message, text_range, hint


class Declaration(NamedTuple):
    """GPUS, PARTITIONS, IN or OUT with its entries."""

    header: str
    entries: list[Any]
    text_range: TextRange


class _PlacedValue(NamedTuple):
    value: Any
    text_range: TextRange


def _locate(*tokens: Token) -> TextRange:
    return tokens[0].start_pos or 0, tokens[-1].end_pos or 0


def _read_site(token: Token) -> int:
    value = int(token) if len(token) <= 7 else MAX_SITE
    if value >= MAX_SITE:
        raise InvalidEntry(
            f"there is no site {token[:20]}", _locate(token), f"sites are numbered from 0 to {MAX_SITE - 1}"
        )
    return value


def _read_sites(tokens: list[Token]) -> tuple[int, ...]:
    return tuple(dict.fromkeys(map(_read_site, tokens)))


class ProgramTreeBuilder(Transformer[Token, Any]):
    """One method per rule; each gets the results of its parts."""

    def start(self, parts: list[Any]) -> tuple[list[Declaration], list[ActionNode]]:
        declarations = parts[0] + [part for part in parts[1:] if isinstance(part, Declaration)]
        return declarations, parts[-1] if len(parts) > 1 else []

    def declarations(self, parts: list[Any]) -> list[Declaration]:
        if not parts:
            return []
        before: list[Declaration] = parts[0]
        before.append(parts[1])  # in place, so that many declarations take linear time
        return before

    def closed(self, parts: list[Any]) -> Declaration:
        return parts[0]  # type: ignore[no-any-return]

    open = closed

    def gpus(self, parts: list[Token]) -> Declaration:
        sites = _read_sites(parts[1:])
        if len(sites) != len(parts) - 1:
            raise InvalidEntry("GPUS names a site twice", _locate(*parts))
        return Declaration("GPUS", list(sites), _locate(*parts))

    def partitions(self, parts: list[Any]) -> Declaration:
        return Declaration("PARTITIONS", parts[1:], _locate(parts[0]))

    def open_partition(self, parts: list[Token]) -> PartitionNode:
        return PartitionNode(str(parts[0]), _read_site(parts[2]), None, _locate(*parts))

    def fixed_partition(self, parts: list[Token]) -> PartitionNode:
        members = _read_sites(parts[1:])
        if len(members) != len(parts) - 1:
            raise InvalidEntry(f"partition {parts[0]} names a site twice", _locate(*parts))
        return PartitionNode(str(parts[0]), len(members), members, _locate(*parts))

    def holdings(self, parts: list[Any]) -> Declaration:
        return Declaration("IN", parts[1:], _locate(parts[0]))

    def holding(self, parts: list[Any]) -> HoldingNode:
        aggregate: _PlacedValue = parts[0]
        size = parts.pop() if isinstance(parts[-1], _PlacedValue) else _PlacedValue(GIGABYTE, aggregate.text_range)
        last = parts[-1].end_pos
        return HoldingNode(
            Holding(aggregate.value, _read_sites(parts[1:]), size.value), (aggregate.text_range[0], last)
        )

    def size(self, parts: list[Token]) -> _PlacedValue:
        number, unit = parts[1:]
        text_range = _locate(number, unit)
        if unit not in BYTE_UNITS:
            raise InvalidEntry(f"{unit} is not a unit of size", _locate(unit), f"units: {', '.join(BYTE_UNITS)}")
        if len(number) > 40:
            raise InvalidEntry(f"the size {number[:20]}... has too many digits", text_range)
        size = Decimal(number) * BYTE_UNITS[unit]
        if size != int(size) or not 1 <= size < MAX_ATOM_BYTES:
            raise InvalidEntry(f"{number} {unit} is not a whole number of bytes from 1 to 2^62", text_range)
        return _PlacedValue(int(size), text_range)

    def requirements(self, parts: list[Any]) -> Declaration:
        return Declaration("OUT", parts[1:], _locate(parts[0]))

    def requirement(self, parts: list[_PlacedValue]) -> RequirementNode:
        aggregate, targets = parts
        return RequirementNode(
            Requirement(aggregate.value, targets.value), (aggregate.text_range[0], targets.text_range[1])
        )

    def body(self, parts: list[ActionNode]) -> list[ActionNode]:
        return parts

    def statement(self, parts: list[Any]) -> ActionNode:
        if len(parts) == 1:
            return parts[0]  # type: ignore[no-any-return]
        action: ActionNode = parts[0]
        return dataclasses.replace(action, after=tuple(parts[1]))

    def after(self, parts: list[Any]) -> list[ActionNode]:
        return parts[1:]

    def action(self, parts: list[_PlacedValue]) -> ActionNode:
        stops = tuple(part.value for part in parts[1:])
        return ActionNode(parts[0].value, stops, (), (parts[0].text_range[0], parts[-1].text_range[1]))

    def multicast(self, parts: list[_PlacedValue]) -> ActionNode:
        stops = (parts[1].value, parts[2].value)
        return ActionNode(parts[0].value, stops, (), (parts[0].text_range[0], parts[-1].text_range[1]), multicast=True)

    def read(self, parts: list[Any]) -> _PlacedValue:
        aggregate, site = parts
        return _PlacedValue((aggregate.value, _read_site(site)), (aggregate.text_range[0], site.end_pos))

    def reduction(self, parts: list[_PlacedValue]) -> ActionNode:
        reads = tuple(sorted((part.value for part in parts[2:]), key=lambda read: read[1]))
        text_range = parts[0].text_range[0], parts[-1].text_range[1]
        if (reason := explain_reads(parts[0].value, reads)) is not None:
            raise InvalidEntry(reason, text_range, "for example A+B+C @ 0 <= {A @ 0, B+C @ 1}")
        return ActionNode(parts[0].value, (parts[1].value,), (), text_range, reads=reads)

    def aggregate(self, parts: list[Token]) -> _PlacedValue:
        if len(parts) == 1:
            return _PlacedValue((str(parts[0]),), _locate(*parts))
        if len(parts) > MAX_ATOMS:
            raise InvalidEntry(f"an aggregate of {len(parts)} atoms; at most {MAX_ATOMS} are allowed", _locate(*parts))
        atoms: Aggregate = tuple(sorted(set(map(str, parts))))
        if len(atoms) != len(parts):
            twice = next(atom for k, atom in enumerate(parts) if atom in parts[:k])
            raise InvalidEntry(f"atom {twice} stands twice in one aggregate: it would count twice", _locate(*parts))
        return _PlacedValue(atoms, _locate(*parts))

    def targets(self, parts: list[Token]) -> _PlacedValue:
        targets: list[Target] = [_read_site(part) if part.type == "INT" else str(part) for part in parts]
        return _PlacedValue(tuple(dict.fromkeys(targets)), _locate(*parts))
