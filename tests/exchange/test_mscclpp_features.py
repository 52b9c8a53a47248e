"""Packets, switches, pipelines and groups of thread blocks of MSCCL++: what is valid, and how mistakes are called."""

import copy
import json

import pytest

from einc.errors import ProgramError
from einc.exchange.collectives.mscclpp_json import read_mscclpp_json
from einc.exchange.collectives.translating import convert_algorithm
from einc.exchange.collectives.verifying import verify_algorithm


def slot(kind, index, size=1):
    return {"type": kind, "index": index, "size": size}


def remote(index, size=1, number=0):
    return {"buffer_id": number, "index": index, "size": size}


def switch(index, size=1):
    return {"switch_channel_id": 0, "index": index, "size": size}


def op(name, sources=(), targets=(), **more):
    return {"name": name, **({"src_buff": list(sources), "dst_buff": list(targets)} if sources else {}), **more}


def sync(name, kind="memory"):
    return [op("nop"), {"name": name, "channel_ids": [0], "channel_type": kind}, op("nop")]


def plan(blocks, *, chunks=2, scratch=2, channels=(), remote_buffers=(), **more):
    """Two GPUs; `blocks(rank)` are the operations of the thread blocks of each."""
    gpus = []
    for rank in range(2):
        peers = [{"channel_type": "memory", "connected_to": [1 - rank]}]
        operations = blocks(rank)
        gpus.append(
            {
                "id": rank, "input_chunks": chunks, "output_chunks": chunks, "scratch_chunks": scratch,
                "threadblocks": [
                    {"id": number, "ops": ops, "channels": [{"channel_type": "memory", "channel_ids": [0]},
                                                            {"channel_type": "switch", "channel_ids": [0]}],
                     "remote_buffer_refs": [{"access_channel_type": "memory", "remote_buffer_ids": [0]}]}
                    for number, ops in enumerate(operations)
                ],
                "channels": [*peers, *channels],
                "remote_buffers": [{"rank": 1 - rank, "type": "s", "access_channel_types": ["memory"]}],
                "semaphores": more.get("semaphores", []),
            }
        )  # fmt: skip
    return {"name": "p", "collective": "allreduce", "inplace": True, "gpus": gpus, **more.get("root", {})}


def read(document):
    return read_mscclpp_json(json.dumps(document), "plan.json")


def faults(document):
    return [fault.message for fault in verify_algorithm(read(document)).faults]


def with_packets(rank):
    """Each GPU sums the chunk of its number: it gets the other's by packets, and sends the sum so."""
    mine, peer = rank, 1 - rank
    packets = {"channel_type": "memory"}
    return [
        [op("ppkt", [slot("i", peer)], [remote(peer)], **packets)],
        [op("respkt", [slot("i", mine), slot("s", mine)], [slot("i", mine), remote(mine)], **packets)],
        [op("upkt", [slot("s", peer)], [slot("i", peer)])],
    ]


def in_groups(rank):
    """Two blocks share each sum, and the copy of what the other GPU made."""
    mine, peer = rank, 1 - rank
    blocks = []
    for part in range(2):
        share = {"tbg_info": {"tb_id": part, "tbg_size": 2}, "channel_type": "memory"}
        blocks += [
            [op("ppkt", [slot("i", peer)], [remote(peer)], **share)],
            [op("respkt", [slot("i", mine), slot("s", mine)], [slot("i", mine), remote(mine)], **share)],
            [op("upkt", [slot("s", peer)], [slot("i", peer)], **share)],
        ]
    return blocks


SWITCH = ({"channel_type": "switch", "buffer_type": "i", "rank_groups": [{"size": 2, "ranks": [0, 1]}]},)


def by_switch(rank):
    """Both GPUs are there, each adds up a chunk on all, and waits for the other."""
    summed = op("glres", [switch(rank)], [switch(rank)], channel_type="switch")
    around = [*sync("rlxsignal"), *sync("rlxwait")]
    return [[*around, summed, *around]]


def in_a_pipeline(rank):
    """Rounds that use one place of the scratch memory: a block fills it, another one empties it."""

    def rounds(*ops):
        return [op("pipeline", iter_context={"unit_size": 4096, "num_chunks": 1}, ops=list(ops))]

    def semaphore(name, number):
        return {"name": name, "semaphore_ids": [number]}

    fill = [op("copy", [slot("i", chunk)], [slot("s", chunk)]) for chunk in range(2)]
    total = op("glres", [switch(rank)], [switch(rank)], channel_type="switch")
    empty = [op("copy", [slot("s", chunk)], [slot("i", chunk)]) for chunk in range(2)]
    meet = [*sync("signal"), *sync("wait")]
    return [
        rounds(semaphore("sem_acquire", 0), op("nop"), *fill, *meet, total, *meet, semaphore("sem_release", 1)),
        rounds(semaphore("sem_acquire", 1), op("nop"), *empty, op("nop"), semaphore("sem_release", 0)),
    ]


SCRATCH_SWITCH = ({"channel_type": "switch", "buff": "s", "rank_groups": [{"size": 2, "ranks": [0, 1]}]},)
VALID = {
    "packets": plan(with_packets),
    "groups": plan(in_groups),
    "switch": plan(by_switch, channels=SWITCH, scratch=0),
    "pipeline": plan(
        in_a_pipeline, channels=SCRATCH_SWITCH, root={"reuse_resources": True},
        semaphores=[{"init_value": 32}, {"init_value": 0}],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", VALID)
def test_what_is_right_is_valid_and_a_program(name):
    assert faults(VALID[name]) == []
    program = convert_algorithm(read(VALID[name]), 1000)
    parts = {"groups": 2, "pipeline": 2}.get(name, 1)
    assert {holding.size for holding in program.holdings} == {1000 // parts}
    assert len(program.holdings) == 2 * 2 * parts
    assert len(program.requirements) == 2 * parts


def changed(name, change):
    document = copy.deepcopy(VALID[name])
    change(document["gpus"])
    return document


def block(gpus, rank, number):
    return gpus[rank]["threadblocks"][number]["ops"]


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("packets", lambda g: block(g, 0, 0).clear(), "waits for ever for packets in s[1] of gpu 1"),
        ("packets", lambda g: block(g, 1, 2).clear(), "sends packets to s[0] of gpu 1, which does not wait"),
        ("packets", lambda g: block(g, 0, 1)[0]["dst_buff"][1].update(index=1), "sends packets to s[1] of gpu 1, as"),
        ("packets", lambda g: block(g, 0, 2)[0].update(name="copy"), "touches s[1] of gpu 0, where gpu 1"),
        ("packets", lambda g: block(g, 0, 1)[0]["src_buff"].reverse(), None),
        ("groups", lambda g: block(g, 0, 1)[0]["tbg_info"].update(tb_id=1), "waits for ever for packets"),
        ("groups", lambda g: block(g, 0, 3).clear(), "waits for ever for packets in s[3] of gpu 1"),
        ("switch", lambda g: block(g, 0, 0).__delitem__(slice(7, None)), "waits for ever"),
        ("switch", lambda g: [block(g, r, 0).__delitem__(slice(7, None)) for r in (0, 1)], "does not wait for its end"),
        ("switch", lambda g: block(g, 0, 0)[6].update(name="gstore", src_buff=[slot("i", 0)]), "lacks chunk 0"),
        ("pipeline", lambda g: block(g, 0, 1)[0]["ops"].__delitem__(0), "race"),
        ("pipeline", lambda g: g[0]["semaphores"][0].update(init_value=0), "deadlock"),
    ],
)  # fmt: skip
def test_each_mistake_is_found(name, change, words):
    document = changed(name, change)
    if words is None:
        with pytest.raises(ProgramError, match="packets in i"):
            read(document)
        return
    messages = faults(document)
    assert any(words in message for message in messages), messages
