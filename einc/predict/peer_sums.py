"""What sums take that GPUs make out of each other's memory, waiting for flags there (`plan.peer_sums`).

A transfer of such a sum is reading what another GPU has, by the kernel that adds: it begins when all GPUs have begun,
and what it brings is not written to memory and read again. What that takes was measured of some GPUs; of others, plans
are timed as if copies were sent. What the same kernels gather takes another wait of the same length, and its bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from einc.machines.model import BYTES_PER_MS, MS_PER_US, Machine
from einc.predict.costs import TaskCost, compute_occupied_ms
from einc_runtime.plan.launches import JointLaunch
from einc_runtime.plan.peer_sums import PeerSum, find_peer_sums
from einc_runtime.plan.regions import ExecutablePlan
from einc_runtime.plan.schema import TransferTask

ATOMIC_LINKS = ("nv", "xgmi")
"""What the names of links begin with over which GPUs set flags in each other's memory: NVLink, its switches, and
Infinity Fabric. PCIe has no such accesses between GPUs."""


def charge_peer_sums(
    plan: ExecutablePlan, machine: Machine, costs: Sequence[TaskCost], launches: Sequence[JointLaunch]
) -> tuple[tuple[TaskCost, ...], tuple[PeerSum, ...]]:
    """The costs of a plan's tasks, charged with its launches, where sums that are faster so read their copies at their
    peers; and these sums."""
    charged, faster = list(costs), []
    reader_of: dict[int, int] = {}
    for peer_sum in find_peer_sums(plan, plan.tasks, launches):
        latency_ms = _find_wait_ms(machine, costs, peer_sum.moves)
        readers = dict(_pair_moves(plan, peer_sum))
        moved = dict.fromkeys(peer_sum.tasks, 0)
        for move, reader in readers.items():
            moved[reader] += costs[move].size
        combining = {
            number: costs[number]._replace(size=max(0, costs[number].size - size)) for number, size in moved.items()
        }
        site, launch_us = machine.sites[costs[peer_sum.tasks[0]].site], machine.kernel_latency_us
        saved = max(compute_occupied_ms(costs[number], site, launch_us) - compute_occupied_ms(cost, site, launch_us)
                    for number, cost in combining.items())  # fmt: skip
        if latency_ms is None or latency_ms >= machine.transfer_latency_us * MS_PER_US + saved:
            continue
        for move in readers:
            charged[move] = charged[move]._replace(latency_ms=latency_ms)
        for number, cost in combining.items():
            charged[number] = cost
        gather_ms = _find_wait_ms(machine, costs, peer_sum.gathers)
        if gather_ms is None or gather_ms >= machine.transfer_latency_us * MS_PER_US:
            peer_sum = replace(peer_sum, gathers=())
        for gather in peer_sum.gathers:
            charged[gather] = charged[gather]._replace(latency_ms=gather_ms)
        reader_of |= readers
        faster.append(peer_sum)
    for number, cost in enumerate(charged):  # what a copy was waited for to be sent is read until the sum has ended
        if any(reader_of.get(before, number) < number for before in cost.after):
            after = (reader if (reader := reader_of.get(before, number)) < number else before for before in cost.after)
            charged[number] = cost._replace(after=tuple(dict.fromkeys(after)))
    return tuple(charged), tuple(faster)


def find_least_latency_ms(machine: Machine) -> float:
    """No partial result comes from one site to another in less, without its bytes."""
    rates = [site.gpu.peers for site in machine.sites if site.gpu is not None and site.gpu.peers is not None]
    return MS_PER_US * min([machine.transfer_latency_us, *(rate.start_us + rate.peer_us for rate in rates)])


def _pair_moves(plan: ExecutablePlan, peer_sum: PeerSum) -> Iterator[tuple[int, int]]:
    """The transfers of a sum, each with the task that reads what it brings."""
    at = {plan.tasks[number].site: number for number in peer_sum.tasks}
    for move in peer_sum.moves:
        task = plan.tasks[move]
        assert isinstance(task, TransferTask), "sums read what transfers bring"
        yield move, at[plan.buffers[task.write.buffer].site]


def _find_wait_ms(machine: Machine, costs: Sequence[TaskCost], moves: Sequence[int]) -> float | None:
    """What transfers that the kernels of a sum do take beside their bytes at the rate of the links; None where nothing
    was measured of the GPUs, their links do not carry flags, or there are no transfers."""
    pairs = [(costs[move].site, costs[move].target) for move in moves]
    names = {machine.resources[n].name for pair in pairs for n in machine.routes.get(pair, ())}
    numbers = {site for pair in pairs for site in pair}
    gpus = [machine.sites[site].gpu for site in numbers]
    rates = {None if gpu is None else gpu.peers for gpu in gpus}
    rate = rates.pop() if len(rates) == 1 else None
    if rate is None or not names or not all(name.startswith(ATOMIC_LINKS) for name in names):
        return None
    received = dict.fromkeys((target for _, target in pairs), 0)
    for move in moves:
        received[costs[move].target] += costs[move].size
    width = min(machine.widths[pair] for pair in pairs)
    slower = max(0.0, max(received.values()) / BYTES_PER_MS * (1 / rate.gbs - 1 / width))
    return (rate.start_us + rate.peer_us * (len(numbers) - 1)) * MS_PER_US + slower
