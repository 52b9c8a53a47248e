"""MSCCL++'s execution plans: JSON with the thread blocks of every GPU, which put, get, signal and wait.

What an operation reads and writes are lists of places, in buffers of its own GPU or of `remote_buffers`; channels are
pairs of GPUs, the n-th of one with the n-th of the other. A `wait` takes one `signal` of its channel. Operations with
packets, multicast by a switch, pipelines and chunks that several thread blocks share are refused.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from typing import Any

from einc.errors import ProgramError
from einc.exchange.collectives.algorithm import (
    MAX_ALGORITHM_STEPS,
    MAX_CHUNKS,
    MAX_RANKS,
    Channel,
    ChunkSlot,
    CollectiveAlgorithm,
    Step,
    check_slots,
    make_collective,
)
from einc_runtime.strict_json import describe_json, parse_json
from einc_runtime.text import escape_text

_LEFT_OUT = {
    "packets": ("ppkt", "rppkt", "respkt", "cpkt", "upkt", "repkt", "recpkt", "recspkt"),
    "multicast by a switch": ("glres",),
    "pipelines": ("pipeline",),
}
_RELAXED = ("rlxsignal", "rlxwait")
_PUTS = ("put", "pws", "pwsf")
_REDUCING = ("re", "res", "rre", "rres")


MAX_ALGORITHM_TEXT = 16 * 2**20
"""Characters of a text."""


class _JsonValue:
    """A value of the document with its place, for messages."""

    def __init__(self, value: Any, where: str) -> None:
        self.value, self.where = value, where

    def get(self, name: str, kind: type, default: Any = None) -> Any:
        """A field of an object: a _JsonValue for objects, else the value. Raises ProgramError for another type."""
        value = self.value.get(name, default) if isinstance(self.value, dict) else None
        wrong = not isinstance(value, kind) or (kind is int and isinstance(value, bool))
        if wrong or (isinstance(value, int) and not -1 <= value <= MAX_CHUNKS):
            names = {int: f"a number up to {MAX_CHUNKS:,}", str: "a text", list: "a list", bool: "true or false"}
            message = f"'{name}' should be {names[kind]}" + (
                f", not {describe_json(value)}" if value is not None else ""
            )
            raise ProgramError(message, where=self.where)
        return value

    def get_rows(self, name: str, default: Any = None) -> list[_JsonValue]:
        """The objects of a list."""
        rows = self.get(name, list, default)
        for position, row in enumerate(rows):
            if not isinstance(row, dict):
                message = f"'{name}' should be a list of objects, and has {describe_json(row)}"
                raise ProgramError(message, where=f"{self.where}.{name}[{position}]")
        prefix = f"{self.where}." if not self.where.endswith(": ") else self.where
        return [_JsonValue(row, f"{prefix}{name}[{position}]") for position, row in enumerate(rows)]

    def numbers(self, name: str) -> list[int]:
        return [_JsonValue({name: entry}, self.where).get(name, int) for entry in self.get(name, list, [])]

    def has(self, name: str) -> bool:
        return name in self.value

    def refuse(self, message: str, hint: str | None = None) -> ProgramError:
        return ProgramError(message, where=self.where, hint=hint)


def read_mscclpp_json(text: str, file: str) -> CollectiveAlgorithm:
    """The algorithm of a text. Raises ProgramError, with its place, for anything that is none or is not read."""
    if len(text) > MAX_ALGORITHM_TEXT:
        raise ProgramError(f"the text has more than {MAX_ALGORITHM_TEXT // 2**20} Mi characters", where=file)
    try:
        document = parse_json(text.removeprefix("\ufeff"))
    except ValueError as error:
        raise ProgramError(str(error), where=file) from None
    root = _JsonValue(document, f"{file}: ")
    gpus = root.get_rows("gpus")
    if not 1 <= len(gpus) <= MAX_RANKS:
        raise ProgramError(f"{len(gpus)} GPUs; from 1 to {MAX_RANKS} are possible", where=file)
    for rank, gpu in enumerate(gpus):
        if gpu.get("id", int) != rank:
            raise gpu.refuse(f"gpu {gpu.get('id', int)} stands where gpu {rank} should")
    kind = root.get("collective", str)
    count_field = "output_chunks" if kind == "allgather" else "input_chunks"
    chunks = gpus[0].get(count_field, int)
    collective = make_collective(kind, len(gpus), chunks, root.get("inplace", bool), file)
    for gpu in gpus:
        if gpu.get(count_field, int) != chunks:
            raise gpu.refuse(f"{count_field} is {gpu.get(count_field, int)}, and {chunks} on gpu 0")
    peers = [_read_channels(gpu, len(gpus)) for gpu in gpus]
    steps: list[Step] = []
    for rank, gpu in enumerate(gpus):
        steps += _GpuReader(gpu, rank, peers[rank], len(gpus)).read()
        if len(steps) > MAX_ALGORITHM_STEPS:
            raise ProgramError(f"the plan has more than {MAX_ALGORITHM_STEPS:,} operations", where=file)
    scratch = tuple(gpu.get("scratch_chunks", int, 0) for gpu in gpus)
    name = document.get("name") if isinstance(document, dict) else None
    algorithm = CollectiveAlgorithm(str(name or "")[:200], collective, scratch, tuple(steps), file)
    check_slots(algorithm)
    return algorithm


def _read_channels(gpu: _JsonValue, count: int) -> dict[str, list[tuple[int, int]]]:
    """For every type of channels, the peers of a GPU's channels, each with its number among those to this peer."""
    channels: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for row in gpu.get_rows("channels", []):
        kind = row.get("channel_type", str)
        if kind == "switch":
            raise row.refuse("multicast by a switch is not read")
        seen: Counter[int] = Counter()
        for peer, _ in channels[kind]:
            seen[peer] += 1
        for peer in row.numbers("connected_to"):
            if not 0 <= peer < count:
                raise row.refuse(f"there is no gpu {peer}")
            channels[kind].append((peer, seen[peer]))
            seen[peer] += 1
    return channels


class _GpuReader:
    """Reads the thread blocks of one GPU."""

    def __init__(self, gpu: _JsonValue, rank: int, channels: dict[str, list[tuple[int, int]]], count: int) -> None:
        self._gpu, self._rank, self._channels = gpu, rank, channels
        self._remote: list[ChunkSlot] = []
        for row in gpu.get_rows("remote_buffers", []):
            peer, buffer = row.get("rank", int), row.get("type", str)
            if not 0 <= peer < count or buffer not in ("i", "o", "s"):
                raise row.refuse(f"there is no buffer '{escape_text(buffer, 20)}' on gpu {peer}")
            self._remote.append(ChunkSlot(peer, buffer, 0))
        for position, row in enumerate(gpu.get_rows("semaphores", [])):
            if row.get("init_value", int, 0):
                raise row.refuse(f"semaphore {position} does not begin with 0")

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
            for operation in block.get_rows("ops"):
                for step in self._read_operation(operation, (position, number), known, references):
                    steps.append(step)
                    number += 1
        return steps

    def _read_operation(
        self,
        op: _JsonValue,
        step_position: tuple[int, int],
        known: dict[str, list[int]],
        references: dict[str, list[int]],
    ) -> list[Step]:
        """The steps of one operation: one for each pair of places that it copies between."""
        name = op.get("name", str)
        block, number = step_position
        left_out = next((feature for feature, names in _LEFT_OUT.items() if name in names), None)
        if left_out is not None or op.has("tbg_info"):
            raise op.refuse(f"operation '{name}': {left_out or 'chunks shared by thread blocks'} cannot be read")
        kind = op.get("channel_type", str, "none")
        channels = [self._find_channel(op, kind, known[kind], k) for k in op.numbers("channel_ids")]
        out = tuple((self._rank, peer, f"{kind} {n}") for peer, n in channels)
        back = tuple((peer, self._rank, f"{kind} {n}") for peer, n in channels)
        sources, targets = (
            [self._find_slot(row, references[kind]) for row in op.get_rows(side, [])]
            for side in ("src_buff", "dst_buff")
        )
        counts = {row.get("size", int) for side in ("src_buff", "dst_buff") for row in op.get_rows(side, [])}
        if len(counts) > 1 or counts & {0, -1}:
            raise op.refuse(f"operation '{name}' has places of {sorted(counts)} chunks")
        count = counts.pop() if counts else 0

        def make(offset: int = 0, **fields: Any) -> Step:
            return Step(self._rank, block, number + offset, name, where=op.where, **fields)

        if name in ("nop", "flush"):
            return [make()]
        if name in ("signal", "rlxsignal") and channels:
            return [make(signals=out, relaxed=name in _RELAXED)]
        if name in ("wait", "rlxwait") and channels:
            return [make(awaits=back, relaxed=name in _RELAXED)]
        if name in ("sem_acquire", "sem_release"):
            some: tuple[Channel, ...] = tuple(
                (self._rank, self._rank, f"semaphore {k}") for k in op.numbers("semaphore_ids")
            )
            return [make(awaits=some) if name == "sem_acquire" else make(signals=some)]
        if name == "barrier":
            return [make(barrier=(op.get("barrier_id", int), op.get("num_threadblocks", int)))]
        if name in (*_PUTS, "get", "copy") and len(sources) == len(targets) > 0:
            pairs = list(zip(sources, targets, strict=True))
            last = len(pairs) - 1
            return [
                make(k, count=count, operands=(a,), results=(b,), signals=out if k == last and name[:2] == "pw" else ())
                for k, (a, b) in enumerate(pairs)
            ]
        if name in _REDUCING and len(sources) > 1 and targets:
            return [make(count=count, operands=tuple(sources), results=tuple(targets))]
        raise op.refuse(f"operation '{escape_text(name, 40)}' is not known with these places and channels")

    def _find_channel(self, op: _JsonValue, kind: str, ids: list[int], index: int) -> tuple[int, int]:
        all_of_kind = self._channels[kind]
        if not 0 <= index < len(ids) or not 0 <= ids[index] < len(all_of_kind):
            raise op.refuse(f"there is no channel {index} of type '{escape_text(kind, 20)}'")
        return all_of_kind[ids[index]]

    def _find_slot(self, row: _JsonValue, references: list[int]) -> ChunkSlot:
        offset = row.get("index", int)
        if row.has("switch_channel_id"):
            raise row.refuse("multicast by a switch is not read")
        if row.has("buffer_id"):
            index = row.get("buffer_id", int)
            if not 0 <= index < len(references) or not 0 <= references[index] < len(self._remote):
                raise row.refuse(f"there is no remote buffer {index}")
            remote = self._remote[references[index]]
            return ChunkSlot(remote.rank, remote.buffer, offset)
        buffer = row.get("type", str)
        if buffer not in ("i", "o", "s"):
            raise row.refuse(f"a buffer is i, o or s, not '{escape_text(buffer, 20)}'")
        return ChunkSlot(self._rank, buffer, offset)


def write_mscclpp_json(algorithm: CollectiveAlgorithm) -> str:
    """The text of an algorithm of one thread block for each GPU, whose steps are `s`, `r`, `cpy` and `re`.

    A message becomes a `put` to where the receiver wants it, and a signal that the receiver waits for.
    """
    collective = algorithm.collective
    sizes = collective.count_chunks()
    receivers: dict[Channel, list[ChunkSlot]] = defaultdict(list)
    for step in algorithm.steps:
        if step.receives is not None:
            receivers[step.receives].append(step.results[0])
    arrivals = {channel: iter(slots) for channel, slots in receivers.items()}
    gpus = []
    for rank in range(collective.ranks):
        rank_steps = [step for step in algorithm.steps if step.rank == rank]
        peers = sorted({end for step in rank_steps for c in (step.sends, step.receives) if c for end in c[:2]} - {rank})
        remote: dict[tuple[int, str], int] = {}
        operations: list[dict[str, Any]] = []
        for step in rank_steps:
            operations += _write_step(step, peers, remote, arrivals)
        numbers, kind = list(range(len(peers))), "memory"
        references = [{"access_channel_type": kind, "remote_buffer_ids": list(range(len(remote)))}] if remote else []
        gpus.append(
            {
                "id": rank,
                "input_chunks": sizes["i"],
                "output_chunks": sizes["o"],
                "scratch_chunks": algorithm.scratch[rank],
                "threadblocks": [
                    {
                        "id": 0,
                        "ops": operations,
                        "channels": [{"channel_type": kind, "channel_ids": numbers}] if peers else [],
                        "remote_buffer_refs": references,
                    }
                ],
                "channels": [{"channel_type": kind, "connected_to": peers}] if peers else [],
                "remote_buffers": [
                    {"rank": peer, "type": buffer, "access_channel_types": [kind]} for peer, buffer in remote
                ],
                "semaphores": [],
            }
        )
    document = {
        "name": algorithm.name,
        "collective": collective.kind.replace("_", ""),
        "protocol": "Simple",
        "inplace": collective.inplace,
        "reuse_resources": False,
        "gpus": gpus,
        "num_threads_per_block": 1024,
        "use_double_scratch_buffer": False,
        "buffer_alignment": 16,
        "min_message_size": 0,
        "max_message_size": 2**64 - 1,
    }
    return json.dumps(document, indent=1) + "\n"


def _write_step(
    step: Step, peers: list[int], remote: dict[tuple[int, str], int], arrivals: dict[Channel, Any]
) -> list[dict[str, Any]]:
    """The operations of a step, after one that lets all threads of the block see what came before."""

    def place(slot: ChunkSlot) -> dict[str, Any]:
        if slot.rank == step.rank:
            return {"type": slot.buffer, "index": slot.offset, "size": step.count}
        number = remote.setdefault((slot.rank, slot.buffer), len(remote))
        return {"buffer_id": number, "index": slot.offset, "size": step.count}

    if step.receives is not None:
        channel = {"channel_ids": [peers.index(step.receives[0])], "channel_type": "memory"}
        return [{"name": "wait", **channel}, {"name": "nop"}]
    fields: dict[str, Any] = {"src_buff": [place(slot) for slot in step.operands]}
    if step.sends is not None:
        channel = {"channel_ids": [peers.index(step.sends[1])], "channel_type": "memory"}
        target = next(arrivals[step.sends])
        return [
            {"name": "put", **fields, "dst_buff": [place(target)], **channel},
            {"name": "nop"},
            {"name": "signal", **channel},
        ]
    fields["dst_buff"] = [place(slot) for slot in step.results]
    if step.word == "re":
        return [{"name": "re", **fields, "reduce_op": "sum"}, {"name": "nop"}]
    return [{"name": "copy", **fields}, {"name": "nop"}]
