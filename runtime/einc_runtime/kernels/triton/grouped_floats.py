"""Products of floats of 8 bits with one scale for each group of neighbours along the summed index, by tensor cores.

A step multiplies one group of every row by one of every channel, as values are stored, and adds the result, times both
scales, to sums in f32. Hopper's tensor cores add up the products of a group with about 14 bits, and no further
(DeepSeek-V3 Technical Report, 3.3.2).
"""

from __future__ import annotations

from einc_runtime.dtypes import Array
from einc_runtime.kernels.calls.rounded import RoundedContractCall
from einc_runtime.kernels.triton.launches import KernelLaunch
from einc_runtime.kernels.triton.rounded import MAX_TILE_ROWS, MIN_TILE_ROWS, locate
from einc_runtime.kernels.triton.source import LANGUAGE, LaunchOptions, PointerOperand, assemble, power_of_two
from einc_runtime.plan.schema import FLOATS

MIN_NEIGHBOURS = 32
"""The fewest products that tensor cores add up at a time."""
MAX_NEIGHBOURS = 128
"""The longest group of which a tile of rows and one of channels fit into shared memory, two stages at a time."""
_EIGHT_BITS = "tl.float8e4nv"


def suits_groups(call: RoundedContractCall) -> bool:
    """Whether `multiply_groups` computes it: groups with scales of f32 or 16 bits, of one index, and no batch."""
    plain = call.plain
    batch, _, columns, summed = plain.groups
    form, group = plain.weight.form, plain.weight.group
    is_whole = (
        MIN_NEIGHBOURS <= group <= MAX_NEIGHBOURS
        and group & (group - 1) == 0
        and plain.extents[summed[-1]] % group == 0
    )
    has_values = form.values == form.rounded == "f8e4m3" and form.scales in FLOATS and not form.has_factor
    return not batch and bool(columns) and is_whole and has_values and plain.labels[-1] == summed[-1]


def multiply_groups(call: RoundedContractCall, laid: Array, units: Array) -> KernelLaunch:
    """The launch for rows that are rounded: their values [rows, depth], and the scales [rows, groups]."""
    plain, group = call.plain, call.plain.weight.group
    _, rows, columns, summed = plain.groups
    count, width, depth = (plain.count(names) for names in (rows, columns, summed))
    x, u = PointerOperand.of("x", laid), PointerOperand.of("units", units)
    v, s = PointerOperand.of("values", plain.weight.values), PointerOperand.of("scales", plain.weight.scales)
    y = PointerOperand.of("y", plain.result.array)
    high = max(MIN_TILE_ROWS, min(power_of_two(count), MAX_TILE_ROWS))
    broad = MAX_TILE_ROWS
    sides = -(-width // broad)
    of_rows, row = locate(call, rows, "row")
    of_columns, column = locate(call, columns, "column")
    of_start, start = locate(call, summed, "start")
    of_places, neighbours = locate(call, summed, "place")
    scaled = column | start | {summed[-1]: f"({start[summed[-1]]} // {group})"}
    tall = {name: f"{text}[:, None]" for name, text in column.items()}
    flat = {name: f"{text}[None, :]" for name, text in neighbours.items()}
    in_rows, inside = f"row < {count}", f"column < {width}"
    values = v.at(_find_places(plain.labels, tall | flat))
    target = {name: f"{text}[:, None]" for name, text in row.items()} | {
        name: f"{text}[None, :]" for name, text in column.items()
    }
    lines = [
        "program = tl.program_id(0).to(tl.int64)",
        f"row = (program // {sides}) * {high} + tl.arange(0, {high}).to(tl.int64)",
        f"column = (program % {sides}) * {broad} + tl.arange(0, {broad}).to(tl.int64)",
        *of_rows,
        *of_columns,
        f"sums = tl.zeros(({high}, {broad}), tl.float32)",
        f"for start in range(0, {depth}, {group}):",
        *(f"    {line}" for line in of_start),
        f"    unit = {u.load({0: 'row', 1: f'(start // {group})'}, in_rows)}",
        f"    scale = {s.load(_find_places(call.channels, scaled), inside, offset=' + column * 0')}.to(tl.float32)",
        f"    place = start + tl.arange(0, {group}).to(tl.int64)",
        *(f"    {line}" for line in of_places),
        f"    part = tl.load({x.at({0: 'row[:, None]', 1: 'place[None, :]'})}, mask=({in_rows})[:, None], other=0)",
        f"    weight = tl.load({values} + column[:, None] * 0 + place[None, :] * 0, mask=({inside})[:, None], other=0)",
        f"    part, weight = part.to({_EIGHT_BITS}, bitcast=True), weight.to({_EIGHT_BITS}, bitcast=True)",
        "    products = tl.dot(part, tl.trans(weight), out_dtype=tl.float32)",
        "    sums += products * (unit[:, None] * scale[None, :])",
        f"tl.store({y.at(_find_places(plain.result.names, target))}, "
        f"(sums * {plain.scale!r}).to({LANGUAGE[y.dtype]}), mask=({in_rows})[:, None] & ({inside})[None, :])",
    ]
    title = f"{count} rows times {width} channels, in groups of {group} floats of 8 bits"
    grid = -(-count // high) * sides
    items = [x, u, v, s, y]
    shape = plain.result.array.shape
    return assemble("grouped_product", title, items, shape, lines, grid, LaunchOptions(stages=2))


def _find_places(names: tuple[str, ...], places: dict[str, str]) -> dict[int, str]:
    return {axis: places[name] for axis, name in enumerate(names)}
