"""Kernels in numpy that move elements: `reshape` {} and `append` {cache_lens, new_lens}."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from einc_runtime.dtypes import Array
from einc_runtime.kernels.base import Invocation, Kernel, Run, ScratchAllocator, store, view_as_integers
from einc_runtime.kernels.calls.moves import AppendCall
from einc_runtime.kernels.numpy.pieces import Resolved, make_runner


def build_copies(sources: Sequence[Array], targets: Sequence[Array]) -> Kernel:
    moves: list[Resolved] = [
        (np.copyto, [view_as_integers(target), view_as_integers(source)])
        for source, target in zip(sources, targets, strict=True)
    ]
    return Kernel(lambda _: make_runner(moves), nanoseconds=0.5 * sum(target.size for target in targets))


def build_reshape(invocation: Invocation[Array]) -> Kernel:
    """The same elements in the same row-major order, in another shape."""
    source, target = invocation.input, invocation.output
    seen = try_reshape(source, target.shape)
    if seen is not None:
        return Kernel(lambda _: make_runner([(store, [seen, target])]), nanoseconds=0.5 * source.size)
    written = try_reshape(target, source.shape)
    if written is not None:
        return Kernel(lambda _: make_runner([(store, [source, written])]), nanoseconds=0.5 * source.size)
    scratch = ScratchAllocator()
    dense = scratch.take(source.shape, source.dtype)

    def bind(memory: Array) -> Run:
        copy = dense.of(memory)
        return make_runner([(store, [source, copy]), (store, [copy.reshape(target.shape), target])])

    return Kernel(bind, scratch.size, 1.0 * source.size)


def try_reshape(view: Array, shape: Sequence[int]) -> Array | None:
    """The view in another shape, or None where that needs a copy."""
    reshaped = view.reshape(shape)
    return reshaped if np.may_share_memory(reshaped, view) else None


MAX_SINGLE_ROWS = 16
"""New rows of an append that are written one by one: finding the last of equal ones takes longer."""


def build_append(invocation: Invocation[Array]) -> Kernel:
    """A block of the cache, with new rows written at their positions in this block, in their order.

    In place, the block is in the target already. The kernel raises ValueFault for a position outside of its sequence,
    before it writes anything.
    """
    return make_append(AppendCall.parse(invocation))


def make_append(call: AppendCall) -> Kernel:
    cache, new, positions, target = call.cache, call.new, call.positions, call.target
    scratch = ScratchAllocator()
    slot = scratch.take((new.shape[1],), np.dtype(np.int64))

    rounds = new.dtype != target.dtype

    def write(goals: Array) -> None:
        rows = new
        if rounds:
            rows = np.empty(new.shape, target.dtype)
            store(new, rows)
        into, fresh = view_as_integers(target), view_as_integers(rows)
        if len(goals) <= MAX_SINGLE_ROWS:
            for row, goal in enumerate(goals.tolist()):
                if 0 <= goal < target.shape[1]:
                    into[:, goal] = fresh[:, row]
            return
        inside = np.flatnonzero((goals >= 0) & (goals < target.shape[1]))
        goals = goals[inside]
        # Of equal goals the last one is kept, whatever order numpy writes in.
        goals, latest = np.unique(goals[::-1], return_index=True)
        into[:, goals] = fresh[:, inside[::-1][latest]]

    def bind(memory: Array) -> Run:
        goals = slot.of(memory)
        return make_runner(
            [
                (call.require_positions, []),
                (np.add, [positions, call.origins, goals]),
                *([] if call.in_place else [(np.copyto, [view_as_integers(target), view_as_integers(cache)])]),
                (write, [goals]),
            ]
        )

    return Kernel(bind, scratch.size, 0.5 * ((0 if call.in_place else cache.size) + new.size))


def take_along(source: Array, axis: int, places: Array, target: Array) -> None:
    """What lies at these places of an axis. Reads a dense array in place; numpy.take would first copy any other."""
    if source.flags.c_contiguous:
        np.take(source, places, axis=axis, out=target, mode="clip")
    else:
        np.copyto(target, source[(slice(None),) * axis + (places,)])
