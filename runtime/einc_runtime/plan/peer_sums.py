"""Which sums GPUs make out of each other's memory, waiting for flags there.

Where partial results are small, most of the time of an exchange is its beginnings: of copies, and of a launch that
waits for them. One kernel on every GPU can do all of it. It says to the others that it has begun, by a flag in the
memory of each, waits until all others have said so, and adds their copies where these lie. A kernel begins when its
stream has ended all that comes before, so the flag of a GPU says that its copies are there. A flag is a wait, as an
event is one.

Which sums these are follows from the tasks alone, for the compiler and the executor alike.

Why nobody waits forever: number everything by its position in the plan, and all that is one sum by its first position.
What is outside of a sum and comes before a part of it has a smaller position than its first (`begins_together`), so
nothing waits for a larger number, and parts of one sum wait only for each other's beginnings. CUDA may keep everything
off a GPU while a kernel waits there. So a part begins after all that comes before the sum on its GPU: what is kept off
comes later, and nobody waits for it yet (`plan/lanes.py` has this argument for messages).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from einc_runtime.plan.launches import ADDED, JointLaunch
from einc_runtime.plan.regions import ExecutablePlan, find_output_buffers, find_users, region_bytes, writes_of
from einc_runtime.plan.schema import AggregateTask, AnyTask, TransferTask

MAX_PEER_BYTES = 2 << 20
"""Bytes that a GPU reads of all others in one sum. Kernels read other GPUs more slowly than links carry copies: those
of serving frameworks at 0.74 of the rate on H100 and 0.79 on A100 (docs/truth/exchanges.md), so that from about 2 MB on
the loss is more than the launch and the copy that are saved."""

MAX_PEERS = 16
"""GPUs of one sum: each program looks at as many flags."""


@dataclass(frozen=True, slots=True)
class PeerSum:
    """Aggregations, one at each of several sites, as ascending positions, and the transfers between these sites whose
    sources they read. Each waits until all others have begun."""

    tasks: tuple[int, ...]
    moves: tuple[int, ...]


def find_peer_sums(
    plan: ExecutablePlan, tasks: Sequence[AnyTask], launches: Sequence[JointLaunch]
) -> tuple[PeerSum, ...]:
    """The sums of a plan, by their first task. `launches` are those of the same tasks (`find_launches`)."""
    readers, writers = find_users(tasks)
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
    return tuple(s for s in sums if begins_together(tasks, s, members))


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


def begins_together(tasks: Sequence[AnyTask], peer_sum: PeerSum, launches: dict[int, tuple[int, ...]]) -> bool:
    """Whether all that any task of a sum waits for comes before the first of them; the tasks that one launch runs with
    a part of the sum count as its own."""
    first, moves = min(*peer_sum.tasks, *peer_sum.moves), set(peer_sum.moves)
    for number in (*peer_sum.tasks, *peer_sum.moves):
        unit = launches.get(number, (number,))
        for before in (before for member in unit for before in tasks[member].after):
            if before >= first and before not in unit and not (number not in moves and before in moves):
                return False
    return True
