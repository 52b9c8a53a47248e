"""What is enqueued on streams of the fake of CUDA: it runs in a random order that streams and events allow."""

from __future__ import annotations

import random
from dataclasses import dataclass, field


class Misuse(AssertionError):
    """A call that is wrong with real CUDA, or dangerous."""


@dataclass
class Stream:
    device: int
    after: frozenset[int] = frozenset()  # what the next node follows
    captured: frozenset[int] | None = None  # likewise in a capture that it is part of


@dataclass
class Event:
    device: int
    timing: bool
    after: frozenset[int] | None = None
    in_capture: bool = False
    node: int | None = None  # that takes the time


@dataclass
class Node:
    label: str
    stream: int
    after: frozenset[int]
    run: object
    done: bool = False


@dataclass
class Graph:
    nodes: dict[int, Node] = field(default_factory=dict)
    joined: set[int] = field(default_factory=set)  # streams


class PendingWork:
    """Everything that was enqueued and did not run yet, and the graph of a capture."""

    def __init__(self, seed):
        self.rng = random.Random(seed)
        self.nodes: dict[int, Node] = {}
        self.clock = 0.0
        self.times: dict[int, float] = {}
        self.capture: Graph | None = None
        self._next = 1

    def enqueue(self, stream, own, label, run):
        """A node after all that is in the stream `own`, whose handle is `stream`."""
        number = self._next = self._next + 1
        if own.captured is not None:
            self.capture.nodes[number] = Node(label, stream, own.captured, run)
            own.captured = frozenset([number])
        else:
            self.nodes[number] = Node(label, stream, own.after, run)
            own.after = frozenset([number])
        return number

    def flush(self):
        """Runs all that is pending, in some order that is allowed."""
        waiting = {n: {p for p in node.after if p in self.nodes} for n, node in self.nodes.items()}
        followers: dict[int, list[int]] = {}
        for n, before in waiting.items():
            for p in before:
                followers.setdefault(p, []).append(n)
        ready = [n for n, before in waiting.items() if not before]
        left = len(waiting)
        while ready:
            at = self.rng.randrange(len(ready))
            ready[at], ready[-1] = ready[-1], ready[at]
            n = ready.pop()
            self.clock += 0.25
            if self.nodes[n].run is not None:
                self.nodes[n].run()
            self.times[n] = self.clock
            left -= 1
            for later in followers.get(n, ()):
                waiting[later].discard(n)
                if not waiting[later]:
                    ready.append(later)
        if left:
            raise Misuse("nodes wait for one another")
        self.nodes.clear()
