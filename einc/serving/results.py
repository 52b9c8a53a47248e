"""The results of jobs of an engine, which has a thread of its own, in an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from einc_runtime.errors import ReportedError
from einc_runtime.generation.engine import BusyFault, Engine

Asked = TypeVar("Asked")
Given = TypeVar("Given")

PAUSE = 0.05
"""Seconds after which a request that has begun asks again for room."""


class JobResults(Generic[Asked, Given]):
    """Submits requests, and gives their results as pairs of an index and a result, as they come.

    It raises what the engine's `submit` raises, and the first error among the results. `close` cancels what has not
    ended; it must be called.
    """

    def __init__(self, engine: Engine[Asked, Given], requests: Sequence[Asked]) -> None:
        self._loop = asyncio.get_running_loop()
        self._queue: asyncio.Queue[tuple[int, Given | ReportedError, bool]] = asyncio.Queue()
        self._engine, self._open = engine, len(requests)
        self._jobs = engine.submit(requests, [self._listen(index) for index in range(len(requests))])

    def _listen(self, index: int) -> Callable[[Given | ReportedError, bool], None]:
        def tell(result: Given | ReportedError, is_last: bool) -> None:
            self._loop.call_soon_threadsafe(self._queue.put_nowait, (index, result, is_last))

        return tell

    def __aiter__(self) -> JobResults[Asked, Given]:
        return self

    async def __anext__(self) -> tuple[int, Given]:
        if not self._open:
            raise StopAsyncIteration
        index, result, is_last = await self._queue.get()
        self._open -= is_last
        if isinstance(result, ReportedError):
            raise result
        return index, result

    def close(self) -> None:
        """Frees the slots of what has not ended."""
        for job in self._jobs:
            self._engine.cancel(job)


async def run_in_turns(engine: Engine[Asked, Given], requests: Sequence[Asked]) -> list[Given]:
    """The last result of each request, as many at a time as run at once: a long list leaves room for others.

    Raises what `JobResults` raises; only of the first ones BusyFault. The others wait until there is room.
    """
    gathered: list[Given] = []
    while len(gathered) < len(requests):
        part = requests[len(gathered) : len(gathered) + engine.size]
        try:
            results = JobResults(engine, part)
        except BusyFault:
            if not gathered:
                raise
            await asyncio.sleep(PAUSE)
            continue
        try:
            last = dict([pair async for pair in results])
        finally:
            results.close()
        gathered += [last[index] for index in range(len(part))]
    return gathered
