"""The kernel `contract` on a GPU: {equation, scale}, a product of operands summed over indices that the result lacks.

More than two operands are contracted in pairs, the smallest intermediate first. A pair becomes one batched product of
matrices where strides allow it. Indices are grouped as batches, rows, columns and summed. Where rows or columns are not
one dimension, their leading indices become batches. What is no matrix is first copied into dense workspace. Batches
without a common stride become several products. Integers, and sums over one operand, are left to `reduce`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from einc_runtime.dtypes import Array, storage_dtype
from einc_runtime.kernels.base import Invocation, address
from einc_runtime.kernels.calls.contract import ContractCall, choose_smallest_pair, group_indices, write_product_program
from einc_runtime.kernels.indices import NamedArray
from einc_runtime.kernels.matrices import are_mergeable, split_off_batches
from einc_runtime.kernels.triton import gemm
from einc_runtime.kernels.triton.gemm import Axis, Matrix
from einc_runtime.kernels.triton.launches import LaunchSequence, LaunchStep, WorkspaceAllocator
from einc_runtime.kernels.triton.map import build_map, build_reduce
from einc_runtime.plan.index_equations import Names

MIN_GROUP = 16
"""Matrices with fewer rows or columns are copied if that makes them larger."""

MAX_PRODUCTS = 64
"""The greatest number of launches for one pair; more take longer than one launch of a slower kernel."""


def build_contract(invocation: Invocation[Array]) -> LaunchSequence:
    call = ContractCall.parse(invocation)
    if not call.sums:
        return build_map(call.as_map_or_reduce)
    summed = call.extents.keys() - set(call.result.names)
    lone = any(sum(name in operand.names for operand in call.operands) == 1 for name in summed)
    if len(call.operands) > 1 and not lone and call.kind in ("f32", "f64"):
        lowering = _GemmLowering(call)
        if lowering.lower():
            return LaunchSequence(tuple(lowering.steps), lowering.scratch.size)
    return build_reduce(call.as_map_or_reduce)


class _GemmLowering:
    """Collects the steps of one contraction."""

    def __init__(self, call: ContractCall) -> None:
        self.call, self.kind = call, call.kind  # also the type of intermediate results
        self.scratch = WorkspaceAllocator()
        self.steps: list[LaunchStep] = []

    def lower(self) -> bool:
        """Collects the steps; False where products of matrices cannot compute the contraction."""
        left, output = list(self.call.operands), self.call.result
        while len(left) > 2:
            first, second, names = choose_smallest_pair([x.names for x in left], output.names, self.call.extents)
            target = NamedArray(names, self.scratch.take(self._shape(names), storage_dtype(self.kind)))
            if not self._contract_pair(left[first], left[second], target):
                return False
            left = [target, *(x for k, x in enumerate(left) if k not in (first, second))]
        return self._contract_pair(left[0], left[1], output)

    def _contract_pair(self, a: NamedArray, b: NamedArray, c: NamedArray) -> bool:
        batch, rows, columns, summed = group_indices(a.names, b.names, c.names)
        if not summed:
            equation = f"{' '.join(a.names)}, {' '.join(b.names)} -> {' '.join(c.names)}"
            self._add_map(write_product_program(2, self._factor(c)), equation, [a.array, b.array], c.array)
            return True
        kind = a.kind if a.kind == b.kind else self.kind
        a, b = (x if x.kind == kind else self._copy_dense(x, x.names, kind) for x in (a, b))
        if not are_mergeable(b, summed):
            summed = tuple(n for n in b.names if n in summed)
        loose_rows, rows = split_off_batches(rows, (a, c), MIN_GROUP)
        loose_columns, columns = split_off_batches(columns, (b, c), MIN_GROUP)
        batch = tuple(n for n in c.names if n in {*batch, *loose_rows, *loose_columns})
        a = self._fit(a, batch, rows, summed)
        b = self._fit(b, batch, summed, columns)
        target = c
        if c.kind not in (kind, self.kind) or _find_matrix(c, rows, columns) is None:
            names = (*batch, *rows, *columns)
            result = c.kind if c.kind in (kind, self.kind) else self.kind
            target = NamedArray(names, self.scratch.take(self._shape(names), storage_dtype(result)))
        products = self._make_products(a, b, target, (batch, rows, summed, columns), self._factor(c))
        if products is None:
            return False
        self.steps += products
        if target is not c:
            self._add_map("t0 = copy x0", f"{' '.join(target.names)} -> {' '.join(c.names)}", [target.array], c.array)
        return True

    def _fit(self, operand: NamedArray, batch: Names, first: Names, second: Names) -> NamedArray:
        """The operand if it is a stack of matrices, else a dense copy."""
        if _find_matrix(operand, first, second) is not None:
            return operand
        order = tuple(name for name in (*batch, *first, *second) if name in operand.names)
        return self._copy_dense(operand, order, operand.kind)

    def _copy_dense(self, operand: NamedArray, order: Names, kind: str) -> NamedArray:
        copy = NamedArray(order, self.scratch.take(self._shape(order), storage_dtype(kind)))
        self._add_map("t0 = copy x0", f"{' '.join(operand.names)} -> {' '.join(order)}", [operand.array], copy.array)
        return copy

    def _make_products(
        self,
        a: NamedArray,
        b: NamedArray,
        c: NamedArray,
        indices: tuple[Names, Names, Names, Names],
        scale: float,
    ) -> list[LaunchStep] | None:
        """Products of stacks of matrices of one type; `indices` are batches, rows, summed indices and columns."""
        batch, rows, summed, columns = indices
        matrices = (_find_matrix(a, rows, summed), _find_matrix(b, summed, columns), _find_matrix(c, rows, columns))
        assert all(matrix is not None for matrix in matrices)
        stacks = [tuple(_find_axes(x, [n])[0].stride for x in (a, b, c)) for n in batch]
        walks = merge_dimensions([(self.call.extents[n], s[0], s[1], s[2]) for n, s in zip(batch, stacks, strict=True)])
        inner = max(walks, key=lambda walk: walk[0], default=(1, 0, 0, 0))
        if inner in walks:
            walks.remove(inner)
        if math.prod(walk[0] for walk in walks) > MAX_PRODUCTS:
            return None
        steps: list[LaunchStep] = []
        for position in itertools.product(*(range(walk[0]) for walk in walks)):
            moved = []
            for number, (matrix, x) in enumerate(zip(matrices, (a, b, c), strict=True)):
                assert matrix is not None
                offset = sum(at * walk[1 + number] for at, walk in zip(position, walks, strict=True))
                moved.append(Matrix(matrix.address + offset * x.array.itemsize, matrix.rows, matrix.columns))
            product = gemm.make_gemm(moved[0], moved[1], moved[2], inner, a.kind, c.kind, scale)
            if product is None:
                return None
            steps += gemm.split_for_cache(product)
        return steps

    def _factor(self, target: NamedArray) -> float:
        return self.call.scale if target is self.call.result else 1.0

    def _add_map(self, program: str, equation: str, inputs: Sequence[Array], output: Array) -> None:
        self.steps += build_map(Invocation("map", {"program": program, "indices": equation}, inputs, [output])).steps

    def _shape(self, names: Sequence[str]) -> list[int]:
        return [self.call.extents[name] for name in names]


def _find_axes(operand: NamedArray, group: Sequence[str]) -> list[Axis]:
    """Extents and strides in elements; extent 1 and stride 0 for indices that the operand lacks."""
    array = operand.array
    dimensions = zip(operand.names, array.shape, array.strides, strict=True)
    axes = {name: Axis(extent, stride // array.itemsize) for name, extent, stride in dimensions}
    return [axes.get(name, Axis(1, 0)) for name in group]


def _find_matrix(operand: NamedArray, first: Names, second: Names) -> Matrix | None:
    """The first matrix of a stack; None where a group is not one dimension, or cuBLAS cannot read the matrix."""
    rows, columns = gemm.merge_strided(_find_axes(operand, first)), gemm.merge_strided(_find_axes(operand, second))
    if rows is None or columns is None:
        return None
    matrix = Matrix(address(operand.array), rows, columns)
    return None if matrix.find_order() is None else matrix


def merge_dimensions(dimensions: Sequence[tuple[int, int, int, int]]) -> list[tuple[int, int, int, int]]:
    """Dimensions (extent, and strides in a, b and c) with neighbours merged where all three allow it; without those of
    extent 1."""
    merged: list[tuple[int, int, int, int]] = []
    for extent, *strides in dimensions:
        if extent == 1:
            continue
        last = merged[-1] if merged else None
        if last is not None and all(outer == extent * inner for outer, inner in zip(last[1:], strides, strict=True)):
            merged[-1] = (last[0] * extent, strides[0], strides[1], strides[2])
        else:
            merged.append((extent, strides[0], strides[1], strides[2]))
    return merged
