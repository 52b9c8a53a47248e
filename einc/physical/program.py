"""The device program: buffers at sites, and tasks over regions of them with explicit dependencies.

A *region* is a block of a buffer, in the coordinates of the tensor that the buffer holds a block of. Tasks read and
write regions, so that slicing a producer's block into atoms, and laying atoms out as a consumer's block, are the
strided ends of transfers and aggregations rather than copies of their own; what is left of the paper's decompose and
recompose kernels is the COPY task, for pieces that are at the right site already.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from einc.core.tensor import DType, TensorType
from einc.exchange.language.program import Program
from einc.logical.plan import LogicalPlan


class BufferRole(enum.Enum):
    """INPUT and WEIGHT buffers are filled from outside and never reused; RESULT buffers live to the end."""

    INPUT = "input"
    WEIGHT = "weight"
    RESULT = "result"
    SCRATCH = "scratch"


@dataclass(frozen=True, slots=True)
class Buffer:
    """A dense array at a site that holds `block` of `tensor`, whole or partially aggregated."""

    site: int
    tensor: str
    block: TensorType
    dtype: DType
    role: BufferRole

    @property
    def size_bytes(self) -> int:
        return self.block.size * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class Region:
    """The part `block` (in tensor coordinates) of the buffer at position `buffer` of the program."""

    buffer: int
    block: TensorType


class TaskKind(enum.Enum):
    """What a task does.

    KERNEL runs function specification `function` of `node`; TRANSFER moves one region to another site; AGGREGATE
    combines two or more copies of one block into one, copy after copy, each a region for every tensor written (one, or
    the members of a merge, the primary first); COPY moves regions within a site (pairwise reads and writes); FENCE does
    nothing and only orders others.
    """

    KERNEL = "kernel"
    TRANSFER = "transfer"
    AGGREGATE = "aggregate"
    COPY = "copy"
    FENCE = "fence"


@dataclass(frozen=True, slots=True)
class Task:
    """One vertex of the program. `site` runs it (a transfer's is its source).

    `node` is the operator that it runs, or brings input to (or the name of the output that it brings home).
    `after` lists positions of tasks that must have ended; all are smaller than the task's own position.
    """

    kind: TaskKind
    site: int
    node: str
    reads: tuple[Region, ...] = ()
    writes: tuple[Region, ...] = ()
    after: tuple[int, ...] = ()
    function: int | None = None
    aggregation: str | None = None


@dataclass(frozen=True, slots=True)
class Exchange:
    """What brings an operator its inputs (or an output home): a complete exchange program.

    Times in milliseconds; None stands for what was not worked out. `naive_ms` is what the naive schedule would take
    here, with its own placement. No program takes less than `bound_ms` with the function specifications where they
    are, which `bound_by` proves, nor than `bound_free_ms` wherever they were. `splits` are atoms with their pieces.
    """

    program: Program
    naive: bool = True
    completion_ms: float | None = None
    naive_ms: float | None = None
    bound_ms: float | None = None
    bound_free_ms: float | None = None
    bound_by: str | None = None
    splits: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Output:
    """A saved tensor: its distinct blocks, and the region that holds each at the end."""

    tensor: str
    regions: tuple[Region, ...]
    exchange: Exchange | None


@dataclass(frozen=True, slots=True)
class DeviceProgram:
    """Everything a machine has to do.

    `sites[n][i]` is the site of function specification i of node n (in the graph's order); `exchanges[n]` is None
    where nothing moves. `offsets[b]` is the byte offset of buffer b in its site's arena, `memory[s]` the size in
    bytes of the arena of site s.
    """

    plan: LogicalPlan
    sites: tuple[tuple[int, ...], ...]
    exchanges: tuple[Exchange | None, ...]
    buffers: tuple[Buffer, ...]
    tasks: tuple[Task, ...]
    outputs: tuple[Output, ...]
    offsets: tuple[int, ...]
    memory: tuple[int, ...]
