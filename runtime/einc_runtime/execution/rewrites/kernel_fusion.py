"""Kernel fusion: finds pairs of tasks that one kernel could run, at the place of the earlier task.

The executor for GPUs asks its kernels whether there is a kernel for a pair. A pair is right if everything that the
later task waits for comes before the earlier task, or is that task. Then all that the later task reads has been
written, and all tasks that use the bytes that it writes have ended: one of the two tasks waits for each of them.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Sequence

from einc_runtime.plan.regions import ExecutablePlan, find_output_buffers, find_users, writes_of
from einc_runtime.plan.schema import AnyTask, KernelTask


def find_epilogues(bundle: ExecutablePlan, tasks: Sequence[AnyTask]) -> dict[int, tuple[int, int]]:
    """For each contraction (a position of a task) the map that may run with it, and the map's operand that it computes.

    No other task reads or writes the contraction's result, so the fused kernel need not write it. The contraction may
    read bytes that the map writes. That is not checked here: kernels know the addresses, and check it.
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


def find_contraction_pairs(bundle: ExecutablePlan, tasks: Sequence[AnyTask]) -> dict[int, int]:
    """Two contractions of one form that share an operand, as positions of tasks, the earlier one first.

    A task is in one pair at most.
    """
    same_form: dict[object, list[int]] = defaultdict(list)
    for number, task in enumerate(tasks):
        if not isinstance(task, KernelTask):
            continue
        operation = bundle.operations[task.operation]
        if operation.kernel == "contract" and len(task.reads) == 2:
            form = (
                repr(sorted(operation.kernel_attributes.items())),
                [region.block.shape for region in (*task.reads, *task.writes)],
            )
            for place, read in enumerate(task.reads):
                same_form[task.site, place, read.buffer, read.block.lower, read.block.upper, repr(form)].append(number)
    pairs: dict[int, int] = {}
    paired: set[int] = set()
    for numbers in same_form.values():
        for first, second in itertools.pairwise(numbers):
            if not paired & {first, second} and all(earlier < first for earlier in tasks[second].after):
                pairs[first] = second
                paired |= {first, second}
    return pairs
