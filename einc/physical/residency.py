"""Where the parts of a computed tensor are: partial copies left by its producer, and fully aggregated blocks.

Producers are compiled through their join, so that a tensor starts as partial copies at the sites of its producer's
function specifications (paper, Section 5.1). Every exchange adds the blocks that it aggregated, and later consumers
start from those.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from einc_runtime.plan.joint_aggregation import AggregationGroup
from einc_runtime.plan.schema import Block, Region, Tensor


@dataclass(frozen=True, slots=True)
class Copy:
    """An output of function specification `function`: one of the copies of its block, written by `task`."""

    function: int
    site: int
    region: Region
    task: int


@dataclass(slots=True)
class Whole:
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
    block that several sites compute, the first. `there[s]` lists the whole blocks at site s, all replicas among them;
    exchanges add to it as they are compiled.
    """

    number: int
    tensor: Tensor
    group: AggregationGroup
    copies: dict[Block, tuple[Copy, ...]]
    there: dict[int, list[Whole]] = field(default_factory=dict)

    @staticmethod
    def of(
        number: int, tensor: Tensor, group: AggregationGroup, copies: Sequence[Copy], replicas: int = 1
    ) -> Residency:
        """The state right after the producer ran; a block with a single copy is whole already.

        `copies` stand in the order of functions. With two or more `replicas` all blocks are whole, each at as many
        sites, and equal blocks are no partial copies.
        """
        blocks: dict[Block, list[Copy]] = {}
        for copy in copies:
            blocks.setdefault(copy.region.block, []).append(copy)
        partial = {block: tuple(own if replicas == 1 else own[:1]) for block, own in blocks.items()}
        made = Residency(number, tensor, group, partial)
        for own in blocks.values():
            if len(own) == replicas:
                for copy in own:
                    made.add(Whole(copy.site, copy.region, (copy.task,)))
        return made

    @property
    def name(self) -> str:
        return self.tensor.name

    @property
    def wholes(self) -> list[Whole]:
        """All whole blocks, site by site, in the order in which sites got their first one."""
        return [whole for wholes in self.there.values() for whole in wholes]

    def add(self, whole: Whole) -> None:
        """Records a block that an exchange has aggregated."""
        self.there.setdefault(whole.site, []).append(whole)

    def find(self, block: Block, site: int) -> Whole | None:
        """The smallest whole block at the site that contains `block`, if there is one."""
        found: Whole | None = None
        for whole in self.there.get(site, ()):
            if whole.block.contains(block) and (found is None or whole.block.size < found.block.size):
                found = whole
        return found
