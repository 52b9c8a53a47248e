"""Views of arrays with named dimensions as stacks of matrices, where their strides allow it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from functools import lru_cache

from einc_runtime.dtypes import Array
from einc_runtime.kernels.indices import NamedArray
from einc_runtime.kernels.views import restride
from einc_runtime.plan.index_equations import Names

MAX_FORMS = 4096
"""Forms of operands whose matrices are remembered: more than a large plan has."""


def _dimensions(operand: NamedArray, group: Names) -> list[tuple[int, int]]:
    """Extents and byte strides of a group's indices, without those of extent 1."""
    places = [operand.names.index(name) for name in group]
    array = operand.array
    return [(array.shape[p], array.strides[p]) for p in places if array.shape[p] != 1]


def are_mergeable(operand: NamedArray, group: Names) -> bool:
    """Whether the dimensions of the group are one dimension with one stride."""
    dimensions = _dimensions(operand, group)
    return all(outer[1] == inner[0] * inner[1] for outer, inner in itertools.pairwise(dimensions))


def split_off_batches(group: Names, operands: Sequence[NamedArray], least: int) -> tuple[Names, Names]:
    """Splits a group into leading indices, which become batches, and the longest tail that is one dimension in all
    operands. If the tail has less than `least` positions, the whole group stays together, and must be copied."""
    start = 0
    while not all(are_mergeable(operand, group[start:]) for operand in operands):
        start += 1
    group_size, tail = (math.prod(n for n, _ in _dimensions(operands[0], part)) for part in (group, group[start:]))
    return (group[:start], group[start:]) if tail >= min(least, group_size) else ((), group)


def view_as_matrices(operand: NamedArray, batch: Names, first: Names, second: Names) -> Array:
    """The array as (batch..., first, second). A dimension of extent 1 gets a stride that BLAS accepts."""
    array = operand.array
    form = operand.names, array.shape, array.strides, array.itemsize
    return restride(array, *_find_matrices(*form, batch, first, second))


@lru_cache(maxsize=MAX_FORMS)
def _find_matrices(
    names: Names, shape: tuple[int, ...], strides: tuple[int, ...], size: int, batch: Names, first: Names, second: Names
) -> tuple[list[int], list[int]]:
    """The shape and the strides in bytes of `view_as_matrices`; layers of a model have the same."""
    places = {name: (shape[p], strides[p]) for p, name in enumerate(names)}
    dimensions = [places.get(name, (1, 0)) for name in batch]
    groups = [[places[name] for name in group if places[name][0] != 1] for group in (first, second)]
    extents = [math.prod(extent for extent, _ in group) for group in groups]
    steps = [group[-1][1] if group else None for group in groups]
    column = steps[1] if steps[1] is not None else size
    if steps[1] is None and steps[0] == size:
        column = extents[0] * size
    row = steps[0] if steps[0] is not None else max(column * extents[1], size)
    if steps[0] is None and column != size:
        row = size  # one strided row is a matrix in column order
    return [extent for extent, _ in dimensions] + extents, [stride for _, stride in dimensions] + [row, column]


def is_blas_ready(array: Array) -> bool:
    """Whether BLAS can read the matrices: unit stride along one dimension, no overlap along the other."""
    if array.dtype.kind in "iu":
        return True  # BLAS is not used for integers
    (rows, columns), (row, column) = array.shape[-2:], array.strides[-2:]
    size = array.itemsize
    by_rows = column == size and row % size == 0 and row >= columns * size
    by_columns = row == size and column % size == 0 and column >= rows * size
    return by_rows or by_columns
