"""Operators of ONNX that move elements: reshapes, slices, gathers, padding, and arrays made of numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from einc.importers.arrays.element_types import ElementType
from einc.importers.arrays.elementwise import MAX_FOLDED, apply, cast, where
from einc.importers.arrays.extents import Extent, make_extent, multiply_extents
from einc.importers.arrays.moving import (
    arrange,
    concat,
    expand,
    full,
    pad,
    reshape,
    shape_of,
    slice_axis,
    squeeze,
    take,
    transpose,
    unsqueeze,
)
from einc.importers.arrays.values import Array, UnsupportedError, normalize_axis
from einc.importers.onnx.nodes import Convert, OnnxNode, Results, read_element_type


def _reshape(node: OnnxNode) -> Results:
    x = node.input(0)
    target = node.extents(1, "shape") if node.opset >= 5 else tuple(map(make_extent, node.integers("shape") or ()))
    keeps = not node.integer("allowzero")
    shape = [x.shape[k] if keeps and extent == make_extent(0) else extent for k, extent in enumerate(target)]
    return reshape(node.program, x, shape, node.hint)


def _flatten(node: OnnxNode) -> Results:
    x = node.input(0)
    axis = node.integer("axis", 1)
    axis = axis + x.rank if axis < 0 else axis
    shape = [multiply_extents(x.shape[:axis]), multiply_extents(x.shape[axis:])]
    return reshape(node.program, x, shape, node.hint)


def _squeeze(node: OnnxNode) -> Results:
    return squeeze(node.program, node.input(0), node.axes(1), node.hint)


def _unsqueeze(node: OnnxNode) -> Results:
    return unsqueeze(node.program, node.input(0), node.axes(1) or [], node.hint)


def _transpose(node: OnnxNode) -> Results:
    x = node.input(0)
    return transpose(node.program, x, node.integers("perm") or range(x.rank)[::-1], node.hint)


def _expand(node: OnnxNode) -> Results:
    return expand(node.program, node.input(0), node.extents(1, "shape"), node.hint)


def _tile(node: OnnxNode) -> Results:
    x, repeats = node.input(0), node.extents(1, "repeats")
    spread = [extent for n, extent in zip(repeats, x.shape, strict=True) for extent in (n, extent)]
    parted = reshape(node.program, x, [part for extent in x.shape for part in (1, extent)])
    wide = expand(node.program, parted, spread, node.hint)
    return reshape(node.program, wide, [n * e for n, e in zip(repeats, x.shape, strict=True)], node.hint)


def _concat(node: OnnxNode) -> Results:
    return concat(node.program, node.arrays(), node.integer("axis", 1), node.hint)


def _split(node: OnnxNode) -> Results:
    x = node.input(0)
    axis = normalize_axis(node.integer("axis"), x.rank)
    extent = x.shape[axis]
    sizes: list[Extent | int] | None = None
    if node.optional(1) is not None:
        sizes = list(node.extents(1, "split"))
    elif node.attributes.get("split") is not None:
        sizes = list(node.integers("split") or ())
    if sizes is None:
        count = node.integer("num_outputs", len(node.outputs))
        each = (extent + (count - 1)) // count
        sizes = [*[each] * (count - 1), extent - each * (count - 1)]
    parts, start = [], make_extent(0)
    for k, size in enumerate(sizes):
        hint = node.outputs[k] if k < len(node.outputs) else node.hint
        parts.append(slice_axis(node.program, x, axis, start, start + size, 1, hint))
        start = start + size
    return tuple(parts)


def _slice(node: OnnxNode) -> Results:
    x = node.input(0)
    if node.opset < 10:
        starts = tuple(map(make_extent, node.integers("starts") or ()))
        stops = tuple(map(make_extent, node.integers("ends") or ()))
        axes, steps = node.integers("axes"), None
    else:
        starts, stops = node.extents(1, "starts"), node.extents(2, "ends")
        axes = node.known_ints(3, "axes") if node.optional(3) is not None else None
        steps = node.known_ints(4, "steps") if node.optional(4) is not None else None
    for k, axis in enumerate(axes if axes is not None else range(len(starts))):
        step = steps[k] if steps else 1
        if step == 0:
            raise UnsupportedError("a slice with steps of 0")
        x = slice_axis(node.program, x, axis, starts[k], stops[k], step, node.hint)
    return x


def _gather(node: OnnxNode) -> Results:
    return take(node.program, node.input(0), node.input(1), node.integer("axis"), node.hint)


def wrap_positions(node: OnnxNode, positions: Array, extent: Extent) -> Array:
    """Positions of which negative ones count from the end, as positions from 0 on."""
    if not extent.is_number:
        raise UnsupportedError("positions in a dimension that depends on params", "give the params numbers")
    return apply(node.program, "mod", cast(node.program, positions, ElementType.I64), extent.value)


def _gather_elements(node: OnnxNode) -> Results:
    program, x, positions = node.program, program_place(node, 0), node.input(1)
    axis = normalize_axis(node.integer("axis"), x.rank)
    indices = [f"i{k}" for k in range(x.rank)]
    placed = program.place(positions, "positions")
    brackets = list(indices)
    brackets[axis] = f"{{1}}[{', '.join(indices)}] % {x.shape[axis].text}"
    targets = [f"{index}=" for index in indices]
    return program.equation(node.hint, targets, f"{{0}}[{', '.join(brackets)}]", [x, placed], positions.shape, x.type)


def program_place(node: OnnxNode, position: int) -> Array:
    return node.program.place(node.input(position))


def _gather_nd(node: OnnxNode) -> Results:
    program, x, positions = node.program, program_place(node, 0), program_place(node, 1)
    batch = node.integer("batch_dims")
    depth = positions.shape[-1]
    if not depth.is_number:
        raise UnsupportedError("a number of positions that depends on params")
    shape = (*positions.shape[:-1], *x.shape[batch + depth.value :])
    indices = [f"i{k}" for k in range(len(shape))]
    outer = indices[: positions.rank - 1]
    reads = [f"{{1}}[{', '.join([*outer, str(k)])}] % {x.shape[batch + k].text}" for k in range(depth.value)]
    brackets = [*outer[:batch], *reads, *indices[positions.rank - 1 :]]
    targets = [f"{index}=" for index in indices]
    return program.equation(node.hint, targets, f"{{0}}[{', '.join(brackets)}]", [x, positions], shape, x.type)


SCATTER_REDUCTIONS = {
    "none": ("sum", 0.0),
    "add": ("sum", 0.0),
    "mul": ("prod", 1.0),
    "max": ("max", 0.0),
    "min": ("min", 0.0),
}


def _combine(
    node: OnnxNode, data: Array, match: str, update: str, loops: str, positions: Array, updates: Array
) -> Array:
    """Data with updates at places where `match` holds, combined as the node's `reduction` says."""
    program, reduction = node.program, node.string("reduction", "none")
    if reduction not in SCATTER_REDUCTIONS:
        raise UnsupportedError(f"there is no reduction '{reduction}'")
    operation, neutral = SCATTER_REDUCTIONS[reduction]
    integer = not data.type.is_float
    number = str(int(neutral)) if integer else str(neutral)
    if operation in ("max", "min"):
        sign = "-" if operation == "max" else ""
        low = {32: 2**31, 64: 2**63}[8 * data.type.carrier.itemsize] if integer else 0
        number = f"{sign}inf" if not integer else str(-low + 1 if operation == "max" else low - 1)
    targets = [f"i{k}=" for k in range(data.rank)]
    operands = [program.place(positions, "positions"), program.place(updates, "updates")]
    text = f"{operation}[{loops}](where({match}, {update}, {number}))"
    added = program.equation(f"{node.hint}_updates", targets, text, operands, data.shape, data.type)
    if reduction != "none":
        function = {"sum": "add", "prod": "mul"}.get(operation, operation)
        return apply(program, function, data, added, hint=node.hint)
    counts = f"max[{loops}](where({match}, {{1}}[0] * 0 + 1, 0))"
    zero = program.constant(np.zeros(1, np.int32), ElementType.I32)
    counted = program.equation(
        f"{node.hint}_hits", targets, counts, [operands[0], program.place(zero, "zero")], data.shape, ElementType.I32
    )
    return where(program, apply(program, "gt", counted, 0), added, data, hint=node.hint)


def _scatter_elements(node: OnnxNode) -> Results:
    data, positions, updates = node.arrays()
    if data.type.is_bool:
        wide = OnnxNode(
            node.program, node.operator, node.opset,
            (cast(node.program, data, ElementType.I32), positions, cast(node.program, updates, ElementType.I32)),
            node.attributes, node.outputs,
        )  # fmt: skip
        result = _scatter_elements(wide)
        assert isinstance(result, Array)
        return cast(node.program, result, ElementType.BOOL, hint=node.hint)
    axis = normalize_axis(node.integer("axis"), data.rank)
    wrapped = wrap_positions(node, positions, data.shape[axis])
    inner = [f"i{k}" for k in range(data.rank)]
    inner[axis] = "r0"
    outside = any(a != b for k, (a, b) in enumerate(zip(data.shape, positions.shape, strict=True)) if k != axis)
    brackets = ", ".join(inner)
    position = f"{{0}}[{brackets}{', outside = -1' if outside else ''}]"
    update = f"{{1}}[{brackets}{', outside = 0' if outside else ''}]"
    loops = f"r0 = {positions.shape[axis].text}"
    return _combine(node, data, f"{position} == i{axis}", update, loops, wrapped, updates)


def _scatter_nd(node: OnnxNode) -> Results:
    data, positions, updates = node.arrays()
    depth = positions.shape[-1]
    if not depth.is_number:
        raise UnsupportedError("a number of positions that depends on params")
    outer = [f"r{k}" for k in range(positions.rank - 1)]
    columns = [
        wrap_positions(node, slice_axis(node.program, positions, -1, k, k + 1), data.shape[k])
        for k in range(depth.value)
    ]
    wrapped = concat(node.program, columns, -1)
    tests = [f"{{0}}[{', '.join([*outer, str(k)])}] == i{k}" for k in range(depth.value)]
    match = tests[0]
    for test in tests[1:]:
        match = f"and({match}, {test})"
    inside = [f"i{k}" for k in range(depth.value, data.rank)]
    loops = ", ".join(f"{index} = {extent.text}" for index, extent in zip(outer, positions.shape, strict=False))
    return _combine(node, data, match, f"{{1}}[{', '.join([*outer, *inside])}]", loops, wrapped, updates)


def _pad(node: OnnxNode) -> Results:
    x = node.input(0)
    value: float | str = node.number("value")
    if node.opset < 11:
        widths, axes = node.integers("pads") or [], list(range(x.rank))
    else:
        widths = node.known_ints(1, "pads")
        selected = node.optional(3)
        axes = node.known_ints(3, "axes") if selected is not None else list(range(x.rank))
        if node.optional(2) is not None:
            value = node.known(2, "constant_value").item()
    mode = node.string("mode", "constant")
    fills = {"constant": value, "reflect": "reflect", "edge": "nearest", "wrap": "wrap"}
    if mode not in fills or len(widths) != 2 * len(axes):
        raise UnsupportedError(f"padding '{mode}' of {len(axes)} axes by {len(widths)} widths")
    sides = [(0, 0)] * x.rank
    for k, axis in enumerate(axes):
        sides[normalize_axis(axis, x.rank)] = (widths[k], widths[k + len(axes)])
    return pad(node.program, x, sides, fills[mode], node.hint)


def _shape(node: OnnxNode) -> Results:
    shape = shape_of(node.program, node.input(0))
    stop = node.attributes.get("end")
    return slice_axis(node.program, shape, 0, node.integer("start"), 2**31 if stop is None else int(stop))


def _size(node: OnnxNode) -> Results:
    size = multiply_extents(node.input(0).shape)
    return node.program.constant(np.array(size.value if size.is_number else size, object), ElementType.I64)


def _constant_of_shape(node: OnnxNode) -> Results:
    value: Any = node.attributes.get("value", np.zeros(1, np.float32))
    number = node.program.constant(np.asarray(value).reshape(()))
    return full(node.program, node.extents(0, "shape"), number.known.item(), number.type, node.hint)  # type: ignore[union-attr]


def _range(node: OnnxNode) -> Results:
    start, limit, step = node.arrays()
    if start.numbers is None or step.numbers is None or (limit.numbers is None and limit.extents is None):
        node.known(0, "start")
        node.known(1, "limit")
        node.known(2, "step")
    if limit.numbers is None:
        stop = (limit.extents or ())[0]
        first, by = (int(array.numbers.item()) for array in (start, step))  # type: ignore[union-attr]
        return cast(
            node.program, arrange(node.program, first, (stop - first + (by - 1)) // by, by, node.hint), start.type
        )
    numbers = [array.numbers.item() for array in (start, limit, step)]  # type: ignore[union-attr]
    if numbers[2] == 0 or abs((numbers[1] - numbers[0]) / numbers[2]) > 2**24:
        raise UnsupportedError(f"a range from {numbers[0]} to {numbers[1]} by {numbers[2]}")
    return node.program.constant(np.arange(*numbers).astype(start.type.numpy), start.type, node.hint)


def _one_hot(node: OnnxNode) -> Results:
    positions, values = node.input(0), node.input(2)
    depth = node.known_ints(1, "depth")[0]
    axis = normalize_axis(node.integer("axis", -1), positions.rank + 1)
    program = node.program
    wrapped = apply(program, "mod", cast(program, positions, ElementType.I64), depth)
    inside = apply(program, "and", apply(program, "ge", positions, -depth), apply(program, "lt", positions, depth))
    places = reshape(
        program, program.constant(np.arange(depth)), [depth if k == axis else 1 for k in range(positions.rank + 1)]
    )
    hits = apply(program, "eq", unsqueeze(program, wrapped, [axis]), places)
    hits = apply(program, "and", hits, unsqueeze(program, inside, [axis]))
    off, on = (reshape(program, slice_axis(program, values, 0, k, k + 1), []) for k in (0, 1))
    return where(program, hits, on, off, hint=node.hint)


def _trilu(node: OnnxNode) -> Results:
    x = node.input(0)
    diagonal = node.known_ints(1, "k")[0] if node.optional(1) is not None else 0
    indices = [f"i{k}" for k in range(x.rank)]
    row, column = indices[-2:]
    comparison = ">=" if node.integer("upper", 1) else "<="
    zero = "false" if x.type.is_bool else "0.0" if x.type.is_float else "0"
    text = f"where({column} {comparison} {row} + {diagonal}, {{0}}[{', '.join(indices)}], {zero})"
    return node.program.equation(node.hint, indices, text, [program_place(node, 0)], x.shape, x.type)


def _eye_like(node: OnnxNode) -> Results:
    x = node.input(0)
    type_ = read_element_type(node.integer("dtype")) if "dtype" in node.attributes else x.type
    rows, columns = x.shape
    if not (rows.is_number and columns.is_number and rows.value * columns.value <= MAX_FOLDED):
        raise UnsupportedError("a unit matrix whose extents are large, or depend on params", "give the params numbers")
    return node.program.constant(np.eye(rows.value, columns.value, node.integer("k")).astype(type_.numpy), type_)


def _depth_to_space(node: OnnxNode) -> Results:
    x, size = node.input(0), node.integer("blocksize")
    n, c, h, w = x.shape
    if node.string("mode", "DCR") == "DCR":
        parts = reshape(node.program, x, [n, size, size, c // (size * size), h, w])
        moved = transpose(node.program, parts, [0, 3, 4, 1, 5, 2])
    else:
        parts = reshape(node.program, x, [n, c // (size * size), size, size, h, w])
        moved = transpose(node.program, parts, [0, 1, 4, 2, 5, 3])
    return reshape(node.program, moved, [n, c // (size * size), h * size, w * size], node.hint)


def _space_to_depth(node: OnnxNode) -> Results:
    x, size = node.input(0), node.integer("blocksize")
    n, c, h, w = x.shape
    parts = reshape(node.program, x, [n, c, h // size, size, w // size, size])
    moved = transpose(
        node.program, parts, [0, 3, 5, 1, 2, 4] if node.string("mode", "DCR") == "DCR" else [0, 1, 3, 5, 2, 4]
    )
    return reshape(node.program, moved, [n, c * size * size, h // size, w // size], node.hint)


def _reverse_sequence(node: OnnxNode) -> Results:
    x, lengths = program_place(node, 0), program_place(node, 1)
    batch, time = node.integer("batch_axis", 1), node.integer("time_axis", 0)
    indices = [f"i{k}" for k in range(x.rank)]
    index, length = indices[time], f"{{1}}[{indices[batch]}]"
    brackets = list(indices)
    brackets[time] = f"where({index} < {length}, {length} - 1 - {index}, {index})"
    targets = [f"{index}=" for index in indices]
    return node.program.equation(node.hint, targets, f"{{0}}[{', '.join(brackets)}]", [x, lengths], x.shape, x.type)


def _compress(node: OnnxNode) -> Results:
    x = node.input(0)
    keeps = np.flatnonzero(node.known(1, "condition"))
    if "axis" in node.attributes:
        return take(node.program, x, node.program.constant(keeps), node.integer("axis"), node.hint)
    return take(node.program, reshape(node.program, x, [-1]), node.program.constant(keeps), 0, node.hint)


MOVING_OPERATORS: Mapping[str, Convert] = {
    "Reshape": _reshape, "Flatten": _flatten, "Squeeze": _squeeze, "Unsqueeze": _unsqueeze, "Transpose": _transpose,
    "Expand": _expand, "Tile": _tile, "Concat": _concat, "Split": _split, "Slice": _slice, "Gather": _gather,
    "GatherElements": _gather_elements, "GatherND": _gather_nd, "ScatterElements": _scatter_elements,
    "Scatter": _scatter_elements, "ScatterND": _scatter_nd, "Pad": _pad, "Shape": _shape, "Size": _size,
    "ConstantOfShape": _constant_of_shape, "Range": _range, "OneHot": _one_hot, "Trilu": _trilu, "EyeLike": _eye_like,
    "DepthToSpace": _depth_to_space, "SpaceToDepth": _space_to_depth, "ReverseSequence": _reverse_sequence,
    "Compress": _compress,
}  # fmt: skip
