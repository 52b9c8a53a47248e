"""Aggregations that a plan defines, in Triton: the definition is a function that a loop and a tree call.

A program keeps a tile of tuples, kept positions by aggregated ones, goes through the aggregated axes in order, and
combines the columns of the tile at the end: neighbours, then neighbours of these. An operation that does not commute,
and any in a reproducible plan, has one column, so that its order is that of index vectors. Where too few results would
leave the GPU idle, the aggregated axes are divided among programs, and a second launch combines their tuples in order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from einc_runtime.dtypes import Array, compute_type, storage_dtype
from einc_runtime.kernels.calls.fold import CombineCall, FoldCall
from einc_runtime.kernels.triton.launches import KernelLaunch, LaunchSequence, WorkspaceAllocator
from einc_runtime.kernels.triton.map import ReductionTiles
from einc_runtime.kernels.triton.scalar import ScalarSource, format_number
from einc_runtime.kernels.triton.source import LANGUAGE, LaunchOptions, PointerOperand, assemble, index_cast
from einc_runtime.kernels.triton.tiles import ElementwiseTiles, TileGrid
from einc_runtime.kernels.views import merge_axes, strides_of
from einc_runtime.plan.scalar_programs import ScalarInput, ScalarProgram, TypedStep, infer_steps

COMBINING_FUNCTION = "combine_tuples"
"""The name of the definition in sources."""


def build_fold(call: FoldCall, *, ordered: bool) -> LaunchSequence:
    """One launch or two; `ordered` asks for the order of index vectors."""
    scratch = WorkspaceAllocator()
    launches = _launch_all(call, scratch, ordered=ordered or not call.definition.is_commutative)
    sequence = LaunchSequence(tuple(launches), scratch.size)
    return sequence.without_fusion() if ordered else sequence


def build_combine(call: CombineCall) -> LaunchSequence:
    """One launch, in which each position of the target is a chain over its copies."""
    sources, targets = ([f"{letter}{k}" for k in range(len(arrays))] for letter, arrays in
                        (("x", call.copies), ("y", call.target)))  # fmt: skip
    tile = ElementwiseTiles([*call.copies, *call.target], [*sources, *targets])
    chain = ScalarSource(call.steps, [f"v{k}" for k in range(len(sources))])
    lines = [f"v{k} = {tile.load(name)}" for k, name in enumerate(sources)]
    lines += chain.lines
    lines += [
        tile.store(name, f"({value})") for name, value in zip(targets, chain.list_last(len(targets)), strict=True)
    ]
    copies = len(sources) // len(targets)
    title = f"{call.definition.name} of {copies} copies"
    return LaunchSequence((tile.call("combine", title, lines, chain.source()),))


def _launch_all(call: FoldCall, scratch: WorkspaceAllocator, *, ordered: bool) -> list[KernelLaunch]:
    counted = np.lib.stride_tricks.as_strided(np.empty(1, np.int8), call.extents, [0] * len(call.extents))
    outputs = [output[(..., *[None] * (len(call.extents) - call.kept))] for output in call.outputs]
    gone = [axis >= call.kept for axis in range(len(call.extents))]
    (first, *layouts), kinds = merge_axes([counted, *call.views, *outputs], gone)
    views, outputs = layouts[: len(call.views)], layouts[len(call.views) :]
    reads = [PointerOperand.of(f"x{k}", view) for k, view in enumerate(views)]
    work = ReductionTiles.share(first.shape, kinds, reads)
    if ordered:
        tiles = replace(work.tiles, height=min(work.tiles.height, 128))
        work = replace(work, reduced=None, width=1, shares=1, tiles=tiles)
    if work.shares == 1:
        return [_launch_one(call, reads, outputs, work)]
    computed = [compute_type(kind) for kind in call.stored]
    shape = (*call.outputs[0].shape, work.shares)
    partials = [scratch.take((work.shares, *outputs[0].shape), storage_dtype(kind)) for kind in computed]
    dense = strides_of((work.shares, *call.outputs[0].shape), 1)
    shaped = [
        np.lib.stride_tricks.as_strided(partial, shape, [step * partial.itemsize for step in (*dense[1:], dense[0])])
        for partial in partials
    ]
    copies = "; ".join(f"t{k} = copy x{k}" for k in range(len(computed)))
    remaining = replace(
        call,
        values=infer_steps(ScalarProgram.parse(copies, len(computed)), computed),
        views=tuple(shaped),
        kinds=tuple(computed),
        extents=shape,
    )
    return [_launch_one(call, reads, partials, work), *_launch_all(remaining, scratch, ordered=ordered)]


def _launch_one(
    call: FoldCall, reads: Sequence[PointerOperand], outputs: Sequence[Array], work: ReductionTiles
) -> KernelLaunch:
    """A launch that writes results, or those of shares, which have shares before all other axes."""
    count, shared = call.definition.count, outputs[0].ndim > len(work.extents)
    targets = [PointerOperand.of(f"y{k}", output) for k, output in enumerate(outputs)]
    spans = (work.shares, *work.extents) if shared else work.extents
    padded = [PointerOperand(r.name, r.dtype, (0, *r.strides) if shared else r.strides, r.address) for r in reads]
    cast = index_cast([*padded, *targets], spans)
    kinds = [LANGUAGE[compute_type(kind)] for kind in call.stored]
    values = ScalarSource(call.values, [f"v{k}" for k in range(len(reads))])
    accumulators = [f"acc{k}" for k in range(count)]

    lines = work.tiles.locate(cast)
    if shared:
        lines = [f"tile = tl.program_id(0){cast}", f"share = tile % {work.shares}",
                 f"tile = tile // {work.shares}", *lines[1:]]  # fmt: skip
    for name, literal, kind in zip(accumulators, call.definition.identity, kinds, strict=True):
        number = format_number(literal.value)
        lines.append(f"{name} = tl.full([{work.tiles.height}, {work.width}], {number}, {kind})")
    body = work.positions(cast)
    for k in sorted(_find_read(call.values)):
        subscripts = work.subscripts(reads[k])
        body.append(f"v{k} = {reads[k].load(subscripts, work.mask(subscripts))}")
    body += values.lines
    terms = [f"({value}).to({kind})" for value, kind in zip(values.list_last(count), kinds, strict=True)]
    results = [f"next{k}" for k in range(count)]
    body.append(f"{', '.join(results)} = {COMBINING_FUNCTION}({', '.join([*accumulators, *terms])})")
    for name, result in zip(accumulators, results, strict=True):
        body.append(f"{name} = tl.where({work.inside}, {result}, {name})" if work.inside else f"{name} = {result}")
    each = -(-work.steps // work.shares)
    bounds = f"share * {each}, tl.minimum(share * {each} + {each}, {work.steps})" if shared else f"0, {work.steps}"
    loops = work.steps > 1 or shared
    lines += [f"for step in range({bounds}):", *("    " + line for line in body)] if loops else ["step = 0", *body]
    lines += _combine_columns(accumulators, work.tiles, work.width)
    kept = work.tiles.subscripts(PointerOperand.of("y", outputs[0][0] if shared else outputs[0]))
    places = {0: "share", **{axis + 1: subscript for axis, subscript in kept.items()}} if shared else kept
    lines += [
        target.store(places, name, work.tiles.mask(kept)) for target, name in zip(targets, accumulators, strict=True)
    ]
    grid = work.tiles.count() * (work.shares if shared else 1)
    title = f"{call.title}{f', in {work.shares} shares' if shared else ''}"
    helpers = write_function(call, values)
    return assemble("fold", title, [*reads, *targets], work.extents, lines, grid, LaunchOptions(helpers))


def write_function(call: FoldCall, values: ScalarSource) -> str:
    """The definition as a function of two tuples, and the functions that it and the values call."""
    count = call.definition.count
    names = [f"{side}{k}" for side in ("a", "b") for k in range(count)]
    combining = ScalarSource(call.combining, names)
    kinds = [LANGUAGE[compute_type(kind)] for kind in call.stored]
    results = [f"({value}).to({kind})" for value, kind in zip(combining.list_last(count), kinds, strict=True)]
    body = "".join(f"    {line}\n" for line in [*combining.lines, f"return {', '.join(results)}"])
    return f"{values.source(combining)}\n@triton.jit\ndef {COMBINING_FUNCTION}({', '.join(names)}):\n{body}"


def _combine_columns(names: Sequence[str], tiles: TileGrid, width: int) -> list[str]:
    """Lines that combine the columns of tiles into one, neighbours first; a tile without rows becomes one element."""
    lines = []
    while width > 1:
        width //= 2
        lines += [f"left_{n}, right_{n} = tl.split(tl.reshape({n}, [{tiles.height}, {width}, 2]))" for n in names]
        sides = [f"{side}_{n}" for side in ("left", "right") for n in names]
        lines.append(f"{', '.join(names)} = {COMBINING_FUNCTION}({', '.join(sides)})")
    if tiles.rows is None:  # there is one element, which has no subscript: numbers are its own maximum
        lines += [f"{n} = tl.max(tl.reshape({n}, [1]), 0)" for n in names]
    else:
        lines += [f"{n} = tl.reshape({n}, [{tiles.height}, 1])" for n in names]
    return lines


def _find_read(steps: Sequence[TypedStep]) -> set[int]:
    return {operand.position for step in steps for operand in step.operands if isinstance(operand, ScalarInput)}
