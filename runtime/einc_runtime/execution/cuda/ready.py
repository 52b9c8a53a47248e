"""Making a plan ready for GPUs: devices and access between them, memory, kernels bound to it, streams and events."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from einc_runtime.execution.cuda.batches import batches
from einc_runtime.execution.cuda.devices import Reach, exchanging, map_sites, reach
from einc_runtime.execution.cuda.driver import Driver
from einc_runtime.execution.cuda.epilogues import epilogues, together
from einc_runtime.execution.cuda.faults import Blame
from einc_runtime.execution.cuda.holdings import Holdings
from einc_runtime.execution.cuda.memory import DeviceMemory, require_device_memory
from einc_runtime.execution.cuda.order import Order, ordered
from einc_runtime.execution.cuda.status import Complaint, StatusWords
from einc_runtime.execution.cuda.steps import Layout, Part, lay_out
from einc_runtime.execution.cuda.tasks import spared
from einc_runtime.execution.cuda.work import Workshop
from einc_runtime.kernels.gpu import Description, GpuKernel, GpuTarget, Kernels, Launch
from einc_runtime.plan.schema import Bundle

Made = TypeVar("Made")

_LEAST = 256  # bytes that are allocated, at least


@dataclass(frozen=True, slots=True)
class Ready:
    """A plan whose memory, streams and events are there, and whose steps can be enqueued.

    `launches[step]` is None for steps that only pass on what they wait for; `streams` are those of the lanes, `events`
    those of the order; `bytes` counts device memory by device, and `ran` the tasks by kernel and who runs them.
    """

    blame: Blame
    devices: tuple[int, ...]
    targets: Mapping[int, GpuTarget]
    reach: Reach
    memory: DeviceMemory
    layout: Layout
    order: Order
    launches: tuple[Launch | None, ...]
    streams: tuple[int, ...]
    events: tuple[int, ...]
    status: StatusWords
    bytes: Mapping[int, int]
    ran: Mapping[tuple[str, Description], int]
    versions: Mapping[str, str]


def make_ready(
    driver: Driver, holdings: Holdings, kernels: Kernels, bundle: Bundle, given: Sequence[int] | None, no_peer: str
) -> Ready:
    """Everything up to the first launch. What is taken is in `holdings`, also where this raises."""
    devices = map_sites(len(bundle.memory), given, driver.device_count())
    targets = {device: driver.target(device) for device in sorted(set(devices))}
    reached = reach(driver, exchanging(bundle.tasks, bundle.buffers, devices), no_peer)
    require_device_memory(driver, bundle, devices)
    tasks = spared(bundle, devices)
    blame = Blame(bundle, tasks)
    layout = lay_out(bundle, tasks, devices, reached.staged)
    for source, target in sorted(reached.direct | {(target, source) for source, target in reached.direct}):
        holdings.peer(source, target)
    taken: Counter[int] = Counter()

    def zeros(device: int, size: int) -> int:
        """Memory that kernels may warm up on."""
        size = max(size, _LEAST)
        pointer = holdings.memory(device, size)
        taken[device] += size
        driver.fill_bytes(device, pointer, 0, size)
        return pointer

    arenas = [zeros(device, size) for device, size in zip(devices, bundle.memory, strict=True)]
    slots = [holdings.host_memory(max(size, 1)) for size in layout.slots]
    memory = DeviceMemory(bundle, devices, arenas)
    workshop = Workshop.of(bundle, tasks, memory, kernels, driver, targets, slots)
    prepared, pairs = _prepared(driver, workshop, layout, blame)
    layout = together(layout, pairs)
    complaints = [
        Complaint(number, layout.works[number].task, layout.device(number), kernel.status_message)
        for number, kernel in enumerate(prepared)
        if kernel is not None and kernel.status_message is not None
    ]
    layout = layout.with_status([complaint.step for complaint in complaints])
    status = StatusWords(driver, complaints, zeros, holdings.host_memory)
    sizes = [0] * len(layout.lanes)
    for step, kernel in zip(layout.steps, prepared, strict=False):
        if kernel is not None and step.lane is not None:
            sizes[step.lane] = max(sizes[step.lane], kernel.workspace)
    workspaces = [zeros(lane.device, size) if size else 0 for lane, size in zip(layout.lanes, sizes, strict=True)]
    launches = _bound(driver, layout, prepared, workspaces, status, blame)
    order = ordered(layout.steps, layout.lanes)
    return Ready(
        blame=blame,
        devices=devices,
        targets=targets,
        reach=reached,
        memory=memory,
        layout=layout,
        order=order,
        launches=launches,
        streams=tuple(holdings.stream(lane.device) for lane in layout.lanes),
        events=tuple(holdings.event(device) for device in order.event_devices),
        status=status,
        bytes=taken,
        ran=_counted(layout, prepared, blame),
        versions=dict(kernels.versions()),
    )


def _prepared(
    driver: Driver, workshop: Workshop, layout: Layout, blame: Blame
) -> tuple[list[GpuKernel | None], dict[int, int]]:
    """A kernel for every step that does something, and the steps that do a later one's work with their own."""
    step_of = {work.task: number for number, work in enumerate(layout.works)}  # of kernels, which have one

    def made(make: Callable[[], Made], task: int, step: int) -> Made:
        try:
            driver.use(layout.device(step))
            return make()
        except Exception as error:
            raise blame.fault(error, task) from error

    both: dict[int, tuple[int, GpuKernel]] = {}
    for first, (then, place) in epilogues(workshop.bundle, workshop.tasks).items():
        kernel = made(partial(workshop.with_epilogue, first, then, place), first, step_of[first])
        if kernel is not None:
            both[first] = then, kernel
    for first, then in batches(workshop.bundle, workshop.tasks).items():
        if first not in both and then not in both:
            kernel = made(partial(workshop.batched_pair, first, then), first, step_of[first])
            if kernel is not None:
                both[first] = then, kernel
    done = {then for then, _ in both.values()}
    prepared: list[GpuKernel | None] = []
    for number, (step, work) in enumerate(zip(layout.steps, layout.works, strict=True)):
        if step.lane is None or work.task in done:
            prepared.append(None)
        elif work.task in both:
            prepared.append(both[work.task][1])
        else:
            prepared.append(made(partial(workshop.prepared, work), work.task, number))
    return prepared, {step_of[first]: step_of[then] for first, (then, _) in both.items()}


def _bound(
    driver: Driver,
    layout: Layout,
    prepared: Sequence[GpuKernel | None],
    workspaces: Sequence[int],
    status: StatusWords,
    blame: Blame,
) -> tuple[Launch | None, ...]:
    launches: list[Launch | None] = []
    for number, (step, work) in enumerate(zip(layout.steps, layout.works, strict=True)):
        if step.lane is None:
            launches.append(None)
        elif work.part is Part.STATUS:
            launches.append(status.fetching(layout.device(number)))
        else:
            kernel = prepared[number]
            assert kernel is not None, "a step on a lane does something"
            try:
                driver.use(layout.device(number))
                launches.append(kernel.bind(workspaces[step.lane], status.address(number)))
            except Exception as error:
                raise blame.fault(error, work.task) from error
    return tuple(launches)


def _counted(
    layout: Layout, prepared: Sequence[GpuKernel | None], blame: Blame
) -> Mapping[tuple[str, Description], int]:
    found: Counter[tuple[str, Description]] = Counter()
    for work, kernel in zip(layout.works, prepared, strict=False):
        if kernel is not None:
            found[blame.kernel(work.task), kernel.description] += 1
    return found
