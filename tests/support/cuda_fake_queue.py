"""What is enqueued on streams of the fake of CUDA: it runs in a random order that streams and events allow."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, field

PATIENCE = 20.0
"""Seconds until what waits counts as waiting forever."""


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


class Running:
    """What a node does while it waits for other processes."""

    def has_ended(self) -> bool:
        raise NotImplementedError


@dataclass
class Graph:
    nodes: dict[int, Node] = field(default_factory=dict)
    joined: set[int] = field(default_factory=set)  # streams


class PendingWork:
    """Everything that was enqueued and did not run yet, and the graph of a capture."""

    def __init__(self, seed):
        self.rng = random.Random(seed)
        self.nodes: dict[int, Node] = {}
        self.running: dict[int, Running] = {}
        self.is_serial = self.rng.random() < 0.5  # whether what waits keeps others off its device, as CUDA may do
        self.clock = 0.0
        self.times: dict[int, float] = {}
        self.capture: Graph | None = None
        self._next = 1

    def enqueue(self, stream, state, label, run):
        """A node after all that is in the stream `state`, whose handle is `stream`."""
        number = self._next = self._next + 1
        if state.captured is not None:
            self.capture.nodes[number] = Node(label, stream, state.captured, run)
            state.captured = frozenset([number])
        else:
            self.nodes[number] = Node(label, stream, state.after, run)
            state.after = frozenset([number])
        return number

    def device_of(self, number):
        """The device of a node, for what keeps others off it."""
        raise NotImplementedError

    def flush(self):
        """Runs all that is pending, in some order that is allowed."""
        deadline = time.monotonic() + PATIENCE
        while not self.advance():
            if not self.running:
                raise Misuse("nodes wait for one another")
            if time.monotonic() > deadline:
                raise Misuse("a GPU waits forever")
            time.sleep(1e-4)

    def advance(self):
        """Runs what can run now. Returns whether nothing is left: other processes may have to do something first."""
        waiting = {n: {p for p in node.after if p in self.nodes} for n, node in self.nodes.items()}
        followers: dict[int, list[int]] = {}
        for n, before in waiting.items():
            for p in before:
                followers.setdefault(p, []).append(n)
        ready = [n for n, before in waiting.items() if not before and n not in self.running]
        while True:
            able, ended = ready, []
            if self.running:
                busy = {self.device_of(n) for n in self.running} if self.is_serial else ()
                able = [n for n in ready if self.device_of(n) not in busy]
                ended = [n for n, work in self.running.items() if work.has_ended()]
            if not able and not ended:
                return not self.nodes
            at = self.rng.randrange(len(able) + len(ended))
            if at < len(able):
                n = able[at]
                position = at if able is ready else ready.index(n)
                ready[position] = ready[-1]
                ready.pop()
                result = None if self.nodes[n].run is None else self.nodes[n].run()
                if isinstance(result, Running):
                    self.running[n] = result
                    continue
            else:
                n = ended[at - len(able)]
                del self.running[n]
            self.clock += 0.25
            self.times[n] = self.clock
            del self.nodes[n]
            for later in followers.get(n, ()):
                waiting[later].discard(n)
                if not waiting[later]:
                    ready.append(later)
