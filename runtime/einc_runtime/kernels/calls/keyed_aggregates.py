"""Aggregates of values along one axis, for parts of it that overlap or are named by keys: running ones, and scatters.

Both combine one value after the other in the type of an accumulator, and round once. So an element's bits depend on its
values and their order alone, whatever else is computed beside it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from einc_runtime.dtypes import Array


@dataclass(frozen=True, slots=True)
class RunningCall:
    """Element j of the target along `axis` combines the first `first + j` values of the source; a number below 0 is
    none, and one above their count is all."""

    source: Array
    target: Array
    axis: int
    first: int
    aggregation: str

    @staticmethod
    def of(source: Array, target: Array, axis: int, first: int, aggregation: str, *, is_behind: bool) -> RunningCall:
        """Where values are counted from the end, all is turned round."""
        if is_behind:
            source, target = np.flip(source, axis), np.flip(target, axis)
        return RunningCall(source, target, axis, first, aggregation)

    @property
    def empty(self) -> int:
        """How many elements combine no value; they are the first ones."""
        return min(max(-self.first + 1, 0), int(self.target.shape[self.axis]))

    @property
    def lead(self) -> int:
        """How many values are combined before the first element that has one value more is written."""
        return min(max(self.empty + self.first - 1, 0), int(self.source.shape[self.axis]))

    @property
    def steps(self) -> int:
        """How many elements have one value more than the one before. All later ones have all values."""
        return min(int(self.target.shape[self.axis]) - self.empty, int(self.source.shape[self.axis]) - self.lead)


@dataclass(frozen=True, slots=True)
class ScatterCall:
    """Each value of the source along `axis` is combined with the element of the target that its key names, counted from
    `first`; keys that name none are left out."""

    source: Array
    keys: Array
    target: Array
    axis: int
    first: int
    aggregation: str
