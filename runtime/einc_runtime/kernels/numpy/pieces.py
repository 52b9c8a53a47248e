"""Walks arrays in pieces that fit into the cache, and prepares scalar code for each piece.

A walk takes single positions of the leading axes and steps along one axis; all later axes are whole.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from einc_runtime.dtypes import Array
from einc_runtime.kernels.base import Run, ScratchAllocator, ScratchArray
from einc_runtime.kernels.numpy.lowering import Breadth, Code, LoweredResult, Place, Register, StoredInput
from einc_runtime.kernels.views import merge_leading_axes

PIECE_ELEMENTS = 1 << 15
"""Elements in a piece: 128 KiB of f32, so that a few registers fit into a core's L2 cache."""

MAX_PREPARED = 64
"""Invocations with at most so many pieces keep their calls between runs; a large model has thousands of invocations."""

Resolved = tuple[Callable[..., Any], list[Any]]
"""A function and its arguments."""

Evaluation = tuple[list[Resolved], Any]
"""Calls, and the value that they compute."""


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

    def shape(self, count: int, breadth: Breadth) -> tuple[int, ...]:
        """The shape of a piece with `count` positions of the walked axis, for a value that varies along `breadth`."""
        full = (1,) * self.axis + (count,) + self.extents[self.axis + 1 :]
        return tuple(extent if axis in breadth else 1 for axis, extent in enumerate(full))

    def shape_of(self, piece: ArrayPiece) -> tuple[int, ...]:
        """The extents of a piece."""
        return self.shape(piece.count, frozenset(range(len(self.extents))))

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


def breadth_of(view: Array) -> Breadth:
    return frozenset(axis for axis, extent in enumerate(view.shape) if extent != 1)


@dataclass(frozen=True, slots=True)
class PieceEvaluator:
    """Code with scratch memory for its registers, for the pieces of a walk."""

    code: Code
    walk: Walk
    slots: tuple[ScratchArray, ...]

    @staticmethod
    def allocate(code: Code, walk: Walk, scratch: ScratchAllocator) -> PieceEvaluator:
        byte = np.dtype(np.uint8)
        return PieceEvaluator(code, walk, tuple(scratch.take((width * walk.size,), byte) for width in code.slots))

    def bind(self, memory: Array, inputs: Sequence[Array], output: Array | None) -> Callable[[ArrayPiece], Evaluation]:
        """Returns a function that gives the calls for one piece of the inputs (and output), and their value."""
        registers: dict[tuple[Register, int], Array] = {}

        def register(item: Register, count: int) -> Array:
            if (item, count) not in registers:
                slot = self.slots[item.slot]
                shape = self.walk.shape(count, item.breadth)
                registers[item, count] = np.ndarray(shape, item.dtype, memory.data, slot.offset)
            return registers[item, count]

        def resolve(piece: ArrayPiece) -> Evaluation:
            views = [piece.of(view) for view in inputs]
            result = None if output is None else piece.of(output)

            def place(item: Place) -> Any:
                if isinstance(item, Register):
                    return register(item, piece.count)
                if isinstance(item, StoredInput):
                    return views[item.position]
                return result if isinstance(item, LoweredResult) else item

            calls = [(call.function, [place(x) for x in (*call.arguments, call.target)]) for call in self.code.calls]
            return calls, place(self.code.value)

        return resolve


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


def make_walk_runner(walk: Walk, resolve: Callable[[ArrayPiece], Sequence[Resolved]]) -> Run:
    """Returns a function that makes the calls of every piece; they are prepared beforehand if there are few pieces."""
    if walk.pieces <= MAX_PREPARED:
        return make_runner([call for piece in walk for call in resolve(piece)])

    def run() -> None:
        for piece in walk:
            for function, arguments in resolve(piece):
                function(*arguments)

    return run
