"""Writes collective algorithms as MSCCL++'s execution plans, which `mscclpp_json.py` reads."""

from __future__ import annotations

import json
from collections import defaultdict
from typing import Any

from einc.exchange.collectives.algorithm import Channel, ChunkSlot, CollectiveAlgorithm, Step


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
