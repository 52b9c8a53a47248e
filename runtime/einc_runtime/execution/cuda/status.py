"""Words in device memory by which kernels report values that no input may have (an id outside of its vocabulary).

The words of a device come to the host as one copy at the end of every execution, as a step of the graph.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from einc_runtime.execution.cuda.driver import Driver
from einc_runtime.kernels.gpu import Launch

WORD = 4


@dataclass(frozen=True, slots=True)
class Complaint:
    """What a step's kernel may have to say, for its task."""

    step: int
    task: int
    device: int
    text: str


class StatusWords:
    """`zeros(device, size)` takes device memory, `pinned(size)` host memory."""

    def __init__(
        self,
        driver: Driver,
        complaints: Sequence[Complaint],
        zeros: Callable[[int, int], int],
        pinned: Callable[[int], int],
    ) -> None:
        self._driver = driver
        self._complaints = sorted(complaints, key=lambda complaint: (complaint.device, complaint.step))
        self._spans: dict[int, tuple[int, int, int]] = {}  # device -> address there, address here, size
        self._address: dict[int, int] = {}
        self._host = pinned(WORD * len(complaints)) if complaints else 0
        for device in sorted({complaint.device for complaint in complaints}):
            own = [n for n, complaint in enumerate(self._complaints) if complaint.device == device]
            pointer = zeros(device, WORD * len(own))
            self._spans[device] = pointer, self._host + WORD * own[0], WORD * len(own)
            self._address.update((self._complaints[n].step, pointer + WORD * i) for i, n in enumerate(own))

    def address(self, step: int) -> int:
        """Of the step's word; 0 where it has none."""
        return self._address.get(step, 0)

    def fetching(self, device: int) -> Launch:
        """The copy of a device's words to the host."""
        source, target, size = self._spans[device]
        copy_async = self._driver.copy_async
        return lambda stream: copy_async(target, size, source, size, size, 1, stream)

    def first(self) -> Complaint | None:
        """The first complaint of the last execution; all words are cleared for the next one."""
        if not self._complaints:
            return None
        words = (ctypes.c_int32 * len(self._complaints)).from_address(self._host)
        bad = [complaint for complaint, word in zip(self._complaints, words, strict=True) if word]
        if not bad:
            return None
        self.clear()
        return min(bad, key=lambda complaint: complaint.step)

    def clear(self) -> None:
        """Nobody has complained."""
        for device, (pointer, _, size) in self._spans.items():
            self._driver.fill_bytes(device, pointer, 0, size)
