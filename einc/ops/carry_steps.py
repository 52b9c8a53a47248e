"""What a step takes over from the run before beside caches: the operators that read it, and that find what is kept.

A carry is a state in which each sequence has a row. Tokens go on from it if they stand behind the last one that
counted, and start anew at position 0. Of equal positions in a run, with which a row of tokens is filled up, the last
one counts, as in caches. What runs again at a position that has counted changes nothing, but has no results: these
would need what was carried before.
"""

from __future__ import annotations

from collections.abc import Sequence

from einc.core.tensor import DType, TensorDesc
from einc.ops import registry
from einc.ops.base import Operator
from einc.ops.index_operator import build_index_operator
from einc.ops.scalar import ProgramBuilder
from einc.ops.step_forms import StepCarry, StepTokens
from einc_runtime.plan.index_programs import NEAREST_ELEMENT, IndexProgram, IndexRead, Position, Read, TensorRead
from einc_runtime.plan.scalar_programs import Operand, ScalarInput, ScalarLiteral

_SEQUENCE, _TOKEN = "s", "t"
_ZERO = ScalarLiteral("0")


class _CarryReader:
    """An index program over states of carries, as it is written: its operands are a state, if it reads one, the
    positions, and the table of blocks, if there is one. A loop `s` runs over sequences, if there are several."""

    def __init__(self, tokens: StepTokens, state: TensorDesc | None = None) -> None:
        self.operands = [] if state is None else [state]
        self.tokens, self.builder = tokens, ProgramBuilder(0)
        self._positions = self.add(tokens.positions)
        self._reads: list[Read] = []
        self.sequence = Position(((_SEQUENCE, 1),)) if tokens.sequences > 1 else Position((), 0)
        self.row = self.sequence
        if state is not None and tokens.blocks is not None:
            first = self.read(self.add(tokens.table), self.sequence, Position((), 0))
            self.row = Position(((f"@{first.position}", 1),))

    def add(self, desc: TensorDesc) -> int:
        """Adds an operand, and returns its number."""
        self.operands.append(desc)
        return len(self.operands) - 1

    def read(self, operand: int, *positions: Position, outside: str = "") -> ScalarInput:
        self._reads.append(TensorRead(operand, positions, outside))
        return ScalarInput(len(self._reads) - 1)

    def read_position(self, offset: int, loop: str = "", outside: str = "") -> ScalarInput:
        """The position of the new token of each sequence at this offset, or so far behind that at `loop`."""
        terms = ((_SEQUENCE, self.tokens.new),) if self.tokens.sequences > 1 else ()
        at = Position((*terms, *(((loop, 1),) if loop else ())), offset)
        return self.read(self._positions, at, outside=outside)

    def read_loop(self, loop: str) -> ScalarInput:
        self._reads.append(IndexRead(loop))
        return ScalarInput(len(self._reads) - 1)

    def read_last(self) -> Operand:
        """The last position that counted of a text, before the new tokens; -1 where they begin one."""
        last = self.read(0, Position((), 0), self.row, Position((), 0))
        return self.builder.add("where", self.is_first(), ScalarLiteral("-1"), last)

    def is_first(self) -> Operand:
        """Whether the new tokens of a sequence begin a text."""
        return self.builder.add("eq", self.read_position(0), _ZERO)

    def build(self, value: Operand, loops: Sequence[tuple[str, int]], dims: Sequence[str]) -> Operator:
        self.builder.arity = len(self._reads)
        scalar = self.builder.program(value)
        program = IndexProgram(tuple(loops), len(loops), tuple(self._reads), scalar.text, "")
        return build_index_operator(self.operands, program, scalar, dims)


def make_rows(tokens: StepTokens) -> Operator:
    """The rows of sequences [sequences] among the places of a state's parts, of the table of blocks, the first block of
    each; without blocks, each sequence has a part of one row, and they are 0, of the positions."""
    loops, position = [(_SEQUENCE, tokens.sequences)], Position(((_SEQUENCE, 1),))
    builder, desc = ProgramBuilder(1), tokens.positions
    row: Operand = ScalarInput(0)
    if tokens.blocks is not None:
        desc, read = tokens.table, TensorRead(0, (position, Position((), 0)))
    else:
        read = TensorRead(0, (Position(((_SEQUENCE, tokens.new),)),))
        row = builder.add("min", row, _ZERO)
    scalar = builder.program(row)
    program = IndexProgram(tuple(loops), 1, (read,), scalar.text, "")
    return build_index_operator([desc], program, scalar, ("sequences",))


def make_counter(tokens: StepTokens) -> Operator:
    """Which new tokens count (`StepTokens.counted`): of the state with the last position, the positions, and the table,
    if there is one."""
    reader = _CarryReader(tokens, tokens.carry(1, DType.I64))
    add, last = reader.builder.add, reader.read_last()
    position = reader.read_position(0, _TOKEN)
    following = reader.read_position(1, _TOKEN, NEAREST_ELEMENT)
    is_last = add(
        "or", add("gt", following, position), add("eq", reader.read_loop(_TOKEN), ScalarLiteral(str(tokens.new - 1)))
    )
    counts = add("and", add("gt", position, last), is_last)
    loops = [(_SEQUENCE, tokens.sequences)] * (tokens.sequences > 1) + [(_TOKEN, tokens.new)]
    return reader.build(counts, loops, tokens.counted.dims)


def make_last_position(tokens: StepTokens) -> Operator:
    """The last position that counts [1, sequences, 1] after the new tokens: of the same as `make_counter`."""
    reader = _CarryReader(tokens, tokens.carry(1, DType.I64))
    last = reader.builder.add("max", reader.read_last(), reader.read_position(tokens.new - 1))
    return reader.build(last, [("i", 1), (_SEQUENCE, tokens.sequences), ("j", 1)], tokens.carry(1, DType.I64).dims)


def make_start(carry: StepCarry, start: TensorDesc | None, tokens: StepTokens) -> Operator:
    """What is carried up to the first new token: of the state, the positions, the table, if there is one, and `start`,
    what it is before the first token of a text, if that is no number."""
    names = [_SEQUENCE if axis == carry.axis else f"i{axis}" for axis in range(carry.desc.rank)]
    extents = list(zip(names, carry.desc.shape, strict=True))
    width = 1
    terms: list[tuple[str, int]] = []
    for name, extent in reversed(extents):
        if name != _SEQUENCE:
            terms.insert(0, (name, width))
            width *= extent
    reader = _CarryReader(tokens, tokens.carry(width, carry.desc.dtype))
    initial: Operand
    if start is None:
        assert isinstance(carry.initial, str)
        initial = ScalarLiteral(carry.initial)
    else:
        axes = carry.initial[1]
        initial = reader.read(reader.add(start), *(Position(((names[int(axis)], 1),)) for axis in axes))
        if start.dtype is not carry.desc.dtype:
            initial = reader.builder.add(f"cast:{carry.desc.dtype}", initial)
    carried = reader.read(0, Position((), 0), reader.row, Position(tuple(terms)))
    value = reader.builder.add("where", reader.is_first(), initial, carried)
    return reader.build(value, extents, carry.desc.dims)


def make_picker(desc: TensorDesc, carry: StepCarry, tokens: StepTokens) -> Operator:
    """What is carried after the last new token, sequences first: of what is carried after each of them."""
    names = [f"i{axis}" for axis in range(desc.rank)]
    order = [axis for axis in range(desc.rank) if axis != carry.along]
    if carry.axis is not None:
        order.insert(0, order.pop(carry.axis))
    last = Position((), tokens.new - 1)
    read = [last if axis == carry.along else Position(((name, 1),)) for axis, name in enumerate(names)]
    scalar = ProgramBuilder(1).program(ScalarInput(0))
    loops = tuple((names[axis], desc.shape[axis]) for axis in order)
    program = IndexProgram(loops, len(loops), (TensorRead(0, tuple(read)),), scalar.text, "")
    return build_index_operator([desc], program, scalar, [desc.dims[axis] for axis in order])


def make_keeper(state: TensorDesc, tokens: StepTokens) -> Operator:
    """Writes a row of each sequence: of the state, the new rows [1, sequences, width], and the places of rows."""
    new = TensorDesc(state.dims, (1, tokens.sequences, state.shape[2]), state.dtype)
    lens = (1,) * tokens.sequences
    packed = {"cache_lens": lens, "new_lens": lens}
    if tokens.blocks is not None:  # each row may be anywhere
        packed = {"cache_lens": (state.shape[1],), "new_lens": (tokens.sequences,)}
    rows = TensorDesc(("sequences",), (tokens.sequences,), DType.I64)
    return registry.restore("append", (state, new, rows), packed)
