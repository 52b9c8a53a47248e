"""The syntax tree of an exchange program: lists, chains and open memberships as in the text, and their places."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain

from einc.errors import ProgramError, SourceSpan
from einc.exchange.language.program import Aggregate, Holding, Requirement
from einc_runtime.text import replace_unprintable

Target = int | str
"""A site, or the name of a partition."""

TextRange = tuple[int, int]
"""The first and the last offset (exclusive) in the text."""


@dataclass(frozen=True, slots=True)
class PartitionNode:
    """`G1 {size 4}` (members None) or `G1 {0, 1}`."""

    name: str
    size: int
    members: tuple[int, ...] | None
    text_range: TextRange = field(default=(0, 0), compare=False)


@dataclass(frozen=True, slots=True)
class HoldingNode:
    """An entry of IN."""

    holding: Holding
    text_range: TextRange = field(default=(0, 0), compare=False)


@dataclass(frozen=True, slots=True)
class RequirementNode:
    """An entry of OUT."""

    requirement: Requirement
    text_range: TextRange = field(default=(0, 0), compare=False)


@dataclass(frozen=True, slots=True)
class ActionNode:
    """`X @ S -> D -> D after (...)`: `stops` are the groups of targets, the sources first.

    `X @ S => D` is a multicast, and `X @ S <= {Y @ 0, Z @ 1}` has `reads`.
    """

    aggregate: Aggregate
    stops: tuple[tuple[Target, ...], ...]
    after: tuple[ActionNode, ...] = ()
    text_range: TextRange = field(default=(0, 0), compare=False)
    multicast: bool = False
    reads: tuple[tuple[Aggregate, int], ...] = ()

    @property
    def uses_switch(self) -> bool:
        return self.multicast or bool(self.reads)


@dataclass(frozen=True, slots=True)
class ProgramSource:
    """A text with its file name, for errors that point into it."""

    file: str
    text: str

    def span(self, text_range: TextRange) -> SourceSpan:
        start = min(text_range[0], len(self.text))
        first = self.text.rfind("\n", 0, start) + 1
        last = self.text.find("\n", start)
        line = self.text[first : last if last >= 0 else len(self.text)].rstrip("\r")
        line = replace_unprintable(line, "?", keep="\t")
        column = start - first + 1
        width = min(text_range[1] - start, len(line) - column + 1)
        return SourceSpan(self.file, self.text.count("\n", 0, start) + 1, column, column + max(1, width), line)

    def error(self, message: str, text_range: TextRange, hint: str | None = None) -> ProgramError:
        return ProgramError(message, where=self.span(text_range), hint=hint)


@dataclass(frozen=True, slots=True)
class ProgramTree:
    """A parsed text; declarations and statements in the order of the text."""

    gpus: tuple[int, ...] | None
    partitions: tuple[PartitionNode, ...]
    holdings: tuple[HoldingNode, ...]
    requirements: tuple[RequirementNode, ...]
    actions: tuple[ActionNode, ...]
    source: ProgramSource = field(compare=False)
    gpus_place: TextRange = field(default=(0, 0), compare=False)

    @property
    def uses_switches(self) -> bool:
        """Whether a statement needs a switch that copies or adds."""
        return any(statement.uses_switch for statement in self.actions)

    @property
    def span(self) -> int:
        """One more than the highest site that the text names."""
        actions = (action for statement in self.actions for action in (statement, *statement.after))
        groups: Iterator[Iterable[Target]] = chain(
            (self.gpus or (),),
            (partition.members or () for partition in self.partitions),
            (entry.holding.sites for entry in self.holdings),
            (entry.requirement.targets for entry in self.requirements),
            (stop for action in actions for stop in (*action.stops, tuple(site for _, site in action.reads))),
        )
        return 1 + max((site for group in groups for site in group if isinstance(site, int)), default=-1)
