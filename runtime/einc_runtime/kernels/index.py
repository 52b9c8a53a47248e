"""The kernel `index` on the CPU: reads that are no views are gathered into scratch memory, and another kernel computes
the rest of views (`calls/index.py`).

Programs that need not visit all their index vectors are recognised first (`plan/index_patterns.py`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from einc_runtime.dtypes import Array
from einc_runtime.kernels.base import Invocation, Kernel, Run, ScratchAllocator, address, dtype_name, view_as_integers
from einc_runtime.kernels.calls.fold import FoldCall
from einc_runtime.kernels.calls.index import NOTHING_MADE, Gather, IndexCall, MadeArrays
from einc_runtime.kernels.index_aggregates import build_aggregate, build_fold
from einc_runtime.kernels.index_convolutions import build_convolution
from einc_runtime.kernels.numpy.moves import build_copies, take_along
from einc_runtime.kernels.numpy.pieces import make_runner
from einc_runtime.plan.aggregate_definitions import find_definition
from einc_runtime.plan.index_patterns import Lookup, RunningAggregate, Scatter, find_pattern
from einc_runtime.plan.index_programs import Position

if TYPE_CHECKING:
    from einc_runtime.kernels.llvm.lookups import PrepareCopy

Prepare = Callable[[Invocation[Array]], Kernel]
"""Prepares the kernel of the views."""

GATHER_NS = 0.1
"""Nanoseconds for each byte that is gathered: 65,536 rows of 128 elements in f32 took 3.6 ms."""


def build_index(invocation: Invocation[Array], prepare: Prepare, *, compiled: bool) -> Kernel:
    """The kernel, of which `prepare` makes the part that computes; `compiled` says whether machine code may be used."""
    return build_call(IndexCall.parse(invocation), prepare, compiled=compiled)


def build_call(call: IndexCall, prepare: Prepare, *, compiled: bool) -> Kernel:
    parts = call.find_parts()
    if parts is not None:
        return build_copies(*parts)
    pattern = find_pattern(call.program, dtype_name(call.output))
    if isinstance(pattern, RunningAggregate | Scatter):
        return build_aggregate(
            call, pattern, lambda part: build_views(part, prepare, compiled=compiled), compiled=compiled
        )
    if isinstance(pattern, Lookup):
        call = call.part(pattern.write(call.ranges), call.output)
    return build_convolution(call) or build_views(call, prepare, compiled=compiled)


def build_views(call: IndexCall, prepare: Prepare, *, compiled: bool) -> Kernel:
    only = call.find_only_gather()
    if only is not None:
        gather, result = only
        return Kernel(
            lambda _: _prepare_gather(call, gather, result, compiled=compiled), nanoseconds=GATHER_NS * result.nbytes
        )
    gathers = call.find_gathers()
    indices = {name: np.arange(*call.ranges[name], dtype=np.int64) for name in call.list_indices()}

    def build(arrays: MadeArrays) -> Kernel:
        if find_definition(call.program.aggregation) is None:
            return prepare(call.join(arrays))
        fold = FoldCall.of(call, arrays)
        return build_fold(fold, call.repetitions, compiled=compiled, reproducible=call.is_reproducible)

    if not gathers:
        return build(MadeArrays({}, indices))
    scratch = ScratchAllocator()
    sources = {number: call.inputs[gather.read.operand] for number, gather in gathers.items()}
    places = {
        number: scratch.take(gather.shape, sources[number].dtype, _find_order(gather, sources[number]))
        for number, gather in gathers.items()
    }
    stand_ins = {number: (gather, places[number].stand_in()) for number, gather in gathers.items()}
    measured = build(MadeArrays(stand_ins, indices))
    inner = scratch.take((measured.scratch,), np.dtype(np.uint8))
    moved = sum(array.size for _, array in stand_ins.values())

    def bind(memory: Array) -> Run:
        gathered = {number: (gather, places[number].of(memory)) for number, gather in gathers.items()}
        moves = [_prepare_gather(call, *pair, compiled=compiled) for pair in gathered.values()]
        run = build(MadeArrays(gathered, indices)).bind(inner.of(memory))
        return make_runner([(each, []) for each in (*moves, run)])

    return Kernel(bind, scratch.size, measured.nanoseconds + moved, measured.prepacked)


def _find_order(gather: Gather, source: Array) -> list[int]:
    """The dimensions of what is gathered, as its tensor has them in memory where it has all of them."""
    dims = range(len(gather.shape))
    return sorted(dims, key=lambda dim: -source.strides[dim]) if len(gather.kept) == source.ndim else list(dims)


def _prepare_gather(call: IndexCall, gather: Gather, target: Array, *, compiled: bool) -> Run:
    source = view_as_integers(call.inputs[gather.read.operand])
    if len(gather.kept) == len(gather.read.positions) and gather.read.outside != "nearest":
        return _prepare_padding(call, gather, source, target)
    return _prepare_lookup(call, gather, source, target, compiled=compiled)


def _find_filling(gather: Gather, target: Array) -> Array:
    """What is found outside, as an element of the target."""
    words = {"true": True, "false": False}
    text = gather.read.outside
    value = words[text] if text in words else float(text) if target.dtype.kind in "fV" else int(text)
    return np.asarray(value).astype(target.dtype)


def _prepare_padding(call: IndexCall, gather: Gather, source: Array, target: Array) -> Run:
    """A part of the tensor, and a value around it."""
    block = call.blocks[gather.read.operand]
    inside, part = [], []
    for (lower, upper), first, end in zip(gather.spans, block.lower, block.upper, strict=True):
        start, stop = max(lower, first), max(min(upper, end), max(lower, first))
        inside.append(slice(start - lower, stop - lower))
        part.append(slice(start - first, stop - first))
    filling, goal = _find_filling(gather, target), view_as_integers(target)[tuple(inside)]
    elements = source[tuple(part)]
    around = [
        target[(*inside[:axis], outside)]
        for axis, within in enumerate(inside)
        for outside in (slice(0, within.start), slice(within.stop, None))
    ]
    borders = [border for border in around if border.size]

    def pad() -> None:
        for border in borders:
            border.fill(filling)
        goal[...] = elements

    return pad


def _prepare_lookup(call: IndexCall, gather: Gather, source: Array, target: Array, *, compiled: bool) -> Run:
    """Elements at positions that are computed: once where they depend on no data, else in each run."""
    axes = [name for name, _ in gather.axes]
    elements = {
        number: _spread(call, number, axes) for position in gather.read.positions for number in position.elements
    }
    rows = _prepare_row_lookup(call, gather, elements, target, compiled=compiled)
    if rows is not None:
        return rows
    filling = _find_filling(gather, target) if gather.read.outside not in ("", "nearest") else None
    if call.missing_rows is not None:
        filling = np.zeros((), target.dtype)
    fixed = None if elements else _find_places(call, gather, axes, elements)
    integers = view_as_integers(target)
    prepare_copy = _compile_lookup(call, gather, source, integers) if compiled else None
    copy_fixed = None
    if fixed is not None and prepare_copy is not None:
        copy_fixed = prepare_copy(_find_offsets(gather, source, fixed[0]))
        if filling is None:
            return copy_fixed

    def look_up() -> None:
        places, outside = fixed if fixed is not None else _find_places(call, gather, axes, elements)
        if prepare_copy is None:
            integers[...] = source[tuple(places)]
        else:
            (copy_fixed or prepare_copy(_find_offsets(gather, source, places)))()
        if filling is not None:
            np.copyto(target, filling, where=outside)

    return look_up


def _prepare_row_lookup(
    call: IndexCall, gather: Gather, elements: dict[int, Array], target: Array, *, compiled: bool
) -> Run | None:
    """Rows of a table by numbers that are read one by one; None for any other gather."""
    from einc_runtime.kernels.llvm.lookups import CopyLayout, RowNumbers, compile_row_lookup

    dim = next((dim for dim, position in enumerate(gather.read.positions) if position.elements), None)
    if dim is None or gather.read.outside or len(gather.kept) != len(gather.read.positions) - 1:
        return None
    position, block = gather.read.positions[dim], call.blocks[gather.read.operand]
    (number,), extent = position.elements, call.shapes[gather.read.operand][dim]
    ids = elements[number].reshape(-1)
    count = math.prod(upper - lower for lower, upper in gather.ranges)
    if position != Position(((f"@{number}", 1),)) or ids.size != count or address(ids) != address(elements[number]):
        return None
    table = view_as_integers(call.inputs[gather.read.operand])

    def fail() -> None:
        call.require_inside(gather, dim, int(ids.min()), int(ids.max()))

    corner = _view_corner(call, gather, table)
    if compiled and corner is not None:
        numbers = RowNumbers(ids, extent, block.lower[dim], table.shape[dim], table.strides[dim])
        layout = CopyLayout.of(corner, view_as_integers(target), gather.before, len(gather.loops), call.repetitions)
        run = None if layout is None else compile_row_lookup(layout, numbers, fail)
        if run is not None:
            return run
    goal, places = view_as_integers(target), elements[number].reshape([upper - lower for lower, upper in gather.ranges])
    if call.missing_rows is not None or goal.shape != (*table.shape[:dim], *places.shape, *table.shape[dim + 1 :]):
        return None

    def take_rows() -> None:
        fail()
        take_along(table, dim, places, goal)

    return take_rows


def _compile_lookup(call: IndexCall, gather: Gather, source: Array, target: Array) -> PrepareCopy | None:
    """What prepares machine code that copies what lies at offsets behind the first elements of the kept dimensions'
    spans."""
    from einc_runtime.kernels.llvm.lookups import CopyLayout, compile_lookup

    corner = _view_corner(call, gather, source)
    if corner is None:
        return None
    layout = CopyLayout.of(corner, target, gather.before, len(gather.loops), call.repetitions)
    return None if layout is None else compile_lookup(layout)


def _view_corner(call: IndexCall, gather: Gather, source: Array) -> Array | None:
    """The kept dimensions' spans of the first elements of all others, with extent 1 along loops; None where these spans
    are not within the block."""
    block, kept = call.blocks[gather.read.operand], dict(zip(gather.kept, gather.spans, strict=True))
    if any(lower < block.lower[dim] or upper > block.upper[dim] for dim, (lower, upper) in kept.items()):
        return None
    corner: tuple[Any, ...] = tuple(
        slice(kept[dim][0] - first, kept[dim][0] - first + 1) if dim in kept else slice(0, 1)
        for dim, first in enumerate(block.lower)
    )
    steps = [source.strides[axis] if isinstance(axis, int) else 0 for axis, _ in gather.axes]
    shape = [upper - lower if isinstance(axis, int) else 1 for axis, (lower, upper) in gather.axes]
    return np.lib.stride_tricks.as_strided(source[(*corner, Ellipsis)], shape, steps)


def _find_offsets(gather: Gather, source: Array, places: Sequence[Array]) -> Array:
    """How many bytes lie before what is found at each index vector of a gather's loops."""
    total: Array = np.zeros((1,) * len(gather.axes), np.int64)
    for dim, positions_of_dim in enumerate(places):
        if dim not in gather.kept:
            total = total + positions_of_dim * source.strides[dim]
    shape = [1 if isinstance(axis, int) else upper - lower for axis, (lower, upper) in gather.axes]
    return np.ascontiguousarray(np.broadcast_to(total, shape))


def _spread(call: IndexCall, number: int, axes: list[int | str]) -> Array:
    """The elements that a read finds, along the axes of a gather that are its loops."""
    view = call.view(number, NOTHING_MADE)
    return view.align([str(axis) for axis in axes])


def _find_places(
    call: IndexCall, gather: Gather, axes: list[int | str], elements: dict[int, Array]
) -> tuple[list[Array], Array]:
    """For each dimension of the source the positions within its block, and where any of them is outside."""
    block, shape = call.blocks[gather.read.operand], call.shapes[gather.read.operand]
    grids = dict(zip(axes, np.ix_(*(np.arange(lower, upper) for _, (lower, upper) in gather.axes)), strict=True))
    places: list[Array] = []
    outside = np.zeros((1,) * len(axes), np.bool_)
    for dim, (position, extent) in enumerate(zip(gather.read.positions, shape, strict=True)):
        positions = grids[dim] if dim in grids else _evaluate(position, grids, elements)
        least, most = int(positions.min()), int(positions.max())
        if position.elements:
            call.require_inside(gather, dim, least, most)
        if least < 0 or most >= extent:
            outside = outside | (positions < 0) | (positions >= extent)
        if least < block.lower[dim] or most >= block.upper[dim]:
            if dim == call.missing_rows:
                outside = outside | (positions < block.lower[dim]) | (positions >= block.upper[dim])
            positions = np.clip(positions, block.lower[dim], block.upper[dim] - 1)
        places.append(positions - block.lower[dim] if block.lower[dim] else positions)
    return places, outside


def _evaluate(position: Position, grids: dict[int | str, Array], elements: dict[int, Array]) -> Array:
    result: Array = np.full((1,) * len(grids), position.constant, np.int64)
    for name, factor in position.terms:
        value = elements[int(name[1:])].astype(np.int64) if name[0] == "@" else grids[name]
        result = result + factor * value
    result = result // position.divisor
    return result % position.modulus if position.modulus else result
