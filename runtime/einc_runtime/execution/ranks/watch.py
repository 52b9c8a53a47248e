"""Watches over the ranks of a run: when one fails, or says nothing any more, all of them end, with one message.

Rank 0 reports. Every other rank tells it what failed, and, several times a second, that it lives and which task it has
begun last; rank 0 tells all others that it lives. Where rank 0 is silent, rank 1 reports.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from einc_runtime.errors import RuntimeFault
from einc_runtime.execution.ranks.carrier import Arrivals
from einc_runtime.execution.ranks.links import RankLinks

BEAT, SILENCE = 0.5, 4.0
"""Seconds between two signs of life, and without any until a rank counts as lost."""

SLOW_LINK, MAX_DELAY = 1e6, 30.0
"""Signs of life wait behind the data that a rank sends: a rank may be silent for longer by the seconds that its data
on the way take at so many bytes a second, but not by more than so many seconds."""

WATCH_SECONDS = 0.05
"""Seconds between two looks at what others say."""

GRACE = 0.3
"""Seconds in which rank 0 waits for what others say of a failure, before it reports one."""

LAST_RESORT = 5.0
"""Seconds after which a rank that has failed ends by itself."""


class RankFault(RuntimeFault):
    """What another rank reported, or that it is lost."""

    def __init__(self, message: str, code: str, exit_code: int, **more: Any) -> None:
        super().__init__(message, **more)
        self.code, self.exit_code = code, exit_code  # type: ignore[misc]


@dataclass(frozen=True, slots=True)
class RankFailure:
    """A failure as one rank describes it to another."""

    message: str
    code: str
    exit_code: int
    where: str | None = None
    hint: str | None = None

    def encode(self) -> bytes:
        fields = {name: getattr(self, name) for name in self.__slots__}
        return json.dumps(fields).encode()

    def fault(self, rank: int) -> RankFault:
        """The failure of this rank, to be reported."""
        where = f"rank {rank}" if self.where is None else f"rank {rank}, {self.where}"
        return RankFault(self.message, self.code, self.exit_code, where=where, hint=self.hint)


class Watch:
    """One rank's watch. `end(fault)` is called once, in a thread of its own, where a fault is to be reported here and
    all ranks are to end; `describe` says what a task is, given its position."""

    def __init__(self, links: RankLinks, end: Callable[[RankFault], None], describe: Callable[[int], str]) -> None:
        self._links, self._end, self._describe = links, end, describe
        self._last = -1
        self._stop = threading.Event()
        self._heard = {rank: time.monotonic() for rank in self._watched()}
        self._tasks = dict.fromkeys(self._heard, -1)
        self._failures: dict[int, RankFailure] = {}
        self._arrivals: list[Arrivals] = []
        self._thread = threading.Thread(target=self._run, name="watch over ranks", daemon=True)

    def _watched(self) -> range:
        return range(1, self._links.size) if self._links.rank == 0 else range(1)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Watches no more, once what is going on has ended."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def look_at(self, arrivals: Arrivals) -> None:
        """Data that arrive are signs of life, too."""
        self._arrivals.append(arrivals)

    def note_task(self, position: int) -> None:
        """Remembers the task that begins."""
        self._last = position

    def report(self, failure: RankFailure) -> None:
        """Tells rank 0 what failed here."""
        self._links.tell(0, b"F" + failure.encode())

    def _run(self) -> None:
        beaten = looked = time.monotonic()
        failed: float | None = None
        while not self._stop.wait(WATCH_SECONDS):
            now = time.monotonic()
            if now - looked > 4 * BEAT:  # this process was stopped itself, or starved
                self._heard = dict.fromkeys(self._heard, now)
            looked = now
            if now - beaten > BEAT:
                beaten = now
                for peer in self._watched():
                    self._links.tell(peer, b"B%d" % self._last)
            self._listen(now)
            if self._failures:
                failed = failed or now
                if now - failed > GRACE:
                    self._end(self._failures[min(self._failures)].fault(min(self._failures)))
                    return
            lost = next((rank for rank in self._heard if self._is_lost(rank, now)), None)
            if lost is not None and self._links.rank <= 1 and not self._failures:
                self._end(self._make_lost(lost))
                return

    def _is_lost(self, rank: int, now: float) -> bool:
        heard = max([self._heard[rank], *(arrivals.last_seconds(rank) for arrivals in self._arrivals)])
        count = sum(arrivals.count_bytes(rank) for arrivals in self._arrivals)
        return now - heard > SILENCE + min(MAX_DELAY, count / SLOW_LINK)

    def _listen(self, now: float) -> None:
        for rank, text in self._links.hear():
            if rank in self._heard:
                self._heard[rank] = now
                if text[:1] == b"B":
                    self._tasks[rank] = int(text[1:])
            if text[:1] == b"F" and self._links.rank == 0:
                self._failures[rank] = RankFailure(**json.loads(text[1:]))

    def _make_lost(self, rank: int) -> RankFault:
        task = self._tasks[rank]
        doing = "it has begun no task" if task < 0 else f"its last task is {self._describe(task)}"
        return RankFault(f"has not answered for {SILENCE:g} seconds; {doing}", "missing", 69, where=f"rank {rank}")
