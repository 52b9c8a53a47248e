"""RankLinks between threads of one process: messages arrive late, in any order that the contract of links allows."""

from __future__ import annotations

import random
import threading
from collections import defaultdict, deque
from collections.abc import Callable
from typing import Any

import numpy as np


class ThreadWorld:
    """`size` ranks; a seed decides how often a message has to be asked for before it has ended."""

    def __init__(self, size: int, seed: int = 0, *, patience: int = 4) -> None:
        self.size, self.patience = size, patience
        self.rng, self.lock = random.Random(seed), threading.Lock()
        self.sent: dict[tuple[int, int, int], deque[_Handle]] = defaultdict(deque)
        self.expected: dict[tuple[int, int, int], deque[_Handle]] = defaultdict(deque)
        self.control: list[list[tuple[int, bytes]]] = [[] for _ in range(size)]
        self.shared: dict[int, list[bytes | None]] = {}
        self.changed = threading.Condition(self.lock)
        self.aborted: int | None = None

    def run(self, program: Callable[[Any], Any]) -> list[Any]:
        """What a program returns on every rank; its first error is raised."""
        results: list[Any] = [None] * self.size
        errors: list[BaseException] = []

        def run_rank(rank: int) -> None:
            try:
                results[rank] = program(ThreadLinks(self, rank))
            except BaseException as error:
                errors.append(error)
                with self.changed:
                    self.aborted = 1
                    self.changed.notify_all()

        threads = [threading.Thread(target=run_rank, args=(rank,), daemon=True) for rank in range(self.size)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
            assert errors or not thread.is_alive(), "a rank waits forever"
        if errors:
            raise errors[0]
        return results


class _Handle:
    def __init__(self, data: np.ndarray, left: int) -> None:
        self.data, self.left, self.met = data, left, False


class ThreadLinks:
    """See `einc_runtime.execution.ranks.links.RankLinks`. A send ends only after its receive has begun."""

    def __init__(self, world: ThreadWorld, rank: int) -> None:
        self.world, self.rank, self.size, self.neighbours = world, rank, world.size, world.size
        self._calls = 0

    def send(self, peer: int, number: int, data: np.ndarray) -> _Handle:
        return self._meet((self.rank, peer, number), data, self.world.sent, self.world.expected)

    def receive(self, peer: int, number: int, data: np.ndarray) -> _Handle:
        return self._meet((peer, self.rank, number), data, self.world.expected, self.world.sent)

    def _meet(self, key: tuple[int, int, int], data: np.ndarray, posted: Any, waiting: Any) -> _Handle:
        assert data.dtype == np.uint8
        assert data.ndim == 1
        with self.world.lock:
            handle = _Handle(data, self.world.rng.randrange(self.world.patience))
            if not waiting[key]:
                posted[key].append(handle)
                return handle
            partner = waiting[key].popleft()
            source, target = (handle, partner) if posted is self.world.sent else (partner, handle)
            target.data[:] = source.data
            handle.met = partner.met = True
            return handle

    def test(self, handles: list[_Handle]) -> list[int]:
        ended = []
        with self.world.lock:
            if self.world.aborted is not None:
                raise RuntimeError("another rank failed")
            for position, handle in enumerate(handles):
                handle.left -= handle.met
                if handle.met and handle.left < 0:
                    ended.append(position)
        return ended

    def share(self, text: bytes) -> list[bytes]:
        self._calls += 1
        with self.world.changed:
            texts = self.world.shared.setdefault(self._calls, [None] * self.size)
            texts[self.rank] = text
            self.world.changed.notify_all()
            while None in texts:
                if self.world.aborted is not None:
                    raise RuntimeError("another rank failed")
                assert self.world.changed.wait(60), "a rank waits forever"
            return [shared for shared in texts if shared is not None]

    def meet(self) -> None:
        self.share(b"")

    def tell(self, peer: int, text: bytes) -> None:
        with self.world.lock:
            self.world.control[peer].append((self.rank, text))

    def hear(self) -> list[tuple[int, bytes]]:
        with self.world.lock:
            heard, self.world.control[self.rank] = self.world.control[self.rank], []
            return heard

    def abort(self, code: int) -> None:
        with self.world.changed:
            self.world.aborted = code
            self.world.changed.notify_all()

    def close(self) -> None:
        self.share(b"")
