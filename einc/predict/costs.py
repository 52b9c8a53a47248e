"""The tasks of a plan as numbers: everything that their time depends on."""

from __future__ import annotations

import enum
import functools
from collections.abc import Iterator
from typing import NamedTuple

from einc.core.spec import FunctionSpec
from einc.machines.catalogue import find_by_name
from einc.machines.model import BYTES_PER_MS, MS_PER_US, KernelRate, Site
from einc.ops.base import Operator
from einc.predict.kernel_times import KernelKind, classify, time_kernel_us, time_recurrence_us
from einc_runtime.plan.early_reads import CACHE_PART
from einc_runtime.plan.joint_aggregation import DEFINITIONS
from einc_runtime.plan.regions import ExecutablePlan, region_bytes
from einc_runtime.plan.schema import (
    ITEMSIZE,
    AggregateTask,
    CopyTask,
    FenceTask,
    Function,
    KernelTask,
    Operation,
    TransferTask,
)
from einc_runtime.plan.work import AttentionWork, ExpertsWork, ProductWork, RecurrenceWork, Work


class TaskKind(enum.Enum):
    """How a task takes time.

    KERNEL occupies its site. COMBINE occupies it too, and is part of an exchange: an aggregation or a copy. TRANSFER
    crosses links. FENCE takes no time.
    """

    KERNEL = "kernel"
    COMBINE = "combine"
    TRANSFER = "transfer"
    FENCE = "fence"


CACHE_SPEED = 2.0
"""How much faster the second cache serves bytes than memory does. On an RTX PRO 6000 a projection of 50 MB took 28.8 us
from memory and 11 us from the cache (pull requests 576 and 578 of local-inference-lab/vllm); an H100 read 5.5 TB/s from
it (chipsandcheese.com, 2023), beside 2.87 from memory."""


class EarlyBytes(NamedTuple):
    """Weights that a launch beside the others asks for while the site of a product waits (`plan.early_reads`): `size`
    bytes, from when the task `after` has ended. What runs on the site from then on moves `between` bytes itself."""

    size: int
    after: int
    between: int


class TaskCost(NamedTuple):
    """One task. `size` is the bytes that it moves: through the memory of its site, or to the site `target`.

    `flops` are its floating point operations, of the precision that the machine file calls `precision`, and `work` the
    shape of what it computes. `after` lists positions of tasks, all smaller than its own, that must have ended. `task`
    is what a machine file calls tasks of its kind: the name of a kernel, `aggregate`, `copy` or `transfer`. `early` are
    bytes that may be in the cache when a kernel starts. `latency_ms` is that of a transfer, if it is not the machine's.
    """

    kind: TaskKind
    site: int
    after: tuple[int, ...] = ()
    size: int = 0
    flops: int = 0
    precision: str = "f32"
    target: int = -1
    task: str = ""
    work: Work | None = None
    early: EarlyBytes | None = None
    latency_ms: float | None = None


def compute_task_costs(plan: ExecutablePlan) -> tuple[TaskCost, ...]:
    """The costs of the tasks of a device program or a plan file, in its order."""
    return tuple(_iterate_task_costs(plan))


def _iterate_task_costs(plan: ExecutablePlan) -> Iterator[TaskCost]:
    operations, buffers = plan.operations, plan.buffers
    for task in plan.tasks:
        site, after = task.site, task.after
        if isinstance(task, KernelTask):
            operation = operations[task.operation]
            yield describe_kernel(operation, operation.functions[task.function], after)
        elif isinstance(task, TransferTask):
            target = buffers[task.write.buffer].site
            yield TaskCost(
                TaskKind.TRANSFER, site, after, region_bytes(plan, task.read), target=target, task="transfer"
            )
        elif isinstance(task, FenceTask):
            yield TaskCost(TaskKind.FENCE, site, after)
        else:
            size = sum([region_bytes(plan, region) for region in (*task.reads, *task.writes)])
            yield TaskCost(TaskKind.COMBINE, site, after, size, task=name_combining(task))


def name_combining(task: AggregateTask | CopyTask | TransferTask) -> str:
    """What a machine file calls a task that combines or moves; aggregations of tuples have names of their own, except
    those that a model defines, which pass over their copies as sums do."""
    if not isinstance(task, AggregateTask):
        return "copy"
    is_plain = len(task.writes) == 1 or task.aggregation in DEFINITIONS
    return "aggregate" if is_plain else f"aggregate_{task.aggregation}"


def describe_kernel(operation: Operation, function: Function, after: tuple[int, ...] = ()) -> TaskCost:
    """The cost of one function of an operation, at its site."""
    return TaskCost(
        TaskKind.KERNEL,
        function.site,
        after,
        function.traffic,
        function.flops,
        operation.precision,
        task=operation.kernel,
        work=function.work,
    )


def describe_operator(operator: Operator, function: FunctionSpec) -> TaskCost:
    """The cost of one function specification of an operator, at any site."""
    return TaskCost(
        TaskKind.KERNEL,
        0,
        (),
        operator.traffic(function),
        operator.flops(function),
        operator.precision,
        task=operator.kernel.name,
        work=operator.work(function),
    )


def find_combining_rate(site: Site, task: str, kernel_latency_us: float) -> KernelRate:
    """What a site takes to combine or copy: what was measured of such tasks, or a launch and the rate of its memory."""
    return site.find_rate(task, "f32") or KernelRate(kernel_latency_us, gbs=site.sustained_gbs)


def count_cached(early: EarlyBytes, waited_ms: float, site: Site, kernel_latency_us: float) -> int:
    """The bytes that are in the cache of a GPU when it has waited so long: those that memory sends after a launch, and
    no more than a part of the cache. 0 where no cache is known, and on GPUs for which there is no such launch."""
    if site.gpu is None or not site.gpu.prefill or _is_of_amd(site.gpu_name):
        return 0
    sent = (waited_ms - kernel_latency_us * MS_PER_US) * site.sustained_gbs * BYTES_PER_MS - early.between
    return int(max(0.0, min(early.size, CACHE_PART * site.gpu.prefill[0].cache_mb * 1e6, sent)))


@functools.cache
def _is_of_amd(gpu_name: str) -> bool:
    gpu = find_by_name(gpu_name)
    return gpu is not None and gpu.maker == "amd"


def compute_occupied_ms(cost: TaskCost, site: Site, kernel_latency_us: float, cached: int = 0) -> float:
    """How long a kernel or a combining task occupies its site. Of its bytes, `cached` are in the GPU's cache already.

    If the machine file has measured rates for such tasks, this is what they say. Else a combining task takes the
    latency, and its bytes at the memory's sustained rate. A kernel takes the latency, and the longer of the two times
    for computing and for moving its bytes; and if its GPU was measured, what its size takes there (`kernel_times`), if
    that is longer. Steps of a recurrence that wait for each other take their time on any machine.
    """
    if cost.kind is not TaskKind.KERNEL:
        return find_combining_rate(site, cost.task, kernel_latency_us).compute_ms(cost.flops, cost.size)
    waiting = 0.0
    if isinstance(cost.work, RecurrenceWork):
        waiting = MS_PER_US * time_recurrence_us(cost.work, cost.flops, site, kernel_latency_us)
    rate = site.find_rate(cost.task, cost.precision)
    if rate is not None:
        return max(rate.compute_ms(cost.flops, cost.size), waiting)
    latency = kernel_latency_us * MS_PER_US
    size = max(0, cost.size - cached)  # a plan of unknown origin may state less than it reads
    moving = size / (site.hbm_gbs * BYTES_PER_MS)
    if cached:
        moving = max(moving, cost.size / (CACHE_SPEED * site.sustained_gbs * BYTES_PER_MS))
    computing = cost.flops / site.peak(cost.precision) * 1e3 if cost.flops else 0.0
    at_peak = latency + max(moving, computing, waiting)
    if site.gpu is None:
        return at_peak
    share = site.peak(cost.precision) / site.peak(site.gpu.products[0].dtype)
    width = float(ITEMSIZE.get(cost.precision, 4))  # type: ignore[call-overload]
    if cost.task == "quantized_contract" and isinstance(cost.work, ProductWork):  # weights are read as they are stored
        elements = cost.work.batch * cost.work.depth * (cost.work.rows + cost.work.columns)
        width = min(width, cost.size / max(1, elements))
    if isinstance(cost.work, ExpertsWork):  # so are those of experts
        elements = min(cost.work.experts, cost.work.picks) * cost.work.columns * cost.work.depth
        width = min(width, cost.size / max(1, elements))
    if isinstance(cost.work, AttentionWork):  # so are keys and values, and once if they are one
        work = cost.work
        elements = work.keys * work.heads // max(1, work.group) * (work.width + work.value_width)
        width = min(width, cost.size / max(1, elements))
    measured = MS_PER_US * time_kernel_us(site.gpu, cost.work, size, cost.precision, width, share)
    if classify(cost.work, site.gpu) in (
        KernelKind.MEMORY,
        KernelKind.RECURRENCE,
    ):  # a launch was not measured apart for these
        measured += latency
    if cost.task == "rounded_contract":
        measured += latency  # of the launch that rounds the tensor
    return max(measured, at_peak)
