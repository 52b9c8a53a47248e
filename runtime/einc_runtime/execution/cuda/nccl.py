"""The part of NCCL that the executor uses: small enough for a fake that checks every call.

`cupy_nccl.CupyNccl` is the real one. Devices are those of this process; *GPUs* are numbered through all processes that
have joined. Errors are DriverErrors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class NcclMessage:
    """One end of a message: the GPU at the other end, and dense memory of the own device."""

    incoming: bool
    peer: int
    pointer: int
    size: int


class Communicators(Protocol):
    """One communicator of each device of this process. No two calls are made at the same time, except `abort`."""

    def exchange(self, device: int, messages: Sequence[NcclMessage], stream: int) -> None:
        """Enqueues messages as one group. The first one between two GPUs may wait for the other one's call.

        Messages of two GPUs are paired in the order in which each of them enqueues them.
        """

    def check(self) -> None:
        """Raises DriverError if an error has been found since, such as a connection that is lost."""

    def abort(self) -> None:
        """Ends everything that is on the way, without waiting for others. May return only after all graphs with
        messages are destroyed."""

    def close(self) -> None:
        """Releases the communicators, after all graphs with messages."""


class Nccl(Protocol):
    def version(self) -> int:
        """Such as 22809 for 2.28.9."""

    def make_id(self) -> bytes:
        """What all processes need to join; one of them makes it."""

    def join(self, identity: bytes, count: int, gpus: Mapping[int, int]) -> Communicators:
        """Waits until all `count` GPUs have joined; `gpus` has the number of each device of this process."""
