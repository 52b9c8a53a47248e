"""Makes the executor of a rank that runs its part of a plan on the cores that it has.

Every task computes what it does in one process: kernels are cut in as many parts, and the views that they read have the
same values. So the results have the same bits.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from functools import partial

from einc_runtime.execution.cpu.executor import CpuExecutor
from einc_runtime.execution.cpu.host import count_cores
from einc_runtime.execution.ranks.carrier import Arrivals, MessageCarrier
from einc_runtime.execution.ranks.executor import RankExecutor
from einc_runtime.execution.ranks.links import RankLinks
from einc_runtime.execution.shared_buffers import SharedBuffers
from einc_runtime.plan.ranks import RankPart, Shares, assign_sites
from einc_runtime.plan.regions import region_bytes, writes_of
from einc_runtime.plan.schema import AnyTask, Bundle, KernelTask

FLOPS_PER_NS, MOVED_PER_NS, MESSAGE_NS = 50.0, 10.0, 20_000.0
"""Rough figures, which decide only in which order tasks start that are ready."""


def make_cpu_executor(
    bundle: Bundle,
    links: RankLinks,
    workers: int | None = None,
    *,
    total: int | None = None,
    note_task: Callable[[int], None] | None = None,
    common: SharedBuffers | None = None,
    shares: Shares | None = None,
    poison: bool = False,
) -> RankExecutor:
    """All ranks make one from the same bundle, at the same time.

    `workers` defaults to this rank's share of the machine's cores, `total` to the cores of all machines. `note_task` is
    told the position of each task before it runs. `common` is memory that this rank's executors of other plans have,
    too. `shares` says how many sites each rank has; the default is evenly. Raises PlanFault where the plan has fewer
    sites than there are ranks, or the shares do not fit.
    """
    owners = assign_sites(len(bundle.memory), links.size, shares)
    cores = count_cores()
    if total is None:
        cores_of = links.share(str(Fraction(cores, links.neighbours)).encode())
        total = max(1, int(sum(Fraction(text.decode()) for text in cores_of)))
    workers = workers or max(1, cores // links.neighbours)
    arrivals = Arrivals()
    part = CpuExecutor(
        bundle,
        workers,
        join_maps=False,  # results are the same with and without
        common=common,
        ranks=measure_chains(bundle),
        poison=poison,
        part=RankPart(owners, links.rank, total),
        carry=partial(MessageCarrier, links, arrivals),
        note_task=note_task,
    )
    return RankExecutor(bundle, part, links, owners, arrivals, workers)


def measure_chains(bundle: Bundle) -> list[float]:
    """For every task of a plan, roughly the time from its start to the end of the plan: what other ranks wait for
    starts first."""
    chains = [0.0] * len(bundle.tasks)
    for number in range(len(bundle.tasks) - 1, -1, -1):
        task = bundle.tasks[number]
        chains[number] += _estimate(bundle, task)
        for earlier in task.after:
            chains[earlier] = max(chains[earlier], chains[number])
    return chains


def _estimate(bundle: Bundle, task: AnyTask) -> float:
    if isinstance(task, KernelTask):
        function = bundle.operations[task.operation].functions[task.function]
        return function.flops / FLOPS_PER_NS + function.traffic / MOVED_PER_NS
    size = sum(region_bytes(bundle, region) for region in writes_of(task))
    return MESSAGE_NS + size / MOVED_PER_NS
