"""Arrays as rows: the last axis whole, the axes before it merged where all arrays allow that, walked in pieces."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from runtime.dtypes import Array
from runtime.kernels.pieces import PIECE, Walk, merged


def as_rows(views: Sequence[Array]) -> tuple[list[Array], Walk]:
    """Arrays of one shape with leading axes merged, and a walk over whole rows whose pieces stay in cache."""
    heads = [view[..., 0] for view in views]
    flat = merged(heads, [False] * heads[0].ndim)[0] if heads[0].ndim else [head[None] for head in heads]
    extent = views[0].shape[-1]
    rows = [
        np.lib.stride_tricks.as_strided(line, (*line.shape, extent), (*line.strides, view.strides[-1]))
        for line, view in zip(flat, views, strict=True)
    ]
    return rows, Walk.over(flat[:1], max(1, PIECE // max(1, extent)))
