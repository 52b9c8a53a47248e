"""The interface of executors, and the executor that computes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter
from typing import Protocol

import numpy as np

from einc_runtime.dtypes import Array, storage_dtype
from einc_runtime.errors import PlanFault
from einc_runtime.execution.trace import TaskRun, Trace
from einc_runtime.plan.schema import Bundle, Region

TaskRecord = tuple[int, int, float, float]
"""Task, worker, start and end in seconds from the start of the execution."""


class Executor(Protocol):
    """Holds the buffers of one bundle, runs its tasks, and measures. Results stay valid until the next execution.

    It may also have `facts()` and `notes` about how it runs the plan, `close()`, and, if other processes run a part of
    the plan, `holds(buffer)`, which says whether a buffer is in this one.
    """

    @property
    def name(self) -> str:
        """The backend's name: cpu, cuda or null."""

    def fill(self, buffer: int, values: Array) -> None:
        """Writes a whole input or weight buffer, rounding to its type."""

    def fetch(self, region: Region) -> Array | None:
        """The values of a region, to be read at once; None where another process gets them."""

    def execute(self, records: list[TaskRecord] | None = None) -> float:
        """Runs all tasks and returns milliseconds; adds one record per task if asked.

        Raises KernelFault for the first task that fails.
        """


def make_trace(records: Sequence[TaskRecord], milliseconds: float, backend: str) -> Trace:
    """The records as a trace, sorted by their start."""
    ordered = sorted(records, key=lambda record: (record[2], record[0]))
    runs = tuple(TaskRun(task, start * 1e3, end * 1e3, worker) for task, worker, start, end in ordered)
    return Trace(runs, milliseconds, backend)


class NullExecutor:
    """Walks through the tasks in their order without touching data, which shows what an execution costs by itself.

    It takes any input, needs no memory, and gives zeros for every output.
    """

    name = "null"

    def __init__(self, bundle: Bundle) -> None:
        self.bundle = bundle

    def fill(self, buffer: int, values: Array) -> None:
        pass

    def fetch(self, region: Region) -> Array:
        buffer = self.bundle.buffers[region.buffer]
        return np.zeros(region.block.shape, storage_dtype(self.bundle.tensors[buffer.tensor].dtype))

    def execute(self, records: list[TaskRecord] | None = None) -> float:
        origin = perf_counter()
        for number, task in enumerate(self.bundle.tasks):
            start = perf_counter()
            if any(earlier >= number for earlier in task.after):
                raise PlanFault("a task waits for a later one", where=f"tasks[{number}]")
            if records is not None:
                records.append((number, 0, start - origin, perf_counter() - origin))
        return (perf_counter() - origin) * 1e3
