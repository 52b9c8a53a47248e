"""The interface between the CUDA executor and its kernels, and arrays and devices as both see them.

The life of a kernel, always with its device current and in this order:

1. `Kernels.prepare_kernel` (or another `prepare_...`) chooses a variant, and says how much workspace it needs. It may
   compile; it touches no operand.
2. `GpuKernel.bind(workspace, status)` makes the launch. It may load modules, make handles and allocate memory that a
   library insists on; all of them live as long as the launch.
3. `launch(stream)` is called once outside of any capture, to warm up (operands are zero bytes then, never garbage), and
   once more while `stream` is being captured. In both cases a launch enqueues on that stream alone. It neither
   allocates nor frees, waits for nothing, reads no operand on the host, and calls nothing else that a capture forbids.

Launches are replayed, and equal operands must give equal bits each time: no atomics on floating types, and no choice
that depends on time. Kernels of one site follow one another on one stream; those of other sites run at the same time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from einc_runtime.dtypes import ITEMSIZE
from einc_runtime.kernels.base import GatedInvocations, Invocation, JointInvocation
from einc_runtime.plan.launches import LaunchKind

WORKSPACE_ALIGNMENT = 256
"""Bytes to which a workspace's address is aligned, as CUDA's own allocations are."""

Launch = Callable[[int], None]
"""Enqueues work on a stream, given by its handle (a `cudaStream_t` as an integer, never the default stream)."""

_TYPESTRINGS = {"f16": "<f2", "bf16": "<u2", "f32": "<f4", "f64": "<f8", "i32": "<i4", "i64": "<i8", "bool": "|b1",
                "f8e4m3": "|u1", "f8e5m2": "|u1"}  # fmt: skip


@dataclass(frozen=True, slots=True)
class GpuTarget:
    """The device that a kernel is for. The architecture and the number of multiprocessors decide between variants, and
    `cache_bytes`, those of its second cache, how much is read ahead.

    GPUs of AMD have the name of their architecture, such as gfx942, in `amd`, and no capability.
    """

    device: int
    name: str
    capability: tuple[int, int]
    multiprocessors: int
    amd: str = ""
    cache_bytes: int = 0

    @property
    def architecture(self) -> str:
        """The name that compilers use, such as sm_90."""
        return self.amd or f"sm_{self.capability[0]}{self.capability[1]}"

    @property
    def warp_size(self) -> int:
        """The threads of a warp: 64 on AMD's GPUs for computing, where it is called a wavefront."""
        return 64 if self.amd else 32

    @staticmethod
    def of(architecture: str, device: int) -> GpuTarget:
        """A device of which the architecture is known, and nothing else. Kernels that read ahead are for all caches."""
        if architecture.startswith(AMD):
            return GpuTarget(device, architecture, (0, 0), 1, architecture)
        return GpuTarget(device, architecture, read_capability(architecture), 1, cache_bytes=1 << 20)


AMD = "gfx"
"""What the names of AMD's architectures begin with."""

MAX_AMD_STAGES = 2
"""With more, operands that are fetched ahead take more than the 64 KiB of shared memory that a program has there."""


F8_ARCHITECTURES = frozenset({"sm_89", "sm_90", "sm_100", "sm_103", "sm_120", "sm_121"})
"""Architectures that know floats of 8 bits: they convert them, and tensor cores multiply them.
Those of AMD know other floats of 8 bits."""


def read_capability(architecture: str) -> tuple[int, int]:
    """(9, 0) of sm_90; (0, 0) of AMD's architectures."""
    return (0, 0) if architecture.startswith(AMD) else divmod(int(architecture.removeprefix("sm_")), 10)


@dataclass(frozen=True, slots=True)
class GpuArray:
    """A strided view of device memory; strides are bytes, and `dtype` is the plan's name of a type.

    Libraries take it by `__cuda_array_interface__`. That protocol has no bf16: its bits are given as u2.
    """

    pointer: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str
    device: int

    @property
    def itemsize(self) -> int:
        return ITEMSIZE[self.dtype]

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.size * self.itemsize

    def part(self, ends: Sequence[tuple[int, int]]) -> GpuArray:
        """The elements from a start to an end in every dimension."""
        offset = sum(start * step for (start, _), step in zip(ends, self.strides, strict=True))
        shape = tuple(end - start for start, end in ends)
        return GpuArray(self.pointer + offset, shape, self.strides, self.dtype, self.device)

    @property
    def memory_order(self) -> tuple[int, ...]:
        """The dimensions from the largest stride to the smallest."""
        return tuple(sorted(range(len(self.shape)), key=lambda dim: -self.strides[dim]))

    @property
    def compact(self) -> bool:
        """Whether the elements are one run of bytes, in any order of the dimensions."""
        order = self.memory_order
        shape, strides = (tuple(of[dim] for dim in order) for of in (self.shape, self.strides))
        return GpuArray(self.pointer, shape, strides, self.dtype, self.device).dense

    @property
    def dense(self) -> bool:
        """Whether the elements are one run of bytes in row-major order."""
        expected = self.itemsize
        for extent, stride in zip(reversed(self.shape), reversed(self.strides), strict=True):
            if extent != 1 and stride != expected:
                return False
            expected *= extent
        return True

    @property
    def __cuda_array_interface__(self) -> dict[str, object]:
        return {
            "shape": self.shape,
            "typestr": _TYPESTRINGS[self.dtype],
            "data": (self.pointer, False),
            "strides": None if self.dense else self.strides,
            "stream": None,  # the caller orders the streams
            "version": 3,
        }


@dataclass(frozen=True, slots=True)
class Description:
    """What runs a task, for a report: such as cublas, 12.8.4, `gemm f16 128x256`."""

    provider: str
    version: str
    variant: str


LATE_PEERS = "the GPUs that add what all of them have did not come to it at one time"
"""The status message of kernels with flags."""


@dataclass(frozen=True, slots=True)
class PeerFlags:
    """Words of 32 bits by which the kernels of several devices wait for each other. A kernel that has them sets those
    at the addresses `peers`, one in the memory of every other device, then waits until as many from the address
    `awaited` on, in its own memory, are not 0, and only then reads its operands, some of which are on these devices.

    A kernel that is gathering also writes results where `copies` say, which are on these devices. When all its programs
    have, it sets the flags behind those at `peers`, as many words further as there are peers, and it ends when its own
    are not 0. The word behind these counts its programs.

    It gives up after a few seconds, and says so in its status word."""

    awaited: int
    peers: tuple[int, ...]
    is_gathering: bool = False
    copies: tuple[tuple[GpuArray, GpuArray], ...] = ()

    def find_copies(self, result: GpuArray) -> list[GpuArray]:
        """Where else a result is written."""
        return [copy for written, copy in self.copies if written == result]


@dataclass(frozen=True, slots=True)
class GpuKernel:
    """A prepared invocation.

    `bind` takes the address of `workspace` bytes (0 where it needs none), which only this kernel uses while it runs and
    whose content is lost between runs, and the address of its status word (0 where it has none).

    `status_message` is set for kernels that check values of their inputs (such as ids of a vocabulary). Such a kernel
    has a status word, an i32 that is 0 before it runs. If it stores another number there, the execution fails with that
    message.
    """

    bind: Callable[[int, int], Launch]
    description: Description
    workspace: int = 0
    status_message: str | None = None


@dataclass(frozen=True, slots=True)
class Alternatives:
    """Ways to compute one product of a plan on a device, or two and a map of both, the usual one first.

    `name` is equal for products that take the same time. `records` name the algorithms: those of a library are bytes,
    and those of our own kernel are names of tiles. `launches` enqueue them, on the memory of the plan. `gpu` and
    `library` say where the algorithms are valid. `parts` are the names of other products of which the usual way
    consists, and which may be tuned by themselves. All ways write the elements `result`. `jobs` are sources of kernels
    that have to be compiled, each with its architecture.
    """

    name: str
    gpu: str
    library: str
    device: int
    records: tuple[bytes | str, ...]
    launches: tuple[Launch, ...]
    result: ResultBytes | None = None
    parts: tuple[str, ...] = ()
    jobs: tuple[tuple[Any, str], ...] = ()


@dataclass(frozen=True, slots=True)
class ResultBytes:
    """A run of device memory with elements of a type, as many as `count`."""

    pointer: int
    count: int
    dtype: str


class Kernels(Protocol):
    """The kernels that the CUDA executor can ask for; `cuda.kernels.open_kernels` makes the real ones.

    All methods raise PlanFault for what no variant can do. They raise MissingFault where a library or a compiler is
    missing, also if kernels were compiled ahead for other architectures only.

    Inputs and outputs are on `target.device`. Those of `moves` may also be on a peer whose memory that device can
    reach, or in pinned host memory, and copies that are combined on such a peer.
    """

    def prepare_kernel(self, invocation: Invocation[GpuArray], target: GpuTarget) -> GpuKernel:
        """The kernel of an operation."""

    def prepare_with_epilogue(
        self, first: Invocation[GpuArray], then: Invocation[GpuArray], operand: int, target: GpuTarget
    ) -> GpuKernel | None:
        """One kernel for both, or None where there is none. `then` is a map; its operand of this number is the
        result of `first`. No other task reads that result, so it need not be written."""

    def prepare_batched_pair(
        self, first: Invocation[GpuArray], second: Invocation[GpuArray], target: GpuTarget
    ) -> GpuKernel | None:
        """One kernel for two contractions that do not depend on each other; None where it would not be faster."""

    def prepare_gated_pair(self, pair: GatedInvocations[GpuArray], target: GpuTarget) -> GpuKernel | None:
        """One kernel for two contractions and a map; None where there is none, or no measurement has found it faster.
        Nobody else reads the results, so they need not be written."""

    def prepare_launch(
        self,
        kind: LaunchKind,
        parts: Sequence[Invocation[GpuArray]],
        kept: Sequence[bool],
        target: GpuTarget,
        flags: PeerFlags | None = None,
    ) -> GpuKernel | None:
        """One kernel for all parts of a launch, or None where there is none. Aggregations are maps of their copies.
        Results that are not `kept` are needed by later parts alone, and need not be written."""

    def prepare_aggregate(
        self,
        aggregation: str,
        reads: Sequence[GpuArray],
        write: GpuArray,
        target: GpuTarget,
        flags: PeerFlags | None = None,
    ) -> GpuKernel:
        """sum, prod, max or min over two or more views in their order, rounded once. It may write over the first."""

    def prepare_multicast_sum(self, read: GpuArray, write: GpuArray, target: GpuTarget) -> GpuKernel | None:
        """The sum over all devices of a multicast object of what each holds there, added by the switches between them
        in any order, in f32; None where types or strides do not fit. `read` is a view of the object."""

    def prepare_early_read(self, reads: Sequence[GpuArray], target: GpuTarget) -> GpuKernel | None:
        """Brings the first bytes of all views into the device's second cache, as many of each as fit into a part of it
        together. Nothing is computed. None where there is no cache, or no kernel for it."""

    def prepare_joint_aggregation(self, invocation: JointInvocation[GpuArray], target: GpuTarget) -> GpuKernel:
        """An aggregation of copies of a tuple; it may write over the first copy."""

    def prepare_moves(self, reads: Sequence[GpuArray], writes: Sequence[GpuArray], target: GpuTarget) -> GpuKernel:
        """Copies views pairwise, of equal shapes and types, in one launch where possible."""

    def versions(self) -> Mapping[str, str]:
        """The versions of the libraries in use, by name, for a report."""

    @property
    def notes(self) -> Sequence[str]:
        """What the user should know about the choices that were made, one line each."""

    def list_alternatives(self, limit: int) -> Sequence[Alternatives]:
        """For every kind of product that is bound and has more ways than one, at most `limit` besides the usual one."""

    def give_up(self, reason: str) -> bool:
        """Called after a failure and after `close`. True if an optional library was in use: it is not used any more,
        `notes` says so, and the executor starts again. This may happen several times."""

    def close(self) -> None:
        """Releases handles and modules after the last launch. It is also called after failures."""
