"""The kernel `rounded_contract` {equation, scale, group} in numpy: sums of integers are exact in f64, and tensors that
became floats of few bits are multiplied in f32, as `quantized_contract` does it."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from einc_runtime.dtypes import Array, compute_type, storage_dtype
from einc_runtime.kernels.base import Invocation, Kernel, KernelBuilder, Run, ScratchAllocator, dtype_name, store
from einc_runtime.kernels.calls.rounded import LEVELS, RoundedContractCall
from einc_runtime.kernels.indices import NamedArray
from einc_runtime.kernels.numpy.contract import build_contract
from einc_runtime.kernels.numpy.pieces import Resolved, make_runner
from einc_runtime.kernels.numpy.quantized import build_quantized_contract, cut_product
from einc_runtime.plan.element_types import find_element_type
from einc_runtime.stored_values import choose_scales, decode_values, encode_floats

SUM_DTYPE = np.dtype(np.float64)


def build_rounded_contract(invocation: Invocation[Array]) -> Kernel:
    call = RoundedContractCall.parse(invocation)
    if call.plain.weight.form.is_float:
        return build_rounded_floats(call, build_quantized_contract)
    plain = replace(call.plain, scale=1.0)
    slots = ScratchAllocator()
    rounded, sums = slots.take(plain.tensor.array.shape, SUM_DTYPE), slots.take(plain.result.array.shape, SUM_DTYPE)

    def cut(tensor: Array, result: Array) -> list[tuple[Array, Array, Array]]:
        integer_product = replace(plain, tensor=plain.tensor.with_array(tensor), result=plain.result.with_array(result))
        return [(weight.values, part, target) for weight, part, target in cut_product(integer_product)]

    measured = cut(*(np.broadcast_to(np.zeros((), SUM_DTYPE), slot.shape) for slot in (rounded, sums)))
    widened = slots.take((max(values.size for values, _, _ in measured),), SUM_DTYPE)
    shapes = {values.shape: (part.shape, target.shape) for values, part, target in measured}
    kernels = [
        build_contract(
            plain.product_with(np.empty(shape, SUM_DTYPE), np.empty(target, SUM_DTYPE), np.empty(part, SUM_DTYPE))
        )
        for shape, (part, target) in shapes.items()
    ]

    def bind(memory: Array) -> Run:
        integers, results, wide = rounded.of(memory), sums.of(memory), widened.of(memory)
        calls: list[Resolved] = [(_round, [call, integers])]
        for values, part, target in cut(integers, results):
            weight = wide[: math.prod(values.shape)].reshape(values.shape)
            kernel = build_contract(plain.product_with(weight, target, part))
            calls += [(store, [values, weight]), (kernel.bind(memory[slots.size :]), [])]
        return make_runner([*calls, (_scale, [call, results])])

    nanoseconds = sum(kernel.nanoseconds for kernel in kernels) * len(measured) / len(kernels)
    return Kernel(bind, slots.size + max(kernel.scratch for kernel in kernels), nanoseconds)


def build_rounded_floats(call: RoundedContractCall, multiply: KernelBuilder) -> Kernel:
    """The tensor is rounded into scratch, and `multiply`, which builds a `quantized_contract`, multiplies it there."""
    slots = ScratchAllocator()
    shape = call.plain.tensor.array.shape
    rounded = slots.take(shape, np.dtype(np.float32))

    def build(tensor: Array) -> Kernel:
        return multiply(call.plain.as_invocation(tensor))

    measured = build(np.empty(shape, np.float32))

    def bind(memory: Array) -> Run:
        tensor = rounded.of(memory)
        kernel = build(tensor)
        return make_runner([(_round_floats, [call, tensor]), (kernel.bind(memory[slots.size :]), [])])

    return Kernel(bind, slots.size + measured.scratch, measured.nanoseconds + 8 * math.prod(shape))


def _round_floats(call: RoundedContractCall, target: Array) -> None:
    """Writes what the tensor is after rounding."""
    plain, form, group = call.plain, call.plain.weight.form, call.plain.weight.group
    tensor = plain.tensor
    axis = tensor.names.index(plain.labels[-1])
    wide = np.moveaxis(tensor.array.astype(np.float32), axis, -1)
    factor: Any = np.float32(1)
    bits = find_element_type(form.rounded).bits
    assert bits is not None
    if call.largest is not None:
        rows = np.moveaxis(call.rows.align(tensor.names).astype(np.float32), axis, -1)
        factor = rows / np.float32(bits.largest)
    if group:
        groups = wide.reshape(*wide.shape[:-1], -1, group)
        with np.errstate(invalid="ignore"):
            largest = np.abs(groups).max(-1)
        if form.has_factor:
            of_scales = find_element_type(form.scales).bits
            assert of_scales is not None
            factor = factor / np.float32(of_scales.largest)
            factor = np.where(factor == 0, np.float32(1), factor)
        else:
            factor = np.float32(1)
        scales = choose_scales(largest, form.rounded, form.scales, factor).astype(np.float32) * factor
        steps = np.repeat(scales, group, -1)
    else:
        steps = factor
    with np.errstate(all="ignore"):
        values = encode_floats(wide / np.where(steps == 0, np.float32(1), steps), form.rounded)
        np.copyto(np.moveaxis(target, axis, -1), decode_values(values, form.rounded, np.float32) * steps)


def _round(call: RoundedContractCall, target: Array) -> None:
    """Writes the integers of the tensor."""
    tensor = call.plain.tensor
    with np.errstate(all="ignore"):
        rows = _widen(call.rows.align(tensor.names))
        ratio = LEVELS / rows
        ratio = np.where((rows > 0) & np.isfinite(ratio), ratio, 0).astype(rows.dtype)
        numbers = tensor.array.astype(rows.dtype) * ratio
        np.copyto(target, np.rint(np.clip(np.where(np.isnan(numbers), 0, numbers), -LEVELS, LEVELS)))


def _scale(call: RoundedContractCall, sums: Array) -> None:
    result = call.plain.result
    with np.errstate(all="ignore"):
        unit = _widen(call.rows.align(result.names))
        unit = unit / unit.dtype.type(LEVELS) * unit.dtype.type(call.plain.scale)
        scales = _widen(NamedArray(call.channels, call.plain.weight.scales).align(result.names))
        store(sums.astype(unit.dtype) * unit * scales, result.array)


def _widen(array: Array) -> Any:
    return array.astype(storage_dtype(compute_type(dtype_name(array))))
