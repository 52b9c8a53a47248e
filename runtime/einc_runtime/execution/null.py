"""Walks a bundle's tasks in their order and touches no data: what is left of an execution when nothing is computed."""

from __future__ import annotations

from time import perf_counter

import numpy as np

from einc_runtime.dtypes import Array, storage_dtype
from einc_runtime.errors import PlanFault
from einc_runtime.execution.base import Record
from einc_runtime.plan.boxes import shape
from einc_runtime.plan.schema import Bundle, Region


class NullExecutor:
    """See `executors.base.Executor`. It takes any input and every output is zero; it needs no memory."""

    name = "null"

    def __init__(self, bundle: Bundle) -> None:
        self.bundle = bundle

    def fill(self, buffer: int, values: Array) -> None:
        pass

    def fetch(self, region: Region) -> Array:
        buffer = self.bundle.buffers[region.buffer]
        return np.zeros(shape(region.block), storage_dtype(self.bundle.tensors[buffer.tensor].dtype))

    def execute(self, records: list[Record] | None = None) -> float:
        origin = perf_counter()
        for number, task in enumerate(self.bundle.tasks):
            start = perf_counter()
            if any(earlier >= number for earlier in task.after):
                raise PlanFault("a task waits for a later one", where=f"tasks[{number}]")
            if records is not None:
                records.append((number, 0, start - origin, perf_counter() - origin))
        return (perf_counter() - origin) * 1e3
