"""The kernel `rounded_contract` as machine code: the tensor is rounded once, and multiplied with values as they lie."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np

from einc_runtime.dtypes import Array
from einc_runtime.kernels.base import Invocation, Kernel, Run, ScratchAllocator, address
from einc_runtime.kernels.calls.rounded import RoundedContractCall
from einc_runtime.kernels.indices import NamedArray
from einc_runtime.kernels.llvm import compiler
from einc_runtime.kernels.llvm.arguments import RoundedArguments, RoundingArguments
from einc_runtime.kernels.llvm.contract import make_copier
from einc_runtime.kernels.llvm.quantized import build_quantized_contract
from einc_runtime.kernels.matrices import are_mergeable, view_as_matrices
from einc_runtime.kernels.numpy import rounded as in_numpy
from einc_runtime.kernels.numpy.contract import PrepareCopy
from einc_runtime.kernels.numpy.pieces import Resolved, make_runner
from einc_runtime.plan.index_equations import Names

CACHED_WEIGHT_BYTES = 1 << 18
"""Bytes of a weight that stay in the second cache."""


def build_rounded_contract(invocation: Invocation[Array]) -> Kernel:
    call = RoundedContractCall.parse(invocation)
    if call.plain.weight.form.is_float:
        return in_numpy.build_rounded_floats(call, build_quantized_contract)
    plain = call.plain
    compiled = _compile(call) if compiler.is_worthwhile(plain.count(plain.labels), plain.repetitions) else None
    return compiled or in_numpy.build_rounded_contract(invocation)


def _compile(call: RoundedContractCall) -> Kernel | None:
    """The compiled kernel; None where its types or the memory of the weight do not suit."""
    plain = call.plain
    batch, rows, columns, summed = plain.groups
    values = NamedArray(plain.labels, plain.weight.values)
    scales = NamedArray(call.channels, plain.weight.scales)
    scaled = tuple(name for name in columns if name in call.channels)
    kinds = {plain.tensor.kind, call.rows.kind, plain.result.kind, scales.kind}
    if not kinds <= compiler.COMPILED_FLOATS or scaled not in ((), columns) or not are_mergeable(scales, scaled):
        return None
    if not _is_dense(values, columns, summed):
        return None
    from einc_runtime.kernels.llvm.rounded_code import (
        ROW_MULTIPLE,
        TILES,
        RoundedForm,
        emit_rounded_product,
        emit_rounding,
    )

    weight, each = view_as_matrices(values, batch, columns, summed), view_as_matrices(scales, batch, scaled, ())
    if scaled and len(weight) > 1 and each.strides[-2] != each.itemsize:
        return None
    scratch = ScratchAllocator()
    move = make_copier(plain.repetitions)
    tensor = _Dense(plain.tensor, (batch, rows, summed), scratch, move)
    largest = _Dense(call.rows, (batch, rows, ()), scratch, move)
    result = _Dense(plain.result, (batch, rows, columns), scratch, move)
    count, depth, width = (plain.count(names) for names in (rows, summed, columns))
    step = -(-depth // ROW_MULTIPLE) * ROW_MULTIPLE
    integers = scratch.take((count, step), np.dtype(np.int8))
    units, offsets = scratch.take((count,), np.dtype(np.float32)), scratch.take((count,), np.dtype(np.int32))
    products = compiler.find_integer_products()
    tile = -(-count // -(-count // TILES[products]))
    form = RoundedForm(tile, tile == count, scales.kind, plain.result.kind, not scaled, products)
    factor = struct.unpack("<i", struct.pack("<f", plain.scale))[0]
    rounding, product = emit_rounding(plain.tensor.kind, factor), emit_rounded_product(form)
    chunk = max(1, CACHED_WEIGHT_BYTES // (4 * depth)) * 4

    def bind(memory: Array) -> Run:
        calls: list[Resolved] = [*tensor.read(memory), *largest.read(memory)]
        laid, own_units, own_offsets = (slot.of(memory) for slot in (integers, units, offsets))
        source, sizes, target = (slot.view(memory) for slot in (tensor, largest, result))
        for position in np.ndindex(*target.shape[:-2]):
            x, m, y, w, s = (array[position] for array in (source, sizes, target, weight, each))
            rounded = RoundingArguments[int](
                tensor=address(x),
                tensor_step=x.strides[0],
                largest=address(m),
                largest_step=m.strides[0],
                integers=address(laid),
                integer_step=step,
                units=address(own_units),
                offsets=address(own_offsets),
                rows=count,
                width=depth,
            )
            calls.append((compiler.CompiledCall(rounding, rounded, x, m, laid, own_units, own_offsets), []))
            multiplied = RoundedArguments[int](
                integers=address(laid),
                integer_step=step,
                units=address(own_units),
                offsets=address(own_offsets),
                values=address(w),
                row_step=w.strides[0],
                scales=address(s),
                target=address(y),
                target_step=y.strides[0],
                tensor_rows=count,
                rows=width,
                width=depth,
                chunk=chunk,
            )
            kept: list[Any] = [laid, own_units, own_offsets, w, s, y]
            calls.append((compiler.CompiledCall(product, multiplied, *kept), []))
        return make_runner([*calls, *result.write(memory)])

    stored = plain.count(plain.labels)
    return Kernel(bind, scratch.size, max(stored / 12, stored * count / 200))


def _is_dense(operand: NamedArray, first: Names, second: Names) -> bool:
    """Whether an array has matrices whose rows are dense."""
    array = operand.array
    last = [n for n in second if array.shape[operand.names.index(n)] > 1]
    dense = not last or array.strides[operand.names.index(last[-1])] == array.itemsize
    return dense and are_mergeable(operand, first) and are_mergeable(operand, second)


class _Dense:
    """An operand as matrices with dense rows: the array itself, or a copy of it where it is otherwise."""

    def __init__(
        self, operand: NamedArray, groups: tuple[Names, Names, Names], scratch: ScratchAllocator, move: PrepareCopy
    ) -> None:
        batch, first, second = groups
        self._groups, self._names, self._operand, self._move = groups, (*batch, *first, *second), operand, move
        lies = _is_dense(operand, first, second)
        aligned = operand.align(self._names)
        self._copy = None if lies else scratch.take(aligned.shape, aligned.dtype)

    def view(self, memory: Array) -> Array:
        operand = self._operand if self._copy is None else NamedArray(self._names, self._copy.of(memory))
        return view_as_matrices(operand, *self._groups)

    def read(self, memory: Array) -> list[Resolved]:
        """The calls that make the copy."""
        if self._copy is None:
            return []
        return [self._move(self._operand.align(self._names), self._copy.of(memory))]

    def write(self, memory: Array) -> list[Resolved]:
        """The calls that write the copy to the array."""
        if self._copy is None:
            return []
        copied = NamedArray(self._names, self._copy.of(memory))
        return [self._move(copied.align(self._operand.names), self._operand.array)]
