"""What an executor for the CPU needs of messages to and from other processes, where they run parts of its plan."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from einc_runtime.dtypes import Array


@dataclass(frozen=True, slots=True)
class Message:
    """One end of a message: its number, the rank at the other end, and the region, its axes from the slowest to the
    fastest in memory. `incoming` says that it is received."""

    number: int
    peer: int
    region: Array
    incoming: bool


class Carrier(Protocol):
    """What starts messages and sees when they end; one thread uses it."""

    @property
    def tasks(self) -> frozenset[int]:
        """The tasks that are messages."""

    @property
    def is_waiting(self) -> bool:
        """Whether a message has been started and has not ended."""

    def start(self, task: int) -> None: ...
    def end_some(self) -> list[int]:
        """The tasks whose messages have ended since the last call."""

    def nap(self, *, reset: bool) -> None:
        """Waits for a moment before the next look; after `reset`, a short one."""

    def forget(self) -> None:
        """Forgets what has been started, after a run that failed."""
