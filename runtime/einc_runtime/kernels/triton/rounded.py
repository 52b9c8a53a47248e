"""The kernel `rounded_contract` in Triton: one launch rounds the tensor into workspace, one multiplies integers.

Sums of integers are exact, so these are the launches of reproducible plans, too. Ratios are divided with the rounding
of the CPU, so that both have the same integers.
"""

from __future__ import annotations

import numpy as np

from einc_runtime.dtypes import Array
from einc_runtime.kernels.base import Invocation
from einc_runtime.kernels.calls.rounded import LEVELS, RoundedContractCall
from einc_runtime.kernels.indices import NamedArray
from einc_runtime.kernels.triton.launches import KernelLaunch, LaunchSequence, WorkspaceAllocator
from einc_runtime.kernels.triton.source import LANGUAGE, LINE_ELEMENTS, PointerOperand, assemble, power_of_two
from einc_runtime.plan.index_equations import Names

MIN_TILE_ROWS = 16
"""The fewest rows of a tile: what tensor cores take."""
MAX_TILE_ROWS = 64
"""The most rows of a tile."""
PRODUCTS_AT_ONCE = 64
"""Products that are added up at a time."""
_NEAREST = {"tl.float32": 1.5 * 2.0**23, "tl.float64": 1.5 * 2.0**52}
"""What leaves no bits for a fraction when it is added: the sum is rounded to an integer, ties to even."""


def build_rounded_contract(invocation: Invocation[Array]) -> LaunchSequence:
    """Two launches."""
    call = RoundedContractCall.parse(invocation)
    plain = call.plain
    batch, rows, _, summed = plain.groups
    allocator = WorkspaceAllocator()
    integers = allocator.take((plain.count((*batch, *rows)), plain.count(summed)), np.dtype(np.int8))
    return LaunchSequence((_round(call, integers), _multiply(call, integers)), allocator.size)


def _wide(call: RoundedContractCall) -> str:
    return "tl.float64" if call.plain.tensor.kind == "f64" else "tl.float32"


def _divide(wide: str, left: str, right: str) -> str:
    return f"tl.div_rn({left}, {right})" if wide == "tl.float32" else f"({left} / {right})"


def locate(call: RoundedContractCall, names: Names, position: str) -> tuple[list[str], dict[str, str]]:
    """The lines that find the place along each index of a position in all of them, and the names of these places."""
    places = {name: f"i{list(call.plain.extents).index(name)}" for name in names}
    lines, left = [], position
    for name in reversed(names):
        extent = call.plain.extents[name]
        lines.append(f"{places[name]} = {left}" if name == names[0] else f"{places[name]} = {left} % {extent}")
        left = f"({left} // {extent})"
    return lines, places


def _operand(name: str, operand: NamedArray) -> PointerOperand:
    return PointerOperand.of(name, operand.array)


def _at(operand: NamedArray, *places: dict[str, str]) -> dict[int, str]:
    known = {name: subscript for group in places for name, subscript in group.items()}
    return {axis: known[name] for axis, name in enumerate(operand.names)}


def _tall(places: dict[str, str]) -> dict[str, str]:
    return {name: f"{subscript}[:, None]" for name, subscript in places.items()}


def _flat(places: dict[str, str]) -> dict[str, str]:
    return {name: f"{subscript}[None, :]" for name, subscript in places.items()}


def _round(call: RoundedContractCall, integers: Array) -> KernelLaunch:
    """The launch that writes the integers of all rows: programs go along parts of a row."""
    plain, wide = call.plain, _wide(call)
    batch, rows, _, summed = plain.groups
    count, depth = integers.shape
    x, largest = _operand("x", plain.tensor), _operand("largest", call.rows)
    target = PointerOperand.of("integers", integers)
    block = min(power_of_two(depth), LINE_ELEMENTS)
    parts = -(-depth // block)
    row_lines, row_places = locate(call, (*batch, *rows), "row")
    column_lines, column_places = locate(call, summed, "column")
    lines = [
        "program = tl.program_id(0).to(tl.int64)",
        f"row = program // {parts}",
        f"column = (program % {parts}) * {block} + tl.arange(0, {block})",
        f"mask = column < {depth}",
        *row_lines,
        *column_lines,
        f"size = {largest.load(_at(call.rows, row_places), '')}.to({wide})",
        f"ratio = {_divide(wide, f'{LEVELS}.0', 'size')}",
        'ratio = tl.where((size > 0) & (ratio < float("inf")), ratio, 0.0)',
        f"value = {x.load(_at(plain.tensor, row_places, column_places), 'mask')}.to({wide}) * ratio",
        "value = tl.where(value == value, value, 0.0)",
        f"value = tl.minimum(tl.maximum(value, -{LEVELS}.0), {LEVELS}.0)",
        f"value = (value + {_NEAREST[wide]!r}) - {_NEAREST[wide]!r}",
        target.store({0: "row", 1: "column"}, "value", "mask"),
    ]
    title = f"{count} rows of {depth} rounded to 8 bits"
    return assemble("round_rows", title, [x, largest, target], integers.shape, lines, count * parts)


def _multiply(call: RoundedContractCall, integers: Array) -> KernelLaunch:
    """The launch that multiplies: a program computes a tile of the result."""
    plain, wide = call.plain, _wide(call)
    batch, rows, columns, summed = plain.groups
    count, width, depth = (plain.count(names) for names in (rows, columns, summed))
    values, scales = NamedArray(plain.labels, plain.weight.values), NamedArray(call.channels, plain.weight.scales)
    x, largest = PointerOperand.of("integers", integers), _operand("largest", call.rows)
    v, s, y = _operand("values", values), _operand("scales", scales), _operand("y", plain.result)
    high = max(MIN_TILE_ROWS, min(power_of_two(count), MAX_TILE_ROWS))
    broad = 2 * MIN_TILE_ROWS if high == MIN_TILE_ROWS else MAX_TILE_ROWS
    ups, sides = -(-count // high), -(-width // broad)
    inside, near, in_rows = f"column < {width}", f"place < {depth}", f"row < {count}"
    subscripts = zip((batch, rows, columns, summed), ("number", "row", "column", "place"), strict=True)
    (of_batch, number), (of_rows, row), (of_columns, column), (of_summed, summed_position) = (
        locate(call, names, position) for names, position in subscripts
    )
    weight = v.load(
        _at(values, number, _tall(column), _flat(summed_position)),
        f"({inside})[:, None] & ({near})[None, :]",
        offset=" + column[:, None] * 0 + place[None, :] * 0",
    )
    target = _at(plain.result, number, _tall(row), _flat(column))
    lines = [
        "program = tl.program_id(0).to(tl.int64)",
        f"number = program // {ups * sides}",
        f"row = (program // {sides} % {ups}) * {high} + tl.arange(0, {high}).to(tl.int64)",
        f"column = (program % {sides}) * {broad} + tl.arange(0, {broad}).to(tl.int64)",
        *of_batch,
        *of_rows,
        *of_columns,
        f"line = (number * {count} + row)[:, None] * {depth}",
        f"sums = tl.zeros(({high}, {broad}), tl.int32)",
        f"for start in range(0, {depth}, {PRODUCTS_AT_ONCE}):",
        f"    place = start + tl.arange(0, {PRODUCTS_AT_ONCE}).to(tl.int64)",
        *(f"    {line}" for line in of_summed),
        f"    part = tl.load(integers + line + place[None, :], mask=({in_rows})[:, None] & ({near})[None, :], other=0)",
        f"    weight = {weight}",
        "    sums = tl.dot(part, tl.trans(weight), sums, out_dtype=tl.int32)",
        f"size = {largest.load(_at(call.rows, number, row), in_rows, offset=' + row * 0')}.to({wide})",
        f"unit = {_divide(wide, 'size', f'{LEVELS}.0')} * {plain.scale!r}",
        f"scale = {s.load(_at(scales, number, column), inside, offset=' + column * 0')}.to({wide})",
        f"result = sums.to({wide}) * unit[:, None] * scale[None, :]",
        f"tl.store({y.at(target)} + row[:, None] * 0 + column[None, :] * 0, result.to({LANGUAGE[y.dtype]}), "
        f"mask=({in_rows})[:, None] & ({inside})[None, :])",
    ]
    title = f"{count} rows of integers times {plain.count(batch)} weights of {width} rows"
    grid = plain.count(batch) * ups * sides
    return assemble("rounded_product", title, [x, largest, v, s, y], plain.result.array.shape, lines, grid)
