"""Invocations of the kernel `meanpool`: attributes, arrays and blocks held against each other."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np

from einc_runtime.dtypes import Array, compute
from einc_runtime.errors import PlanFault
from einc_runtime.kernels.base import Invocation, dtype_name


@dataclass(frozen=True, slots=True)
class Pooling:
    """`target` gets a row for each of `spans`, the first token of a sequence in `source` and the one after its last."""

    source: Array
    mask: Array
    target: Array
    spans: Array

    @staticmethod
    def parse(invocation: Invocation[Array]) -> Pooling:
        invocation.allow("seq_lens")
        (source, mask), target = invocation.operands(2), invocation.output
        if source.ndim != 2 or mask.shape != source.shape[:1] or mask.dtype != np.bool_ or source.dtype != target.dtype:
            raise PlanFault(f"meanpool of {source.dtype}{source.shape} with mask {mask.dtype}{mask.shape}")
        if compute(dtype_name(target)) not in ("f32", "f64"):
            raise PlanFault(f"meanpool of {target.dtype}")
        bounds = np.concatenate([[0], np.cumsum(np.array(invocation.integers("seq_lens"), np.int64))])
        tokens, sequences = invocation.input_blocks[0], invocation.output_blocks[0]
        (low, up), (first, last) = ((block.lower[0], block.upper[0]) for block in (tokens, sequences))
        if last >= len(bounds) or (low, up) != (bounds[first], bounds[last]) or up - low != len(source):
            raise PlanFault(f"meanpool of tokens {low} to {up} into sequences {first} to {last}, which end elsewhere")
        if target.shape != (last - first, source.shape[1]):
            raise PlanFault(f"meanpool of shape {source.shape} into {target.shape}")
        spans = np.array(list(itertools.pairwise(bounds[first : last + 1] - low)), np.int64)
        return Pooling(source, mask, target, spans)
