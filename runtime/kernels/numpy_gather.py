"""Kernels in numpy that move rows to where data or bounds say: `embedding` {vocabulary}, `append` {cache_lens,
new_lens}, `concat` {axis, extents}."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import numpy as np

from runtime.bundle import Attribute, Block
from runtime.dtypes import Array
from runtime.errors import PlanFault, ValueFault
from runtime.kernels.base import Kernel, Run, ScratchPlan, attribute, integers, single
from runtime.kernels.pieces import PIECE, Piece, Resolved, Walk, runner, walk_runner


def build_embedding(
    attributes: Mapping[str, Attribute],
    inputs: Sequence[Array],
    outputs: Sequence[Array],
    input_blocks: Sequence[Block],
    output_blocks: Sequence[Block],
) -> Kernel:
    """Rows of the table by id; zeros for the ids of rows that the block of the table lacks.

    An id outside of the whole vocabulary raises ValueFault when the kernel runs.
    """
    if len(inputs) != 2:
        raise PlanFault(f"embedding has two inputs, found {len(inputs)}")
    (ids, table), target = inputs, single(outputs)
    vocabulary = attribute(attributes, ("vocabulary",), "vocabulary", int)
    assert isinstance(vocabulary, int)
    if ids.dtype.kind != "i" or table.ndim != 2 or table.dtype != target.dtype or table.dtype == np.bool_:
        raise PlanFault(f"embedding of {ids.dtype}{ids.shape} in {table.dtype}{table.shape} as {target.dtype}")
    if target.shape != (*ids.shape, table.shape[1]):
        raise PlanFault(f"embedding of shape {ids.shape} in {table.shape} into {target.shape}")
    lower, upper = input_blocks[1].lower[0], input_blocks[1].upper[0]
    if upper - lower != len(table) or upper > vocabulary:
        raise PlanFault(f"embedding with {len(table)} rows, {lower} to {upper} of {vocabulary}")
    rows, numbers, bits = target.reshape(-1, target.shape[-1]), ids.reshape(-1), _bits(table)
    if not np.may_share_memory(rows, target):
        raise PlanFault("embedding writes dense blocks")
    walk = Walk((len(numbers),), 0, max(1, PIECE // max(1, target.shape[-1])))
    scratch = ScratchPlan()
    place = scratch.take((len(numbers),), np.dtype(np.int64))
    absent = scratch.take((len(numbers),), np.dtype(np.bool_))
    whole = (lower, upper) == (0, vocabulary)

    def bind(memory: Array) -> Run:
        local, missing = place.of(memory), absent.of(memory)
        before: list[Resolved] = [
            (_require_ids, [numbers, vocabulary]),
            (np.subtract, [numbers, np.int64(lower), local]),
        ]
        if not whole:
            before += [(_outside, [local, len(table), missing]), (np.copyto, [local, 0, "same_kind", missing])]

        def calls(piece: Piece) -> list[Resolved]:
            part = slice(piece.start[0], piece.start[0] + piece.count)
            steps: list[Resolved] = [(_take, [bits, local[part], _bits(rows[part])])]
            if not whole:
                steps.append((np.copyto, [rows[part], rows.dtype.type(0), "same_kind", missing[part, None]]))
            return steps

        return runner([*before, (walk_runner(walk, calls), [])])

    return Kernel(bind, scratch.size, 1.0 * target.size)


def build_append(
    attributes: Mapping[str, Attribute],
    inputs: Sequence[Array],
    outputs: Sequence[Array],
    input_blocks: Sequence[Block],
    output_blocks: Sequence[Block],
) -> Kernel:
    """A block of the cache with those new rows written into it whose position is there, in their order.

    A position outside of its sequence raises ValueFault when the kernel runs.
    """
    if len(inputs) != 3:
        raise PlanFault(f"append has three inputs, found {len(inputs)}")
    (cache, new, positions), target = inputs, single(outputs)
    allowed = ("cache_lens", "new_lens")
    cache_lens, new_lens = (np.array(integers(attributes, allowed, name), np.int64) for name in allowed)
    if cache.shape != target.shape or cache.dtype != target.dtype or new.dtype != target.dtype or cache.ndim != 3:
        raise PlanFault(f"append to {cache.dtype}{cache.shape} as {target.dtype}{target.shape}")
    if new.ndim != 3 or new.shape[::2] != cache.shape[::2] or positions.shape != new.shape[1:2]:
        raise PlanFault(f"append of {new.shape} at {positions.shape} positions to {cache.shape}")
    if positions.dtype.kind != "i" or len(cache_lens) != len(new_lens):
        raise PlanFault("append takes integer positions, and as many sequences of new rows as of the cache")
    low, up = output_blocks[0].lower[1], output_blocks[0].upper[1]
    first, last = input_blocks[1].lower[1], input_blocks[1].upper[1]
    cache_ends, new_ends = np.cumsum(cache_lens), np.cumsum(new_lens)
    if up - low != cache.shape[1] or last - first != new.shape[1] or up > cache_ends[-1] or last > new_ends[-1]:
        raise PlanFault(f"append of new rows {first} to {last} to rows {low} to {up}, which are not there")
    begun, ended = np.searchsorted(cache_ends, low, side="right"), np.searchsorted(cache_ends, up)
    if first > new_ends[begun] - new_lens[begun] or last < new_ends[ended]:
        raise PlanFault(f"append to rows {low} to {up} lacks new rows: it has {first} to {last}")
    sequence = np.searchsorted(new_ends, np.arange(first, last), side="right")
    rows = cache_lens[sequence]
    origin = cache_ends[sequence] - rows - low  # of each new row's sequence, in the block
    scratch = ScratchPlan()
    place = scratch.take((new.shape[1],), np.dtype(np.int64))

    def write(goals: Array) -> None:
        inside = np.flatnonzero((goals >= 0) & (goals < up - low))
        goals = goals[inside]
        # Of equal goals the last counts, whatever order numpy writes in.
        goals, latest = np.unique(goals[::-1], return_index=True)
        _bits(target)[:, goals] = _bits(new)[:, inside[::-1][latest]]

    def bind(memory: Array) -> Run:
        goals = place.of(memory)
        return runner(
            [
                (_require_positions, [positions, rows]),
                (np.add, [positions, origin, goals]),
                (np.copyto, [_bits(target), _bits(cache)]),
                (write, [goals]),
            ]
        )

    return Kernel(bind, scratch.size, 0.5 * (cache.size + new.size))


def build_concat(
    attributes: Mapping[str, Attribute],
    inputs: Sequence[Array],
    outputs: Sequence[Array],
    input_blocks: Sequence[Block],
    output_blocks: Sequence[Block],
) -> Kernel:
    """Every input's part of the output, by the bounds of the blocks; what an input has beside that is not looked at."""
    target = single(outputs)
    allowed = ("axis", "extents")
    axis, extents = attribute(attributes, allowed, "axis", int), integers(attributes, allowed, "extents")
    assert isinstance(axis, int)
    if not 0 <= axis < target.ndim or len(extents) != len(inputs):
        raise PlanFault(f"concat of {len(inputs)} inputs and {len(extents)} extents along axis {axis}")
    origin = output_blocks[0].lower[axis]
    moves: list[Resolved] = []
    reached = 0  # how much of the output is written
    for offset, array, block in zip(itertools.accumulate(extents[:-1], initial=0), inputs, input_blocks, strict=True):
        start, stop = offset + block.lower[axis] - origin, offset + block.upper[axis] - origin
        low, up = max(start, 0), min(stop, target.shape[axis])
        if low >= up:
            continue
        part = (slice(None),) * axis
        goal, source = target[(*part, slice(low, up))], array[(*part, slice(low - start, up - start))]
        if low != reached or goal.shape != source.shape or goal.dtype != source.dtype:
            raise PlanFault(f"concat of {source.dtype}{source.shape} into {goal.dtype}{goal.shape} at {low}")
        reached = up
        moves.append((np.copyto, [_bits(goal), _bits(source)]))
    if reached != target.shape[axis]:
        raise PlanFault(f"concat fills {reached} of {target.shape[axis]} positions")
    return Kernel(lambda _: runner(moves), nanoseconds=0.5 * target.size)


def _take(table: Array, rows: Array, target: Array) -> None:
    """A dense table is read in place; of a part of one numpy.take would make a copy first."""
    if table.flags.c_contiguous:
        np.take(table, rows, axis=0, out=target, mode="clip")
    else:
        np.copyto(target, table[rows])


def _outside(numbers: Array, extent: int, target: Array) -> None:
    np.less(numbers.view(np.uint64), np.uint64(extent), target)  # negative numbers are large ones
    np.logical_not(target, target)


def _require_ids(ids: Array, vocabulary: int) -> None:
    low, high = int(ids.min()), int(ids.max())
    if low < 0 or high >= vocabulary:
        wrong = low if low < 0 else high
        raise ValueFault(f"an id is {wrong}; ids of this vocabulary are 0 to {vocabulary - 1}")


def _require_positions(positions: Array, rows: Array) -> None:
    wrong = (positions < 0) | (positions >= rows)
    if wrong.any():
        at = int(np.argmax(wrong))
        raise ValueFault(
            f"a position is {int(positions[at])}; positions in its sequence of the cache are 0 to {int(rows[at]) - 1}"
        )


def _bits(array: Array) -> Array:
    """The same bytes as integers, which numpy moves faster than elements of a type that it does not know."""
    return array.view(f"u{array.itemsize}") if array.dtype.kind == "V" else array
