"""Running aggregates in Triton: a program goes along the dimension in pieces, and scans each piece in a tree.

What all pieces before one have made is combined with what the tree makes within it.
"""

from __future__ import annotations

import math

from einc_runtime.dtypes import Array, compute_type
from einc_runtime.kernels.base import dtype_name
from einc_runtime.kernels.calls.keyed_aggregates import RunningCall
from einc_runtime.kernels.triton.launches import KernelLaunch
from einc_runtime.kernels.triton.map import COMBINE, COMBINE_HELPERS
from einc_runtime.kernels.triton.scalar import ScalarSource, format_number
from einc_runtime.kernels.triton.source import (
    LANGUAGE,
    LaunchOptions,
    PointerOperand,
    assemble,
    index_cast,
    power_of_two,
)
from einc_runtime.plan.index_patterns import RUNNING_PIECE, RUNNING_PIECE_OF_ROWS, find_identity

COMBINING_FUNCTIONS = {"sum": "total", "prod": "product", "max": "largest", "min": "smallest"}
"""Aggregation -> the function of sources that combines two values."""

TOTAL_SOURCE = "\n@triton.jit\ndef total(a, b):\n    return a + b\n"


def launch_running(call: RunningCall) -> KernelLaunch:
    """The launch: a tile of rows, which are the positions of all other dimensions, for each program."""
    source, target = PointerOperand.of("x", call.source), PointerOperand.of("y", call.target)
    dims = [dim for dim in range(call.target.ndim) if dim != call.axis]
    rows = math.prod(call.target.shape[dim] for dim in dims)
    count, extent = int(call.source.shape[call.axis]), int(call.target.shape[call.axis])
    is_dense = abs(call.source.strides[call.axis]) == call.source.itemsize
    width = min(power_of_two(max(count, extent)), RUNNING_PIECE if is_dense else RUNNING_PIECE_OF_ROWS)
    height = min(power_of_two(rows), RUNNING_PIECE // width)
    number = _find_accumulator(call.target)
    identity = format_number(find_identity(call.aggregation, dtype_name(call.target)))
    kind = LANGUAGE[number]
    cast = index_cast([source, target], [max(n, m) for n, m in zip(call.source.shape, call.target.shape, strict=True)])
    lines = [f"rest = tl.program_id(0){cast} * {height} + tl.arange(0, {height}){cast}", f"inside = rest < {rows}"]
    for dim in reversed(dims):
        size = call.target.shape[dim]
        lines += [f"r{dim} = (rest % {size})[:, None]", f"rest = rest // {size}"]
    places = {dim: f"r{dim}" for dim in dims}
    function = COMBINING_FUNCTIONS[call.aggregation]

    def combine(left: str, right: str) -> str:
        return COMBINE[call.aggregation].format(left, right)

    known = f"inside[:, None] & (k < {count})[None, :]"
    loaded = source.load({**places, call.axis: "k[None, :]"}, known, offset=_spread(source))
    goal = {**places, call.axis: "j[None, :]"}
    lines += [
        f"spread = tl.zeros([{height}, {width}], tl.int32)",
        f"carry = tl.full([{height}], {identity}, {kind})",
        f"for piece in range({-(-count // width)}):",
        f"    k = piece * {width} + tl.arange(0, {width}){cast}",
        f"    v = tl.where({known}, {loaded}.to({kind}), {identity}).to({kind})",
        f"    scanned = {combine('carry[:, None]', f'tl.associative_scan(v, 1, {function})')}",
        f"    j = k + {1 - call.first}",
        "    "
        + target.store(goal, "scanned", f"{known} & ((j >= 0) & (j < {extent}))[None, :]", offset=_spread(target)),
        f"    carry = {combine('carry', f'tl.reduce(v, 1, {function})')}",
    ]
    if call.first <= 0 or call.first + extent - 1 > count:
        lines += [
            f"for piece in range({-(-extent // width)}):",
            f"    j = piece * {width} + tl.arange(0, {width}){cast}",
            f"    number = j + {call.first}",
            f"    edge = tl.where((number > 0)[None, :], carry[:, None], {identity}).to({kind})",
            f"    outer = (j < {extent}) & ((number <= 0) | (number > {count}))",
            "    " + target.store(goal, "edge", "inside[:, None] & outer[None, :]", offset=_spread(target)),
        ]
    helpers = ScalarSource((), []).source(*COMBINE_HELPERS[call.aggregation]) + (
        TOTAL_SOURCE if function == "total" else ""
    )
    title = f"running {call.aggregation} along dimension {call.axis}"
    grid = -(-rows // height)
    return assemble("running", title, [source, target], call.target.shape, lines, grid, LaunchOptions(helpers))


def _spread(operand: PointerOperand) -> str:
    """What gives addresses the form of the tile where the operand has one element for all places along a dimension."""
    return " + spread" if 0 in operand.strides else ""


def _find_accumulator(target: Array) -> str:
    computed = compute_type(dtype_name(target))
    return "i64" if computed in ("i32", "i64") else computed
