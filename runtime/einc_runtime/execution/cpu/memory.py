"""The memory of a plan's sites on the host: arenas with a view for every buffer, and prepacked weights."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from threading import Lock
from types import EllipsisType

import numpy as np

from einc_runtime.dtypes import Array, storage_dtype
from einc_runtime.errors import MissingFault
from einc_runtime.execution.cpu.host import available_memory, require_memory
from einc_runtime.execution.cpu.scheduler import THREADS, ThreadScheduler
from einc_runtime.execution.cpu.thread_pool import RankedTaskGraph, TaskError, run_tasks
from einc_runtime.execution.shared_buffers import SharedBuffers, list_shared
from einc_runtime.kernels import base
from einc_runtime.kernels.base import Kernel, PrepackedOperand, address
from einc_runtime.kernels.views import strides_of
from einc_runtime.plan.regions import buffer_bytes, find_offsets, reads_of
from einc_runtime.plan.schema import LOADED_ROLES, AnyTask, Block, Bundle, Region
from einc_runtime.plan.states import STATE
from einc_runtime.resident import release_pages

POISON_BYTE = 0xFF
"""A byte that makes a NaN of any floating type, and -1 of an integer."""
MAX_PACKED_SHARE = 0.5
"""The part of the available memory that prepacked weights may take."""


def allocate_aligned(size: int) -> Array:
    """Memory whose pages are taken when they are first written."""
    try:
        return base.allocate_aligned(size)
    except (MemoryError, ValueError) as error:
        raise MissingFault(f"{size:,} bytes of memory are not available") from error


class HostMemory:
    """One aligned arena per site, and every buffer as a view of the arena of its site.

    With `shared`, sites that are loaded with the same block have it in one place, that of the first of them. `common`
    is what this plan has together with others (`shared_buffers`). What is written over a state is the same view. Views
    of weights are read-only, as only loading changes them and kernels may have other layouts of them made; where
    `common` forbids those, nothing tells weights from values. With `sites`, the others have no memory, and their
    buffers no elements. Raises MissingFault where memory is short, and PlanFault for a buffer outside its arena.
    """

    def __init__(
        self,
        bundle: Bundle,
        *,
        shared: bool = False,
        common: SharedBuffers | None = None,
        allocate: Callable[[int], Array] = allocate_aligned,
        sites: Collection[int] | None = None,
    ) -> None:
        keys = {} if common is None else dict(list_shared(bundle))
        common_buffers = [number for number, key in keys.items() if common is not None and key in common.arrays]
        local_sites = frozenset(range(len(bundle.memory)) if sites is None else sites)
        sizes = [size if site in local_sites else 0 for site, size in enumerate(bundle.memory)]
        shared_buffers = [
            bundle.buffers[number] for number in common_buffers if bundle.buffers[number].site in local_sites
        ]
        needed = sum(sizes) - sum(buffer_bytes(bundle, buffer) for buffer in shared_buffers)
        require_memory(needed, f"running {bundle.model} on {len(local_sites)} sites")
        self.bundle = bundle
        self._constant = "weight" if common is None or common.prepack else None
        self.arenas = [allocate(size) for size in sizes]
        self.buffers: list[Array] = []
        loaded: dict[tuple[int, Block], Array] = {}
        states: dict[tuple[int, int], Array] = {}
        for number, buffer in enumerate(bundle.buffers):
            shape = buffer.block.shape
            tensor, arena = bundle.tensors[buffer.tensor], self.arenas[buffer.site]
            dtype = storage_dtype(tensor.dtype)
            if buffer.site not in local_sites:
                self.buffers.append(np.empty(0, dtype))
                continue
            strides = strides_of(shape, dtype.itemsize, tensor.order)
            array = np.ndarray(shape, dtype, arena.data, buffer.offset, strides)
            if shared and buffer.role in LOADED_ROLES:
                array = loaded.setdefault((buffer.tensor, buffer.block), array)
            if common is not None and number in keys:
                array = common.arrays.setdefault(keys[number], array)
            if buffer.role == tensor.kind == STATE:
                states[buffer.site, buffer.offset] = array
            self.buffers.append(array)
        for number, buffer in enumerate(bundle.buffers):
            if buffer.role == STATE and buffer.site in local_sites:
                self.buffers[number] = states[buffer.site, buffer.offset]

    def lay_over(self, same: Mapping[int, int]) -> None:
        """Lets buffers lie where others do, which hold the same."""
        for number, kept in same.items():
            self.buffers[number] = self.buffers[kept]

    def view(self, region: Region) -> Array:
        """A region of a buffer, as a view."""
        key: tuple[slice | EllipsisType, ...] = (*(slice(*ends) for ends in find_offsets(self.bundle, region)), ...)
        view = self.buffers[region.buffer][key]
        view.flags.writeable = self.bundle.buffers[region.buffer].role != self._constant
        return view

    def views(self, regions: Sequence[Region]) -> list[Array]:
        return [self.view(region) for region in regions]

    def poison(self) -> None:
        """Overwrites everything that a run must write before it reads it."""
        for buffer, array in zip(self.bundle.buffers, self.buffers, strict=True):
            if buffer.role not in (*LOADED_ROLES, STATE):
                self.arenas[buffer.site][buffer.offset : buffer.offset + array.nbytes].fill(POISON_BYTE)


def find_packed_weights(memory: HostMemory, tasks: Sequence[AnyTask], kernels: Sequence[Kernel]) -> list[Array]:
    """The weights that are read by nothing but products, each of which has a layout of its own of what it reads.

    `kernels[i]` is that of `tasks[i]`. When these layouts have been made, nobody reads these weights.
    """
    buffers = memory.bundle.buffers
    read_weights: dict[int, Array] = {}
    read_otherwise: set[int] = set()
    for task, kernel in zip(tasks, kernels, strict=True):
        regions = [region for region in reads_of(task) if buffers[region.buffer].role == "weight"]
        packed = {(address(pack.source), pack.source.nbytes) for pack in kernel.prepacked}
        counts = Counter(id(memory.buffers[region.buffer]) for region in regions)
        for region in regions:
            array, view = memory.buffers[region.buffer], memory.view(region)
            read_weights[id(array)] = array
            if counts[id(array)] > 1 or (address(view), view.nbytes) not in packed:
                read_otherwise.add(id(array))
    return [array for key, array in read_weights.items() if key not in read_otherwise]


def release_weights(array: Array) -> None:
    """Gives the memory of dense weights that nobody reads back to the system, until they are loaded again."""
    release_pages(address(array), array.nbytes)


class PrepackedWeights:
    """Weights in the layouts that products can use fastest, made once after loading, in addition to the loaded weights.

    The memory of weights in `replaced`, which are read in no other way, is given back by `release` when their layouts
    have been made. If layouts would take too much memory, none is made: kernels also work without them. They may have
    those that executors with the same weights have made, so that changes count all the same.
    """

    def __init__(
        self,
        kernels: Sequence[Kernel],
        replaced: Sequence[Array] = (),
        release: Callable[[Array], None] = release_weights,
    ) -> None:
        packs = {pack: address(pack.source) for kernel in kernels for pack in kernel.prepacked}
        available, needed = available_memory(), sum(pack.size for pack in packs if pack.data is None)
        self._makes = available is None or needed <= available * MAX_PACKED_SHARE
        self._packs = sorted(packs, key=packs.__getitem__)
        self._addresses = [packs[pack] for pack in self._packs]
        self._changed = True
        self._release = release
        replaceable = replaced if self._makes else ()
        self._replaced = {pack: array for array in replaceable for pack in self._packs_of(array)}
        self._lock = Lock()

    @property
    def size(self) -> int:
        """The bytes that all of it takes."""
        return sum(pack.size for pack in self._packs) if self._makes else 0

    @property
    def replaced_size(self) -> int:
        """The bytes of loaded weights whose memory is given back."""
        return sum(array.nbytes for array in {id(array): array for array in self._replaced.values()}.values())

    @property
    def is_made(self) -> bool:
        """Whether nothing has changed since the last run."""
        return not self._changed

    def mark_changed(self, weights: Array) -> None:
        """Says that this array, which is dense, has other values now."""
        for pack in self._packs_of(weights):
            pack.data = None
            self._changed = True

    def _packs_of(self, array: Array) -> list[PrepackedOperand]:
        first = address(array)
        return self._packs[bisect_left(self._addresses, first) : bisect_left(self._addresses, first + array.nbytes)]

    def pack(self, workers: int, scheduler: ThreadScheduler = THREADS) -> None:
        """Makes the layouts of weights that have changed, on this many threads."""
        if not self._changed:
            return
        self._changed = False
        packs = [pack for pack in self._packs if pack.data is None]  # executors that share them may have made some
        if not packs or not self._makes:
            return
        graph = RankedTaskGraph.of([()] * len(packs), [math.inf] * len(packs), [pack.size for pack in packs])
        left = Counter(id(self._replaced[pack]) for pack in packs if pack in self._replaced)

        def make(number: int) -> None:
            packs[number].make()
            array = self._replaced.get(packs[number])
            if array is not None:
                with self._lock:
                    left[id(array)] -= 1
                    done = not left[id(array)]
                if done:
                    self._release(array)

        try:
            run_tasks(graph, workers, lambda _: make, scheduler=scheduler)
        except BaseException as error:
            self._changed = True
            if isinstance(error, TaskError):
                raise error.cause from None
            raise
