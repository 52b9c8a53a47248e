"""The gradient of a recurrence: another one, which runs along the steps from the last to the first.

Each equation has an adjoint, the gradient of its value at a step: that of its result, and for each equation that reads
it, at the same step or at the next one, what that adds. What a read adds is an equation, too; so one that was read at
the step before is read at the step before in reverse. Tensors of steps are reversed first, and the adjoints afterwards.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from einc.core.tensor import DType
from einc.errors import OperatorError
from einc.ops.recurrence import RecurrenceOperator, build_recurrence, renumber_reads
from einc.ops.scalar import ProgramBuilder
from einc.training.derivatives import add_derivatives
from einc.training.joins import JoinDraft, TensorAccess, write_join
from einc.training.scatter import write_scatter
from einc.training.tape import NodeGradient
from einc_runtime.plan.index_programs import NEAREST_ELEMENT, Position
from einc_runtime.plan.recurrences import OperandRead, RecurrenceEquation, RecurrenceRead, ValueRead
from einc_runtime.plan.scalar_programs import Operand, ScalarInput, ScalarProgram


def differentiate_recurrence(node: NodeGradient) -> None:
    """Adds the gradients of what a recurrence reads."""
    operator = node.operator
    assert isinstance(operator, RecurrenceOperator)
    _Reversal(node, operator).write()


@dataclass
class _Reversal:
    """The reversed recurrence as far as it is written.

    `operands` are the tensors that it reads; `equations` are its equations, `adjoints` the number of that of each
    equation, and `shares` that of what each read of a value adds, by the equation and the number of the read.
    """

    node: NodeGradient
    operator: RecurrenceOperator
    operands: list[str] = field(default_factory=list)
    equations: list[RecurrenceEquation] = field(default_factory=list)
    adjoints: dict[int, int] = field(default_factory=dict)
    shares: dict[tuple[int, int], int] = field(default_factory=dict)
    reversed_tensors: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        program = self.operator.program
        self.along, self.extents = program.along, program.extents
        self.gradients = {
            number: name
            for number, name in zip(program.results, self.node.outputs, strict=True)
            if name is not None and DType(program.equations[number].dtype).is_float
        }
        self.active = self._find_active()
        for number in self.active:
            if program.equations[number].aggregation not in ("", "sum"):
                raise OperatorError(f"aggregates by {program.equations[number].aggregation} at each step")
        self.values = self._compute_values()
        self.previous = {number: self._shift(number) for number in program.carried}

    def write(self) -> None:
        """Adds the reversed recurrence, and the gradients of operands that follow from it."""
        program = self.operator.program
        self._number_equations()
        for number in reversed(range(len(program.equations))):
            if number in self.active:
                self._write_adjoint(number)
                self._write_shares(number)
        adjoints = self._apply()
        for number in self.active:
            self._put_operands(number, adjoints[self.adjoints[number]])
        for number in program.carried:
            self._put_start(number, adjoints)

    def _find_active(self) -> list[int]:
        """The equations whose values the loss depends on."""
        equations = self.operator.program.equations
        active = set(self.gradients)
        while True:
            read = {r.source for number in active for r in equations[number].value_reads}
            added = {number for number in read - active if DType(equations[number].dtype).is_float}
            if not added:
                return sorted(active)
            active |= added

    def _compute_values(self) -> list[str]:
        """The values of all equations at all steps."""
        program = self.operator.program
        dims = [loop for equation in program.equations for loop in equation.loops]
        numbers = range(len(program.equations))
        complete = build_recurrence(self.operator.operands, program.loops, program.equations, numbers, dims)
        return list(self.node.apply(complete, *self.node.node.inputs))

    def _shift(self, number: int) -> str:
        """The value of an equation at the step before each one."""
        equation = self.operator.program.equations[number]
        name, initial = self.values[number], equation.initial
        outside = NEAREST_ELEMENT if isinstance(initial, OperandRead) else initial
        draft = JoinDraft({loop: self.extents[loop] for loop in equation.loops})
        before = tuple(Position(((loop, 1),), -1 if loop == self.along else 0) for loop in equation.loops)
        value: Operand = draft.add(TensorAccess(name, self.node.desc(name), before, outside))
        if isinstance(initial, OperandRead):
            start = self._access_operand(initial)
            is_first = draft.steps.add("eq", draft.value(self.along), 0)
            value = draft.steps.add("where", is_first, draft.add(start), value)
        return write_join(self.node.builder, draft, value, [(loop, loop) for loop in equation.loops])

    # ---- the reversed recurrence ----

    def _number_equations(self) -> None:
        """The numbers of the equations to come, which may read each other at the step before."""
        count = 0
        for number in reversed(self.active):
            self.adjoints[number] = count
            count += 1
            for k in self._list_value_reads(number):
                self.shares[number, k] = count
                count += 1

    def _list_value_reads(self, number: int) -> list[int]:
        reads = self.operator.program.equations[number].reads
        return [k for k, read in enumerate(reads) if isinstance(read, ValueRead) and read.source in self.active]

    def _write_adjoint(self, number: int) -> None:
        equation = self.operator.program.equations[number]
        reads: list[RecurrenceRead] = []
        if number in self.gradients:
            reads.append(self._read_reversed(self.gradients[number], equation.loops))
        for (reader, k), share in self.shares.items():
            read = self.operator.program.equations[reader].reads[k]
            assert isinstance(read, ValueRead)
            if read.source == number:
                reads.append(ValueRead(share, equation.loops, read.before, self.along))
        steps = ProgramBuilder(len(reads))
        total: Operand = ScalarInput(0)
        for k in range(1, len(reads)):
            total = steps.add("add", total, ScalarInput(k))
        text = steps.program(total).text
        self.equations.append(RecurrenceEquation(equation.dtype, equation.loops, tuple(reads), text))

    def _write_shares(self, number: int) -> None:
        """What each read of a value by an equation adds to the adjoint of that value."""
        equation = self.operator.program.equations[number]
        inputs: list[RecurrenceRead] = [ValueRead(self.adjoints[number], equation.loops, False, self.along)]
        inputs += [self._read_value(read) for read in equation.reads]
        for k in self._list_value_reads(number):
            read = equation.reads[k]
            assert isinstance(read, ValueRead)
            if len(set(read.loops)) < len(read.loops):
                raise OperatorError("reads a diagonal of a value of the step before")
            steps = ProgramBuilder(len(inputs))
            slope = self._differentiate(steps, number, list(map(ScalarInput, range(len(inputs)))))[k]
            if slope is None:
                slope = steps.add("mul", ScalarInput(0), 0.0)
            program, used = steps.program(slope).without_unread()
            reads = [inputs[position] for position in used]
            reached = {loop for item in reads for loop in item.loops} | set(read.loops)
            count = math.prod(self.extents[loop] for loop in equation.all_loops if loop not in reached)
            if count > 1:
                program = _scale(program, count)
            is_reduced = bool(reached - set(read.loops))
            self.equations.append(
                RecurrenceEquation(
                    self.operator.program.equations[read.source].dtype,
                    read.loops,
                    tuple(reads),
                    program.text,
                    "sum" if is_reduced else "",
                    "0" if read.before else "",
                )
            )

    def _differentiate(self, steps: ProgramBuilder, number: int, inputs: Sequence[Operand]) -> list[Operand | None]:
        """The gradient of each read of an equation; the first input is that of its value."""
        equation = self.operator.program.equations[number]
        types = [self._find_type(read) for read in equation.reads]
        return add_derivatives(steps, equation.scalar, inputs[1:], types, [inputs[0]])

    def _find_type(self, read: RecurrenceRead) -> DType:
        if isinstance(read, OperandRead):
            return self.operator.operands[read.source].dtype
        return DType(self.operator.program.equations[read.source].dtype)

    def _read_value(self, read: RecurrenceRead) -> OperandRead:
        """What the forward recurrence read, as an operand of the reversed one."""
        return self._read_reversed(self._find_tensor(read), read.loops)

    def _find_tensor(self, read: RecurrenceRead) -> str:
        if isinstance(read, OperandRead):
            return self.node.node.inputs[read.source]
        return self.previous[read.source] if read.before else self.values[read.source]

    def _read_reversed(self, name: str, loops: Sequence[str]) -> OperandRead:
        if self.along in loops:
            name = self._reverse(name, loops.index(self.along))
        if name not in self.operands:
            self.operands.append(name)
        return OperandRead(self.operands.index(name), tuple(loops))

    def _reverse(self, name: str, axis: int) -> str:
        """The tensor with its steps in reverse order."""
        if name not in self.reversed_tensors:
            desc = self.node.desc(name)
            loops = [f"i{k}" for k in range(desc.rank)]
            draft = JoinDraft(dict(zip(loops, desc.shape, strict=True)))
            positions = [Position(((loop, 1),)) for loop in loops]
            positions[axis] = Position(((loops[axis], -1),), desc.shape[axis] - 1)
            value = draft.add(TensorAccess(name, desc, tuple(positions)))
            result = list(zip(loops, desc.dims, strict=True))
            self.reversed_tensors[name] = write_join(self.node.builder, draft, value, result)
        return self.reversed_tensors[name]

    def _apply(self) -> list[str]:
        """Adds the reversed recurrence; returns the values of all its equations, as they are reversed."""
        read = sorted({r.source for equation in self.equations for r in equation.operand_reads})
        renumbered = {old: new for new, old in enumerate(read)}
        equations = [renumber_reads(equation, renumbered.__getitem__) for equation in self.equations]
        loops = {loop for equation in equations for loop in equation.all_loops}
        dims = [loop for equation in equations for loop in equation.loops]
        operands = [self.operands[k] for k in read]
        operator = build_recurrence(
            list(map(self.node.desc, operands)),
            [loop for loop in self.operator.program.loops if loop[0] in loops],
            equations,
            range(len(equations)),
            dims,
        )
        return list(self.node.apply(operator, *operands))

    # ---- gradients of operands ----

    def _access_operand(self, read: OperandRead) -> TensorAccess:
        name = self.node.node.inputs[read.source]
        return TensorAccess(name, self.node.desc(name), tuple(Position(((loop, 1),)) for loop in read.loops))

    def _put_operands(self, number: int, reversed_adjoint: str) -> None:
        equation = self.operator.program.equations[number]
        adjoint = self._reverse(reversed_adjoint, equation.loops.index(self.along))
        draft = JoinDraft({loop: self.extents[loop] for loop in equation.all_loops})
        inputs: list[Operand] = [draft.read(adjoint, self.node.desc(adjoint), equation.loops)]
        for read in equation.reads:
            name = self._find_tensor(read)
            inputs.append(draft.read(name, self.node.desc(name), read.loops))
        slopes = self._differentiate(draft.steps, number, inputs)
        for read, slope in zip(equation.reads, slopes, strict=True):
            if isinstance(read, OperandRead) and slope is not None and self.node.needs[read.source]:
                access = self._access_operand(read)
                name = self.node.name_of(read.source)
                self.node.put(read.source, write_scatter(self.node.builder, draft, access, slope, name))

    def _put_start(self, number: int, adjoints: Sequence[str]) -> None:
        """The gradient of what a value starts from: what is added at the step before the first one."""
        equation = self.operator.program.equations[number]
        start = equation.initial
        if not isinstance(start, OperandRead) or not self.node.needs[start.source]:
            return
        loops = [loop for loop in equation.loops if loop != self.along]
        draft = JoinDraft({loop: self.extents[loop] for loop in loops})
        last = self.extents[self.along] - 1
        for (reader, k), share in self.shares.items():
            read = self.operator.program.equations[reader].reads[k]
            if isinstance(read, ValueRead) and read.before and read.source == number:
                name = adjoints[share]
                positions = tuple(
                    Position((), last) if loop == self.along else Position(((loop, 1),)) for loop in equation.loops
                )
                value = draft.add(TensorAccess(name, self.node.desc(name), positions))
                access = self._access_operand(start)
                gradient = write_scatter(self.node.builder, draft, access, value, self.node.name_of(start.source))
                self.node.put(start.source, gradient)


def _scale(program: ScalarProgram, count: int) -> ScalarProgram:
    steps = ProgramBuilder(program.arity)
    value = steps.insert(program, [ScalarInput(k) for k in range(program.arity)])
    return steps.program(steps.add("mul", value, float(count)))
