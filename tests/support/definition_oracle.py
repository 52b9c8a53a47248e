"""The definition of a join-agg spec as an executable oracle (paper, Definitions 2, 4, 5 and 6).

`fault` joins, aggregates and recomposes with nothing but numpy and says where that differs from the reference.
Concrete operators come from a callable, so that the same oracle judges the operators' own meaning on blocks
(`instantiate`) and the kernels of the runtime.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np

from einc.core.intervals import (
    Intervals,
    count_reachable_sites,
    enumerate_factorizations,
    enumerate_requests,
    limit_intervals,
)
from einc.core.spec import FunctionSpec, JoinAggSpec, Overlay, Tiling, build_tiling
from einc.core.tensor import DType, TensorDesc, TensorType
from einc.ops import evaluate, registry
from einc.ops.base import Operator
from einc_runtime.plan.aggregate_definitions import find_definition
from einc_runtime.plan.schema import JointAggregation
from tests.support import joint_aggregation_meaning
from tests.support.block_slices import slices

Array = np.ndarray[Any, np.dtype[Any]]
Concrete = Callable[[Operator, FunctionSpec, Sequence[Array]], Sequence[Array]]

TOLERANCE = {DType.F16: 4e-3, DType.BF16: 3e-2, DType.F32: 1e-5, DType.F64: 1e-12}
COMBINE = {"sum": np.add, "max": np.maximum, "min": np.minimum, "prod": np.multiply}
CONCRETE: dict[str, Concrete] = {}
"""By family, concrete operators that differ from the abstract one on blocks, as they know where a block stands."""


def random_array(desc: TensorDesc, rng: np.random.Generator, positive: bool = False) -> Array:
    """Asymmetric data: no two elements of a float tensor alike, integers without zero."""
    if desc.dtype is DType.BOOL:
        return rng.random(desc.shape) < 0.4
    if desc.dtype.is_narrow_float:  # not all that a byte may be: some are no number
        return (
            (rng.uniform(5, 30, desc.shape) * rng.choice([1] if positive else [-1, 1], desc.shape))
            .astype(np.float32)
            .astype(desc.dtype.numpy())
        )
    if desc.dtype is DType.F8E8M0:  # near 1
        return rng.integers(124, 130, desc.shape, np.uint8).view(desc.dtype.numpy())
    if desc.dtype.is_quantized:
        return rng.integers(0, 256, desc.shape, np.uint8).view(desc.dtype.numpy())
    if desc.dtype.is_integer:
        values = rng.integers(1, 10, desc.shape)
        return (values if positive else values * rng.choice([-1, 1], desc.shape)).astype(desc.dtype.numpy())
    values = rng.uniform(0.3, 1.7, desc.shape) if positive else rng.normal(0.1, 1.0, desc.shape)
    return np.asarray(values).astype(desc.dtype.numpy())


def instantiate(operator: Operator, function: FunctionSpec, blocks: Sequence[Array]) -> Sequence[Array]:
    """The concrete operator as the abstract one made anew for the shapes of the blocks."""
    if operator.family in CONCRETE:
        return CONCRETE[operator.family](operator, function, blocks)
    return shaped(operator, tuple(block.shape for block in function.inputs), function.outputs[0].shape).reference(
        *blocks
    )


@lru_cache(1024)
def shaped(operator: Operator, inputs: tuple[tuple[int, ...], ...], output: tuple[int, ...]) -> Operator:
    """The operator on tensors of other shapes."""
    descs = tuple(TensorDesc(desc.dims, shape, desc.dtype) for desc, shape in zip(operator.inputs, inputs, strict=True))
    attributes = {name: value for name, value in operator.attributes.items() if name != "windows"}
    if "shape" in attributes:
        attributes["shape"] = output
    return registry.restore(operator.family, descs, attributes)


FEW = (1, 2, 3, 6, 8)
"""Numbers of sites that show every way to cut: not at all, one prime number of times, along two and three indices."""

REST = (4, 5, 7)
"""The others up to 8, for the slow suite."""


def one_number(name: str) -> tuple[int]:
    """6 or 8 sites, by turns, for cases that are cut like others which are tried with all of `FEW`."""
    return (6 if zlib.crc32(name.encode()) % 2 else 8,)


def requests(operator: Operator, sites: int) -> Iterator[Intervals]:
    """Every request for intervals with the largest reachable number of function specifications up to `sites`.

    Indices beyond the paper's candidates are cut where those that they exclude are whole.
    """
    indices = operator.indices
    for further in (None, *(index for index in indices if index.instead_of)):
        limits = limit_intervals(indices, further)
        for counts in enumerate_factorizations(count_reachable_sites(sites, limits), limits):
            if further is None or counts[indices.index(further)] > 1:
                yield from enumerate_requests(indices, counts)


def reachable(operator: Operator, intervals: Intervals, sites: int) -> int:
    """How many function specifications a request of `requests` has: the most with the indices that it may cut."""
    pairs = zip(operator.indices, intervals, strict=True)
    further = next((index for index, index_intervals in pairs if index.instead_of and len(index_intervals) > 1), None)
    return count_reachable_sites(sites, limit_intervals(operator.indices, further))


def fault(
    operator: Operator,
    spec: JoinAggSpec,
    arrays: Sequence[Array],
    expected: Sequence[Array],
    concrete: Concrete = instantiate,
) -> str | None:
    """Why `spec` does not implement `operator` on these arrays, or None where it does."""
    wrong = find_spec_fault(spec, [desc.type for desc in operator.inputs], [desc.type for desc in operator.outputs])
    if wrong is not None:
        return wrong
    joints = joint_aggregations_of(operator)
    partials: list[dict[TensorType, list[Sequence[Array]]]] = [{} for _ in joints]
    for function in spec.functions:
        blocks = [array[slices(block)] for array, block in zip(arrays, function.inputs, strict=True)]
        try:
            results = concrete(operator, function, blocks)
        except Exception as error:
            return f"the concrete operator refuses {function}: {error}"
        for block, result in zip(function.outputs, results, strict=True):
            if result.shape != block.shape:
                return f"the concrete operator made {result.shape} where {block} is wanted"
        for joint, table in zip(joints, partials, strict=True):
            primary = function.outputs[joint.outputs[0]]
            for j, dims in zip(joint.outputs, joint.dims, strict=True):
                if function.outputs[j] != primary.projected(dims):
                    return f"output {j}: {function.outputs[j]} does not belong to {primary} of the same tuple"
            table.setdefault(primary, []).append([results[j] for j in joint.outputs])
    for joint, table in zip(joints, partials, strict=True):
        aggregated = [np.zeros(operator.outputs[j].shape, operator.outputs[j].dtype.numpy()) for j in joint.outputs]
        for block, copies in table.items():
            total = copies[0]
            for copy in copies[1:]:
                total = combine(operator, joint.dims, total, copy, operator.aggregations[joint.outputs[0]])
            for array, dims, part in zip(aggregated, joint.dims, total, strict=True):
                array[slices(block.projected(dims))] = part
        for array, j in zip(aggregated, joint.outputs, strict=True):
            wrong = difference(array, expected[j], operator.outputs[j].dtype)
            if wrong is not None:
                return wrong
    return None


def joint_aggregations_of(operator: Operator) -> list[JointAggregation]:
    """The operator's joint aggregations, and one for every output that aggregates alone."""
    members = {j for joint in operator.joint_aggregations for j in joint.outputs}
    alone = [
        JointAggregation((j,), (tuple(range(operator.outputs[j].rank)),))
        for j in range(len(operator.aggregations))
        if j not in members
    ]
    return [*operator.joint_aggregations, *alone]


def combine(
    operator: Operator, dims: Sequence[Sequence[int]], left: Sequence[Array], right: Sequence[Array], name: str
) -> Sequence[Array]:
    """Two partial tuples as one: what an aggregation means, element by element."""
    definition = find_definition(str(operator.attributes.get("aggregation", "")))
    if definition is not None:
        types = [desc.dtype for desc in operator.outputs]
        values = evaluate.combine(definition, [array.astype(evaluate.find_computing_dtype(dtype)) for array, dtype in
                                               zip((*left, *right), types * 2, strict=True)], types)  # fmt: skip
        return [value.astype(array.dtype) for value, array in zip(values, left, strict=True)]
    if name in COMBINE:
        return [COMBINE[name](left[0], right[0])]
    return joint_aggregation_meaning.combine(name, dims, left, right)


def difference(computed: Array, expected: Array, dtype: DType) -> str | None:
    """How two arrays differ by more than the rounding of their type, relative to the largest value."""
    if computed.shape != expected.shape or computed.dtype != expected.dtype:
        return f"{computed.dtype}{computed.shape} where {expected.dtype}{expected.shape} is expected"
    if dtype not in TOLERANCE:
        return None if np.array_equal(computed, expected) else "integers or bools differ"
    a, b = computed.astype(np.float64), expected.astype(np.float64)
    finite = np.isfinite(b)
    if not np.array_equal(a[~finite], b[~finite], equal_nan=True):
        return "infinities or nan differ"
    scale = np.max(np.abs(b[finite]), initial=1e-30)
    error = np.max(np.abs(a[finite] - b[finite]), initial=0.0) / scale
    return None if error <= TOLERANCE[dtype] else f"off by {error:.3g} of the largest value"


def corruptions(operator: Operator, spec: JoinAggSpec, at: int) -> Iterator[tuple[JoinAggSpec, int | None, TensorType]]:
    """`spec` with one bound of one block of function `at` moved by one, in every way that must be noticed.

    Beside each stands the input whose block lost a slab (None for all else), and the slab. An input block that grows
    along an aggregated dimension is left out: under max and min that is no mistake.
    """
    function = spec.functions[at]
    for k, (block, desc) in enumerate(zip(function.inputs, operator.inputs, strict=True)):
        for d in range(desc.rank):
            for lower, upper in ((1, 0), (0, -1)):
                moved = _moved(block, d, lower, upper)
                slab = _moved(block, d, block.shape[d] - 1, 0) if upper else _moved(block, d, 0, 1 - block.shape[d])
                yield _with(spec, at, inputs=_put(function.inputs, k, moved)), k, slab
    for j, (block, desc) in enumerate(zip(function.outputs, operator.outputs, strict=True)):
        for d in range(desc.rank):
            for lower, upper in ((1, 0), (0, -1), (-1, 0), (0, 1)):
                if block.lower[d] + lower >= 0 and block.upper[d] + upper <= desc.shape[d]:
                    moved = _moved(block, d, lower, upper)
                    yield _with(spec, at, outputs=_put(function.outputs, j, moved)), None, moved


def _moved(block: TensorType, d: int, lower: int, upper: int) -> TensorType:
    return TensorType(_put(block.lower, d, block.lower[d] + lower), _put(block.upper, d, block.upper[d] + upper))


def _put(items: tuple[Any, ...], at: int, item: Any) -> tuple[Any, ...]:
    return (*items[:at], item, *items[at + 1 :])


def _with(spec: JoinAggSpec, at: int, **changes: tuple[TensorType, ...]) -> JoinAggSpec:
    changed = replace(spec.functions[at], **changes)
    return JoinAggSpec(_put(spec.functions, at, changed))


def find_tiling_fault(full: TensorType, blocks: Tiling) -> str | None:
    """The reason why `blocks` do not tile `full`, or None if they do (Definition 2)."""
    for block in blocks:
        if not full.contains(block):
            return f"block {block} is no projection of {full}"
    covered = sum(block.size for block in blocks)
    if covered != full.size:
        return f"the blocks hold {covered} elements where {full} holds {full.size}"
    overlay = Overlay(full, blocks)
    seen: set[TensorType] = set()
    for block in blocks:
        for cell in overlay.cells(block):
            if cell in seen:
                return f"two blocks overlap at {cell}"
            seen.add(cell)
    return None


def find_spec_fault(spec: JoinAggSpec, inputs: Sequence[TensorType], outputs: Sequence[TensorType]) -> str | None:
    """The reason why `spec` is not a join-agg spec over these whole types, or None if it is one.

    Checks that every block is a projection of its tensor, and that the blocks of every output tile it.
    """
    for function in spec.functions:
        if len(function.inputs) != len(inputs) or len(function.outputs) != len(outputs):
            return f"a function specification has {len(function.inputs)} inputs, {len(function.outputs)} outputs"
        for k, (block, full) in enumerate(zip(function.inputs, inputs, strict=True)):
            if not full.contains(block):
                return f"input {k}: block {block} is no projection of {full}"
    for j, full in enumerate(outputs):
        fault = find_tiling_fault(full, build_tiling(function.outputs[j] for function in spec.functions))
        if fault is not None:
            return f"output {j}: {fault}"
    return None
