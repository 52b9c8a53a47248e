"""The tasks of a plan as GPUs run them: without what need not be done where sites share a device.

Where all of them share one, its memory is one memory: equal copies are gathered once, all that moves to a buffer is
moved by one kernel, and tasks wait for those alone whose bytes they touch. A plan's own order also keeps transfers from
sharing a link, of which there is none. Several devices keep to it, too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from einc_runtime.execution.rewrites.copy_elision import forward
from einc_runtime.execution.rewrites.dependencies import dependencies
from einc_runtime.execution.rewrites.gather_deduplication import share
from einc_runtime.execution.rewrites.move_coalescing import gather
from einc_runtime.plan.schema import AnyTask, Bundle


def spared(bundle: Bundle, devices: Sequence[int]) -> tuple[AnyTask, ...]:
    """As many tasks as the bundle has, those that are spared as fences; `devices` are those of the sites."""
    tasks = forward(bundle, devices=devices)
    several = len(set(devices)) > 1
    if not several:
        tasks = gather(bundle, share(bundle, tasks), most=math.inf)
    return tuple(
        msgspec.structs.replace(task, after=tuple(sorted({*task.after, *waits})) if several else waits)
        for task, waits in zip(tasks, dependencies(bundle, tasks), strict=True)
    )
