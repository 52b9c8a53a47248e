"""Arrays as rows: the last axis whole, the axes before it merged where all arrays allow that, walked in pieces."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from runtime.dtypes import Array
from runtime.kernels.pieces import PIECE, Walk, merged


def merged_rows(views: Sequence[Array]) -> list[Array]:
    """Arrays that differ along the last axis at most, with leading axes merged; there is one at least."""
    heads = [view[..., 0] for view in views]
    flat = merged(heads, [False] * heads[0].ndim)[0] if heads[0].ndim else [head[None] for head in heads]
    return [
        np.lib.stride_tricks.as_strided(line, (*line.shape, view.shape[-1]), (*line.strides, view.strides[-1]))
        for line, view in zip(flat, views, strict=True)
    ]


def as_rows(views: Sequence[Array]) -> tuple[list[Array], Walk]:
    """Arrays of one shape with leading axes merged, and a walk over whole rows whose pieces stay in cache."""
    rows = merged_rows(views)
    return rows, Walk.over([rows[0][..., 0]], max(1, PIECE // max(1, rows[0].shape[-1])))
