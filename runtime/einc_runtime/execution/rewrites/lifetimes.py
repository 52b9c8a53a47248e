"""When buffers are read and written, and when they lose their bytes, with tasks in their order in the plan."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Sequence

from einc_runtime.plan.regions import ByteOwners, ExecutablePlan, is_loaded, reads_of, span, writes_of
from einc_runtime.plan.schema import AnyTask
from einc_runtime.plan.states import STATE


class Lifetimes:
    """The tasks that read and write every buffer, ascending, and those that take bytes from it."""

    def __init__(self, bundle: ExecutablePlan, tasks: Sequence[AnyTask]) -> None:
        self.readers: dict[int, list[int]] = defaultdict(list)
        self.writers: dict[int, list[int]] = defaultdict(list)
        self._losses: dict[int, list[int]] = defaultdict(list)
        owners: list[ByteOwners[int]] = [ByteOwners() for _ in bundle.memory]
        for state, record in enumerate(bundle.buffers):
            if record.role == STATE and is_loaded(bundle, state):  # its bytes are taken by what is written over it
                owners[record.site].claim(*span(bundle, state), state)
        for number, task in enumerate(tasks):
            for buffer in {region.buffer for region in reads_of(task)}:
                self.readers[buffer].append(number)
            for buffer in {region.buffer for region in writes_of(task)}:
                self.writers[buffer].append(number)
                claimed = owners[bundle.buffers[buffer].site].claim(*span(bundle, buffer), buffer)
                for loser in set(claimed) - {buffer}:
                    self._losses[loser].append(number)

    def loses_bytes(self, buffer: int, after: int, until: int) -> bool:
        """Whether a task later than `after`, up to and including `until`, gives bytes of the buffer to another one."""
        losses = self._losses.get(buffer, [])
        position = bisect_right(losses, after)
        return position < len(losses) and losses[position] <= until
