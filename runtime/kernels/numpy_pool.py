"""The kernel `meanpool` {seq_lens} in numpy: the mean of every packed sequence's tokens that a mask lets through."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import numpy as np

from runtime.bundle import Attribute, Block
from runtime.dtypes import Array, compute
from runtime.errors import PlanFault
from runtime.kernels.base import Kernel, Run, ScratchPlan, dtype_name, integers, single
from runtime.kernels.pieces import Resolved, runner


def build_meanpool(
    attributes: Mapping[str, Attribute],
    inputs: Sequence[Array],
    outputs: Sequence[Array],
    input_blocks: Sequence[Block],
    output_blocks: Sequence[Block],
) -> Kernel:
    """Sums are made in f64. Values that the mask stops are not looked at; without any other, the mean is zero."""
    if len(inputs) != 2:
        raise PlanFault(f"meanpool has two inputs, found {len(inputs)}")
    (source, mask), target = inputs, single(outputs)
    if source.ndim != 2 or mask.shape != source.shape[:1] or mask.dtype != np.bool_ or source.dtype != target.dtype:
        raise PlanFault(f"meanpool of {source.dtype}{source.shape} with mask {mask.dtype}{mask.shape}")
    if compute(dtype_name(target)) not in ("f32", "f64"):
        raise PlanFault(f"meanpool of {target.dtype}")
    ends = np.cumsum(np.array(integers(attributes, ("seq_lens",), "seq_lens"), np.int64))
    bounds = np.concatenate([[0], ends])
    low, up = input_blocks[0].lower[0], input_blocks[0].upper[0]
    first, last = output_blocks[0].lower[0], output_blocks[0].upper[0]
    if last > len(ends) or (low, up) != (bounds[first], bounds[last]) or up - low != len(source):
        raise PlanFault(f"meanpool of tokens {low} to {up} into sequences {first} to {last}, which end elsewhere")
    if target.shape != (last - first, source.shape[1]):
        raise PlanFault(f"meanpool of shape {source.shape} into {target.shape}")
    scratch = ScratchPlan()
    line = scratch.take((source.shape[1],), np.dtype(np.float64))

    def bind(memory: Array) -> Run:
        sums = line.of(memory)
        spans = [slice(int(a), int(b)) for a, b in itertools.pairwise(bounds[first : last + 1] - low)]
        calls: list[Resolved] = [
            (_mean, [source[span], mask[span], sums, row]) for span, row in zip(spans, target, strict=True)
        ]
        return runner(calls)

    return Kernel(bind, scratch.size, 2.0 * source.size)


def _mean(values: Array, mask: Array, sums: Array, target: Array) -> None:
    np.add.reduce(values, axis=0, dtype=sums.dtype, out=sums, where=mask[:, None])
    np.divide(sums, max(1, int(mask.sum())), out=target, casting="unsafe")
