"""Kernel fusion: finds tasks that one kernel could run, at the place of the earliest of them.

The executor for GPUs asks its kernels whether there is a kernel for them. A pair is right if everything that the
later task waits for comes before the earlier task, or is that task. Then all that the later task reads has been
written, and all tasks that use the bytes that it writes have ended: one of the two tasks waits for each of them.
Three tasks are right if that holds for the second one, and for the third one with the first two together.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Sequence

from einc_runtime.plan.regions import ExecutablePlan
from einc_runtime.plan.schema import AnyTask, KernelTask


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
            for position, read in enumerate(task.reads):
                same_form[task.site, position, read.buffer, read.block.lower, read.block.upper, repr(form)].append(
                    number
                )
    pairs: dict[int, int] = {}
    paired: set[int] = set()
    for numbers in same_form.values():
        for first, second in itertools.pairwise(numbers):
            if not paired & {first, second} and all(earlier < first for earlier in tasks[second].after):
                pairs[first] = second
                paired |= {first, second}
    return pairs
