"""The interface of executors."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Protocol

from einc_runtime.dtypes import Array
from einc_runtime.execution.facts import ExecutionFacts
from einc_runtime.execution.trace import TaskRun, Trace
from einc_runtime.plan.schema import Region

TaskRecord = tuple[int, int, float, float]
"""Task, worker, start and end in seconds from the start of the execution."""


class Executor(Protocol):
    """Holds the buffers of one bundle, runs its tasks, and measures. Results stay valid until the next execution.

    Other processes may run parts of the plan. Then each has an executor for the buffers that are in its memory, and all
    of them call `fetch` and `execute` together.
    """

    @property
    def name(self) -> str:
        """The backend's name: cpu or cuda."""

    @property
    def notes(self) -> tuple[str, ...]:
        """What a user should know about how the plan runs here."""

    @property
    def closed(self) -> bool:
        """Whether everything has been released, as it is after an error of a GPU."""

    def close(self) -> None:
        """Releases what is held; nothing can be filled, executed or fetched afterwards. Further calls do nothing."""

    def facts(self) -> ExecutionFacts:
        """How the plan runs here: threads or devices, kernels, memory, versions."""

    def holds(self, buffer: int) -> bool:
        """Whether a buffer is in the memory of this process."""

    def fill(self, buffer: int, values: Array) -> None:
        """Writes a whole input or weight buffer, rounding to its type; nothing where another process holds it."""

    def is_filled(self, buffer: int) -> bool:
        """Whether there is nothing to fill: the executor of another plan has filled this buffer, which the two share,
        or another process holds it."""

    def memory_of(self, buffer: int) -> Array | None:
        """The memory of an input or weight buffer, to read values there before `fill` is told; None where the host
        cannot reach it, or another process holds it."""

    def common_states(self) -> frozenset[Hashable] | None:
        """The keys of all states, if they are memory that executors of other plans may have, too; else None."""

    def fetch(self, region: Region) -> Array | None:
        """The values of a region, to be read at once; None where another process gets them."""

    def fetch_own(self, region: Region) -> Array | None:
        """The values of a region that is in the memory of this process, else None; nothing is sent."""

    def execute(self, records: list[TaskRecord] | None = None) -> float:
        """Runs all tasks and returns milliseconds; adds one record per task if asked.

        Raises KernelFault for the first task that fails.
        """


def make_trace(records: Sequence[TaskRecord], milliseconds: float, backend: str) -> Trace:
    """The records as a trace, sorted by their start."""
    ordered = sorted(records, key=lambda record: (record[2], record[0]))
    runs = tuple(TaskRun(task, start * 1e3, end * 1e3, worker) for task, worker, start, end in ordered)
    return Trace(runs, milliseconds, backend)
