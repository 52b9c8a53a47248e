"""Views of arrays with fewer axes: neighbours become one where every array allows it.

So contiguous operands of one shape have one long axis, and what is made for them has one loop.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from einc_runtime.dtypes import Array


def merge_axes(views: Sequence[Array], kinds: Sequence[bool]) -> tuple[list[Array], list[bool]]:
    """Equally ranked views (extent 1 where one is broadcast) with neighbouring axes of one kind merged where all
    views allow it, and axes of extent 1 gone. At least one axis is left; the kinds of those left come with them."""
    extents = [max(column) for column in zip(*(view.shape for view in views), strict=True)]
    groups: list[list[int]] = []
    for axis, extent in enumerate(extents):
        if extent == 1:
            continue
        left = groups[-1][-1] if groups else None
        if left is not None and kinds[left] == kinds[axis] and all(_mergeable(v, left, axis) for v in views):
            groups[-1].append(axis)
        else:
            groups.append([axis])
    return [_merge_groups(view, groups) for view in views], [kinds[group[0]] for group in groups] or [False]


def _mergeable(view: Array, left: int, right: int) -> bool:
    """Both extents are above 1 in some view; here a 1 means that the view is broadcast."""
    if view.shape[left] == 1 or view.shape[right] == 1:
        return bool(view.shape[left] == view.shape[right])
    return bool(view.strides[left] == view.strides[right] * view.shape[right])


def _merge_groups(view: Array, groups: Sequence[Sequence[int]]) -> Array:
    shape = [math.prod(view.shape[axis] for axis in group) for group in groups] or [1]
    strides = [view.strides[group[-1]] for group in groups] or [view.itemsize]
    return np.lib.stride_tricks.as_strided(view, shape, strides)


def merge_leading_axes(views: Sequence[Array]) -> list[Array]:
    """Arrays that differ along the last axis at most, with leading axes merged; there is one at least."""
    heads = [view[..., 0] for view in views]
    flat = merge_axes(heads, [False] * heads[0].ndim)[0] if heads[0].ndim else [head[None] for head in heads]
    return [
        np.lib.stride_tricks.as_strided(line, (*line.shape, view.shape[-1]), (*line.strides, view.strides[-1]))
        for line, view in zip(flat, views, strict=True)
    ]


def strides_of(shape: Sequence[int], itemsize: int, order: Sequence[int] = ()) -> tuple[int, ...]:
    """The strides in bytes; `order` are the dimensions from the slowest to the fastest, as they stand unless given."""
    strides, step = [0] * len(shape), itemsize
    for dim in reversed(order or range(len(shape))):
        strides[dim] = step
        step *= shape[dim]
    return tuple(strides)
