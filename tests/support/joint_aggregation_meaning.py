"""What combining two partial tuples means, element by element; the runtime's kernels are written apart from it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]
Dims = Sequence[Sequence[int]]
"""For every member, which dimension of the primary each of its dimensions is."""


def combine(operation: str, dims: Dims, left: Sequence[Array], right: Sequence[Array]) -> Sequence[Array]:
    return MERGES[operation](dims, left, right)


def logsumexp(dims: Dims, left: Sequence[Array], right: Sequence[Array]) -> Sequence[Array]:
    """Averages weighted by exp of their logarithmic weights; a weight of -inf is none, and nothing averages to 0."""
    axes = [dims[1].index(d) for d in dims[0] if d in dims[1]]
    shape = [extent if d in dims[1] else 1 for d, extent in enumerate(left[0].shape)]
    with np.errstate(all="ignore"):
        total = np.logaddexp(left[1], right[1])
        average_sum = np.zeros(left[0].shape)
        for average, weight in (left, right):
            share = np.where(weight == -np.inf, 0, np.exp(weight.astype(np.float64) - total))
            average_sum += average.astype(np.float64) * share.transpose(axes).reshape(shape)
    return [average_sum.astype(left[0].dtype), total]


def topk(dims: Dims, left: Sequence[Array], right: Sequence[Array]) -> Sequence[Array]:
    values, indices = (np.concatenate(pair, axis=-1) for pair in zip(left, right, strict=True))
    result = [np.empty_like(left[0]), np.empty_like(left[1])]
    for row in np.ndindex(values.shape[:-1]):
        ranked = sorted(zip(values[row], indices[row], strict=True), key=lambda pair: _rank(*pair))
        for n, (value, index) in enumerate(ranked[: left[0].shape[-1]]):
            result[0][row][n], result[1][row][n] = value, index
    return result


def _rank(value: Any, index: Any) -> tuple[bool, float | int, int]:
    """The larger comes first, then the smaller index; NaN counts as larger than any number."""
    number = int(value) if isinstance(value, np.integer) else float(value)
    nan = number != number
    return (not nan, 0 if nan else -number, int(index))


MERGES: dict[str, Callable[[Dims, Sequence[Array], Sequence[Array]], Sequence[Array]]] = {
    "logsumexp": logsumexp,
    "topk": topk,
}
