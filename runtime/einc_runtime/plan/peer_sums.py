"""Which sums GPUs make out of each other's memory, waiting for flags there.

Where partial results are small, most of the time of an exchange is its beginnings: of copies, and of a launch that
waits for them. One kernel on every GPU can do all of it. It says to the others that it has begun, by a flag in the
memory of each, waits until all others have said so, and adds their copies where these lie. A kernel begins when its
stream has ended all that comes before, so the flag of a GPU says that its copies are there. A flag is a wait, as an
event is one.

What a part of a sum makes, by itself or by the launch that it begins, may be gathered by all: then the same kernel also
writes it where transfers would bring it (what others call a two-shot all-reduce, if it is the sum). When all its
programs have written, it sets a second flag at each other GPU, and it ends when all others have set theirs.

Which sums these are follows from the tasks alone, for the compiler and the executor alike.

Why nobody waits forever: number everything by its position in the plan, and all that is one sum by its first position.
What is outside of a sum and comes before a part of it has a smaller position than its first (`begins_together`), so
nothing waits for a larger number, and parts of one sum wait only for each other's beginnings. CUDA may keep everything
off a GPU while a kernel waits there. So a part begins after all that comes before the sum on its GPU: what is kept off
comes later, and nobody waits for it yet (`plan/lanes.py` has this argument for messages).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from einc_runtime.plan.launches import ADDED, JointLaunch
from einc_runtime.plan.regions import (
    ExecutablePlan,
    Users,
    find_output_buffers,
    find_users,
    reads_of,
    region_bytes,
    span,
    writes_of,
)
from einc_runtime.plan.schema import AggregateTask, AnyTask, FenceTask, TransferTask

MAX_PEER_BYTES = 2 << 20
"""Bytes that a GPU reads of all others in one sum. Kernels read other GPUs more slowly than links carry copies: those
of serving frameworks at 0.74 of the rate on H100 and 0.79 on A100 (docs/truth/exchanges.md), so that from about 2 MB on
the loss is more than the launch and the copy that are saved."""

MAX_PEERS = 16
"""GPUs of one sum: each program looks at as many flags."""


@dataclass(frozen=True, slots=True)
class PeerSum:
    """Aggregations, one at each of several sites, as ascending positions, and the transfers between these sites whose
    sources they read. Each waits until all others have begun.

    `gathers` are transfers between these sites of what the parts make, which the parts write there themselves. Where
    there are some, each part ends when all others have written."""

    tasks: tuple[int, ...]
    moves: tuple[int, ...]
    gathers: tuple[int, ...] = ()

    @property
    def first(self) -> int:
        """The position of its first task."""
        return min(*self.tasks, *self.moves)


def find_peer_sums(
    plan: ExecutablePlan, tasks: Sequence[AnyTask], launches: Sequence[JointLaunch], *, laid_out: bool = True
) -> tuple[PeerSum, ...]:
    """The sums of a plan, by their first task. `launches` are those of the same tasks (`find_launches`).

    Where memory is not laid out yet, everything counts as apart from what is gathered."""
    if not any(isinstance(task, AggregateTask) for task in tasks):
        return ()  # as in most plans that a search builds
    users = readers, writers = find_users(tasks)
    saved = find_output_buffers(plan)
    moves_of: dict[int, list[int]] = {}
    groups: dict[object, list[int]] = defaultdict(list)
    for number, task in enumerate(tasks):
        if not isinstance(task, AggregateTask) or len(task.writes) > 1 or task.aggregation not in ADDED:
            continue
        moves = []
        for region in task.reads:
            (writer, *more) = writers.get(region.buffer) or [-1]
            move = tasks[writer]
            is_read_once = not more and readers[region.buffer] == [number] and region.buffer not in saved
            if writer >= 0 and isinstance(move, TransferTask) and is_read_once and move.write == region:
                moves.append(writer)
        if moves and sum(region_bytes(plan, region) for m in moves for region in writes_of(tasks[m])) <= MAX_PEER_BYTES:
            moves_of[number] = moves
            groups[task.serves, plan.buffers[task.writes[0].buffer].tensor].append(number)
    members = {launch.tasks[0]: launch.tasks for launch in launches}
    sums = (
        PeerSum(tuple(part), tuple(sorted(move for number in part for move in moves_of[number])))
        for group in groups.values()
        for part in _split_apart(tasks, group, moves_of)
    )
    return tuple(
        replace(s, gathers=find_gathers(plan, tasks, users, s, members, laid_out=laid_out))
        for s in sums
        if begins_together(tasks, s, members)
    )


def _split_apart(tasks: Sequence[AnyTask], group: Sequence[int], moves_of: dict[int, list[int]]) -> Iterator[list[int]]:
    """The aggregations of sites that read each other, of which every site has one."""
    parts: list[tuple[set[int], list[int]]] = []
    for number in group:
        sites, members = {tasks[number].site, *(tasks[move].site for move in moves_of[number])}, [number]
        for part in [part for part in parts if part[0] & sites]:
            parts.remove(part)
            sites, members = sites | part[0], members + part[1]
        parts.append((sites, members))
    for sites, members in parts:
        if sorted(tasks[number].site for number in members) == sorted(sites) and len(sites) <= MAX_PEERS:
            yield sorted(members)


def begins_together(tasks: Sequence[AnyTask], peer_sum: PeerSum, launches: Mapping[int, tuple[int, ...]]) -> bool:
    """Whether all that any task of a sum waits for comes before the first of them; the tasks that one launch runs with
    a part of the sum count as its own."""
    first, moves = peer_sum.first, set(peer_sum.moves)
    for number in (*peer_sum.tasks, *peer_sum.moves):
        unit = launches.get(number, (number,))
        for before in (before for member in unit for before in tasks[member].after):
            if before >= first and before not in unit and not (number not in moves and before in moves):
                return False
    return True


def find_gathers(
    plan: ExecutablePlan,
    tasks: Sequence[AnyTask],
    users: Users,
    peer_sum: PeerSum,
    launches: Mapping[int, tuple[int, ...]],
    *,
    laid_out: bool = True,
) -> tuple[int, ...]:
    """The transfers that parts of a sum can do themselves: of what a part or its launch makes, to the site of another
    part. All that they wait for comes before the sum or is of the part, and nothing that the part reads at the other
    site lies where they write. There are none where they bring much."""
    gathers: list[int] = []
    received = dict.fromkeys((tasks[number].site for number in peer_sum.tasks), 0)
    for part in peer_sum.tasks:
        unit = launches.get(part, (part,))
        moved = (tasks[move] for move in peer_sum.moves)
        read = {region.buffer for region in reads_of(tasks[part])}
        read |= {move.read.buffer for move in moved if isinstance(move, TransferTask) and move.write.buffer in read}
        for written in (region for member in unit for region in writes_of(tasks[member])):
            for number in users[0][written.buffer]:
                move = tasks[number]
                site = plan.buffers[move.write.buffer].site if isinstance(move, TransferTask) else move.site
                if site == move.site or site not in received or reads_of(move) != (written,):
                    continue
                waits = list_waits(tasks, number)
                is_apart = not laid_out or all(
                    _lie_apart(plan, region.buffer, b) for region in writes_of(move) for b in read
                )
                if is_apart and all(before < peer_sum.first or before in unit for before in waits):
                    gathers.append(number)
                    received[site] += region_bytes(plan, written)
    return tuple(sorted(gathers)) if max(received.values()) <= MAX_PEER_BYTES else ()


def list_waits(tasks: Sequence[AnyTask], number: int) -> Iterator[int]:
    """What a task waits for, and in place of a fence what that waits for."""
    for before in tasks[number].after:
        if isinstance(tasks[before], FenceTask):
            yield from list_waits(tasks, before)
        else:
            yield before


def _lie_apart(plan: ExecutablePlan, first: int, second: int) -> bool:
    """Whether two buffers have no bytes in common."""
    (start, end), (low, high) = span(plan, first), span(plan, second)
    return plan.buffers[first].site != plan.buffers[second].site or end <= low or high <= start
