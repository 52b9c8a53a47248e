"""The kernel `rounded_contract` {equation, scale} in numpy: sums of integers are exact in f64."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from einc_runtime.dtypes import Array, compute_type, storage_dtype
from einc_runtime.kernels.base import Invocation, Kernel, Run, ScratchAllocator, dtype_name, store
from einc_runtime.kernels.calls.rounded import LEVELS, RoundedContractCall
from einc_runtime.kernels.indices import NamedArray
from einc_runtime.kernels.numpy.contract import build_contract
from einc_runtime.kernels.numpy.pieces import Resolved, make_runner
from einc_runtime.kernels.numpy.quantized import cut_product

SUM_DTYPE = np.dtype(np.float64)


def build_rounded_contract(invocation: Invocation[Array]) -> Kernel:
    call = RoundedContractCall.parse(invocation)
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


def _round(call: RoundedContractCall, target: Array) -> None:
    """Writes the integers of the tensor."""
    tensor = call.plain.tensor
    with np.errstate(all="ignore"):
        rows = _widen(call.largest.align(tensor.names))
        ratio = LEVELS / rows
        ratio = np.where((rows > 0) & np.isfinite(ratio), ratio, 0).astype(rows.dtype)
        numbers = tensor.array.astype(rows.dtype) * ratio
        np.copyto(target, np.rint(np.clip(np.where(np.isnan(numbers), 0, numbers), -LEVELS, LEVELS)))


def _scale(call: RoundedContractCall, sums: Array) -> None:
    """Writes the result."""
    result = call.plain.result
    with np.errstate(all="ignore"):
        unit = _widen(call.largest.align(result.names))
        unit = unit / unit.dtype.type(LEVELS) * unit.dtype.type(call.plain.scale)
        scales = _widen(NamedArray(call.channels, call.plain.weight.scales).align(result.names))
        store(sums.astype(unit.dtype) * unit * scales, result.array)


def _widen(array: Array) -> Any:
    return array.astype(storage_dtype(compute_type(dtype_name(array))))
