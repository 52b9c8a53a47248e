"""The operations of MSCCL++'s execution plans as steps.

- Packets (names with `pkt`) carry a flag with their data: who reads them waits for them, and nothing else is ordered.
  They lie in scratch memory.
- A switch (`glres`, `gstore`) reads a place on all GPUs of a group and adds up, or writes one on all of them.
- `tbg_info` gives a thread block its part of the places of an operation that a group of blocks shares.
- A `pipeline` goes over its operations in rounds, each for a part of their places. Two rounds stand for all: what the
  second one may do after the first holds for any two that follow each other. Where rounds use the same scratch memory
  again (`reuse_resources`), both rounds use one place, and a semaphore that begins with some value, as many as the
  scratch memory has places, begins with one.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from einc.errors import ProgramError
from einc.exchange.collectives.algorithm import MAX_CHUNKS, SCRATCH, Channel, ChunkSlot, Step
from einc_runtime.strict_json import describe_json
from einc_runtime.text import escape_text

ROUNDS = 2
"""Rounds of a pipeline that are read."""
_RELAXED = ("rlxsignal", "rlxwait")
_PUTS = ("put", "pws", "pwsf")
_REDUCING = ("re", "res", "rre", "rres")
_PACKETS = ("ppkt", "rppkt", "cpkt", "upkt", "repkt", "respkt", "recpkt", "recspkt")
_FROM_PACKETS = ("rppkt", "upkt")
"""Operations all of whose sources are packets. Of those that reduce, all but the first are."""
_SWITCHED = ("glres", "gstore", "gstorepkt")


@dataclass(frozen=True, slots=True)
class Splitting:
    """Into how many parts a chunk is split: for groups of thread blocks, and for the rounds of pipelines."""

    groups: int
    rounds: int
    reuses_scratch: bool

    @property
    def parts(self) -> int:
        return self.groups * self.rounds


@dataclass(slots=True)
class GpuChannels:
    """The channels of a GPU by type: of each its peer, and its number among those to this peer; and its switches, each
    a buffer and the GPUs that it joins."""

    peers: dict[str, list[tuple[int, int]]] = field(default_factory=lambda: defaultdict(list))
    switches: list[tuple[str, tuple[int, ...]]] = field(default_factory=list)


def read_channels(gpu: JsonValue, count: int) -> GpuChannels:
    channels = GpuChannels()
    for row in gpu.get_rows("channels", []):
        kind = row.get("channel_type", str)
        if kind == "switch":
            buffer = row.get("buffer_type", str) if row.has("buffer_type") else row.get("buff", str)
            if buffer not in ("i", "o", SCRATCH):
                raise row.refuse(f"a buffer is i, o or s, not '{escape_text(buffer, 20)}'")
            for group in row.get_rows("rank_groups"):
                ranks = group.numbers("ranks")
                if not ranks or len(set(ranks)) < len(ranks) or not all(0 <= rank < count for rank in ranks):
                    raise group.refuse(f"a switch joins different GPUs from 0 to {count - 1}")
                channels.switches.append((buffer, tuple(ranks)))
            continue
        seen: Counter[int] = Counter()
        for peer, _ in channels.peers[kind]:
            seen[peer] += 1
        for peer in row.numbers("connected_to"):
            if not 0 <= peer < count:
                raise row.refuse(f"there is no gpu {peer}")
            channels.peers[kind].append((peer, seen[peer]))
            seen[peer] += 1
    return channels


@dataclass(frozen=True, slots=True)
class _Share:
    """What an operation does of its places: the part of a group that its thread block has, and the round."""

    part: int = 0
    group: int = 1
    turn: int = 0
    rounds: int = 1


class GpuReader:
    """Reads the thread blocks of one GPU."""

    def __init__(self, gpu: JsonValue, rank: int, channels: GpuChannels, count: int, splitting: Splitting) -> None:
        self._gpu, self._rank, self._channels, self._splitting = gpu, rank, channels, splitting
        self._remote: list[ChunkSlot] = []
        for row in gpu.get_rows("remote_buffers", []):
            peer, buffer = row.get("rank", int), row.get("type", str)
            if not 0 <= peer < count or buffer not in ("i", "o", SCRATCH):
                raise row.refuse(f"there is no buffer '{escape_text(buffer, 20)}' on gpu {peer}")
            self._remote.append(ChunkSlot(peer, buffer, 0))
        self.tokens: list[tuple[Channel, int]] = []
        """What semaphores begin with."""
        for position, row in enumerate(gpu.get_rows("semaphores", [])):
            value = row.get("init_value", int, 0)
            if value < 0:
                raise row.refuse(f"semaphore {position} begins with {value}")
            if value:
                self.tokens.append((self._semaphore(position), 1 if splitting.reuses_scratch else value))

    def read(self) -> list[Step]:
        steps: list[Step] = []
        for position, block in enumerate(self._gpu.get_rows("threadblocks")):
            if block.get("id", int) != position:
                raise block.refuse(f"thread block {block.get('id', int)} stands where thread block {position} should")
            known: dict[str, list[int]] = defaultdict(list)
            for row in block.get_rows("channels", []):
                known[row.get("channel_type", str)] += row.numbers("channel_ids")
            references: dict[str, list[int]] = defaultdict(list)
            for row in block.get_rows("remote_buffer_refs", []):
                references[row.get("access_channel_type", str)] += row.numbers("remote_buffer_ids")
            number = 0
            for operation, turn, rounds in self._unroll(block.get_rows("ops")):
                for step in self._read_operation(operation, (position, number), known, references, turn, rounds):
                    steps.append(step)
                    number += 1
        return steps

    def _unroll(self, operations: Sequence[JsonValue]) -> Iterator[tuple[JsonValue, int, int]]:
        """The operations with the round that they are in, and how many there are."""
        for operation in operations:
            if operation.get("name", str) != "pipeline":
                yield operation, 0, 1
                continue
            inner = operation.get_rows("ops")
            for turn in range(ROUNDS):
                for inner_operation in inner:
                    if inner_operation.get("name", str) == "pipeline":
                        raise inner_operation.refuse("a pipeline in a pipeline")
                    yield inner_operation, turn, ROUNDS

    def _read_operation(
        self,
        op: JsonValue,
        step_position: tuple[int, int],
        known: Mapping[str, list[int]],
        references: Mapping[str, list[int]],
        turn: int,
        rounds: int,
    ) -> list[Step]:
        """The steps of one operation: one for each pair of places that it copies between."""
        name = op.get("name", str)
        block, number = step_position
        share = self._find_share(op, turn, rounds)
        kind = op.get("channel_type", str, "none")
        channels = (
            []
            if name in _SWITCHED
            else [self._find_channel(op, kind, known[kind], k) for k in op.numbers("channel_ids")]
        )
        out = tuple((self._rank, peer, f"{kind} {n}") for peer, n in channels)
        back = tuple((peer, self._rank, f"{kind} {n}") for peer, n in channels)
        sources, targets = (
            [self._find_slots(row, references[kind], known["switch"], share) for row in op.get_rows(side, [])]
            for side in ("src_buff", "dst_buff")
        )
        counts = {row.get("size", int) for side in ("src_buff", "dst_buff") for row in op.get_rows(side, [])}
        if len(counts) > 1 or counts & {0, -1}:
            raise op.refuse(f"operation '{name}' has places of {sorted(counts)} chunks")
        count = (counts.pop() if counts else 0) * self._splitting.parts // (share.group * share.rounds)

        fields: dict[str, Any]

        def make(offset: int = 0, **fields: Any) -> Step:
            return Step(self._rank, block, number + offset, name, where=op.where, **fields)

        if name in ("nop", "flush"):
            return [make()]
        if name in ("signal", "rlxsignal") and channels:
            return [make(signals=out, relaxed=name in _RELAXED)]
        if name in ("wait", "rlxwait") and channels:
            return [make(awaits=back, relaxed=name in _RELAXED)]
        if name in ("sem_acquire", "sem_release"):
            semaphores = tuple(map(self._semaphore, op.numbers("semaphore_ids")))
            return [make(awaits=semaphores) if name == "sem_acquire" else make(signals=semaphores)]
        if name == "barrier":
            return [make(barrier=(op.get("barrier_id", int), op.get("num_threadblocks", int)))]
        if not sources or not targets:
            raise op.refuse(f"operation '{escape_text(name, 40)}' is not known with these places and channels")
        if name in (*_PUTS, "get", "copy") and len(sources) == len(targets):
            pairs = list(zip(sources, targets, strict=True))
            last = len(pairs) - 1
            return [
                make(k, count=count, operands=a, results=b, signals=out if k == last and name[:2] == "pw" else ())
                for k, (a, b) in enumerate(pairs)
            ]
        if name in _REDUCING and len(sources) > 1:
            return [make(count=count, operands=_join(sources), results=_join(targets))]
        if name in _PACKETS:
            fields = self._read_packets(op, name, _join(sources), _join(targets))
            return [make(count=count, **fields)]
        if name in _SWITCHED:
            operands, results = _join(sources), _join(targets)
            takes, gives = (operands, results) if name == "gstorepkt" else ((), ())
            fields = {"operands": operands, "results": results, "takes": takes, "gives": gives}
            return [make(count=count, by_switch=True, **fields)]
        raise op.refuse(f"operation '{escape_text(name, 40)}' is not known with these places and channels")

    def _read_packets(
        self, op: JsonValue, name: str, sources: tuple[ChunkSlot, ...], targets: tuple[ChunkSlot, ...]
    ) -> dict[str, Any]:
        """The places of an operation with packets, and which of them have packets."""
        takes = sources if name in _FROM_PACKETS else sources[1:] if "re" in name[:2] else ()
        gives = () if name == "upkt" else targets[1:] if "re" in name[:2] else targets
        for slot in (*takes, *gives):
            if slot.buffer != SCRATCH:
                raise op.refuse(f"operation '{name}' has packets in {slot}, and they lie in scratch memory alone")
        if (name in ("ppkt", "rppkt", "cpkt", "upkt") and len(sources) != 1) or ("re" in name[:2] and not takes):
            raise op.refuse(f"operation '{name}' has {len(sources)} sources")
        return {"operands": sources, "results": targets, "takes": takes, "gives": gives}

    def _find_share(self, op: JsonValue, turn: int, rounds: int) -> _Share:
        if not op.has("tbg_info"):
            return _Share(turn=turn, rounds=rounds)
        info = op.get_object("tbg_info")
        part, group = info.get("tb_id", int), info.get("tbg_size", int)
        if not 0 <= part < group:
            raise op.refuse(f"thread block {part} of a group of {group}")
        return _Share(part, group, turn, rounds)

    def _find_channel(self, op: JsonValue, kind: str, ids: Sequence[int], index: int) -> tuple[int, int]:
        all_of_kind = self._channels.peers.get(kind, [])
        if not 0 <= index < len(ids) or not 0 <= ids[index] < len(all_of_kind):
            raise op.refuse(f"there is no channel {index} of type '{escape_text(kind, 20)}'")
        return all_of_kind[ids[index]]

    def _find_slots(
        self, row: JsonValue, references: Sequence[int], switches: Sequence[int], share: _Share
    ) -> tuple[ChunkSlot, ...]:
        """The first parts of a place: one slot, or one on each GPU of a switch."""
        index, size = row.get("index", int), row.get("size", int)
        if row.has("switch_channel_id"):
            number = row.get("switch_channel_id", int)
            if not 0 <= number < len(switches) or not 0 <= switches[number] < len(self._channels.switches):
                raise row.refuse(f"there is no switch {number}")
            buffer, ranks = self._channels.switches[switches[number]]
        elif row.has("buffer_id"):
            number = row.get("buffer_id", int)
            if not 0 <= number < len(references) or not 0 <= references[number] < len(self._remote):
                raise row.refuse(f"there is no remote buffer {number}")
            remote = self._remote[references[number]]
            buffer, ranks = remote.buffer, (remote.rank,)
        else:
            buffer, ranks = row.get("type", str), (self._rank,)
            if buffer not in ("i", "o", SCRATCH):
                raise row.refuse(f"a buffer is i, o or s, not '{escape_text(buffer, 20)}'")
        parts = self._splitting.parts
        length = size * parts // share.group
        offset = index * parts + share.part * length
        if not (self._splitting.reuses_scratch and buffer == SCRATCH):
            offset += share.turn * length // share.rounds
        return tuple(ChunkSlot(rank, buffer, offset) for rank in ranks)

    def _semaphore(self, number: int) -> Channel:
        return (self._rank, self._rank, f"semaphore {number}")


def _join(slots: Sequence[tuple[ChunkSlot, ...]]) -> tuple[ChunkSlot, ...]:
    return tuple(slot for each in slots for slot in each)


class JsonValue:
    """A value of a document with its place."""

    def __init__(self, value: Any, where: str) -> None:
        self.value, self.where = value, where

    def get(self, name: str, kind: type, default: Any = None) -> Any:
        """A field of an object: a JsonValue for objects, else the value. Raises ProgramError for another type."""
        value = self.value.get(name, default) if isinstance(self.value, dict) else None
        wrong = not isinstance(value, kind) or (kind is int and isinstance(value, bool))
        if wrong or (isinstance(value, int) and not -1 <= value <= MAX_CHUNKS):
            names = {int: f"a number up to {MAX_CHUNKS:,}", str: "a text", list: "a list", bool: "true or false"}
            message = f"'{name}' should be {names[kind]}" + (
                f", not {describe_json(value)}" if value is not None else ""
            )
            raise ProgramError(message, where=self.where)
        return value

    def get_rows(self, name: str, default: Any = None) -> list[JsonValue]:
        rows = self.get(name, list, default)
        for position, row in enumerate(rows):
            if not isinstance(row, dict):
                message = f"'{name}' should be a list of objects, and has {describe_json(row)}"
                raise ProgramError(message, where=f"{self.where}.{name}[{position}]")
        prefix = f"{self.where}." if not self.where.endswith(": ") else self.where
        return [JsonValue(row, f"{prefix}{name}[{position}]") for position, row in enumerate(rows)]

    def get_object(self, name: str) -> JsonValue:
        value = self.value.get(name)
        if not isinstance(value, dict):
            raise self.refuse(f"'{name}' should be an object, not {describe_json(value)}")
        return JsonValue(value, f"{self.where}.{name}")

    def numbers(self, name: str) -> list[int]:
        return [JsonValue({name: entry}, self.where).get(name, int) for entry in self.get(name, list, [])]

    def has(self, name: str) -> bool:
        return name in self.value

    def refuse(self, message: str, hint: str | None = None) -> ProgramError:
        return ProgramError(message, where=self.where, hint=hint)
