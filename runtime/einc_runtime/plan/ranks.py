"""Plans in several processes: which tasks each of them runs, and the proof that none waits forever.

A *rank* is a process. Every site belongs to one rank. A transfer between sites of two ranks becomes a message: the
sending rank has a copy task that only reads, and the receiving rank one that only writes. Both have the transfer's
position in the plan, which is the number of the message. All other tasks touch the memory of one rank only.

Why no rank waits forever, whatever the assignment of sites to ranks: a task waits for earlier ones of its rank that
touch the same bytes, which are at no larger positions in the plan. A receive also waits for its send, and a send ends
when its receive has begun; both are at one position. So of all tasks that have not ended, one at the least position can
go on: what it waits for has ended, but perhaps the other end of its message, which is not waiting for it to end.
`prove_ranks` checks on the tasks themselves what this rests on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from einc_runtime.errors import PlanFault
from einc_runtime.plan.regions import ExecutablePlan, reads_of, region_bytes, writes_of
from einc_runtime.plan.schema import AnyTask, CopyTask, TransferTask


@dataclass(frozen=True, slots=True)
class RankTask:
    """A task of a rank, and its position in the plan. One end of a message has a `peer`, the rank at the other end."""

    position: int
    task: AnyTask
    peer: int | None = None


@dataclass(frozen=True, slots=True)
class RankPart:
    """What one rank runs of a plan: `ranks` has the rank of every site. Kernels are split as one process with so many
    `workers` would split them."""

    ranks: tuple[int, ...]
    rank: int
    workers: int

    @staticmethod
    def of_all(sites: int, workers: int) -> RankPart:
        """All of a plan, as the only process runs it."""
        return RankPart((0,) * sites, 0, workers)

    @property
    def sites(self) -> tuple[int, ...]:
        return tuple(site for site, rank in enumerate(self.ranks) if rank == self.rank)


Shares = int | tuple[int, ...]
"""The number of sites of every rank but the last one, which has the rest; or the number of each rank's sites."""


def assign_sites(sites: int, ranks: int, shares: Shares | None = None) -> tuple[int, ...]:
    """The rank of every site: consecutive sites on each rank, as `shares` says, or as even as possible.

    Raises PlanFault for more ranks than sites, and for shares that do not give every site to a rank and every rank a
    site.
    """
    if not 1 <= ranks <= sites:
        raise PlanFault(
            f"{ranks} ranks cannot share the {sites} sites of the plan",
            hint=f"start at most {sites}, or compile the model for more sites",
        )
    if shares is None:
        return tuple(site * ranks // sites for site in range(sites))
    if isinstance(shares, int):
        last_share = sites - (ranks - 1) * shares
        counts = (*(ranks - 1) * (shares,), last_share) if last_share <= shares else ()
    else:
        counts = shares
    if len(counts) != ranks or min(counts) < 1 or sum(counts) != sites:
        described = f"{shares} sites a rank" if isinstance(shares, int) else f"{', '.join(map(str, shares))} sites"
        raise PlanFault(
            f"{ranks} ranks with {described} do not share the {sites} sites of the plan",
            hint="give each rank one site at least, and every site to one rank",
        )
    return tuple(rank for rank, count in enumerate(counts) for _ in range(count))


def select_tasks(plan: ExecutablePlan, tasks: Sequence[AnyTask], ranks: Sequence[int], rank: int) -> list[RankTask]:
    """The tasks of one rank in their order; `ranks` has the rank of every site.

    Tasks may have been rewritten, as long as each of them, but for transfers, reads and writes on one rank only. What
    they wait for is left as it is, and is to be found anew. Raises PlanFault.
    """
    selected: list[RankTask] = []
    for position, task in enumerate(tasks):
        sources, targets = (
            {ranks[plan.buffers[region.buffer].site] for region in regions}
            for regions in (reads_of(task), writes_of(task))
        )
        if isinstance(task, TransferTask) and sources != targets:
            (source,), (target,) = sources, targets
            if rank == source:
                half = CopyTask(task.site, task.serves, (), reads=(task.read,), writes=())
                selected.append(RankTask(position, half, target))
            elif rank == target:
                half = CopyTask(task.site, task.serves, (), reads=(), writes=(task.write,))
                selected.append(RankTask(position, half, source))
        elif len(sources | targets) > 1:
            raise PlanFault("the task touches the memory of several ranks", where=f"tasks[{position}]")
        elif sources | targets == {rank}:
            selected.append(RankTask(position, task))
    return selected


def prove_ranks(plan: ExecutablePlan, ranks: Sequence[Sequence[RankTask]]) -> int:
    """Proves that no tasks of these ranks wait for each other in a circle, and that every message is sent once and
    received once, by two ranks that name each other, with as many bytes of the same block of the same tensor.

    `ranks` has the tasks of every rank in their order; what a task waits for are places in that list. Returns the
    number of messages. Raises PlanFault.
    """
    sends: dict[int, tuple[int, RankTask]] = {}
    receives: dict[int, tuple[int, RankTask]] = {}
    for rank, items in enumerate(ranks):
        for number, item in enumerate(items):
            where = f"task {item.position} of rank {rank}"
            if any(not 0 <= earlier < number for earlier in item.task.after):
                raise PlanFault("waits for a task that is not before it", where=where)
            if number and items[number - 1].position > item.position:
                raise PlanFault("comes after a later task of the plan", where=where)
            if item.peer is not None:
                ends = receives if writes_of(item.task) else sends
                if item.position in ends:
                    raise PlanFault("has the message of another task", where=where)
                ends[item.position] = (rank, item)
    for message in sorted(sends.keys() | receives.keys()):
        _prove_message(plan, message, sends.get(message), receives.get(message))
    return len(sends)


def _prove_message(
    plan: ExecutablePlan, message: int, sent: tuple[int, RankTask] | None, received: tuple[int, RankTask] | None
) -> None:
    where = f"message {message}"
    if sent is None or received is None:
        raise PlanFault("is received, and not sent" if sent is None else "is sent, and not received", where=where)
    (source, send), (target, receive) = sent, received
    if source == target or send.peer != target or receive.peer != source:
        raise PlanFault(
            f"goes from rank {source} to {send.peer}; rank {target} has it from {receive.peer}", where=where
        )
    (read,), (write,) = reads_of(send.task), writes_of(receive.task)
    tensors = [plan.buffers[region.buffer].tensor for region in (read, write)]
    if read.block != write.block or tensors[0] != tensors[1] or region_bytes(plan, read) != region_bytes(plan, write):
        raise PlanFault("has other values at its two ends", where=where)
