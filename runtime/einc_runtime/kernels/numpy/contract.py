"""The kernel `contract` {equation, scale} in numpy: a product of operands summed over indices that the result lacks.

The sum is multiplied by `scale` (1 by default) and rounded once.

More than two operands are contracted in pairs, the smallest intermediate first. A pair is one `np.matmul` into the
result: indices are grouped as batches, rows, columns and summed, and every group becomes one dimension where the
strides allow it. Where they do not, leading rows or columns become batches if large matrices remain; else the result
is copied from one large product, or an operand is copied. 16-bit floats are multiplied as they are where the processor
has instructions for that, which a library uses; else they are widened first, since numpy's product of float16 matrices
is hundreds of times slower than that of float32.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress

import numpy as np

from einc_runtime.dtypes import Array, DType, storage_dtype
from einc_runtime.kernels.base import Invocation, Kernel, KernelBuilder, PrepackedOperand, Run, ScratchAllocator, store
from einc_runtime.kernels.calls.contract import ContractCall, choose_smallest_pair, group_indices
from einc_runtime.kernels.indices import NamedArray
from einc_runtime.kernels.matrices import are_mergeable, is_blas_ready, split_off_batches, view_as_matrices
from einc_runtime.kernels.numpy import libraries, prepacking
from einc_runtime.kernels.numpy.map import build_map
from einc_runtime.kernels.numpy.pieces import Resolved, make_runner
from einc_runtime.kernels.numpy.prepacking import TakeArray
from einc_runtime.kernels.numpy.products import DenseProduct
from einc_runtime.plan.index_equations import Names

PrepareCopy = Callable[[Array, Array], Resolved]
"""Returns the call that copies an array to another of its shape, rounding or widening floats."""

MIN_GROUP = 16
"""Matrices with fewer rows or columns are copied if that makes them larger."""
NARROW, DEEP = 256, 192
"""The same limit where only the result is copied, and each of its elements is a sum of at least `DEEP` products."""

Factor = tuple[NamedArray, Names, Names, Names]
"""An operand of a matrix product, with its indices for batches, rows and columns."""


def build_contract(invocation: Invocation[Array]) -> Kernel:
    return build_contraction(invocation, build_map, _prepare_copy)


def build_contraction(invocation: Invocation[Array], multiply: KernelBuilder, move: PrepareCopy) -> Kernel:
    """The kernel. Products without a sum are left to `multiply`, a builder of maps; `move` prepares copies."""
    call = ContractCall.parse(invocation)
    if not call.sums:
        return multiply(call.as_map_or_reduce)
    large = math.prod(call.extents.values()) >= prepacking.MIN_PACKED_PRODUCTS  # else no library is looked for
    if large and call.narrow is not None and libraries.is_multiplied(call.narrow):
        with suppress(CannotMultiply):
            return _build_product(call, call.narrow, move)
    return _build_product(call, call.kind, move)


def _build_product(call: ContractCall, kind: str, move: PrepareCopy) -> Kernel:
    """The kernel whose intermediate values have the type `kind`. Raises CannotMultiply for types of 16 bits."""
    scratch = ScratchAllocator()

    def measure(shape: Sequence[int], dtype: DType) -> Array:
        scratch.take(shape, dtype)
        return np.empty(shape, dtype)  # only its strides are used; its pages are never touched

    measuring = BlasLowering(call, measure, move, kind)
    measuring.lower()

    def bind(memory: Array) -> Run:
        carved = ScratchAllocator()

        def take(shape: Sequence[int], dtype: DType) -> Array:
            return carved.take(shape, dtype).of(memory)

        return make_runner(BlasLowering(call, take, move, kind).lower())

    return Kernel(bind, scratch.size, math.prod(call.extents.values()) / 20, tuple(measuring.prepacked))


class CannotMultiply(Exception):
    """No library multiplies these operands in this type."""


class BlasLowering:
    """Collects the calls of one contraction; `take` returns temporary arrays, and `kind` is the type of those."""

    def __init__(self, call: ContractCall, take: TakeArray, move: PrepareCopy, kind: str) -> None:
        self.call, self.take, self.move, self.kind = call, take, move, kind
        self.dtype = storage_dtype("i64" if kind == "i32" else kind)  # of all intermediate values
        self.calls: list[Resolved] = []
        self.prepacked: list[PrepackedOperand] = []

    def lower(self) -> list[Resolved]:
        operands, output = self.call.operands, self.call.result
        left = [
            self._sum_out(x, {*output.names, *(n for y in operands if y is not x for n in y.names)}) for x in operands
        ]
        while len(left) > 2:
            left = self._contract_smallest(left, output)
        if len(left) == 2:
            self._contract_pair(left[0], left[1], output)
        else:
            only = left[0] if self.call.scale == 1 else self._copy(left[0].names, left[0].array)
            self._scale(only.array, output)
            self._store(only, output)
        return self.calls

    def _sum_out(self, operand: NamedArray, needed: set[str]) -> NamedArray:
        """Sums over the indices that only this operand has; floats are summed in f64."""
        axes = tuple(axis for axis, name in enumerate(operand.names) if name not in needed)
        if not axes:
            return operand
        names = tuple(name for name in operand.names if name in needed)
        wide = np.dtype(np.float64) if self.dtype.kind == "f" else self.dtype
        total = self.take(self._shape(names), wide)
        if operand.array.dtype.itemsize < 4:  # without a copy, numpy would convert bf16 element by element
            operand = self._copy(operand.names, operand.array)
        self.calls.append((np.add.reduce, [operand.array, axes, wide, total]))
        return NamedArray(names, total) if wide == self.dtype else self._copy(names, total)

    def _contract_smallest(self, operands: Sequence[NamedArray], output: NamedArray) -> list[NamedArray]:
        left, right, names = self._choose_pair(operands, output.names)
        target = NamedArray(names, self.take(self._shape(names), self.dtype))
        self._contract_pair(operands[left], operands[right], target)
        return [target, *(x for k, x in enumerate(operands) if k not in (left, right))]

    def _contract_pair(self, a: NamedArray, b: NamedArray, c: NamedArray) -> None:
        batch, rows, columns, summed = group_indices(a.names, b.names, c.names)
        if not summed:
            self._multiply_elementwise(a, b, c)
            return
        summed = self._order_summed(a, b, summed)
        loose_rows, rows = split_off_batches(rows, (a, c), self._choose_min_group(rows, a, summed))
        loose_columns, columns = split_off_batches(columns, (b, c), self._choose_min_group(columns, b, summed))
        batch = tuple(name for name in c.names if name in {*batch, *loose_rows, *loose_columns})
        if c.array.dtype == self.dtype and all(are_mergeable(c, group) for group in (rows, columns)):
            target = view_as_matrices(c, batch, rows, columns)
            if is_blas_ready(target):
                self._multiply_matrices((a, batch, rows, summed), (b, batch, summed, columns), target)
                self._scale(c.array, c)
                return
        temporary = NamedArray((*batch, *rows, *columns), self.take(self._shape((*batch, *rows, *columns)), self.dtype))
        target = view_as_matrices(temporary, batch, rows, columns)
        self._multiply_matrices((a, batch, rows, summed), (b, batch, summed, columns), target)
        self._scale(temporary.array, c)
        self._store(temporary, c)

    def _choose_pair(self, operands: Sequence[NamedArray], output: Names) -> tuple[int, int, Names]:
        return choose_smallest_pair([x.names for x in operands], output, self.call.extents)

    def _order_summed(self, a: NamedArray, b: NamedArray, summed: Names) -> Names:
        """The summed indices in an order in which they are one dimension of an operand, if there is one."""
        if are_mergeable(b, summed):
            return summed
        alternative = tuple(name for name in b.names if name in summed)
        return alternative if are_mergeable(a, alternative) or not are_mergeable(a, summed) else summed

    def _choose_min_group(self, group: Names, operand: NamedArray, summed: Names) -> int:
        """The least number of rows or columns for matrices that are not copied."""
        of_result = are_mergeable(operand, group)  # then only the result needs a copy
        return NARROW if of_result and math.prod(self._shape(summed)) >= DEEP else MIN_GROUP

    def _multiply_matrices(self, left: Factor, right: Factor, target: Array) -> None:
        """The product of two operands as matrices. A constant operand may be prepacked."""
        factors = (left, right)
        (first, for_first), (second, for_second) = (self._collect(factor) for factor in factors)
        side = next((side for side in (1, 0) if prepacking.is_constant(factors[side][0].array)), None)
        product = DenseProduct(first, second, target)
        library = libraries.choose_library(product, side)
        call = libraries.prepare_product(product, library, self.take)
        if call is None:
            raise CannotMultiply
        form = None
        if side is not None:
            operand = factors[side][0].array
            converted = operand.dtype != self.dtype
            form = prepacking.choose_form(product, side, library, self.take, converted=converted)
        if side is None or form is None:
            self.calls += [*for_first, *for_second, call]
            return
        chosen = form

        def make() -> Array:
            matrix, calls = BlasLowering(self.call, np.empty, self.move, self.kind)._collect(factors[side])
            make_runner(calls)()
            return chosen.pack(matrix)

        pack = prepacking.share_prepacked(operand, form.form, form.size, make)
        self.prepacked.append(pack)
        for_side, for_other_side = (for_second, for_first) if side else (for_first, for_second)
        self.calls += [
            *for_other_side,
            (prepacking.PrepackedProduct(pack, form.multiply, make_runner([*for_side, call])), []),
        ]

    def _collect(self, factor: Factor) -> tuple[Array, list[Resolved]]:
        """An operand as matrices, and the calls that prepare them."""
        before, self.calls = self.calls, []
        matrices = self._view_as_matrices(*factor)
        calls, self.calls = self.calls, before
        return matrices, calls

    def _view_as_matrices(self, operand: NamedArray, batch: Names, first: Names, second: Names) -> Array:
        """A stack of matrices (batch..., first, second) in the compute type, with extent 1 for absent batch indices."""
        same = operand.array.dtype == self.dtype
        dense = operand if same else NamedArray(operand.names, np.empty(operand.array.shape, self.dtype))
        if are_mergeable(dense, first) and are_mergeable(dense, second):
            view = view_as_matrices(dense, batch, first, second)
            if is_blas_ready(view):  # a copy that only converts keeps the order
                return (
                    view if same else view_as_matrices(self._copy(operand.names, operand.array), batch, first, second)
                )
        order = tuple(name for name in (*batch, *first, *second) if name in operand.names)
        return view_as_matrices(self._copy(order, operand.align(order)), batch, first, second)

    def _copy(self, names: Names, array: Array) -> NamedArray:
        copy = self.take(array.shape, self.dtype)
        self.calls.append(self.move(array, copy))
        return NamedArray(names, copy)

    def _multiply_elementwise(self, a: NamedArray, b: NamedArray, c: NamedArray) -> None:
        x, y = (self._copy(o.names, o.array) if o.array.dtype != self.dtype else o for o in (a, b))
        target = c if c.array.dtype == self.dtype else NamedArray(c.names, self.take(c.array.shape, self.dtype))
        self.calls.append((np.multiply, [x.align(c.names), y.align(c.names), target.array]))
        self._scale(target.array, c)
        if target is not c:
            self._store(target, c)

    def _scale(self, values: Array, target: NamedArray) -> None:
        """Multiplies values in the compute type by the scale, if they become the result."""
        if target is self.call.result and self.call.scale != 1:
            self.calls.append((np.multiply, [values, values.dtype.type(self.call.scale), values]))

    def _store(self, source: NamedArray, target: NamedArray) -> None:
        self.calls.append(self.move(source.align(target.names), target.array))

    def _shape(self, names: Sequence[str]) -> list[int]:
        return [self.call.extents[name] for name in names]


def _prepare_copy(source: Array, target: Array) -> Resolved:
    return store, [source, target]
