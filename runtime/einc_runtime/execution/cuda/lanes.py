"""The messages of a part of a plan on GPUs: prepared as groups, warmed up, waited for, and ended when something fails.

Regions that are one run of bytes are sent and received where they lie. Others are packed before a group and unpacked
after it, in memory of its lane; both ends agree on the order of the elements, that in memory of the tensor.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from einc_runtime.execution.cuda.driver import Driver, DriverError
from einc_runtime.execution.cuda.nccl import Communicators, NcclMessage
from einc_runtime.execution.cuda.resources import CudaResources
from einc_runtime.execution.naps import Naps
from einc_runtime.kernels.gpu import Description, GpuArray, GpuKernel, GpuTarget, Kernels, Launch
from einc_runtime.kernels.views import strides_of
from einc_runtime.plan.schema import Bundle

END_SECONDS = 2.0
"""After a failure, what is on the way is ended, and everything released, for so long; then the process goes on to
report. It ends soon, and all others with it."""

_PACK_ALIGNMENT = 256  # bytes; packed regions begin at multiples of it


@dataclass(frozen=True, slots=True)
class MessageEnd:
    """What a task sends or receives: the GPU at the other end, numbered through all processes."""

    peer: int
    incoming: bool


class Lanes:
    """The ends of messages of one process, by task. `join` makes its communicators, when all processes make theirs.

    `plan` is the whole plan, whose tasks errors name, and `sites` are the numbers in it of the sites of this process.
    `versions` are those of the libraries that carry messages.
    """

    def __init__(
        self,
        plan: Bundle,
        ends: Mapping[int, MessageEnd],
        join: Callable[[], Communicators],
        *,
        sites: Sequence[int],
        versions: Mapping[str, str],
    ) -> None:
        self.plan, self.ends, self._join = plan, ends, join
        self.sites, self.versions = sites, versions
        self._communicators: Communicators | None = None
        self._aborting: threading.Thread | None = None
        self._met: set[tuple[int, MessageEnd]] = set()

    def connect(self, resources: CudaResources) -> None:
        """Waits for all processes. The communicators are released after graphs that are made later."""
        self._communicators = self._join()
        resources.keep(self._close)

    def list_first_meetings(self, device: int, tasks: Sequence[int]) -> list[int]:
        """Those of the messages of a device that are the first to or from a GPU; they have been met then."""
        first: list[int] = []
        for task in tasks:
            if (device, self.ends[task]) not in self._met:
                self._met.add((device, self.ends[task]))
                first.append(task)
        return first

    def meet(self, device: int, task: int, pointer: int, stream: int) -> None:
        """Sends a byte where a message goes, or receives one where it comes from; `pointer` is memory of the device."""
        assert self._communicators is not None, "all processes have joined"
        end = self.ends[task]
        self._communicators.exchange(device, [NcclMessage(end.incoming, end.peer, pointer, 1)], stream)

    def prepare(
        self,
        tasks: Sequence[int],
        views: Sequence[GpuArray],
        orders: Sequence[Sequence[int]],
        kernels: Kernels,
        target: GpuTarget,
    ) -> GpuKernel:
        """The kernel of a group of messages of a device, in their order; `orders` are those of the tensors' dimensions
        in memory."""
        ends = [self.ends[task] for task in tasks]
        places: list[int | None] = []
        size = 0
        for view in views:
            places.append(None if view.compact else size)
            size += 0 if view.compact else -(-view.size * view.itemsize // _PACK_ALIGNMENT) * _PACK_ALIGNMENT

        def bind(workspace: int, status: int) -> Launch:
            dense = [
                view
                if offset is None
                else GpuArray(
                    workspace + offset,
                    view.shape,
                    strides_of(view.shape, view.itemsize, order),
                    view.dtype,
                    view.device,
                )
                for view, order, offset in zip(views, orders, places, strict=True)
            ]
            moves: list[Launch | None] = []
            for incoming in (False, True):
                numbers = [n for n, end in enumerate(ends) if end.incoming is incoming and places[n] is not None]
                reads, writes = [views[n] for n in numbers], [dense[n] for n in numbers]
                pair = (writes, reads) if incoming else (reads, writes)
                moves.append(kernels.prepare_moves(*pair, target).bind(0, 0) if numbers else None)
            pack, unpack = moves
            messages = [
                NcclMessage(end.incoming, end.peer, view.pointer, view.size * view.itemsize)
                for end, view in zip(ends, dense, strict=True)
            ]

            def launch(stream: int) -> None:
                assert self._communicators is not None, "nothing is sent before all processes have joined"
                if pack is not None:
                    pack(stream)
                self._communicators.exchange(target.device, messages, stream)
                if unpack is not None:
                    unpack(stream)

            return launch

        return GpuKernel(bind, Description("nccl", "", "send and receive"), size)

    def wait(self, driver: Driver, event: int) -> None:
        """Waits for an event on the host, and raises DriverError where a connection is lost before."""
        assert self._communicators is not None
        naps = Naps()
        while not driver.has_happened(event):
            self._communicators.check()
            naps.take()

    def end(self, resources: CudaResources) -> None:
        """After a failure: ends what is on the way, and releases everything, in threads, for at most `END_SECONDS`.

        NCCL destroys a communicator after the graphs that use it, which are released once nothing is on the way.
        """
        if self._communicators is not None:
            self._aborting = threading.Thread(target=self._abort, name="abort", daemon=True)
            self._aborting.start()
        releasing = threading.Thread(target=resources.release, name="release", daemon=True)
        releasing.start()
        releasing.join(END_SECONDS)

    def _abort(self) -> None:
        assert self._communicators is not None
        with suppress(DriverError):  # the first failure is the one to report
            self._communicators.abort()

    def _close(self) -> None:
        if self._aborting is not None:
            self._aborting.join(END_SECONDS)
        elif self._communicators is not None:
            self._communicators.close()
