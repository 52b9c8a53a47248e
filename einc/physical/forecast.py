"""How long a device program takes on its machine: its tasks in numbers, for `einc.predict`."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from einc.core.spec import FunctionSpec
from einc.machines.model import Machine
from einc.ops.base import Operator
from einc.physical.program import DeviceProgram, Region, TaskKind
from einc.predict.timeline import timeline
from einc.predict.work import Kind, Work


@lru_cache(maxsize=2)
def predicted_ms(program: DeviceProgram, machine: Machine) -> float:
    """Milliseconds from the first task to the end of the last; `machine.ideal()` leaves the latencies out.

    Who chooses between programs asks first, and who writes the chosen one asks again.
    """
    return timeline(works_of(program), machine).predicted_ms


def works_of(program: DeviceProgram) -> tuple[Work, ...]:
    """The tasks of a device program, in its order."""
    return tuple(_works(program))


def _works(program: DeviceProgram) -> Iterator[Work]:
    nodes = {node.name: number for number, node in enumerate(program.plan.graph.nodes)}
    costs: dict[tuple[Operator, FunctionSpec], tuple[int, int, str]] = {}  # blocks of a model repeat their operators

    def moved(regions: tuple[Region, ...]) -> int:
        return sum(region.block.size * program.buffers[region.buffer].dtype.itemsize for region in regions)

    for task in program.tasks:
        match task.kind:
            case TaskKind.KERNEL:
                assert task.function is not None
                number = nodes[task.node]
                operator = program.plan.graph.nodes[number].operator
                function = program.plan.choices[number].candidate.spec.functions[task.function]
                cost = costs.get((operator, function))
                if cost is None:
                    cost = operator.traffic(function), operator.flops(function), operator.precision
                    costs[operator, function] = cost
                yield Work(Kind.RUN, task.site, task.after, *cost)
            case TaskKind.TRANSFER:
                target = program.buffers[task.writes[0].buffer].site
                yield Work(Kind.MOVE, task.site, task.after, moved(task.reads), target=target)
            case TaskKind.AGGREGATE | TaskKind.COPY:
                yield Work(Kind.COMBINE, task.site, task.after, moved(task.reads) + moved(task.writes))
            case TaskKind.FENCE:
                yield Work(Kind.FENCE, task.site, task.after)
