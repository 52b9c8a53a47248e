"""How an index program computes new tokens: from its own positions, with what lies behind them from caches.

With the loop t of tokens in its result, a program may read

- a tensor of tokens at t: the new tokens alone are needed;
- at t plus what is never above 0: the last few tokens are kept (the window of a causal convolution), or a cache has all
  (a longer one, and the token 0);
- at numbers that are data, of which an input says which tokens they are: they count from the first new token;
- at any k of a running aggregate over `k <= t`: what it was at the token before is carried (`recurrence_steps`), and
  where values are read at other places than k, a cache has them;
- everything else, and the value of t, at the position of a new token.

The loop t has as many places as there are new tokens then, and an element of the positions stands for its value.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from einc.core.tensor import TensorDesc
from einc.errors import OperatorError
from einc.ops.base import Operator
from einc.ops.index_operator import IndexOperator, build_index_operator, find_lookup, find_parts
from einc.ops.recurrence_steps import find_recurrence_step
from einc.ops.running_steps import write_recurrence
from einc.ops.step_forms import (
    Dependence,
    Pairs,
    Source,
    StepForm,
    StepInput,
    StepTokens,
    TokenForm,
    TokenWindow,
    read_same,
    require_rows,
    require_single,
)
from einc_runtime.plan.index_patterns import RunningAggregate, find_pattern
from einc_runtime.plan.index_programs import (
    NEAREST_ELEMENT,
    IndexProgram,
    IndexRead,
    Position,
    Read,
    TensorRead,
    make_position,
)

MAX_REACH = 16
"""The most tokens before a new one that are copied to a window of it; of longer windows, a cache has all tokens."""


def find_index_step(operator: IndexOperator, forms: Sequence[TokenForm], tokens: StepTokens) -> StepForm:
    """As `einc.ops.steps.find_step_form`, for an index program of which some operand has tokens."""
    program = operator.program
    if numbers_tokens(operator, forms):
        return _find_rows(operator, forms, tokens)
    reads = _list_token_reads(program, forms)
    if all(position == Position((), tokens.model_extent - 1) for _, position in reads):
        return _find_last(operator, forms, tokens)
    running = _find_running_aggregate(operator, reads)
    if running is not None:
        recurrence = write_recurrence(operator, running, tokens.model_extent)
        if recurrence is not None:
            return find_recurrence_step(recurrence, forms, tokens)
    loop = running.along if running is not None else _find_token_loop(program, reads)
    parts = find_parts(operator)
    if parts is not None and program.result[parts.axis] == loop:
        raise OperatorError("mixes the tokens with another dimension")
    if program.extents[loop] < tokens.model_extent:
        raise OperatorError(f"makes results for {program.extents[loop]} of {tokens.model_extent} tokens")
    cached = {
        operand
        for operand, position in reads
        if not (running is None and _is_own_token(position, loop))
        and _require_earlier(program, position, loop, running)
    }
    windows = {} if running is not None else _find_windows(program, forms, loop, cached)
    aggregated = running.loop if running else None
    return _Rewriting(
        operator, tuple(forms), tokens, loop, aggregated, frozenset(cached - windows.keys()), windows
    ).write()


def _find_windows(
    program: IndexProgram, forms: Sequence[TokenForm], loop: str, operands: Iterable[int]
) -> dict[int, TokenWindow]:
    """Those of these operands that are read at the last few tokens alone."""
    windows = {}
    for operand in sorted(operands):
        reads = program.operand_reads(operand)
        axis = forms[operand]
        assert isinstance(axis, int)
        spans = [_find_span(program, read.positions[axis], loop) for read in reads]
        outside = {read.outside for read in reads} - {""}
        before = -min(span if span is not None else -MAX_REACH - 1 for span in spans)
        if 1 <= before <= MAX_REACH and len(outside) == 1 and NEAREST_ELEMENT not in outside:
            windows[operand] = TokenWindow(before, *outside)
    return windows


def _find_span(program: IndexProgram, position: Position, loop: str) -> int | None:
    """How far from the token of the result the first one is that is read; None where this is not known."""
    span = _leave_out(position, loop).span(program.whole) if dict(position.terms).get(loop) == 1 else None
    return None if span is None else span[0]


def _leave_out(position: Position, loop: str) -> Position:
    return Position(tuple(term for term in position.terms if term[0] != loop), position.constant)


def rewrite_at_positions(
    operator: IndexOperator, forms: Sequence[TokenForm], tokens: StepTokens, loop: str, cached: frozenset[int]
) -> StepForm:
    """The program with a loop over new tokens, at their positions, and some operands from caches."""
    return _Rewriting(operator, tuple(forms), tokens, loop, None, cached, {}).write()


def numbers_tokens(operator: Operator, forms: Sequence[TokenForm]) -> bool:
    """Whether an operator looks up tokens by their numbers."""
    lookup = find_lookup(operator)
    if lookup is None or not isinstance(forms[lookup.ids], Dependence):
        return False
    return forms[lookup.table] == lookup.dim


def _find_rows(operator: IndexOperator, forms: Sequence[TokenForm], tokens: StepTokens) -> StepForm:
    """Rows of tokens by their numbers, which count from the first new token in a step."""
    descs = [tokens.shorten(desc, form) for desc, form in zip(operator.operands, forms, strict=True)]
    looked_up = build_index_operator(descs, operator.program, operator.scalar, operator.dims)
    return StepForm(looked_up, read_same(forms), (Dependence.LAST,))


def _list_token_reads(program: IndexProgram, forms: Sequence[TokenForm]) -> list[tuple[int, Position]]:
    """Each read of tokens: the operand, and the position along its dimension of tokens."""
    return [
        (read.operand, read.positions[form])
        for read in program.reads
        if isinstance(read, TensorRead) and isinstance(form := forms[read.operand], int)
    ]


def _find_running_aggregate(operator: IndexOperator, reads: Iterable[tuple[int, Position]]) -> RunningAggregate | None:
    """The running aggregate over tokens that the program is; None for any other."""
    pattern = find_pattern(operator.program, operator.outputs[0].dtype.value)
    if not isinstance(pattern, RunningAggregate) or not all(pattern.loop in dict(p.terms) for _, p in reads):
        return None
    if pattern.is_behind:
        raise OperatorError("aggregates over later tokens")
    return pattern


def _find_token_loop(program: IndexProgram, reads: Iterable[tuple[int, Position]]) -> str:
    """The loop of the result along which all positions of tokens run."""
    loops = {name for _, position in reads for name in program.result if name in position.loops}
    if len(loops) > 1 and all(len(position.loops) == 1 for _, position in reads):
        raise OperatorError("joins every token with every token")
    for name in program.result:
        if name in loops and all(dict(p.terms).get(name) == 1 or not p.terms for _, p in reads):
            return name
    if any(position.elements for _, position in reads):
        raise OperatorError("reads tokens at positions that are data")
    if not any(position.terms for _, position in reads):
        raise OperatorError("reads certain tokens; of a step, the last one can be read")
    if not loops:
        raise OperatorError("aggregates over all tokens, so that a new one changes what was made of all before it")
    raise OperatorError("reads tokens at other positions than that of the result and those before it")


def _is_own_token(position: Position, loop: str) -> bool:
    return position == Position(((loop, 1),))


def _require_earlier(program: IndexProgram, position: Position, loop: str, running: RunningAggregate | None) -> bool:
    """Raises OperatorError for a position that may be behind that of the result."""
    counted = running.loop if running is not None else loop
    limit = 0 if running is None else -running.shift
    terms = dict(position.terms)
    if position.elements:
        raise OperatorError("reads tokens at positions that are data")
    if position.divisor != 1 or position.modulus:
        raise OperatorError(f"reads tokens at the positions {position}, which are not known to be earlier ones")
    if not terms and position.constant == 0:
        return True  # the first token, which is never behind another one
    span = _leave_out(position, counted).span(program.whole)
    assert span is not None
    if terms.get(counted) != 1 or (loop in terms and loop != counted):
        raise OperatorError(f"reads tokens at the positions {position}, which are not known to be earlier ones")
    if span[1] - 1 > limit:
        raise OperatorError(f"reads tokens at the positions {position}, up to {span[1] - 1} behind that of the result")
    return True


def _find_last(operator: IndexOperator, forms: Sequence[TokenForm], tokens: StepTokens) -> StepForm:
    """Of the last token alone."""
    require_rows(tokens)
    descs = [tokens.shorten(desc, form) for desc, form in zip(operator.operands, forms, strict=True)]
    last = Position((), tokens.new_extent - 1)

    def move(read: Read) -> Read:
        form = forms[read.operand] if isinstance(read, TensorRead) else Dependence.NONE
        if isinstance(read, IndexRead) or not isinstance(form, int):
            return read
        return replace(read, positions=(*read.positions[:form], last, *read.positions[form + 1 :]))

    program = replace(operator.program, reads=tuple(map(move, operator.program.reads)))
    written = build_index_operator(descs, program, operator.scalar, operator.dims)
    return StepForm(written, read_same(forms), (Dependence.LAST,) * len(operator.outputs))


@dataclass(frozen=True, slots=True)
class _Rewriting:
    """A program whose loop `loop` runs over tokens, the operands in `cached` from caches, of which a running aggregate
    has those at its loop `aggregated`, and those in `windows` from windows."""

    operator: IndexOperator
    forms: tuple[TokenForm, ...]
    tokens: StepTokens
    loop: str
    aggregated: str | None
    cached: frozenset[int]
    windows: Mapping[int, TokenWindow]

    def write(self) -> StepForm:
        program, operands = self.operator.program, self.operator.operands
        reads = [self._move(read) for read in program.reads]
        descs = [self._shorten(number, desc) for number, desc in enumerate(operands)]
        inputs = [self._read(number) for number in range(len(operands))]
        if self.windows or self.cached or reads != list(program.reads):
            require_single(self.tokens, "knows the positions of tokens")
        if self.cached or self._names_positions(reads):
            reads.append(TensorRead(len(operands), (Position(((self.loop, 1),)),)))
            descs.append(self.tokens.positions)
            inputs.append(StepInput(Source.POSITIONS))
        arity = len(reads)
        loops = tuple((name, self._find_extent(name, extent)) for name, extent in program.loops)
        changed = IndexProgram(loops, program.kept, tuple(reads), program.program, program.aggregation)
        scalar = replace(self.operator.scalar, arity=arity)
        written = build_index_operator(descs, changed, scalar, self.operator.dims)
        return StepForm(written, tuple(inputs), (program.result.index(self.loop),) * len(written.outputs))

    def _names_positions(self, reads: Sequence[Read]) -> bool:
        """Whether reads depend on the positions, which are read behind all others."""
        element, number = f"@{len(self.operator.program.reads)}", len(self.operator.operands)
        tensors = [read for read in reads if isinstance(read, TensorRead)]
        return any(r.operand == number or element in dict(p.terms) for r in tensors for p in r.positions)

    def _find_extent(self, name: str, extent: int) -> int:
        """The positions of a loop: new tokens, or all that a cache has where these are aggregated."""
        if name == self.loop:
            return self.tokens.new_extent
        return min(extent, self.tokens.model_extent) if name == self.aggregated else extent

    def _find_rows(self, number: int) -> int | None:
        """The dimension of an operand without tokens of which the rows of new tokens are read before, because positions
        are its elements, and may not depend on elements that depend on others."""
        program = self.operator.program
        if self.forms[number] is not Dependence.NONE:
            return None
        reads = {f"@{k}": r for k, r in enumerate(program.reads) if isinstance(r, TensorRead) and r.operand == number}
        named = {name for r in program.reads if isinstance(r, TensorRead) for p in r.positions for name, _ in p.terms}
        axes = {axis for r in reads.values() for axis, p in enumerate(r.positions) if self.loop in dict(p.terms)}
        if named.isdisjoint(reads) or len(axes) != 1:
            return None
        (axis,) = axes
        return axis if all(_is_own_token(r.positions[axis], self.loop) for r in reads.values()) else None

    def _shorten(self, number: int, desc: TensorDesc) -> TensorDesc:
        form = self.forms[number]
        if (rows := self._find_rows(number)) is not None:
            return self.tokens.shorten(desc, rows)
        if number in self.windows and isinstance(form, int):
            return self.tokens.divide_windows(desc, form, self.windows[number])
        if number in self.cached and isinstance(form, int):
            keep = self.tokens.keep_apart if self.tokens.sequences > 1 else self.tokens.keep
            return (self.tokens.flatten if self._reads_state(number) else keep)(desc, form)
        return self.tokens.shorten(desc, form)

    def _read(self, number: int) -> StepInput:
        form = self.forms[number]
        if number in self.windows:
            assert isinstance(form, int)
            return StepInput(Source.WINDOW, number, form, self.windows[number])
        if number in self.cached:
            assert isinstance(form, int)
            source = Source.APART if self.tokens.sequences > 1 else Source.CACHE
            return StepInput(Source.STATE if self._reads_state(number) else source, number, form)
        if (rows := self._find_rows(number)) is not None:
            return StepInput(Source.ROWS, number, rows)
        return StepInput(Source.SAME, number)

    def _move(self, read: Read) -> Read:
        """The read at the position of a new token, where it depends on that."""
        if isinstance(read, IndexRead):
            positions = TensorRead(len(self.operator.operands), (Position(((self.loop, 1),)),))
            return positions if read.loop == self.loop else read
        form = self.forms[read.operand]
        axis = form.queries if isinstance(form, Pairs) else self._find_rows(read.operand)
        axis = form if isinstance(form, int) else axis
        if read.operand in self.windows and isinstance(axis, int):
            moved = [self._move_position(position) for position in read.positions]
            behind = _leave_out(read.positions[axis], self.loop)
            column = replace(behind, constant=behind.constant + self.windows[read.operand].before)
            moved[axis : axis + 1] = Position(((self.loop, 1),)), column
        elif read.operand not in self.cached:
            moved = [p if at == axis else self._move_position(p) for at, p in enumerate(read.positions)]
        else:
            moved = [self._move_position(position) for position in read.positions]
        if self._reads_state(read.operand) and isinstance(axis, int):
            first = Position((), 0)
            moved = [moved[0] if axis else first, moved[axis], moved[-1] if axis < len(moved) - 1 else first]
        elif read.operand in self.cached and self.tokens.sequences > 1 and isinstance(axis, int):
            moved.insert(axis, Position(((self.loop, 1),), divisor=self.tokens.new))
        return replace(read, positions=tuple(moved))

    def _reads_state(self, number: int) -> bool:
        """Whether an operand is read as the state has it, which is then not copied: it has at most one dimension before
        that of tokens, and at most one behind."""
        axis, rank = self.forms[number], self.operator.operands[number].rank
        plain = number in self.cached and self.tokens.sequences == 1
        return plain and isinstance(axis, int) and axis <= 1 and rank - axis <= 2

    def _move_position(self, position: Position) -> Position:
        """The position with the element of the positions, which are read last, in place of the loop."""
        terms = dict(position.terms)
        if self.loop not in terms:
            return position
        order = {name: number for number, (name, _) in enumerate(self.operator.program.loops)}
        added = (f"@{len(self.operator.program.reads)}", terms.pop(self.loop))
        return replace(
            make_position([*terms.items(), added], position.constant, order),
            divisor=position.divisor,
            modulus=position.modulus,
        )
