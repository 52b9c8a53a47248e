"""Collective algorithms for tests, written from what is known of them, and a machine that runs XML with numbers."""

from __future__ import annotations

import random
import xml.etree.ElementTree as ElementTree
from collections import defaultdict, deque
from dataclasses import dataclass, field


@dataclass
class Sketch:
    """An MSCCL algorithm that is being written: thread blocks by (rank, send, recv, chan), each a list of steps."""

    coll: str
    ranks: int
    chunks: int
    inplace: bool = False
    scratch: int = 0
    blocks: dict = field(default_factory=dict)

    def step(self, rank, block, word, src=("i", -1), dst=("o", -1), cnt=1, after=()):
        """Adds a step to the block (send, recv, chan) of a rank; `after` are handles of steps of the same rank."""
        steps = self.blocks.setdefault((rank, *block), [])
        steps.append({"type": word, "src": src, "dst": dst, "cnt": cnt, "after": list(after)})
        return (rank, *block), len(steps) - 1

    def text(self, relabel=None):
        """The XML; several waits become nops before the step. `relabel` permutes the ranks."""
        names = relabel or list(range(self.ranks))
        ids = {}
        for key in self.blocks:
            ids[key] = sum(key_before[0] == key[0] for key_before in ids)
        numbers = {}
        for key, steps in self.blocks.items():
            at = 0
            for k, step in enumerate(steps):
                waits = [wait for wait in step["after"] if wait[0] != key]
                at += max(0, len(waits) - 1)
                numbers[key, k] = at
                at += 1
        waited = {wait for steps in self.blocks.values() for step in steps for wait in step["after"]}
        root = ElementTree.Element(
            "algo", name="test", proto="Simple", nchannels="1", nchunksperloop=str(self.chunks),
            ngpus=str(self.ranks), coll=self.coll, inplace=str(int(self.inplace)),
        )  # fmt: skip
        for name in range(self.ranks):
            rank = names.index(name)
            gpu = ElementTree.SubElement(
                root, "gpu", id=str(name), i_chunks="0", o_chunks="0", s_chunks=str(self.scratch)
            )
            for key, steps in self.blocks.items():
                if key[0] != rank:
                    continue
                send, recv = (names[peer] if peer >= 0 else -1 for peer in key[1:3])
                block = ElementTree.SubElement(
                    gpu, "tb", id=str(ids[key]), send=str(send), recv=str(recv), chan=str(key[3])
                )
                for k, step in enumerate(steps):
                    waits = [wait for wait in step["after"] if wait[0] != key] or [None]
                    for turn, wait in enumerate(waits):
                        last = turn == len(waits) - 1
                        depid, deps = (-1, -1) if wait is None else (ids[wait[0]], numbers[wait])
                        ElementTree.SubElement(
                            block, "step", s=str(numbers[key, k] - (len(waits) - 1 - turn)),
                            type=step["type"] if last else "nop",
                            srcbuf=step["src"][0], srcoff=str(step["src"][1]),
                            dstbuf=step["dst"][0], dstoff=str(step["dst"][1]),
                            cnt=str(step["cnt"]), depid=str(depid), deps=str(deps),
                            hasdep=str(int(last and (key, k) in waited)),
                        )  # fmt: skip
        return ElementTree.tostring(root, encoding="unicode")


def ring_allreduce(n, share=1):
    """In place, fused steps: every chunk goes once around to be summed, and once around to be known."""
    sketch = Sketch("allreduce", n, n * share, inplace=True)
    for rank in range(n):
        block = ((rank + 1) % n, (rank - 1) % n, 0)

        def at(back, rank=rank):
            return ("i", (rank - back) % n * share)

        sketch.step(rank, block, "s", at(0), at(0), share)
        for back in range(1, n - 1):
            sketch.step(rank, block, "rrs", at(back), at(back), share)
        sketch.step(rank, block, "rrcs", at(n - 1), at(n - 1), share)
        for back in range(n - 2):
            sketch.step(rank, block, "rcs", at(back), at(back), share)
        sketch.step(rank, block, "r", at(n - 2), at(n - 2), share)
    return sketch


def ring_allgather(n, share=1):
    """Out of place: a copy of one's own part, which then goes around."""
    sketch = Sketch("allgather", n, n * share)
    for rank in range(n):
        block = ((rank + 1) % n, (rank - 1) % n, 0)
        sketch.step(rank, block, "cpy", ("i", 0), ("o", rank * share), share)
        sketch.step(rank, block, "s", ("i", 0), ("o", rank * share), share)
        for back in range(1, n):
            slot = ("o", (rank - back) % n * share)
            sketch.step(rank, block, "rcs" if back < n - 1 else "r", slot, slot, share)
    return sketch


def all_pairs_reduce_scatter(n, share=1):
    """Each rank gets its chunk from all others into the scratch, and adds them up in its output."""
    sketch = Sketch("reduce_scatter", n, n * share, scratch=n * share)
    for rank in range(n):
        arrived = []
        for peer in range(n):
            if peer != rank:
                sketch.step(rank, (peer, -1, 0), "s", ("i", peer * share), ("s", rank * share), share)
                slot = ("s", peer * share)
                arrived.append(sketch.step(rank, (-1, peer, 0), "r", slot, slot, share))
        sketch.step(rank, (-1, -1, 0), "cpy", ("i", rank * share), ("o", 0), share)
        peers = [peer for peer in range(n) if peer != rank]
        for peer, handle in zip(peers, arrived, strict=True):
            sketch.step(rank, (-1, -1, 0), "re", ("s", peer * share), ("o", 0), share, after=[handle])
    return sketch


def all_pairs_allreduce(n, share=1):
    """In place: chunk r is summed at rank r, and goes back to all from there."""
    sketch = Sketch("allreduce", n, n * share, inplace=True, scratch=n * share)
    for rank in range(n):
        arrived, sent = {}, {}
        peers = [peer for peer in range(n) if peer != rank]
        local_slot = ("i", rank * share)
        for peer in peers:
            sent[peer] = sketch.step(rank, (peer, peer, 0), "s", ("i", peer * share), ("s", rank * share), share)
            arrived[peer] = sketch.step(rank, (peer, peer, 0), "r", local_slot, ("s", peer * share), share)
        for peer in peers:
            last = sketch.step(rank, (-1, -1, 0), "re", ("s", peer * share), local_slot, share, after=[arrived[peer]])
        for peer in peers:
            sketch.step(rank, (peer, peer, 0), "s", local_slot, local_slot, share, after=[last])
            slot = ("i", peer * share)
            sketch.step(rank, (peer, peer, 0), "r", slot, slot, share)
    return sketch


def doubling_allreduce(n, share=1):
    """Recursive doubling, in place, for powers of two: whole buffers are exchanged and added."""
    sketch = Sketch("allreduce", n, share, inplace=True, scratch=share * n.bit_length())
    for rank in range(n):
        turn, distance, last = 0, 1, []
        while distance < n:
            block = (rank ^ distance, rank ^ distance, 0)
            slot = ("s", turn * share)
            sent = sketch.step(rank, block, "s", ("i", 0), slot, share, after=last)
            got = sketch.step(rank, block, "r", ("i", 0), slot, share)
            last = [sketch.step(rank, (-1, -1, 0), "re", slot, ("i", 0), share, after=[sent, got])]
            turn, distance = turn + 1, distance * 2
    return sketch


def halving_reduce_scatter(n, share=1):
    """Recursive halving, in place, for powers of two: half of what is left goes to the partner in each turn."""
    sketch = Sketch("reduce_scatter", n, n * share, inplace=True, scratch=n * share)
    for rank in range(n):
        low, size, last = 0, n, []
        while size > 1:
            size //= 2
            keep = low if rank < low + size else low + size
            give = low + size if keep == low else low
            partner = rank ^ size
            block = (partner, partner, 0)
            sketch.step(rank, block, "s", ("i", give * share), ("s", give * share), size * share, after=last)
            slot = ("s", keep * share)
            got = sketch.step(rank, block, "r", slot, slot, size * share, after=last)
            last = [sketch.step(rank, (-1, -1, 0), "re", slot, ("i", keep * share), size * share, after=[got])]
            low = keep
    return sketch


def tree_allreduce(n, share=1):
    """A binary tree, in place: sums go up to rank 0, and the result down."""
    sketch = Sketch("allreduce", n, share, inplace=True)
    slot = ("i", 0)
    for rank in range(n):
        children = [child for child in (2 * rank + 1, 2 * rank + 2) if child < n]
        parent = (rank - 1) // 2
        last = []
        for child in children:
            last = [sketch.step(rank, (-1, child, 0), "rrc", slot, slot, share, after=last)]
        if rank:
            up = sketch.step(rank, (parent, -1, 0), "s", slot, slot, share, after=last)
            last = [sketch.step(rank, (-1, parent, 0), "r", slot, slot, share, after=[up])]
        for child in children:
            sketch.step(rank, (child, -1, 0), "s", slot, slot, share, after=last)
    return sketch


def chain_broadcast(n, share=1):
    """From rank 0 along a chain, out of place."""
    sketch = Sketch("broadcast", n, share)
    for rank in range(n):
        following = rank + 1 if rank + 1 < n else -1
        if rank == 0:
            sketch.step(0, (following, -1, 0), "cpy", ("i", 0), ("o", 0), share)
            if n > 1:
                sketch.step(0, (following, -1, 0), "s", ("i", 0), ("o", 0), share)
        else:
            word = "rcs" if following >= 0 else "r"
            sketch.step(rank, (following, rank - 1, 0), word, ("o", 0), ("o", 0), share)
    return sketch


def direct_alltoall(n, share=1):
    sketch = Sketch("alltoall", n, n * share)
    for rank in range(n):
        sketch.step(rank, (-1, -1, 0), "cpy", ("i", rank * share), ("o", rank * share), share)
        for peer in range(n):
            if peer != rank:
                sketch.step(rank, (peer, -1, 0), "s", ("i", peer * share), ("o", rank * share), share)
                sketch.step(rank, (-1, peer, 0), "r", ("i", rank * share), ("o", peer * share), share)
    return sketch


def hierarchical_allreduce(groups, members, share=1):
    """Sums at the first of each group, a ring of these, and back; out of place."""
    n = groups * members
    sketch = Sketch("allreduce", n, share, scratch=n * share)
    for rank in range(n):
        group, first = rank // members, rank - rank % members
        local = (-1, -1, 0)
        if rank != first:
            sketch.step(rank, (first, -1, 0), "s", ("i", 0), ("s", rank * share), share)
            sketch.step(rank, (-1, first, 0), "r", ("o", 0), ("o", 0), share)
            continue
        last = sketch.step(rank, local, "cpy", ("i", 0), ("o", 0), share)
        for member in range(first + 1, first + members):
            slot = ("s", member * share)
            got = sketch.step(rank, (-1, member, 0), "r", ("i", 0), slot, share)
            last = sketch.step(rank, local, "re", slot, ("o", 0), share, after=[got])
        arrived = []
        for other_group in range(groups):
            if other_group != group:
                peer = other_group * members
                sketch.step(rank, (peer, -1, 1), "s", ("o", 0), ("s", first * share), share, after=[last])
        sent = [key for key in sketch.blocks if key[0] == rank and key[3] == 1 and key[1] >= 0]
        for other_group in range(groups):
            if other_group != group:
                slot = ("s", other_group * members * share)
                arrived.append((slot, sketch.step(rank, (-1, other_group * members, 1), "r", slot, slot, share)))
        for slot, got in arrived:
            last = sketch.step(rank, local, "re", slot, ("o", 0), share, after=[got, *((key, 0) for key in sent)])
        for member in range(first + 1, first + members):
            sketch.step(rank, (member, -1, 0), "s", ("o", 0), ("o", 0), share, after=[last])
    return sketch


def draw_valid(draw: random.Random):
    """A valid algorithm with random numbers of GPUs and chunks, its GPUs in any order if the collective allows it."""
    family = draw.choice(
        [ring_allreduce, ring_allgather, all_pairs_reduce_scatter, all_pairs_allreduce, doubling_allreduce,
         halving_reduce_scatter, tree_allreduce, chain_broadcast, direct_alltoall, hierarchical_allreduce]
    )  # fmt: skip
    share = draw.randint(1, 3)
    if family is hierarchical_allreduce:
        sketch = family(draw.randint(1, 3), draw.randint(1, 3), share)
    elif family in (doubling_allreduce, halving_reduce_scatter):
        sketch = family(draw.choice([2, 4, 8]), share)
    else:
        sketch = family(draw.randint(2, 7), share)
    free = sketch.coll == "allreduce"
    names = list(range(sketch.ranks))
    return sketch.text(draw.sample(names, sketch.ranks) if free else names)


_FIELDS = ("srcoff", "dstoff", "cnt", "depid", "deps", "hasdep", "type", "srcbuf", "dstbuf", "drop", "swap")


def mutate(text, draw: random.Random):
    """The XML with one step, or two, changed in one field, left out, or exchanged with the next."""
    root = ElementTree.fromstring(text)
    steps = [step for gpu in root for block in gpu for step in block]
    for _ in range(draw.choice([1, 1, 1, 2])):
        step, name = draw.choice(steps), draw.choice(_FIELDS)
        match name:
            case "srcoff" | "dstoff" | "cnt":
                least = 1 if name == "cnt" else 0
                step.set(name, str(max(least, int(step.get(name)) + draw.choice([-1, 1]))))
            case "depid":
                step.set("depid", "-1")
            case "deps":
                step.set("depid", str(draw.randrange(4)))
                step.set("deps", str(draw.randrange(4)))
            case "hasdep":
                step.set(name, str(1 - int(step.get(name))))
            case "type":
                step.set(name, draw.choice(["s", "r", "cpy", "re", "rcs", "rrs", "rrc", "rrcs", "nop"]))
            case "srcbuf" | "dstbuf":
                step.set(name, draw.choice("ios"))
            case _:
                block = next((b for gpu in root for b in gpu if step in list(b)), None)
                if block is None:
                    continue
                at = list(block).index(step)
                block.remove(step)
                if name == "swap":
                    block.insert(at + 1, step)
                for number, sibling in enumerate(block):
                    sibling.set("s", str(number))
    return ElementTree.tostring(root, encoding="unicode")


def run_with_numbers(text, seed):
    """Runs an XML algorithm in a random order of its thread blocks: `right`, `wrong` or `deadlock`."""
    draw = random.Random(seed)
    root = ElementTree.fromstring(text)
    n, chunks, coll = int(root.get("ngpus")), int(root.get("nchunksperloop")), root.get("coll")
    inplace, share = root.get("inplace") == "1", chunks // int(root.get("ngpus"))
    inputs = {(r, c): draw.randrange(1, 1 << 40) for r in range(n) for c in range(chunks)}
    memory = {}

    def where(rank, buffer, index):
        if inplace and coll == "allgather" and buffer == "i":
            return rank, "o", rank * share + index
        if inplace and coll == "reduce_scatter" and buffer == "o":
            return rank, "i", rank * share + index
        return (rank, "i" if inplace and buffer == "o" and coll not in ("allgather",) else buffer, index)

    for r in range(n):
        if coll == "broadcast" and r:
            continue
        for c in range(share if coll == "allgather" else chunks):
            memory[where(r, "i", c)] = inputs[r, c]
    blocks, flags, channels = [], {}, defaultdict(deque)
    for gpu in root:
        for tb in gpu:
            blocks.append({"rank": int(gpu.get("id")), "tb": tb, "steps": list(tb), "at": 0})
            flags[int(gpu.get("id")), int(tb.get("id"))] = -1
    running = [block for block in blocks if block["steps"]]
    while running:
        draw.shuffle(running)
        moved = next((block for block in running if _advance(block, memory, flags, channels, where)), None)
        if moved is None:
            return "deadlock"
        running = [block for block in running if block["at"] < len(block["steps"])]
    if any(channels.values()):
        return "wrong"
    for r in range(n):
        for c in range(share if coll == "reduce_scatter" else chunks):
            if memory.get(where(r, "o", c)) != _expect(coll, inputs, n, share, r, c):
                return "wrong"
    return "right"


def _expect(coll, inputs, n, share, rank, index):
    """What the collective says of one chunk of the output."""
    match coll:
        case "allreduce":
            return sum(inputs[q, index] for q in range(n))
        case "reduce_scatter":
            return sum(inputs[q, rank * share + index] for q in range(n))
        case "allgather":
            return inputs[index // share, index % share]
        case "broadcast":
            return inputs[0, index]
    return inputs[index // share, rank * share + index % share]


def _advance(block, memory, flags, channels, where):
    """Runs the next step of a thread block, if it can run."""
    rank, tb, step = block["rank"], block["tb"], block["steps"][block["at"]]
    depid, deps = int(step.get("depid")), int(step.get("deps"))
    if depid >= 0 and flags.get((rank, depid), -1) < deps:
        return False
    word, count = step.get("type"), int(step.get("cnt"))
    incoming = (int(tb.get("recv")), rank, tb.get("chan"))
    message = None
    if word in ("r", "rcs", "rrs", "rrc", "rrcs"):
        if not channels[incoming]:
            return False
        message = channels[incoming].popleft()
    if word != "nop":
        values = []
        for k in range(count):
            source = where(rank, step.get("srcbuf"), int(step.get("srcoff")) + k)
            target = where(rank, step.get("dstbuf"), int(step.get("dstoff")) + k)
            value = 0 if message is None else message[k] if k < len(message) else -1
            if word in ("s", "cpy", "re", "rrs", "rrc", "rrcs"):
                value += memory.get(source, -(1 << 60))
            if word == "re":
                value += memory.get(target, -(1 << 60))
            values.append(value)
            if word in ("r", "cpy", "re", "rcs", "rrc", "rrcs"):
                memory[target] = value
        if word in ("s", "rcs", "rrs", "rrcs"):
            channels[rank, int(tb.get("send")), tb.get("chan")].append(values)
    if step.get("hasdep") == "1":
        flags[rank, int(tb.get("id"))] = block["at"]
    block["at"] += 1
    return True
