"""The kernel `contract` in numpy: {equation, scale}, a product of operands summed over indices the result lacks.

What is summed is multiplied by `scale`, 1 unless it is given, and rounded once.

More than two operands are contracted in pairs, the smallest intermediate first. A pair is one `np.matmul` into the
result: indices are grouped as batch, rows, columns and summed, and every group is seen as one dimension where the
strides allow it. Where they do not, leading rows or columns become batches if large matrices are left; else the result
is copied from one large product, or an operand is copied. 16-bit floats are widened first (numpy's own product of
float16 matrices is hundreds of times slower than that of float32).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from einc_runtime.dtypes import Array, DType, storage
from einc_runtime.kernels import packs
from einc_runtime.kernels.base import Builder, Invocation, Kernel, Run, ScratchPlan, store
from einc_runtime.kernels.calls.contract import Contraction, groups, smallest_pair
from einc_runtime.kernels.indices import Named, Names
from einc_runtime.kernels.matrices import blas_ready, grouped, mergeable, split
from einc_runtime.kernels.numpy import blas
from einc_runtime.kernels.numpy.map import build_map
from einc_runtime.kernels.numpy.packing import packing
from einc_runtime.kernels.numpy.pieces import Resolved, runner

Move = Callable[[Array, Array], Resolved]
"""What copies one array to another of its shape, rounding or widening floats."""
Take = Callable[[Sequence[int], DType], Array]

MIN_GROUP = 16
"""Matrices with fewer rows or columns than this are worth a copy if that makes them larger."""
NARROW, DEEP = 256, 192
"""The same where the copy is only of the result, and each of its elements is a sum of `DEEP` products or more."""

Factor = tuple[Named, Names, Names, Names]
"""An operand of a matrix product, and its indices that are batches, rows and columns."""


def build_contract(invocation: Invocation[Array]) -> Kernel:
    return contraction(invocation, build_map, _move)


def contraction(invocation: Invocation[Array], multiply: Builder, move: Move, *, add: bool = False) -> Kernel:
    """The kernel, with products that sum nothing left to a builder of maps, and elements converted by `move`.

    With `add` its result is added to what the output holds; raises CannotAdd where it cannot be.
    """
    call = Contraction.parse(invocation)
    if not call.sums:
        if add:
            raise CannotAdd
        return multiply(call.spelled)

    scratch = ScratchPlan()

    def measured(shape: Sequence[int], dtype: DType) -> Array:
        scratch.take(shape, dtype)
        return np.empty(shape, dtype)  # only its layout matters here; its pages are never touched

    measuring = _Contraction(call, measured, move, add)
    measuring.plan()

    def bind(memory: Array) -> Run:
        carved = ScratchPlan()
        return runner(_Contraction(call, lambda *array: carved.take(*array).of(memory), move, add).plan())

    return Kernel(bind, scratch.size, math.prod(call.extents.values()) / 20, tuple(measuring.packs))


class CannotAdd(Exception):
    """The result is no matrix product, or has to be rounded before it is added."""


class _Contraction:
    """Plans the calls of one contraction; `take` gives temporary arrays."""

    def __init__(self, call: Contraction, take: Take, move: Move, add: bool) -> None:
        self.call, self.take, self.move, self.add = call, take, move, add
        self.dtype = storage("i64" if call.kind == "i32" else call.kind)  # that it computes in
        self.calls: list[Resolved] = []
        self.packs: list[packs.Pack] = []

    def plan(self) -> list[Resolved]:
        operands, output = self.call.operands, self.call.result
        left = [
            self._summed(x, {*output.names, *(n for y in operands if y is not x for n in y.names)}) for x in operands
        ]
        while len(left) > 2:
            left = self._contract_smallest(left, output)
        if len(left) == 2:
            self._pair(left[0], left[1], output)
        elif self.add:
            raise CannotAdd
        else:
            only = left[0] if self.call.scale == 1 else self._copied(left[0].names, left[0].array)
            self._scale(only.array, output)
            self._store(only, output)
        return self.calls

    def _summed(self, operand: Named, needed: set[str]) -> Named:
        """Sums over the indices that only this operand has; floats in f64."""
        axes = tuple(axis for axis, name in enumerate(operand.names) if name not in needed)
        if not axes:
            return operand
        names = tuple(name for name in operand.names if name in needed)
        wide = np.dtype(np.float64) if self.dtype.kind == "f" else self.dtype
        total = self.take(self._shape(names), wide)
        if operand.array.dtype.itemsize < 4:  # summed as it is, a bf16 array would be converted element by element
            operand = self._copied(operand.names, operand.array)
        self.calls.append((np.add.reduce, [operand.array, axes, wide, total]))
        return Named(names, total) if wide == self.dtype else self._copied(names, total)

    def _contract_smallest(self, operands: Sequence[Named], output: Named) -> list[Named]:
        one, other, names = smallest_pair([x.names for x in operands], output.names, self.call.extents)
        target = Named(names, self.take(self._shape(names), self.dtype))
        self._pair(operands[one], operands[other], target)
        return [target, *(x for k, x in enumerate(operands) if k not in (one, other))]

    def _pair(self, a: Named, b: Named, c: Named) -> None:
        adds = self.add and c is self.call.result
        batch, rows, columns, summed = groups(a.names, b.names, c.names)
        if not summed:
            if adds:
                raise CannotAdd
            self._multiply(a, b, c)
            return
        if not mergeable(b, summed):
            alternative = tuple(name for name in b.names if name in summed)
            summed = alternative if mergeable(a, alternative) or not mergeable(a, summed) else summed
        loose_rows, rows = split(rows, (a, c), self._least(rows, a, summed))
        loose_columns, columns = split(columns, (b, c), self._least(columns, b, summed))
        batch = tuple(name for name in c.names if name in {*batch, *loose_rows, *loose_columns})
        written = c.array.dtype == self.dtype and not (adds and self.call.scale != 1)
        if written and all(mergeable(c, group) for group in (rows, columns)):
            target = grouped(c, batch, rows, columns)
            if blas_ready(target):
                self._product((a, batch, rows, summed), (b, batch, summed, columns), target, add=adds)
                self._scale(c.array, c)
                return
        if adds and c.array.dtype != self.dtype:
            raise CannotAdd
        temporary = Named((*batch, *rows, *columns), self.take(self._shape((*batch, *rows, *columns)), self.dtype))
        target = grouped(temporary, batch, rows, columns)
        self._product((a, batch, rows, summed), (b, batch, summed, columns), target, add=False)
        self._scale(temporary.array, c)
        if adds:
            self.calls.append((np.add, [c.array, temporary.aligned(c.names), c.array]))
        else:
            self._store(temporary, c)

    def _least(self, group: Names, operand: Named, summed: Names) -> int:
        """As many rows or columns as matrices should have, at the price of a copy."""
        of_result = mergeable(operand, group)  # alone
        return NARROW if of_result and math.prod(self._shape(summed)) >= DEEP else MIN_GROUP

    def _product(self, left: Factor, right: Factor, target: Array, *, add: bool) -> None:
        """The product of two operands as matrices; one that is constant need not be laid out in every run."""
        factors = (left, right)
        (first, for_first), (second, for_second) = (self._aside(factor) for factor in factors)
        call = blas.added_product(first, second, target) if add else blas.product(first, second, target)
        if call is None:
            raise CannotAdd
        side = 1 if packs.constant(right[0].array) else 0
        operand = factors[side][0].array
        form = None
        if packs.constant(operand):
            form = packing(first, second, target, side, add=add, converted=operand.dtype != self.dtype)
        if form is None:
            self.calls += [*for_first, *for_second, call]
            return
        chosen = form

        def make() -> Array:
            matrix, calls = _Contraction(self.call, np.empty, self.move, False)._aside(factors[side])
            runner(calls)()
            return chosen.pack(matrix)

        pack = packs.pack_of(operand, form.form, form.size, make)
        self.packs.append(pack)
        own, others = (for_second, for_first) if side else (for_first, for_second)
        self.calls += [*others, (packs.Packed(pack, form.multiply, runner([*own, call])), [])]

    def _aside(self, factor: Factor) -> tuple[Array, list[Resolved]]:
        """An operand as matrices, and the calls that make them."""
        before, self.calls = self.calls, []
        matrices = self._matrices(*factor)
        calls, self.calls = self.calls, before
        return matrices, calls

    def _matrices(self, operand: Named, batch: Names, first: Names, second: Names) -> Array:
        """A stack of matrices (batch..., first, second) in the compute type, with extent 1 for absent batch indices."""
        same = operand.array.dtype == self.dtype
        dense = operand if same else Named(operand.names, np.empty(operand.array.shape, self.dtype))
        if mergeable(dense, first) and mergeable(dense, second):
            view = grouped(dense, batch, first, second)
            if blas_ready(view):  # a copy that only converts keeps its order
                return view if same else grouped(self._copied(operand.names, operand.array), batch, first, second)
        order = tuple(name for name in (*batch, *first, *second) if name in operand.names)
        return grouped(self._copied(order, operand.aligned(order)), batch, first, second)

    def _copied(self, names: Names, array: Array) -> Named:
        copy = self.take(array.shape, self.dtype)
        self.calls.append(self.move(array, copy))
        return Named(names, copy)

    def _multiply(self, a: Named, b: Named, c: Named) -> None:
        """A product without a sum."""
        x, y = (self._copied(o.names, o.array) if o.array.dtype != self.dtype else o for o in (a, b))
        target = c if c.array.dtype == self.dtype else Named(c.names, self.take(c.array.shape, self.dtype))
        self.calls.append((np.multiply, [x.aligned(c.names), y.aligned(c.names), target.array]))
        self._scale(target.array, c)
        if target is not c:
            self._store(target, c)

    def _scale(self, values: Array, target: Named) -> None:
        """Multiplies what is to become `target`, in the compute type, if that is the result."""
        if target is self.call.result and self.call.scale != 1:
            self.calls.append((np.multiply, [values, values.dtype.type(self.call.scale), values]))

    def _store(self, source: Named, target: Named) -> None:
        self.calls.append(self.move(source.aligned(target.names), target.array))

    def _shape(self, names: Sequence[str]) -> list[int]:
        return [self.call.extents[name] for name in names]


def _move(source: Array, target: Array) -> Resolved:
    return store, [source, target]
