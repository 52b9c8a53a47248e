"""Finds contractions that may run together with the map after them, as the epilogue of one kernel.

The compiler plans memory for these pairs, and the executor for GPUs asks its kernels whether they can do each of them.
"""

from __future__ import annotations

from collections.abc import Sequence

from einc_runtime.plan.regions import ExecutablePlan, find_output_buffers, find_users, writes_of
from einc_runtime.plan.schema import AnyTask, KernelTask


def find_epilogues(bundle: ExecutablePlan, tasks: Sequence[AnyTask]) -> dict[int, tuple[int, int]]:
    """For each contraction (a position of a task) the map that may run with it, and the map's operand that it computes.

    No other task reads or writes the contraction's result, so the fused kernel need not write it. All that the map
    waits for comes before the contraction, or is the contraction, so that the kernel can run in its place. The
    contraction may read bytes that the map writes. That is not checked here: kernels know the addresses, and check it.
    """
    (readers, writers), kept = find_users(tasks), find_output_buffers(bundle)
    epilogues: dict[int, tuple[int, int]] = {}
    for number, task in enumerate(tasks):
        if not isinstance(task, KernelTask) or bundle.operations[task.operation].kernel != "map":
            continue
        candidates: list[tuple[int, int]] = []
        for place, region in enumerate(task.reads):
            own = writers.get(region.buffer, [])
            if region.buffer in kept or readers[region.buffer] != [number] or len(own) != 1:
                continue
            first = tasks[own[0]]
            contracts = isinstance(first, KernelTask) and bundle.operations[first.operation].kernel == "contract"
            if contracts and first.site == task.site and writes_of(first) == (region,) and own[0] < number:
                candidates.append((own[0], place))
        for contraction, place in sorted(candidates, reverse=True)[:1]:  # the last contraction that it waits for
            if all(earlier <= contraction for earlier in task.after):
                epilogues[contraction] = number, place
    return epilogues
