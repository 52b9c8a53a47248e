"""What of a computed tensor is where: partial copies left by its producer, and blocks that are fully aggregated.

Producers are compiled through their join, so that a tensor starts as partial copies at the sites of its producer's
function specifications (paper, Section 5.1). Every exchange adds the blocks that it aggregated, and later consumers
start from those.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from einc.core.tensor import TensorDesc, TensorType
from einc.physical.program import Region


@dataclass(frozen=True, slots=True)
class Copy:
    """What function specification `function` put out: one of the copies of its block, written by `task`."""

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
    def block(self) -> TensorType:
        return self.region.block


@dataclass(slots=True)
class Residency:
    """All that exists of one computed tensor.

    `copies` lists, for every distinct output block of the producer, its copies by ascending function; `there[s]` are
    the whole blocks at site s, and grow as exchanges are compiled.
    """

    name: str
    desc: TensorDesc
    aggregation: str
    copies: dict[TensorType, tuple[Copy, ...]]
    there: dict[int, list[Whole]] = field(default_factory=dict)

    @staticmethod
    def of(name: str, desc: TensorDesc, aggregation: str, copies: list[Copy]) -> Residency:
        """The state right after the producer ran; a block with a single copy is whole already."""
        groups: dict[TensorType, list[Copy]] = {}
        for copy in copies:
            groups.setdefault(copy.region.block, []).append(copy)
        made = Residency(name, desc, aggregation, {block: tuple(group) for block, group in groups.items()})
        for group in groups.values():
            if len(group) == 1:
                made.add(Whole(group[0].site, group[0].region, (group[0].task,)))
        return made

    @property
    def wholes(self) -> list[Whole]:
        """All whole blocks, by site in the order in which sites got their first one."""
        return [whole for wholes in self.there.values() for whole in wholes]

    def add(self, whole: Whole) -> None:
        """Records a block that an exchange has aggregated."""
        self.there.setdefault(whole.site, []).append(whole)

    def find(self, block: TensorType, site: int) -> Whole | None:
        """The smallest whole block at the site that contains `block`, if there is one."""
        found = [whole for whole in self.there.get(site, ()) if whole.block.contains(block)]
        return min(found, key=lambda whole: whole.block.size, default=None)
