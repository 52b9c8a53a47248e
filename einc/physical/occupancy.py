"""When sites will have done the kernels that were given to them so far: an estimate that placement goes by.

It counts kernels and what they wait for, and no exchanges. So it is the same whatever exchange programs are chosen, and
a plan has the same placement with all of them. Kernels take what the simulation of a whole plan charges for them.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable

from einc.machines.model import Machine
from einc.predict.costs import compute_occupied_ms, describe_kernel
from einc_runtime.plan.schema import Operation


class Occupancy:
    """Milliseconds from the beginning: when each site is free, and when each computed tensor (a position) is there."""

    def __init__(self, machine: Machine, sites: int) -> None:
        self._machine = machine
        self._free = [0.0] * sites
        self._ready: dict[int, float] = {}

    def fork(self) -> Occupancy:
        """The same state; neither changes the other."""
        forked = copy.copy(self)
        forked._free, forked._ready = self._free.copy(), self._ready.copy()
        return forked

    def busy_ms(self, tensors: Iterable[int]) -> list[float]:
        """Per site, how long it would still be busy when all of these tensors are there."""
        ready = self._find_ready(tensors)
        return [max(0.0, free - ready) for free in self._free]

    def add(self, operation: Operation) -> None:
        """Counts the functions of an operation, which has been placed."""
        ready = self._find_ready(operation.inputs)
        machine = self._machine
        ends = []
        for function in operation.functions:
            site = machine.sites[function.site]
            length = compute_occupied_ms(describe_kernel(operation, function), site, machine.kernel_latency_us)
            end = max(ready, self._free[function.site]) + length
            self._free[function.site] = end
            ends.append(end)
        self._ready.update(dict.fromkeys(operation.outputs, max(ends)))

    def _find_ready(self, tensors: Iterable[int]) -> float:
        return max((self._ready.get(tensor, 0.0) for tensor in tensors), default=0.0)
