"""The kernel `rounded_contract` in Triton with a weight of floats: a launch rounds the tensor, others multiply it.

Where tensor cores multiply floats of 8 bits, and each row and each channel has one scale, values are multiplied as they
are (`gemm.Gemm` with scales of rows and columns): by cuBLASLt, or by our own kernel where the library does not know
such scales. Where groups have scales, our own kernel does so, too (`grouped_floats`). Sums are in f32. Elsewhere, what
values and scales stand for is rounded to the type of the tensor and multiplied as `quantized_contract` does it.

Divisions are those of the CPU, so that both have the same values.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from einc_runtime.dtypes import Array, storage_dtype
from einc_runtime.kernels.base import Invocation, address
from einc_runtime.kernels.calls.rounded import RoundedContractCall
from einc_runtime.kernels.gpu import F8_ARCHITECTURES
from einc_runtime.kernels.indices import NamedArray
from einc_runtime.kernels.matrices import are_mergeable, view_as_matrices
from einc_runtime.kernels.triton import rounded
from einc_runtime.kernels.triton.gemm import Axis, Matrix, make_gemm
from einc_runtime.kernels.triton.grouped_floats import multiply_groups, suits_groups
from einc_runtime.kernels.triton.launches import KernelLaunch, LaunchSequence, LaunchStep, WorkspaceAllocator
from einc_runtime.kernels.triton.map import build_map
from einc_runtime.kernels.triton.narrow_floats import F32_BIAS
from einc_runtime.kernels.triton.quantized import (
    STAND_IN_TENSOR,
    build_on_operand,
    build_ordered_quantized_contract,
    build_quantized_contract,
)
from einc_runtime.kernels.triton.source import LINE_ELEMENTS, PointerOperand, assemble, power_of_two
from einc_runtime.plan.element_types import find_element_type

LINE = 16
"""cuBLASLt multiplies floats of 8 bits whose lines are multiples of so many bytes, at such addresses."""

Multiply = Callable[[Invocation[Array]], LaunchSequence]
"""Builds a `quantized_contract`."""


def build_rounded_contract(invocation: Invocation[Array], architecture: str) -> LaunchSequence:
    call = RoundedContractCall.parse(invocation)
    if not call.plain.weight.form.is_float:
        return rounded.build_rounded_contract(invocation)
    scaled = _build_scaled(call) if architecture in F8_ARCHITECTURES else None
    return scaled or build_on_rounded(call, build_quantized_contract)


def build_ordered_rounded_contract(invocation: Invocation[Array], architecture: str) -> LaunchSequence:
    """As for other plans, with products in one order. Sums of integers are exact."""
    call = RoundedContractCall.parse(invocation)
    if not call.plain.weight.form.is_float:
        return rounded.build_rounded_contract(invocation).without_fusion()
    return build_on_rounded(call, build_ordered_quantized_contract).without_fusion()


def build_on_rounded(call: RoundedContractCall, multiply: Multiply) -> LaunchSequence:
    """The product with what the rounded tensor stands for, in the tensor's own type."""
    plain = call.plain
    return build_on_operand(
        STAND_IN_TENSOR,
        (plain.tensor.array.shape, storage_dtype(plain.tensor.kind)),
        lambda rounded: _Rounding(call).write(rounded),
        lambda rounded: multiply(plain.as_invocation(rounded)),
    )


def _build_scaled(call: RoundedContractCall) -> LaunchSequence | None:
    """The product of values as they are; None where operands are no such matrices, or scales have another type."""
    plain = call.plain
    if plain.weight.group:
        return _build_grouped(call) if suits_groups(call) else None
    batch, rows, columns, summed = plain.groups
    values, scales = NamedArray(plain.labels, plain.weight.values), NamedArray(call.channels, plain.weight.scales)
    scaled = tuple(name for name in columns if name in scales.names)
    merge = [(values, columns), (values, summed), (scales, scaled)]
    count, width, depth = (plain.count(names) for names in (rows, columns, summed))
    suits = not batch and plain.weight.form.values == plain.weight.form.rounded
    suits = suits and scaled in ((), columns) and plain.result.kind in ("f16", "bf16", "f32")
    if not suits or depth % LINE or width % LINE or not all(are_mergeable(*each) for each in merge):
        return None
    allocator = WorkspaceAllocator()
    laid = allocator.take([plain.extents[name] for name in (*rows, *summed)], np.dtype(np.int8))
    units = allocator.take((count,), np.dtype(np.float32))
    steps: list[LaunchStep] = [_Rounding(call).write_values(NamedArray((*rows, *summed), laid), units)]
    vector = view_as_matrices(scales, (), scaled, ())[:, 0]
    if not scaled or vector.strides[0] != vector.itemsize:
        source, vector = (vector if scaled else scales.array), allocator.take((width,), np.dtype(np.float32))
        steps += _copy(NamedArray(("n",) if scaled else (), source), NamedArray(("n",), vector))
    result, copied = plain.result, False
    if not (are_mergeable(result, rows) and are_mergeable(result, columns)):
        shape, copied = [plain.extents[name] for name in (*rows, *columns)], True
        result = NamedArray((*rows, *columns), allocator.take(shape, result.array.dtype))
    weight = view_as_matrices(values, (), columns, summed)
    left = Matrix(address(laid), Axis(count, depth), Axis(depth, 1))
    matrices = left, _as_matrix(weight.T), _as_matrix(view_as_matrices(result, (), rows, columns))
    product = make_gemm(*matrices, (1, 0, 0, 0), "f8e4m3", result.kind, plain.scale)
    if product is None or not product.transpose_a or product.transpose_b:
        return None
    if any(x % LINE for x in (product.m, product.lda, product.ldb, product.a, product.b, product.c)):
        return None
    swapped = product.a == address(weight)
    scale_m, scale_n = (vector, units) if swapped else (units, vector)
    steps.append(replace(product, scale_m=address(scale_m), scale_n=address(scale_n)))
    steps += _copy(result, plain.result) if copied else ()
    return LaunchSequence(tuple(steps), allocator.size)


def _build_grouped(call: RoundedContractCall) -> LaunchSequence:
    plain, allocator = call.plain, WorkspaceAllocator()
    _, rows, _, summed = plain.groups
    count, depth = plain.count(rows), plain.count(summed)
    laid = allocator.take([plain.extents[name] for name in (*rows, *summed)], np.dtype(np.int8))
    units = allocator.take((count, depth // plain.weight.group), np.dtype(np.float32))
    rounding = _Rounding(call).write_values(NamedArray((*rows, *summed), laid), units)
    return LaunchSequence((rounding, multiply_groups(call, laid.reshape(count, depth), units)), allocator.size)


def _copy(source: NamedArray, target: NamedArray) -> tuple[LaunchStep, ...]:
    indices = f"{' '.join(source.names)} -> {' '.join(target.names)}"
    attributes = {"program": "t0 = copy x0", "indices": indices}
    return build_map(Invocation("map", attributes, [source.array], [target.array])).steps


def _as_matrix(view: Array) -> Matrix:
    (rows, columns), size = view.shape, view.itemsize
    return Matrix(address(view), Axis(rows, view.strides[0] // size), Axis(columns, view.strides[1] // size))


class _Rounding:
    """Writes the launches that round a tensor. A program rounds some groups of a row, or a part of a row that has one
    scale, as a tile of them."""

    def __init__(self, call: RoundedContractCall) -> None:
        self.call, self.plain = call, call.plain
        batch, rows, _, self.summed = call.plain.groups
        self.rows = (*batch, *rows)
        self.count, self.depth = call.plain.count(self.rows), call.plain.count(self.summed)
        group = call.plain.weight.group
        self.width = group or min(power_of_two(self.depth), LINE_ELEMENTS)
        self.line = power_of_two(self.width)
        self.groups = min(max(1, LINE_ELEMENTS // self.line), power_of_two(-(-self.depth // self.width)))

    def write(self, target: Array) -> KernelLaunch:
        """The launch that writes what values and scales stand for."""
        y = PointerOperand.of("y", target)
        named = NamedArray(self.plain.tensor.names, target)
        return self._assemble([y], [y.store(self._find_places(named), "(back * step)", "mask")])

    def write_values(self, target: NamedArray, units: Array) -> KernelLaunch:
        """The launch that writes values, and the scale of each row, or of each of its groups."""
        y, scales = PointerOperand.of("y", target.array), PointerOperand.of("units", units)
        stores = [y.store(self._find_places(target), "value", "mask")]
        if self.plain.weight.group:
            stores.append(scales.store({0: "row", 1: "group[:, None]"}, "step", f"(group < {units.shape[1]})[:, None]"))
        else:
            stores.append(scales.store({0: "row"}, "step", "part == 0"))
        return self._assemble([y, scales], stores)

    def _find_places(self, operand: NamedArray) -> dict[int, str]:
        places = rounded.locate(self.call, self.rows, "row")[1] | rounded.locate(self.call, self.summed, "column")[1]
        return {axis: places[name] for axis, name in enumerate(operand.names)}

    def _assemble(self, outputs: list[PointerOperand], stores: list[str]) -> KernelLaunch:
        x = PointerOperand.of("x", self.plain.tensor.array)
        largest = [] if self.call.largest is None else [PointerOperand.of("largest", self.call.largest.array)]
        parts = -(-self.depth // (self.width * self.groups))
        row_lines, _ = rounded.locate(self.call, self.rows, "row")
        column_lines, _ = rounded.locate(self.call, self.summed, "column")
        loaded = x.load(self._find_places(self.plain.tensor), "mask")
        lines = [
            "program = tl.program_id(0).to(tl.int64)",
            f"row = program // {parts}",
            f"part = program % {parts}",
            f"group = part * {self.groups} + tl.arange(0, {self.groups})",
            f"within = tl.arange(0, {self.line})",
            f"column = group[:, None] * {self.width} + within[None, :]",
            f"mask = (within < {self.width})[None, :] & (column < {self.depth})",
            *row_lines,
            *column_lines,
            f"number = {loaded}.to(tl.float32)",
        ]
        if self.call.largest is not None:
            at = {axis: self._find_places(self.call.largest)[axis] for axis in range(len(self.call.largest.names))}
            lines.append(f"most_of_row = {largest[0].load(at, '')}.to(tl.float32)")
        kind = self.plain.weight.form.rounded
        lines += [
            *self._find_step(),
            f"value = narrow_{kind}(tl.div_rn(number, tl.where(step == 0, 1.0, step)))",
            f"back = widen_{kind}(value)",
            *stores,
        ]
        title = f"{self.count} rows of {self.depth} rounded to {kind} in groups of {self.plain.weight.group}"
        items = [x, *largest, *outputs]
        return assemble("round_floats", title, items, (self.count, self.depth), lines, self.count * parts)

    def _find_step(self) -> list[str]:
        """Lines that find the scale of the row, or of each group in a column of the tile."""
        form = self.plain.weight.form
        largest = find_element_type(form.rounded).bits
        assert largest is not None
        if not self.plain.weight.group:
            return [f"step = tl.div_rn(most_of_row, {largest.largest!r})"]
        lines = [
            "size = tl.where(mask, number.to(tl.int32, bitcast=True) & 0x7FFFFFFF, 0)",
            "most_bits = tl.max(size, 1)[:, None]",  # as an integer, NaN is larger than all numbers
        ]
        if form.scales == "f8e8m0":
            power = f"(most_bits >> 23) - {F32_BIAS + largest.largest_exponent}"
            return [
                *lines,
                f"power = tl.minimum(tl.maximum({power}, {1 - F32_BIAS}), {F32_BIAS})",
                f"step = ((power + {F32_BIAS}) << 23).to(tl.float32, bitcast=True)",
                'step = tl.where(most_bits >= 0x7F800000, float("nan"), step)',
            ]
        lines.append(f"unit = tl.div_rn(most_bits.to(tl.float32, bitcast=True), {largest.largest!r})")
        if not form.has_factor:
            return [*lines, "step = unit"]
        of_scales = find_element_type(form.scales).bits
        assert of_scales is not None
        return [
            *lines,
            f"factor = tl.div_rn(tl.div_rn(most_of_row, {largest.largest!r}), {of_scales.largest!r})",
            "factor = tl.where(factor == 0, 1.0, factor)",
            f"step = widen_{form.scales}(narrow_{form.scales}(tl.div_rn(unit, factor))) * factor",
        ]
