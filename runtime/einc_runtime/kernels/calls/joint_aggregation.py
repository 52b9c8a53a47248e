"""Aggregations of copies of a tuple."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from einc_runtime.dtypes import Array
from einc_runtime.kernels.base import JointInvocation


@dataclass(frozen=True, slots=True)
class JointAggregationCall:
    """`copies` and `target` have one view for each member; the first copy may lie in the memory of the target.

    `dims` says for every member which dimension of the first member each of its dimensions is.
    """

    copies: Sequence[Sequence[Array]]
    target: Sequence[Array]
    dims: Sequence[Sequence[int]]
    repetitions: int = 1
    """How many invocations of its kind an execution has."""

    @staticmethod
    def parse(invocation: JointInvocation[Array]) -> JointAggregationCall:
        reads, writes, dims = invocation.reads, invocation.writes, invocation.dims
        members = len(writes)
        copies = [tuple(reads[first : first + members]) for first in range(0, len(reads), members)]
        return JointAggregationCall(copies, tuple(writes), dims, invocation.repetitions)

    def member(self, number: int) -> list[Array]:
        """Views of one member in all copies and then in the target. They have the rank of the first member, with extent
        1 along dimensions that this member lacks."""
        dims, rank = self.dims[number], self.target[0].ndim
        lacking = tuple(dim for dim in range(rank) if dim not in dims)
        order = [dims.index(dim) for dim in sorted(dims)]
        return [np.expand_dims(of[number].transpose(order), lacking) for of in (*self.copies, self.target)]
