"""Which contractions of a plan may take the elementwise step after them with them, and what becomes of the steps.

Both run where the contraction is: its step waits for what either waits for and does both, and the step of the map only
passes on. That is right where nobody but the map reads what is contracted, nobody but the contraction writes it, and
everything else that the map waits for comes before the contraction. Then it finds there what it reads, and all who had
to be done with the bytes that it writes are: they are among those whom one of the two waits for. (The contraction
itself may read those bytes: kernels that know their addresses see to that.)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from einc_runtime.execution.cuda.order import Step
from einc_runtime.execution.cuda.steps import Layout
from einc_runtime.plan.regions import results, users, writes_of
from einc_runtime.plan.schema import AnyTask, Bundle, KernelTask


def epilogues(bundle: Bundle, tasks: Sequence[AnyTask]) -> dict[int, tuple[int, int]]:
    """For contractions (positions of tasks) the map that may go with each, and which of its operands it computes."""
    (readers, writers), kept = users(tasks), results(bundle)
    found: dict[int, tuple[int, int]] = {}
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
        for contraction, place in sorted(candidates, reverse=True)[:1]:  # the last one that is waited for
            if all(earlier <= contraction for earlier in task.after):
                found[contraction] = number, place
    return found


def together(layout: Layout, pairs: Mapping[int, int]) -> Layout:
    """The layout with the second step of each pair (positions of steps) done by the first."""
    steps = list(layout.steps)
    for first, second in pairs.items():
        others = tuple(earlier for earlier in steps[second].after if earlier != first)
        steps[second] = Step(None, (first, *others))
        steps[first] = replace(steps[first], after=tuple(dict.fromkeys((*steps[first].after, *others))))
    return replace(layout, steps=tuple(steps))
