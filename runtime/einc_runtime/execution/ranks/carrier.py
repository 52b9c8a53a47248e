"""Carries the messages of one rank: starts those whose tasks are ready, and says which have ended.

A region that is dense in memory is sent from where it lies and received where it belongs. Others are copied to a
buffer that is dense, and from there; both ends agree on the order of a region's elements, that in memory of its tensor.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from einc_runtime.dtypes import Array
from einc_runtime.execution.cpu.messages import Message
from einc_runtime.execution.naps import Naps
from einc_runtime.execution.ranks.links import RankLinks


class Arrivals:
    """What is on the way to this rank: for every other rank the bytes, and when a message from it has ended last.

    One thread writes, and another one reads.
    """

    def __init__(self) -> None:
        self._bytes: dict[int, int] = {}
        self._last: dict[int, float] = {}

    def expect(self, peer: int, count: int) -> None:
        self._bytes[peer] = self._bytes.get(peer, 0) + count

    def end(self, peer: int, count: int) -> None:
        self._bytes[peer] = self._bytes.get(peer, 0) - count
        self._last[peer] = time.monotonic()

    def forget(self) -> None:
        self._bytes = {}

    def count_bytes(self, peer: int) -> int:
        return self._bytes.get(peer, 0)

    def last_seconds(self, peer: int) -> float:
        """On the monotonic clock; 0 before the first message."""
        return self._last.get(peer, 0.0)


class MessageCarrier:
    """See `execution.cpu.messages.Carrier`. `messages` has the tasks that are ends of messages."""

    def __init__(self, links: RankLinks, arrivals: Arrivals, messages: Mapping[int, Message]) -> None:
        self._links, self._messages = links, messages
        self._tasks: list[int] = []
        self._handles: list[Any] = []
        self._finishing: list[Callable[[], None]] = []
        self._naps = Naps()
        self._arrivals = arrivals

    @property
    def tasks(self) -> frozenset[int]:
        return frozenset(self._messages)

    @property
    def is_waiting(self) -> bool:
        return bool(self._tasks)

    def start(self, task: int) -> None:
        message = self._messages[task]
        dense = message.region.flags.c_contiguous
        if message.incoming:
            self._arrivals.expect(message.peer, message.region.nbytes)
            data = message.region if dense else np.empty(message.region.shape, message.region.dtype)
            handle = self._links.receive(message.peer, message.number, as_bytes(data))
        else:
            data = message.region if dense else np.ascontiguousarray(message.region)
            handle = self._links.send(message.peer, message.number, as_bytes(data))
        self._tasks.append(task)
        self._handles.append(handle)

        def finish() -> None:
            """Keeps the buffer until the message has ended."""
            if message.incoming:
                self._arrivals.end(message.peer, message.region.nbytes)
            if message.incoming and not dense:
                np.copyto(message.region, data)

        self._finishing.append(finish)

    def end_some(self) -> list[int]:
        ended = self._links.test(self._handles)
        for position in ended:
            self._finishing[position]()
        tasks = [self._tasks[position] for position in ended]
        for position in reversed(ended):
            del self._tasks[position], self._handles[position], self._finishing[position]
        return tasks

    def nap(self, *, reset: bool) -> None:
        if reset:
            self._naps.reset()
        self._naps.take()

    def forget(self) -> None:
        self._tasks, self._handles, self._finishing = [], [], []
        self._arrivals.forget()


def as_bytes(data: Array) -> Array:
    """The bytes of a dense array, as they lie."""
    return data.reshape(-1).view(np.uint8)
