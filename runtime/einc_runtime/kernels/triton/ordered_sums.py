"""Sums in one order on GPUs: what `tl.sum` leaves to the layout of registers, and the kernel `reduce`.

`tl.sum` adds up a tile as its elements are divided among threads, which depends on strides, on alignment and on how
many rows there are. Here a row of a tile is added up by a tree that is written out: neighbours, then neighbours of
these.

A `reduce` has its terms in the order in which the index equation names what is aggregated. Lane j combines the terms j,
j + PARALLEL_TERMS, ... of a chunk one after another, a tree combines the lanes, and chunks are combined in the same way
by a further launch. So the order follows from the number of terms, which no cut changes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from einc_runtime.dtypes import Array, compute_type, storage_dtype
from einc_runtime.kernels.base import Invocation
from einc_runtime.kernels.calls.map import ReduceCall
from einc_runtime.kernels.scalar_program import read_steps
from einc_runtime.kernels.triton.launches import KernelLaunch, LaunchSequence, WorkspaceAllocator
from einc_runtime.kernels.triton.map import COMBINE, COMBINE_HELPERS, build_reduce, write_identity
from einc_runtime.kernels.triton.scalar import ScalarSource
from einc_runtime.kernels.triton.source import (
    LANGUAGE,
    LaunchOptions,
    PointerOperand,
    assemble,
    index_cast,
    power_of_two,
)
from einc_runtime.kernels.triton.tiles import MULTIPROCESSORS, TILE_ELEMENTS, TileGrid
from einc_runtime.kernels.views import merge_axes, strides_of
from einc_runtime.plan.index_equations import parse_index_equation
from einc_runtime.plan.scalar_programs import TypedStep

PARALLEL_TERMS = 256
"""Terms that are combined side by side."""

PROGRAM_TERMS = 64 * PARALLEL_TERMS
"""Terms that one program combines."""


def write_tree(name: str, height: int, width: int, combine: str = "{0} + {1}") -> str:
    """The source of a function that combines the rows of a tile of this size. `combine` is an expression of two values,
    and the result has one value for each row."""
    lines = []
    while width > 1:
        width //= 2
        lines += [
            f"left, right = tl.split(tl.reshape(x, [{height}, {width}, 2]))",
            f"x = {combine.format('left', 'right')}",
        ]
    body = "".join(f"    {line}\n" for line in [*lines, f"return tl.reshape(x, [{height}])"])
    return f"\n@triton.jit\ndef {name}(x):\n{body}"


def build_ordered_reduce(invocation: Invocation[Array], workspace: WorkspaceAllocator | None = None) -> LaunchSequence:
    """One launch for every level of chunks.

    It may be a step of another kernel, whose `workspace` it then takes its own from.
    """
    call, scratch = ReduceCall.parse(invocation), workspace or WorkspaceAllocator()
    if compute_type(call.kinds[-1]) in ("i32", "i64"):
        return build_reduce(invocation)  # integers have no order
    equation = parse_index_equation(invocation.attribute("indices", str))
    named = dict.fromkeys(name for names in equation.inputs for name in names)
    order = [*equation.output, *(name for name in named if name not in equation.output)]
    places = [call.indices.index(name) for name in order]
    views = [view.transpose(places) for view in (*call.views, call.output)]
    gone = [position >= len(equation.output) for position in range(len(order))]
    title = f"{call.aggregation} over {' '.join(order[len(equation.output) :])} in one order: {call.source}"
    launches = _launch_all(views, gone, _Aggregate(call.aggregation, call.steps, call.kinds[-1], title), scratch)
    return LaunchSequence(tuple(launches), scratch.size).without_fusion()


@dataclass(frozen=True, slots=True)
class _Aggregate:
    """What is aggregated: values that `steps` compute, into results of the type `stored`."""

    aggregation: str
    steps: tuple[TypedStep, ...]
    stored: str
    title: str


def _launch_all(
    views: Sequence[Array], gone: Sequence[bool], aggregate: _Aggregate, scratch: WorkspaceAllocator
) -> list[KernelLaunch]:
    """Views have one rank, extent 1 where one is broadcast, and the result, which is the last one, where axes are gone.
    Axes that are gone come after the others."""
    layouts, kinds = merge_axes(views, gone)
    extents = tuple(max(column) for column in zip(*(view.shape for view in layouts), strict=True))
    terms = math.prod(extent for extent, is_gone in zip(extents, kinds, strict=True) if is_gone)
    number, output = compute_type(aggregate.stored), layouts[-1]
    chunks = -(-terms // PROGRAM_TERMS)
    if chunks == 1:
        return [_launch_level(layouts, extents, kinds, aggregate, number)]
    kept = tuple(extent for extent, is_gone in zip(extents, kinds, strict=True) if not is_gone)
    partial = scratch.take((*kept, chunks), storage_dtype(number))
    shape = (*(1 if is_gone else n for n, is_gone in zip(extents, kinds, strict=True)), chunks)
    shaped = np.lib.stride_tricks.as_strided(partial, shape, strides_of(shape, partial.itemsize))
    first = _launch_level([*layouts[:-1], shaped], extents, kinds, aggregate, number)
    copy = read_steps("t0 = copy x0", [number])
    remaining = _Aggregate(aggregate.aggregation, copy, aggregate.stored, f"{aggregate.title}, of chunks")
    return [first, *_launch_all([shaped, output[..., None]], [*(False for _ in shape[1:]), True], remaining, scratch)]


def _launch_level(
    layouts: Sequence[Array], extents: tuple[int, ...], gone: Sequence[bool], aggregate: _Aggregate, number: str
) -> KernelLaunch:
    """One launch; the output has chunks as a further axis behind the others if terms are in several chunks."""
    *sources, output = layouts
    reads = [PointerOperand.of(f"x{k}", view) for k, view in enumerate(sources)]
    target = PointerOperand.of("y", output)
    axes = [axis for axis, is_gone in enumerate(gone) if is_gone]
    terms = math.prod(extents[axis] for axis in axes)
    chunks = -(-terms // PROGRAM_TERMS)
    width = min(power_of_two(terms), PARALLEL_TERMS)
    tiles = _choose_tiles(tuple(1 if is_gone else n for n, is_gone in zip(extents, gone, strict=True)), reads, width)
    cast = next(filter(None, (index_cast([*reads], extents), index_cast([target], output.shape))), "")
    chain = ScalarSource(aggregate.steps, [f"v{k}" for k in range(len(reads))])
    identity, kind = write_identity(aggregate.aggregation, number), LANGUAGE[number]
    inside = f"(t < {terms})" if terms % width else ""
    value = f"{chain.value}.to({kind})"

    body = [f"t = start + tl.arange(0, {width})[None, :]{cast}"]
    inner = 1
    for axis in reversed(axes):
        subscript = "t" if inner == 1 else f"t // {inner}"
        body.append(f"j{axis} = {subscript if axis == axes[0] else f'({subscript}) % {extents[axis]}'}")
        inner *= extents[axis]
    for k, item in enumerate(reads):
        subscripts = tiles.subscripts(item) | {axis: f"j{axis}" for axis in axes if item.strides[axis]}
        varies = any(item.strides[axis] for axis in axes)
        mask = " & ".join(filter(None, (tiles.mask(subscripts), inside if varies else "")))
        body.append(f"v{k} = {item.load(subscripts, mask)}")
    value = f"tl.where({inside}, {value}, {identity})" if inside else value
    body += [*chain.lines, f"acc = {COMBINE[aggregate.aggregation].format('acc', value)}"]

    lines = tiles.locate(cast)
    start, stop = "0", f"{terms}"
    if chunks > 1:
        lines = [f"tile = tl.program_id(0){cast}", f"chunk = tile % {chunks}", f"tile = tile // {chunks}", *lines[1:]]
        start, stop = f"chunk * {PROGRAM_TERMS}", f"tl.minimum(chunk * {PROGRAM_TERMS} + {PROGRAM_TERMS}, {terms})"
    lines += [
        f"acc = tl.full([{tiles.height}, {width}], {identity}, {kind})",
        f"for start in range({start}, {stop}, {width}):",
        *("    " + line for line in body),
        f"result = combine_lanes(acc){'[:, None]' if tiles.rows is not None else ''}",
        *(["result = tl.max(result, 0)"] if tiles.rows is None else []),  # which is the only one
    ]
    kept = tiles.subscripts(PointerOperand(target.name, target.dtype, target.strides[: len(extents)], target.address))
    places = kept | ({len(extents): "chunk"} if chunks > 1 else {})
    lines.append(target.store(places, "result", tiles.mask(kept)))
    tree = write_tree("combine_lanes", tiles.height, width, COMBINE[aggregate.aggregation])
    helpers = chain.source(*COMBINE_HELPERS[aggregate.aggregation]) + tree
    grid = tiles.count() * chunks
    return assemble("reduce", aggregate.title, [*reads, target], extents, lines, grid, LaunchOptions(helpers))


def _choose_tiles(kept: tuple[int, ...], reads: Sequence[PointerOperand], width: int) -> TileGrid:
    """Tiles of results. How many results a tile has is free: each is computed from lanes of its own."""
    long = [axis for axis, extent in enumerate(kept) if extent > 1]
    rows = next((axis for axis in long if any(item.strides[axis] == 1 for item in reads)), long[-1] if long else None)
    height = 1 if rows is None else min(power_of_two(kept[rows]), max(1, TILE_ELEMENTS // width))
    while height > 1 and TileGrid(kept, rows, None, height, 1).count() < MULTIPROCESSORS:
        height //= 2
    return TileGrid(kept, rows, None, height, 1)
