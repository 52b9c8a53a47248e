"""A device program under construction: buffers and tasks are appended, and positions never change.

Buffers for inputs and weights are asked for block by block; `merged_loads` tells which of them another contains.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from einc.core.tensor import TensorDesc, TensorType
from einc.physical.program import Buffer, BufferRole, Region, Task, TaskKind


class Draft:
    """`node` is the operator or output that the tasks added now belong to."""

    def __init__(self) -> None:
        self.buffers: list[Buffer] = []
        self.tasks: list[Task] = []
        self.node = ""
        self._loads: dict[tuple[int, str, TensorType], Region] = {}

    def buffer(
        self, site: int, tensor: str, desc: TensorDesc, block: TensorType, role: BufferRole = BufferRole.SCRATCH
    ) -> Region:
        """A new buffer for `block`, as the region that fills it."""
        self.buffers.append(Buffer(site, tensor, block, desc.dtype, role))
        return Region(len(self.buffers) - 1, block)

    def load(self, site: int, tensor: str, desc: TensorDesc, block: TensorType, role: BufferRole) -> Region:
        """Where the loader puts `block` of an input or weight at a site."""
        key = (site, tensor, block)
        if key not in self._loads:
            self._loads[key] = self.buffer(site, tensor, desc, block, role)
        return self._loads[key]

    def keep(self, buffer: int) -> None:
        """Makes a scratch buffer live to the end."""
        if self.buffers[buffer].role is BufferRole.SCRATCH:
            self.buffers[buffer] = replace(self.buffers[buffer], role=BufferRole.RESULT)

    def task(
        self,
        kind: TaskKind,
        site: int,
        reads: tuple[Region, ...] = (),
        writes: tuple[Region, ...] = (),
        after: Iterable[int] = (),
        function: int | None = None,
        aggregation: str | None = None,
    ) -> int:
        """Appends a task and returns its position."""
        self.tasks.append(Task(kind, site, self.node, reads, writes, tuple(sorted(set(after))), function, aggregation))
        return len(self.tasks) - 1

    def merged_loads(self) -> dict[int, int]:
        """Loaded buffers whose block another loaded buffer of the same site contains, and that other buffer."""
        groups: dict[tuple[int, str], list[Region]] = {}
        for (site, tensor, _), region in self._loads.items():
            groups.setdefault((site, tensor), []).append(region)
        merged: dict[int, int] = {}
        for group in groups.values():
            kept: list[Region] = []
            for region in sorted(group, key=lambda region: (-region.block.size, region.block)):
                larger = next((other for other in kept if other.block.contains(region.block)), None)
                if larger is None:
                    kept.append(region)
                else:
                    merged[region.buffer] = larger.buffer
        return merged
