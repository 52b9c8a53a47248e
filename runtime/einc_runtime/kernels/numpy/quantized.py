"""The kernels `dequantize` {group} and `quantized_contract` {equation, group, scale} in numpy.

A product widens its weight, a part that fits into the cache at a time, and multiplies that part as `contract` does. So
the widened weight is never in memory as a whole.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np

from einc_runtime.dtypes import Array, compute_type, storage_dtype
from einc_runtime.kernels.base import Invocation, Kernel, KernelBuilder, Run, ScratchAllocator, dtype_name, store
from einc_runtime.kernels.calls.quantized import DequantizeCall, QuantizedContractCall, QuantizedWeight
from einc_runtime.kernels.numpy.contract import build_contract as build_plain_contract
from einc_runtime.kernels.numpy.pieces import PIECE_ELEMENTS, Resolved, make_runner
from einc_runtime.stored_values import decode_values

WIDENED_ELEMENTS = 1 << 20
"""Elements of a weight that are widened at a time."""

PrepareWidening = Callable[[QuantizedWeight, Array], Run]
"""Returns the call that writes a weight to an array of its shape."""


def build_dequantize(invocation: Invocation[Array]) -> Kernel:
    call = DequantizeCall.parse(invocation)
    run = prepare_widening(call.weight, call.target)
    return Kernel(lambda _: run, nanoseconds=float(call.target.size))


def build_quantized_contract(invocation: Invocation[Array]) -> Kernel:
    return build_product(QuantizedContractCall.parse(invocation), prepare_widening, build_plain_contract)


def build_product(call: QuantizedContractCall, widen: PrepareWidening, multiply: KernelBuilder) -> Kernel:
    """The product part by part: `widen` prepares the call that makes a part, and `multiply` a kernel `contract`."""
    dtype = storage_dtype(dtype_name(call.tensor.array))
    parts = list(cut_product(call))
    size = max(part.values.size * part.packing for part, _, _ in parts)
    shapes = {part.shape: (tensor, target) for part, tensor, target in parts}
    measured = [
        multiply(call.product_with(np.empty(shape, dtype), target, tensor))
        for shape, (tensor, target) in shapes.items()
    ]
    scratch_slots = ScratchAllocator()
    slot = scratch_slots.take((size,), dtype)

    def bind(memory: Array) -> Run:
        widened = slot.of(memory)
        calls: list[Resolved] = []
        for part, tensor, target in parts:
            weight = widened[: math.prod(part.shape)].reshape(part.shape)
            kernel = multiply(call.product_with(weight, target, tensor))
            calls += [(widen(part, weight), []), (kernel.bind(memory[scratch_slots.size :]), [])]
        return make_runner(calls)

    multiplied = sum(kernel.nanoseconds for kernel in measured) * len(parts) / len(measured)
    scratch = scratch_slots.size + max(kernel.scratch for kernel in measured)
    return Kernel(bind, scratch, multiplied + call.count(call.labels) / 4)


def cut_product(call: QuantizedContractCall) -> Iterator[tuple[QuantizedWeight, Array, Array]]:
    """Parts of the weight, and of the tensor and the result that belong to them.

    The longest index of the weight's rows is cut where the weight is large.
    """
    weight, result = call.weight, call.result
    rows = [name for name in call.labels if name in result.names]
    count = -(-call.count(call.labels) // WIDENED_ELEMENTS)
    if not rows or count == 1:
        yield weight, call.tensor.array, result.array
        return
    name = max(rows, key=lambda row: call.extents[row])
    extent = call.extents[name]
    step = max(1, -(-extent // count))
    for start in range(0, extent, step):
        stop = min(start + step, extent)
        cut = [
            operand.array[tuple(slice(start, stop) if own_name == name else slice(None) for own_name in operand.names)]
            for operand in (call.tensor, result)
        ]
        yield weight.part(call.labels.index(name), start, stop), cut[0], cut[1]


def prepare_widening(weight: QuantizedWeight, target: Array) -> Run:
    """The call that writes a weight: a definition, which machine code is compared with."""

    def run() -> None:
        with np.errstate(all="ignore"):
            for piece, part in _walk(weight, target):
                store(_widen(piece), part)

    return run


def _walk(weight: QuantizedWeight, target: Array) -> Iterator[tuple[QuantizedWeight, Array]]:
    """Pieces along the first dimension, if scales have it."""
    if not weight.scales.ndim or target.ndim == 1 or not target.size:
        yield weight, target
        return
    step = max(1, PIECE_ELEMENTS * len(target) // target.size)
    for start in range(0, len(target), step):
        yield weight.part(0, start, start + step), target[start : start + step]


def _widen(weight: QuantizedWeight) -> Array:
    wide = storage_dtype(compute_type(weight.kind))
    numbers, scales = decode_values(weight.values, weight.form.values, wide), weight.scales.astype(wide)
    if weight.factor is not None:
        scales = scales * weight.factor.reshape(*weight.factor.shape, *[1] * (scales.ndim - weight.factor.ndim))
    rows_of_scale = numbers.reshape(*scales.shape, -1)  # what has one scale is one row
    if weight.zeros is not None:
        rows_of_scale -= weight.zeros[..., None]
    rows_of_scale *= scales[..., None]
    return numbers
