"""A thread that advances a batch for ever: other threads submit work to it, and cancel it, at any time.

What it works on is a `Batch`: sequences of a decoder, or texts of an encoder. Nothing here knows which.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Generic, Protocol, TypeVar

from einc_runtime.errors import KernelFault, ReportedError, RuntimeFault, UsageFault

Request = TypeVar("Request", contravariant=True)
Result = TypeVar("Result", covariant=True)
Asked = TypeVar("Asked")
Given = TypeVar("Given")


@dataclass(slots=True)
class Progress(Generic[Result]):
    """A result of a slot, or why there is none. After the last one, the slot is free."""

    slot: int
    result: Result | ReportedError
    is_last: bool


class Batch(Protocol[Request, Result]):
    """Work in slots. Only the thread of an engine calls it, but `check`, which any thread may call."""

    @property
    def size(self) -> int:
        """How many slots there are."""

    def check(self, request: Request) -> None:
        """Raises ReportedError for what cannot be done."""

    def start(self, slot: int, request: Request) -> bool:
        """Begins a request, which was checked, in a free slot. False where it has to wait until another one ends."""

    def end(self, slot: int) -> None:
        """Frees a slot before its last result."""

    def advance(self) -> Sequence[Progress[Result]]:
        """Goes on in all slots."""


class BusyFault(RuntimeFault):
    """As many requests wait as may wait."""

    code, exit_code = "busy", 69


class ClosedFault(RuntimeFault):
    """The engine takes no more requests."""

    code, exit_code = "closed", 69


@dataclass(slots=True)
class EngineCounts:
    """What runs and waits now, and what has happened so far: all that were submitted run, wait, or have ended."""

    running: int = 0
    waiting: int = 0
    submitted: int = 0
    finished: int = 0
    failed: int = 0
    cancelled: int = 0
    advances: int = 0


class Job(Generic[Asked, Given]):
    """One request in an engine. Its listener is called in the engine's thread, and has to be quick."""

    def __init__(self, request: Asked, listener: Callable[[Given | ReportedError, bool], None]) -> None:
        self.request, self.listener = request, listener
        self.is_cancelled = False


class Engine(Generic[Asked, Given]):
    """Advances a batch while there is work; `queue` requests may wait for a slot.

    Every job ends with one call of its listener that says so, unless it is cancelled before. An error that no request
    can be blamed for ends all that run: they get it, and others start with fresh slots.
    """

    def __init__(self, batch: Batch[Asked, Given], queue: int) -> None:
        self._batch, self._queue = batch, queue
        self._changed = threading.Condition()  # guards everything below
        self._waiting: deque[Job[Asked, Given]] = deque()
        self._running: dict[int, Job[Asked, Given]] = {}
        self._counts = EngineCounts()
        self._takes = True
        self._ends = False
        self._thread = threading.Thread(target=self._work, name="einc-engine", daemon=True)
        self._thread.start()

    @property
    def size(self) -> int:
        """How many requests run at once."""
        return self._batch.size

    @property
    def takes(self) -> bool:
        """Whether it takes more requests."""
        with self._changed:
            return self._takes

    @property
    def counts(self) -> EngineCounts:
        """What is and was done."""
        with self._changed:
            return replace(self._counts, running=len(self._running), waiting=len(self._waiting))

    def submit(
        self, requests: Sequence[Asked], listeners: Sequence[Callable[[Given | ReportedError, bool], None]]
    ) -> list[Job[Asked, Given]]:
        """Takes all requests, or none of them. A listener gets each result, and whether it is the last one.

        Raises what the batch's check raises, UsageFault for more than may ever run and wait, BusyFault where too many
        do, and ClosedFault after `refuse`.
        """
        if len(requests) > self._batch.size + self._queue:
            raise UsageFault(
                f"{len(requests):,} are too many at once: at most {self._batch.size + self._queue:,} run and wait"
            )
        for request in requests:
            self._batch.check(request)
        jobs: list[Job[Asked, Given]] = [
            Job(request, listener) for request, listener in zip(requests, listeners, strict=True)
        ]
        with self._changed:
            self.require_room(len(jobs))
            self._waiting.extend(jobs)
            self._count(submitted=len(jobs))
            self._changed.notify_all()
        return jobs

    def require_room(self, count: int = 1) -> None:
        """Raises BusyFault where no `count` more requests may wait now, and ClosedFault after `refuse`."""
        with self._changed:
            if not self._takes:
                raise ClosedFault("no more requests are taken: the server ends")
            running, waiting = len(self._running), len(self._waiting)
            if running + waiting + count > self._batch.size + self._queue:
                raise BusyFault(
                    f"{running} requests run and {waiting} wait: no {count} more may wait", hint="try again later"
                )

    def cancel(self, job: Job[Asked, Given]) -> None:
        """Ends a job, whose listener is not called any more; of one that has ended, nothing happens."""
        with self._changed:
            if job in self._waiting:
                self._waiting.remove(job)
                self._count(cancelled=1)
            job.is_cancelled = True
            self._changed.notify_all()

    def refuse(self) -> None:
        """From now on, no more requests are taken; what runs and waits goes on."""
        with self._changed:
            self._takes = False

    def wait(self, seconds: float | None = None) -> bool:
        """Waits until nothing runs or waits; false where this takes longer."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._running and not self._waiting, seconds)

    def close(self) -> None:
        """Ends the thread, after the advance that it is in. Jobs that have not ended get a ClosedFault."""
        with self._changed:
            self._takes, self._ends = False, True
            self._changed.notify_all()
        self._thread.join()

    def _work(self) -> None:
        while True:
            try:
                if not self._prepare():
                    break
                progress = list(self._batch.advance())
            except Exception as error:  # whatever it is: requests that come later must not wait for ever
                progress = self._fail(error if isinstance(error, ReportedError) else _describe(error))
            self._tell(self._settle(progress))
        with self._changed:
            left = [*self._running.values(), *self._waiting]
            self._running.clear()
            self._waiting.clear()
            self._count(failed=len(left))
            self._changed.notify_all()
        self._tell([(job, Progress(0, ClosedFault("the server has ended before this request"), True)) for job in left])

    def _prepare(self) -> bool:
        """Waits for work, frees the slots of cancelled jobs, and starts others. False where the thread ends."""
        with self._changed:
            while True:
                cancelled = [slot for slot, job in self._running.items() if job.is_cancelled]
                for slot in cancelled:
                    del self._running[slot]
                    self._batch.end(slot)
                self._count(cancelled=len(cancelled))
                for slot in range(self._batch.size):
                    if slot in self._running:
                        continue
                    if not self._waiting or not self._batch.start(slot, self._waiting[0].request):
                        break
                    self._running[slot] = self._waiting.popleft()
                self._changed.notify_all()
                if self._running or self._ends:
                    return not self._ends
                self._changed.wait()

    def _fail(self, error: ReportedError) -> list[Progress[Given]]:
        for slot in self._running:
            self._batch.end(slot)
        return [Progress(slot, error, True) for slot in self._running]

    def _settle(self, progress: Sequence[Progress[Given]]) -> list[tuple[Job[Asked, Given], Progress[Given]]]:
        """Whose results these are. The slots of those that have ended are free afterwards."""
        with self._changed:
            told = [(self._running[item.slot], item) for item in progress]
            last = [item for item in progress if item.is_last]
            for item in last:
                del self._running[item.slot]
            failed = sum(isinstance(item.result, ReportedError) for item in last)
            self._count(advances=1, finished=len(last) - failed, failed=failed)
            self._changed.notify_all()
        return told

    def _tell(self, told: Sequence[tuple[Job[Asked, Given], Progress[Given]]]) -> None:
        for job, progress in told:
            if not job.is_cancelled:
                try:
                    job.listener(progress.result, progress.is_last)
                except Exception:  # nobody is there to hear it
                    self.cancel(job)

    def _count(self, **more: int) -> None:
        for name, n in more.items():
            setattr(self._counts, name, getattr(self._counts, name) + n)


def _describe(error: Exception) -> KernelFault:
    if isinstance(error, MemoryError):
        return KernelFault("this needs more memory than there is")
    return KernelFault(f"a bug in einc: {type(error).__name__}: {str(error)[:300]}")
