"""Which two contractions of a plan may run together, the later one where the earlier one is.

They are of one form and share an operand. That is right where all that the later one waits for comes before the earlier
one: it finds there what it reads, and nobody needs what it writes over any more (`epilogues.py` says it at length).
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Sequence

from einc_runtime.plan.boxes import shape
from einc_runtime.plan.schema import AnyTask, Bundle, KernelTask


def batches(bundle: Bundle, tasks: Sequence[AnyTask]) -> dict[int, int]:
    """Positions of tasks, the earlier one first; a task is in one pair at most."""
    alike: dict[object, list[int]] = defaultdict(list)
    for number, task in enumerate(tasks):
        if not isinstance(task, KernelTask):
            continue
        operation = bundle.operations[task.operation]
        if operation.kernel == "contract" and len(task.reads) == 2:
            form = (
                repr(sorted(operation.kernel_attributes.items())),
                [shape(region.block) for region in (*task.reads, *task.writes)],
            )
            for place, read in enumerate(task.reads):
                alike[task.site, place, read.buffer, read.block.lower, read.block.upper, repr(form)].append(number)
    found: dict[int, int] = {}
    paired: set[int] = set()
    for numbers in alike.values():
        for first, second in itertools.pairwise(numbers):
            if not paired & {first, second} and all(earlier < first for earlier in tasks[second].after):
                found[first] = second
                paired |= {first, second}
    return found
