"""Views of arrays with fewer axes: neighbouring axes become one where the strides of every array allow it.

Contiguous operands of one shape then have one long axis, and kernels for them have one loop.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from einc_runtime.dtypes import Array


def merge_axes(views: Sequence[Array], kinds: Sequence[bool]) -> tuple[list[Array], list[bool]]:
    """Views of one rank (extent 1 where one is broadcast) with neighbouring axes of one kind merged where all views
    allow it, and without axes of extent 1. Returns the views, with one axis at least, and the kinds of their axes."""
    extents = [max(column) for column in zip(*(view.shape for view in views), strict=True)]
    groups: list[list[int]] = []
    for axis, extent in enumerate(extents):
        if extent == 1:
            continue
        left = groups[-1][-1] if groups else None
        if left is not None and kinds[left] == kinds[axis] and all(_are_mergeable(v, left, axis) for v in views):
            groups[-1].append(axis)
        else:
            groups.append([axis])
    return [_merge_groups(view, groups) for view in views], [kinds[group[0]] for group in groups] or [False]


def _are_mergeable(view: Array, left: int, right: int) -> bool:
    """Whether two axes of a view can become one. Each is longer than 1 in some view, so here 1 is a broadcast."""
    if view.shape[left] == 1 or view.shape[right] == 1:
        return bool(view.shape[left] == view.shape[right])
    return bool(view.strides[left] == view.strides[right] * view.shape[right])


def _merge_groups(view: Array, groups: Sequence[Sequence[int]]) -> Array:
    shape = [math.prod(view.shape[axis] for axis in group) for group in groups] or [1]
    strides = [view.strides[group[-1]] for group in groups] or [view.itemsize]
    return restride(view, shape, strides)


def restride(array: Array, shape: Sequence[int], strides: Sequence[int]) -> Array:
    """The array's memory with another shape and other strides; numpy cannot do this with floats of 8 bits."""
    if array.itemsize > 1:
        return np.lib.stride_tricks.as_strided(array, shape, strides)
    return np.lib.stride_tricks.as_strided(array.view(np.uint8), shape, strides).view(array.dtype)


def merge_leading_axes(views: Sequence[Array]) -> list[Array]:
    """Arrays whose shapes differ along the last axis at most, with leading axes merged; one leading axis at least."""
    heads = [view[..., 0] for view in views]
    flat = merge_axes(heads, [False] * heads[0].ndim)[0] if heads[0].ndim else [head[None] for head in heads]
    return [
        restride(line, (*line.shape, view.shape[-1]), (*line.strides, view.strides[-1]))
        for line, view in zip(flat, views, strict=True)
    ]


def strides_of(shape: Sequence[int], itemsize: int, order: Sequence[int] = ()) -> tuple[int, ...]:
    """The strides in bytes of a dense array. `order` lists the dimensions from the largest stride to the smallest;
    without it the array is in row-major order."""
    strides, step = [0] * len(shape), itemsize
    for dim in reversed(order or range(len(shape))):
        strides[dim] = step
        step *= shape[dim]
    return tuple(strides)
