"""Where the elements of a dense array lie."""

from __future__ import annotations

from collections.abc import Sequence


def strides_of(shape: Sequence[int], itemsize: int, order: Sequence[int] = ()) -> tuple[int, ...]:
    """The strides in bytes; `order` are the dimensions from the slowest to the fastest, as they stand unless given."""
    strides, step = [0] * len(shape), itemsize
    for dim in reversed(order or range(len(shape))):
        strides[dim] = step
        step *= shape[dim]
    return tuple(strides)
