"""The kernel `meanpool` {seq_lens} in Triton: the mean of every packed sequence's tokens that a mask lets through."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import numpy as np

from runtime.bundle import Attribute, Block
from runtime.dtypes import Array, compute
from runtime.errors import PlanFault
from runtime.kernels.base import dtype_name, integers
from runtime.kernels.triton_source import LANGUAGE, Plan, Table, assembled, operands, power_of_two, wide
from runtime.kernels.triton_tiles import Tiles

TOKENS = 16
"""Of a sequence that a program looks at together."""


def plan_meanpool(
    attributes: Mapping[str, Attribute],
    inputs: Sequence[Array],
    outputs: Sequence[Array],
    input_blocks: Sequence[Block],
    output_blocks: Sequence[Block],
) -> Plan:
    """A program for some columns of a sequence. Tokens that the mask stops are not looked at; the mean of none is 0."""
    if len(inputs) != 2 or len(outputs) != 1:
        raise PlanFault(f"meanpool has two inputs, found {len(inputs)}")
    (source, mask), (target,) = inputs, outputs
    if source.ndim != 2 or mask.shape != source.shape[:1] or mask.dtype != np.bool_ or source.dtype != target.dtype:
        raise PlanFault(f"meanpool of {source.dtype}{source.shape} with mask {mask.dtype}{mask.shape}")
    kind = compute(dtype_name(target))
    if kind not in ("f32", "f64"):
        raise PlanFault(f"meanpool of {target.dtype}")
    bounds = np.concatenate([[0], np.cumsum(np.array(integers(attributes, ("seq_lens",), "seq_lens"), np.int64))])
    low, up = input_blocks[0].lower[0], input_blocks[0].upper[0]
    first, last = output_blocks[0].lower[0], output_blocks[0].upper[0]
    if last >= len(bounds) or (low, up) != (bounds[first], bounds[last]) or up - low != len(source):
        raise PlanFault(f"meanpool of tokens {low} to {up} into sequences {first} to {last}, which end elsewhere")
    if target.shape != (last - first, source.shape[1]):
        raise PlanFault(f"meanpool of shape {source.shape} into {target.shape}")
    spans = np.array(list(itertools.pairwise(bounds[first : last + 1] - low)), np.int64)
    names = [dtype_name(source), "bool", dtype_name(target)]
    x, gate, y = operands([source, mask[:, None], target], names, ["x", "mask", "y"])
    width = min(power_of_two(source.shape[1]), 128)
    tiles = Tiles(target.shape, None, 1, 1, width)
    sixty_four = wide([x, gate, y], source.shape)
    columns, row = source.shape[1], "i0" if len(spans) > 1 else "0"
    inside = f"(c < {columns})" if columns % width else ""
    also = f" & (c[None, :] < {columns})" if inside else ""
    stride = gate.strides[0]
    lines = [
        *tiles.locate(sixty_four),
        f"sums = tl.zeros([{TOKENS}, {width}], {LANGUAGE[kind]})",
        f"count = tl.zeros([{TOKENS}], tl.int32)",
        f"end = tl.load(spans + 2 * {row} + 1)",
        f"for start in range(tl.load(spans + 2 * {row}), end, {TOKENS}):",
        f"    t = start + tl.arange(0, {TOKENS}){'.to(tl.int64)' if sixty_four else ''}",
        f"    let = tl.load(mask + t * {stride}, mask=t < end, other=0) != 0",
        f"    at = x + t[:, None] * {x.strides[0]} + c[None, :] * {x.strides[1]}",
        f"    sums += tl.load(at, mask=let[:, None]{also}, other=0){x.load_suffix}",
        "    count += let.to(tl.int32)",
        f"mean = tl.sum(sums, 0) / tl.maximum(tl.sum(count, 0), 1).to({LANGUAGE[kind]})",
        f"tl.store({y.at(tiles.subscripts(y))}, mean.to({LANGUAGE[y.dtype]}){f', mask={inside}' if inside else ''})",
    ]
    title = f"means of {last - first} sequences"
    tables = [("spans", Table.of(spans), "i64")]
    return Plan((assembled("meanpool", title, [x, gate, y], source.shape, lines, tiles.count(), tables=tables),))
