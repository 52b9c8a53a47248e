"""Runs the captured graphs of all ranks against each other, in one thread: any order that CUDA and NCCL allow.

Only what waits for what is followed, so that many interleavings take little time; the fake drivers move the data.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import partial

from tests.support.nccl_fake import ExchangeRun


@dataclass(frozen=True)
class LaneNode:
    """A node of a rank's graph: its GPU, what it follows, and the messages of a group as (from, to, number of that
    pair), with whether each comes in."""

    gpu: tuple[int, int]
    after: tuple[int, ...]
    ends: tuple[tuple[tuple[int, int, int], bool], ...] = ()


def read_graph(rank, driver):
    """The nodes of the graph that a rank has captured, in their order."""
    graph = max(driver.held["graph"].items())[1]
    number = {n: position for position, n in enumerate(sorted(graph.nodes))}
    counts: dict[tuple[int, int], int] = {}
    nodes = []
    for _, node in sorted(graph.nodes.items()):
        ends = []
        if isinstance(node.run, ExchangeRun):
            for message in node.run.messages:
                pair = (message.peer, node.run.gpu) if message.incoming else (node.run.gpu, message.peer)
                ends.append(((*pair, counts.setdefault(pair, 0)), message.incoming))
                counts[pair] += 1
        device = driver.held["stream"][node.stream].device
        nodes.append(LaneNode((rank, device), tuple(sorted(number[p] for p in node.after)), tuple(ends)))
    return nodes


class Interleavings:
    """The graphs of all ranks, to be run in many orders."""

    def __init__(self, ranks):
        self.nodes = [node for nodes in ranks for node in nodes]
        starts = [sum(map(len, ranks[:rank])) for rank in range(len(ranks))]
        self.after = [[starts[rank] + n for n in node.after] for rank, nodes in enumerate(ranks) for node in nodes]
        self.followers: list[list[int]] = [[] for _ in self.nodes]
        for number, before in enumerate(self.after):
            for earlier in before:
                self.followers[earlier].append(number)
        places: dict[tuple[int, int, int], list[int]] = {}
        for number, node in enumerate(self.nodes):
            for message, _ in node.ends:
                places.setdefault(message, []).append(number)
        assert all(len(pair) == 2 for pair in places.values()), "a message has one end only"

    def find_hang(self, seed):
        """The nodes that never end with this seed; none where all do.

        A group ends when each message that it receives has begun at both ends, and, unless a message is sent before it
        is received, each that it sends. Those of two GPUs go on in their order. A GPU may do one thing after another.
        """
        draw = partial(random.Random(seed).random)
        serial = {gpu: draw() < 0.5 for gpu in {node.gpu for node in self.nodes}}
        left = list(map(len, self.after))
        ready = [number for number, count in enumerate(left) if not count]
        running: list[int] = []
        busy: dict[tuple[int, int], int] = {}
        begun: dict[tuple[tuple[int, int, int], bool], bool] = {}  # and whether it is sent before it is received
        done = 0

        def is_over(message, incoming):
            source, target, count = message
            if (message, not incoming) in begun:
                return not count or ((source, target, count - 1), not incoming) in begun
            return not incoming and begun[message, False]

        while True:
            able = [n for n in ready if not (busy.get(self.nodes[n].gpu) and serial[self.nodes[n].gpu])]
            ended = [n for n in running if all(is_over(*end) for end in self.nodes[n].ends)]
            if not able and not ended:
                return [n for n in range(len(self.nodes)) if left[n] >= 0 and (left[n] or n in ready or n in running)]
            at = int(draw() * (len(able) + len(ended)))
            if at < len(able):
                number = able[at]
                ready.remove(number)
                node = self.nodes[number]
                if node.ends:
                    running.append(number)
                    busy[node.gpu] = busy.get(node.gpu, 0) + 1
                    for end in node.ends:
                        begun[end] = not end[1] and draw() < 0.3
                    continue
            else:
                number = ended[at - len(able)]
                running.remove(number)
                busy[self.nodes[number].gpu] -= 1
            left[number] = -1
            done += 1
            for later in self.followers[number]:
                left[later] -= 1
                if not left[later]:
                    ready.append(later)
