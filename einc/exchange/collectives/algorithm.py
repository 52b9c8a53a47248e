"""Collective algorithms as GPUs run them: thread blocks whose steps read, combine, write, send and wait."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from einc.errors import ProgramError
from einc_runtime.text import escape_text

INPUT, OUTPUT, SCRATCH = "i", "o", "s"
COLLECTIVE_KINDS = ("allreduce", "allgather", "reduce_scatter", "alltoall", "broadcast")
"""Collectives whose results are known. A `reduce_scatter` may be written `reducescatter`."""

MAX_ALGORITHM_TEXT = 16 * 2**20
"""Characters of a text."""
MAX_RANKS = 1024
MAX_ALGORITHM_STEPS = 100_000
MAX_CHUNKS = 1_000_000
"""Chunks that all steps together read or write."""

MAX_CONTRIBUTIONS = 20_000_000
"""Contributions in the results of all GPUs together; each chunk of an input is one."""

Atom = tuple[int, int]
"""What a rank contributes to a chunk: (chunk, rank). Chunks are counted as in the collective's larger buffer."""


class ChunkSlot(NamedTuple):
    """The place of one chunk."""

    rank: int
    buffer: str
    offset: int

    def __str__(self) -> str:
        return f"{self.buffer}[{self.offset}] of gpu {self.rank}"


Channel = tuple[int, int, str]
"""Messages or signals from one rank to another arrive in their order; the third part tells channels apart."""


@dataclass(frozen=True, slots=True)
class Collective:
    """What an algorithm promises. `chunks` are those of the larger of the input and the output.

    In place, input and output share memory, as MPI and NCCL say: that of an allgather's rank r is the r-th part of its
    output, and that of a reduce_scatter's output the r-th part of its input.
    """

    kind: str
    ranks: int
    chunks: int
    inplace: bool
    root: int = 0

    @property
    def share(self) -> int:
        """The chunks of one rank's part."""
        return self.chunks // self.ranks

    def count_chunks(self) -> dict[str, int]:
        """The chunks of the input and the output of every rank."""
        total, part = self.chunks, self.share
        return {
            INPUT: part if self.kind == "allgather" else total,
            OUTPUT: part if self.kind == "reduce_scatter" else total,
        }

    def locate(self, slot: ChunkSlot) -> ChunkSlot:
        """The memory of a slot: in place, two slots may be one."""
        if not self.inplace:
            return slot
        rank, buffer, index = slot
        match self.kind, buffer:
            case ("allgather", "i"):
                return ChunkSlot(rank, OUTPUT, index + rank * self.share)
            case ("reduce_scatter", "o"):
                return ChunkSlot(rank, INPUT, index + rank * self.share)
            case ("allreduce" | "alltoall" | "broadcast", "o"):
                return ChunkSlot(rank, INPUT, index)
        return slot

    def list_inputs(self) -> Iterator[tuple[ChunkSlot, Atom]]:
        """Where every contribution is at the beginning."""
        count = self.count_chunks()[INPUT]
        for rank in range(self.ranks):
            if self.kind == "broadcast" and rank != self.root:
                continue
            for index in range(count):
                chunk = rank * self.share + index if self.kind == "allgather" else index
                yield ChunkSlot(rank, INPUT, index), (chunk, rank)

    def list_outputs(self) -> Iterator[tuple[ChunkSlot, frozenset[Atom]]]:
        """What every chunk of the outputs has to hold at the end, chunk by chunk."""
        every, share = range(self.ranks), self.share
        for chunk in range(self.chunks):
            owner = chunk // share if share else 0
            match self.kind:
                case "allreduce":
                    contributions = frozenset((chunk, rank) for rank in every)
                    yield from ((ChunkSlot(rank, OUTPUT, chunk), contributions) for rank in every)
                case "reduce_scatter":
                    yield ChunkSlot(owner, OUTPUT, chunk % share), frozenset((chunk, rank) for rank in every)
                case "allgather":
                    yield from ((ChunkSlot(rank, OUTPUT, chunk), frozenset({(chunk, owner)})) for rank in every)
                case "broadcast":
                    yield from ((ChunkSlot(rank, OUTPUT, chunk), frozenset({(chunk, self.root)})) for rank in every)
                case "alltoall":
                    for rank in every:
                        yield ChunkSlot(owner, OUTPUT, rank * share + chunk % share), frozenset({(chunk, rank)})


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a thread block: `count` chunks from each slot on.

    The sum of the operands, and of a message that is received, goes to every result and to a message that is sent. A
    step begins when the steps before it in its block, and those in `waits` (block and number, of the same rank) have
    ended, and when a signal of every channel in `awaits` is there. `notifies` says whether others can see its end.
    """

    rank: int
    block: int
    number: int
    word: str
    count: int = 0
    operands: tuple[ChunkSlot, ...] = ()
    results: tuple[ChunkSlot, ...] = ()
    receives: Channel | None = None
    sends: Channel | None = None
    awaits: tuple[Channel, ...] = ()
    signals: tuple[Channel, ...] = ()
    waits: tuple[tuple[int, int], ...] = ()
    barrier: tuple[int, int] | None = None
    """The number of a barrier among thread blocks of the rank, and how many of them come to it."""

    notifies: bool = True
    relaxed: bool = False
    """Whether its signals and waits order no data, but only who runs on."""

    takes: tuple[ChunkSlot, ...] = ()
    """Those of the operands that are packets: the step waits until they are there."""

    gives: tuple[ChunkSlot, ...] = ()
    """Those of the results that are packets."""

    by_switch: bool = False
    """Whether a switch reads or writes for it on several GPUs, which relaxed signals order as well."""

    where: str = ""

    def __str__(self) -> str:
        return f"gpu {self.rank}, thread block {self.block}, step {self.number} ({self.word})"


@dataclass(frozen=True, slots=True)
class CollectiveAlgorithm:
    """A collective algorithm. `steps` are those of every rank and thread block in their order.

    `tokens` say how often a channel can be waited for before anything is signalled. If `splits` is more than 1, the
    file counts in chunks of which each is so many here.
    """

    name: str
    collective: Collective
    scratch: tuple[int, ...]
    steps: tuple[Step, ...]
    file: str = ""
    tokens: tuple[tuple[Channel, int], ...] = ()
    splits: int = 1


def make_collective(kind: str, ranks: int, chunks: int, inplace: bool, where: str, root: int = 0) -> Collective:
    """The collective of these names and numbers. Raises ProgramError where it is not known or does not divide."""
    known = kind.lower().replace("reducescatter", "reduce_scatter")
    if known not in COLLECTIVE_KINDS:
        raise ProgramError(
            f"what the collective '{escape_text(kind, 60)}' promises is not known",
            where=where,
            hint=f"known are {', '.join(COLLECTIVE_KINDS)}",
        )
    if not 1 <= ranks <= MAX_RANKS:
        raise ProgramError(f"{ranks} GPUs; from 1 to {MAX_RANKS} are possible", where=where)
    if not 1 <= ranks * ranks * chunks <= MAX_CONTRIBUTIONS or ranks * chunks > MAX_CHUNKS // 4:
        raise ProgramError(f"{chunks:,} chunks on {ranks} GPUs are none, or too many", where=where)
    if known not in ("allreduce", "broadcast") and chunks % ranks:
        raise ProgramError(f"{chunks} chunks of {known} cannot be divided among {ranks} GPUs", where=where)
    if not 0 <= root < ranks:
        raise ProgramError(f"the root {root} is none of {ranks} GPUs", where=where)
    return Collective(known, ranks, chunks, inplace, root)


def check_slots(algorithm: CollectiveAlgorithm) -> None:
    """Raises ProgramError for a slot that no buffer has, and for more chunks than can be checked."""
    sizes = algorithm.collective.count_chunks()
    total = 0
    for step in algorithm.steps:
        total += step.count * (len(step.operands) + len(step.results))
        if total > MAX_CHUNKS:
            raise ProgramError(f"all steps together read and write more than {MAX_CHUNKS:,} chunks", where=step.where)
        for slot in (*step.operands, *step.results):
            if not 0 <= slot.rank < algorithm.collective.ranks:
                raise ProgramError(f"{step}: there is no gpu {slot.rank}", where=step.where)
            size = algorithm.scratch[slot.rank] if slot.buffer == SCRATCH else sizes[slot.buffer]
            if slot.offset < 0 or slot.offset + step.count > size:
                last = f"{slot.buffer}[{slot.offset}:{slot.offset + step.count}]"
                raise ProgramError(
                    f"{step}: {last} is outside of the buffer, which has {size} chunks", where=step.where
                )
