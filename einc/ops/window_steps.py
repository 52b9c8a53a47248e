"""The tokens that windows of convolutions reach back to: a step keeps the last few rows of a tensor, and no others.

A state has as many rows for each sequence as a window has tokens before its last one; the row of position p is p modulo
this number. With new tokens, a tensor of windows is made: of each new token, what stood at the tokens before it and at
itself, from the new rows or from the state. Then the new rows take the places of the oldest ones, if they count; else
they are written to a spare row. Which tokens count is as with carries (`carry_steps`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from einc.core.tensor import DType, TensorDesc
from einc.ops.arguments import make_unique
from einc.ops.base import Operator
from einc.ops.index_operator import build_index_operator
from einc.ops.scalar import ProgramBuilder
from einc.ops.step_forms import StepTokens, TokenWindow
from einc_runtime.plan.index_programs import NEAREST_ELEMENT, IndexProgram, IndexRead, Position, Read, TensorRead
from einc_runtime.plan.scalar_programs import Operand, ScalarInput, ScalarLiteral

_SEQUENCE, _TOKEN, _PLACE = "s", "t", "w"
_DIMS = {_SEQUENCE: "sequences", _TOKEN: "tokens", _PLACE: "window"}


@dataclass(frozen=True, slots=True)
class WindowPlaces:
    """Index programs over the new tokens of each sequence and the places of their windows, the token itself and so many
    `before` it. What they make has the dimension of sequences if there are several."""

    tokens: StepTokens
    before: int

    @property
    def loops(self) -> tuple[tuple[str, int], ...]:
        sequences = ((_SEQUENCE, self.tokens.sequences),) * (self.tokens.sequences > 1)
        return (*sequences, (_TOKEN, self.tokens.new), (_PLACE, self.before + 1))

    def desc(self, dtype: DType) -> TensorDesc:
        """A tensor that has something of each place of each window."""
        return TensorDesc(tuple(_DIMS[x] for x, _ in self.loops), tuple(extent for _, extent in self.loops), dtype)

    def find_token(self, *loops: str, offset: int = 0) -> Position:
        """Where in a dimension of all new tokens that one of a sequence is which these loops count."""
        sequence = ((_SEQUENCE, self.tokens.new),) if self.tokens.sequences > 1 else ()
        return Position((*sequence, *((name, 1) for name in loops)), offset)

    def find_new(self) -> Operator:
        """Which places are new tokens: of the positions."""
        reads = (TensorRead(0, (self.find_token(_TOKEN),)), IndexRead(_PLACE), TensorRead(0, (self.find_token(),)))
        builder = ProgramBuilder(len(reads))
        first = builder.add("add", ScalarInput(2), ScalarLiteral(str(self.before)))
        is_new = builder.add("ge", builder.add("add", ScalarInput(0), ScalarInput(1)), first)
        return self._build((self.tokens.positions,), reads, builder, is_new, self.loops)

    def find_kept(self) -> Operator:
        """The row of the state that has each place, -1 for those before a text: of the positions, and of the table of
        blocks, if there is one."""
        builder = ProgramBuilder(0)
        position = builder.add(
            "add", builder.add("add", ScalarInput(0), ScalarInput(1)), ScalarLiteral(f"-{self.before}")
        )
        is_before = builder.add("lt", position, ScalarLiteral("0"))
        row = builder.add("mod", position, ScalarLiteral(str(self.before)))
        reads = (TensorRead(0, (self.find_token(_TOKEN),)), IndexRead(_PLACE))
        return self._find_rows((self.tokens.positions,), reads, builder, row, self.loops, is_before)

    @property
    def recent(self) -> tuple[tuple[str, int], ...]:
        """The loops of the last new tokens, as many as the state has rows."""
        return (*self.loops[:-2], (_TOKEN, min(self.tokens.new, self.before)))

    def find_replaced(self) -> Operator:
        """The rows of the state that the last new tokens take, the spare one where they do not count: of the positions,
        of which tokens count, and of the table."""
        several = (Position(((_SEQUENCE, 1),)),) * (self.tokens.sequences > 1)
        reads = (
            TensorRead(0, (self.find_token(_TOKEN, offset=self._skipped),)),
            TensorRead(1, (*several, Position(((_TOKEN, 1),), self._skipped))),
        )
        builder, before = ProgramBuilder(0), ScalarLiteral(str(self.before))
        row = builder.add("where", ScalarInput(1), builder.add("mod", ScalarInput(0), before), before)
        return self._find_rows((self.tokens.positions, self.tokens.counted), reads, builder, row, self.recent)

    def take_recent(self, new: TensorDesc) -> Operator:
        """The last new tokens, of all new ones [before, tokens, behind]; several sequences are a dimension of their
        own."""
        first, last = ("i", new.shape[0]), ("j", new.shape[2])
        at = self.find_token(_TOKEN, offset=self._skipped)
        reads = (TensorRead(0, (Position((("i", 1),)), at, Position((("j", 1),)))),)
        scalar, loops = ProgramBuilder(1).program(ScalarInput(0)), (first, *self.recent, last)
        program = IndexProgram(loops, len(loops), reads, scalar.text, "")
        dims = make_unique((new.dims[0], *(_DIMS[name] for name, _ in self.recent), new.dims[2]))
        return build_index_operator([new], program, scalar, dims)

    @property
    def _skipped(self) -> int:
        return max(self.tokens.new - self.before, 0)

    def _find_rows(
        self,
        operands: tuple[TensorDesc, ...],
        reads: tuple[Read, ...],
        builder: ProgramBuilder,
        row: Operand,
        loops: Sequence[tuple[str, int]],
        is_before: Operand | None = None,
    ) -> Operator:
        """Rows among those of a sequence, counted among all: by the sequence's number, or that of its first block."""
        sequence = Position(((_SEQUENCE, 1),) if self.tokens.sequences > 1 else (), 0)
        numbers: tuple[Read, ...] = (IndexRead(_SEQUENCE),) if self.tokens.sequences > 1 else ()
        if self.tokens.blocks is not None:
            numbers = (TensorRead(len(operands), (sequence, Position((), 0))),)
            operands = (*operands, self.tokens.table)
        builder.arity = len(reads) + len(numbers)
        if numbers:
            first = builder.add("mul", ScalarInput(len(reads)), ScalarLiteral(str(self.before + 1)))
            row = builder.add("add", row, first)
        if is_before is not None:
            row = builder.add("where", is_before, ScalarLiteral("-1"), row)
        return self._build(operands, (*reads, *numbers), builder, row, loops)

    def _build(
        self,
        operands: Sequence[TensorDesc],
        reads: tuple[Read, ...],
        builder: ProgramBuilder,
        value: Operand,
        loops: Sequence[tuple[str, int]],
    ) -> Operator:
        scalar = builder.program(value)
        program = IndexProgram(tuple(loops), len(loops), reads, scalar.text, "")
        return build_index_operator(operands, program, scalar, [_DIMS[name] for name, _ in loops])


def make_windows(desc: TensorDesc, axis: int, window: TokenWindow, state: TensorDesc, tokens: StepTokens) -> Operator:
    """The windows of the new tokens: of the tensor of the step, the state, which places are new, and the rows that the
    others have. The result has the dimensions of `WindowPlaces.desc` in place of the tensor's tokens."""
    places = WindowPlaces(tokens, window.before)
    names = [f"i{number}" for number in range(desc.rank)]
    at = [Position(((name, 1),)) for name in names]
    kept = _flatten(names[:axis], desc.shape[:axis]), _flatten(names[axis + 1 :], desc.shape[axis + 1 :])
    each = tuple(Position(((name, 1),)) for name, _ in places.loops)
    new = places.find_token(_TOKEN, _PLACE, offset=-window.before)
    reads = (
        TensorRead(0, (*at[:axis], new, *at[axis + 1 :]), NEAREST_ELEMENT),
        TensorRead(1, (kept[0], Position((("@3", 1),)), kept[1]), window.outside),
        TensorRead(2, each),
        TensorRead(3, each),
    )
    builder = ProgramBuilder(len(reads))
    scalar = builder.program(builder.add("where", ScalarInput(2), ScalarInput(0), ScalarInput(1)))
    loops = list(zip(names, desc.shape, strict=True))
    loops[axis : axis + 1] = places.loops
    sequences = places.desc(DType.I64).dims[:-2]
    dims = make_unique((*desc.dims[:axis], *sequences, desc.dims[axis], _DIMS[_PLACE], *desc.dims[axis + 1 :]))
    operands = (desc, state, places.desc(DType.BOOL), places.desc(DType.I64))
    return build_index_operator(operands, IndexProgram(tuple(loops), len(loops), reads, scalar.text, ""), scalar, dims)


def _flatten(names: Sequence[str], shape: Sequence[int]) -> Position:
    """The position of loops in a dimension that stands for all of them."""
    terms: list[tuple[str, int]] = []
    width = 1
    for name, extent in zip(reversed(names), reversed(shape), strict=True):
        terms.insert(0, (name, width))
        width *= extent
    return Position(tuple(terms), 0)
