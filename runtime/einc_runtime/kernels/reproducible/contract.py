"""The kernel `contract` in one order: products pair by pair from the left, each element one chain in the order of k.

The order of k is that in which the equation names what is summed, whatever the layout of the operands in memory, the
sizes of the blocks and the number of rows.

The kernels `expert_matmul` and `quantized_contract` multiply in the same way: however many rows an expert has; and each
element of a widened weight has one result wherever it lies, so that the order of sums alone decides about bits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from einc_runtime.dtypes import Array, DType
from einc_runtime.kernels.base import ANY_NUMBER, Invocation, Kernel, Run, ScratchAllocator
from einc_runtime.kernels.calls.contract import ContractCall, choose_smallest_pair
from einc_runtime.kernels.calls.experts import ExpertMatmulCall
from einc_runtime.kernels.calls.quantized import QuantizedContractCall
from einc_runtime.kernels.calls.rounded import RoundedContractCall
from einc_runtime.kernels.indices import NamedArray
from einc_runtime.kernels.llvm import compiler, rounded
from einc_runtime.kernels.llvm.contract import make_copier
from einc_runtime.kernels.llvm.quantized import prepare_widening
from einc_runtime.kernels.numpy import experts, prepacking, quantized
from einc_runtime.kernels.numpy.contract import BlasLowering, Factor
from einc_runtime.kernels.numpy.pieces import Resolved, make_runner
from einc_runtime.kernels.numpy.rounded import build_rounded_floats
from einc_runtime.kernels.reproducible.dense import build_map
from einc_runtime.kernels.reproducible.products import OrderedProduct, PackedForm, add_outer_products
from einc_runtime.kernels.reproducible.sums import fold
from einc_runtime.plan.index_equations import Names


def build_quantized_contract(invocation: Invocation[Array]) -> Kernel:
    widen = prepare_widening if compiler.is_available() else quantized.prepare_widening
    return quantized.build_product(QuantizedContractCall.parse(invocation), widen, build_contract)


def build_rounded_contract(invocation: Invocation[Array]) -> Kernel:
    """Sums of integers are exact in any order."""
    call = RoundedContractCall.parse(invocation)
    if not call.plain.weight.form.is_float:
        return rounded.build_rounded_contract(invocation)
    return build_rounded_floats(call, build_quantized_contract)


def build_expert_matmul(invocation: Invocation[Array]) -> Kernel:
    call = ExpertMatmulCall.parse(invocation)
    return experts.build_products(call, _multiply if isinstance(call.weight, np.ndarray) else build_quantized_contract)


def _multiply(invocation: Invocation[Array]) -> Kernel:
    """Products are prepared while a kernel runs, too: they are always machine code, however small they are."""
    return build_contract(replace(invocation, repetitions=ANY_NUMBER))


def build_contract(invocation: Invocation[Array]) -> Kernel:
    call = ContractCall.parse(invocation)
    if not call.sums:
        return build_map(call.as_map_or_reduce)
    scratch = ScratchAllocator()

    def measure(shape: Sequence[int], dtype: DType) -> Array:
        scratch.take(shape, dtype)
        return np.empty(shape, dtype)

    move = make_copier(invocation.repetitions)
    measuring = _OrderedLowering(call, measure, move, call.kind)
    measuring.lower()

    def bind(memory: Array) -> Run:
        carved = ScratchAllocator()
        lowering = _OrderedLowering(call, lambda *array: carved.take(*array).of(memory), move, call.kind)
        return make_runner(lowering.lower())

    return Kernel(bind, scratch.size, math.prod(call.extents.values()) / 20, tuple(measuring.prepacked))


class _OrderedLowering(BlasLowering):
    """As its base, with products in one order, and no choice that depends on the sizes of blocks."""

    def _sum_out(self, operand: NamedArray, needed: set[str]) -> NamedArray:
        names = tuple(name for name in operand.names if name in needed)
        gone = tuple(name for name in operand.names if name not in needed)
        if not gone:
            return operand
        shape, extent = self._shape(names), math.prod(self._shape(gone))
        wide = np.dtype(np.float64) if self.dtype.kind == "f" else self.dtype
        copy = self._copy((*names, *gone), operand.align((*names, *gone)))
        terms, total = self.take((math.prod(shape), extent), wide), self.take(shape, self.dtype)
        self.calls += [
            (np.copyto, [terms, copy.array.reshape(terms.shape)]),
            (fold, [np.add, terms]),
            (np.copyto, [total, terms[:, 0].reshape(shape), "unsafe"]),
        ]
        return NamedArray(names, total)

    def _choose_pair(self, operands: Sequence[NamedArray], output: Names) -> tuple[int, int, Names]:
        """The first two: with extents of 1, no pair is smaller."""
        return choose_smallest_pair([x.names for x in operands], output, dict.fromkeys(self.call.extents, 1))

    def _order_summed(self, a: NamedArray, b: NamedArray, summed: Names) -> Names:
        return summed

    def _multiply_matrices(self, left: Factor, right: Factor, target: Array) -> None:
        factors = (left, right)
        (first, for_first), (second, for_second) = (self._collect(factor) for factor in factors)
        product = OrderedProduct.of(first, second, target) if self.dtype.kind == "f" else None
        if product is None:
            self.calls += [*for_first, *for_second, self._prepare_plain_product(first, second, target)]
            return
        before_rows, before_columns = (for_second, for_first) if product.exchanged else (for_first, for_second)
        of_rows, of_columns = factors[::-1] if product.exchanged else factors
        rows, packing_rows = product.pack_rows(self.take)
        columns, packing_columns = (None, []) if product.is_direct else product.pack_columns(self.take)
        for_rows: list[Resolved] = [*before_rows, *packing_rows]
        for_columns: list[Resolved] = [*before_columns, *packing_columns]
        constant = [factor for factor in (of_columns, of_rows) if prepacking.is_constant(factor[0].array)]
        if not constant or not product.is_large:
            self.calls += [*for_rows, *for_columns, (product.multiply(rows, columns), [])]
            return
        factor = constant[0]
        form = PackedForm(product, factor is of_columns, factor[0].array.dtype)

        def make() -> Array:
            matrix, calls = type(self)(self.call, np.empty, self.move, self.kind)._collect(factor)
            make_runner(calls)()
            return form.pack(matrix)

        def multiply(packed: Array) -> Run:
            return product.multiply(rows, packed) if form.of_columns else product.multiply(packed, columns)

        pack = prepacking.share_prepacked(factor[0].array, form.form, form.size, make)
        self.prepacked.append(pack)
        for_form, for_other_form = (for_columns, for_rows) if form.of_columns else (for_rows, for_columns)
        without = make_runner([*for_form, (product.multiply(rows, columns), [])])
        self.calls += [*for_other_form, (prepacking.PrepackedProduct(pack, multiply, without), [])]

    def _prepare_plain_product(self, first: Array, second: Array, target: Array) -> Resolved:
        if self.dtype.kind != "f":
            return np.matmul, [first, second, target]  # integers have no order
        return add_outer_products, [first, second, target, self.take(target.shape, self.dtype)]
