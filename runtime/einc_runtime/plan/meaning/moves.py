"""Families that move elements and compute nothing: append and reshape."""

from __future__ import annotations

import itertools
import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence

from einc_runtime.plan.meaning.terms import (
    MAX_RANK,
    WHOLE,
    Application,
    BlockAxis,
    IndexForm,
    Interval,
    OperatorMeaning,
    TensorForm,
    direct,
    ends_of,
    indices_along,
    scaled,
    unique_names,
)
from einc_runtime.plan.schema import FLOATS, INTEGERS, NARROW_FLOATS, Attribute
from einc_runtime.plan.states import IN_PLACE


def append(applied: Application) -> OperatorMeaning:
    """New rows written into packed sequences of a cache. A function reads the new rows of every sequence of which it
    has a row. `in_place`, they are written over those of the cache, which is a state."""
    applied.allow(("cache_lens", "new_lens"), (IN_PLACE,))
    cache, new, positions = applied.operands(3)
    rounds = cache.dtype in NARROW_FLOATS and new.dtype in FLOATS
    fit = cache.rank == new.rank == 3 and new.shape[::2] == cache.shape[::2] and (rounds or new.dtype == cache.dtype)
    fit = fit and positions.dtype in INTEGERS and positions.shape == new.shape[1:2]
    applied.require(fit, f"of {new} at {positions} to {cache}")
    cache_lens = applied.lengths("cache_lens", cache.shape[1])
    new_lens = applied.lengths("new_lens", new.shape[1])
    fit = len(cache_lens) == len(new_lens) and all(
        rows >= more for rows, more in zip(cache_lens, new_lens, strict=True)
    )
    applied.require(fit, "there is no room for the new rows of some sequence")
    cache_ends, starts = ends_of(cache_lens), (0, *ends_of(new_lens))

    def new_rows(lower: int, upper: int) -> Interval:
        return starts[bisect_right(cache_ends, lower)], starts[bisect_left(cache_ends, upper) + 1]

    rows = BlockAxis(1, new_rows)
    return OperatorMeaning(
        "append",
        {"cache_lens": list(cache_lens), "new_lens": list(new_lens), **_in_place(applied)},
        (cache,),
        indices_along(cache),
        (direct(range(3)), (BlockAxis(0), rows, BlockAxis(2)), (rows,)),
        (direct(range(3)),),
    )


def _in_place(applied: Application) -> dict[str, Attribute]:
    if IN_PLACE not in applied.attributes:
        return {}
    applied.require(applied.value(IN_PLACE, bool), "it is in place, or does not say so")
    return {IN_PLACE: True}


def reshape(applied: Application) -> OperatorMeaning:
    """The same elements, in row-major order, under other dimensions.

    Runs of dimensions before and after that have equally many elements belong together. A run is cut where a position
    of its first dimension begins both before and after, so that a block is a box on both sides.
    """
    applied.allow(("dims", "shape"))
    (tensor,) = applied.operands(1)
    dims, shape = applied.items("dims", str), applied.items("shape", int)
    applied.require(len(dims) == len(shape) <= MAX_RANK, f"{len(dims)} names for {len(shape)} dimensions")
    same = min(shape, default=1) > 0 and math.prod(shape) == math.prod(tensor.shape)
    applied.require(same, f"of {tensor} to {list(shape)}")
    old, new = [WHOLE] * tensor.rank, [WHOLE] * len(shape)
    names: list[str] = []
    extents: list[int] = []
    for first, second, elements in _find_runs(tensor.shape, shape):
        steps = elements // tensor.shape[first], elements // shape[second]
        unit = math.lcm(*steps)  # elements between two positions where the run may be cut
        if unit < elements:
            factors = unit // steps[0], unit // steps[1]
            old[first], new[second] = scaled(len(names), factors[0]), scaled(len(names), factors[1])
            name = tensor.dims[first] if factors[0] == 1 else f"{tensor.dims[first]}_{dims[second]}"
            names.append(dims[second] if factors[1] == 1 else name)
            extents.append(elements // unit)
    result = TensorForm(dims, shape, tensor.dtype)
    indices = tuple(map(IndexForm, unique_names(names), extents))
    return OperatorMeaning("reshape", {}, (result,), indices, (tuple(old),), (tuple(new),))


def _find_runs(old: Sequence[int], new: Sequence[int]) -> list[tuple[int, int, int]]:
    """For each run the first dimension before and after, and its number of elements. Extents of 1 are in no run.

    A run ends where as many elements have been passed before as after: counted from the first dimension on, the
    products of extents are equal there.
    """
    before, after = _running_products(old), _running_products(new)
    common = {product for _, product in before} & {product for _, product in after}
    runs = []
    passed = 1
    while before:
        end = min(product for product in common if product > passed)
        runs.append((before[0][0], after[0][0], end // passed))
        before = [entry for entry in before if entry[1] > end]
        after = [entry for entry in after if entry[1] > end]
        passed = end
    return runs


def _running_products(shape: Sequence[int]) -> list[tuple[int, int]]:
    """Every dimension of an extent above 1, with the product of the extents up to it."""
    products = itertools.accumulate(shape, int.__mul__)
    return [(d, product) for d, product in enumerate(products) if shape[d] > 1]
