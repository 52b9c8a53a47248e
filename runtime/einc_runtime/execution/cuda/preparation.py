"""Prepares a plan for GPUs, up to the first launch: devices, memory, kernels bound to it, streams and events."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from einc_runtime.execution.cuda.arenas import take_arenas, wants_multicast
from einc_runtime.execution.cuda.devices import (
    DeviceMemory,
    PeerAccess,
    connect_peers,
    find_exchanging_devices,
    map_sites,
    require_device_memory,
)
from einc_runtime.execution.cuda.driver import Driver
from einc_runtime.execution.cuda.errors import DeviceCheck, DeviceStatus, TaskErrors
from einc_runtime.execution.cuda.events import EventSchedule, schedule_events
from einc_runtime.execution.cuda.host_mirrors import HostMirrors
from einc_runtime.execution.cuda.lanes import Lanes
from einc_runtime.execution.cuda.peer_flags import FlagMemory, PeersFault, choose_peer_sums
from einc_runtime.execution.cuda.resources import CudaResources
from einc_runtime.execution.cuda.shared_memory import SharedMemory
from einc_runtime.execution.cuda.step_kernels import StepKernels
from einc_runtime.execution.cuda.streams import StepKind, StreamSchedule, schedule_steps
from einc_runtime.execution.rewrites import RewriteOptions, rewrite
from einc_runtime.execution.rewrites.kernel_fusion import find_contraction_pairs
from einc_runtime.execution.shared_buffers import SharedBuffers
from einc_runtime.kernels.gpu import Description, GpuKernel, GpuTarget, Kernels, Launch
from einc_runtime.plan.epilogues import find_epilogues, find_gated_pairs
from einc_runtime.plan.launches import find_launches
from einc_runtime.plan.regions import reads_of, writes_of
from einc_runtime.plan.schema import AnyTask, Bundle

Prepared = TypeVar("Prepared")

_MIN_ALLOCATION = 256  # bytes


@dataclass(frozen=True, slots=True)
class PreparedPlan:
    """A plan whose memory, streams and events exist, and whose steps can be enqueued.

    `launches[step]` is None for steps that only pass on what they wait for. `stream_handles` are those of the streams
    of `schedule`, and `events` those of `event_schedule`. `device_bytes` is the memory taken on each device, and
    `kernel_counts` the number of tasks by kernel and by the library that runs them; `notes` are about memory. So many
    `peer_sums` are made out of the memory of all devices.
    """

    errors: TaskErrors
    devices: tuple[int, ...]
    targets: Mapping[int, GpuTarget]
    peers: PeerAccess
    memory: DeviceMemory
    mirrors: HostMirrors
    schedule: StreamSchedule
    event_schedule: EventSchedule
    launches: tuple[Launch | None, ...]
    stream_handles: tuple[int, ...]
    events: tuple[int, ...]
    status: DeviceStatus
    peer_sums: int
    device_bytes: Mapping[int, int]
    kernel_counts: Mapping[tuple[str, Description], int]
    versions: Mapping[str, str]
    shared: SharedMemory
    notes: tuple[str, ...]


def rewrite_for_devices(
    bundle: Bundle, devices: Sequence[int], staged: Collection[tuple[int, int]] = (), *, is_part: bool = False
) -> tuple[AnyTask, ...]:
    """The tasks as GPUs run them, as many as the bundle has; `devices` gives every site its device.

    Where all sites share a device, all moves into a buffer are made by one kernel, and tasks wait only for those that
    touch the same bytes. Between devices, aggregations read the memory of others, except that of the pairs in `staged`.
    In a part of a plan, moves stay apart: some are messages, each of which has another end.
    """
    pairs = set(find_exchanging_devices(bundle.tasks, bundle.buffers, devices))
    direct = pairs - {*staged}
    peers = frozenset((target, source) for source, target in direct if (target, source) not in staged)
    options = RewriteOptions(devices=devices, peers=peers, keep_fences=True, merge_moves=not is_part)
    return tuple(item.task for item in rewrite(bundle, options))


def prepare_plan(
    driver: Driver,
    resources: CudaResources,
    kernels: Kernels,
    bundle: Bundle,
    site_devices: Sequence[int] | None,
    no_peer: str,
    common: SharedBuffers | None = None,
    lanes: Lanes | None = None,
    *,
    with_flags: bool = True,
) -> PreparedPlan:
    """Does everything up to the first launch. All that is taken is in `resources`, also if this raises. `lanes` has the
    messages of a part of a plan. Unless it is `with_flags`, kernels wait for each other by events alone.

    With multicast memory, nothing is in `common`: switches add what all arenas have at one offset.
    """
    devices = map_sites(len(bundle.memory), site_devices, driver.device_count())
    targets = {device: driver.target(device) for device in sorted(set(devices))}
    peers = connect_peers(driver, find_exchanging_devices(bundle.tasks, bundle.buffers, devices), no_peer)
    shared = SharedMemory(bundle, devices, None if wants_multicast() else common)
    require_device_memory(driver, bundle.model, devices, shared.layout.sizes, shared.count_missing)
    tasks = rewrite_for_devices(bundle, devices, peers.staged, is_part=lanes is not None)
    errors = TaskErrors(bundle, tasks) if lanes is None else TaskErrors(lanes.plan, lanes.plan.tasks)
    sums = choose_peer_sums(driver, bundle, tasks, devices) if with_flags and lanes is None else ()
    schedule = schedule_steps(bundle, tasks, devices, peers.staged, () if lanes is None else lanes.ends, sums)
    device_bytes: Counter[int] = Counter()

    def allocate_zeros(device: int, size: int) -> int:
        """Memory that kernels may warm up on."""
        size = max(size, _MIN_ALLOCATION)
        pointer = resources.allocate(device, size)
        device_bytes[device] += size
        driver.fill_bytes(device, pointer, 0, size)
        return pointer

    def count(device: int, size: int) -> None:
        device_bytes[device] += size

    addresses = shared.take(driver, resources, count)
    arenas = take_arenas(driver, resources, shared.layout.sizes, devices, peers, allocate_zeros)
    if arenas.multicast:
        device_bytes.update(dict(zip(devices, arenas.sizes, strict=True)))
    staging = [resources.allocate_host(max(size, 1)) for size in schedule.staging_bytes]
    mirrors = HostMirrors(driver, bundle, devices, addresses, allocate_zeros, resources.allocate_host)
    memory = DeviceMemory(
        bundle, devices, arenas.addresses, arenas.multicast,
        layout=shared.layout, shared={**addresses, **mirrors.addresses},
    )  # fmt: skip
    flags = FlagMemory(driver, tasks, devices, sums, allocate_zeros)
    step_kernels = StepKernels(
        bundle, tasks, memory, kernels=kernels, driver=driver, targets=targets, staging=staging,
        flags=flags.of_tasks, gathers=[gather for s in sums for gather in s.gathers], lanes=lanes,
    )  # fmt: skip
    prepared, groups = _prepare_kernels(step_kernels, schedule, errors)
    idle = [n for n, step in enumerate(schedule.steps) if step.kind is StepKind.EARLY and prepared[n] is None]
    schedule = schedule.fuse_steps(groups).leave_out(idle)
    checks = [
        DeviceCheck(number, schedule.steps[number].task, schedule.device_of(number), kernel.status_message)
        for number, kernel in enumerate(prepared)
        if kernel is not None and kernel.status_message is not None
    ]
    schedule = schedule.add_end_steps(StepKind.OUTPUTS, mirrors.output_devices)
    schedule = schedule.add_last_steps(StepKind.STATUS, [check.step for check in checks])
    in_sums = [number for number, step in enumerate(schedule.steps) if step.peer_sum >= 0]
    schedule = schedule.add_last_steps(StepKind.FLAGS, in_sums)
    status = DeviceStatus(driver, checks, allocate_zeros, resources.allocate_host)
    sizes = [0] * len(schedule.streams)
    for step, kernel in zip(schedule.steps, prepared, strict=False):
        if kernel is not None and step.stream is not None:
            sizes[step.stream] = max(sizes[step.stream], kernel.workspace)
    workspaces = [
        allocate_zeros(stream.device, size) if size else 0 for stream, size in zip(schedule.streams, sizes, strict=True)
    ]
    fetches = {
        StepKind.OUTPUTS: mirrors.make_fetch,
        StepKind.STATUS: status.make_fetch,
        StepKind.FLAGS: flags.make_reset,
    }
    launches = _bind_kernels(driver, schedule, prepared, workspaces, status, fetches, errors)
    event_schedule = schedule_events(schedule.steps, schedule.streams)
    return PreparedPlan(
        errors=errors,
        devices=devices,
        targets=targets,
        peers=peers,
        memory=memory,
        mirrors=mirrors,
        schedule=schedule,
        event_schedule=event_schedule,
        launches=launches,
        stream_handles=tuple(resources.create_stream(stream.device) for stream in schedule.streams),
        events=tuple(resources.create_event(device) for device in event_schedule.event_devices),
        status=status,
        peer_sums=len(sums),
        device_bytes=device_bytes,
        kernel_counts=_count_kernels(schedule, prepared, errors),
        versions=dict(kernels.versions()),
        shared=shared,
        notes=(arenas.note,) if arenas.note else (),
    )


def _prepare_kernels(
    step_kernels: StepKernels, schedule: StreamSchedule, errors: TaskErrors
) -> tuple[list[GpuKernel | None], dict[int, tuple[int, ...]]]:
    """A kernel for every step that does something, and the steps whose kernel does the work of later steps, too."""
    step_of = {  # of kernels, which have one step
        step.task: number for number, step in enumerate(schedule.steps) if step.kind is not StepKind.EARLY
    }

    def on_device(prepare: Callable[[], Prepared], task: int, step: int) -> Prepared:
        try:
            step_kernels.driver.use(schedule.device_of(step))
            return prepare()
        except Exception as error:
            raise errors.make_fault(error, task) from error

    fused: dict[int, tuple[tuple[int, ...], GpuKernel]] = {}
    taken: set[int] = set()

    def fuse(first: int, later: tuple[int, ...], prepare: Callable[[], GpuKernel | None]) -> None:
        if taken & {first, *later}:
            return
        kernel = on_device(prepare, first, step_of[first])
        if kernel is not None:
            fused[first] = later, kernel
            taken.update((first, *later))

    for first, later, prepare in list_joint_kernels(step_kernels):
        fuse(first, later, prepare)
    _require_gathers(step_kernels, {first: (first, *later) for first, (later, _) in fused.items()})
    done = taken - fused.keys()
    prepared: list[GpuKernel | None] = []
    for number, step in enumerate(schedule.steps):
        if step.kind is StepKind.EARLY:
            prepared.append(on_device(partial(step_kernels.prepare_early_read, step), step.task, number))
        elif step.stream is None or step.task in done:
            prepared.append(None)
        elif step.task in fused:
            prepared.append(fused[step.task][1])
        else:
            prepared.append(on_device(partial(step_kernels.prepare, step), step.task, number))
    return prepared, {step_of[first]: tuple(step_of[task] for task in later) for first, (later, _) in fused.items()}


def _require_gathers(step_kernels: StepKernels, fused: Mapping[int, tuple[int, ...]]) -> None:
    """Raises PeersFault unless the kernels of sums make all that they gather."""
    tasks = step_kernels.tasks
    results = {
        region for part in step_kernels.flags for n in fused.get(part, (part,)) for region in writes_of(tasks[n])
    }
    if any(region not in results for gather in step_kernels.gathers for region in reads_of(tasks[gather])):
        raise PeersFault("no kernel of a sum makes what is gathered")


def list_joint_kernels(
    step_kernels: StepKernels,
) -> Iterator[tuple[int, tuple[int, ...], Callable[[], GpuKernel | None]]]:
    """What one kernel may run: a task, later tasks, and what prepares the kernel. Of those that have tasks in common,
    the first counts for which there is a kernel."""
    bundle, tasks = step_kernels.bundle, step_kernels.tasks
    for first, gated in find_gated_pairs(bundle, tasks).items():
        yield first, (gated.second, gated.then), partial(step_kernels.prepare_gated, first, gated)
    for first, (then, operand) in find_epilogues(bundle, tasks).items():
        yield first, (then,), partial(step_kernels.prepare_epilogue, first, then, operand)
    for launch in find_launches(bundle, tasks):
        yield launch.tasks[0], launch.tasks[1:], partial(step_kernels.prepare_launch, launch)
    for first, then in find_contraction_pairs(bundle, tasks).items():
        yield first, (then,), partial(step_kernels.prepare_pair, first, then)


def _bind_kernels(
    driver: Driver,
    schedule: StreamSchedule,
    prepared: Sequence[GpuKernel | None],
    workspaces: Sequence[int],
    status: DeviceStatus,
    copies: Mapping[StepKind, Callable[[int], Launch]],
    errors: TaskErrors,
) -> tuple[Launch | None, ...]:
    """The launches of all steps; `workspaces` are the addresses for the streams, and `copies` make those of the last
    steps of a device."""
    launches: list[Launch | None] = []
    for number, step in enumerate(schedule.steps):
        if step.stream is None:
            launches.append(None)
        elif step.kind in copies:
            launches.append(copies[step.kind](schedule.device_of(number)))
        else:
            kernel = prepared[number]
            assert kernel is not None, "a step on a stream does something"
            try:
                driver.use(schedule.device_of(number))
                launches.append(kernel.bind(workspaces[step.stream], status.address(number)))
            except Exception as error:
                raise errors.make_fault(error, step.task) from error
    return tuple(launches)


def _count_kernels(
    schedule: StreamSchedule, prepared: Sequence[GpuKernel | None], errors: TaskErrors
) -> Mapping[tuple[str, Description], int]:
    counts: Counter[tuple[str, Description]] = Counter()
    for step, kernel in zip(schedule.steps, prepared, strict=False):
        if kernel is not None:
            name = "read ahead" if step.kind is StepKind.EARLY else errors.name_kernel(step.task)
            counts[name, kernel.description] += 1
    return counts
