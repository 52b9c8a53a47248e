"""Reads programs as `printer` writes them, many times as fast as by the grammar: plans have them in ten thousands of
lines. What is written otherwise, or wrong, is left to the grammar, and so are waits.
"""

from __future__ import annotations

import re

from einc.exchange.language.printer import UNITS
from einc.exchange.language.program import Aggregate, Holding, Requirement
from einc.exchange.language.syntax import (
    ActionNode,
    HoldingNode,
    PartitionNode,
    ProgramSource,
    ProgramTree,
    RequirementNode,
    Target,
)
from einc.exchange.language.transformer import MAX_ATOMS, MAX_BYTES

_NAME, _SITE = r"(?!(?:size|after)\b)[A-Za-z_][A-Za-z0-9_.]*", r"[0-9]{1,6}"
_SITES, _AGGREGATE = rf"{_SITE}(?:, {_SITE})*", rf"{_NAME}(?:\+{_NAME})*"
_GPUS = re.compile(_SITES)
_PARTITION = re.compile(rf"({_NAME}) \{{({_SITES})\}}")
_HOLDING = re.compile(rf"({_AGGREGATE}) @ ({_SITES}) \(size: ([1-9][0-9]{{0,17}}) (B|KB|MB|GB)\)")
_REQUIREMENT = re.compile(rf"({_AGGREGATE}) @ ((?:{_SITE}|{_NAME})(?:, (?:{_SITE}|{_NAME}))*)")
_ACTION = re.compile(rf"({_AGGREGATE}) @ ({_SITE})(?: -> ({_SITES}))?")
_JOIN = ";\n     "

_EntryMatch = re.Match[str]


class _NotPrintedError(Exception):
    """This is not how it is printed."""


def read_printed(source: ProgramSource) -> ProgramTree | None:
    """The tree of a text, as the grammar would have it; None where the text is not as it is printed."""
    text = _PrintedText(source.text)
    try:
        gpus = text.entries("GPUS: ", _GPUS, ", ")
        partitions = text.entries("PARTITIONS: ", _PARTITION, " ")
        holdings = text.entries("IN:  ", _HOLDING, _JOIN)
        requirements = text.entries("OUT: ", _REQUIREMENT, _JOIN)
        actions = text.entries("\n", _ACTION, "\n")
        if not (holdings and requirements and text.at_end):
            return None
        return ProgramTree(
            gpus=_distinct(gpus[0][0]) if gpus else None,
            partitions=tuple(map(_partition, partitions)),
            holdings=tuple(map(_holding, holdings)),
            requirements=tuple(map(_requirement, requirements)),
            actions=tuple(map(_action, actions)),
            source=source,
            gpus_place=(0, gpus[0].end()) if gpus else (0, 0),
        )
    except _NotPrintedError:
        return None


class _PrintedText:
    """A text, and how far it has been read."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    @property
    def at_end(self) -> bool:
        return self._at + 1 == len(self._text) and self._text[-1] == "\n"

    def entries(self, header: str, entry: re.Pattern[str], between: str) -> list[_EntryMatch]:
        """The entries behind a header, which begins a line; none where it is not there."""
        found: list[_EntryMatch] = []
        before = "\n" + header if self._at else header
        while not self.at_end and self._text.startswith(before, self._at):
            match = entry.match(self._text, self._at + len(before))
            if match is None:
                raise _NotPrintedError
            found.append(match)
            self._at = match.end()
            before = between
        return found


def _partition(entry: _EntryMatch) -> PartitionNode:
    members = _distinct(entry[2])
    return PartitionNode(entry[1], len(members), members, (entry.start(), entry.end(2)))


def _holding(entry: _EntryMatch) -> HoldingNode:
    size = int(entry[3]) * UNITS[entry[4]]
    if size >= MAX_BYTES:
        raise _NotPrintedError
    return HoldingNode(Holding(_aggregate(entry[1]), _sites(entry[2]), size), (entry.start(), entry.end(2)))


def _requirement(entry: _EntryMatch) -> RequirementNode:
    targets: list[Target] = [int(target) if target.isdecimal() else target for target in entry[2].split(", ")]
    requirement = Requirement(_aggregate(entry[1]), tuple(dict.fromkeys(targets)))
    return RequirementNode(requirement, entry.span())


def _action(entry: _EntryMatch) -> ActionNode:
    stops = (_sites(entry[2]),) if entry[3] is None else (_sites(entry[2]), _sites(entry[3]))
    return ActionNode(_aggregate(entry[1]), stops, (), entry.span())


def _aggregate(text: str) -> Aggregate:
    names = text.split("+")
    atoms = tuple(sorted(set(names)))
    if len(atoms) != len(names) or len(atoms) > MAX_ATOMS:
        raise _NotPrintedError
    return atoms


def _distinct(text: str) -> tuple[int, ...]:
    """Sites that may not be named twice."""
    sites = tuple(map(int, text.split(", ")))
    if len(set(sites)) != len(sites):
        raise _NotPrintedError
    return sites


def _sites(text: str) -> tuple[int, ...]:
    return tuple(dict.fromkeys(map(int, text.split(", "))))
