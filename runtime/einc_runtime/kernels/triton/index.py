"""The kernel `index` on a GPU: reads that are no views, and the values of indices, are written into the workspace by a
launch each, and another kernel computes the rest of views (`calls/index.py`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from einc_runtime.dtypes import Array
from einc_runtime.kernels.base import Invocation, address, dtype_name
from einc_runtime.kernels.calls.fold import FoldCall
from einc_runtime.kernels.calls.index import NOTHING_MADE, Gather, IndexCall, MadeArrays
from einc_runtime.kernels.calls.keyed_aggregates import RunningCall
from einc_runtime.kernels.triton.fold import build_fold
from einc_runtime.kernels.triton.launches import (
    APART,
    SCRATCH,
    Argument,
    KernelLaunch,
    LaunchSequence,
    LaunchStep,
    StatusPointer,
    WorkspaceAllocator,
    relocate_step,
)
from einc_runtime.kernels.triton.moves import build_moves
from einc_runtime.kernels.triton.running import launch_running
from einc_runtime.kernels.triton.source import (
    LINE_ELEMENTS,
    LaunchOptions,
    PointerOperand,
    assemble,
    index_cast,
    mask_arguments,
)
from einc_runtime.kernels.triton.tiles import TileGrid, choose_tiles
from einc_runtime.plan.aggregate_definitions import find_definition
from einc_runtime.plan.index_patterns import RunningAggregate, find_pattern
from einc_runtime.plan.index_programs import NEAREST_ELEMENT, Position
from einc_runtime.plan.schema import FLOATS

Build = Callable[[Invocation[Array]], LaunchSequence]
"""Builds the launches of the views."""

POSITION_OUTSIDE = "a position at data is outside of its tensor"
"""The error of an execution, which says only that some position is wrong."""


def build_index(invocation: Invocation[Array], build: Build) -> LaunchSequence:
    """The launches, of which `build` makes those that compute."""
    call = IndexCall.parse(invocation)
    parts = call.find_parts()
    if parts is not None:
        return build_moves(*parts)
    only = call.find_only_gather()
    if only is not None:
        launch = _GatherSource(call, only[0], call.inputs[only[0].read.operand], only[1])
        return LaunchSequence((launch.assemble(),), status_message=POSITION_OUTSIDE if launch.is_checked else None)
    scratch = WorkspaceAllocator()
    scratch.size = APART
    pattern = find_pattern(call.program, dtype_name(call.output))
    if not isinstance(pattern, RunningAggregate) or call.is_reproducible:
        return _build_views(call, build, scratch, [])
    shape = tuple(upper - lower for lower, upper in (call.ranges[name] for name in pattern.values.result))
    part = call.part(pattern.values, np.empty(shape, call.find_type(pattern.values)))
    values = part.find_view()
    is_view = values is not None
    if values is None:
        values = scratch.take(shape, part.output.dtype)
    first, aggregation = pattern.count_first(call.ranges), call.program.aggregation
    running = RunningCall.of(values, call.output, pattern.axis, first, aggregation, is_behind=pattern.is_behind)
    if is_view:
        return LaunchSequence((launch_running(running),))
    return _build_views(call.part(pattern.values, values), build, scratch, [launch_running(running)])


def _build_views(
    call: IndexCall, build: Build, scratch: WorkspaceAllocator, behind: Sequence[LaunchStep]
) -> LaunchSequence:
    """Gathers, the launches that compute, and those that come behind them."""
    steps: list[LaunchStep] = []
    indices: dict[str, Array] = {}
    for name in call.list_indices():
        lower, upper = call.ranges[name]
        indices[name] = scratch.take((upper - lower,), np.dtype(np.int64))
        steps.append(_launch_index(name, lower, indices[name]))
    gathered: dict[int, tuple[Gather, Array]] = {}
    checked = False
    for number, gather in call.find_gathers().items():
        source = call.inputs[gather.read.operand]
        target = scratch.take(gather.shape, source.dtype)
        gathered[number] = (gather, target)
        launch = _GatherSource(call, gather, source, target)
        steps.append(launch.assemble())
        checked |= launch.is_checked
    arrays = MadeArrays(gathered, indices)
    if find_definition(call.program.aggregation) is None:
        computed = build(call.join(arrays))
    else:
        computed = build_fold(FoldCall.of(call, arrays), ordered=call.is_reproducible)
    gathered_bytes = scratch.size - APART

    def relocate(address: int) -> int:
        if address >= SCRATCH + APART:
            return address - APART
        return address + gathered_bytes if address >= SCRATCH else address

    moved = tuple(relocate_step(step, relocate) for step in (*steps, *computed.steps, *behind))
    return LaunchSequence(
        moved, gathered_bytes + computed.scratch, POSITION_OUTSIDE if checked else computed.status_message
    )


def _launch_index(name: str, lower: int, target: Array) -> KernelLaunch:
    y = PointerOperand.of("y", target)
    count = target.shape[0]
    lines = [
        f"i = tl.program_id(0).to(tl.int64) * {LINE_ELEMENTS} + tl.arange(0, {LINE_ELEMENTS})",
        f"tl.store(y + i, i + {lower}, mask=i < {count})",
    ]
    return assemble("index", f"values of {name}", [y], target.shape, lines, -(-count // LINE_ELEMENTS))


class _GatherSource:
    """The launch of one gather: a tile of the target, the position of each of its elements, and what is found there."""

    def __init__(self, call: IndexCall, gather: Gather, source: Array, target: Array) -> None:
        self.call, self.gather = call, gather
        self.source, self.target = source, PointerOperand.of("y", target)
        self.elements = {number: self._align(number) for p in gather.read.positions for number in p.elements}
        self.extents = target.shape
        self.tiles: TileGrid = choose_tiles(target.shape, [], self.target)
        self.subscripts = self.tiles.subscripts(self.target)
        self.is_checked = any(p.elements for p in gather.read.positions) and not gather.read.outside

    def _align(self, number: int) -> PointerOperand:
        axes = [str(axis) for axis, _ in self.gather.axes]
        return PointerOperand.of(f"e{number}", self.call.view(number, NOTHING_MADE).align(axes))

    def assemble(self) -> KernelLaunch:
        x = PointerOperand("x", dtype_name(self.source), self._source_strides(), address(self.source))
        inside = self.tiles.mask(self.subscripts)
        lines = [*self.tiles.locate(self._cast())]
        for number, element in self.elements.items():
            lines.append(f"v{number} = {self.tiles.load(element)}.to(tl.int64)")
        offsets, conditions, present = ["x"], [], ""
        block = self.call.blocks[self.gather.read.operand]
        for dim, extent in enumerate(self.call.shapes[self.gather.read.operand]):
            lines.append(f"p{dim} = {self._position(dim)}")
            if not self._is_inside(dim, extent):
                conditions.append(f"(p{dim} >= 0) & (p{dim} < {extent})")
                lines.append(f"q{dim} = tl.minimum(tl.maximum(p{dim}, {block.lower[dim]}), {block.upper[dim] - 1})")
            else:
                lines.append(f"q{dim} = p{dim}")
            if dim == self.call.missing_rows:
                present = f"(p{dim} == q{dim})"
            stride = self.source.strides[dim] // self.source.itemsize
            offsets.append(f"(q{dim} - {block.lower[dim]}) * {stride}")
        in_bounds = " & ".join(conditions)
        if self.is_checked and in_bounds:
            lines.append(f"wrong = 1 - ({in_bounds}).to(tl.int32)")
            # Of the whole tile, also where all of it has one position.
            spread = f"wrong + 0 * ({' + '.join(self.subscripts.values())})" if self.subscripts else "wrong"
            lines.append(f"wrong = tl.where({inside}, wrong, 0)" if inside else f"wrong = {spread}")
            lines += self.tiles.any("wrong", self.target)
            lines.append("tl.store(status, 1, mask=wrong != 0)")
        masked = present or (in_bounds if self.gather.read.outside != NEAREST_ELEMENT else "")
        lines.append(
            f"value = tl.load({' + '.join(offsets)}{mask_arguments(inside, masked, fallback=self._filling())})"
        )
        if self.target.dtype == "bool":
            lines.append("value = value != 0")
        lines.append(self.target.store(self.subscripts, "value", inside))
        status: list[tuple[str, Argument, str]] = [("status", StatusPointer(), "i32")] if self.is_checked else []
        items = [x, *self.elements.values(), self.target]
        options = LaunchOptions(tables=status)
        return assemble("gather", str(self.gather.read), items, self.extents, lines, self.tiles.count(), options)

    def _filling(self) -> str:
        """What is loaded where a position is outside."""
        outside = self.gather.read.outside
        if outside in ("", NEAREST_ELEMENT):
            return "0"
        if self.target.dtype == "bool":
            return str(int(outside == "true"))
        return f'float("{outside}")' if self.target.dtype in FLOATS else outside

    def _cast(self) -> str:
        """Positions of 64 bits where offsets in the source need them, or positions before they are clipped."""
        steps = zip(self.source.shape, self.source.strides, strict=True)
        offset = sum((extent - 1) * abs(stride) // self.source.itemsize for extent, stride in steps)
        spans = [position.span(self.call.ranges) or (0, 0) for position in self.gather.read.positions]
        far = max((abs(end) for span in spans for end in span), default=0)
        if max(offset, far) >= 1 << 30:
            return ".to(tl.int64)"
        return index_cast([self.target, *self.elements.values()], self.extents)

    def _source_strides(self) -> tuple[int, ...]:
        """Only its address is used: it has other dimensions than the target."""
        return (0,) * len(self.extents)

    def _is_inside(self, dim: int, extent: int) -> bool:
        position = self.gather.read.positions[dim]
        span = None if position.elements else position.span(self.call.ranges)
        return span is not None and span[0] >= 0 and span[1] <= extent

    def _position(self, dim: int) -> str:
        """The expression of the position along a dimension of the source."""
        values: dict[int | str, str] = {}
        for number, (axis, (lower, upper)) in enumerate(self.gather.axes):
            values[axis] = f"({self.subscripts[number]} + {lower})" if upper - lower > 1 else str(lower)
        position = self.gather.read.positions[dim]
        if dim in values:
            return values[dim]
        terms = [f"{factor} * {f'v{name[1:]}' if name[0] == '@' else values[name]}" for name, factor in position.terms]
        total = " + ".join([*terms, str(position.constant)])
        return _divide(position, total, self.call)


def _divide(position: Position, number_text: str, call: IndexCall) -> str:
    """The quotient, rounded down, or the remainder; Triton rounds towards zero."""
    number = position.modulus or position.divisor
    if number == 1:
        return number_text
    span = Position(position.terms, position.constant).span(call.ranges)
    remainder = f"(({number_text}) % {number})"
    if span is None or span[0] < 0:
        remainder = f"({remainder} + {number}) % {number}"
    return remainder if position.modulus else f"(({number_text}) - ({remainder})) // {number}"
