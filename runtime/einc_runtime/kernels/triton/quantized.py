"""The kernels `dequantize` and `quantized_contract` in Triton.

A product widens its weight into workspace, in the type of the tensor, and multiplies that by a library.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from einc_runtime.dtypes import Array, storage_dtype
from einc_runtime.kernels.base import Invocation, address, dtype_name
from einc_runtime.kernels.calls.quantized import DequantizeCall, QuantizedContractCall, QuantizedWeight
from einc_runtime.kernels.gpu import WORKSPACE_ALIGNMENT
from einc_runtime.kernels.triton.contract import build_contract
from einc_runtime.kernels.triton.launches import (
    SCRATCH,
    KernelLaunch,
    LaunchSequence,
    WorkspaceAllocator,
    relocate_step,
)
from einc_runtime.kernels.triton.ordered_products import build_ordered_contract
from einc_runtime.kernels.triton.source import PointerOperand, assemble, index_cast, power_of_two

BLOCK = 1024
"""Stored values that a program reads at most."""
APART = 1 << 60
"""Where the widened weight seems to be while its product is built: behind all workspace."""


def build_dequantize(invocation: Invocation[Array]) -> LaunchSequence:
    """One launch."""
    call = DequantizeCall.parse(invocation)
    return LaunchSequence((widen(call.weight, call.target),))


def build_ordered_quantized_contract(invocation: Invocation[Array]) -> LaunchSequence:
    """As for other plans, with products in one order: each widened element has one result wherever it lies."""
    return build_quantized_contract(invocation, build_ordered_contract)


def build_quantized_contract(
    invocation: Invocation[Array], multiply: Callable[[Invocation[Array]], LaunchSequence] = build_contract
) -> LaunchSequence:
    """A launch that widens the weight, and those of `multiply`, which builds a `contract`."""
    call = QuantizedContractCall.parse(invocation)
    allocator = WorkspaceAllocator()
    widened = allocator.take(call.weight.shape, storage_dtype(dtype_name(call.tensor.array)))
    first = address(widened)

    def put(place: int) -> Array:
        moved = WorkspaceAllocator()
        moved.size = place - SCRATCH
        return moved.take(widened.shape, widened.dtype)

    product = multiply(call.product_with(put(SCRATCH + APART), call.result.array))
    place = first + -(-product.scratch // WORKSPACE_ALIGNMENT) * WORKSPACE_ALIGNMENT

    def relocate(old: int) -> int:
        return old - (SCRATCH + APART) + place if old >= SCRATCH + APART else old

    steps = [relocate_step(step, relocate) for step in product.steps]
    return LaunchSequence((widen(call.weight, put(place)), *steps), place - SCRATCH + allocator.size)


def widen(weight: QuantizedWeight, target: Array) -> KernelLaunch:
    """The launch that writes a weight: programs go along rows of stored values."""
    packing, rank = weight.packing, target.ndim
    values = PointerOperand.of("values", weight.values, "i8")
    names = ("scales", "zeros")[: len(weight.operands) - 1]
    alike = [PointerOperand.of(name, array) for name, array in zip(names, weight.operands[1:], strict=True)]
    output = PointerOperand.of("output", target)
    *rows, width = weight.values.shape
    block = min(power_of_two(width), BLOCK)
    parts = -(-width // block)
    wide = "tl.float64" if dtype_name(target) == "f64" or weight.kind == "f64" else "tl.float32"
    # positions are 64 bits wide where an operand reaches so far
    reach = index_cast([output], target.shape)
    lines = [
        "program = tl.program_id(0)",
        f"row = (program // {parts}){reach}",
        f"column = (program % {parts}) * {block} + tl.arange(0, {block})",
        f"mask = column < {width}",
    ]
    for axis, extent in reversed(list(enumerate(rows))):
        lines += [f"i{axis} = row % {extent}", f"row = row // {extent}"]
    own = {axis: f"i{axis}" for axis in range(rank - 1)}
    at = {**own, rank - 1: "column"}
    # a group has an even number of elements, so that both of a byte are in one
    group = {**own, rank - 1: f"(column // {weight.group // packing})"} if weight.group else own
    lines.append(f"number = {values.load(at, 'mask')}.to(tl.int32)")
    fixed = [{axis: place for axis, place in group.items() if axis < len(one.strides)} for one in alike]
    mask = "mask" if weight.group else ""
    lines += [f"{one.name}_ = {one.load(place, mask)}" for one, place in zip(alike, fixed, strict=True)]
    zero = f" - zeros_.to({wide})" if len(alike) > 1 else ""
    elements = ["number"] if packing == 1 else ["((number & 15) - 8)", "(((number >> 4) & 15) - 8)"]
    for n, element in enumerate(elements):
        result = f"(({element}.to({wide}){zero}) * scales_.to({wide}))"
        place = "column" if packing == 1 else f"(column * 2 + {n})"
        lines.append(output.store({**own, rank - 1: place}, result, "mask"))
    title = f"a weight of {' x '.join(map(str, target.shape))} in groups of {weight.group}"
    grid = math.prod(rows) * parts
    return assemble("dequantize", title, [values, *alike, output], target.shape, lines, grid)
