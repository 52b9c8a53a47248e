"""The kernel `meanpool` {seq_lens} in Triton: the mean of every packed sequence's tokens that a mask lets through."""

from __future__ import annotations

from einc_runtime.dtypes import Array, compute
from einc_runtime.kernels.base import Invocation, dtype_name
from einc_runtime.kernels.calls.pool import Pooling
from einc_runtime.kernels.triton.plan import Plan, Table
from einc_runtime.kernels.triton.source import LANGUAGE, Operand, assembled, masked, power_of_two, widening
from einc_runtime.kernels.triton.tiles import Tiles

TOKENS = 16
"""Of a sequence that a program looks at together."""


def plan_meanpool(invocation: Invocation[Array]) -> Plan:
    """A program for some columns of a sequence. Tokens that the mask stops are not looked at; the mean of none is 0."""
    call = Pooling.parse(invocation)
    source, target, spans = call.source, call.target, call.spans
    kind = compute(dtype_name(target))
    x, gate, y = Operand.of("x", source), Operand.of("mask", call.mask[:, None]), Operand.of("y", target)
    width = min(power_of_two(source.shape[1]), 128)
    tiles = Tiles(target.shape, None, 1, 1, width)
    cast = widening([x, gate, y], source.shape)
    columns, row = source.shape[1], "i0" if len(spans) > 1 else "0"
    inside = f"(c[None, :] < {columns})" if columns % width else ""
    stride = gate.strides[0]
    lines = [
        *tiles.locate(cast),
        f"sums = tl.zeros([{TOKENS}, {width}], {LANGUAGE[kind]})",
        f"count = tl.zeros([{TOKENS}], tl.int32)",
        f"end = tl.load(spans + 2 * {row} + 1)",
        f"for start in range(tl.load(spans + 2 * {row}), end, {TOKENS}):",
        f"    t = start + tl.arange(0, {TOKENS}){cast}",
        f"    let = tl.load(mask + t * {stride}, mask=t < end, other=0) != 0",
        f"    at = x + t[:, None] * {x.strides[0]} + c[None, :] * {x.strides[1]}",
        f"    sums += tl.load(at{masked('let[:, None]', inside, other='0')}){x.load_suffix}",
        "    count += let.to(tl.int32)",
        f"mean = tl.sum(sums, 0) / tl.maximum(tl.sum(count, 0), 1).to({LANGUAGE[kind]})",
        tiles.store(y, "mean"),
    ]
    title = f"means of {len(spans)} sequences"
    tables = [("spans", Table.of(spans), "i64")]
    return Plan((assembled("meanpool", title, [x, gate, y], source.shape, lines, tiles.count(), tables=tables),))
