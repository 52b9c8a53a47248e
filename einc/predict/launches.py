"""What the launches of a plan take: tasks that a GPU runs by one kernel cost one launch, and what passes between them
does not go through memory."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Sequence

from einc.core.spec import FunctionSpec
from einc.graph.graph import Graph
from einc.machines.model import BYTES_PER_MS, MS_PER_US, Machine, Site
from einc.ops.base import Operator
from einc.predict.costs import (
    EarlyBytes,
    TaskCost,
    TaskKind,
    compute_occupied_ms,
    compute_task_costs,
    count_cached,
)
from einc_runtime.plan.early_reads import LIGHT_KERNELS, find_early_reads, has_few_rows
from einc_runtime.plan.epilogues import LAUNCH_PRODUCTS, consists_of_library_functions
from einc_runtime.plan.launches import MAX_FEW_ROWS, JointLaunch, is_few
from einc_runtime.plan.regions import ExecutablePlan, reads_of, region_bytes, writes_of
from einc_runtime.plan.schema import KernelTask
from einc_runtime.plan.work import ProductWork


def charge_launches(
    plan: ExecutablePlan, costs: Sequence[TaskCost], launches: Sequence[JointLaunch]
) -> tuple[TaskCost, ...]:
    """The costs of a plan's tasks, where the first task of every launch takes what all of it takes, and waits for all
    that any of its tasks waits for; the others take no time after it. Products whose weights are read ahead say so."""
    charged = list(costs)
    for launch in launches:
        first, *later = launch.tasks
        members = set(launch.tasks)
        waits = [before for number in launch.tasks for before in costs[number].after if before not in members]
        charged[first] = _cost_launch(plan, costs, launch)._replace(after=tuple(dict.fromkeys(waits)))
        for number in later:
            charged[number] = TaskCost(TaskKind.FENCE, costs[number].site, (first,))
    for read in find_early_reads(plan, plan.tasks, launches=launches):
        size = sum(region_bytes(plan, region) for region in read.regions)
        early = EarlyBytes(size, read.after, sum(charged[number].size for number in read.between))
        cost = charged[read.task]
        charged[read.task] = cost._replace(early=early, after=tuple(dict.fromkeys((*cost.after, read.after))))
    return tuple(charged)


def find_saved_ms(
    plan: ExecutablePlan, machine: Machine, charged: Sequence[TaskCost], launches: Sequence[JointLaunch]
) -> dict[int, float]:
    """What launches of several tasks save a site, by the operation of their last task, and what reading weights ahead
    saves, by that of the first product: its sites' mean. Sites are taken to wait for a transfer without bytes.

    `charged` are the costs of the plan's tasks with these launches (`charge_launches`).
    """
    if not machine.joins_launches:
        return {}
    costs, latency = compute_task_costs(plan) if launches else (), machine.kernel_latency_us
    saved: dict[int, list[float]] = defaultdict(list)

    def save(number: int, before_ms: float, after_ms: float) -> None:
        task = plan.tasks[number]
        assert isinstance(task, KernelTask), "launches end with a kernel"
        saved[task.operation].append(before_ms - after_ms)

    for launch in launches:
        first, site = launch.tasks[0], machine.sites[plan.tasks[launch.tasks[0]].site]
        alone = sum(compute_occupied_ms(costs[number], site, latency) for number in launch.tasks)
        save(launch.tasks[-1], alone, compute_occupied_ms(charged[first], site, latency))
    for read in find_early_reads(plan, plan.tasks, launches=launches):
        cost, site = charged[read.task], machine.sites[plan.tasks[read.task].site]
        between = sum(compute_occupied_ms(charged[number], site, latency) for number in read.between)
        assert cost.early is not None
        cached = count_cached(cost.early, machine.transfer_latency_us * MS_PER_US + between, site, latency)
        times = [compute_occupied_ms(cost, site, latency, part) for part in (0, cached)]
        save(read.task, *times)
    return {operation: sum(times) / len(times) for operation, times in saved.items()}


def _cost_launch(plan: ExecutablePlan, costs: Sequence[TaskCost], launch: JointLaunch) -> TaskCost:
    """The kernel of a launch. Products are timed as one that is as wide as all of them."""
    members = [costs[number] for number in launch.tasks]
    size = max(0, sum(member.size for member in members) - _count_inner_bytes(plan, launch))
    flops = sum(member.flops for member in members)
    products = [member for member in members if isinstance(member.work, ProductWork)]
    lead = products[0] if products else members[-1]
    return lead._replace(
        kind=TaskKind.KERNEL, site=members[0].site, size=size, flops=flops, work=_join_products(products)
    )


def _join_products(products: Sequence[TaskCost]) -> ProductWork | None:
    works = [member.work for member in products if isinstance(member.work, ProductWork)]
    if len(works) < 2:
        return works[0] if works else None
    rows = min(min(work.rows, work.columns) for work in works)
    columns = sum(work.batch * max(work.rows, work.columns) for work in works)
    return ProductWork(1, rows, columns, works[0].depth)


def _count_inner_bytes(plan: ExecutablePlan, launch: JointLaunch) -> int:
    """Bytes that tasks would read or write one by one, and a launch does not: what it has made itself or has read
    already, and results that nothing else needs."""
    tasks = [plan.tasks[number] for number in launch.tasks]
    inner = 0
    known: set[object] = set()
    for number, task in zip(launch.tasks, tasks, strict=True):
        for region in dict.fromkeys(reads_of(task)):
            inner += region_bytes(plan, region) if region in known else 0
            known.add(region)
        for region in writes_of(task):
            inner += 0 if number in launch.kept else region_bytes(plan, region)
            known.add(region)
    return inner


def find_joining(graph: Graph, machine: Machine) -> frozenset[str]:
    """The nodes that may run by the launch of others in some plan, by their names."""
    if not machine.joins_launches:
        return frozenset()
    kernels = {node.name: node.operator.kernel.name for node in graph.nodes}
    makers = {name: node.name for node in graph.nodes for name in node.outputs}
    multiplied: Counter[str] = Counter()
    for node in graph.nodes:
        multiplied.update(set(node.inputs) if kernels[node.name] in LAUNCH_PRODUCTS else ())
    places = sum(kernel in ("rope", "append") for kernel in kernels.values())
    joining: set[str] = set()
    for node in graph.nodes:
        kernel, read = kernels[node.name], [name for name in node.inputs if name in makers]
        shares = kernel in LAUNCH_PRODUCTS and any(multiplied[name] > 1 for name in node.inputs)
        moves = kernel in ("rope", "append") and places > 1
        products = [name for name in read if kernels[makers[name]] in LAUNCH_PRODUCTS and name not in graph.outputs]
        normalizes = kernel in ("rmsnorm", "layernorm") and bool(read)
        # One product goes on with what libraries compute with it, and two of few rows with the map of both.
        continues = (
            kernel == "map"
            and bool(products)
            and (len(set(products)) > 1 or consists_of_library_functions(dict(node.operator.kernel.attributes)))
        )
        if shares or moves or normalizes or continues:
            joining.add(node.name)
        if normalizes:
            joining.update(makers[name] for name in read if kernels[makers[name]] == "map")
    return frozenset(joining)


def compute_least_ms(
    operator: Operator,
    function: FunctionSpec,
    cost: TaskCost,
    site: Site,
    kernel_latency_us: float,
    *,
    joins: bool,
    in_chain: bool,
) -> float:
    """What a function specification of this `cost` (`describe_operator`) adds to any plan at least: less than its
    kernel takes, if it `joins` the launch of others, or reads weights ahead.

    That is what it adds to the work of a site or, if `in_chain`, to a chain of tasks that wait for each other. While
    weights are read ahead, their site is taken: memory sends them no faster than to the product. But small kernels may
    run meanwhile, which therefore add nothing to the work; and a chain may pass through another site.
    """
    inputs = [block.size * desc.dtype.itemsize for block, desc in zip(function.inputs, operator.inputs, strict=True)]
    if cost.task in LAUNCH_PRODUCTS and is_few(cost.work, function.outputs[0]):
        cached = _count_most_cached(max(inputs), site, kernel_latency_us) if in_chain else 0
        if not joins:
            return compute_occupied_ms(cost, site, kernel_latency_us, cached)
        moving = (max(inputs) - cached) / (site.hbm_gbs * BYTES_PER_MS)
        return max(moving, cost.flops / site.peak(cost.precision) * 1e3)
    is_small = cost.task in LIGHT_KERNELS and all(map(has_few_rows, function.outputs))
    if is_small and not in_chain and _count_most_cached(1, site, kernel_latency_us):
        return 0.0
    if not joins:
        return compute_occupied_ms(cost, site, kernel_latency_us)
    return _compute_least_joined_ms(cost, inputs, function, operator, site, kernel_latency_us)


def _count_most_cached(size: int, site: Site, kernel_latency_us: float) -> int:
    return count_cached(EarlyBytes(size, -1, 0), math.inf, site, kernel_latency_us)


def _compute_least_joined_ms(
    cost: TaskCost,
    inputs: Sequence[int],
    function: FunctionSpec,
    operator: Operator,
    site: Site,
    kernel_latency_us: float,
) -> float:
    if cost.task not in ("map", "rope", "append", "rmsnorm", "layernorm"):
        return compute_occupied_ms(cost, site, kernel_latency_us)
    if site.find_rate(cost.task, cost.precision) is not None:
        return 0.0  # the launch has the rate of another task
    launch_ms = kernel_latency_us * MS_PER_US
    if cost.task in ("rmsnorm", "layernorm"):  # the last of its launch, which it has for itself
        return compute_occupied_ms(
            cost._replace(size=max(0, cost.size - max(inputs)), flops=0), site, kernel_latency_us
        )
    gated = min(function.outputs[0].shape, default=0) <= MAX_FEW_ROWS
    if cost.task != "map" or gated or consists_of_library_functions(dict(operator.kernel.attributes)):
        return 0.0
    alone = cost._replace(size=sum(inputs) - max(inputs, default=0), flops=0)
    return max(0.0, compute_occupied_ms(alone, site, kernel_latency_us) - launch_ms)
