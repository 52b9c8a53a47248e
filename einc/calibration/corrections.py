"""The tables of a `Correction`: their values at shapes, and robust least squares with smooth neighbours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from einc.machines.gpu import Correction, CorrectionTable, Knots

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix  # which is not among what einc needs

Array = NDArray[np.float64]
Tables = Sequence[tuple[str, ...]]


def interpolate(knots: Mapping[str, Sequence[float]], tables: Tables, sizes: Mapping[str, Array]) -> csr_matrix:
    """The matrix that takes all tables' values to the shapes' log-ratios. Knots are base-2 logarithms."""
    from scipy.sparse import csr_matrix

    count = len(next(iter(sizes.values())))
    places = {}
    for name, values in knots.items():
        grid = np.asarray(values)
        x = np.clip(np.log2(sizes[name]), grid[0], grid[-1])
        low = np.clip(np.searchsorted(grid, x, side="right") - 1, 0, len(grid) - 2)
        places[name] = (low, (x - grid[low]) / (grid[low + 1] - grid[low]))
    lines, cells, weights, offset = [], [], [], 0
    for names in tables:
        for corner in range(2 ** len(names)):
            cell, weight = np.zeros(count, int), np.ones(count)
            for j, name in enumerate(names):
                low, share = places[name]
                up = (corner >> j) & 1
                cell = cell * len(knots[name]) + low + up
                weight = weight * (share if up else 1.0 - share)
            lines.append(np.arange(count))
            cells.append(offset + cell)
            weights.append(weight)
        offset += int(np.prod([len(knots[name]) for name in names]))
    return csr_matrix((np.concatenate(weights), (np.concatenate(lines), np.concatenate(cells))), shape=(count, offset))


def list_differences(knots: Mapping[str, Sequence[float]], tables: Tables) -> csr_matrix:
    """Differences of neighbouring values of each table."""
    from scipy.sparse import csr_matrix

    pairs, offset = [], 0
    for names in tables:
        shape = [len(knots[name]) for name in names]
        cells = np.arange(int(np.prod(shape))).reshape(shape) + offset
        for axis in range(len(names)):
            pairs.append(
                (
                    np.take(cells, range(shape[axis] - 1), axis).ravel(),
                    np.take(cells, range(1, shape[axis]), axis).ravel(),
                )
            )
        offset += cells.size
    first, second = (np.concatenate([pair[i] for pair in pairs]) for i in (0, 1))
    lines = np.arange(len(first))
    return csr_matrix(
        (np.r_[np.ones(len(first)), -np.ones(len(first))], (np.r_[lines, lines], np.r_[first, second])),
        shape=(len(first), offset),
    )


def fit_values(
    knots: Mapping[str, Sequence[float]],
    tables: Tables,
    sizes: Mapping[str, Array],
    log_ratio: Array,
    *,
    scale: float,
    smoothness: float = 3.0,
    ridge: float = 0.5,
) -> Array:
    """The values of all tables, one after the other: outliers count little, and neighbours are alike."""
    from scipy.sparse import identity
    from scipy.sparse.linalg import spsolve

    matrix, differences = interpolate(knots, tables, sizes), list_differences(knots, tables)
    penalty = smoothness * (differences.T @ differences) + ridge * identity(matrix.shape[1])
    weight, values = np.ones(len(log_ratio)), np.zeros(matrix.shape[1])
    for _ in range(8):
        weighted = matrix.T.multiply(weight).tocsr()
        values = spsolve((weighted @ matrix + penalty).tocsc(), weighted @ log_ratio)
        weight = 1.0 / np.sqrt(1.0 + ((log_ratio - matrix @ values) / scale) ** 2)
    return values


def as_correction(knots: Mapping[str, Sequence[float]], tables: Tables, values: Array) -> Correction:
    """The tables as a machine file has them."""
    parts, offset = [], 0
    for names in tables:
        size = int(np.prod([len(knots[name]) for name in names]))
        rounded = tuple(round(float(value), 3) for value in values[offset : offset + size])
        parts.append(CorrectionTable(tuple(names), rounded))
        offset += size
    return Correction(tuple(Knots(name, tuple(map(float, at))) for name, at in knots.items()), tuple(parts))
