"""The schema of a plan file: what the compiler hands to the runtime. Both use these records.

It is typed and closed (no free-form values). So decoding has a bounded depth, and the type of every field has been
checked before any other code sees it. `validation` checks what types cannot express. `runtime/README.md` has the rules
for changing the schema.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Literal

import msgspec

from einc_runtime.plan.element_types import ELEMENT_FORMATS, DTypeName, Kind
from einc_runtime.plan.record import Record, Repetition
from einc_runtime.plan.work import Work

HOST = "host"
"""The machine of plans for the CPU: a preset that has as many sites as a plan asks for."""

SCHEMA_VERSION = 16
"""It increases by one with every change that an older runtime could misread."""

AggregationName = Literal["sum", "max", "min", "prod", "logsumexp", "topk", "defined", "defined_exact"]
BufferRole = Literal["input", "weight", "state", "result", "scratch"]
InputPlacement = Literal["replicated", "once"]
LOADED_ROLES: tuple[BufferRole, ...] = ("input", "weight")
Scalar = bool | int | float | str
Attribute = Scalar | list[Scalar]

ITEMSIZE: dict[DTypeName, int] = {name: each.width for name, each in ELEMENT_FORMATS.items()}
"""Width of one element in bytes."""


def _list_types(*kinds: Kind) -> tuple[DTypeName, ...]:
    return tuple(name for name, each in ELEMENT_FORMATS.items() if each.kind in kinds)


FLOATS, INTEGERS, NARROW_FLOATS = _list_types("float"), _list_types("integer"), _list_types("narrow")
QUANTIZED = _list_types("stored", "narrow")
"""Types of the parts of quantized weights. Nothing is computed in them: the families that take them widen them, and
round what they write in them (`NARROW_LARGEST`)."""

NARROW_LARGEST: dict[DTypeName, float] = {
    name: each.bits.largest for name, each in ELEMENT_FORMATS.items() if each.kind == "narrow" and each.bits
}
"""The largest floats of 8 bits. A value becomes one by rounding to f32, if it is wider, then to the nearest float of 8
bits, to even where two are as near. What is larger becomes the largest, with its sign, and NaN stays NaN."""

NARROW_BLOCK = 128
"""Rows and columns of a block of DeepSeek's layout of floats of 8 bits, which has one scale."""

MAX_RANK = 32
"""The most dimensions of a tensor: as many as an array has in every version of numpy."""


class Block(Record, frozen=True, array_like=True, order=True):
    """A box in tensor coordinates: lower bounds inclusive, upper bounds exclusive (paper, Definition 1).

    Blocks are ordered by lower bounds, then by upper bounds. A block in a plan file may have any bounds: use it only
    after a check that it lies in its tensor (`contains`).
    """

    lower: tuple[int, ...]
    upper: tuple[int, ...]

    @staticmethod
    def whole(shape: Sequence[int]) -> Block:
        """The block that is all of a tensor of this shape."""
        return Block((0,) * len(shape), tuple(shape))

    @property
    def rank(self) -> int:
        return len(self.lower)

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(map(operator.sub, self.upper, self.lower))

    @property
    def size(self) -> int:
        return math.prod(map(operator.sub, self.upper, self.lower))

    def contains(self, block: Block) -> bool:
        """Whether `other` is a projection of this block (Definition 4): well-formed, of its rank, and inside it."""
        if not len(self.lower) == len(self.upper) == len(block.lower) == len(block.upper):
            return False
        for lo, up, start, end in zip(self.lower, self.upper, block.lower, block.upper, strict=True):
            if not lo <= start <= end <= up:
                return False
        return True

    def overlaps(self, block: Block) -> bool:
        """Whether two blocks of equal rank have elements in common."""
        for lo, up, start, end in zip(self.lower, self.upper, block.lower, block.upper, strict=True):
            if lo >= end or start >= up:
                return False
        return True

    def intersect(self, block: Block) -> Block | None:
        """The common part of two non-empty blocks of equal rank, or None where they have none."""
        lower, upper = tuple(map(max, self.lower, block.lower)), tuple(map(min, self.upper, block.upper))
        return Block(lower, upper) if all(map(operator.lt, lower, upper)) else None

    def projected(self, dims: Sequence[int]) -> Block:
        """The block in these dimensions alone, in their order."""
        return Block(tuple([self.lower[d] for d in dims]), tuple([self.upper[d] for d in dims]))

    def __str__(self) -> str:
        return "[" + ", ".join(f"{lo}:{up}" for lo, up in zip(self.lower, self.upper, strict=False)) + "]"


class Tensor(Record, frozen=True):
    """A whole tensor. `kind` says where it comes from; `fan_in` scales random weights; `stored` names it in a file.

    `order` lists its dimensions from the slowest to the fastest in every buffer of it; empty means the declared order.
    Tensors that are loaded or saved have the declared order.

    A `state` keeps its contents from run to run. One operation reads it, as the first input of a kernel that writes its
    output in its place; what the output has at the end is what the state has when the next run starts. At first it has
    zeros, or what is loaded.
    """

    name: str
    dims: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: DTypeName
    kind: Literal["input", "weight", "state", "value"]
    stored: str | None = None
    fan_in: int = 1
    order: tuple[int, ...] = ()


class Function(Record, frozen=True):
    """One function specification: its site and blocks, its floating point operations, and the bytes it accesses.

    `work` says what its time depends on beyond these two numbers. Without it, the function does nothing but go through
    its bytes.
    """

    site: int
    inputs: tuple[Block, ...]
    outputs: tuple[Block, ...]
    flops: int = 0
    traffic: int = 0
    work: Work | None = None


class Exchange(Record, frozen=True):
    """An exchange program as text, in the numbering of the plan's sites.

    Times are simulated; `naive_ms` is the time of the naive schedule. No program takes less than `bound_ms` if the
    function specifications run on these sites, nor less than `bound_free_ms` on any sites; `bound_by` names the
    argument for the bound. None means that the value was not computed. `splits` has the number of pieces of every atom
    that is cut. `author` says who wrote the body: the compiler, a proposer that it asked, or the user.
    """

    program: str
    naive: bool = True
    completion_ms: float | None = None
    naive_ms: float | None = None
    bound_ms: float | None = None
    bound_free_ms: float | None = None
    bound_by: str | None = None
    splits: dict[str, int] = msgspec.field(default_factory=dict)
    author: Literal["compiler", "proposer", "user"] = "compiler"


class Cost(Record, frozen=True):
    """The cost of an operation by the paper's model, in elements."""

    repartition: int
    join: int
    aggregation: int


class Index(Record, frozen=True):
    """A shardable index: its extent, the interior positions where it may be cut (None: any), and the chosen cut."""

    name: str
    extent: int
    cuts: tuple[int, ...] | None
    intervals: tuple[tuple[int, int], ...]


class JointAggregation(Record, frozen=True):
    """Outputs whose partial blocks aggregate together, as tuples: for example an index and the value that it has.

    `outputs` are their positions among the operation's outputs, the primary first. `dims` says for every dimension of
    every member which dimension of the primary it is (for the primary: all, in order). The dimensions of the primary
    that a member lacks, and those in `uncut` (in a plan file: `whole`), are not cut by the operation; those in `uncut`
    not by an aggregation either.
    """

    outputs: tuple[int, ...]
    dims: tuple[tuple[int, ...], ...]
    uncut: tuple[int, ...] = msgspec.field(default=(), name="whole")


class Operation(Record, frozen=True, omit_defaults=False):
    """An abstract operator as it was planned. `inputs` and `outputs` are positions in `Bundle.tensors`.

    The members of a joint aggregation have its name in `aggregations`: `logsumexp` or `topk`. No other output
    has such a name. One that is `defined`, or `defined_exact`, is of one output or of several; its definition is the
    attribute `aggregation`.

    `family` and `attributes` let a reader that knows the operators restore it; `kernel` and `kernel_attributes` are
    what the runtime needs. `precision` names the peak of the machine file that limits the functions' `flops`.
    `pin` is the cut that a person asked for, as it was written.

    With two or more `parts`, the operation is computed part after part of the batch: as many functions, one of each
    part, may be at a site. Each part has an exchange of its own: `exchange` is that of the first, and `later` those of
    the others. With one part, every function is at a site of its own.

    Every block is computed by `replicas` functions, each at another site. With n functions and r replicas, the
    first n / r functions are the join-agg spec, and the others repeat them in their order: f and f + n / r are alike.
    If r is two or more, functions that are not alike put out different blocks. So equal blocks are partial copies, to
    be aggregated, if r is 1, and otherwise the same values, of which one is enough.
    """

    name: str
    title: str
    family: str
    attributes: dict[str, Attribute]
    source: str | None
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    aggregations: tuple[AggregationName, ...]
    joint_aggregations: tuple[JointAggregation, ...]
    kernel: str
    kernel_attributes: dict[str, Attribute]
    indices: tuple[Index, ...]
    cost: Cost
    functions: tuple[Function, ...]
    exchange: Exchange | None
    precision: DTypeName = "f32"
    replicas: int = 1
    pin: str | None = None
    parts: int = 1
    later: tuple[Exchange | None, ...] = ()

    @property
    def distinct(self) -> int:
        """The number of functions that are not alike."""
        return len(self.functions) // self.replicas


class Buffer(Record, frozen=True):
    """A dense array at byte `offset` of a site's arena, holding `block` of a tensor (a position).

    `role`: input and weight buffers are filled by the loader and never reused; result buffers live to the end. A state
    has one buffer for each function of the operation that reads it, and the output of that function has another one of
    the same block at the same bytes; both have the role `state`.
    """

    site: int
    offset: int
    tensor: int
    block: Block
    role: BufferRole


class Region(Record, frozen=True, array_like=True):
    """The part `block` (tensor coordinates) of a buffer (a position)."""

    buffer: int
    block: Block


class Task(Record, frozen=True, tag_field="kind"):
    """A vertex of the task graph. `serves` names the operation or output that it serves.

    `after` lists the positions of the tasks that must have ended, all smaller than its own.
    """

    site: int
    serves: str
    after: tuple[int, ...]


class KernelTask(Task, frozen=True, tag="kernel"):
    """Runs function specification `function` of an operation (a position)."""

    operation: int
    function: int
    reads: tuple[Region, ...]
    writes: tuple[Region, ...]


class TransferTask(Task, frozen=True, tag="transfer"):
    """Moves a region of a buffer at `site` to an equal block of a buffer at another site."""

    read: Region
    write: Region


class AggregateTask(Task, frozen=True, tag="aggregate"):
    """Combines two or more partial copies of one block, in the order given, into one.

    A copy is one region, or one for every member of a joint aggregation: `writes` has as many regions, and `reads` has
    them copy after copy.
    """

    aggregation: AggregationName
    reads: tuple[Region, ...]
    writes: tuple[Region, ...]


class CopyTask(Task, frozen=True, tag="copy"):
    """Moves regions within a site, pairwise."""

    reads: tuple[Region, ...]
    writes: tuple[Region, ...]


class FenceTask(Task, frozen=True, tag="fence"):
    """Does nothing but order other tasks."""


AnyTask = KernelTask | TransferTask | AggregateTask | CopyTask | FenceTask


class Output(Record, frozen=True):
    """A saved tensor (a position), and the regions that hold its blocks at the end, together all of it.

    Several may hold the same elements, at different sites or in blocks that overlap. Where it is made in parts,
    `exchange` brings the first of them home, and `later` the others.
    """

    tensor: int
    regions: tuple[Region, ...]
    exchange: Exchange | None
    later: tuple[Exchange | None, ...] = ()


class Bundle(Record, frozen=True, omit_defaults=False, gc=True, weakref=True):
    """A whole plan, or with a `repetition` one that says a layer once for all of its copies.

    `devices` are the machine's site numbers behind the plan's sites 0, 1, ...
    `machine_file` is the machine's JSON, so that a reader can simulate the exchanges without it at hand; `memory` is
    the arena size in bytes per site. `predicted_ms` is the simulated time of the whole plan on that machine.
    With `input_placement` `once`, no element of an input or weight is in more than one buffer that is loaded. The
    results of a `reproducible` plan have the same bits as those of every other such plan of its model
    (`plan/reproducible.py`). `report` says how the plan was chosen, to those who know the compiler: the
    runtime carries these bytes, and neither reads nor needs them.
    """

    producer: str
    model: str
    machine: str
    machine_file: str
    devices: tuple[int, ...]
    selector: str
    schedule: str
    total_cost: int
    tensors: tuple[Tensor, ...]
    operations: tuple[Operation, ...]
    buffers: tuple[Buffer, ...]
    tasks: tuple[AnyTask, ...]
    outputs: tuple[Output, ...]
    memory: tuple[int, ...]
    predicted_ms: float | None = None
    input_placement: InputPlacement = "replicated"
    reproducible: bool = False
    repetition: Repetition | None = None
    report: bytes = b""
