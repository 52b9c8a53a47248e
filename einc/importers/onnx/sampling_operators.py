"""Operators of ONNX that read or write at computed positions: sampling, unpooling, caches, blocks of images."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import numpy as np

from einc.importers.arrays.element_types import ElementType
from einc.importers.arrays.elementwise import apply, cast
from einc.importers.arrays.extents import make_extent
from einc.importers.arrays.moving import pad, reshape, slice_axis, squeeze
from einc.importers.arrays.program import ArrayProgram
from einc.importers.arrays.values import Array, UnsupportedError, normalize_axis
from einc.importers.onnx.nodes import Convert, OnnxNode, Results

CUBIC = -0.75
"""The coefficient of cubic interpolation in GridSample."""


def _grid_sample(node: OnnxNode) -> Results:
    x, grid = node.input(0), node.input(1)
    program = node.program
    axes = x.rank - 2
    mode = {"bilinear": "linear", "bicubic": "cubic"}.get(node.string("mode", "linear"), node.string("mode", "linear"))
    padding, corners = node.string("padding_mode", "zeros"), bool(node.integer("align_corners"))
    extents = [extent.value for extent in x.shape[2:]]
    if not all(extent.is_number for extent in x.shape[2:]):
        raise UnsupportedError("sampling an array whose extents depend on params", "give the params numbers")
    taps: list[list[tuple[Array, Array | None]]] = []
    for axis, extent in enumerate(extents):
        last = squeeze(program, slice_axis(program, grid, -1, axes - 1 - axis, axes - axis), [grid.rank - 1])
        position = _place_coordinate(program, last, extent, corners)
        position = _keep_inside(program, position, extent, padding, corners)
        taps.append([
            (_keep_inside(program, tap, extent, padding, corners), share)
            for tap, share in _list_taps(program, position, mode)
        ])  # fmt: skip
    total = None
    for combination in itertools.product(*taps):
        value = _read_places(node, x, [tap for tap, _ in combination], padding)
        for _, share in combination:
            if share is not None:
                value = apply(program, "mul", value, reshape(program, share, [share.shape[0], 1, *share.shape[1:]]))
        total = value if total is None else apply(program, "add", total, value, hint=node.hint)
    if total is None:
        raise UnsupportedError("sampling an array without dimensions")
    return total


def _place_coordinate(program: ArrayProgram, coordinate: Array, extent: int, corners: bool) -> Array:
    """From -1 to 1 to positions of elements."""
    shifted = apply(program, "add", coordinate, 1)
    if corners:
        return apply(program, "mul", shifted, (extent - 1) / 2)
    return apply(program, "div", apply(program, "sub", apply(program, "mul", shifted, extent), 1), 2)


def _keep_inside(program: ArrayProgram, position: Array, extent: int, padding: str, corners: bool) -> Array:
    """Positions brought to the nearest border, or reflected at the borders; others stay outside."""
    if padding == "border":
        return apply(program, "min", apply(program, "max", position, 0), extent - 1)
    if padding != "reflection":
        return position
    low, high = (0.0, extent - 1.0) if corners else (-0.5, extent - 0.5)
    if high == low:
        return apply(program, "mul", position, 0)
    width = high - low
    folded = apply(program, "mod", apply(program, "sub", position, low), 2 * width)
    distance = apply(program, "abs", apply(program, "sub", folded, width))
    inside = apply(program, "sub", high, distance)
    return apply(program, "min", apply(program, "max", inside, 0), extent - 1) if not corners else inside


def _list_taps(program: ArrayProgram, position: Array, mode: str) -> list[tuple[Array, Array | None]]:
    """Whole positions around a position, as floats, with their shares."""
    if mode == "nearest":
        return [(apply(program, "round", position), None)]
    start = apply(program, "floor", position)
    part = apply(program, "sub", position, start)
    if mode == "linear":
        return [(start, apply(program, "sub", 1, part)), (apply(program, "add", start, 1), part)]
    if mode != "cubic":
        raise UnsupportedError(f"mode '{mode}' is not supported")
    taps: list[tuple[Array, Array | None]] = []
    for offset in (-1, 0, 1, 2):
        distance = apply(program, "abs", apply(program, "sub", part, offset))
        taps.append((apply(program, "add", start, offset), _weigh(program, distance, offset in (0, 1))))
    return taps


def _weigh(program: ArrayProgram, distance: Array, near: bool) -> Array:
    """The share of an element at a distance, by Horner's rule."""
    a = CUBIC
    coefficients = (a + 2, -(a + 3), 0.0, 1.0) if near else (a, -5 * a, 8 * a, -4 * a)
    result = apply(program, "mul", distance, coefficients[0])
    for coefficient in coefficients[1:-1]:
        result = apply(program, "mul", apply(program, "add", result, coefficient), distance)
    return apply(program, "add", result, coefficients[-1])


def _read_places(node: OnnxNode, x: Array, places: Sequence[Array], padding: str) -> Array:
    """x [n, c, ...] at whole positions [n, ...] along each of its axes behind the second, 0 outside."""
    program = node.program
    extents = [extent.value for extent in x.shape[2:]]
    margin = padding == "zeros"
    source = pad(program, x, [(0, 0), (0, 0), *[(1, 1)] * len(extents)]) if margin else x
    operands = [program.place(source)]
    reads = []
    rank = places[0].rank
    inner = ", ".join(["i0", *(f"i{k}" for k in range(2, rank + 1))])
    for tap, extent in zip(places, extents, strict=True):
        bounded = apply(program, "min", apply(program, "max", tap, -1 if margin else 0), extent - (0 if margin else 1))
        operands.append(program.place(cast(program, bounded, ElementType.I64)))
        reads.append(f"{{{len(operands) - 1}}}[{inner}]" + (" + 1" if margin else ""))
    shape = (x.shape[0], x.shape[1], *places[0].shape[1:])
    targets = [f"i{k}=" for k in range(rank + 1)]
    text = f"{{0}}[i0, i1, {', '.join(reads)}]"
    return program.equation(f"{node.hint}_part", targets, text, operands, shape, x.type)


def _unpool(node: OnnxNode) -> Results:
    x, places = node.input(0), node.input(1)
    program = node.program
    sizes = node.integers("kernel_shape") or []
    axes = len(sizes)
    strides, pads = node.integers("strides") or [1] * axes, node.integers("pads") or [0] * 2 * axes
    inferred = [(x.shape[k + 2].value - 1) * strides[k] - pads[k] - pads[axes + k] + sizes[k] for k in range(axes)]
    shape = [x.shape[0].value, x.shape[1].value, *inferred]
    count = int(np.prod([extent.value for extent in x.shape]))
    flat, at = reshape(program, x, [-1]), cast(program, reshape(program, places, [-1]), ElementType.I64)
    text = f"sum[r0 = {count}](where({{1}}[r0] == i0, {{0}}[r0], 0.0))"
    operands = [program.place(flat), program.place(at)]
    total = int(np.prod(shape))
    spread = program.equation(node.hint, ["i0="], text, operands, [make_extent(total)], x.type)
    result = reshape(program, spread, shape, node.hint)
    if node.optional(2) is None:
        return result
    target = node.known_ints(2, "output_shape")
    return pad(program, result, [(0, a - b) for a, b in zip(target, shape, strict=True)], 0, node.hint)


def _tensor_scatter(node: OnnxNode) -> Results:
    """A cache with new rows at positions that each batch has."""
    cache, update = node.input(0), node.input(1)
    program = node.program
    axis = normalize_axis(node.integer("axis", -2), cache.rank)
    starts = node.optional(2) or program.constant(np.zeros(cache.shape[0].value, np.int64))
    indices = [f"i{k}" for k in range(cache.rank)]
    offset = f"i{axis} - {{1}}[i0]"
    if node.string("mode", "linear") == "circular":
        offset = f"({offset}) % {cache.shape[axis].text}"
    brackets = list(indices)
    brackets[axis] = f"min(max({offset}, 0), {update.shape[axis].text} - 1)"
    inside = f"and({offset} >= 0, {offset} < {update.shape[axis].text})"
    text = f"where({inside}, {{2}}[{', '.join(brackets)}], {{0}}[{', '.join(indices)}])"
    operands = [program.place(part) for part in (cache, cast(program, starts, ElementType.I64), update)]
    targets = [f"{index}=" for index in indices]
    return program.equation(node.hint, targets, text, operands, cache.shape, cache.type)


def _join_blocks(node: OnnxNode) -> Results:
    """Col2Im: what overlapping blocks [n, channels * elements, blocks] of an image add up to."""
    x, program = node.input(0), node.program
    sizes, block = node.known_ints(1, "image_shape"), node.known_ints(2, "block_shape")
    axes = len(sizes)
    strides, dilations = node.integers("strides") or [1] * axes, node.integers("dilations") or [1] * axes
    pads = node.integers("pads") or [0] * (2 * axes)
    counts = [
        (size + pads[k] + pads[axes + k] - dilations[k] * (block[k] - 1) - 1) // strides[k] + 1
        for k, size in enumerate(sizes)
    ]
    channels = x.shape[1].value // int(np.prod(block))
    parts = reshape(program, x, [x.shape[0], channels, *block, *counts])
    reads, conditions, loops = [], [], []
    for k in range(axes):
        position = f"i{k + 2} + {pads[k]} - {dilations[k]} * r{k}"
        reads.append(f"({position}) // {strides[k]}")
        conditions.append(f"({position}) % {strides[k]} == 0")
        loops.append(f"r{k} = {block[k]}")
    inner = ", ".join(["i0", "i1", *(f"r{k}" for k in range(axes)), *reads])
    element = f"{{0}}[{inner}, outside = 0]"
    for condition in conditions:
        element = f"where({condition}, {element}, 0.0)"
    shape = (x.shape[0], *map(make_extent, (channels, *sizes)))
    targets = [f"i{k}=" for k in range(axes + 2)]
    text = f"sum[{', '.join(loops)}]({element})"
    return program.equation(node.hint, targets, text, [program.place(parts)], shape, x.type)


SAMPLING_OPERATORS: Mapping[str, Convert] = {
    "GridSample": _grid_sample, "MaxUnpool": _unpool, "TensorScatter": _tensor_scatter, "Col2Im": _join_blocks,
}  # fmt: skip
