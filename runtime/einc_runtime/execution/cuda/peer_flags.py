"""The flags of sums that GPUs make out of each other's memory: which sums these are, and where their flags lie.

Every part of a sum has a flag of each other part in the memory of its device, and a second one where the sum gathers,
with a count of its own programs that have written. All of them are 0 when an execution begins: a copy at the end of
every execution sets them so, when all that wait for them have ended, and no execution begins before the one before it
has ended everywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from einc_runtime import environment
from einc_runtime.errors import KernelFault
from einc_runtime.execution.cuda.arenas import wants_multicast
from einc_runtime.execution.cuda.driver import Driver
from einc_runtime.execution.cuda.errors import WORD_BYTES
from einc_runtime.kernels.gpu import Launch, PeerFlags
from einc_runtime.plan.launches import find_launches
from einc_runtime.plan.peer_sums import PeerSum, begins_together, find_gathers, find_peer_sums
from einc_runtime.plan.regions import find_users
from einc_runtime.plan.schema import AnyTask, Bundle, FenceTask


class PeersFault(KernelFault):
    """Kernels that wait for each other were not run at one time, or there is none for what a sum gathers."""


def choose_peer_sums(
    driver: Driver, bundle: Bundle, tasks: Sequence[AnyTask], devices: Sequence[int]
) -> tuple[PeerSum, ...]:
    """The sums of a plan for which nothing is sent. `tasks` are those of the bundle as they are run.

    Every site needs a GPU of its own, on which nothing keeps others from beginning, and access to the others' memory by
    which flags can be set. There are none where the switches add, nor where each launch waits until the one before it
    has ended.
    """
    if len({driver.address(device) for device in devices}) < len(devices) or wants_multicast():
        return ()
    if environment.read(environment.LAUNCH_BLOCKING) not in (None, "", "0"):
        return ()
    return tuple(
        peer_sum
        for peer_sum in list_peer_sums(bundle, tasks)
        if all(
            driver.can_signal(devices[tasks[a].site], devices[tasks[b].site])
            for a in peer_sum.tasks
            for b in peer_sum.tasks
            if a != b
        )
    )


def list_peer_sums(bundle: Bundle, tasks: Sequence[AnyTask]) -> tuple[PeerSum, ...]:
    """The sums whose copies are read where they lie, if every site has a GPU of its own."""
    planned = find_peer_sums(bundle, bundle.tasks, find_launches(bundle, bundle.tasks))
    members = {launch.tasks[0]: launch.tasks for launch in find_launches(bundle, tasks)} if planned else {}
    users = find_users(tasks) if planned else ({}, {})
    return tuple(
        replace(peer_sum, gathers=find_gathers(bundle, tasks, users, peer_sum, members))
        for peer_sum in planned
        if all(isinstance(tasks[move], FenceTask) for move in peer_sum.moves)
        and begins_together(tasks, peer_sum, members)
    )


class FlagMemory:
    """The flags of some sums; `allocate_zeros(device, size)` takes memory. They are set until an execution takes them
    back, so that a kernel that is tried alone does not wait."""

    def __init__(
        self,
        driver: Driver,
        tasks: Sequence[AnyTask],
        devices: Sequence[int],
        peer_sums: Sequence[PeerSum],
        allocate_zeros: Callable[[int, int], int],
    ) -> None:
        self._driver = driver
        sizes = dict.fromkeys((devices[tasks[number].site] for s in peer_sums for number in s.tasks), 0)
        offsets: dict[int, int] = {}  # of every task, from the beginning of its device's flags
        for peer_sum in peer_sums:
            for number in peer_sum.tasks:
                device = devices[tasks[number].site]
                offsets[number] = sizes[device]
                sizes[device] += WORD_BYTES * _count_words(peer_sum)
        self._sizes = sizes
        self._pointers = {
            device: allocate_zeros(device, 2 * size) for device, size in sizes.items()
        }  # and as many zeros
        for device, size in sizes.items():
            driver.fill_bytes(device, self._pointers[device], 1, size)
        start = {number: self._pointers[devices[tasks[number].site]] + offset for number, offset in offsets.items()}
        self.of_tasks: Mapping[int, PeerFlags] = {
            number: PeerFlags(
                start[number],
                tuple(start[peer] + WORD_BYTES * (n - (peer < number)) for peer in s.tasks if peer != number),
                is_gathering=bool(s.gathers),
            )
            for s in peer_sums
            for n, number in enumerate(s.tasks)
        }

    def make_reset(self, device: int) -> Launch:
        """The launch that takes back the flags of a device."""
        pointer, size, copy_async = self._pointers[device], self._sizes[device], self._driver.copy_async
        return lambda stream: copy_async(pointer, size, pointer + size, size, size, 1, stream)


def _count_words(peer_sum: PeerSum) -> int:
    """The words that each part of a sum has."""
    peers = len(peer_sum.tasks) - 1
    return 2 * peers + 1 if peer_sum.gathers else peers
