"""Where the parts of a computed tensor are: partial copies left by its producer, and fully aggregated blocks.

Producers are compiled through their join, so that a tensor starts as partial copies at the sites of its producer's
function specifications (paper, Section 5.1). Every exchange adds the blocks that it aggregated, and later consumers
start from those. Of tensors that are made part after part of the batch (`einc.logical.division`), each part has its
own.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import MutableMapping, Sequence
from dataclasses import dataclass, field

from einc_runtime.plan.joint_aggregation import AggregationGroup
from einc_runtime.plan.schema import Block, Exchange, Region, Tensor


@dataclass(frozen=True, slots=True)
class PartialCopy:
    """An output of function specification `function`: one of the copies of its block, written by `task`."""

    function: int
    site: int
    region: Region
    task: int


@dataclass(frozen=True, slots=True)
class CompleteBlock:
    """A block that is present at a site, fully aggregated, once the tasks in `ready` have ended."""

    site: int
    region: Region
    ready: tuple[int, ...]

    @property
    def block(self) -> Block:
        return self.region.block


@dataclass(slots=True)
class Residency:
    """Everything that exists of one computed tensor, which has position `number` among the tensors.

    `copies` lists, for every distinct output block of the producer, its partial copies by ascending function; of a
    block that several sites compute, the first. `complete_at[s]` has the whole blocks at site s, all replicas among
    them; exchanges add to it as they are compiled.
    """

    number: int
    tensor: Tensor
    group: AggregationGroup
    copies: dict[Block, tuple[PartialCopy, ...]]
    complete_at: dict[int, tuple[CompleteBlock, ...]] = field(default_factory=dict)

    @staticmethod
    def of(
        number: int, tensor: Tensor, group: AggregationGroup, copies: Sequence[PartialCopy], replicas: int = 1
    ) -> Residency:
        """The state right after the producer ran; a block with a single copy is whole already.

        `copies` stand in the order of functions. With two or more `replicas` all blocks are whole, each at as many
        sites, and equal blocks are no partial copies.
        """
        blocks: dict[Block, list[PartialCopy]] = {}
        for copy in copies:
            blocks.setdefault(copy.region.block, []).append(copy)
        partial = {
            block: tuple(block_copies if replicas == 1 else block_copies[:1]) for block, block_copies in blocks.items()
        }
        residency = Residency(number, tensor, group, partial)
        for block_copies in blocks.values():
            if len(block_copies) == replicas:
                for copy in block_copies:
                    residency.add(CompleteBlock(copy.site, copy.region, (copy.task,)))
        return residency

    @property
    def name(self) -> str:
        return self.tensor.name

    @property
    def wholes(self) -> list[CompleteBlock]:
        """All whole blocks, site by site, in the order in which sites got their first one."""
        return [complete for wholes in self.complete_at.values() for complete in wholes]

    def add(self, complete: CompleteBlock) -> None:
        """Records a block that an exchange has aggregated."""
        self.complete_at[complete.site] = (*self.complete_at.get(complete.site, ()), complete)

    def fork(self) -> Residency:
        """The same state; blocks that are added to one are not added to the other."""
        return Residency(self.number, self.tensor, self.group, self.copies, self.complete_at.copy())

    def find(self, block: Block, site: int) -> CompleteBlock | None:
        """The smallest whole block at the site that contains `block`, if there is one."""
        smallest: CompleteBlock | None = None
        for complete in self.complete_at.get(site, ()):
            if complete.block.contains(block) and (smallest is None or complete.block.size < smallest.block.size):
                smallest = complete
        return smallest


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
