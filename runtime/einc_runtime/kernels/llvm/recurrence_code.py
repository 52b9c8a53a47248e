"""Machine code for a recurrence: loops over steps and index vectors, with a vector of lanes in each.

`heads` are loops outside of the steps. Where the lanes are `outside` too, each vector of them goes through all steps
before the next one; else all vectors of an equation are computed at each step. Values of the step and of the one before
lie in scratch memory, with the lanes last; a value without the loop of the lanes has its element in each of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from einc_runtime.dtypes import ITEMSIZE, compute_type
from einc_runtime.kernels.llvm import compiler
from einc_runtime.plan.index_patterns import find_identity
from einc_runtime.plan.recurrences import OperandRead, Recurrence, RecurrenceEquation, RecurrenceRead, ValueRead
from einc_runtime.plan.scalar_programs import Operand, ScalarInput, ScalarLiteral, TypedStep
from einc_runtime.plan.schema import INTEGERS

Value = Any
"""A value in the module under construction."""

AHEAD = 6
"""Steps ahead whose elements are asked for: where lanes go through all steps, each step lies in another page."""


@dataclass(frozen=True, slots=True)
class LaneChoice:
    """The loops outside of the steps, from the outermost one; that of the lanes; and whether that is outside, too."""

    heads: tuple[str, ...]
    lane: str
    outside: bool

    def value_loops(self, recurrence: Recurrence, equation: RecurrenceEquation) -> tuple[str, ...]:
        """The loops of the buffers of an equation's value, in front of the lanes."""
        gone = (recurrence.along, *self.heads, self.lane)
        return tuple(name for name in equation.loops if name not in gone)


@dataclass(slots=True)
class _LanePosition:
    """Where the code is: the value of each loop around it, the first lane, and which lanes count."""

    at: dict[str, Value] = field(default_factory=dict)
    lane: Value | None = None
    mask: Value | None = None


@compiler.compile_once
def emit_recurrence(
    recurrence: Recurrence,
    choice: LaneChoice,
    steps: tuple[tuple[TypedStep, ...], ...],
    inputs: tuple[str, ...],
    outputs: tuple[str, ...],
) -> Any:
    """Code for a recurrence whose extents are arguments; `steps` are those of each equation, `inputs` and `outputs` the
    types of operands and results.

    Arguments: the extent of each loop; for each operand and each result the address and a stride for each dimension;
    and for each equation the addresses of both buffers of its value, and their stride along each of its loops.
    """
    from einc_runtime.kernels.llvm.emitter import Emitter

    return _RecurrenceEmitter(Emitter(), recurrence, choice, steps, inputs, outputs).emit()


class _RecurrenceEmitter:
    """The code under construction."""

    def __init__(
        self,
        e: Any,
        recurrence: Recurrence,
        choice: LaneChoice,
        steps: Sequence[tuple[TypedStep, ...]],
        inputs: Sequence[str],
        outputs: Sequence[str],
    ) -> None:
        self.e, self.b = e, e.b
        self.recurrence, self.choice, self.steps = recurrence, choice, steps
        self.inputs, self.outputs = inputs, outputs
        self.extents = {name: e.argument() for name, _ in recurrence.loops}
        ranks = {read.source: len(read.loops) for read in recurrence.operand_reads}
        self.operands = [(e.argument(), [e.argument() for _ in range(ranks[k])]) for k in range(len(inputs))]
        self.results = {
            number: (e.argument(), [e.argument() for _ in recurrence.equations[number].loops])
            for number in recurrence.results
        }
        self.buffers = []
        for equation in recurrence.equations:
            pair = (e.variable(e.argument()), e.variable(e.argument()))
            self.buffers.append((pair, [e.argument() for _ in choice.value_loops(recurrence, equation)]))

    def emit(self) -> Any:
        self._nest(self.choice.heads, _LanePosition(), self._run)
        return self.e.finish()

    def _nest(self, loops: Sequence[str], position: _LanePosition, body: Callable[[_LanePosition], None]) -> None:
        """Calls `body` within loops, from the outermost one."""
        if not loops:
            body(position)
            return
        with self.e.loop(self.extents[loops[0]]) as index:
            inner = _LanePosition({**position.at, loops[0]: index}, position.lane, position.mask)
            self._nest(loops[1:], inner, body)

    def _sweep(self, position: _LanePosition, body: Callable[[_LanePosition], None]) -> None:
        """Calls `body` for each vector of lanes."""
        self.e.sweep(self.extents[self.choice.lane], lambda lane, mask: body(_LanePosition(position.at, lane, mask)))

    def _run(self, position: _LanePosition) -> None:
        if self.choice.outside:
            self._sweep(position, self._go_through_steps)
        else:
            self._go_through_steps(position)

    def _go_through_steps(self, position: _LanePosition) -> None:
        b, along = self.b, self.recurrence.along
        for number in self.recurrence.carried:
            self._visit(number, position, self._start)
        with self.e.loop(self.extents[along]) as t:
            step = _LanePosition({**position.at, along: t}, position.lane, position.mask)
            if self.choice.outside:
                self._prefetch(step)
            for number in range(len(self.recurrence.equations)):
                self._visit(number, step, self._compute)
            for (now, before), _ in self.buffers:
                now_row, before_row = b.load(now), b.load(before)
                b.store(before_row, now)
                b.store(now_row, before)

    def _visit(self, number: int, position: _LanePosition, body: Callable[[int, _LanePosition], None]) -> None:
        """Calls `body` for each vector of an equation's value at one step."""
        equation = self.recurrence.equations[number]
        loops = self.choice.value_loops(self.recurrence, equation)

        def visit(inner: _LanePosition) -> None:
            if not self.choice.outside and self.choice.lane in equation.loops:
                self._sweep(inner, lambda vector: body(number, vector))
            else:
                body(number, inner)

        self._nest(loops, position, visit)

    def _start(self, number: int, position: _LanePosition) -> None:
        """Writes what a value is before the first step."""
        equation = self.recurrence.equations[number]
        initial, kind = equation.initial, compute_type(equation.dtype)
        if isinstance(initial, OperandRead):
            value = self._read(initial, position)
        else:
            value = self._number(ScalarLiteral(initial).value, kind)
        self._put(number, position, value, before=True)

    def _number(self, value: Any, kind: str) -> Value:
        from einc_runtime.kernels.llvm.emitter import BIT, F32, I32, I64

        element = {"f32": F32, "bool": BIT, "i32": I32, "i64": I64}[kind]
        return self.e.number(float(value) if kind == "f32" else int(value), element)

    def _compute(self, number: int, position: _LanePosition) -> None:
        """One vector of an equation's value."""
        equation = self.recurrence.equations[number]
        value = self._aggregate(number, position) if equation.aggregation else self._evaluate(number, position, {})
        self._put(number, position, value, before=False)
        if number in self.results:
            self._store(number, position, value)

    def _evaluate(self, number: int, position: _LanePosition, known: Mapping[int, Value]) -> Value:
        """The value of a scalar program; `known` are reads that were made before."""
        from einc_runtime.kernels.llvm.vectors import evaluate

        reads = self.recurrence.equations[number].reads
        inputs = [known[k] if k in known else self._read(read, position) for k, read in enumerate(reads)]
        return evaluate(self.e, self.steps[number], inputs)

    def _aggregate(self, number: int, position: _LanePosition) -> Value:
        """Combines the values over all reduced loops; the innermost one has several results side by side."""
        e, b = self.e, self.b
        equation = self.recurrence.equations[number]
        *outer, last = equation.reduced
        kind = compute_type(equation.dtype)
        identity = self._number(find_identity(equation.aggregation, equation.dtype), kind)
        totals = [e.variable(identity) for _ in range(compiler.SUM_CHAINS)]
        known = {
            k: self._read(read, position)
            for k, read in enumerate(equation.reads)
            if not set(equation.reduced) & set(read.loops)
        }
        # Of a sum of products, the last product is added up as it is multiplied.
        product = self.steps[number][-1]
        fused = kind == "f32" and equation.aggregation == "sum" and product.function == "mul"

        def add(total: Value, inner: _LanePosition) -> None:
            before = b.load(total)
            if fused:
                left, right = self._multiply_last(number, inner, known)
                b.store(e.multiply_add(left, right, before), total)
            else:
                b.store(self._combine(equation.aggregation, kind, before, self._evaluate(number, inner, known)), total)

        def run(inner: _LanePosition) -> None:
            extent = self.extents[last]
            full = b.and_(extent, self._integer(-compiler.SUM_CHAINS))
            with e.loop(full, compiler.SUM_CHAINS) as start:
                for k, total in enumerate(totals):
                    index = b.add(start, self._integer(k))
                    add(total, _LanePosition({**inner.at, last: index}, inner.lane, inner.mask))
            with e.span(full, extent) as index:
                add(totals[0], _LanePosition({**inner.at, last: index}, inner.lane, inner.mask))

        self._nest(outer, position, run)
        values = [b.load(total) for total in totals]
        while len(values) > 1:
            half = len(values) // 2
            values = [
                self._combine(equation.aggregation, kind, x, y)
                for x, y in zip(values[:half], values[half:], strict=True)
            ]
        return values[0]

    def _multiply_last(self, number: int, position: _LanePosition, known: Mapping[int, Value]) -> tuple[Value, Value]:
        """The factors of the product with which a scalar program ends."""
        from einc_runtime.kernels.llvm.vectors import evaluate

        reads, steps = self.recurrence.equations[number].reads, self.steps[number]
        inputs = [known[k] if k in known else self._read(read, position) for k, read in enumerate(reads)]

        def find(operand: Operand) -> Value:
            if isinstance(operand, ScalarLiteral):
                return self._number(operand.value, steps[-1].operand_type)
            if isinstance(operand, ScalarInput):
                return inputs[operand.position]
            return evaluate(self.e, steps[: operand.position + 1], inputs)

        left, right = map(find, steps[-1].operands)
        return left, right

    def _integer(self, value: int) -> Value:
        from einc_runtime.kernels.llvm.emitter import I64

        return I64(value)

    def _combine(self, aggregation: str, kind: str, x: Value, y: Value) -> Value:
        e, b = self.e, self.b
        if kind in INTEGERS:
            if aggregation in ("sum", "prod"):
                return b.add(x, y) if aggregation == "sum" else b.mul(x, y)
            return b.select(b.icmp_signed(">" if aggregation == "max" else "<", x, y), x, y)
        functions = {"sum": b.fadd, "prod": b.fmul, "max": e.larger, "min": e.smaller}
        return functions[aggregation](x, y)

    # -- memory --

    def _place(self, start: Value, strides: Sequence[Value], loops: Sequence[str], position: _LanePosition) -> Value:
        """An address; the loop of the lanes is left out."""
        for name, stride in zip(loops, strides, strict=True):
            if name != self.choice.lane:
                start = self.b.add(start, self.b.mul(position.at[name], stride))
        return start

    def _read(self, read: RecurrenceRead, position: _LanePosition) -> Value:
        if isinstance(read, ValueRead):
            return self._read_value(read, position)
        start, strides = self.operands[read.source]
        address = self._place(start, strides, read.loops, position)
        kind = self.inputs[read.source]
        if self.choice.lane in read.loops:
            return self.e.load(address, position.lane, kind, position.mask)
        return self.e.load_one(address, kind)

    def _read_value(self, read: ValueRead, position: _LanePosition) -> Value:
        """Where the lanes of a value are read along another loop, one of them is read."""
        source = self.recurrence.equations[read.source]
        kind = compute_type(source.dtype)
        (now, before), strides = self.buffers[read.source]
        names = dict(zip(source.loops, read.loops, strict=True))
        loops = [names[name] for name in self.choice.value_loops(self.recurrence, source)]
        address = self._place(self.b.load(before if read.before else now), strides, loops, position)
        if self.choice.outside or self.choice.lane not in source.loops:
            return self.e.load(address, self._integer(0), kind, None)
        if names[self.choice.lane] == self.choice.lane:
            return self.e.load(address, position.lane, kind, None)
        index = self.b.mul(position.at[names[self.choice.lane]], self._integer(ITEMSIZE[kind]))
        return self.e.load_one(self.b.add(address, index), kind)

    def _put(self, number: int, position: _LanePosition, value: Value, *, before: bool) -> None:
        """Writes a vector of a value into its buffer, all lanes of it."""
        equation = self.recurrence.equations[number]
        (now, earlier), strides = self.buffers[number]
        loops = self.choice.value_loops(self.recurrence, equation)
        address = self._place(self.b.load(earlier if before else now), strides, loops, position)
        is_whole = self.choice.outside or self.choice.lane not in equation.loops
        self.e.store(
            value, address, self._integer(0) if is_whole else position.lane, compute_type(equation.dtype), None
        )

    def _store(self, number: int, position: _LanePosition, value: Value) -> None:
        """Writes a vector of a result."""
        equation = self.recurrence.equations[number]
        start, strides = self.results[number]
        address = self._place(start, strides, equation.loops, position)
        kind = self.outputs[self.recurrence.results.index(number)]
        if self.choice.lane in equation.loops:
            self.e.store(value, address, position.lane, kind, position.mask)
        else:
            self.e.store_one(value, address, kind)

    def _prefetch(self, position: _LanePosition) -> None:
        """Asks for the elements of a later step that lie beside each other along the lanes alone."""
        along, lane = self.recurrence.along, self.choice.lane
        later = self.b.add(position.at[along], self._integer(AHEAD))
        ahead = _LanePosition({**position.at, along: later}, position.lane)
        known = set(ahead.at) | {lane}
        reads = [read for read in self.recurrence.operand_reads if {along, lane} <= set(read.loops) <= known]
        for read in dict.fromkeys(reads):
            start, strides = self.operands[read.source]
            address = self._place(start, strides, read.loops, ahead)
            offset = self.b.mul(position.lane, self._integer(ITEMSIZE[self.inputs[read.source]]))
            self.e.prefetch(address, offset)
