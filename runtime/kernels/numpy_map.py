"""The kernels `map` and `reduce` in numpy: a scalar program over joined indices, and an aggregation of it.

`map` {program, indices} writes one element per index vector of the result; `reduce` {program, indices, aggregation}
combines over the indices that the result lacks (paper, Section 3.1: a join, then an aggregation).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from runtime.bundle import Attribute, Block
from runtime.dtypes import Array, DType, compute, storage
from runtime.errors import PlanFault
from runtime.kernels import indices, program
from runtime.kernels.base import Kernel, Run, ScratchPlan, dtype_name, single, text
from runtime.kernels.lowering import lower
from runtime.kernels.pieces import Evaluator, Piece, Resolved, Walk, breadth_of, merged, walk_runner

_UFUNCS = {"sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum}


def build_map(
    attributes: Mapping[str, Attribute],
    inputs: Sequence[Array],
    outputs: Sequence[Array],
    input_blocks: Sequence[Block],
    output_blocks: Sequence[Block],
) -> Kernel:
    output = single(outputs)
    steps, views = parse_map(attributes, inputs, output)
    (*sources, target), _ = merged([*views, output], [False] * output.ndim)
    names = [dtype_name(array) for array in inputs]
    code = lower(steps, names, [breadth_of(view) for view in sources], output.dtype)
    # One call in place needs no registers, and numpy walks best on its own.
    walk = Walk.over([target], max(1, output.size)) if len(code.calls) == 1 else Walk.over([target])
    scratch = ScratchPlan()
    evaluator = Evaluator.plan(code, walk, scratch)

    def bind(memory: Array) -> Run:
        resolve = evaluator.bind(memory, sources, target)
        return walk_runner(walk, lambda piece: resolve(piece)[0])

    return Kernel(bind, scratch.size, 0.3 * output.size * len(code.calls))


def parse_map(
    attributes: Mapping[str, Attribute], inputs: Sequence[Array], output: Array
) -> tuple[tuple[program.Typed, ...], list[Array]]:
    """The steps of a map, and its inputs with the dimensions of the output, of extent 1 where they are broadcast."""
    allowed = ("program", "indices")
    equation = indices.parse(text(attributes, allowed, "indices"))
    joined = indices.join(equation, inputs, output)
    missing = sorted(set(joined.extents) - set(equation.output))
    if missing:
        raise PlanFault(f"a map's result lacks the index '{missing[0]}'; a reduce would aggregate over it")
    names = [dtype_name(array) for array in inputs]
    steps = program.infer(program.parse(text(attributes, allowed, "program"), len(inputs)), names, dtype_name(output))
    return steps, [indices.aligned(v, n, equation.output) for v, n in zip(joined.views, joined.inputs, strict=True)]


def build_reduce(
    attributes: Mapping[str, Attribute],
    inputs: Sequence[Array],
    outputs: Sequence[Array],
    input_blocks: Sequence[Block],
    output_blocks: Sequence[Block],
) -> Kernel:
    """Walks the join in the layout of its largest input. Pieces aggregate in the compute type, and their results in a
    wider one (sums and products of f32 in f64, integers in i64), which is rounded once at the end."""
    allowed = ("program", "indices", "aggregation")
    output = single(outputs)
    equation = indices.parse(text(attributes, allowed, "indices"))
    joined = indices.join(equation, inputs, output)
    aggregation = text(attributes, allowed, "aggregation")
    if aggregation not in _UFUNCS:
        raise PlanFault(f"unknown aggregation '{aggregation[:40]}'; expected sum, max, min or prod")
    if output.dtype == np.bool_:
        raise PlanFault("truth values cannot be aggregated")
    names = [dtype_name(array) for array in inputs]
    stored = dtype_name(output)
    steps = program.infer(program.parse(text(attributes, allowed, "program"), len(inputs)), names, stored)

    largest = max(range(len(joined.views)), key=lambda k: joined.views[k].size)
    order = list(dict.fromkeys([*joined.inputs[largest], *joined.extents]))
    reduced = [name not in equation.output for name in order]
    views = [indices.aligned(v, n, order) for v, n in zip(joined.views, joined.inputs, strict=True)]
    (*sources, target), kinds = merged([*views, indices.aligned(output, equation.output, order)], reduced)
    code = lower(steps, names, [breadth_of(view) for view in sources], None)
    walk = Walk.over([*sources, target])
    scratch = ScratchPlan()
    evaluator = Evaluator.plan(code, walk, scratch)
    wide = _accumulator(stored, aggregation)
    sums = scratch.take(target.shape, wide)
    axes = tuple(axis for axis, kind in enumerate(kinds) if kind)
    ufunc = _UFUNCS[aggregation]

    def bind(memory: Array) -> Run:
        accumulator = sums.of(memory)
        resolve = evaluator.bind(memory, sources, None)

        def calls(piece: Piece) -> list[Resolved]:
            evaluation, value = resolve(piece)
            full = np.broadcast_to(value, walk.shape(piece.count, frozenset(range(len(walk.extents)))))
            return [*evaluation, (_accumulate, [ufunc, full, axes, piece.of(accumulator)])]

        aggregate = walk_runner(walk, calls)

        def run() -> None:
            accumulator.fill(_identity(aggregation, wide))
            aggregate()
            np.copyto(target, accumulator, casting="unsafe")

        return run

    return Kernel(bind, scratch.size, 0.3 * math.prod(walk.extents) * (1 + len(code.calls)))


def _accumulate(ufunc: Any, values: Array, axes: tuple[int, ...], accumulator: Array) -> None:
    """Along the last axis numpy sums in pairs, which is exact enough in f32; along others it adds up one by one."""
    dtype = values.dtype if axes and axes[-1] == values.ndim - 1 and values.dtype.kind == "f" else accumulator.dtype
    ufunc(accumulator, ufunc.reduce(values, axis=axes, dtype=dtype, keepdims=True) if axes else values, out=accumulator)


def _accumulator(stored: str, aggregation: str) -> DType:
    computed = compute(stored)
    if computed in ("i32", "i64"):
        return np.dtype(np.int64)
    return storage("f64" if aggregation in ("sum", "prod") else computed)


def _identity(aggregation: str, dtype: DType) -> Any:
    if aggregation in ("sum", "prod"):
        return dtype.type(0 if aggregation == "sum" else 1)
    if np.issubdtype(dtype, np.integer):
        return np.iinfo(dtype).min if aggregation == "max" else np.iinfo(dtype).max
    return dtype.type(-np.inf if aggregation == "max" else np.inf)
