"""Index programs that are convolutions: which loops are batches, groups and channels, and where windows are.

A convolution sums the product of two tensors. One of them, the image, is read at sums `step * h + dilation * r + c` of
a loop of the result and a summed one, along up to three dimensions, with 0 outside of it. The other one, the kernel, is
read at loops alone, or at 0. Where it is read at 0 along a dimension, the image may also be read at a loop there.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from einc_runtime.plan.index_programs import IndexProgram, Position, TensorRead
from einc_runtime.plan.scalar_programs import ScalarProgram

MAX_WINDOW_DIMS = 3
"""oneDNN has convolutions of one to three dimensions."""


@dataclass(frozen=True, slots=True)
class Window:
    """Dimension `dim` of the image: `step * along + dilation * within + constant`, or without `within` where the kernel
    has an extent of 1 there."""

    dim: int
    along: str
    within: str | None
    step: int
    dilation: int
    constant: int


@dataclass(frozen=True, slots=True)
class Convolution:
    """The numbers of the reads, and the loops: each is None where there is no such loop. `group` is in all three
    tensors, `channel` is summed, and `filter` is in the kernel and the result."""

    image: int
    kernel: int
    batch: str | None
    group: str | None
    channel: str | None
    filter: str | None
    windows: tuple[Window, ...]
    factor: float

    @property
    def is_pointwise(self) -> bool:
        """Whether each element of the result is made of one position of the image."""
        return all(window.within is None for window in self.windows)


@lru_cache(maxsize=1024)
def find_convolution(program: IndexProgram) -> Convolution | None:
    """The convolution that a program is; None for all others."""
    if program.aggregation != "sum" or len(program.reads) != 2:
        return None
    factor = ScalarProgram.parse(program.program, 2).product_factor
    if factor is None:
        return None
    matches = (_match(program, image, 1 - image, factor) for image in (0, 1))
    return next((convolution for convolution in matches if convolution is not None), None)


def _match(program: IndexProgram, image: int, kernel: int, factor: float) -> Convolution | None:
    source, weights = program.reads[image], program.reads[kernel]
    if not isinstance(source, TensorRead) or not isinstance(weights, TensorRead) or source.operand == weights.operand:
        return None
    if weights.outside or source.outside not in ("", "0", "0.0"):
        return None
    of_weights = [_find_loop(position) for position in weights.positions if position.terms or position.constant]
    windows = [_find_window(program, dim, position) for dim, position in enumerate(source.positions)]
    points = sum(not position.terms for position in weights.positions)
    points -= sum(window is not None and window.within is None for window in windows)
    alone = [dim for dim, position in enumerate(source.positions)
             if windows[dim] is None and _find_loop(position) in set(program.result) - set(of_weights)]  # fmt: skip
    for dim in alone[max(1, len(alone) - points) :]:  # before them is the batch
        windows[dim] = Window(dim, str(source.positions[dim].loop), None, 1, 1, 0)
    known = [window for window in windows if window is not None]
    of_source = [_find_loop(p) for p, window in zip(source.positions, windows, strict=True) if window is None]
    if not 1 <= len(known) <= MAX_WINDOW_DIMS or None in of_weights or None in of_source:
        return None
    moved = {name for window in known for name in (window.along, window.within) if name is not None}
    image_loops, kernel_loops = {str(name) for name in of_source}, {str(name) for name in of_weights}
    within = {window.within for window in known if window.within is not None}
    named = len(of_source) + len(of_weights) + len(known) + len(within)
    result = set(program.result)
    distinct = (
        len(image_loops) + len(kernel_loops) + len(moved) == named
        and not image_loops & moved
        and kernel_loops & moved == within
    )
    groups = (
        image_loops - kernel_loops,
        image_loops & kernel_loops & result,
        (image_loops & kernel_loops) - result,
        kernel_loops - image_loops - within,
    )
    fits = distinct and groups[0] <= result and groups[3] <= result and max(map(len, groups)) <= 1
    if not fits or image_loops | kernel_loops | moved != set(program.extents):
        return None
    batch, group, channel, filters = (next(iter(names), None) for names in groups)
    return Convolution(image, kernel, batch, group, channel, filters, tuple(known), factor)


def _find_loop(position: Position) -> str | None:
    return position.loop if position.constant == 0 else None


def _find_window(program: IndexProgram, dim: int, position: Position) -> Window | None:
    result = set(program.result)
    if position.is_affine and len(position.terms) == 1 and position.terms[0][1] > 1 and position.terms[0][0] in result:
        return Window(dim, position.terms[0][0], None, position.terms[0][1], 1, position.constant)
    if not position.is_affine or len(position.terms) != 2:
        return None
    along, within = sorted(position.terms, key=lambda term: term[0] not in result)
    if along[0] not in result or within[0] in result or along[1] < 1 or within[1] < 1:
        return None
    return Window(dim, along[0], within[0], along[1], within[1], position.constant)
