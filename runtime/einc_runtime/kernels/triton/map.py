"""The kernels `map` and `reduce` in Triton: a scalar program over joined indices, and an aggregation of its values.

`map` is one launch for a fused chain, with broadcasts and transposes. Aggregations of copies are maps, too: a chain of
additions in the order of the plan, in f32 or wider, rounded once.

`reduce` also computes contractions that no matrix product can (integers, three operands at once, diagonals). A program
keeps a tile of partial aggregates, kept positions by reduced ones, goes through the reduced axes in order, and combines
the tile at the end: the order depends on shapes alone. Where too few results would leave the GPU idle, the reduced axes
are divided among programs, and a second launch combines their partial results in order.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np

from einc_runtime.dtypes import Array, compute_type, storage_dtype
from einc_runtime.kernels.base import Invocation
from einc_runtime.kernels.calls.map import MapCall, ReduceCall, aggregation_as_map
from einc_runtime.kernels.scalar_program import read_steps
from einc_runtime.kernels.triton.launches import KernelLaunch, LaunchSequence, WorkspaceAllocator
from einc_runtime.kernels.triton.scalar import ScalarSource
from einc_runtime.kernels.triton.source import (
    LANGUAGE,
    LaunchOptions,
    PointerOperand,
    assemble,
    index_cast,
    power_of_two,
)
from einc_runtime.kernels.triton.tiles import MIN_PROGRAMS, MULTIPROCESSORS, TILE_ELEMENTS, ElementwiseTiles, TileGrid
from einc_runtime.kernels.views import merge_axes, strides_of
from einc_runtime.plan.scalar_programs import ScalarInput


def build_map(invocation: Invocation[Array]) -> LaunchSequence:
    """One launch. Further outputs get the same results."""
    call, copies = MapCall.parse(invocation), invocation.outputs[1:]
    names = [f"x{k}" for k in range(len(call.views))]
    results = [f"copy{k}" for k in range(len(copies))] + ["y"]
    elements = ElementwiseTiles([*call.views, *copies, call.output], [*names, *results])
    chain = ScalarSource(call.steps, [f"v{k}" for k in range(len(names))])
    used = {operand.position for step in call.steps for operand in step.operands if isinstance(operand, ScalarInput)}
    lines = [f"v{k} = {elements.load(names[k])}" for k in sorted(used)]
    lines += [*chain.lines, *(elements.store(name, chain.value) for name in results)]
    title = f"map over {' '.join(call.indices) or 'one element'}: {call.source}"
    return LaunchSequence((elements.call("map", title, lines, chain.source()),))


def build_aggregate(
    aggregation: str, reads: Sequence[Array], write: Array, copies: Sequence[Array] = ()
) -> LaunchSequence:
    """A chain of additions (or the like) over views in their order; `copies` get the same results."""
    invocation = aggregation_as_map(aggregation, reads, write)
    return build_map(invocation.on(reads, [write, *copies]))


SHARED_OUT = 16
"""The least number of loop steps in a share: reductions with fewer steps are not divided."""

COMBINE = {"sum": "{0} + {1}", "prod": "{0} * {1}", "max": "largest({0}, {1})", "min": "smallest({0}, {1})"}
"""Aggregation -> the expression that combines two values, which may call `COMBINE_HELPERS`."""
_FINISH = {
    "sum": "tl.sum(acc, {0})", "prod": "tl.reduce(acc, {0}, product)",
    "max": "tl.reduce(acc, {0}, largest)", "min": "tl.reduce(acc, {0}, smallest)",
}  # fmt: skip
COMBINE_HELPERS = {"sum": (), "prod": ("product",), "max": ("largest",), "min": ("smallest",)}


def build_reduce(invocation: Invocation[Array]) -> LaunchSequence:
    """One launch or two."""
    call, scratch = ReduceCall.parse(invocation), WorkspaceAllocator()
    over = " ".join(name for name, gone in zip(call.indices, call.reduced, strict=True) if gone)
    title = f"{call.aggregation} over {over}: {call.source}"
    return LaunchSequence(tuple(_launch_all(call, title, scratch)), scratch.size)


def _launch_all(call: ReduceCall, title: str, scratch: WorkspaceAllocator) -> list[KernelLaunch]:
    layouts, gone = merge_axes([*call.views, call.output], call.reduced)
    extents = tuple(max(column) for column in zip(*(view.shape for view in layouts), strict=True))
    reads = [PointerOperand.of(f"x{k}", view) for k, view in enumerate(layouts[:-1])]
    work = ReductionTiles.share(extents, gone, reads)
    stored = call.kinds[-1]
    computed = compute_type(stored)
    number = "i64" if computed in ("i32", "i64") else computed
    if work.shares == 1:
        return [_launch_one(call, reads, layouts[-1], work, number, title)]
    partial = scratch.take((work.shares, *layouts[-1].shape), storage_dtype(number))
    first = _launch_one(call, reads, partial, work, number, f"{title}, in {work.shares} shares")
    shape = (work.shares, *call.output.shape)
    shaped = np.lib.stride_tricks.as_strided(partial, shape, strides_of(shape, partial.itemsize))
    source = f"t0 = {'cast:i32' if stored == 'i32' else 'copy'} x0"  # other results are rounded as they are stored
    remaining = replace(
        call,
        steps=read_steps(source, [number]),
        views=(shaped,),
        output=call.output[None],
        kinds=(number, stored),
        indices=("share", *call.indices),
        source=source,
        reduced=(True, *(False for _ in call.indices)),
    )
    return [first, *_launch_all(remaining, f"{title}, of shares", scratch)]


@dataclass(frozen=True, slots=True)
class ReductionTiles:
    """How a reduction is divided among programs.

    `gone` says which axes are reduced. A tile has `width` positions of one of them, the axis `reduced` (None where
    there is none). A program goes through the other reduced axes step by step, within its share.
    """

    extents: tuple[int, ...]
    gone: tuple[bool, ...]
    tiles: TileGrid  # of the kept axes; all reduced axes have extent 1
    reduced: int | None
    width: int
    shares: int

    @property
    def loops(self) -> list[int]:
        return [axis for axis, gone in enumerate(self.gone) if gone and axis != self.reduced]

    @property
    def steps(self) -> int:
        inner = 1 if self.reduced is None else -(-self.extents[self.reduced] // self.width)
        return inner * math.prod(self.extents[axis] for axis in self.loops)

    def positions(self, cast: str) -> list[str]:
        """Lines that set k, the tile's positions along the reduced axis, and j1, ... along the other reduced axes."""
        lines = []
        remaining = "tl.cast(step, tl.int64)" if cast else "step"
        if self.reduced is not None:
            count = -(-self.extents[self.reduced] // self.width)
            span = f"tl.arange(0, {self.width})[None, :]{cast}"
            lines.append(f"k = {f'({remaining} % {count}) * {self.width} + ' if count > 1 else ''}{span}")
            if count > 1:
                lines.append(f"rest = {remaining} // {count}")
                remaining = "rest"
        for axis in reversed(self.loops):
            lines.append(f"j{axis} = {remaining} % {self.extents[axis]}")
            lines.append(f"rest = {remaining} // {self.extents[axis]}")
            remaining = "rest"
        if lines and lines[-1].startswith("rest ="):
            lines.pop()
        return lines

    def subscripts(self, item: PointerOperand) -> dict[int, str]:
        """The subscripts of an operand by the axes along which it varies."""
        reduced = {axis: f"j{axis}" for axis in self.loops} | {self.reduced: "k"}
        return {axis: reduced.get(axis, subscript) for axis, subscript in self.tiles.subscripts(item).items()}

    @property
    def inside(self) -> str:
        """The condition for positions inside of the reduced axis; empty where tiles fill it."""
        if self.reduced is None or self.extents[self.reduced] % self.width == 0:
            return ""
        return f"(k < {self.extents[self.reduced]})"

    def mask(self, axes: Collection[int]) -> str:
        """The condition for positions inside of these axes."""
        return " & ".join(filter(None, (self.tiles.mask(axes), self.inside if self.reduced in axes else "")))

    @staticmethod
    def share(extents: tuple[int, ...], gone: Sequence[bool], reads: Sequence[PointerOperand]) -> ReductionTiles:
        largest = max(reads, key=lambda item: sum(1 for s in item.strides if s))
        axes = range(len(extents))
        order = sorted(axes, key=lambda axis: (largest.strides[axis] == 0, largest.strides[axis], -extents[axis]))
        reduced = next((axis for axis in order if gone[axis]), None)
        kept = next((axis for axis in order if not gone[axis]), None)
        inner_kept = kept is not None and (reduced is None or order.index(kept) < order.index(reduced))
        width = 1 if reduced is None else power_of_two(extents[reduced])
        height = 1 if kept is None else power_of_two(extents[kept])
        if inner_kept:
            height = min(height, 128)
            width = min(width, max(1, TILE_ELEMENTS // height))
        else:
            width = min(width, 1024)
            height = min(height, max(1, TILE_ELEMENTS // width))
        outer = math.prod(extents[axis] for axis in axes if not gone[axis] and axis != kept)
        while height > 1 and outer * -(-(extents[kept] if kept is not None else 1) // height) < 2 * MULTIPROCESSORS:
            if height <= 16 and inner_kept:
                break
            height //= 2
        spans = tuple(1 if gone[axis] else extent for axis, extent in enumerate(extents))
        tiles = TileGrid(spans, kept, None, height, 1)
        work = ReductionTiles(extents, tuple(gone), tiles, reduced, width, 1)
        return replace(work, shares=max(1, min(work.steps // SHARED_OUT, MIN_PROGRAMS // max(1, tiles.count()))))


def _launch_one(
    call: ReduceCall, reads: Sequence[PointerOperand], output: Array, work: ReductionTiles, number: str, title: str
) -> KernelLaunch:
    """A launch that writes results, or partial results of shares, to an output."""
    aggregation = call.aggregation
    shared = output.ndim > len(work.extents)  # partial results have shares before all other axes
    target = PointerOperand.of("y", output)
    spans = (work.shares, *work.extents) if shared else work.extents
    padded = [PointerOperand(r.name, r.dtype, (0, *r.strides) if shared else r.strides, r.address) for r in reads]
    cast = index_cast([*padded, target], spans)
    chain = ScalarSource(call.steps, [f"v{k}" for k in range(len(reads))])
    value, identity = f"{chain.value}.to({LANGUAGE[number]})", write_identity(aggregation, number)

    lines = work.tiles.locate(cast)
    if shared:
        lines = [f"tile = tl.program_id(0){cast}", f"share = tile % {work.shares}",
                 f"tile = tile // {work.shares}", *lines[1:]]  # fmt: skip
    lines.append(f"acc = tl.full([{work.tiles.height}, {work.width}], {identity}, {LANGUAGE[number]})")
    each = -(-work.steps // work.shares)
    bounds = f"share * {each}, tl.minimum(share * {each} + {each}, {work.steps})" if shared else f"0, {work.steps}"
    loops = work.steps > 1 or shared
    body = work.positions(cast)
    for k, item in enumerate(reads):
        subscripts = work.subscripts(item)
        body.append(f"v{k} = {item.load(subscripts, work.mask(subscripts))}")
    body += chain.lines
    counted = f"tl.where({work.inside}, {value}, {identity})" if work.inside else value
    body.append(f"acc = {COMBINE[aggregation].format('acc', counted)}")
    lines += [f"for step in range({bounds}):", *("    " + line for line in body)] if loops else ["step = 0", *body]
    lines.append(f"result = {_FINISH[aggregation].format(1)}")
    if work.tiles.rows is None:
        lines.append(f"result = {_FINISH[aggregation].format(0).replace('acc', 'result')}")
    else:
        lines.append("result = result[:, None]")
    kept = work.tiles.subscripts(PointerOperand.of("y", output[0] if shared else output))
    places = {0: "share", **{axis + 1: subscript for axis, subscript in kept.items()}} if shared else kept
    lines.append(target.store(places, "result", work.tiles.mask(kept)))
    grid = work.tiles.count() * (work.shares if shared else 1)
    return assemble(
        "reduce",
        title,
        [*reads, target],
        work.extents,
        lines,
        grid,
        LaunchOptions(chain.source(*COMBINE_HELPERS[aggregation])),
    )


def write_identity(aggregation: str, number: str) -> str:
    """The value of a type that an aggregation leaves others unchanged by."""
    if aggregation in ("sum", "prod"):
        return "0" if aggregation == "sum" else "1"
    if number == "i64":
        return str(-(2**63) if aggregation == "max" else 2**63 - 1)
    return f'float("{"-inf" if aggregation == "max" else "inf"}")'
