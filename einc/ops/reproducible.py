"""Operators whose results have the same bits however they are cut.

A sum has other bits in another order. So an index along which partial results would be combined is not cut, unless they
are only compared; and kernels compute every element in one order, wherever it lies (docs/reproducible.md).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import ClassVar

from einc.core.intervals import Intervals, ShardableIndex
from einc.core.spec import JoinAggSpec
from einc.core.tensor import Array, TensorType
from einc.ops.base import KernelCall, Operator
from einc.ops.wrapping import WrappingOperator
from einc_runtime.plan.reproducible import ATTRIBUTE, ORDERLESS


@dataclass(frozen=True, slots=True)
class ReproducibleOperator(WrappingOperator):
    """The operator `plain` with fewer cuts and another kernel; everything else is the same.

    It is made after fusion. A plan has the family and the attributes of the plain operator.
    """

    family: ClassVar[str] = "reproducible"

    @property
    def indices(self) -> tuple[ShardableIndex, ...]:
        return _restrict_indices(self.plain)

    def build_spec(self, intervals: Intervals) -> JoinAggSpec:
        return self.plain.build_spec(intervals)

    @property
    def kernel(self) -> KernelCall:
        call = self.plain.kernel
        return KernelCall(call.name, (*call.attributes, (ATTRIBUTE, True)))

    def reference(self, *arrays: Array) -> tuple[Array, ...]:
        return self.plain.reference(*arrays)

    @property
    def reads(self) -> tuple[TensorType, ...]:
        return self.plain.reads

    @property
    def part(self) -> TensorType | None:
        return self.plain.part


def find_plain(operator: Operator) -> Operator:
    """The operator behind a reproducible one, and any other operator itself."""
    return operator.plain if isinstance(operator, ReproducibleOperator) else operator


@lru_cache(maxsize=1024)
def _restrict_indices(operator: Operator) -> tuple[ShardableIndex, ...]:
    ordered = set(find_ordered_indices(operator))
    return tuple(
        replace(index, cuts=(), limit=None, work=None, balance=None) if position in ordered else index
        for position, index in enumerate(operator.indices)
    )


def find_ordered_indices(operator: Operator) -> Iterator[int]:
    """The positions of the indices whose cuts make partial results that are more than compared with each other."""
    indices = operator.indices
    uncut = [index.intervals(1) for index in indices]
    for position, index in enumerate(indices):
        if index.max_intervals > 1:
            functions = operator.build_spec((*uncut[:position], index.intervals(2), *uncut[position + 1 :])).functions
            for name, *blocks in zip(operator.aggregations, *(function.outputs for function in functions), strict=True):
                if name not in ORDERLESS and len(set(blocks)) < len(blocks):
                    yield position
                    break
