"""What exists of tensors that are made part after part of the batch (`einc.logical.division`)."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import MutableMapping
from dataclasses import dataclass, field

from einc.physical.residency import CompleteBlock, PartialCopy, Residency
from einc_runtime.plan.schema import Block, Exchange


@dataclass(slots=True)
class Residencies:
    """What exists of every computed tensor, by its position: of the tensors that are made at once, and of each part.

    An operator that computes a part reads what was made of the same part, and nothing of the others, so that exchanges
    of a part know nothing of them.
    """

    undivided: dict[int, Residency] = field(default_factory=dict)
    parts: dict[int, dict[int, Residency]] = field(default_factory=dict)

    def fork(self) -> Residencies:
        """A copy of what there is of tensors that are made at once; none are made in parts."""
        return Residencies({number: residency.fork() for number, residency in self.undivided.items()})

    def view(self, part: int | None) -> MutableMapping[int, Residency]:
        """Those that the operators of a part read and add to; None is for operators that are computed at once, which
        read all parts together."""
        if part is not None:
            return ChainMap(self.parts.setdefault(part, {}), self.undivided)
        for number in {number for of_part in self.parts.values() for number in of_part}:
            self.undivided[number] = _join([of_part[number] for of_part in self.parts.values()])
        self.parts.clear()
        return self.undivided


def _join(residencies: list[Residency]) -> Residency:
    """All that exists of a tensor, of which each residency has a part."""
    first = residencies[0]
    copies: dict[Block, tuple[PartialCopy, ...]] = {}
    complete_at: dict[int, tuple[CompleteBlock, ...]] = {}
    for residency in residencies:
        copies.update(residency.copies)
        for site, blocks in residency.complete_at.items():
            complete_at[site] = (*complete_at.get(site, ()), *blocks)
    return Residency(first.number, first.tensor, first.group, copies, complete_at)


@dataclass(slots=True)
class PlacedParts:
    """Where the functions of an operation are, and the exchange of each of its parts, as far as they are planned."""

    sites: dict[int, int] = field(default_factory=dict)
    exchanges: list[Exchange | None] = field(default_factory=list)
