"""The kernel `recurrence` in Triton: a program goes through all steps, with its values in registers.

Programs have a tile of a loop at whose positions steps are independent, one position of each other such loop, and all
loops that are left, as the axes of tiles. Where these are too large for registers, the equations of each step are
launches of their own, and values lie in the workspace (`recurrence_steps.py`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from einc_runtime.dtypes import Array, compute_type
from einc_runtime.kernels.base import Invocation
from einc_runtime.kernels.calls.recurrence import RecurrenceCall
from einc_runtime.kernels.triton.launches import KernelLaunch, LaunchSequence
from einc_runtime.kernels.triton.map import COMBINE, COMBINE_HELPERS
from einc_runtime.kernels.triton.ordered_sums import write_tree
from einc_runtime.kernels.triton.recurrence_steps import launch_steps
from einc_runtime.kernels.triton.scalar import ScalarSource, format_number
from einc_runtime.kernels.triton.source import (
    LANGUAGE,
    LaunchOptions,
    PointerOperand,
    assemble,
    index_cast,
    power_of_two,
)
from einc_runtime.kernels.triton.tiles import MULTIPROCESSORS, PROGRAM_THREADS
from einc_runtime.plan.index_patterns import find_identity
from einc_runtime.plan.recurrence_steps import MAX_TILE_ELEMENTS, count_tile
from einc_runtime.plan.recurrences import OperandRead, RecurrenceEquation, ValueRead
from einc_runtime.plan.scalar_programs import ScalarLiteral

ONE = ""
"""The axis of a tile that has no loop."""


def build_recurrence(invocation: Invocation[Array], ordered: bool = False) -> LaunchSequence:
    """One launch where tiles fit into registers."""
    call = RecurrenceCall.parse(invocation)
    if count_tile(call.recurrence, call.extents) > MAX_TILE_ELEMENTS:
        return launch_steps(call, ordered)
    return LaunchSequence((_RecurrenceSource(call, ordered).assemble(),))


def build_ordered_recurrence(invocation: Invocation[Array]) -> LaunchSequence:
    """Sums are trees over the positions of their loops, which no plan of this kind cuts."""
    return build_recurrence(invocation, ordered=True).without_fusion()


class _RecurrenceSource:
    """The source of a launch."""

    def __init__(self, call: RecurrenceCall, ordered: bool) -> None:
        self.call, self.ordered = call, ordered
        self.recurrence, self.along = call.recurrence, call.recurrence.along
        self.numbers = {name: number for number, (name, _) in enumerate(self.recurrence.loops)}
        independent = self.recurrence.independent_loops
        self.lane = max(independent, key=self._rank_lane, default=None)
        self.heads = [name for name in independent if name != self.lane]
        self.widths = {name: power_of_two(extent) for name, extent in call.extents.items()}
        if self.lane is not None:
            self.widths[self.lane] = self._choose_width(self.lane)
        self.inputs = [PointerOperand.of(f"x{k}", view) for k, view in enumerate(call.inputs)]
        self.outputs = {
            number: PointerOperand.of(f"y{number}", view)
            for number, view in zip(self.recurrence.results, call.outputs, strict=True)
        }
        items = [*zip(self.inputs, call.inputs, strict=True), *zip(self.outputs.values(), call.outputs, strict=True)]
        self.cast = next(filter(None, (index_cast([item], view.shape) for item, view in items)), "")
        self.chains: list[ScalarSource] = []
        self.helpers: set[str] = set()
        self.trees: list[str] = []

    def _rank_lane(self, name: str) -> tuple[int, int]:
        """Neighbours in memory first, then many positions."""
        dense = 0
        for number, view in zip(self.recurrence.results, self.call.outputs, strict=True):
            dense += view.strides[self.recurrence.equations[number].loops.index(name)] == view.itemsize
        return dense, self.call.extents[name]

    def _choose_width(self, lane: str) -> int:
        """Wide enough for the threads of a program, and no wider than leaves a program for each multiprocessor."""
        extent, heads = self.call.extents[lane], math.prod(self.call.extents[name] for name in self.heads)
        further_elements = max(
            math.prod(self.widths[name] for name in self._axes(equation) if name not in (lane, ONE))
            for equation in self.recurrence.equations
        )
        width = power_of_two(extent)
        while width > 1 and (
            width * further_elements > MAX_TILE_ELEMENTS
            or (width * further_elements > PROGRAM_THREADS and -(-extent // width) * heads < MULTIPROCESSORS)
        ):
            width //= 2
        return width

    @property
    def largest(self) -> int:
        """Elements of the largest tile."""
        return max(math.prod(self._shape(self._axes(equation))) for equation in self.recurrence.equations)

    def _value_axes(self, equation: RecurrenceEquation) -> list[str]:
        """The axes of an equation's value: that of the tile of independent positions, then its other loops."""
        gone = (self.along, *self.heads, self.lane)
        names = [name for name in equation.loops if name not in gone]
        return [*([] if self.lane is None else [self.lane]), *names] or [ONE]

    def _axes(self, equation: RecurrenceEquation) -> list[str]:
        return [*self._value_axes(equation), *equation.reduced]

    def _shape(self, axes: Sequence[str]) -> list[int]:
        return [1 if name == ONE else self.widths[name] for name in axes]

    def assemble(self) -> KernelLaunch:
        equations = self.recurrence.equations
        lines = self._locate()
        for number in self.recurrence.carried:
            lines.append(f"p{number} = {self._write_start(equations[number])}")
        lines.append(f"for t in range({self.call.steps}):")
        lines.append("    step = tl.cast(t, tl.int64)" if self.cast else "    step = t")
        for number, equation in enumerate(equations):
            lines += [f"    {line}" for line in self._write_equation(number, equation)]
        for number in self.recurrence.carried:
            lines.append(f"    p{number} = v{number}")
        tiles = 1 if self.lane is None else -(-self.call.extents[self.lane] // self.widths[self.lane])
        grid = tiles * math.prod(self.call.extents[name] for name in self.heads)
        # Steps wait for each other: few warps, each with several elements for a thread, wait least.
        warps = max(1, min(8, self.largest // PROGRAM_THREADS))
        title = f"recurrence along {self.along}: {'; '.join(equation.program for equation in equations)}"
        items = [*self.inputs, *self.outputs.values()]
        helpers = self.chains[0].source(*self.chains[1:], *sorted(self.helpers)) + "".join(self.trees)
        options = LaunchOptions(helpers, warps=warps)
        extents = [self.call.extents[name] for name, _ in self.recurrence.loops]
        return assemble("recurrence", title, items, extents, lines, grid, options)

    def _locate(self) -> list[str]:
        """Lines that set the positions of this program along each loop but the one of the steps."""
        lines = [f"tile = tl.program_id(0){self.cast}"]
        names = {name for equation in self.recurrence.equations for name in self._axes(equation)}
        for name, number in self.numbers.items():
            if name == self.lane:
                width = self.widths[name]
                tiles = -(-self.call.extents[name] // width)
                lines += [f"j{number} = (tile % {tiles}) * {width} + tl.arange(0, {width}){self.cast}"]
                lines += [f"tile = tile // {tiles}"]
            elif name in names:
                lines.append(f"j{number} = tl.arange(0, {self.widths[name]}){self.cast}")
        for name in self.heads:
            lines += [f"j{self.numbers[name]} = tile % {self.call.extents[name]}"]
            lines += [f"tile = tile // {self.call.extents[name]}"]
        return lines

    def _span(self, name: str, axes: Sequence[str]) -> str:
        """The positions along a loop, as a tile with these axes."""
        if name == self.along:
            return "step"
        index = f"j{self.numbers[name]}"
        if name in self.heads or len(axes) == 1:
            return index
        return f"{index}[{', '.join(':' if axis == name else 'None' for axis in axes)}]"

    def _mask(self, names: Sequence[str], axes: Sequence[str]) -> str:
        """The condition for positions inside of these loops; empty where tiles fill them."""
        return " & ".join(
            f"({self._span(name, axes)} < {self.call.extents[name]})"
            for name in axes
            if name in names and self.call.extents[name] % self.widths[name]
        )

    def _load(self, read: OperandRead, axes: Sequence[str]) -> str:
        item = self.inputs[read.source]
        places = {dim: self._span(name, axes) for dim, name in enumerate(read.loops)}
        return item.load(places, self._mask(read.loops, axes))

    def _read_value(self, read: ValueRead, axes: Sequence[str]) -> str:
        source = self.recurrence.equations[read.source]
        renamed = dict(zip(source.loops, read.loops, strict=True))
        names = [renamed.get(name, name) for name in self._value_axes(source)]
        text = f"{'p' if read.before else 'v'}{read.source}"
        if names == [ONE]:
            return text if len(axes) == 1 else f"{text}[{', '.join(['None'] * (len(axes) - 1))}, :]"
        order = sorted(range(len(names)), key=lambda number: axes.index(names[number]))
        if order != list(range(len(names))):
            text = f"tl.permute({text}, {tuple(order)})"
        if len(names) == len(axes):
            return text
        return f"{text}[{', '.join(':' if axis in names else 'None' for axis in axes)}]"

    def _write_start(self, equation: RecurrenceEquation) -> str:
        """The value before the first step."""
        axes, initial, kind = self._value_axes(equation), equation.initial, compute_type(equation.dtype)
        shape = self._shape(axes)
        if isinstance(initial, OperandRead):
            return f"tl.broadcast_to({self._load(initial, axes)}, {shape}).to({LANGUAGE[kind]})"
        return f"tl.full({shape}, {format_number(ScalarLiteral(initial).value)}, {LANGUAGE[kind]})"

    def _write_equation(self, number: int, equation: RecurrenceEquation) -> list[str]:
        """Lines that compute a value at one step, and store it where it is a result."""
        axes, kept = self._axes(equation), self._value_axes(equation)
        kind = compute_type(equation.dtype)
        lines, names = [], []
        for k, read in enumerate(equation.reads):
            text = self._load(read, axes) if isinstance(read, OperandRead) else self._read_value(read, axes)
            names.append(f"r{k}")
            lines.append(f"r{k} = {text}")
        chain = ScalarSource(self.call.type_steps(equation), names)
        self.chains.append(chain)
        lines += chain.lines
        lines.append(f"u = tl.broadcast_to({chain.value}, {self._shape(axes)}).to({LANGUAGE[kind]})")
        if equation.aggregation:
            lines += self._write_aggregation(number, equation, axes, kept, kind)
        lines.append(f"v{number} = u")
        if number in self.outputs:
            item = self.outputs[number]
            places = {dim: self._span(name, kept) for dim, name in enumerate(equation.loops)}
            lines.append(item.store(places, "u", self._mask(equation.loops, kept)))
        return lines

    def _write_aggregation(
        self, number: int, equation: RecurrenceEquation, axes: Sequence[str], kept: Sequence[str], kind: str
    ) -> list[str]:
        aggregation = equation.aggregation
        lines = []
        inside = self._mask(equation.reduced, axes)
        if inside:
            nothing = format_number(find_identity(aggregation, equation.dtype))
            lines.append(f"u = tl.where({inside}, u, {nothing}).to({LANGUAGE[kind]})")
        self.helpers.update(COMBINE_HELPERS[aggregation])
        if self.ordered:
            height, width = (math.prod(self._shape(part)) for part in (kept, equation.reduced))
            self.trees.append(write_tree(f"tree{number}", height, width, COMBINE[aggregation]))
            lines.append(f"u = tl.reshape(tree{number}(tl.reshape(u, [{height}, {width}])), {self._shape(kept)})")
            return lines
        function = {"prod": "product", "max": "largest", "min": "smallest"}.get(aggregation)
        for axis in range(len(axes) - 1, len(kept) - 1, -1):
            lines.append(f"u = tl.sum(u, {axis})" if function is None else f"u = tl.reduce(u, {axis}, {function})")
        return lines
