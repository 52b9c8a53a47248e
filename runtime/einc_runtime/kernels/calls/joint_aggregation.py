"""Aggregations of copies of a tuple: the copies and the target checked against each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from einc_runtime.dtypes import FLOATS, Array, compute_type
from einc_runtime.errors import PlanFault
from einc_runtime.kernels.base import JointInvocation, dtype_name
from einc_runtime.kernels.calls.ranking import INDEX_DTYPE


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

    def average_types(self) -> list[str]:
        """The element types of averages and of the logarithms of their weights. Raises PlanFault for other tuples."""
        kinds = self._types()
        if len(kinds) != 2 or kinds[0] not in FLOATS or kinds[1] not in ("f32", compute_type(kinds[0])):
            raise PlanFault("logsumexp merges floats and the logarithms of their weights in f32, or f64 beside f64")
        return kinds

    def require_lists(self) -> None:
        """Raises PlanFault unless the tuple is a list of numbers and a list of their indices."""
        kinds, target = self._types(), self.target
        if len(kinds) != 2 or target[0].size != target[1].size or kinds[1] != INDEX_DTYPE or kinds[0] == "bool":
            raise PlanFault(f"numbers are ranked with indices of type {INDEX_DTYPE}, one each")
        if not self.target[0].ndim:
            raise PlanFault("topk merges lists along a last dimension")

    def _types(self) -> list[str]:
        """The element types of the members. Raises PlanFault unless all copies have the target's types and shapes."""
        for copy in self.copies:
            if [(a.shape, a.dtype) for a in copy] != [(a.shape, a.dtype) for a in self.target]:
                raise PlanFault("an aggregation combines copies of different shapes or types")
        return [dtype_name(array) for array in self.target]
