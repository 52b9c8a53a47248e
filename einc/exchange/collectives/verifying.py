"""Proves a collective algorithm: no deadlock, no race, and every contribution exactly once in every result.

An algorithm is a graph of steps: those of a thread block in their order, each message and signal before the step that
takes it, and what steps wait for. If it has no cycle, every step ends, since messages are buffered. If no two steps
that touch a chunk, one of them writing it, are unordered, then every order gives the same values; one is computed.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from einc.errors import ProgramError
from einc.exchange.collectives.algorithm import Atom, Channel, ChunkSlot, CollectiveAlgorithm, Step
from einc.exchange.collectives.clocks import StepClocks, compute_clocks
from einc.exchange.collectives.packets import expand_slots, match_packets
from einc.exchange.language.checker import MAX_FAULTS
from einc_runtime.text import format_count

MAX_CLOCKS = 50_000_000
"""Steps times thread blocks: the numbers that the order of steps takes, of 4 bytes each."""

Value = frozenset[Atom]
_SHOWN = 4  # items of a list in a message; the others are counted


@dataclass(frozen=True, slots=True)
class AlgorithmFault:
    """Why an algorithm is not valid, and where it stands."""

    message: str
    where: str


@dataclass(frozen=True, slots=True)
class Transfer:
    """A chunk that goes from one rank to another: what it holds."""

    value: Value
    source: int
    target: int


@dataclass(frozen=True, slots=True)
class AlgorithmVerdict:
    """The faults of an algorithm, at most MAX_FAULTS; for a valid one, what its steps move."""

    faults: tuple[AlgorithmFault, ...]
    transfers: tuple[Transfer, ...] = ()


def verify_algorithm(algorithm: CollectiveAlgorithm) -> AlgorithmVerdict:
    """Whether an algorithm does what its collective promises, whatever the speed of its thread blocks.

    Raises ProgramError for one that is too large to be proved.
    """
    steps = algorithm.steps
    blocks = {block: number for number, block in enumerate(dict.fromkeys((step.rank, step.block) for step in steps))}
    if len(steps) * max(1, len(blocks)) > MAX_CLOCKS:
        raise ProgramError(f"{len(steps):,} steps in {len(blocks):,} thread blocks are too many to be proved")
    ordered, matched, faults = _collect_edges(steps, dict(algorithm.tokens))
    packets, packet_faults = match_packets(algorithm)
    faults += [AlgorithmFault(message, step.where) for message, step in packet_faults]
    before = [[*edges, *more] for edges, more in zip(ordered, packets, strict=True)]
    order = _sort(before)
    if not faults and len(order) < len(steps):
        faults.append(_describe_deadlock(steps, before, set(order)))
    if faults:
        return AlgorithmVerdict(_tell_of_parts(faults, algorithm.splits))
    run = _SymbolicRun(algorithm, matched)
    for position in order:
        run.execute(position)
    clocks = StepClocks(
        compute_clocks(steps, blocks, ordered, order),
        compute_clocks(steps, blocks, before, order) if any(packets) else None,
        compute_clocks(steps, blocks, before, order, relaxed=True) if any(s.by_switch for s in steps) else None,
    )
    races = _find_races(algorithm, order, clocks, blocks)
    faults = [*races, *run.faults, *_find_unfinished(steps, clocks, blocks)]
    if not races:  # otherwise the values are those of one order only
        faults += run.check_results()
    return AlgorithmVerdict(_tell_of_parts(faults, algorithm.splits), () if faults else tuple(run.transfers))


def _tell_of_parts(faults: Sequence[AlgorithmFault], splits: int) -> tuple[AlgorithmFault, ...]:
    """The first faults; if chunks were split, they say how chunks are counted."""
    note = f" (a chunk of the file is {splits} here)" if splits > 1 else ""
    return tuple(AlgorithmFault(f"{fault.message}{note}", fault.where) for fault in faults[:MAX_FAULTS])


def _collect_edges(
    steps: Sequence[Step], tokens: Mapping[Channel, int]
) -> tuple[list[list[int]], dict[int, int], list[AlgorithmFault]]:
    """For every step those before it, for every step that receives a message the one that sends it, and faults."""
    before: list[list[int]] = [[] for _ in steps]
    faults: list[AlgorithmFault] = []
    places = {(step.rank, step.block, step.number): position for position, step in enumerate(steps)}
    last: dict[tuple[int, int], int] = {}
    seen: dict[int, int] = {}
    """For every step, the first from it on in its block whose end others can see."""
    for position in reversed(range(len(steps))):
        step = steps[position]
        following = places.get((step.rank, step.block, step.number + 1))
        if step.notifies:
            seen[position] = position
        elif following is not None and following in seen:
            seen[position] = seen[following]
    for position, step in enumerate(steps):
        block = (step.rank, step.block)
        if block in last:
            before[position].append(last[block])
        last[block] = position
        for waited_block, number in step.waits:
            target = places.get((step.rank, waited_block, number))
            if target is None:
                message = f"{step} waits for step {number} of thread block {waited_block}, which is not there"
                faults.append(AlgorithmFault(message, step.where))
            elif target not in seen:
                message = f"{step} waits for {steps[target]} for ever: no step from there on tells others of its end"
                faults.append(AlgorithmFault(message, step.where))
            else:
                before[position].append(seen[target])
    matched, more = _match_messages(steps, before, tokens)
    faults += more
    faults += _join_barriers(steps, before)
    return before, matched, faults


def _match_messages(
    steps: Sequence[Step], before: list[list[int]], tokens: Mapping[Channel, int]
) -> tuple[dict[int, int], list[AlgorithmFault]]:
    """Adds the order of messages and signals to `before`, and returns the sender of every message."""
    matched: dict[int, int] = {}
    faults: list[AlgorithmFault] = []
    for kind in ("message", "signal"):
        sent: dict[Channel, list[int]] = defaultdict(list)
        taken: dict[Channel, list[int]] = defaultdict(list)
        for position, step in enumerate(steps):
            for channel in ((step.sends,) if step.sends else ()) if kind == "message" else step.signals:
                sent[channel].append(position)
            for channel in ((step.receives,) if step.receives else ()) if kind == "message" else step.awaits:
                taken[channel].append(position)
        for channel in dict.fromkeys((*sent, *taken)):
            gives, takes = sent[channel], taken[channel]
            source, target, name = channel
            messages = f"{kind}s from gpu {source} to gpu {target} on channel {name}"
            owners = {(end, steps[p].rank, steps[p].block) for end, some in enumerate((gives, takes)) for p in some}
            if len(owners) > (len(gives) > 0) + (len(takes) > 0):
                message = f"several thread blocks of one gpu use one channel for {messages}: their order is open"
                faults.append(AlgorithmFault(message, steps[(gives or takes)[0]].where))
                continue
            takes = takes[tokens.get(channel, 0) :]
            for give, take in zip(gives, takes, strict=False):
                before[take].append(give)
                if kind == "message":
                    matched[take] = give
                    if steps[give].count != steps[take].count:
                        message = f"{steps[take]} takes {format_count(steps[take].count, 'chunk')}, and {steps[give]}"
                        faults.append(AlgorithmFault(f"{message} gives {steps[give].count}", steps[take].where))
            if len(takes) > len(gives):
                message = (
                    f"{steps[takes[len(gives)]]} waits for ever: there are {len(gives)} {messages}, and {len(takes)}"
                )
                faults.append(AlgorithmFault(f"{message} are waited for", steps[takes[len(gives)]].where))
            elif len(gives) > len(takes) and kind == "message":
                message = f"nobody takes what {steps[gives[len(takes)]]} sends: there are {len(gives)} {messages}, and"
                faults.append(AlgorithmFault(f"{message} {len(takes)} are taken", steps[gives[len(takes)]].where))
    return matched, faults


def _join_barriers(steps: Sequence[Step], before: list[list[int]]) -> Iterator[AlgorithmFault]:
    """Orders what comes before a barrier, in all its thread blocks, before what comes after it."""
    meetings: dict[tuple[int, int], dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    for position, step in enumerate(steps):
        if step.barrier is not None:
            meetings[step.rank, step.barrier[0]][step.block].append(position)
    for visits in meetings.values():
        rounds = max(map(len, visits.values()))
        for turn in range(rounds):
            present = [some[turn] for some in visits.values() if turn < len(some)]
            first = steps[present[0]]
            size = first.barrier[1] if first.barrier else 0
            if len(present) != size or len({steps[p].barrier for p in present}) > 1:
                message = f"{first} waits for ever: {len(present)} of {size} thread blocks come to its barrier"
                yield AlgorithmFault(message, first.where)
                continue
            arrivals = {p: list(before[p]) for p in present}
            for position in present:  # a barrier ends when all before it has ended
                for follower, edges in arrivals.items():
                    if follower != position:
                        before[position] += edges


def _sort(before: Sequence[Sequence[int]]) -> list[int]:
    """The steps in an order in which they can run; those of cycles, and what comes after them, are left out."""
    after: list[list[int]] = [[] for _ in before]
    missing = [len(edges) for edges in before]
    for position, edges in enumerate(before):
        for edge in edges:
            after[edge].append(position)
    ready = deque(position for position, count in enumerate(missing) if not count)
    order = []
    while ready:
        position = ready.popleft()
        order.append(position)
        for successor in after[position]:
            missing[successor] -= 1
            if not missing[successor]:
                ready.append(successor)
    return order


def _describe_deadlock(steps: Sequence[Step], before: Sequence[Sequence[int]], ended: set[int]) -> AlgorithmFault:
    """A cycle of steps that wait for each other."""
    position = next(p for p in range(len(steps)) if p not in ended)
    path: list[int] = []
    while position not in path:
        path.append(position)
        position = next(edge for edge in before[position] if edge not in ended)
    cycle = path[path.index(position) :]
    shown = " <- ".join(str(steps[p]) for p in [*cycle[:_SHOWN], cycle[0]] if p is not None)
    more = f" (and {len(cycle) - _SHOWN} steps between them)" if len(cycle) > _SHOWN else ""
    return AlgorithmFault(f"deadlock: steps wait for each other: {shown}{more}", steps[cycle[0]].where)


def _find_races(
    algorithm: CollectiveAlgorithm, order: Sequence[int], clocks: StepClocks, blocks: dict[tuple[int, int], int]
) -> list[AlgorithmFault]:
    """Pairs of steps without an order that touch one chunk, of which one writes it."""
    steps, locate = algorithm.steps, algorithm.collective.locate
    writers: dict[ChunkSlot, int] = {}
    readers: dict[ChunkSlot, list[int]] = defaultdict(list)
    faults: dict[tuple[int, int], AlgorithmFault] = {}

    def require(first: int, second: int, slot: ChunkSlot, verb: str) -> None:
        a, b = steps[first], steps[second]
        known = clocks.choose(a if a.by_switch else b, overwrites=verb == "overwrites")
        if first != second and known[second, blocks[a.rank, a.block]] < a.number and (first, second) not in faults:
            message = f"race: {b} {verb} {slot}, and nothing says whether {a} comes before or after it"
            faults[first, second] = AlgorithmFault(message, b.where)

    for position in order:
        step = steps[position]
        for slot in expand_slots([slot for slot in step.operands if slot not in step.takes], step.count, locate):
            if slot in writers:
                require(writers[slot], position, slot, "reads")
            readers[slot].append(position)
        for slot in expand_slots([slot for slot in step.results if slot not in step.gives], step.count, locate):
            if slot in writers:
                require(writers[slot], position, slot, "writes")
            for reader in readers.pop(slot, ()):
                require(reader, position, slot, "overwrites")
            writers[slot] = position
        if len(faults) >= MAX_FAULTS:
            break
    return list(faults.values())


def _find_unfinished(
    steps: Sequence[Step], clocks: StepClocks, blocks: dict[tuple[int, int], int]
) -> Iterator[AlgorithmFault]:
    """Steps that touch another rank's buffers and that this rank does not wait for: it may be over before they are."""
    last = {(step.rank, step.block): position for position, step in enumerate(steps)}
    ends: dict[int, list[int]] = defaultdict(list)
    for (rank, _), position in last.items():
        ends[rank].append(position)
    for step in steps:
        slots = (*step.operands, *(slot for slot in step.results if slot not in step.gives))
        known = clocks.choose(step)
        for rank in dict.fromkeys(slot.rank for slot in slots if slot.rank != step.rank):
            if not any(known[end, blocks[step.rank, step.block]] >= step.number for end in ends[rank]):
                message = f"{step} touches memory of gpu {rank}, which does not wait for its end"
                yield AlgorithmFault(message, step.where)


class _SymbolicRun:
    """Computes what every chunk holds, step by step."""

    def __init__(self, algorithm: CollectiveAlgorithm, matched: dict[int, int]) -> None:
        self.faults: list[AlgorithmFault] = []
        self.transfers: list[Transfer] = []
        self._algorithm = algorithm
        self._matched = matched
        self._locate = algorithm.collective.locate
        self._memory: dict[ChunkSlot, Value | None] = {
            self._locate(slot): frozenset({atom}) for slot, atom in algorithm.collective.list_inputs()
        }
        self._sent: dict[int, list[Value | None]] = {}

    def execute(self, position: int) -> None:
        step = self._algorithm.steps[position]
        message = self._sent.pop(self._matched[position]) if position in self._matched else None
        values = [self._combine(step, offset, message) for offset in range(step.count)]
        for slot in step.results:
            for offset, value in enumerate(values):
                self._memory[self._locate(ChunkSlot(slot.rank, slot.buffer, slot.offset + offset))] = value
                if slot.rank != step.rank:
                    self._move(value, step.rank, slot.rank)
        if step.sends is not None:
            self._sent[position] = values
            for value in values:
                self._move(value, step.sends[0], step.sends[1])

    def _combine(self, step: Step, offset: int, message: list[Value | None] | None) -> Value | None:
        """The sum of a step's operands and message; None where one of them was never written."""
        parts = [] if message is None else [message[offset]]
        for slot in step.operands:
            chunk_slot = ChunkSlot(slot.rank, slot.buffer, slot.offset + offset)
            value = self._memory.get(self._locate(chunk_slot))
            if self._locate(chunk_slot) not in self._memory:
                self._add(f"{step} reads {chunk_slot}, which nothing has written", step)
                self._memory[self._locate(chunk_slot)] = None
            if slot.rank != step.rank:
                self._move(value, slot.rank, step.rank)
            parts.append(value)
        total: Value = frozenset()
        for part in parts:
            if part is None:
                return None
            twice = total & part
            if twice:
                self._add(f"{step} counts {describe_value(twice)} twice", step)
            total |= part
        return total

    def _move(self, value: Value | None, source: int, target: int) -> None:
        if value and source != target:
            self.transfers.append(Transfer(value, source, target))

    def _add(self, message: str, step: Step) -> None:
        if len(self.faults) < MAX_FAULTS:
            self.faults.append(AlgorithmFault(message, step.where))

    def check_results(self) -> list[AlgorithmFault]:
        """What every output lacks, or has and should not have."""
        faults: list[AlgorithmFault] = []
        for slot, expected in self._algorithm.collective.list_outputs():
            held = self._memory.get(self._locate(slot))
            if held == expected or len(faults) == MAX_FAULTS:
                continue
            if held is None:
                reason = "nothing has written it" if self._locate(slot) not in self._memory else "it is not defined"
            else:
                lacks, has = expected - held, held - expected
                reason = " and ".join(
                    text for text in (f"it lacks {describe_value(lacks)}" if lacks else "",
                                      f"it has {describe_value(has)}" if has else "") if text
                )  # fmt: skip
            message = f"at the end, {slot} is not what it should be: {reason}"
            faults.append(AlgorithmFault(message, self._algorithm.file))
        return faults


def describe_value(value: Value) -> str:
    """`chunk 3 of gpu 1`, or the chunk and all its ranks."""
    atoms = sorted(value)
    shown = ", ".join(f"chunk {chunk} of gpu {rank}" for chunk, rank in atoms[:_SHOWN])
    return shown + (f" and {len(atoms) - _SHOWN} more" if len(atoms) > _SHOWN else "")
