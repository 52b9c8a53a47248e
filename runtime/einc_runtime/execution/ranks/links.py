"""What ranks need of each other: numbered messages of bytes that are sent and received without waiting.

`MpiLinks` (`mpi.py`) has them from MPI. Tests have links between threads of one process, which deliver late and in any
order that the contract allows (`tests/support/thread_links.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from einc_runtime.dtypes import Array
from einc_runtime.execution.naps import Naps


class RankLinks(Protocol):
    """The connections of one rank to all others. Any thread may use them.

    Messages of one number from one rank to another arrive in the order in which they were sent. Messages of different
    numbers may overtake each other. A message of a run is never delivered to control messages, or the other way round.
    """

    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int:
        """The number of ranks."""

    @property
    def neighbours(self) -> int:
        """How many ranks share this machine, this one included."""

    def send(self, peer: int, number: int, data: Array) -> Any:
        """Starts to send an array of bytes, which must stay as it is until the message has ended. Returns a handle."""

    def receive(self, peer: int, number: int, data: Array) -> Any:
        """Starts to receive into an array of bytes, which has the length that is sent. Returns a handle."""

    def test(self, handles: Sequence[Any]) -> list[int]:
        """The positions of the handles whose messages have ended. A handle is not to be used after that."""

    def share(self, text: bytes) -> list[bytes]:
        """What all ranks give to this call, by rank. Waits for all of them."""

    def meet(self) -> None:
        """Waits for all ranks. All of them return at about the same time, which `share` does not promise."""

    def tell(self, peer: int, text: bytes) -> None:
        """Sends a control message, and does not wait for it to arrive."""

    def hear(self) -> list[tuple[int, bytes]]:
        """The control messages that have arrived since the last call, each with the rank it is from."""

    def abort(self, code: int) -> None:
        """Ends all ranks at once, with this exit code. May return before this one ends."""

    def close(self) -> None:
        """Waits for the other ranks to close, and disconnects."""


def wait_for(links: RankLinks, handles: Sequence[Any]) -> None:
    """Waits until messages have ended."""
    left, naps = list(handles), Naps()
    while left:
        ended = set(links.test(left))
        left = [handle for position, handle in enumerate(left) if position not in ended]
        if ended:
            naps.reset()
        elif left:
            naps.take()
