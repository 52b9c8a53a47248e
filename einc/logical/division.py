"""Plans that divide the batch and the operators: replicas, micro-batches, and pipeline stages.

The batch is cut into equal *parts*. Each replica has some of the parts, its micro-batches, and computes them one after
another. Each stage has some of the operators, on sites that no other stage has. So while a stage computes one part, the
stage before it computes the next one. A part of an operator is cut further over the sites of its stage, as any operator
is over all sites.

The parts are a cut of the batch like any other. What is new in such a plan is only where functions run, and that a site
has several of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from einc.core.intervals import Intervals


@dataclass(frozen=True, slots=True)
class DivisionShape:
    """How many stages, micro-batches of each replica, and replicas there are."""

    stages: int = 1
    microbatches: int = 1
    replicas: int = 1

    @property
    def parts(self) -> int:
        """Of the batch."""
        return self.microbatches * self.replicas

    @property
    def groups(self) -> int:
        """Disjoint groups of sites."""
        return self.stages * self.replicas


@dataclass(frozen=True, slots=True)
class Division:
    """The division of a plan. `stage_of[n]` is the stage of node n, and `index_of[n]` the position of the index that
    cuts it into the parts; None for a node that is computed once, for all parts together.

    `groups[r][s]` are the sites of stage s of replica r; nodes that are computed once have those of replica 0. Of
    these, the nodes in `late` read what the parts made, and come after all of them; the others come before.
    """

    shape: DivisionShape
    stage_of: tuple[int, ...]
    index_of: tuple[int | None, ...]
    late: frozenset[int]
    groups: tuple[tuple[tuple[int, ...], ...], ...]

    def list_parts(self) -> Iterator[tuple[int, int]]:
        """All parts in the order in which they are planned, each with its replica: the first micro-batch of every
        replica, then the second ones."""
        for microbatch in range(self.shape.microbatches):
            for replica in range(self.shape.replicas):
                yield replica * self.shape.microbatches + microbatch, replica

    def list_steps(self) -> Iterator[tuple[int, int | None]]:
        """The nodes in the order in which they are planned, each with a part: None for those that are computed once."""
        once = [number for number, index in enumerate(self.index_of) if index is None]
        yield from ((number, None) for number in once if number not in self.late)
        for part, _ in self.list_parts():
            yield from ((number, part) for number, index in enumerate(self.index_of) if index is not None)
        yield from ((number, None) for number in once if number in self.late)

    def find_sites(self, node: int, part: int | None) -> tuple[int, ...]:
        """The sites where a part of a node is computed."""
        replica = 0 if part is None else part // self.shape.microbatches
        return self.groups[replica][self.stage_of[node]]

    def list_functions(self, node: int, part: int | None, intervals: Intervals, functions: int) -> list[int]:
        """The functions of a part of a node that is cut into these intervals; `functions` counts replicas, too."""
        index = self.index_of[node]
        if part is None or index is None:
            return list(range(functions))
        return list_part_functions(intervals, index, self.shape.parts, part, functions)


def list_part_functions(intervals: Intervals, index: int, parts: int, part: int, functions: int) -> list[int]:
    """The functions, in lexicographic order of their intervals and then replica by replica, whose interval of the
    index at this position lies in the part."""
    inner = 1
    for index_intervals in intervals[index + 1 :]:
        inner *= len(index_intervals)
    count = len(intervals[index])
    return [f for f in range(functions) if f // inner % count * parts // count == part]
