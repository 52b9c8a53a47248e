"""Where the time of a plan goes: by operator, site and link, and along the chain of tasks that decides its end."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from einc.machines.model import BYTES_PER_MS, MS_PER_US, Machine
from einc.predict.costs import TaskCost, TaskKind
from einc.predict.timeline import PlanTimeline

Label = TypeVar("Label", bound=Hashable)


@dataclass(slots=True)
class LabelTime:
    """Milliseconds of the tasks of one label.

    `compute`, `combine` and `waiting` are means over sites (over cores, where sites share these): the time for kernels,
    for combining and copying, and the idle time right before either. `exchange` is the time during which its data was
    on the way, alongside anything else. `critical` is its part of the chain that decides the end. Over all labels,
    `critical` sums to the predicted time; so do the first three together with the tail.
    """

    compute: float = 0.0
    combine: float = 0.0
    waiting: float = 0.0
    exchange: float = 0.0
    critical: float = 0.0
    start: float = float("inf")
    end: float = 0.0


@dataclass(frozen=True, slots=True)
class LinkUse:
    """What crossed a resource: its bytes, the milliseconds in use, and `full`, the milliseconds at full rate."""

    name: str
    carried: int
    busy: float
    full: float


@dataclass(frozen=True, slots=True)
class TimeBreakdown(Generic[Label]):
    """`tail` is the mean over sites (or cores) of the idle time after the last task; `sites` has their busy times.

    `critical` splits the deciding chain into kernels, combining and copying, and transfers.
    """

    labels: dict[Label, LabelTime]
    tail: float
    sites: tuple[float, ...]
    links: tuple[LinkUse, ...]
    critical: tuple[float, float, float]


def break_down(
    costs: Sequence[TaskCost],
    labels: Sequence[Label],
    times: PlanTimeline,
    machine: Machine,
    weights: Sequence[int],
) -> TimeBreakdown[Label]:
    """Attributes every millisecond of a plan. `labels[t]` says what task t belongs to; fences belong to nothing.

    Sites, links and the critical chain count task t `weights[t]` times, as many as it stands for; labels count it once.
    """
    times_of: dict[Label, LabelTime] = {}
    for label, cost, start, end in zip(labels, costs, times.starts, times.ends, strict=True):
        if cost.kind is not TaskKind.FENCE:
            label_time = times_of.setdefault(label, LabelTime())
            label_time.start, label_time.end = min(label_time.start, start), max(label_time.end, end)
    sites = [0.0] * len(machine.sites)
    tail = 0.0
    lines = _order_by_processor(costs, times, len(machine.sites))
    share = 1 / len(lines)
    for line in lines:
        before = 0.0
        for position in line:
            label_time, start, end = times_of[labels[position]], times.starts[position], times.ends[position]
            label_time.waiting += (start - before) * share
            if costs[position].kind is TaskKind.KERNEL:
                label_time.compute += (end - start) * share
            else:
                label_time.combine += (end - start) * share
            sites[costs[position].site] += (end - start) * weights[position]
            before = end
        tail += (times.predicted_ms - before) * share
    moving: dict[Label, list[tuple[float, float]]] = {}
    for label, cost, start, end in zip(labels, costs, times.starts, times.ends, strict=True):
        if cost.kind is TaskKind.TRANSFER:
            moving.setdefault(label, []).append((start, end))
    for label, spans in moving.items():
        times_of[label].exchange = _measure_union(spans)
    critical = [0.0, 0.0, 0.0]
    for position in find_critical_chain(costs, times):
        length = times.ends[position] - times.starts[position]
        kind = costs[position].kind
        if kind is not TaskKind.FENCE:
            times_of[labels[position]].critical += length
            part = (TaskKind.KERNEL, TaskKind.COMBINE, TaskKind.TRANSFER).index(kind)
            critical[part] += length * weights[position]
    links = _measure_links(costs, times, machine, weights)
    return TimeBreakdown(times_of, tail, tuple(sites), links, (critical[0], critical[1], critical[2]))


def find_critical_chain(costs: Sequence[TaskCost], times: PlanTimeline) -> list[int]:
    """Tasks of which each ended as the next one started, up to the last of the plan. Shortening one shortens the plan.

    A task starts when the last of its dependencies ends, or when its site has ended another task.
    """
    if not costs:
        return []
    previous: dict[int, int] = {}
    for line in _order_by_processor(costs, times, 1 + max(cost.site for cost in costs)):
        previous.update(zip(line[1:], line, strict=False))
    position: int | None = max(range(len(costs)), key=lambda p: (times.ends[p], -p))
    chain: list[int] = []
    while position is not None:
        chain.append(position)
        start = times.starts[position]
        causes = [*costs[position].after, *([previous[position]] if position in previous else [])]
        position = next((cause for cause in causes if times.ends[cause] == start), None)
    return chain[::-1]


def _order_by_processor(costs: Sequence[TaskCost], times: PlanTimeline, sites: int) -> list[list[int]]:
    """The tasks that occupy every site, in the order in which they do; where sites share cores, those of every core."""
    processors = sites if times.cores is None else 1 + max(times.cores, default=0)
    lines: list[list[int]] = [[] for _ in range(processors)]
    for position, cost in enumerate(costs):
        if cost.kind in (TaskKind.KERNEL, TaskKind.COMBINE):
            lines[cost.site if times.cores is None else times.cores[position]].append(position)
    for line in lines:
        line.sort(key=lambda position: (times.starts[position], times.ends[position], position))
    return lines


def _measure_links(
    costs: Sequence[TaskCost], times: PlanTimeline, machine: Machine, weights: Sequence[int]
) -> tuple[LinkUse, ...]:
    routes = machine.routes
    usual_ms = machine.transfer_latency_us * MS_PER_US
    carried = [0] * len(machine.resources)
    spans: list[dict[int, list[tuple[float, float]]]] = [{} for _ in machine.resources]  # by weight
    for cost, start, end, weight in zip(costs, times.starts, times.ends, weights, strict=True):
        if cost.kind is TaskKind.TRANSFER:
            latency = usual_ms if cost.latency_ms is None else cost.latency_ms
            for resource in routes[cost.site, cost.target]:
                carried[resource] += cost.size * weight
                spans[resource].setdefault(weight, []).append((start + latency, end))
    busy = [sum(weight * _measure_union(part) for weight, part in link_spans.items()) for link_spans in spans]
    return tuple(
        LinkUse(resource.name, count, busy_ms, count / (resource.gbs * BYTES_PER_MS))
        for resource, count, busy_ms in zip(machine.resources, carried, busy, strict=True)
    )


def _measure_union(spans: Iterable[tuple[float, float]]) -> float:
    total, reached = 0.0, float("-inf")
    for start, end in sorted(spans):
        if end > reached:
            total += end - max(start, reached)
            reached = end
    return total
