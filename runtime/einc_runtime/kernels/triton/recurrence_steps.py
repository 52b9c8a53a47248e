"""A recurrence on a GPU as launches for each step, where its tiles are too large for the registers of a program.

Each equation is a product, a reduction or a map of its operands at this step, and of values in the workspace.
"""

from __future__ import annotations

from einc_runtime.dtypes import Array, compute_type
from einc_runtime.kernels.base import Invocation, dtype_name
from einc_runtime.kernels.calls.recurrence import RecurrenceCall
from einc_runtime.kernels.triton.contract import build_contract
from einc_runtime.kernels.triton.launches import (
    APART,
    SCRATCH,
    KernelLaunch,
    LaunchSequence,
    LaunchStep,
    WorkspaceAllocator,
    relocate_step,
)
from einc_runtime.kernels.triton.map import build_map, build_reduce
from einc_runtime.kernels.triton.ordered_products import build_ordered_contract
from einc_runtime.kernels.triton.ordered_sums import build_ordered_reduce
from einc_runtime.kernels.triton.scalar import format_number
from einc_runtime.kernels.triton.source import LANGUAGE, LINE_ELEMENTS, PointerOperand, assemble
from einc_runtime.plan.recurrences import OperandRead, RecurrenceEquation, RecurrenceRead
from einc_runtime.plan.scalar_programs import ScalarLiteral
from einc_runtime.plan.schema import FLOATS


def launch_steps(call: RecurrenceCall, ordered: bool) -> LaunchSequence:
    return _StepLaunches(call, ordered).build()


class _StepLaunches:
    """The launches under construction. Values have a place for even steps and one for odd ones."""

    def __init__(self, call: RecurrenceCall, ordered: bool) -> None:
        self.call, self.ordered = call, ordered
        self.scratch = WorkspaceAllocator()
        self.scratch.size = APART
        self.values = [
            [self.scratch.take(call.value_shape(equation), call.value_dtype(equation)) for _ in range(2)]
            for equation in call.recurrence.equations
        ]
        self.values_bytes = self.scratch.size - APART
        self.steps: list[LaunchStep] = []
        self.inner = 0

    def build(self) -> LaunchSequence:
        """The whole sequence; kernels of equations share what they need of the workspace."""
        recurrence = self.call.recurrence
        for number in recurrence.carried:
            self._start(number, recurrence.equations[number])
        for t in range(self.call.steps):
            for number, equation in enumerate(recurrence.equations):
                self._compute(t, number, equation)
            for number, view in zip(recurrence.results, self.call.outputs, strict=True):
                equation = recurrence.equations[number]
                names = " ".join(self.call.value_loops(equation))
                target = _take(view, equation.loops, recurrence.along, t)
                self._add("map", {"program": "t0 = copy x0", "indices": f"{names} -> {names}"},
                          [self.values[number][t % 2]], target)  # fmt: skip
        return LaunchSequence(tuple(self.steps), self.values_bytes + self.inner)

    def _start(self, number: int, equation: RecurrenceEquation) -> None:
        target = self.values[number][1]
        if isinstance(equation.initial, OperandRead):
            names = f"{' '.join(equation.initial.loops)} -> {' '.join(self.call.value_loops(equation))}"
            source = self.call.inputs[equation.initial.source]
            self._add("map", {"program": "t0 = copy x0", "indices": names}, [source], target)
        else:
            self.steps.append(relocate_step(_fill(target, ScalarLiteral(equation.initial).value), self._relocate))

    def _compute(self, t: int, number: int, equation: RecurrenceEquation) -> None:
        arrays, labels = [], []
        for read in equation.reads:
            arrays.append(self._find(read, t))
            labels.append(" ".join(name for name in read.loops if name != self.call.recurrence.along))
        names = f"{', '.join(labels)} -> {' '.join(self.call.value_loops(equation))}"
        target = self.values[number][t % 2]
        program = equation.scalar
        same_type = len({dtype_name(array) for array in (*arrays, target)}) == 1 and dtype_name(target) in FLOATS
        if equation.aggregation == "sum" and len(arrays) > 1 and program.product_factor == 1 and same_type:
            self._add("contract", {"equation": names}, arrays, target)
            return
        attributes = {"program": equation.program, "indices": names}
        if equation.aggregation:
            self._add("reduce", {**attributes, "aggregation": equation.aggregation}, arrays, target)
        else:
            self._add("map", attributes, arrays, target)

    def _find(self, read: RecurrenceRead, t: int) -> Array:
        if isinstance(read, OperandRead):
            return _take(self.call.inputs[read.source], read.loops, self.call.recurrence.along, t)
        return self.values[read.source][(t + read.before) % 2]

    def _add(self, name: str, attributes: dict[str, str], inputs: list[Array], target: Array) -> None:
        builders = {
            "map": build_map,
            "reduce": build_ordered_reduce if self.ordered else build_reduce,
            "contract": build_ordered_contract if self.ordered else build_contract,
        }
        sequence = builders[name](Invocation(name, attributes, inputs, [target]))
        self.inner = max(self.inner, sequence.scratch)
        self.steps += [relocate_step(step, self._relocate) for step in sequence.steps]

    def _relocate(self, address: int) -> int:
        """Values lie first in the workspace, and behind them what the kernel of an equation needs itself."""
        if address >= SCRATCH + APART:
            return address - APART
        return address + self.values_bytes if address >= SCRATCH else address


def _take(view: Array, loops: tuple[str, ...], along: str, t: int) -> Array:
    """A view of one step, of an array that has the loop along which a recurrence runs; else all of it."""
    if along not in loops:
        return view
    axis = loops.index(along)
    return view[(slice(None),) * axis + (t, ...)]


def _fill(target: Array, number: bool | int | float) -> KernelLaunch:
    y, count = PointerOperand.of("y", target), target.size
    text = format_number(number)
    kind = compute_type(y.dtype)
    lines = [
        f"i = tl.program_id(0).to(tl.int64) * {LINE_ELEMENTS} + tl.arange(0, {LINE_ELEMENTS})",
        f"value = tl.full([{LINE_ELEMENTS}], {text}, {LANGUAGE[kind]})",
        f"tl.store(y + i, value.to({'tl.int8' if kind == 'bool' else LANGUAGE[y.dtype]}), mask=i < {count})",
    ]
    return assemble("fill", f"a number {text}", [y], target.shape, lines, -(-count // LINE_ELEMENTS))
