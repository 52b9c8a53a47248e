"""What scans in blocks are made of: steps in blocks, and operators that follow one another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from einc.core.tensor import TensorDesc
from einc.ops.base import Operator
from einc.ops.index_operator import build_index_operator
from einc.ops.scalar import ProgramBuilder
from einc_runtime.plan.index_programs import NEAREST_ELEMENT, IndexProgram, Position, Read, TensorRead
from einc_runtime.plan.scalar_programs import Operand, ScalarInput, ScalarLiteral, ScalarProgram

PartInput = int | tuple[str, int]
"""An input of the scan by its number, or a result of the part with a name."""


@dataclass(frozen=True, slots=True)
class ScanPart:
    """One operator of a scan in blocks. `result` is the output of the scan that it computes, if it is one."""

    name: str
    operator: Operator
    inputs: tuple[PartInput, ...]
    result: int | None = None


@dataclass(frozen=True, slots=True)
class BlockedSteps:
    """`total` steps in `count` blocks of `size`, of which the last may be shorter; and the names of two loops."""

    total: int
    count: int
    size: int
    block: str
    step: str

    @staticmethod
    def of(extents: Mapping[str, int], along: str, blocks: int) -> BlockedSteps | None:
        """None where there would be one block, or blocks of one step."""
        total = extents[along]
        size = -(-total // max(blocks, 1))
        count = -(-total // size)
        if count < 2 or size < 2:
            return None
        return BlockedSteps(total, count, size, _find_new("block", extents), _find_new("step", extents))

    @property
    def is_padded(self) -> bool:
        """Whether the last block has less steps."""
        return self.count * self.size > self.total

    @property
    def outside(self) -> str:
        """What is read behind the last step, where values do not matter."""
        return NEAREST_ELEMENT if self.is_padded else ""

    def position(self) -> Position:
        """The step of all that is a step of a block."""
        return Position(((self.block, self.size), (self.step, 1)))

    def mask(self, builder: ProgramBuilder, value: Operand, identity: ScalarLiteral, block: int) -> Operand:
        """The value, or the identity behind the last step. Inputs `block` and the next one are the two loops."""
        if not self.is_padded:
            return value
        first = builder.add("mul", ScalarInput(block), self.size)
        inside = builder.add("lt", builder.add("add", first, ScalarInput(block + 1)), self.total)
        return builder.add("where", inside, value, identity)

    def split(self, desc: TensorDesc, axis: int) -> TensorDesc:
        """A tensor with a dimension of blocks and one of steps in place of one of all steps."""
        shape = (*desc.shape[:axis], self.count, self.size, *desc.shape[axis + 1 :])
        return TensorDesc(self.split_dims(desc.dims, axis), shape, desc.dtype)

    def split_dims(self, dims: Sequence[str], axis: int) -> tuple[str, ...]:
        return (*dims[:axis], _find_new("block", dims), *dims[axis:])


def _find_new(name: str, known: Mapping[str, int] | Sequence[str]) -> str:
    while name in known:
        name += "_"
    return name


def replace_name(names: Sequence[str], old: str, *new: str) -> tuple[str, ...]:
    return tuple(part for name in names for part in (new if name == old else (name,)))


def list_new_reads(program: ScalarProgram, reads: Sequence[Read]) -> tuple[ScalarProgram, tuple[Read, ...]]:
    """A program and what it reads, without what it does not."""
    pruned, kept = program.without_unread()
    return pruned, tuple(reads[number] for number in kept)


def join_blocks(
    parts: Sequence[tuple[TensorDesc, Sequence[int]]],
    output: TensorDesc,
    axis: int,
    steps: BlockedSteps,
    program: ScalarProgram,
) -> Operator:
    """A program over tensors with blocks in place of the dimension `axis` of the output: each has, for its dimensions,
    those of the output, where `axis` stands for steps, and -1 for blocks."""
    names = [f"i{dim}" for dim in range(output.rank)]
    along = ((names[axis], 1),)
    reads = []
    for number, (_, dims) in enumerate(parts):
        positions = [
            Position(along, divisor=steps.size) if dim < 0
            else Position(along, modulus=steps.size) if dim == axis
            else Position(((names[dim], 1),))
            for dim in dims
        ]  # fmt: skip
        reads.append(TensorRead(number, tuple(positions)))
    loops = tuple(zip(names, output.shape, strict=True))
    joined = IndexProgram(loops, len(loops), tuple(reads), program.text, "")
    return build_index_operator([desc for desc, _ in parts], joined, program, output.dims)


def copy_program() -> ScalarProgram:
    """The program of one input that is its result."""
    return ProgramBuilder(1).program(ScalarInput(0))
