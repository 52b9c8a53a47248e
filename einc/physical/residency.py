"""What of a computed tensor is where: partial copies left by its producer, and blocks that are fully aggregated.

Producers are compiled through their join, so that a tensor starts as partial copies at the sites of its producer's
function specifications (paper, Section 5.1). Every exchange adds the blocks that it aggregated, and later consumers
start from those.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from einc.core.tensor import TensorDesc, TensorType
from einc.graph.graph import Node
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


@dataclass(frozen=True, slots=True)
class Group:
    """How a tensor aggregates: by which operation, and together with which tensors (by name, the primary first).

    `dims` and `whole` are those of the operator's merge; a tensor that aggregates alone is its own primary.
    """

    operation: str
    members: tuple[str, ...]
    dims: tuple[tuple[int, ...], ...]
    whole: tuple[int, ...] = ()

    @staticmethod
    def alone(operation: str, name: str, rank: int) -> Group:
        return Group(operation, (name,), (tuple(range(rank)),))


def groups_of(node: Node) -> tuple[Group, ...]:
    """The group of every output of a node."""
    operator = node.operator
    groups = [
        Group.alone(operation, name, desc.rank)
        for operation, name, desc in zip(operator.aggregations, node.outputs, operator.outputs, strict=True)
    ]
    for merge in operator.merges:
        members = tuple(node.outputs[j] for j in merge.outputs)
        for j in merge.outputs:
            groups[j] = Group(merge.operation, members, merge.dims, merge.whole)
    return tuple(groups)


@dataclass(slots=True)
class Residency:
    """All that exists of one computed tensor.

    `copies` lists, for every distinct output block of the producer, its copies by ascending function; `there[s]` are
    the whole blocks at site s, and grow as exchanges are compiled.
    """

    name: str
    desc: TensorDesc
    group: Group
    copies: dict[TensorType, tuple[Copy, ...]]
    there: dict[int, list[Whole]] = field(default_factory=dict)

    @staticmethod
    def of(name: str, desc: TensorDesc, group: Group, copies: list[Copy]) -> Residency:
        """The state right after the producer ran; a block with a single copy is whole already."""
        blocks: dict[TensorType, list[Copy]] = {}
        for copy in copies:
            blocks.setdefault(copy.region.block, []).append(copy)
        made = Residency(name, desc, group, {block: tuple(own) for block, own in blocks.items()})
        for own in blocks.values():
            if len(own) == 1:
                made.add(Whole(own[0].site, own[0].region, (own[0].task,)))
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
