"""Operators of ONNX that are products: of matrices, with windows, and of quantized tensors; and pooling."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from einc.importers.arrays.element_types import ElementType
from einc.importers.arrays.elementwise import apply, cast
from einc.importers.arrays.extents import Extent
from einc.importers.arrays.moving import expand, reshape, transpose, unsqueeze
from einc.importers.arrays.products import einsum, matmul
from einc.importers.arrays.reducing import reduce
from einc.importers.arrays.values import Array, UnsupportedError, normalize_axis
from einc.importers.arrays.windows import MovingWindows, average_pool, convolve, convolve_transposed, max_pool
from einc.importers.onnx.nodes import Convert, OnnxNode, Results, read_element_type


def _matmul(node: OnnxNode) -> Results:
    return matmul(node.program, node.input(0), node.input(1), node.hint)


def _gemm(node: OnnxNode) -> Results:
    program, a, b, c = node.program, node.input(0), node.input(1), node.optional(2)
    a = transpose(program, a, [1, 0]) if node.integer("transA") else a
    b = transpose(program, b, [1, 0]) if node.integer("transB") else b
    result = matmul(program, a, b, node.hint)
    if node.number("alpha", 1.0) != 1.0:
        result = apply(program, "mul", result, node.number("alpha"), hint=node.hint)
    if c is None or node.number("beta", 1.0) == 0:
        return result
    if node.number("beta", 1.0) != 1.0:
        c = apply(program, "mul", c, node.number("beta"))
    return apply(program, "add", result, c, hint=node.hint)


def _einsum(node: OnnxNode) -> Results:
    return einsum(node.program, node.string("equation"), node.arrays(), node.hint)


def _centre(node: OnnxNode, position: int, zero: int, axis: int | None = None) -> Array:
    """An integer tensor minus its zero point, as i32; a vector of zero points belongs to one axis."""
    program = node.program
    x, point = cast(program, node.input(position), ElementType.I32), node.optional(zero)
    if point is None or point.scalar == 0:
        return x
    wide = cast(program, point, ElementType.I32)
    if wide.rank == 1 and wide.shape[0].value == 1:
        wide = reshape(program, wide, [])
    elif wide.rank == 1 and axis is not None:
        wide = reshape(program, wide, [wide.shape[0] if k == axis % x.rank else 1 for k in range(x.rank)])
    return apply(program, "sub", x, wide)


def _matmul_integer(node: OnnxNode) -> Results:
    return matmul(node.program, _centre(node, 0, 2, -2), _centre(node, 1, 3, -1), node.hint)


def _requantize(node: OnnxNode, total: Array, scales: Sequence[Array], zero: Array, axis: int | None = None) -> Array:
    """An i32 product as integers of the type of a zero point: times two scales, divided by a third."""
    program = node.program
    first, second, third = (cast(program, scale, ElementType.F32) for scale in scales)
    if second.rank == 1 and second.shape[0].value > 1 and axis is not None:
        second = reshape(program, second, [second.shape[0] if k == axis % total.rank else 1 for k in range(total.rank)])
    factor = apply(program, "div", apply(program, "mul", first, second), third)
    scaled = apply(program, "round", apply(program, "mul", cast(program, total, ElementType.F32), factor))
    return saturate(node, scaled, zero)


def saturate(node: OnnxNode, rounded: Array, zero: Array) -> Array:
    """Whole floats plus a zero point, as the nearest values of the zero point's type."""
    program, type_ = node.program, zero.type
    low = 0 if type_.is_unsigned else -(2 ** (type_.bits - 1))
    high = low + 2**type_.bits - 1
    shifted = apply(program, "add", rounded, cast(program, zero, rounded.type))
    limited = apply(program, "min", apply(program, "max", shifted, low), high)
    return cast(program, limited, type_, hint=node.hint)


def _qlinear_matmul(node: OnnxNode) -> Results:
    total = matmul(node.program, _centre(node, 0, 2, -2), _centre(node, 3, 5, -1))
    return _requantize(node, total, [node.input(1), node.input(4), node.input(6)], node.input(7), -1)


def _read_windows(node: OnnxNode, sizes: Sequence[int], extents: Sequence[Extent]) -> MovingWindows:
    axes = len(sizes)
    strides, dilations = node.integers("strides") or [1] * axes, node.integers("dilations") or [1] * axes
    pads = node.integers("pads") or [0] * (2 * axes)
    sides = [(pads[k], pads[k + axes]) for k in range(axes)] if len(pads) == 2 * axes else []
    automatic = node.string("auto_pad", "NOTSET")
    if automatic in ("SAME_UPPER", "SAME_LOWER"):
        sides = []
        for size, stride, dilation, extent in zip(sizes, strides, dilations, extents, strict=True):
            if not extent.is_number:
                raise UnsupportedError(f"auto_pad {automatic} of a dimension that depends on params")
            count = -(-extent.value // stride)
            total = max((count - 1) * stride + dilation * (size - 1) + 1 - extent.value, 0)
            half = total // 2
            sides.append((half, total - half) if automatic == "SAME_UPPER" else (total - half, half))
    elif automatic == "VALID":
        sides = [(0, 0)] * axes
    return MovingWindows.of(sizes, strides, dilations, sides, bool(node.integer("ceil_mode")))


def _read_kernel(node: OnnxNode, x: Array, kernel: Array) -> MovingWindows:
    if kernel.rank < 3 or not all(extent.is_number for extent in kernel.shape[2:]):
        raise UnsupportedError("a kernel of a convolution has at least three dimensions")
    return _read_windows(node, [extent.value for extent in kernel.shape[2:]], x.shape[2:])


def _conv(node: OnnxNode) -> Results:
    x, kernel = node.input(0), node.input(1)
    windows = _read_kernel(node, x, kernel)
    return convolve(node.program, x, kernel, node.optional(2), windows, node.integer("group", 1), node.hint)


def _conv_integer(node: OnnxNode) -> Results:
    x, kernel = _centre(node, 0, 2), _centre(node, 1, 3, 0)
    return convolve(node.program, x, kernel, None, _read_kernel(node, x, kernel), node.integer("group", 1), node.hint)


def _qlinear_conv(node: OnnxNode) -> Results:
    x, kernel = _centre(node, 0, 2), _centre(node, 3, 5, 0)
    windows = _read_kernel(node, x, kernel)
    total = convolve(node.program, x, kernel, node.optional(8), windows, node.integer("group", 1))
    return _requantize(node, total, [node.input(1), node.input(4), node.input(6)], node.input(7), 1)


def _conv_transpose(node: OnnxNode) -> Results:
    x, kernel = node.input(0), node.input(1)
    sizes = [extent.value for extent in kernel.shape[2:]]
    axes = len(sizes)
    strides, dilations = node.integers("strides") or [1] * axes, node.integers("dilations") or [1] * axes
    more = node.integers("output_padding") or [0] * axes
    shape, automatic = node.integers("output_shape"), node.string("auto_pad", "NOTSET")
    pads = node.integers("pads") or [0] * (2 * axes)
    sides = [(pads[k], pads[k + axes]) for k in range(axes)]
    if shape is not None or automatic.startswith("SAME"):
        sides = []
        for k in range(axes):
            extent = x.shape[k + 2]
            wanted_extent = shape[-axes:][k] if shape is not None else extent.value * strides[k]
            reach = dilations[k] * (sizes[k] - 1) + 1
            total = strides[k] * (extent.value - 1) + more[k] + reach - wanted_extent
            half = total // 2
            sides.append((half, total - half) if automatic == "SAME_UPPER" else (total - half, half))
    windows = MovingWindows.of(sizes, strides, dilations, sides)
    group = node.integer("group", 1)
    return convolve_transposed(node.program, x, kernel, node.optional(2), windows, group, more, node.hint)


def _max_pool(node: OnnxNode) -> Results:
    x = node.input(0)
    windows = _read_windows(node, node.integers("kernel_shape") or [], x.shape[2:])
    values = max_pool(node.program, x, windows, node.hint)
    return (values, _find_places(node, x, windows, values)) if node.wants(1) else values


def _find_places(node: OnnxNode, x: Array, windows: MovingWindows, values: Array) -> Array:
    """Where the largest element of each window is in its array: the first in row-major order of the window."""
    program = node.program
    axes = len(windows.sizes)
    if not all(extent.is_number for extent in x.shape):
        raise UnsupportedError("places in an array whose extents depend on params", "give the params numbers")
    extents = [extent.value for extent in x.shape]
    column = bool(node.integer("storage_order"))
    steps = [1] * axes
    order = range(axes) if column else range(axes)[::-1]
    running = 1
    for axis in order:
        steps[axis] = running
        running *= extents[axis + 2]
    positions = [f"({windows.position(axis)})" for axis in range(axes)]
    inside = " + ".join(f"{step} * {position}" for step, position in zip(steps, positions, strict=True))
    offset = f"{extents[1] * running} * i0 + {running} * i1"
    indices = ", ".join(f"i{k}" for k in range(x.rank))
    reads = ", ".join(["i0", "i1", *(windows.position(axis) for axis in range(axes))])
    last = str(2**62)
    element = f"where({{0}}[{reads}, outside = nearest] == {{1}}[{indices}], {offset} + {inside}, {last})"
    for axis, position in enumerate(positions):
        if windows.reaches_outside(x.shape[2:]):
            element = f"where(and({position} >= 0, {position} < {extents[axis + 2]}), {element}, {last})"
    targets = [f"i{k}=" for k in range(x.rank)]
    text = f"min[{', '.join(windows.loops())}]({element})" if windows.loops() else element
    return program.equation(
        f"{node.hint}_places", targets, text, [program.place(x), values], values.shape, ElementType.I64
    )


def _average_pool(node: OnnxNode) -> Results:
    x = node.input(0)
    windows = _read_windows(node, node.integers("kernel_shape") or [], x.shape[2:])
    return average_pool(node.program, x, windows, bool(node.integer("count_include_pad")), node.hint)


def _lp_pool(node: OnnxNode) -> Results:
    x, program, p = node.input(0), node.program, node.integer("p", 2)
    sizes = node.integers("kernel_shape") or []
    windows = _read_windows(node, sizes, x.shape[2:])
    powers = apply(program, "pow", apply(program, "abs", x), p)
    window = program.constant(np.ones((x.shape[1].value, 1, *sizes)).astype(x.type.numpy), x.type, "window")
    total = convolve(program, powers, window, None, windows, x.shape[1].value)
    return apply(program, "pow", total, 1 / p, hint=node.hint)


def _global(operation: str) -> Convert:
    def convert(node: OnnxNode) -> Results:
        x = node.input(0)
        return reduce(node.program, x, operation, range(2, x.rank), True, node.hint)

    return convert


def _global_lp(node: OnnxNode) -> Results:
    x, program, p = node.input(0), node.program, node.integer("p", 2)
    total = reduce(program, apply(program, "pow", apply(program, "abs", x), p), "sum", range(2, x.rank), True)
    return apply(program, "pow", total, 1 / p, hint=node.hint)


def _align_scale(node: OnnxNode, x: Array, scale: Array, axis: int) -> Array:
    """A scale or zero point for each position of an axis, or for each block of them, as it broadcasts to x."""
    program, block = node.program, node.integer("block_size")
    if scale.rank == 0:
        return scale
    if scale.rank == 1 and not block:
        if scale.shape[0].value == 1:
            return reshape(program, scale, [])
        return reshape(program, scale, [scale.shape[0] if k == axis else 1 for k in range(x.rank)])
    wide = unsqueeze(program, scale, [axis + 1])
    shape = list(wide.shape)
    shape[axis + 1] = shape[axis + 1] * block
    spread = expand(program, wide, shape)
    flat = list(scale.shape)
    flat[axis] = flat[axis] * block
    return reshape(program, spread, flat)


def _dequantize(node: OnnxNode) -> Results:
    x, scale = node.input(0), node.input(1)
    program = node.program
    axis = normalize_axis(node.integer("axis", 1), x.rank) if scale.rank else 0
    values = cast(program, x, ElementType.I32) if x.type is not ElementType.I32 else x
    zero = node.optional(2)
    if zero is not None and zero.scalar != 0:
        values = apply(program, "sub", values, cast(program, _align_scale(node, x, zero, axis), ElementType.I32))
    type_ = read_element_type(node.integer("output_dtype")) if node.integer("output_dtype") else scale.type
    factor = cast(program, _align_scale(node, x, scale, axis), ElementType.F32)
    product = apply(program, "mul", cast(program, values, ElementType.F32), factor, hint=node.hint)
    return cast(program, product, type_, hint=node.hint)


def _quantize(node: OnnxNode) -> Results:
    x, scale = node.input(0), node.input(1)
    program = node.program
    axis = normalize_axis(node.integer("axis", 1), x.rank) if scale.rank else 0
    zero = node.optional(2)
    if zero is None:
        type_ = read_element_type(node.integer("output_dtype")) if node.integer("output_dtype") else ElementType.U8
        zero = program.constant(np.zeros((), type_.numpy), type_)
    factor = cast(program, _align_scale(node, x, scale, axis), ElementType.F32)
    scaled = apply(program, "div", cast(program, x, ElementType.F32), factor)
    return saturate(node, apply(program, "round", scaled), _align_scale(node, x, zero, axis))


PRODUCT_OPERATORS: Mapping[str, Convert] = {
    "MatMul": _matmul, "Gemm": _gemm, "Einsum": _einsum, "MatMulInteger": _matmul_integer,
    "QLinearMatMul": _qlinear_matmul, "Conv": _conv, "ConvInteger": _conv_integer, "QLinearConv": _qlinear_conv,
    "ConvTranspose": _conv_transpose, "MaxPool": _max_pool, "AveragePool": _average_pool, "LpPool": _lp_pool,
    "GlobalAveragePool": _global("mean"), "GlobalMaxPool": _global("max"), "GlobalLpPool": _global_lp,
    "DequantizeLinear": _dequantize, "QuantizeLinear": _quantize,
}  # fmt: skip
