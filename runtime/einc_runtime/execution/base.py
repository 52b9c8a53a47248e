"""What an executor does for a session: holds the buffers of a bundle, runs its tasks, and measures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from einc_runtime.dtypes import Array
from einc_runtime.execution.trace import TaskRun, Trace
from einc_runtime.execution.trace import task_kind as task_kind
from einc_runtime.plan.schema import Region

Record = tuple[int, int, float, float]
"""Task, worker, start and end in seconds from the start of the execution."""


class Executor(Protocol):
    """Made for one bundle. Results stay valid until the next execution."""

    @property
    def name(self) -> str:
        """The backend's name: cpu, null."""

    def fill(self, buffer: int, values: Array) -> None:
        """Writes a whole input or weight buffer, rounding to its type."""

    def fetch(self, region: Region) -> Array:
        """The values of a region, to be read at once."""

    def execute(self, records: list[Record] | None = None) -> float:
        """Runs all tasks and returns milliseconds; adds one record per task if asked.

        Raises KernelFault for the first task that fails.
        """


def trace_of(records: Sequence[Record], milliseconds: float, backend: str) -> Trace:
    """The records as a trace, by start."""
    ordered = sorted(records, key=lambda record: (record[2], record[0]))
    runs = tuple(TaskRun(task, start * 1e3, end * 1e3, worker) for task, worker, start, end in ordered)
    return Trace(runs, milliseconds, backend)
