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


def _edit(made: Sketch, rank, block, position, **fields):
    made.blocks[rank, *block][position].update(fields)
    return made


def _drop(made: Sketch, rank, block, position):
    del made.blocks[rank, *block][position]
    for steps in made.blocks.values():
        for step in steps:
            step["after"] = [(k, n - (k == (rank, *block) and n > position)) for k, n in step["after"]]
    return made


def _wrong_slots():
    """Each part lands where it arrives in turn, not at its rank's place."""
    made = ring_allgather(4)
    for key, steps in made.blocks.items():
        for back, step in enumerate(steps[2:], 1):
            place = ("o", back if back != key[0] else 0)
            step.update(src=place, dst=place)
    return made


def _all_gather_in_permuted_order(n=4):
    """The peers are taken by another table of ranks than the places."""
    made = Sketch("allgather", n, n)
    table = [0, 2, 1, 3]
    for rank in range(n):
        made.step(rank, (-1, -1, 0), "cpy", ("i", 0), ("o", rank))
        for other in range(n):
            if other != rank:
                made.step(rank, (other, -1, 0), "s", ("i", 0), ("o", rank))
                made.step(rank, (-1, other, 0), "r", ("i", 0), ("o", table[other] if table[other] != rank else other))
    return made


def _reduce_scatter_shifted(n=3):
    made = all_pairs_reduce_scatter(n)
    for key, steps in made.blocks.items():
        for step in steps:
            if step["type"] == "s":
                step["src"] = ("i", (key[1] + 1) % n)
            elif step["type"] == "cpy":
                step["src"] = ("i", (key[0] + 1) % n)
    return made


def _overwritten_while_it_is_sent():
    """Halving: the result is put to the beginning of the buffer that another block still sends from."""
    made = Sketch("reduce_scatter", 2, 2, inplace=True, scratch=1)
    for rank in range(2):
        other = 1 - rank
        made.step(rank, (other, -1, 0), "s", ("i", other), ("s", 0))
        got = made.step(rank, (-1, other, 0), "r", ("i", rank), ("s", 0))
        last = made.step(rank, (-1, -1, 0), "re", ("s", 0), ("i", rank), after=[got])
        if rank == 1:
            made.step(rank, (-1, -1, 0), "cpy", ("i", 1), ("i", 0), after=[last])
    return made


def _chained_reductions_without_waits():
    """Of several reductions in a row only the first waits for what it adds."""
    made = all_pairs_reduce_scatter(4)
    for rank in range(4):
        for step in made.blocks[rank, -1, -1, 0][2:]:
            step["after"] = []
    return made


def _scratch_of_both_phases():
    """The second phase of recursive doubling receives into the scratch that the first may still read."""
    made = Sketch("allreduce", 4, 1, inplace=True, scratch=1)
    for rank in range(4):
        last = []
        for partner in (rank ^ 1, rank ^ 2):
            sent = made.step(rank, (partner, -1, 0), "s", ("i", 0), ("s", 0), after=last)
            got = made.step(rank, (-1, partner, 0), "r", ("i", 0), ("s", 0))
            last = [made.step(rank, (-1, -1, 0), "re", ("s", 0), ("i", 0), after=[sent, got])]
    return made


def _buffer_given_back_early():
    """A block receives the next part into a buffer that another block still copies from."""
    made = Sketch("allgather", 3, 3, scratch=1)
    for rank in range(3):
        made.step(rank, (-1, -1, 0), "cpy", ("i", 0), ("o", rank))
        ahead, behind = (rank + 1) % 3, (rank - 1) % 3
        made.step(rank, (ahead, -1, 0), "s", ("i", 0), ("s", 0))
        made.step(rank, (behind, -1, 0), "s", ("i", 0), ("s", 0))
        one = made.step(rank, (-1, behind, 0), "r", ("i", 0), ("s", 0))
        made.step(rank, (-1, -1, 0), "cpy", ("s", 0), ("o", behind), after=[one])
        two = made.step(rank, (-1, ahead, 0), "r", ("i", 0), ("s", 0), after=[one])
        made.step(rank, (-1, -1, 0), "cpy", ("s", 0), ("o", ahead), after=[two])
    return made


def _both_wait_first():
    made = Sketch("allreduce", 2, 1, inplace=True)
    for rank in range(2):
        block = (1 - rank, 1 - rank, 0)
        made.step(rank, block, "rrc", ("i", 0), ("i", 0))
        made.step(rank, block, "s", ("i", 0), ("i", 0))
    return made


def _two_collectives_in_other_orders():
    """Two exchanges on channels of their own; one rank does the first first, the other the second."""
    made = Sketch("alltoall", 2, 4)
    for rank in range(2):
        other = 1 - rank
        made.step(rank, (-1, -1, 0), "cpy", ("i", 2 * rank), ("o", 2 * rank), 2)
        turns = (0, 1) if rank == 0 else (1, 0)
        got = []
        for turn in turns:
            source, target = ("i", 2 * other + turn), ("o", 2 * rank + turn)
            made.step(rank, (other, -1, turn), "s", source, target, after=got)
            got = [made.step(rank, (-1, other, turn), "r", source, ("o", 2 * other + turn))]
        made.blocks[rank, other, -1, turns[0]][0]["after"] = []
    for rank in range(2):  # a rank begins its second exchange when the first is over, and the first waits for the other
        first = 0 if rank == 0 else 1
        made.blocks[rank, 1 - rank, -1, first][0]["after"] = [((rank, -1, 1 - rank, first), 0)]
    return made


def _group_of_one():
    """The sum goes over pairs, and not over all."""
    made = Sketch("allreduce", 4, 1, inplace=True, scratch=1)
    for rank in range(4):
        block = (rank ^ 1, rank ^ 1, 0)
        made.step(rank, block, "s", ("i", 0), ("s", 0))
        made.step(rank, block, "r", ("i", 0), ("s", 0))
        made.step(rank, block, "re", ("s", 0), ("i", 0))
    return made


def _wrong_partner():
    """Recursive doubling whose second turn has the partner of the first."""
    made = Sketch("allreduce", 4, 1, inplace=True, scratch=2)
    for rank in range(4):
        block = (rank ^ 1, rank ^ 1, 0)
        for turn in range(2):
            made.step(rank, block, "s", ("i", 0), ("s", turn))
            made.step(rank, block, "r", ("i", 0), ("s", turn))
            made.step(rank, block, "re", ("s", turn), ("i", 0))
    return made


def _result_thrown_away():
    """The sum is computed, and what a rank had before is its output."""
    return _edit(hierarchical_allreduce(1, 3), 0, (-1, -1, 0), -1, type="cpy", src=("i", 0))


def _sliced_before_summed():
    """Shards are cut out at each rank's own place, and rows of other places are added up."""
    made = all_pairs_reduce_scatter(3)
    for key, steps in made.blocks.items():
        for step in steps:
            if step["type"] == "s":
                step["src"] = ("i", key[0])
    return made


def _one_bucket_forgotten():
    made = Sketch("allreduce", 3, 3, inplace=True)
    ring = ring_allreduce(3)
    made.blocks = {key: [s for s in steps if s["src"][1] != 2] for key, steps in ring.blocks.items()}
    return made


def _reduced_twice():
    """A tree in which a child also sends its sum to the grandparent."""
    made = tree_allreduce(3)
    made.step(1, (0, -1, 1), "s", ("i", 0), ("i", 0))
    made.step(0, (-1, 1, 1), "rrc", ("i", 0), ("i", 0))
    made.blocks[0, -1, 1, 1][0]["after"] = [((0, -1, 2, 0), 0)]
    made.blocks[0, 1, -1, 0][0]["after"] = [((0, -1, 1, 1), 0)]
    made.blocks[0, 2, -1, 0][0]["after"] = [((0, -1, 1, 1), 0)]
    made.blocks[1, 0, -1, 1][0]["after"] = []
    return made


def _one_rank_leaves():
    """A rank that fails early takes no part, and the others wait."""
    made = ring_allgather(3)
    made.blocks[2, 0, 1, 0] = made.blocks[2, 0, 1, 0][:1]
    return made


def _uneven_shards():
    made = ring_allgather(3, 2)
    made.blocks[2, 0, 1, 0][1]["cnt"] = 1
    return made


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
    made = Sketch("broadcast", 2, 2)
    made.step(0, (-1, -1, 0), "cpy", ("i", 0), ("o", 0), 2)
    for chunk in range(2):
        made.step(0, (1, -1, 0), "s", ("i", chunk), ("o", chunk))
        made.step(1, (-1, 0, 0), "r", ("i", 1 - chunk), ("o", 1 - chunk))
    return made


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
    made = {"name": name, **more}

    def place(slot):
        buffer, index = slot
        if buffer.isupper():
            return {"buffer_id": "IOS".index(buffer), "index": index, "size": size}
        return {"type": buffer, "index": index, "size": size}

    if source is not None:
        made["src_buff"] = [place(slot) for slot in (source if isinstance(source, list) else [source])]
        made["dst_buff"] = [place(slot) for slot in (target if isinstance(target, list) else [target])]
    if name not in ("copy", "re", "nop", "barrier", "sem_acquire", "sem_release"):
        made |= {"channel_type": "memory", "channel_ids": [channel]}
    return made


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
    made = [list(ops) for ops in operations]
    last = max(k for k, one in enumerate(made[rank]) if one["name"] == name)
    del made[rank][last]
    return made


def _replaced(operations, old, new):
    return [[{**one, "name": new if one["name"] == old else one["name"]} for one in ops] for ops in operations]


def staged(wait_first):
    """What arrives in the scratch is copied on by a second thread block, which waits for the first one, or not."""
    made = []
    for rank in range(2):
        first = [op("put", ("o", rank), ("S", 0)), op("nop"), op("signal"), op("wait"),
                 op("sem_release", semaphore_ids=[0])]  # fmt: skip
        second = [op("sem_acquire", semaphore_ids=[0])] if wait_first else []
        made.append([first, [*second, op("copy", ("s", 0), ("o", 1 - rank))]])
    return made


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
