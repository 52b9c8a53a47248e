"""Plans on GPUs of several processes: the order in which each GPU sends and receives, and the proof that none waits
forever.

Every GPU sends and receives on one stream, its *lane*, in the order of the plan. What follows in a stream waits for it,
so a lane can wait forever where messages between CPUs, which wait for nothing but their data, cannot. Ends of messages
of one GPU with nothing between them in their process, of which none waits for another, are one *group*: they begin
together, and each goes on by itself.

CUDA does not promise that a kernel runs beside another one which waits: a group may keep everything off its GPU until
its messages have arrived. What it keeps off must not be what they wait for. What a GPU has computed leaves it by its
lane, behind the group, and so nobody waits for it yet; but other GPUs of its process read it, too. So where a process
has several GPUs, a group begins after everything that comes before it on its GPU.

Why no process waits forever, whatever sites and GPUs it has: number the beginning of a group by its first message, its
end by its last one, and everything else by its position in the plan. A group begins after what comes before its first
message. A message is on its way when the groups of both of its ends have begun, whose first messages are not behind it,
and when earlier messages of the same two GPUs have arrived. A group ends when its messages have arrived, which are not
behind its last one. Whatever comes after it waits for that, and has a larger number: nothing of the process is between
the messages of a group. So nothing waits for a larger number, and at equal numbers only an end for messages, and
messages for beginnings. `prove_lanes` looks for circles in the waits themselves, what a group keeps off its GPU
included, and does not rest on this argument.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass

from einc_runtime.errors import PlanFault
from einc_runtime.plan.ranks import RankTask, prove_ranks
from einc_runtime.plan.regions import ExecutablePlan, reads_of, writes_of
from einc_runtime.plan.schema import AnyTask, FenceTask, TransferTask

MAX_GROUP_MESSAGES = 2048
"""Messages of a group: NCCL took no more of them until 2.11."""


@dataclass(frozen=True, slots=True)
class LaneStep:
    """What a process enqueues on a GPU at once: one task, or a group of ends of messages.

    `places` are positions in the process's list of tasks, and `after` the earlier steps that it waits for. GPUs are
    numbered through all processes.
    """

    places: tuple[int, ...]
    gpu: int
    after: tuple[int, ...]


def group_messages(tasks: Sequence[AnyTask], ends: Mapping[int, int]) -> list[tuple[int, ...]]:
    """The groups of a process, in their order; `ends` has the GPU of every task that is an end of a message.

    Fences do nothing, so they part a group only where they wait for it.
    """
    groups: list[tuple[int, ...]] = []
    members: set[int] = set()  # of the last group, while others may join it
    for number, task in enumerate(tasks):
        waits = not members.isdisjoint(task.after)
        if number in ends:
            if members and not waits and ends[groups[-1][0]] == ends[number] and len(members) < MAX_GROUP_MESSAGES:
                groups[-1] += (number,)
            else:
                groups.append((number,))
                members = set()
            members.add(number)
        elif waits or not isinstance(task, FenceTask):
            members = set()
    return groups


def order_lanes(plan: ExecutablePlan, items: Sequence[RankTask], gpus: Sequence[int]) -> list[LaneStep]:
    """The steps of a process in their order, with all waits; `gpus` has the GPU of every site, and `items` the tasks
    of the process, with what they wait for as places in that list."""
    home = [
        gpus[plan.buffers[_any_buffer(item.task)].site] if bool(reads_of(item.task) or writes_of(item.task)) else -1
        for item in items
    ]
    ends = {item_number: home[item_number] for item_number, item in enumerate(items) if item.peer is not None}
    group_of = {
        item_number: group for group in group_messages([item.task for item in items], ends) for item_number in group
    }
    several = len({gpu for gpu in home if gpu >= 0}) > 1
    steps: list[LaneStep] = []
    step_of: dict[int, int] = {}
    since: dict[int, list[int]] = defaultdict(list)  # for every GPU its last group, and what each group waits for
    for item_number in range(len(items)):
        places = group_of.get(item_number, (item_number,))
        if item_number != places[-1]:
            continue  # the group is enqueued with its last member, after fences between them
        after = {step_of[earlier] for member in places for earlier in items[member].task.after}
        gpu, number = home[item_number], len(steps)
        if item_number in ends:
            after.update(since[gpu])
            since[gpu] = [number]
        elif several:
            since[gpu].append(number)
        steps.append(LaneStep(places, gpu, tuple(sorted(after))))
        step_of.update(dict.fromkeys(places, number))
    return steps


def prove_lanes(plan: ExecutablePlan, ranks: Sequence[Sequence[RankTask]], lanes: Sequence[Sequence[LaneStep]]) -> int:
    """Proves of the steps of all processes that nothing waits forever, whatever CUDA and NCCL run beside each other.

    `ranks` has the tasks of every process, and `lanes` its steps in the order in which it enqueues them. Beyond what
    `prove_ranks` proves: every task is in one step, which waits for all that the task waits for, and a group for the
    one before it on its GPU; two GPUs have their messages in one order at both ends; and no circle is in all waits,
    those of a process for its earlier groups included. Returns the number of messages. Raises PlanFault.
    """
    count = prove_ranks(plan, ranks)
    for rank, (items, steps) in enumerate(zip(ranks, lanes, strict=True)):
        _prove_steps(items, steps, rank)
    _prove_orders(ranks, lanes)
    _prove_no_circle(ranks, lanes)
    return count


def _prove_steps(items: Sequence[RankTask], steps: Sequence[LaneStep], rank: int) -> None:
    step_of: dict[int, int] = {}
    for number, step in enumerate(steps):
        for item_number in step.places:
            if item_number in step_of or not 0 <= item_number < len(items):
                raise PlanFault(
                    "is in several steps, or is none of its tasks", where=f"place {item_number} of rank {rank}"
                )
            step_of[item_number] = number
    if len(step_of) != len(items):
        missing = min(set(range(len(items))) - step_of.keys())
        raise PlanFault("is in no step", where=_name(items, missing, rank))
    lane: dict[int, int] = {}  # the last group of each GPU
    for number, step in enumerate(steps):
        where = _name(items, step.places[0], rank)
        known = {*step.after}
        if any(not 0 <= earlier < number for earlier in known):
            raise PlanFault("waits for a step that is not before it", where=where)
        needed = {step_of[earlier] for item_number in step.places for earlier in items[item_number].task.after}
        if number in needed:
            raise PlanFault("waits for a message of its own group", where=where)
        messages = {items[item_number].peer is not None for item_number in step.places}
        if len(messages) > 1 or (len(step.places) > 1 and not all(messages)):
            raise PlanFault("is in a group, and no message", where=where)
        if all(messages):
            needed |= {lane[step.gpu]} if step.gpu in lane else set()
            lane[step.gpu] = number
        if needed - known:
            first = _name(items, steps[min(needed - known)].places[0], rank)
            raise PlanFault(
                f"does not wait for {first}, which it needs, or which is before it in its lane", where=where
            )


def _prove_orders(ranks: Sequence[Sequence[RankTask]], lanes: Sequence[Sequence[LaneStep]]) -> None:
    """NCCL does not number messages: what one GPU sends to another first is what that one receives from it first."""
    home: dict[tuple[int, bool], int] = {}
    for _, item, step in _list_ends(ranks, lanes):
        home[item.position, bool(writes_of(item.task))] = step.gpu
    orders: dict[tuple[int, int], tuple[list[int], list[int]]] = defaultdict(lambda: ([], []))
    for rank, item, step in _list_ends(ranks, lanes):
        incoming = bool(writes_of(item.task))
        peer = home[item.position, not incoming]
        if peer == step.gpu:
            raise PlanFault(f"is sent by GPU {peer} to itself", where=f"message {item.position} of rank {rank}")
        pair = (peer, step.gpu) if incoming else (step.gpu, peer)
        orders[pair][incoming].append(item.position)
    for (source, target), (sent, received) in sorted(orders.items()):
        if sent != received:
            first, second = next(pair for pair in zip(sent, received, strict=True) if pair[0] != pair[1])
            where = f"GPU {source} to GPU {target}"
            raise PlanFault(f"message {first} is sent where message {second} is received", where=where)


Vertex = tuple[int, ...]
"""A step: its rank, its number, and 0, or 1 for the end of a group; or a message: its position in the plan."""


def _prove_no_circle(ranks: Sequence[Sequence[RankTask]], lanes: Sequence[Sequence[LaneStep]]) -> None:
    """Looks for circles where every process does one group after the other, and groups keep everything off their GPU
    that they do not wait for. Where that happens less, there is less to wait for."""
    waits = _Waits()
    for rank, (items, steps) in enumerate(zip(ranks, lanes, strict=True)):
        groups = {number for number, step in enumerate(steps) if items[step.places[0]].peer is not None}
        ends: list[Vertex] = [(rank, number, int(number in groups)) for number in range(len(steps))]
        before = _list_waits(items, steps, groups)
        last_group: int | None = None
        for number, step in enumerate(steps):
            earlier = before[number] | ({last_group} if number in groups and last_group is not None else set())
            waits.add((rank, number, 0), [ends[earlier_step] for earlier_step in sorted(earlier)])
            if number in groups:
                last_group = number
                waits.add_group(rank, number, [items[item_number] for item_number in step.places])
        for number, group in _list_kept_off(steps, groups, before):
            waits.add((rank, number, 0), [ends[group]])
    stuck = waits.find_circle()
    if stuck is not None:
        rank, number, _ = stuck
        where = _name(ranks[rank], lanes[rank][number].places[0], rank)
        raise PlanFault("waits for itself, or for what does", where=where)


def _list_waits(items: Sequence[RankTask], steps: Sequence[LaneStep], groups: Container[int]) -> list[set[int]]:
    """What every step waits for: what it says, and the step before it in the stream of its site."""
    last: dict[int, int] = {}
    waits: list[set[int]] = []
    for number, step in enumerate(steps):
        task = items[step.places[0]].task
        waits.append({*step.after})
        if number not in groups and not isinstance(task, TransferTask):
            waits[-1] |= {last[task.site]} if task.site in last else set()
            last[task.site] = number
    return waits


def _list_kept_off(
    steps: Sequence[LaneStep], groups: Container[int], before: Sequence[set[int]]
) -> Iterator[tuple[int, int]]:
    """For every step that groups of its GPU may keep waiting the last of these: the one before the first group that
    waits for the step."""
    for gpu in sorted({step.gpu for step in steps}):
        lane = [number for number, step in enumerate(steps) if step.gpu == gpu and number in groups]
        index = {number: position for position, number in enumerate(lane)}
        first = [len(lane)] * len(steps)  # of the groups that wait for the step
        for number in range(len(steps) - 1, -1, -1):
            for earlier in before[number]:
                first[earlier] = min(first[earlier], index.get(number, first[number]))
            if steps[number].gpu == gpu and number not in groups and first[number]:
                yield number, lane[first[number] - 1]


class _Waits:
    """Who waits for whom. A group is two vertices, and every message is one: it waits for both of its groups to begin,
    and their ends wait for it."""

    def __init__(self) -> None:
        self._later: dict[Vertex, list[Vertex]] = defaultdict(list)
        self._left: dict[Vertex, int] = {}

    def add(self, vertex: Vertex, earlier: Sequence[Vertex]) -> None:
        self._left[vertex] = self._left.get(vertex, 0) + len(earlier)
        for earlier_vertex in earlier:
            self._later[earlier_vertex].append(vertex)

    def add_group(self, rank: int, number: int, members: Sequence[RankTask]) -> None:
        """Messages between two processes go on in their order; NCCL only says so of two GPUs."""
        previous: dict[int | None, Vertex] = {}
        for item in members:
            message = (item.position,)
            self.add(message, [(rank, number, 0), *([previous[item.peer]] if item.peer in previous else [])])
            previous[item.peer] = message
        self.add((rank, number, 1), [(item.position,) for item in members])

    def find_circle(self) -> Vertex | None:
        """A step that waits for itself, or for what does; None where there is no circle."""
        ready = [vertex for vertex, count in self._left.items() if not count]
        while ready:
            for later in self._later[ready.pop()]:
                self._left[later] -= 1
                if not self._left[later]:
                    ready.append(later)
        return min((vertex for vertex, count in self._left.items() if count and len(vertex) == 3), default=None)


def _list_ends(
    ranks: Sequence[Sequence[RankTask]], lanes: Sequence[Sequence[LaneStep]]
) -> list[tuple[int, RankTask, LaneStep]]:
    """All ends of messages, those of each rank in their order."""
    return [
        (rank, items[item_number], step)
        for rank, (items, steps) in enumerate(zip(ranks, lanes, strict=True))
        for step in steps
        for item_number in step.places
        if items[item_number].peer is not None
    ]


def _any_buffer(task: AnyTask) -> int:
    """A buffer on the GPU that runs a task: one that it writes, unless it only reads or brings data to another one."""
    regions = reads_of(task) if isinstance(task, TransferTask) else writes_of(task) or reads_of(task)
    return regions[0].buffer


def _name(items: Sequence[RankTask], item_number: int, rank: int) -> str:
    return f"task {items[item_number].position} of rank {rank}"
