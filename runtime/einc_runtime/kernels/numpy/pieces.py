"""Walks arrays in pieces that fit into the cache.

A walk takes single positions of the leading axes and steps along one axis; all later axes are whole.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from einc_runtime.dtypes import Array
from einc_runtime.kernels.base import Run
from einc_runtime.kernels.views import merge_leading_axes

PIECE_ELEMENTS = 1 << 15
"""Elements in a piece: 128 KiB of f32, so that a few arrays fit into a core's L2 cache."""

MAX_PREPARED = 64
"""Invocations with at most so many pieces keep their parts between runs; a large model has thousands of invocations."""

Resolved = tuple[Callable[..., Any], list[Any]]
"""A function and its arguments."""


@dataclass(frozen=True, slots=True)
class Walk:
    """The pieces of an iteration space: one position of each axis before `axis`, `step` of `axis`, all of the rest."""

    extents: tuple[int, ...]
    axis: int
    step: int

    @staticmethod
    def over(views: Sequence[Array], piece: int = PIECE_ELEMENTS) -> Walk:
        extents = tuple(max(column) for column in zip(*(view.shape for view in views), strict=True))
        inner, axis = 1, len(extents) - 1
        while axis > 0 and inner * extents[axis] <= piece:
            inner *= extents[axis]
            axis -= 1
        return Walk(extents, axis, max(1, min(extents[axis], piece // max(1, inner))))

    @property
    def size(self) -> int:
        """Elements in the largest piece."""
        return self.step * math.prod(self.extents[self.axis + 1 :])

    @property
    def pieces(self) -> int:
        return math.prod(self.extents[: self.axis]) * -(-self.extents[self.axis] // self.step)

    def shape_of(self, piece: ArrayPiece) -> tuple[int, ...]:
        return (1,) * self.axis + (piece.count,) + self.extents[self.axis + 1 :]

    def __iter__(self) -> Iterator[ArrayPiece]:
        for prefix in np.ndindex(self.extents[: self.axis]):
            for start in range(0, self.extents[self.axis], self.step):
                yield ArrayPiece((*prefix, start), min(self.step, self.extents[self.axis] - start))


@dataclass(frozen=True, slots=True)
class ArrayPiece:
    """`count` positions of the last axis that `start` names, and one of each before it."""

    start: tuple[int, ...]
    count: int

    def of(self, view: Array) -> Array:
        """This piece of a view. Axes along which the view is broadcast keep their single position."""
        key = [slice(lower, lower + 1) for lower in self.start[:-1]] + [
            slice(self.start[-1], self.start[-1] + self.count)
        ]
        return view[tuple(slice(None) if n == 1 else part for n, part in zip(view.shape, key, strict=False))]


def walk_rows(views: Sequence[Array]) -> tuple[list[Array], Walk]:
    """Arrays of one shape with leading axes merged, and a walk over whole rows in pieces that fit into the cache."""
    rows = merge_leading_axes(views)
    return rows, Walk.over([rows[0][..., 0]], max(1, PIECE_ELEMENTS // max(1, rows[0].shape[-1])))


class CallSequence:
    """A function that makes calls in their order."""

    __slots__ = ("calls",)

    def __init__(self, calls: Sequence[Resolved]) -> None:
        self.calls = calls

    def __call__(self) -> None:
        for function, arguments in self.calls:
            function(*arguments)


def make_runner(calls: Sequence[Resolved]) -> Run:
    """Returns a function that makes all calls in order."""
    if len(calls) == 1 and not calls[0][1]:
        return calls[0][0]
    return CallSequence(calls)


def make_walk_runner(walk: Walk, views: Sequence[Array], compute: Callable[..., None]) -> Run:
    """Returns a function that computes on the parts of views in every piece; a few parts are kept between runs."""
    parts = [[piece.of(view) for view in views] for piece in walk] if walk.pieces <= MAX_PREPARED else None
    if parts is not None and len(parts) == 1:
        return partial(compute, *parts[0])

    def run() -> None:
        for part in parts or ([piece.of(view) for view in views] for piece in walk):
            compute(*part)

    return run
