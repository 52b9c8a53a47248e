"""Bugs of collectives that others published, rebuilt as algorithms of MSCCL and MSCCL++ and as exchange programs.

Each has the project and the number of the thread that describes it, or "" where it is a plain slip of the same kind.
What is rebuilt is the mistake, in the smallest algorithm that has it, not the code of the project.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from tests.support.collective_cases import (
    Sketch,
    all_pairs_allreduce,
    all_pairs_reduce_scatter,
    direct_alltoall,
    hierarchical_allreduce,
    ring_allgather,
    ring_allreduce,
    tree_allreduce,
)


@dataclass(frozen=True)
class PublishedBug:
    """`effect` is what running the XML with numbers can show: wrong, deadlock, or either of them and right (race)."""

    name: str
    source: str
    text: str
    fault: str
    effect: str = "wrong"


def _edit(sketch: Sketch, rank, block, position, **fields):
    sketch.blocks[rank, *block][position].update(fields)
    return sketch


def _drop(sketch: Sketch, rank, block, position):
    del sketch.blocks[rank, *block][position]
    for steps in sketch.blocks.values():
        for step in steps:
            step["after"] = [(k, n - (k == (rank, *block) and n > position)) for k, n in step["after"]]
    return sketch


def _wrong_slots():
    """Each part lands where it arrives in turn, not at its rank's place."""
    sketch = ring_allgather(4)
    for key, steps in sketch.blocks.items():
        for back, step in enumerate(steps[2:], 1):
            slot = ("o", back if back != key[0] else 0)
            step.update(src=slot, dst=slot)
    return sketch


def _all_gather_in_permuted_order(n=4):
    """The peers are taken by another table of ranks than the places."""
    sketch = Sketch("allgather", n, n)
    table = [0, 2, 1, 3]
    for rank in range(n):
        sketch.step(rank, (-1, -1, 0), "cpy", ("i", 0), ("o", rank))
        for peer in range(n):
            if peer != rank:
                sketch.step(rank, (peer, -1, 0), "s", ("i", 0), ("o", rank))
                sketch.step(rank, (-1, peer, 0), "r", ("i", 0), ("o", table[peer] if table[peer] != rank else peer))
    return sketch


def _reduce_scatter_shifted(n=3):
    sketch = all_pairs_reduce_scatter(n)
    for key, steps in sketch.blocks.items():
        for step in steps:
            if step["type"] == "s":
                step["src"] = ("i", (key[1] + 1) % n)
            elif step["type"] == "cpy":
                step["src"] = ("i", (key[0] + 1) % n)
    return sketch


def _overwritten_while_it_is_sent():
    """Halving: the result is put to the beginning of the buffer that another block still sends from."""
    sketch = Sketch("reduce_scatter", 2, 2, inplace=True, scratch=1)
    for rank in range(2):
        peer = 1 - rank
        sketch.step(rank, (peer, -1, 0), "s", ("i", peer), ("s", 0))
        got = sketch.step(rank, (-1, peer, 0), "r", ("i", rank), ("s", 0))
        last = sketch.step(rank, (-1, -1, 0), "re", ("s", 0), ("i", rank), after=[got])
        if rank == 1:
            sketch.step(rank, (-1, -1, 0), "cpy", ("i", 1), ("i", 0), after=[last])
    return sketch


def _chained_reductions_without_waits():
    """Of several reductions in a row only the first waits for what it adds."""
    sketch = all_pairs_reduce_scatter(4)
    for rank in range(4):
        for step in sketch.blocks[rank, -1, -1, 0][2:]:
            step["after"] = []
    return sketch


def _scratch_of_both_phases():
    """The second phase of recursive doubling receives into the scratch that the first may still read."""
    sketch = Sketch("allreduce", 4, 1, inplace=True, scratch=1)
    for rank in range(4):
        last = []
        for partner in (rank ^ 1, rank ^ 2):
            sent = sketch.step(rank, (partner, -1, 0), "s", ("i", 0), ("s", 0), after=last)
            got = sketch.step(rank, (-1, partner, 0), "r", ("i", 0), ("s", 0))
            last = [sketch.step(rank, (-1, -1, 0), "re", ("s", 0), ("i", 0), after=[sent, got])]
    return sketch


def _buffer_given_back_early():
    """A block receives the next part into a buffer that another block still copies from."""
    sketch = Sketch("allgather", 3, 3, scratch=1)
    for rank in range(3):
        sketch.step(rank, (-1, -1, 0), "cpy", ("i", 0), ("o", rank))
        ahead, behind = (rank + 1) % 3, (rank - 1) % 3
        sketch.step(rank, (ahead, -1, 0), "s", ("i", 0), ("s", 0))
        sketch.step(rank, (behind, -1, 0), "s", ("i", 0), ("s", 0))
        first_receive = sketch.step(rank, (-1, behind, 0), "r", ("i", 0), ("s", 0))
        sketch.step(rank, (-1, -1, 0), "cpy", ("s", 0), ("o", behind), after=[first_receive])
        second_receive = sketch.step(rank, (-1, ahead, 0), "r", ("i", 0), ("s", 0), after=[first_receive])
        sketch.step(rank, (-1, -1, 0), "cpy", ("s", 0), ("o", ahead), after=[second_receive])
    return sketch


def _both_wait_first():
    sketch = Sketch("allreduce", 2, 1, inplace=True)
    for rank in range(2):
        block = (1 - rank, 1 - rank, 0)
        sketch.step(rank, block, "rrc", ("i", 0), ("i", 0))
        sketch.step(rank, block, "s", ("i", 0), ("i", 0))
    return sketch


def _two_collectives_in_other_orders():
    """Two exchanges on channels of their own; one rank does the first first, the other the second."""
    sketch = Sketch("alltoall", 2, 4)
    for rank in range(2):
        peer = 1 - rank
        sketch.step(rank, (-1, -1, 0), "cpy", ("i", 2 * rank), ("o", 2 * rank), 2)
        turns = (0, 1) if rank == 0 else (1, 0)
        got = []
        for turn in turns:
            source, target = ("i", 2 * peer + turn), ("o", 2 * rank + turn)
            sketch.step(rank, (peer, -1, turn), "s", source, target, after=got)
            got = [sketch.step(rank, (-1, peer, turn), "r", source, ("o", 2 * peer + turn))]
        sketch.blocks[rank, peer, -1, turns[0]][0]["after"] = []
    for rank in range(2):  # a rank begins its second exchange when the first is over, and the first waits for the other
        first = 0 if rank == 0 else 1
        sketch.blocks[rank, 1 - rank, -1, first][0]["after"] = [((rank, -1, 1 - rank, first), 0)]
    return sketch


def _group_of_one():
    """The sum goes over pairs, and not over all."""
    sketch = Sketch("allreduce", 4, 1, inplace=True, scratch=1)
    for rank in range(4):
        block = (rank ^ 1, rank ^ 1, 0)
        sketch.step(rank, block, "s", ("i", 0), ("s", 0))
        sketch.step(rank, block, "r", ("i", 0), ("s", 0))
        sketch.step(rank, block, "re", ("s", 0), ("i", 0))
    return sketch


def _wrong_partner():
    """Recursive doubling whose second turn has the partner of the first."""
    sketch = Sketch("allreduce", 4, 1, inplace=True, scratch=2)
    for rank in range(4):
        block = (rank ^ 1, rank ^ 1, 0)
        for turn in range(2):
            sketch.step(rank, block, "s", ("i", 0), ("s", turn))
            sketch.step(rank, block, "r", ("i", 0), ("s", turn))
            sketch.step(rank, block, "re", ("s", turn), ("i", 0))
    return sketch


def _result_thrown_away():
    """The sum is computed, and what a rank had before is its output."""
    return _edit(hierarchical_allreduce(1, 3), 0, (-1, -1, 0), -1, type="cpy", src=("i", 0))


def _sliced_before_summed():
    """Shards are cut out at each rank's own place, and rows of other places are added up."""
    sketch = all_pairs_reduce_scatter(3)
    for key, steps in sketch.blocks.items():
        for step in steps:
            if step["type"] == "s":
                step["src"] = ("i", key[0])
    return sketch


def _one_bucket_forgotten():
    sketch = Sketch("allreduce", 3, 3, inplace=True)
    ring = ring_allreduce(3)
    sketch.blocks = {key: [s for s in steps if s["src"][1] != 2] for key, steps in ring.blocks.items()}
    return sketch


def _reduced_twice():
    """A tree in which a child also sends its sum to the grandparent."""
    sketch = tree_allreduce(3)
    sketch.step(1, (0, -1, 1), "s", ("i", 0), ("i", 0))
    sketch.step(0, (-1, 1, 1), "rrc", ("i", 0), ("i", 0))
    sketch.blocks[0, -1, 1, 1][0]["after"] = [((0, -1, 2, 0), 0)]
    sketch.blocks[0, 1, -1, 0][0]["after"] = [((0, -1, 1, 1), 0)]
    sketch.blocks[0, 2, -1, 0][0]["after"] = [((0, -1, 1, 1), 0)]
    sketch.blocks[1, 0, -1, 1][0]["after"] = []
    return sketch


def _one_rank_leaves():
    """A rank that fails early takes no part, and the others wait."""
    sketch = ring_allgather(3)
    sketch.blocks[2, 0, 1, 0] = sketch.blocks[2, 0, 1, 0][:1]
    return sketch


def _uneven_shards():
    sketch = ring_allgather(3, 2)
    sketch.blocks[2, 0, 1, 0][1]["cnt"] = 1
    return sketch


def _copy_for_reduce():
    return _edit(ring_allreduce(4), 2, (3, 1, 0), 3, type="rcs")


def _first_part_lost():
    return _drop(direct_alltoall(3), 1, (-1, -1, 0), 0)


def _reads_what_is_not_there():
    return _edit(all_pairs_allreduce(3), 0, (-1, -1, 0), 1, src=("s", 0))


def _off_by_one():
    return _edit(ring_allgather(5), 3, (4, 2, 0), 4, dst=("o", 1), src=("o", 1))


def _swapped_arrivals():
    """Two messages of one channel are taken in the other order."""
    sketch = Sketch("broadcast", 2, 2)
    sketch.step(0, (-1, -1, 0), "cpy", ("i", 0), ("o", 0), 2)
    for chunk in range(2):
        sketch.step(0, (1, -1, 0), "s", ("i", chunk), ("o", chunk))
        sketch.step(1, (-1, 0, 0), "r", ("i", 1 - chunk), ("o", 1 - chunk))
    return sketch


def _nobody_tells():
    return all_pairs_allreduce(2).text().replace('hasdep="1"', 'hasdep="0"')


XML_BUGS = [
    PublishedBug("wrong places", "NVIDIA/nccl#1906", _wrong_slots().text(), "is not what it should be"),
    PublishedBug("permuted ranks", "NVIDIA/nccl#2377", _all_gather_in_permuted_order().text(), "is not what it should"),
    PublishedBug("shifted chunks", "Xilinx/ACCL#37", _reduce_scatter_shifted().text(), "it lacks chunk"),
    PublishedBug("offset of one rank", "horovod/horovod#2204", _off_by_one().text(), "it lacks chunk 1"),
    PublishedBug("overwritten in flight", "jax-ml/jax#40830", _overwritten_while_it_is_sent().text(), "race", "race"),
    PublishedBug("chained reductions", "microsoft/msccl#25", _chained_reductions_without_waits().text(), "race",
                 "race"),
    PublishedBug("scratch of two phases", "vllm-project/vllm#25892", _scratch_of_both_phases().text(), "race", "race"),
    PublishedBug("early reuse", "NVIDIA/Megatron-LM#5788", _buffer_given_back_early().text(), "race", "race"),
    PublishedBug("both wait", "NVIDIA/nccl#479", _both_wait_first().text(), "deadlock", "deadlock"),
    PublishedBug("orders differ", "meta-pytorch/torchrec#4149", _two_collectives_in_other_orders().text(), "deadlock",
                 "deadlock"),
    PublishedBug("wrong group", "ByteDance-Seed/VeOmni#1115", _group_of_one().text(), "it lacks chunk 0 of gpu"),
    PublishedBug("wrong partner", "", _wrong_partner().text(), "twice"),
    PublishedBug("result thrown away", "NovaSky-AI/SkyRL#1886", _result_thrown_away().text(), "it lacks"),
    PublishedBug("sliced before summed", "openxla/xla#42481", _sliced_before_summed().text(), "it has chunk"),
    PublishedBug("forgotten bucket", "bigcode-project/Megatron-LM#11", _one_bucket_forgotten().text(),
                 "it lacks chunk 2"),
    PublishedBug("reduced twice", "huggingface/transformers#18330", _reduced_twice().text(), "twice"),
    PublishedBug("one rank leaves", "NVIDIA/cuDecomp#158", _one_rank_leaves().text(), "waits for ever", "deadlock"),
    PublishedBug("uneven shards", "ooples/AiDotNet#393", _uneven_shards().text(), "gives 1"),
    PublishedBug("copy for reduce", "", _copy_for_reduce().text(), "it lacks chunk"),
    PublishedBug("own part lost", "", _first_part_lost().text(), "nothing has written it"),
    PublishedBug("unwritten scratch", "", _reads_what_is_not_there().text(), "which nothing has written"),
    PublishedBug("swapped messages", "NVIDIA/nccl#389", _swapped_arrivals().text(), "is not what it should be"),
    PublishedBug("nobody tells", "", _nobody_tells(), "no step from there on", "deadlock"),
]  # fmt: skip


def make_plan(operations, chunks=2, kind="allgather", scratch=0):
    """An MSCCL++ plan of two GPUs; `operations` are those of either, as lists of dictionaries."""
    gpus = []
    for rank in range(2):
        blocks = operations[rank] if operations[rank] and isinstance(operations[rank][0], list) else [operations[rank]]
        memory = {"channel_type": "memory"}
        gpus.append(
            {"id": rank, "input_chunks": chunks if kind != "allgather" else chunks // 2, "output_chunks": chunks,
             "scratch_chunks": scratch,
             "threadblocks": [
                 {"id": k, "ops": ops, "channels": [{**memory, "channel_ids": [0, 1]}],
                  "remote_buffer_refs": [{"access_channel_type": "memory", "remote_buffer_ids": [0, 1, 2]}]}
                 for k, ops in enumerate(blocks)],
             "channels": [{**memory, "connected_to": [1 - rank, 1 - rank]}],
             "remote_buffers": [{"rank": 1 - rank, "type": t, "access_channel_types": ["memory"]} for t in "ios"],
             "semaphores": [{"init_value": 0}]}
        )  # fmt: skip
    document = {"name": "test", "collective": kind, "protocol": "Simple", "inplace": True, "gpus": gpus}
    return json.dumps(document)


def op(name, source=None, target=None, channel=0, size=1, **more):
    """An operation; places are (buffer, index), with the buffer in capitals if it is the other GPU's."""
    operation = {"name": name, **more}

    def place(slot):
        buffer, index = slot
        if buffer.isupper():
            return {"buffer_id": "IOS".index(buffer), "index": index, "size": size}
        return {"type": buffer, "index": index, "size": size}

    if source is not None:
        operation["src_buff"] = [place(slot) for slot in (source if isinstance(source, list) else [source])]
        operation["dst_buff"] = [place(slot) for slot in (target if isinstance(target, list) else [target])]
    if name not in ("copy", "re", "nop", "barrier", "sem_acquire", "sem_release"):
        operation |= {"channel_type": "memory", "channel_ids": [channel]}
    return operation


def put_allgather():
    """Every GPU puts its part into the other's output."""
    return [[op("put", ("o", rank), ("O", rank)), op("nop"), op("signal"), op("wait")] for rank in range(2)]


def read_allreduce():
    """Every GPU adds one chunk of both, by reading the other's, and puts the sum back."""
    return [
        [op("signal"), op("wait"), op("rres", [("i", rank), ("I", rank)], [("i", rank), ("I", rank)]), op("nop"),
         op("signal"), op("wait")]
        for rank in range(2)
    ]  # fmt: skip


def _without(operations, rank, name):
    changed = [list(ops) for ops in operations]
    last = max(k for k, operation in enumerate(changed[rank]) if operation["name"] == name)
    del changed[rank][last]
    return changed


def _replaced(operations, old, new):
    return [
        [{**operation, "name": new if operation["name"] == old else operation["name"]} for operation in ops]
        for ops in operations
    ]


def staged(wait_first):
    """What arrives in the scratch is copied on by a second thread block, which waits for the first one, or not."""
    gpus = []
    for rank in range(2):
        first = [op("put", ("o", rank), ("S", 0)), op("nop"), op("signal"), op("wait"),
                 op("sem_release", semaphore_ids=[0])]  # fmt: skip
        second = [op("sem_acquire", semaphore_ids=[0])] if wait_first else []
        gpus.append([first, [*second, op("copy", ("s", 0), ("o", 1 - rank))]])
    return gpus


PLAN_BUGS = [
    PublishedBug("no wait at the end", "pytorch/pytorch#73314", make_plan(_without(put_allgather(), 1, "wait")),
                 "does not wait for its end"),
    PublishedBug("relaxed signals", "vllm-project/vllm#57059",
                 make_plan(_replaced(put_allgather(), "signal", "rlxsignal")), "does not wait for its end"),
    PublishedBug("relaxed waits", "vllm-project/vllm#2760", make_plan(_replaced(_replaced(read_allreduce(), "wait",
                 "rlxwait"), "signal", "rlxsignal"), kind="allreduce"), "does not wait for its end"),
    PublishedBug("lost signal", "tenstorrent/tt-metal#50793", make_plan(_without(put_allgather(), 0, "signal")),
                 "waits for ever"),
    PublishedBug("blocks without order", "NVIDIA/Megatron-LM#6187", make_plan(staged(False), scratch=1), "race"),
    PublishedBug("sum of one", "", make_plan(_replaced(read_allreduce(), "rres", "rre"), chunks=4, kind="allreduce"),
                 "is not what it should be"),
]  # fmt: skip

PROGRAM_BUGS = [
    PublishedBug("counted twice", "huggingface/transformers#18330",
                 "IN: A@1; B@1; C@1\nOUT: A+B+C @ 0\nA+B@1->0; B+C@1->0; A+B+C@0", "twice"),
    PublishedBug("lost shard", "bigcode-project/Megatron-LM#11",
                 "IN: A@0; B@1; C@2\nOUT: A+B+C @ 0\nA@0; B@1->0; A+B+C@0", "never holds C"),
    PublishedBug("wrong group", "ByteDance-Seed/VeOmni#1115",
                 "IN: A@0; B@1; C@2; D@3\nOUT: A+B+C+D @ 0,1,2,3\nA@0->1; B@1->0; C@2->3; D@3->2; A+B@0,1; C+D@2,3",
                 "A+B+C+D is required at site 0"),
    PublishedBug("wrong receiver", "NVIDIA/nccl#2377", "IN: A@0; B@1\nOUT: A@2; B@3\nA@0->3; B@1->2",
                 "never gets there"),
    PublishedBug("orders differ", "meta-pytorch/torchrec#4149",
                 "IN: A@0; B@1\nOUT: A@1; B@0\nA@0->1 after (B@1->0); B@1->0 after (A@0->1)", "never starts"),
    PublishedBug("never combined", "NovaSky-AI/SkyRL#1886", "IN: A@0; B@1\nOUT: A+B@0\nB@1->0", "no action combines"),
]  # fmt: skip
